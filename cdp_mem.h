/* SPDX-License-Identifier: MIT-0 OR Unlicense
   Both texts are at the end of cdp.h. */
/*  cdp_mem.h - a caching allocator for device memory, recorded - v0.3.0 - MIT-0 or Unlicense

    WHAT IT IS
        What torch.cuda.memory does, for programs written in C: a caching allocator with streams,
        private pools and statistics; a bounded history of every event with stacks and labels; a
        snapshot file that PyTorch's memory viewer opens unchanged; a dump when memory runs out;
        pictures without a browser. The memory may come from CUDA, from the host, or from
        functions of the caller. The recorder also works for an allocator that is not this one.

    DO THIS
        Install: copy cdp.h and cdp_mem.h into your program. Then
        #define CDP_IMPLEMENTATION      in exactly one C or C++ file, before
        #include "cdp_mem.h"            which brings cdp.h along

    QUICK START
        #define CDP_IMPLEMENTATION
        #include "cdp_mem.h"
        #include <stdio.h>
        int main(void) {
            cdp_mem_source host;                        // cdp_mem_source_cuda(NULL, &host) on a GPU
            cdp_mem_desc desc = { .source = &host, .record = { .history = CDP_MEM_HISTORY_ALL } };
            cdp_mem *mem;
            void *x, *y;
            if (cdp_mem_source_host(NULL, 0, &host) != CDP_OK) return cdp_print_error(stderr);
            if (cdp_mem_create(&desc, &mem) != CDP_OK) return cdp_print_error(stderr);
            cdp_mem_label("weights");
            if (cdp_mem_alloc(mem, 3u << 20, NULL, &x) != CDP_OK) return cdp_print_error(stderr);
            cdp_mem_label(NULL);
            if (cdp_mem_alloc(mem, 5000, NULL, &y) != CDP_OK) return cdp_print_error(stderr);
            if (cdp_mem_free(mem, y) != CDP_OK) return cdp_print_error(stderr);
            if (cdp_mem_dump(mem, "memory.pickle") != CDP_OK) return cdp_print_error(stderr);
            if (cdp_mem_free(mem, x) != CDP_OK) return cdp_print_error(stderr);
            cdp_mem_destroy(mem);
            return 0;
        }
        gcc -O2 quick.c -o quick -pthread
        then open memory.pickle at pytorch.org/memory_viz, or
        ./memory_viz svg memory.pickle > memory.svg        with tools/memory_viz.c

    CONTENTS
        Each part is marked >>folder/name and comes from src/folder/name.h. `grep '>>'` lists the
        parts in their order, which is that of the #include lines of src/cdp_mem.h. A part uses
        what comes before it, never what comes after it. Names in _api hold what programs call.

    API BY TASK
        I want to...                                       call
        allocate on a GPU                                  cdp_mem_source_cuda, cdp_mem_create,
                                                           cdp_mem_alloc
        test without a GPU                                 cdp_mem_source_host
        use a block on a second stream                     cdp_mem_record_stream before
                                                           cdp_mem_free
        give cached memory back                            cdp_mem_trim, cdp_mem_pool_trim
        not fail for lack of one large piece               desc.expandable
        stay below a limit                                 desc.limit_bytes, cdp_mem_set_limit
        keep a graph's memory apart                        cdp_mem_pool_create, cdp_mem_alloc_at
        have equal offsets on all ranks                    cdp_mem_pool_desc.fixed_bytes,
                                                           cdp_mem_pool_hash
        know who holds memory                              desc.record, cdp_mem_label,
                                                           cdp_mem_dump
        ask who holds it while the program runs            cdp_mem_held_by, cdp_mem_summary
        log a line a step                                  cdp_mem_json_line
        know the peak of a part of a step                  cdp_mem_scope_begin, cdp_mem_scope_end
        be told before memory is short                     cdp_mem_watch_level
        let a label hold so much and no more               cdp_mem_set_budget
        know why an allocation failed                      its error text, desc.dump_path,
                                                           cdp_mem_on_oom
        record an allocator that is not this one           desc.recorder_only, cdp_mem_note_alloc,
                                                           cdp_mem_note_free, cdp_mem_note_event
        see it without a browser                           cdp_mem_write with CDP_MEM_SVG;
                                                           tools/memory_viz.c
        find a leak                                        cdp_mem_snapshot twice, cdp_mem_compare
        see callers, not wrappers, in reports              cdp_mem_shot_rows
        let NCCL or DDP allocate here                      cdp_mem_allocator
        have their memory in a window of all ranks         cdp_nccl_symmetric_allocator,
                                                           cdp_mem_source_of, fixed_bytes

    COMING FROM torch.cuda.memory
        torch.empty(n, device="cuda"), del t               cdp_mem_alloc, cdp_mem_free
        t.record_stream(s)                                 cdp_mem_record_stream
        empty_cache()                                      cdp_mem_trim
        set_per_process_memory_fraction(f)                 cdp_mem_set_limit(mem, f * total)
        memory_stats(), reset_peak_memory_stats()          cdp_mem_stats_of, cdp_mem_reset(mem,
                                                           true, false)
        memory_summary()                                   cdp_mem_summary
        max_memory_allocated() of a part of a step         cdp_mem_scope_end
        PYTORCH_CUDA_ALLOC_CONF                            cdp_mem_settings_read
        PYTORCH_NO_CUDA_MEMORY_CACHING=1                   desc.no_cache
        MemPool, graph_pool_handle()                       cdp_mem_pool_create
        _record_memory_history(...)                        desc.record, cdp_mem_record
        _set_memory_metadata("x")                          cdp_mem_label("x") ...
                                                           cdp_mem_label(NULL)
        _snapshot(), _dump_snapshot(f)                     cdp_mem_snapshot, cdp_mem_dump
        _memory_viz.py trace, segments, memory, compare    tools/memory_viz.c, the same words
        attach_out_of_memory_observer                      cdp_mem_on_oom
        Different here: the history is bounded by default, and lost events are counted; stacks
        hold addresses of C functions, which are named by `memory_viz symbols`.

    CONFIGURATION
        Macros of cdp.h only. Before glibc 2.34, cdp_mem_source_cuda needs -ldl.

    THREADS
        All functions may be called from any thread at any time, but cdp_mem_destroy: when no
        other thread uses the allocator any more. A block may be freed by any thread. Labels
        belong to the thread. One mutex guards one allocator; the source is called under it. In
        a child of fork() calls of an allocator of its parent are STATE, or do nothing.

    MEMORY
        From desc.os: 40 KiB for each stream and size class, 120 bytes a block, and for the
        history max_entries x 64 bytes, max_stacks x 16 addresses, 0.6 MiB for source lines, and
        350 bytes for each label that live blocks or kept events carry at one time, or whose
        peak stays. Nothing is allocated for an operation once as many blocks and labels have
        existed at one time.

    ERRORS
        INVALID: the caller's mistake, named in one sentence; nothing changed. NOMEM: no memory
        after all retries; the text has the figures. IO: the source failed; the text quotes its
        error; nothing changed. TIMEOUT: events did not pass in time. STATE: not possible now (a
        graph is being captured, blocks are in use).

    LIMITS
        Requests below 2^60 bytes | labels: 16 nested, 127 bytes | 4095 source lines | frames of a
        stack: 64 | watchers: 8 | watched levels: 8 | past labels with peaks: 256 | numbers in
        files: 2^53 | budgets: 8

    License: MIT-0 or Unlicense, as you like; see the end of cdp.h. */

/* Joined from src/cdp_mem.h and what it includes: change that, then `make headers`. */
#if defined(CDP_MEM_IMPLEMENTATION) && !defined(CDP_CORE_IMPLEMENTATION)
#define CDP_CORE_IMPLEMENTATION
#endif
#if !defined(CDP_INCLUDED) \
    || defined(CDP_IMPLEMENTATION) || defined(CDP_CORE_IMPLEMENTATION) \
    || defined(CDP_MEM_IMPLEMENTATION)
#include "cdp.h"
#endif

#ifndef CDP_MEM_INCLUDED
#define CDP_MEM_INCLUDED

#define CDP_MEM_VERSION 300 /* major * 10000 + minor * 100 + patch */
#if CDP_MEM_VERSION != CDP_VERSION
#error "cdp_mem.h and cdp.h are of different versions: copy all headers from the same release"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- >>mem/source_api: where memory comes from ----------------------------------------------- */

/* Where segments come from: CUDA, the host, another allocator, or functions of the caller. The
   allocator calls these functions under its lock, so they must not call it. A failing function
   sets its sentence by cdp_error_set() and returns the status. A stream is what the caller calls
   one; NULL is the default. */
typedef struct cdp_mem_source {
    void *user;       /* first argument of every function                                     */
    const char *name; /* in texts: "cuda:0"; must outlive the allocator                       */
    uint32_t device;  /* ordinal in snapshots, up to 1023                                     */
    /* A segment of `bytes`, aligned to 512. On NOMEM the allocator gives cached
       segments back and calls again. */
    cdp_status (*reserve)(void *user, uint64_t bytes, void **out);
    /* Give a segment back; nothing uses it any more. */
    cdp_status (*release)(void *user, void *at, uint64_t bytes);
    /* Optional: what the device has. */
    cdp_status (*info)(void *user, uint64_t *free_bytes, uint64_t *total_bytes);
    /* Events: all four or none. Without them a free is complete at once. */
    cdp_status (*event_create)(void *user, void **event);
    void (*event_destroy)(void *user, void *event);
    cdp_status (*event_record)(void *user, void *event, void *stream);
    cdp_status (*event_query)(void *user, void *event); /* OK: passed; PENDING; or an error   */
    /* Optional: whether a graph is being captured from this stream. */
    bool (*capturing)(void *user, void *stream);
    /* Optional, all five or none: segments that grow (desc.expandable). A range of addresses gets
       memory in its pages: every `at` of map and unmap lies a multiple of page_bytes after the
       start of its range, and `bytes` is a multiple, too. page_bytes: 4096 or more. */
    uint64_t page_bytes;
    /* Reserve addresses, aligned to 512, without memory: `least` bytes or more, a multiple of
       page_bytes; *bytes says how many. As many as the device has bytes is a good size. */
    cdp_status (*range_reserve)(void *user, uint64_t least, void **at, uint64_t *bytes);
    void (*range_release)(
        void *user, void *at, uint64_t bytes); /* nothing is mapped in it        */
    /* Give these pages memory. If this fails, none of them has any. NOMEM: as for reserve. */
    cdp_status (*map)(void *user, void *at, uint64_t bytes);
    /* Take their memory away, after the work that `stream` holds: only that may still use it. */
    cdp_status (*unmap)(void *user, void *at, uint64_t bytes, void *stream);
    /* Optional: called once, by cdp_mem_destroy or cdp_mem_pool_destroy. */
    void (*destroy)(void *user);
} cdp_mem_source;

/* The CUDA device that is current on this thread. `cudart`: file of the CUDA runtime to load,
   NULL for the usual names. Pages are of the driver's smallest size, usually 2 MiB, and for this
   device alone: not for peers, not for cudaIpcGetMemHandle. Errors: UNSUPPORTED (no such library,
   or no device; the text names what was looked for), IO, NOMEM. Pass the result to one allocator
   or pool, which destroys it. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_source_cuda(const char *cudart, cdp_mem_source *out);

/* Host memory from os->alloc (`os` NULL: cdp_os_default()), at most `limit_bytes` at a time (0:
   no limit). Pages, of 2 MiB, come from the system itself (mmap, VirtualAlloc; not with
   CDP_NO_OS). It has no streams: a free is complete at once. Errors: NOMEM. Pass it to one
   allocator or pool. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_source_host(
    const cdp_os *os, uint64_t limit_bytes, cdp_mem_source *out);

/* Segments from another allocator (of cdp_nccl_allocator(), say), which must return memory
   aligned to 512. If it returns NULL, the error that it has set is the error of the request, else
   NOMEM. `from` is copied; `os` NULL: cdp_os_default(). Errors: INVALID, NOMEM. Pass it to one
   allocator or pool. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_source_of(
    const cdp_allocator *from, const cdp_os *os, cdp_mem_source *out);

/* ---- >>mem/desc_api: what an allocator is made from ------------------------------------------ */

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

/* ---- >>mem/allocator_api: allocating and freeing --------------------------------------------- */

typedef struct cdp_mem cdp_mem;
typedef struct cdp_mem_pool cdp_mem_pool;
typedef struct cdp_mem_shot cdp_mem_shot;

/* Make an allocator. Takes over the source also when it fails. Errors: INVALID (desc),
   UNSUPPORTED (default source without CUDA; backtrace where the C library has none), NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_create(const cdp_mem_desc *desc, cdp_mem **out);

/* Wait at most timeout_ms for pending frees, give all segments back that have no live block,
   destroy the pools that are left, the source and the allocator. Returns the bytes of blocks that
   were still allocated: each is named in the log, and their segments are not given back. In a child
   of fork() it does nothing. NULL is allowed. A second call does nothing but set
   cdp_last_error(); other calls of what was destroyed are STATE, or do nothing. */
CDP_API uint64_t cdp_mem_destroy(cdp_mem *mem);

/* The place of a call, for stacks without unwinding. Texts are copied when they are new. */
typedef struct cdp_mem_site {
    const char *file;
    uint32_t line;
    const char *function;
} cdp_mem_site;
#ifndef __cplusplus
#define CDP_MEM_HERE (&(const cdp_mem_site){__FILE__, (uint32_t)__LINE__, __func__})
#endif

/* `bytes` of memory for work in `stream`, aligned to 512, not zeroed. 0 bytes: *out is NULL.
   Errors: NOMEM (after all retries; the text says what was asked, what is free, cached and
   fragmented, and which label or stack holds the most), IO, TIMEOUT, STATE (the stream is being
   captured and this is no private pool), INVALID. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_alloc(
    cdp_mem *mem, uint64_t bytes, void *stream, void **out);

/* The same from a private pool (NULL: the ordinary one), by a call at `site` (NULL: not said). */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_alloc_at(cdp_mem *mem, cdp_mem_pool *pool, uint64_t bytes,
    void *stream, const cdp_mem_site *site, void **out);

/* Free a block in the order of the stream it was allocated for, and after the work that recorded
   streams hold now. NULL is allowed. Errors: INVALID (not a block of this allocator, or freed
   already), IO (an event could not be recorded, because a stream is gone, say): the block stays
   allocated. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_free(cdp_mem *mem, void *data);

/* The block is used in `stream`, too: it is not reused before the work that the stream holds at
   the time of the free is over. Ignored for the block's own stream, for fixed pools, and without
   events. Errors: INVALID, NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_record_stream(cdp_mem *mem, void *data, void *stream);

/* `stream` is about to be destroyed, and all its work is over: forget it. Blocks recorded on it
   no longer wait for it, and free segments that served it are given back. Errors: INVALID (a
   block allocated for it is still in use; nothing changed), IO, STATE. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_forget_stream(cdp_mem *mem, void *stream);

/* Bytes that the caller may use at `data`; 0 when it is no live block of `mem`. */
CDP_API uint64_t cdp_mem_usable(const cdp_mem *mem, const void *data);

/* Complete the frees whose events have passed, and give back all segments without any block in use;
   of segments that grow, all pages without one. Returns the bytes given back. Of private pools
   too, but not of those that are fixed, that are made with `keep`, or that served a request while a
   graph was captured: see cdp_mem_pool_trim. */
CDP_API uint64_t cdp_mem_trim(cdp_mem *mem);

/* Never hold more than `bytes` from now on (0: no limit). What is held already stays; see
   cdp_mem_trim. */
CDP_API void cdp_mem_set_limit(cdp_mem *mem, uint64_t bytes);

/* Called on the thread whose request failed, without the lock, before the error returns. True:
   something was freed, try once more. `func` may use the allocator and take a snapshot. NULL:
   none. */
typedef struct cdp_mem_oom {
    uint32_t device;
    uint64_t bytes, held_bytes, limit_bytes,
        free_bytes; /* free_bytes: of the device, 0: not known */
} cdp_mem_oom;
typedef bool (*cdp_mem_oom_func)(void *user, cdp_mem *mem, const cdp_mem_oom *oom);
/* One function at a time; a second call replaces the first. */
CDP_API void cdp_mem_on_oom(cdp_mem *mem, cdp_mem_oom_func func, void *user);

/* Call `func` for each segment: now for those that exist, later for each new one, and before one is
   given back. Of segments that grow it hears of pages: SEGMENT_MAP and SEGMENT_UNMAP. Under the
   lock: `func` must not call this header, CUDA or NCCL. Errors: INVALID (8 watchers exist
   already). cdp_mem_unwatch removes those with this `user`. */
typedef void (*cdp_mem_watch_func)(
    void *user, cdp_mem_action action, void *at, uint64_t bytes, cdp_mem_pool *pool);
/* `user` also names the watcher for cdp_mem_unwatch. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_watch(cdp_mem *mem, cdp_mem_watch_func func, void *user);
CDP_API void cdp_mem_unwatch(cdp_mem *mem, void *user);

/* ---- >>mem/pools_api: private pools ---------------------------------------------------------- */

/* A pool with segments of its own: for a graph, whose replays need the same addresses, or for
   memory from another source. */
typedef struct cdp_mem_pool_desc {
    const char *label; /* of its segments; copied                                           */
    /* copied, and destroyed with the pool (default: the allocator's) */
    const cdp_mem_source *source;
    /* One segment of this size now, and never another: offsets follow from the order of calls
       alone, so equal calls give equal offsets on all ranks. Frees wait for no events. Over a
       source of cdp_nccl_symmetric_allocator() it is a pool in a window of NCCL: then all ranks
       create it, and destroy it, together; cdp_mem_pool_create() waits for them, under the lock
       of the allocator, as cdp_nccl_alloc_symmetric() says, and has its errors too. */
    uint64_t fixed_bytes;
    bool no_split;   /* blocks are not split                                              */
    bool use_on_oom; /* the ordinary pool may use its free blocks before it fails         */
    /* Only cdp_mem_pool_trim() and cdp_mem_pool_destroy() give idle segments back. Without it
       cdp_mem_trim() does, too, and any request of the allocator before it fails. A pool that
       served a request while a graph was captured keeps its segments in any case: replays use
       their addresses. */
    bool keep;
} cdp_mem_pool_desc;

/* Make a pool. Errors: INVALID, NOMEM, IO, and those of the source. Takes over the source also when
   it fails. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_pool_create(
    cdp_mem *mem, const cdp_mem_pool_desc *desc, cdp_mem_pool **out);

/* Give its segments back and destroy it. Errors: STATE (blocks are in use or pending; nothing
   changed), IO. NULL is allowed. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_pool_destroy(cdp_mem_pool *pool);

/* Complete the frees whose events have passed, and give back the segments of the pool without any
   block in use, also those that it keeps: no graph that was captured with them may run again.
   A fixed pool keeps its segment. Returns the bytes given back; 0 for NULL. */
CDP_API uint64_t cdp_mem_pool_trim(cdp_mem_pool *pool);

/* A hash of all sizes and offsets of its calls so far: compare it between ranks. */
CDP_API uint64_t cdp_mem_pool_hash(const cdp_mem_pool *pool);

/* Allocator callbacks over `mem` and `pool` (NULL: the ordinary one), for cdp_nccl_desc,
   cdp_ddp_desc and others; labels of the caller are recorded. `pool`, or `mem`, must outlive
   their use. */
CDP_API cdp_allocator cdp_mem_allocator(cdp_mem *mem);
CDP_API cdp_allocator cdp_mem_pool_allocator(cdp_mem_pool *pool);

/* ---- >>mem/record_api: histories and stacks -------------------------------------------------- */

/* Start recording, or change it; `desc` NULL or history OFF: stop and forget. Blocks that live
   already have no stacks. Errors: INVALID, UNSUPPORTED, NOMEM (recording stays as it was). */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_record(cdp_mem *mem, const cdp_mem_record_desc *desc);

/* Begin a label of this thread ("step 12", "ddp bucket 3"), which events and blocks then carry.
   Labels nest up to 16 deep, joined by "/". NULL ends the innermost one. */
CDP_API void cdp_mem_label(const char *text);

/* Record a text for this moment (`data` NULL), or for a live block. Ignored when nothing is
   recorded. */
CDP_API void cdp_mem_note(cdp_mem *mem, const void *data, const char *text);

/* Memory that others hold (a communicator, the context): shown as a segment of its own at a
   made-up address, and not in the statistics. A second call with the same label replaces the
   first; 0 bytes removes it. Errors: NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_external(cdp_mem *mem, const char *label, uint64_t bytes);

/* For desc.recorder_only: another allocator gave out `bytes` at `data`, or is about to take them
   back. Each block is shown as a segment of its own. Errors: INVALID (known already; not known),
   NOMEM, STATE (this allocator has a source). */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_note_alloc(
    cdp_mem *mem, const void *data, uint64_t bytes, void *stream);
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_note_free(cdp_mem *mem, const void *data);

struct cdp_mem_event; /* see >>mem/shots_api */

/* For desc.recorder_only: any event of another allocator, one that has segments, frees that wait
   for streams, or failures. Members action, address, size and stream of `event` count, of OOM also
   device_free (bytes that the device has free; its address is ignored). Blocks that lie in a
   segment which was recorded before them are shown in it, between free ones.
     ALLOC, FREE_REQUESTED,   a block is given out; is freed but waits for streams; may be used
     FREE_COMPLETED           again. Without FREE_COMPLETED it is shown as one that waits.
     SEGMENT_ALLOC, _FREE     a whole segment; the latter needs address and size of the former
     SEGMENT_MAP, _UNMAP      pages of segments that grow: MAP adds them to the segment of this
                              stream that they touch, or they begin one; UNMAP takes free pages
                              away anywhere, and may leave two segments
     OOM                      a request failed
   Errors: INVALID (overlaps what is recorded; not recorded; not free; another action, which has a
   call of its own), NOMEM, STATE (this allocator has a source); nothing is recorded then. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mem_note_event(
    cdp_mem *mem, const struct cdp_mem_event *event);

/* ---- >>mem/statistics_api: how much is used, cached, wasted ---------------------------------- */

typedef struct cdp_mem_stat {
    uint64_t current, peak, allocated, freed;
} cdp_mem_stat;

/* Arrays: [0] all, [1] small requests (up to 1 MiB), [2] large ones. allocation: in callers'
   hands; active: also frees that wait for streams; inactive_split: free parts of segments that
   are partly in use, which cannot be given back. */
typedef struct cdp_mem_stats { /* 29 of cdp_mem_stat come first */
    cdp_mem_stat allocation[3], segment[3], active[3], inactive_split[3];
    cdp_mem_stat allocated_bytes[3], reserved_bytes[3], active_bytes[3], inactive_split_bytes[3];
    cdp_mem_stat requested_bytes[3];
    cdp_mem_stat oversize_allocations, oversize_segments;
    uint64_t alloc_retries, ooms, oom_rejections, sync_all_streams, device_allocs, device_frees;
    uint64_t events_lost; /* overwritten in the ring, since recording began */
    uint64_t stacks_lost; /* not stored: the table was full                 */
    uint64_t labels_lost; /* not stored: memory for labels ran out          */
} cdp_mem_stats;
/* All zero when `mem` is NULL. */
CDP_API cdp_mem_stats cdp_mem_stats_of(const cdp_mem *mem);

/* Set peaks to the current figures, and sums of what was allocated and freed to 0. */
CDP_API void cdp_mem_reset(cdp_mem *mem, bool peak, bool accumulated);

/* ---- >>mem/live_api: who holds memory while the program runs, without a snapshot ------------- */

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

/* ---- >>mem/shots_api: snapshots, files, pictures --------------------------------------------- */

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

#ifdef __cplusplus
} /* extern "C" */
#endif
/* ---- >>mem/cxx_api: descs by reference in C++ ------------------------------------------------ */

#ifdef __cplusplus
extern "C++" { /* also where a program includes the header in extern "C" */
inline cdp_status cdp_mem_create(const cdp_mem_desc &desc, cdp_mem **out) {
    return cdp_mem_create(&desc, out);
}
inline cdp_status cdp_mem_record(cdp_mem *mem, const cdp_mem_record_desc &desc) {
    return cdp_mem_record(mem, &desc);
}
inline cdp_status cdp_mem_pool_create(
    cdp_mem *mem, const cdp_mem_pool_desc &desc, cdp_mem_pool **out) {
    return cdp_mem_pool_create(mem, &desc, out);
}
} /* extern "C++" */
#endif

#endif /* CDP_MEM_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_MEM_IMPLEMENTATION)) \
    && !defined(CDP_MEM_IMPL_INCLUDED)
#define CDP_MEM_IMPL_INCLUDED
#undef CDP__HERE
#define CDP__HERE CDP__FILE_MEM

/* ---- >>mem/sizes: size classes and rounding (pure) ------------------------------------------- */

/* Knows: the sizes of blocks and segments, and when a block is split. The constants are PyTorch's,
   so that snapshots are comparable. Promises: a block is never smaller than its request, and
   every size is a multiple of 512. */

/* Used by every request, so inlining pays. */
#define CDP__MEM_HOT CDP__PRIVATE inline

#define CDP__MEM_UNIT 512ull
#define CDP__MEM_MIB (1ull << 20)
#define CDP__MEM_SMALL CDP__MEM_MIB               /* largest small request */
#define CDP__MEM_SMALL_SEGMENT (2 * CDP__MEM_MIB) /* segment for small requests */
#define CDP__MEM_OWN_SEGMENT (10 * CDP__MEM_MIB)  /* from this size on: a segment each */
#define CDP__MEM_REQUEST_MAX (1ull << 60)

typedef struct cdp__mem_sizes {
    uint64_t max_split, max_non_split_rounding, large_segment;
    bool divided; /* some number of divisions is not 0 */
    uint32_t divisions[16];
} cdp__mem_sizes;

CDP__PRIVATE uint64_t cdp__mem_up_to(uint64_t n, uint64_t unit) {
    return (n + unit - 1) / unit * unit;
}

/* The index of the interval that contains a size. The 16 intervals begin at 1, 2, 4 MiB .. 32
   GiB; smaller sizes are in the first. */
CDP__MEM_HOT uint32_t cdp__mem_interval(uint64_t bytes) {
    const uint32_t log = cdp__highest_bit(bytes);
    if (log < 20) return 0;
    return log > 35 ? 15 : log - 20;
}

/* Rounds up to one of `parts` equal steps between two powers of two; powers of two stay. */
CDP__PRIVATE uint64_t cdp__mem_next_part(uint64_t bytes, uint32_t parts) {
    const uint64_t low = 1ull << cdp__highest_bit(bytes);
    const uint64_t part = low / parts;
    return cdp__mem_up_to(bytes, part);
}

/* The size of the block for a request of at least one byte. */
CDP__MEM_HOT uint64_t cdp__mem_round(const cdp__mem_sizes *s, uint64_t bytes) {
    uint32_t parts;
    if (!s->divided || bytes < CDP__MEM_UNIT) return cdp__mem_up_to(bytes, CDP__MEM_UNIT);
    parts = s->divisions[cdp__mem_interval(bytes)];
    if (parts > 1 && bytes > CDP__MEM_UNIT * parts) return cdp__mem_next_part(bytes, parts);
    return cdp__mem_up_to(bytes, CDP__MEM_UNIT);
}

CDP__PRIVATE bool cdp__mem_is_large(uint64_t size) {
    return size > CDP__MEM_SMALL;
}

/* The size of the segment for a block. */
CDP__PRIVATE uint64_t cdp__mem_segment_size(const cdp__mem_sizes *s, uint64_t size) {
    if (!cdp__mem_is_large(size)) return CDP__MEM_SMALL_SEGMENT;
    if (size < CDP__MEM_OWN_SEGMENT) return s->large_segment;
    return cdp__mem_up_to(size, CDP__MEM_SMALL_SEGMENT);
}

/* True if a free block of `have` bytes may serve a request of `size` bytes. Oversize blocks only
   serve oversize requests, and not much smaller ones. */
CDP__MEM_HOT bool cdp__mem_suits(const cdp__mem_sizes *s, uint64_t size, uint64_t have) {
    if (size < s->max_split) return have < s->max_split;
    return have < size + s->max_non_split_rounding;
}

/* True if the unused rest of `have` bytes becomes a block of its own. */
CDP__MEM_HOT bool cdp__mem_splits(
    const cdp__mem_sizes *s, bool large, uint64_t size, uint64_t have) {
    if (!large) return have - size >= CDP__MEM_UNIT;
    return size < s->max_split && have - size > CDP__MEM_SMALL;
}

CDP__PRIVATE uint64_t cdp__mem_mix(uint64_t h, uint64_t v) {
    h = (h ^ v) * 0x9e3779b97f4a7c15ull;
    return h ^ h >> 29;
}

/* ---- >>mem/bins: free blocks by size (pure) -------------------------------------------------- */

/* Knows: the records of blocks, segments and streams, and lists of the free blocks of one stream
   and size class. Promises: best fit, exact up to 2 MiB: one list for each multiple of 512;
   above that, 32 lists for each power of two, of which a quick search compares the first 8 blocks
   and an exact one compares all. A bitmap over the lists, and one over its words, find the next
   list that is not empty. */

typedef struct cdp__mem_use cdp__mem_use;
typedef struct cdp__mem_part cdp__mem_part;
typedef struct cdp__mem_span cdp__mem_span;
typedef struct cdp__mem_arena cdp__mem_arena;
typedef struct cdp__mem_range cdp__mem_range;

/* A block: a part of a segment (a span). It is in use, waiting for streams, or free. */
struct cdp__mem_part {
    uint64_t at, size, requested;
    cdp__mem_span *span;
    cdp__mem_part *prev, *next;         /* neighbours in the segment             */
    cdp__mem_part *bin_prev, *bin_next; /* in a list of free blocks, or of slabs */
    cdp__mem_use *uses;                 /* other streams that use it             */
    union {
        uint64_t freed_at; /* of a free block: the count of requests at that time */
        uint64_t began;    /* of another, whose alloc was left out: events before it; else 0 */
    };
    uint32_t stack, label;
    uint32_t waits; /* events that have not passed           */
    cdp_mem_state state;
};

struct cdp__mem_span { /* a segment */
    uint64_t at, size;
    cdp__mem_arena *arena;
    cdp__mem_part *first, *last;
    cdp__mem_span *prev, *next; /* of the allocator; also in a list of unused records */
    uint32_t stack, label;
    uint32_t busy; /* blocks that are in use or waiting */
    bool large;
    bool reported;                /* of another allocator, which reports its end */
    bool unrecorded;              /* its beginning was left out, so its end is, too */
    bool grows;                   /* single pages are mapped and unmapped */
    cdp__mem_range *range;        /* of our own that grow: the addresses that it is part of */
    cdp__mem_span *below, *above; /* in this range, in the order of addresses               */
};

/* Addresses of one arena and size class. Its segments are the mapped parts; unmapped pages lie
   between any two of them. */
struct cdp__mem_range {
    uint64_t at, size;
    cdp__mem_span *first;
    cdp__mem_range *next;
};

struct cdp__mem_arena { /* the blocks of one pool for one stream */
    cdp_mem_pool *pool;
    void *stream;
    bool forgotten;                /* the stream may be gone */
    struct cdp__mem_bins *bins[2]; /* small, large; made when needed */
    cdp__mem_range *ranges[2];     /* likewise                       */
    cdp__mem_arena *next;
};

typedef struct cdp__mem_stream_queue { /* a further stream that uses blocks */
    void *stream;
    cdp__mem_use *first, *last; /* events in the order of the stream */
    struct cdp__mem_stream_queue *next;
} cdp__mem_stream_queue;

struct cdp__mem_use { /* one block on one further stream */
    cdp__mem_part *part;
    cdp__mem_stream_queue *queue;
    void *event;         /* stays when the record is unused */
    cdp__mem_use *next;  /* of the block; or of unused ones */
    cdp__mem_use *after; /* in the queue, or in the list of frees delayed by a capture */
    bool forgotten;      /* cdp_mem_forget_stream() was called: do not wait */
};

#define CDP__MEM_EXACT 4096u
#define CDP__MEM_BINS (CDP__MEM_EXACT + 27u * 32u)
#define CDP__MEM_MAP ((CDP__MEM_BINS + 63u) / 64u)
#define CDP__MEM_COARSE_BINS (39u * 32u)
#define CDP__MEM_QUICK_SEARCH 8u /* blocks of a list that a quick search compares */

typedef struct cdp__mem_bins {
    bool coarse;
    uint32_t count;
    uint64_t top[2];            /* bit i: map[i] is not 0         */
    uint64_t map[CDP__MEM_MAP]; /* bit i: head[i] is not NULL     */
    cdp__mem_part *head[1];     /* really `count` entries */
} cdp__mem_bins;

CDP__PRIVATE uint64_t cdp__mem_bins_bytes(bool coarse) {
    const uint32_t count = coarse ? CDP__MEM_COARSE_BINS : CDP__MEM_BINS;
    return sizeof(cdp__mem_bins) + (count - 1) * sizeof(cdp__mem_part *);
}

/* The list of a block: 32 lists per power of two from 2^first on. */
CDP__MEM_HOT uint32_t cdp__mem_bin_coarse(uint64_t size, uint32_t first, uint32_t powers) {
    const uint32_t log = cdp__highest_bit(size);
    if (log < first) return 0; /* a block of another allocator */
    if (log >= first + powers) return powers * 32 - 1;
    return (log - first) * 32 + (uint32_t)(size >> (log - 5) & 31);
}

/* The list for blocks of `size`, a multiple of 512. */
CDP__MEM_HOT uint32_t cdp__mem_bin_of(bool coarse, uint64_t size) {
    if (coarse) return cdp__mem_bin_coarse(size, 9, 39);
    if (size <= CDP__MEM_EXACT * CDP__MEM_UNIT) return (uint32_t)((size - 1) / CDP__MEM_UNIT);
    return CDP__MEM_EXACT + cdp__mem_bin_coarse(size, 21, 27);
}

CDP__MEM_HOT void cdp__mem_bins_put(cdp__mem_bins *b, cdp__mem_part *p) {
    const uint32_t i = cdp__mem_bin_of(b->coarse, p->size);
    p->bin_prev = NULL;
    p->bin_next = b->head[i];
    if (p->bin_next) p->bin_next->bin_prev = p;
    b->head[i] = p;
    if (!b->map[i / 64]) b->top[i / 4096] |= 1ull << i / 64 % 64;
    b->map[i / 64] |= 1ull << i % 64;
}

/* Takes a block out of list `i`. */
CDP__MEM_HOT void cdp__mem_bins_take_from(cdp__mem_bins *b, uint32_t i, const cdp__mem_part *p) {
    if (p->bin_next) p->bin_next->bin_prev = p->bin_prev;
    if (p->bin_prev)
        p->bin_prev->bin_next = p->bin_next;
    else
        b->head[i] = p->bin_next;
    if (b->head[i]) return;
    b->map[i / 64] &= ~(1ull << i % 64);
    if (!b->map[i / 64]) b->top[i / 4096] &= ~(1ull << i / 64 % 64);
}

CDP__MEM_HOT void cdp__mem_bins_take(cdp__mem_bins *b, const cdp__mem_part *p) {
    cdp__mem_bins_take_from(b, cdp__mem_bin_of(b->coarse, p->size), p);
}

/* The first non-empty list from `i` on; CDP__MEM_BINS: none. */
CDP__MEM_HOT uint32_t cdp__mem_bins_next(const cdp__mem_bins *b, uint32_t i) {
    uint32_t word = i / 64;
    uint64_t bits;
    if (i >= b->count) return CDP__MEM_BINS;
    bits = b->map[word] & ~0ull << i % 64;
    if (bits) return word * 64 + cdp__lowest_bit(bits);
    for (++word; word < CDP__MEM_MAP; word = (word / 64 + 1) * 64) {
        bits = b->top[word / 64] & ~0ull << word % 64;
        if (!bits) continue;
        word = word / 64 * 64 + cdp__lowest_bit(bits);
        return word * 64 + cdp__lowest_bit(b->map[word]);
    }
    return CDP__MEM_BINS;
}

/* Of the first `most` blocks of a list, the smallest with room for `size`. */
CDP__PRIVATE cdp__mem_part *cdp__mem_bin_best(cdp__mem_part *p, uint64_t size, uint64_t most) {
    cdp__mem_part *best = NULL;
    for (; p && most; p = p->bin_next, --most) {
        if (p->size < size) continue;
        if (!best || p->size < best->size) best = p;
    }
    return best;
}

/* The best fit for `size` among the first `most` blocks of each list, or NULL. It stays in its
   list, number *list. */
CDP__MEM_HOT cdp__mem_part *cdp__mem_bins_best(
    const cdp__mem_bins *b, uint64_t size, uint64_t most, uint32_t *list) {
    const uint32_t first = cdp__mem_bin_of(b->coarse, size);
    uint32_t i = cdp__mem_bins_next(b, first);
    cdp__mem_part *p;
    *list = i;
    if (i == CDP__MEM_BINS) return NULL;
    if (!b->coarse && i < CDP__MEM_EXACT) return b->head[i];
    p = cdp__mem_bin_best(b->head[i], size, most);
    if (p || i > first) return p;
    *list = i = cdp__mem_bins_next(b, first + 1);
    return i == CDP__MEM_BINS ? NULL : cdp__mem_bin_best(b->head[i], size, most);
}

/* ---- >>mem/table: from an address to its block (pure) ---------------------------------------- */

/* Knows: where blocks in use begin. Promises: a block is found by its address in a few steps. Open
   addressing with linear probing; a removed entry is filled by shifting later ones back; the
   caller keeps the table at most half full. */

typedef struct cdp__mem_table {
    cdp__mem_part **slots;
    uint64_t mask, used;
    uint32_t shift; /* 64 - log2 of the number of slots */
} cdp__mem_table;

CDP__MEM_HOT uint64_t cdp__mem_table_home(const cdp__mem_table *t, uint64_t at) {
    return at * 0x9e3779b97f4a7c15ull >> t->shift;
}

CDP__MEM_HOT cdp__mem_part *cdp__mem_table_find(const cdp__mem_table *t, uint64_t at) {
    uint64_t i;
    if (!t->slots) return NULL;
    for (i = cdp__mem_table_home(t, at); t->slots[i]; i = (i + 1) & t->mask)
        if (t->slots[i]->at == at) return t->slots[i];
    return NULL;
}

CDP__MEM_HOT void cdp__mem_table_put(cdp__mem_table *t, cdp__mem_part *p) {
    uint64_t i = cdp__mem_table_home(t, p->at);
    while (t->slots[i])
        i = (i + 1) & t->mask;
    t->slots[i] = p;
    ++t->used;
}

/* True if the entry of slot `i` may move to the hole: its home slot is not after the hole. */
CDP__MEM_HOT bool cdp__mem_table_moves(const cdp__mem_table *t, uint64_t i, uint64_t hole) {
    const uint64_t home = cdp__mem_table_home(t, t->slots[i]->at);
    return ((i - home) & t->mask) >= ((i - hole) & t->mask);
}

CDP__MEM_HOT void cdp__mem_table_take(cdp__mem_table *t, const cdp__mem_part *p) {
    uint64_t hole = cdp__mem_table_home(t, p->at);
    uint64_t i;
    while (t->slots[hole] != p)
        hole = (hole + 1) & t->mask;
    for (i = (hole + 1) & t->mask; t->slots[i]; i = (i + 1) & t->mask) {
        if (!cdp__mem_table_moves(t, i, hole)) continue;
        t->slots[hole] = t->slots[i];
        hole = i;
    }
    t->slots[hole] = NULL;
    --t->used;
}

/* ---- >>mem/ring: events, the oldest overwritten (pure) --------------------------------------- */

/* Knows: the last `room` events. Promises: events are overwritten oldest first, and the lost ones
   are counted. */

typedef struct cdp__mem_record { /* 64 bytes */
    uint64_t address, size, stream, time_ns;
    uint64_t extra; /* OOM: free bytes of the device */
    uint32_t stack, label;
    uint32_t pool[2];
    uint8_t action, spare[7];
} cdp__mem_record;

typedef struct cdp__mem_ring {
    cdp__mem_record *at;
    uint32_t room, next;
    uint64_t total; /* ever recorded */
} cdp__mem_ring;

/* Returns the entry for a new event; overwrites the oldest one if the ring is full. */
CDP__PRIVATE cdp__mem_record *cdp__mem_ring_push(cdp__mem_ring *r) {
    cdp__mem_record *const e = &r->at[r->next];
    r->next = r->next + 1 == r->room ? 0 : r->next + 1;
    ++r->total;
    return e;
}

CDP__PRIVATE uint32_t cdp__mem_ring_count(const cdp__mem_ring *r) {
    return r->total < r->room ? (uint32_t)r->total : r->room;
}

CDP__PRIVATE uint64_t cdp__mem_ring_lost(const cdp__mem_ring *r) {
    return r->total - cdp__mem_ring_count(r);
}

/* All events, oldest first. */
CDP__PRIVATE void cdp__mem_ring_copy(const cdp__mem_ring *r, cdp__mem_record *out) {
    const uint32_t n = cdp__mem_ring_count(r);
    const uint32_t first = n < r->room ? 0 : r->next;
    const uint32_t head = n - first;
    if (!n) return;
    memcpy(out, r->at + first, head * sizeof *out);
    if (first) memcpy(out + head, r->at, first * sizeof *out);
}

/* ---- >>mem/depot: different stacks and sites, each once (pure) ------------------------------- */

/* Knows: stacks (rows of words) and sites by number, from 1 on; 0 means none. A word is an address
   or, with a tag in its upper bits, the number of a site. Promises: equal stacks and sites are
   stored once, in tables of fixed size. When a table is full, new ones get a number that says so,
   and a counter grows. */

#define CDP__MEM_FRAMES 64u
#define CDP__MEM_WORDS (CDP__MEM_FRAMES + 1u)
#define CDP__MEM_TAG_SITE (0xfffeull << 48)
#define CDP__MEM_TAG_FULL (0xfffcull << 48)
#define CDP__MEM_TAG (0xffffull << 48)
#define CDP__MEM_SITES 4096u
#define CDP__MEM_LABEL_BYTES 128u

typedef struct cdp__mem_row { /* one stack */
    uint64_t hash;
    uint32_t first, count; /* of its words */
} cdp__mem_row;

typedef struct cdp__mem_depot {
    cdp__mem_row *rows; /* rows[0]: "table full"; row i is the stack of number i + 1 */
    uint64_t *words;
    uint32_t *slots; /* open addressing: numbers of stacks, twice as many as rows */
    uint32_t rows_used, rows_room;
    uint32_t words_used, words_room;
    uint32_t slot_mask;
    uint64_t lost;
} cdp__mem_depot;

typedef struct cdp__mem_trace {     /* a stack that was just collected */
    uint64_t words[CDP__MEM_WORDS]; /* a word for the site, the frames */
    uint32_t count;                 /* frames */
} cdp__mem_trace;

CDP__PRIVATE uint64_t cdp__mem_words_hash(const uint64_t *words, uint32_t count) {
    uint64_t h = count;
    uint32_t i;
    for (i = 0; i < count; ++i)
        h = cdp__mem_mix(h, words[i]);
    return h;
}

CDP__PRIVATE bool cdp__mem_row_is(const cdp__mem_depot *d, const cdp__mem_row *r, uint64_t hash,
    const uint64_t *words, uint32_t count) {
    if (r->hash != hash || r->count != count) return false;
    return memcmp(d->words + r->first, words, count * sizeof *words) == 0;
}

/* Clears the table. Number 1 stands for all stacks that find no room. */
CDP__PRIVATE void cdp__mem_depot_clear(cdp__mem_depot *d) {
    memset(d->slots, 0, (size_t)((d->slot_mask + 1ull) * sizeof *d->slots));
    d->words[0] = CDP__MEM_TAG_FULL;
    d->rows[0].hash = 0;
    d->rows[0].first = 0;
    d->rows[0].count = 1;
    d->rows_used = d->words_used = 1;
    d->lost = 0;
}

CDP__PRIVATE uint32_t cdp__mem_depot_add(
    cdp__mem_depot *d, uint64_t hash, const uint64_t *words, uint32_t count, uint32_t slot) {
    cdp__mem_row *r;
    if (d->rows_used == d->rows_room || d->words_room - d->words_used < count) {
        ++d->lost;
        return 1;
    }
    r = &d->rows[d->rows_used++];
    r->hash = hash;
    r->first = d->words_used;
    r->count = count;
    memcpy(d->words + r->first, words, count * sizeof *words);
    d->words_used += count;
    d->slots[slot] = d->rows_used;
    return d->rows_used;
}

/* The number of a stack, which is stored if it is new; 0 for an empty one. */
CDP__PRIVATE uint32_t cdp__mem_depot_number(
    cdp__mem_depot *d, const uint64_t *words, uint32_t count) {
    uint64_t hash;
    uint32_t i;
    if (!count) return 0;
    hash = cdp__mem_words_hash(words, count);
    for (i = (uint32_t)hash & d->slot_mask; d->slots[i]; i = (i + 1) & d->slot_mask)
        if (cdp__mem_row_is(d, &d->rows[d->slots[i] - 1], hash, words, count)) return d->slots[i];
    return cdp__mem_depot_add(d, hash, words, count, i);
}

typedef struct cdp__mem_sites { /* "file\nline\nfunction", by the addresses of the two texts */
    char (*text)[CDP__MEM_LABEL_BYTES]; /* text[i]: of number i + 1 */
    uint64_t *hash;
    uint32_t *stack; /* the number of the stack that has this site alone; 0: not looked up yet */
    uint16_t *slots; /* open addressing, 2 * CDP__MEM_SITES of them */
    uint32_t used;
    uint64_t lost;
} cdp__mem_sites;

CDP__PRIVATE uint64_t cdp__mem_text_hash(const char *text) {
    uint64_t h = 0xcbf29ce484222325ull;
    for (; *text; ++text)
        h = (h ^ (uint8_t)*text) * 0x100000001b3ull;
    return h ^ h >> 32;
}

CDP__PRIVATE void cdp__mem_text_copy(char *to, const char *text, uint64_t room) {
    uint64_t n = strlen(text);
    if (n > room - 1) n = room - 1;
    memcpy(to, text, (size_t)n);
    to[n] = 0;
}

/* The slot of the site with this hash, or the empty one where it would be. */
CDP__MEM_HOT uint32_t cdp__mem_sites_slot(const cdp__mem_sites *l, uint64_t hash) {
    const uint32_t mask = 2 * CDP__MEM_SITES - 1;
    uint32_t i = (uint32_t)hash & mask;
    while (l->slots[i] && l->hash[l->slots[i] - 1] != hash)
        i = (i + 1) & mask;
    return i;
}

/* Stores a site in an empty slot. The last number stands for all further ones. */
CDP__PRIVATE uint32_t cdp__mem_sites_add(
    cdp__mem_sites *l, uint64_t hash, const char *text, uint32_t slot) {
    if (l->used + 1 == CDP__MEM_SITES) {
        ++l->lost;
        cdp__mem_text_copy(l->text[l->used], "\n0\n(too many places)", CDP__MEM_LABEL_BYTES);
        return CDP__MEM_SITES;
    }
    cdp__mem_text_copy(l->text[l->used], text, CDP__MEM_LABEL_BYTES);
    l->hash[l->used] = hash;
    l->slots[slot] = (uint16_t)++l->used;
    return l->used;
}

/* Bytes of texts and tables in one piece of memory; see cdp__mem_sites_at. */
#define CDP__MEM_SITES_ALL                                                         \
    (CDP__MEM_SITES * (CDP__MEM_LABEL_BYTES + sizeof(uint64_t) + sizeof(uint32_t)) \
        + 2 * CDP__MEM_SITES * sizeof(uint16_t))

/* Places the tables in `memory`: CDP__MEM_SITES_ALL zeroed bytes. */
CDP__PRIVATE void cdp__mem_sites_at(cdp__mem_sites *l, void *memory) {
    char *at = (char *)memory;
    l->hash = (uint64_t *)(void *)at;
    at += CDP__MEM_SITES * sizeof(uint64_t);
    l->stack = (uint32_t *)(void *)at;
    at += CDP__MEM_SITES * sizeof(uint32_t);
    l->slots = (uint16_t *)(void *)at;
    at += 2 * CDP__MEM_SITES * sizeof(uint16_t);
    l->text = (char(*)[CDP__MEM_LABEL_BYTES])(void *)at;
    l->used = 0;
    l->lost = 0;
}

/* ---- >>mem/labels: labels that live blocks and recorded events carry ------------------------- */

/* Knows: texts by number, from 1 on, how many blocks, segments and events carry each, and the bytes
   of its blocks, now and at most; 0 means none. Promises: a label that nothing carries any more
   makes room for another one, except the first 256 that blocks have carried, whose peaks stay: so
   there are at most twice as many as are carried or stay, and 64. When memory runs out, a label
   gets number 0, and a counter grows. */

#define CDP__MEM_LABELS_STAY 256u

typedef struct cdp__mem_label {
    uint64_t hash;
    uint64_t bytes, peak, blocks; /* of blocks in use or waiting; peak 0: never any */
    uint32_t carried;             /* by so many; 0: its place may be used again     */
    uint32_t next;                /* place that is free, too: its number            */
    char text[CDP__MEM_LABEL_BYTES];
} cdp__mem_label;

typedef struct cdp__mem_labels {
    const cdp_os *os;   /* NULL: nothing is recorded                */
    cdp__mem_label *at; /* at[i]: of number i + 1                   */
    uint32_t *slots;    /* open addressing, 2 * room numbers        */
    uint32_t used, room;
    uint32_t vacant; /* first place that became free; 0: none    */
    uint64_t lost;
    uint64_t bytes, blocks; /* of all blocks with a label      */
    uint64_t bare_peak;     /* most bytes of blocks without one */
} cdp__mem_labels;

CDP__PRIVATE void cdp__mem_labels_close(cdp__mem_labels *l) {
    if (!l->os) return;
    cdp__free(l->os, l->at);
    cdp__free(l->os, l->slots);
}

/* The slot of a text, or the empty one where it would be. */
CDP__MEM_HOT uint32_t cdp__mem_labels_slot(
    const cdp__mem_labels *l, uint64_t hash, const char *text) {
    const uint32_t mask = 2 * l->room - 1;
    uint32_t i = (uint32_t)hash & mask;
    for (; l->slots[i]; i = (i + 1) & mask) {
        const cdp__mem_label *const k = &l->at[l->slots[i] - 1];
        if (k->hash == hash && strncmp(k->text, text, CDP__MEM_LABEL_BYTES - 1) == 0) break;
    }
    return i;
}

/* The number up to which labels stay that nothing carries, because they have a peak. */
CDP__PRIVATE uint32_t cdp__mem_labels_stay(const cdp__mem_labels *l) {
    uint32_t i, n = 0;
    for (i = 0; i < l->used && n < CDP__MEM_LABELS_STAY; ++i)
        if (!l->at[i].carried && l->at[i].peak) ++n;
    return i;
}

/* Fills the slots anew with the labels that are carried or stay; the places of the others become
   free. Returns the number of free places. */
CDP__PRIVATE uint32_t cdp__mem_labels_sweep(cdp__mem_labels *l) {
    const uint32_t stay = cdp__mem_labels_stay(l);
    uint32_t i, n = 0;
    memset(l->slots, 0, 2 * (size_t)l->room * sizeof *l->slots);
    l->vacant = 0;
    for (i = l->used; i > 0; --i) {
        cdp__mem_label *const k = &l->at[i - 1];
        if (k->carried || (k->peak && i <= stay)) {
            l->slots[cdp__mem_labels_slot(l, k->hash, k->text)] = i;
            continue;
        }
        k->peak = 0;
        k->next = l->vacant;
        l->vacant = i;
        ++n;
    }
    return n + l->room - l->used;
}

/* Doubles the room. The places keep their numbers. */
CDP__PRIVATE bool cdp__mem_labels_grow(cdp__mem_labels *l) {
    const uint32_t room = l->room ? 2 * l->room : 64;
    cdp__mem_label *const at = (cdp__mem_label *)cdp__alloc(l->os, room * sizeof(cdp__mem_label));
    uint32_t *const slots = (uint32_t *)cdp__alloc(l->os, 2ull * room * sizeof(uint32_t));
    if (!at || !slots) {
        cdp__free(l->os, at);
        cdp__free(l->os, slots);
        return false;
    }
    if (l->used) memcpy(at, l->at, l->used * sizeof *at);
    cdp__mem_labels_close(l);
    l->at = at;
    l->slots = slots;
    l->room = room;
    (void)cdp__mem_labels_sweep(l);
    return true;
}

/* A place for one more, from 1 on; 0: out of memory. Grows when more than half are carried. */
CDP__PRIVATE uint32_t cdp__mem_labels_place(cdp__mem_labels *l) {
    uint32_t n = l->vacant;
    if (!n && l->used == l->room) {
        const uint32_t there = l->room ? cdp__mem_labels_sweep(l) : 0;
        if (there <= l->room / 2 && !cdp__mem_labels_grow(l) && !there) return 0;
        n = l->vacant;
    }
    if (!n) return ++l->used;
    l->vacant = l->at[n - 1].next;
    return n;
}

/* The number of a text, which is copied if it is new; 0 for an empty one. `hash`: its hash. It
   counts until the next call, or as long as something carries it. */
CDP__PRIVATE uint32_t cdp__mem_labels_number(cdp__mem_labels *l, uint64_t hash, const char *text) {
    uint32_t slot, n;
    cdp__mem_label *k;
    if (!l->os || !text[0]) return 0;
    slot = l->room ? cdp__mem_labels_slot(l, hash, text) : 0;
    if (l->room && l->slots[slot]) return l->slots[slot];
    n = cdp__mem_labels_place(l);
    if (!n) {
        ++l->lost;
        return 0;
    }
    k = &l->at[n - 1];
    k->hash = hash;
    k->carried = 0;
    k->bytes = k->peak = k->blocks = 0;
    cdp__mem_text_copy(k->text, text, CDP__MEM_LABEL_BYTES);
    l->slots[cdp__mem_labels_slot(l, hash, text)] = n; /* places may have moved */
    return n;
}

/* Lets *place carry label `n` in place of the one it has; 0: none. */
CDP__MEM_HOT void cdp__mem_label_set(cdp__mem_labels *l, uint32_t *place, uint32_t n) {
    if (n) ++l->at[n - 1].carried;
    if (*place) --l->at[*place - 1].carried;
    *place = n;
}

/* A block without a label gets label `n`; 0: none. `all`: the bytes of all blocks, with its own. */
CDP__MEM_HOT void cdp__mem_label_enter(
    cdp__mem_labels *l, uint32_t *place, uint32_t n, uint64_t bytes, uint64_t all) {
    cdp__mem_label *const k = n ? &l->at[n - 1] : NULL;
    if (!k) {
        if (all - l->bytes > l->bare_peak) l->bare_peak = all - l->bytes;
        return;
    }
    l->bytes += bytes;
    ++l->blocks;
    k->bytes += bytes;
    ++k->blocks;
    if (k->bytes > k->peak) k->peak = k->bytes;
    cdp__mem_label_set(l, place, n);
}

/* A block with a label loses it. */
CDP__MEM_HOT void cdp__mem_label_leave(cdp__mem_labels *l, uint32_t *place, uint64_t bytes) {
    cdp__mem_label *const k = &l->at[*place - 1];
    l->bytes -= bytes;
    --l->blocks;
    k->bytes -= bytes;
    --k->blocks;
    cdp__mem_label_set(l, place, 0);
}

/* Sets all peaks to the bytes of now. `all`: as above. */
CDP__PRIVATE void cdp__mem_labels_reset(cdp__mem_labels *l, uint64_t all) {
    uint32_t i;
    for (i = 0; i < l->used; ++i)
        l->at[i].peak = l->at[i].bytes;
    l->bare_peak = all - l->bytes;
}

/* ---- >>mem/os_stacks: addresses of callers and of modules ------------------------------------ */

/* Knows: how this system finds return addresses and the modules they are in. Promises: a chain of
   frame pointers is followed only upwards and inside the stack of this thread. */

#if !defined(CDP_NO_OS) && (defined(__GLIBC__) || defined(__APPLE__) || defined(__FreeBSD__))
#include <execinfo.h>
#define CDP__MEM_BACKTRACE 1
#ifdef __FreeBSD__
typedef size_t cdp__mem_depth; /* what backtrace() counts in */
#else
typedef int cdp__mem_depth;
#endif
#else
#define CDP__MEM_BACKTRACE 0
#endif

typedef struct cdp__mem_module {
    uint64_t low, high, base; /* code is at low..high; base: the address of the file's first byte */
    uint32_t path; /* number of its text                                                */
} cdp__mem_module;

/* Parses a line of /proc/self/maps: "low-high rwxp offset device inode path". */
typedef struct cdp__mem_map_line {
    uint64_t low, high, offset;
    bool readable, code;
    char path[512];
} cdp__mem_map_line;

CDP__PRIVATE uint64_t cdp__mem_hex(const char **at) {
    uint64_t v = 0;
    for (;; ++*at) {
        const char c = **at;
        if (c >= '0' && c <= '9')
            v = v * 16 + (uint64_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            v = v * 16 + (uint64_t)(c - 'a') + 10;
        else
            return v;
    }
}

CDP__PRIVATE bool cdp__mem_map_parse(const char *text, cdp__mem_map_line *out) {
    uint32_t i;
    out->low = cdp__mem_hex(&text);
    if (*text++ != '-') return false;
    out->high = cdp__mem_hex(&text);
    if (*text++ != ' ' || strlen(text) < 5) return false;
    out->readable = text[0] == 'r';
    out->code = text[2] == 'x';
    text += 5;
    out->offset = cdp__mem_hex(&text);
    for (i = 0; i < 3; ++i) { /* the rest of offset; device; inode */
        while (*text == ' ')
            ++text;
        while (i < 2 && *text && *text != ' ')
            ++text;
    }
    cdp__mem_text_copy(out->path, text, sizeof out->path);
    return true;
}

/* Calls `func` for each line, until it returns false. Does nothing without such a file. */
CDP__PRIVATE void cdp__mem_maps(
    bool (*func)(void *user, const cdp__mem_map_line *line), void *user) {
    char text[8192];
    uint64_t have = 0;
    bool more = true;
    const cdp_os *os = cdp_os_default();
    uint64_t at = 0;
    int32_t fd = -1;
    if (os->files.open_file) fd = os->files.open_file(os->user, "/proc/self/maps", 0);
    while (fd >= 0 && more) {
        const int64_t got =
            os->files.read_at(os->user, fd, at, text + have, sizeof text - have - 1);
        char *line = text, *end;
        if (got <= 0) break;
        at += (uint64_t)got;
        have += (uint64_t)got;
        text[have] = 0;
        for (; more && (end = strchr(line, '\n')) != NULL; line = end + 1) {
            cdp__mem_map_line l;
            *end = 0;
            more = !cdp__mem_map_parse(line, &l) || func(user, &l);
        }
        have -= (uint64_t)(line - text);
        if (have + 1 == sizeof text) have = 0; /* too long for such a line */
        memmove(text, line, (size_t)have);
    }
    if (fd >= 0) (void)os->files.close_file(os->user, fd);
}

typedef struct cdp__mem_stack_range {
    uint64_t inside, low, high;
} cdp__mem_stack_range;

CDP__PRIVATE bool cdp__mem_stack_line(void *user, const cdp__mem_map_line *line) {
    cdp__mem_stack_range *const r = (cdp__mem_stack_range *)user;
    if (r->inside < line->low || r->inside >= line->high) return true;
    r->low = line->low;
    r->high = line->high;
    return false;
}

/* The end of the stack that contains `frame`, looked up once per thread; 0: unknown. */
CDP__PRIVATE uint64_t cdp__mem_stack_end(uint64_t frame) {
    static CDP__THREAD_LOCAL cdp__mem_stack_range r;
    if (frame >= r.low && frame < r.high) return r.high;
    if (frame < r.low && r.low - frame < 64 * CDP__MEM_MIB && r.high) { /* the stack grew */
        r.low = frame;
        return r.high;
    }
    r.inside = frame;
    r.low = r.high = 0;
    cdp__mem_maps(cdp__mem_stack_line, &r);
    return r.high;
}

/* Collects return addresses along the chain of frame pointers from `frame` on. Each frame must
   be above the previous one, aligned and inside the stack. Otherwise the chain ends, because a
   caller was compiled without frame pointers. */
CDP__NO_ASAN CDP__PRIVATE void cdp__mem_walk(const void *frame, uint32_t most, cdp__mem_trace *t) {
    uint64_t at = (uint64_t)(uintptr_t)frame;
    const uint64_t end = cdp__mem_stack_end(at);
    while (t->count < most) {
        const uintptr_t *const f = (const uintptr_t *)(uintptr_t)at;
        if (at % sizeof *f || at + 2 * sizeof *f > end || f[1] < 4096) return;
        t->words[++t->count] = (uint64_t)f[1] - 1;
        if (f[0] <= at) return;
        at = (uint64_t)f[0];
    }
}

/* Collects return addresses by unwinding, beginning with `caller`: leaves out this library's own
   frames. */
CDP__PRIVATE void cdp__mem_unwind(const void *caller, uint32_t most, cdp__mem_trace *t) {
#if CDP__MEM_BACKTRACE
    void *at[CDP__MEM_FRAMES + 8];
    const int got = (int)backtrace(at, (cdp__mem_depth)(most + 8));
    int i, own = 0;
    for (i = 0; i < got && i < 8; ++i)
        if (at[i] == caller) own = i;
    for (i = own; i < got && t->count < most; ++i)
        t->words[++t->count] = (uint64_t)(uintptr_t)at[i] - 1;
#else
    (void)caller;
    (void)most;
    (void)t;
#endif
}

/* ---- >>mem/build_id: the build id of a module (pure) ----------------------------------------- */

/* Knows: where an ELF file has the note that linkers write. Promises: reads nothing but the bytes
   that it gets, whatever stands in them. */

#define CDP__MEM_BUILD_ID 41u /* bytes of its text: 20 bytes as hexadecimal digits, and a zero */

/* A number of the file, in the byte order of this machine; 0 beyond its end. */
CDP__PRIVATE uint64_t cdp__mem_elf(
    const uint8_t *file, uint64_t bytes, uint64_t at, uint32_t width) {
    uint16_t two;
    uint32_t four;
    uint64_t eight;
    if (at > bytes || bytes - at < width) return 0;
    switch (width) {
    case 2: memcpy(&two, file + at, 2); return two;
    case 4: memcpy(&four, file + at, 4); return four;
    default: memcpy(&eight, file + at, 8); return eight;
    }
}

/* Looks through notes: lengths of name and contents, a type, the name, the contents. */
CDP__PRIVATE bool cdp__mem_build_note(const uint8_t *at, uint64_t bytes, char *out) {
    static const char digits[] = "0123456789abcdef";
    while (bytes >= 12) {
        const uint64_t name = (cdp__mem_elf(at, bytes, 0, 4) + 3) & ~3ull;
        const uint64_t length = cdp__mem_elf(at, bytes, 4, 4), whole = (length + 3) & ~3ull;
        uint64_t i;
        if (name > bytes - 12 || whole > bytes - 12 - name) return false;
        if (cdp__mem_elf(at, bytes, 8, 4) == 3 && name == 4 && memcmp(at + 12, "GNU", 4) == 0) {
            for (i = 0; i < length && 2 * i + 2 < CDP__MEM_BUILD_ID; ++i) {
                *out++ = digits[at[16 + i] >> 4];
                *out++ = digits[at[16 + i] & 15];
            }
            *out = 0;
            return length > 0;
        }
        at += 12 + name + whole;
        bytes -= 12 + name + whole;
    }
    return false;
}

/* Finds the build id in the beginning of an ELF file. False: there is none; `out` is "" then. */
CDP__PRIVATE bool cdp__mem_build_id(
    const uint8_t *file, uint64_t bytes, char out[CDP__MEM_BUILD_ID]) {
    const bool wide = bytes > 4 && file[4] == 2; /* 64 bits */
    const uint32_t word = wide ? 8 : 4;
    uint64_t at, each, count;
    out[0] = 0;
    if (bytes < 52 || memcmp(file, "\177ELF", 4) != 0) return false;
    at = cdp__mem_elf(file, bytes, wide ? 32 : 28, word); /* the program headers */
    each = cdp__mem_elf(file, bytes, wide ? 54 : 42, 2);
    count = cdp__mem_elf(file, bytes, wide ? 56 : 44, 2);
    for (; count && at < bytes; --count, at += each) {
        const uint64_t from = cdp__mem_elf(file, bytes, at + (wide ? 8 : 4), word);
        const uint64_t length = cdp__mem_elf(file, bytes, at + (wide ? 32 : 16), word);
        if (cdp__mem_elf(file, bytes, at, 4) != 4) continue; /* no notes */
        if (from > bytes || length > bytes - from) continue;
        if (cdp__mem_build_note(file + from, length, out)) return true;
    }
    return false;
}

/* ---- >>mem/blocks: segments, splitting, merging, statistics ---------------------------------- */

/* Knows: all segments and blocks of an allocator. Promises: the blocks of a segment tile it; two
   free neighbours are merged; the table has exactly the blocks that are in use or waiting;
   statistics are sums over blocks. Memory for records is allocated before anything changes. */

#define CDP__MEM_SLAB 128u
#define CDP__MEM_WATCHERS 8u

typedef struct cdp__mem_slab { /* precedes its records */
    struct cdp__mem_slab *next;
    uint64_t uses; /* number of cdp__mem_use records; 0: it has other records */
} cdp__mem_slab;

struct cdp_mem_pool {
    cdp_mem *mem;
    cdp_mem_source source;
    cdp__mem_arena *arenas;
    cdp_mem_pool *next;
    uint64_t fixed_bytes, hash;
    uint32_t number; /* 0: the ordinary one */
    uint32_t label;
    char text[CDP__MEM_LABEL_BYTES]; /* its label */
    bool own_source, no_split, use_on_oom, keep;
    bool captured; /* a graph has addresses of it */
};

typedef struct cdp__mem_outside { /* memory outside the allocator */
    struct cdp__mem_outside *next;
    uint64_t at, bytes;
    uint32_t label;
    char text[CDP__MEM_LABEL_BYTES];
} cdp__mem_outside;

typedef struct cdp__mem_watcher {
    cdp_mem_watch_func func;
    void *user;
} cdp__mem_watcher;

typedef struct cdp__mem_level { /* a function waits for more bytes in use than `bytes` */
    cdp_mem_level_func func;
    void *user;
    uint64_t bytes, again;
    uint64_t now; /* bytes in use when they rose above */
    bool armed, due;
} cdp__mem_level;

typedef struct cdp__mem_budget { /* most bytes of blocks with a label; 0: none */
    uint64_t bytes;
    char text[CDP__MEM_LABEL_BYTES];
} cdp__mem_budget;

typedef struct cdp__mem_log { /* the history */
    cdp_mem_record_desc desc;
    uint32_t what; /* CDP__MEM_WANTS_..., read without the lock (atomic) */
    cdp__mem_ring ring;
    cdp__mem_depot depot;
    cdp__mem_sites sites;
    cdp__mem_labels labels;
    void *memory; /* of ring, depot and sites */
    uint64_t start_ns, start_us;
    uint64_t last_ns; /* time of the newest event */
} cdp__mem_log;

/* The counters behind the statistics, short because every request updates several: [0] small,
   [1] large. */
typedef struct cdp__mem_tally {
    uint64_t current[2], peak[2], allocated[2];
    uint64_t peak_all;
    uint64_t
        before[2]; /* current at the last reset of sums: freed = allocated + before - current */
} cdp__mem_tally;

typedef struct cdp__mem_tallies { /* in the order of cdp_mem_stats */
    cdp__mem_tally allocation, segment, active, inactive_split;
    cdp__mem_tally allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes;
    cdp__mem_tally requested_bytes;
    cdp__mem_tally oversize_allocations, oversize_segments; /* all in [0] */
} cdp__mem_tallies;

struct cdp_mem {
    cdp_lock lock;
    uint32_t forks; /* see cdp__is_child() */
    const cdp_os *os;
    cdp_mem_desc desc;
    cdp__mem_sizes sizes;
    cdp_mem_pool base; /* the ordinary pool, first of a list */
    cdp__mem_table table;
    cdp__mem_span *spans, *last_span;
    cdp__mem_part *unused_parts;
    cdp__mem_span *unused_spans;
    cdp__mem_use *unused_uses, *delayed; /* delayed by a capture, linked by `after` */
    uint32_t unused_part_count, part_count;
    cdp__mem_slab *slabs;
    cdp__mem_stream_queue *stream_queues;
    uint32_t waiting; /* events in these queues */
    uint32_t pool_count;
    uint64_t held, limit, requests, externals, external_places;
    cdp__mem_outside *outside;
    cdp__mem_tallies tally;
    cdp_mem_stats stats; /* only the members that are no tallies */
    cdp__mem_log log;
    uint64_t histories; /* number of histories so far */
    cdp__mem_watcher watchers[CDP__MEM_WATCHERS];
    cdp__mem_level levels[CDP__MEM_WATCHERS];
    cdp__mem_budget budgets[CDP__MEM_WATCHERS];
    bool has_budgets;      /* some label has a budget                    */
    bool levels_due;       /* a function of a level is to be called      */
    cdp_mem_scope *scopes; /* those that are open                        */
    uint64_t whole[3];     /* peaks until the newest scope; see scopes.h */
    cdp_mem_oom_func on_oom;
    void *on_oom_user;
    bool dumped;
    bool has_external; /* there are segments of another allocator */
    char dump_path[1024];
};

/* The first check of every call that returns a status. */
CDP__MEM_HOT cdp_status cdp__mem_here(const cdp_mem *m, const char *call) {
    if (!m) return cdp__missing(call, "mem");
    if (cdp__ended(m)) return cdp__fail(CDP_ERR_STATE, "%s: this cdp_mem was destroyed", call);
    return cdp__is_child(m->forks) ? cdp__child_refuses(CDP_ERR_STATE, call, "cdp_mem") : CDP_OK;
}

/* The first check of the others. */
CDP__MEM_HOT bool cdp__mem_lives(const cdp_mem *m) {
    return m && !cdp__ended(m) && !cdp__is_child(m->forks);
}

/* Refuses a pool that was destroyed, alone or with its allocator. NULL is the ordinary pool. */
CDP__MEM_HOT cdp_status cdp__mem_pool_here(const cdp_mem_pool *pool, const char *call) {
    if (!cdp__ended(pool)) return CDP_OK;
    return cdp__fail(CDP_ERR_STATE, "%s: this pool was destroyed", call);
}

CDP__MEM_HOT void cdp__mem_lock(const cdp_mem *m) {
    if (m->lock.mutex) m->os->threads.mutex_lock(m->os->user, m->lock.mutex);
}

CDP__MEM_HOT void cdp__mem_unlock(const cdp_mem *m) {
    if (m->lock.mutex) m->os->threads.mutex_unlock(m->os->user, m->lock.mutex);
}

CDP__MEM_HOT void cdp__mem_up(cdp__mem_tally *t, bool large, uint64_t n) {
    uint64_t all;
    t->current[large] += n;
    t->allocated[large] += n;
    if (t->current[large] > t->peak[large]) t->peak[large] = t->current[large];
    all = t->current[0] + t->current[1];
    if (all > t->peak_all) t->peak_all = all;
}

CDP__MEM_HOT void cdp__mem_down(cdp__mem_tally *t, bool large, uint64_t n) {
    t->current[large] -= n;
}

/* Active blocks are those held by callers and those waiting for streams. The tally `active`
   counts only waiting ones, but its peaks are those of the sum while some wait. While none wait,
   the peaks equal those of the held blocks, so nothing is updated: see cdp__mem_tally_active. */
CDP__MEM_HOT void cdp__mem_top(cdp__mem_tally *active, const cdp__mem_tally *held, bool large) {
    const uint64_t one = active->current[large] + held->current[large];
    const uint64_t all = one + active->current[!large] + held->current[!large];
    if (one > active->peak[large]) active->peak[large] = one;
    if (all > active->peak_all) active->peak_all = all;
}

CDP__MEM_HOT uint64_t cdp__mem_now(const cdp__mem_tally *t) {
    return t->current[0] + t->current[1];
}

/* Bytes of all blocks that are in use or waiting. */
CDP__MEM_HOT uint64_t cdp__mem_active_bytes(const cdp_mem *m) {
    return cdp__mem_now(&m->tally.active_bytes) + cdp__mem_now(&m->tally.allocated_bytes);
}

CDP__MEM_HOT bool cdp__mem_is_split(const cdp__mem_part *p) {
    return p->prev || p->next;
}

/* Allocates a slab of records. */
CDP__PRIVATE void *cdp__mem_slab_take(cdp_mem *m, uint64_t record, uint64_t uses) {
    const uint64_t head = cdp__mem_up_to(sizeof(cdp__mem_slab), 16);
    cdp__mem_slab *const s = (cdp__mem_slab *)cdp__alloc_zero(m->os, head + record * CDP__MEM_SLAB);
    if (!s) return NULL;
    s->next = m->slabs;
    s->uses = uses;
    m->slabs = s;
    return (char *)s + head;
}

CDP__PRIVATE bool cdp__mem_more_parts(cdp_mem *m) {
    cdp__mem_part *p = (cdp__mem_part *)cdp__mem_slab_take(m, sizeof *p, 0);
    uint32_t i;
    for (i = 0; p && i < CDP__MEM_SLAB; ++i) {
        p[i].bin_next = m->unused_parts;
        m->unused_parts = &p[i];
    }
    if (p) m->unused_part_count += CDP__MEM_SLAB;
    return p != NULL;
}

CDP__PRIVATE bool cdp__mem_more_spans(cdp_mem *m) {
    cdp__mem_span *s = (cdp__mem_span *)cdp__mem_slab_take(m, sizeof *s, 0);
    uint32_t i;
    for (i = 0; s && i < CDP__MEM_SLAB; ++i) {
        s[i].next = m->unused_spans;
        m->unused_spans = &s[i];
    }
    return s != NULL;
}

CDP__PRIVATE bool cdp__mem_more_uses(cdp_mem *m) {
    cdp__mem_use *u = (cdp__mem_use *)cdp__mem_slab_take(m, sizeof *u, CDP__MEM_SLAB);
    uint32_t i;
    for (i = 0; u && i < CDP__MEM_SLAB; ++i) {
        u[i].next = m->unused_uses;
        m->unused_uses = &u[i];
    }
    return u != NULL;
}

CDP__PRIVATE bool cdp__mem_table_grow(cdp_mem *m) {
    cdp__mem_table old = m->table;
    const uint64_t count = old.slots ? 2 * (old.mask + 1) : 1024;
    uint64_t i;
    cdp__mem_part **const slots =
        (cdp__mem_part **)cdp__alloc_zero(m->os, count * sizeof(cdp__mem_part *));
    if (!slots) return false;
    m->table.slots = slots;
    m->table.mask = count - 1;
    m->table.shift = 64 - cdp__highest_bit(count);
    m->table.used = 0;
    for (i = 0; old.slots && i <= old.mask; ++i)
        if (old.slots[i]) cdp__mem_table_put(&m->table, old.slots[i]);
    cdp__free(m->os, old.slots);
    return true;
}

/* Makes sure that all records which one request may need exist, so that no request fails half
   way. */
CDP__MEM_HOT bool cdp__mem_prepare(cdp_mem *m) {
    if (m->unused_part_count < 4 && !cdp__mem_more_parts(m)) return false;
    if (!m->unused_spans && !cdp__mem_more_spans(m)) return false;
    if (m->table.used * 2 >= m->table.mask && !cdp__mem_table_grow(m)) return false;
    return true;
}

CDP__MEM_HOT cdp__mem_part *cdp__mem_part_new(cdp_mem *m, uint64_t at, uint64_t size) {
    cdp__mem_part *const p = m->unused_parts;
    m->unused_parts = p->bin_next;
    --m->unused_part_count;
    ++m->part_count;
    p->at = at;
    p->size = size;
    p->prev = p->next = NULL;
    p->uses = NULL;
    p->waits = 0;
    p->stack = p->label = 0;
    return p; /* the caller sets the other members */
}

CDP__MEM_HOT void cdp__mem_part_drop(cdp_mem *m, cdp__mem_part *p) {
    p->bin_next = m->unused_parts;
    m->unused_parts = p;
    ++m->unused_part_count;
    --m->part_count;
}

CDP__PRIVATE cdp__mem_bins *cdp__mem_bins_of(const cdp__mem_part *p) {
    return p->span->arena->bins[p->span->large];
}

/* Puts a free block into its list of `b`. The caller updates the statistics. */
CDP__MEM_HOT void cdp__mem_free_put(cdp_mem *m, cdp__mem_bins *b, cdp__mem_part *p) {
    p->state = CDP_MEM_INACTIVE;
    p->requested = 0;
    p->stack = 0;
    p->freed_at = m->requests;
    cdp__mem_bins_put(b, p);
}

/* Splits `p` after `size` bytes. The rest becomes a block in no list, in the same state. */
CDP__MEM_HOT cdp__mem_part *cdp__mem_part_rest(cdp_mem *m, cdp__mem_part *p, uint64_t size) {
    cdp__mem_part *const rest = cdp__mem_part_new(m, p->at + size, p->size - size);
    rest->span = p->span;
    rest->prev = p;
    rest->next = p->next;
    if (rest->next)
        rest->next->prev = rest;
    else
        rest->span->last = rest;
    p->next = rest;
    p->size = size;
    return rest;
}

/* Splits `p`, which is in no list, after `size` bytes. The rest becomes a free block. */
CDP__MEM_HOT void cdp__mem_split(cdp_mem *m, cdp__mem_part *p, uint64_t size) {
    cdp__mem_free_put(m, cdp__mem_bins_of(p), cdp__mem_part_rest(m, p, size));
}

/* Takes a block out of its list for a request; with `splits`, only its first `size` bytes. The
   statistics of free pieces change by the net effect of one call, as in PyTorch. */
CDP__MEM_HOT void cdp__mem_part_cut(cdp_mem *m, cdp__mem_part *p, bool splits, uint64_t size) {
    const bool large = p->span->large, piece = cdp__mem_is_split(p);
    if (piece) cdp__mem_down(&m->tally.inactive_split_bytes, large, splits ? size : p->size);
    if (piece && !splits) cdp__mem_down(&m->tally.inactive_split, large, 1);
    if (!splits) return;
    if (!piece) {
        cdp__mem_up(&m->tally.inactive_split_bytes, large, p->size - size);
        cdp__mem_up(&m->tally.inactive_split, large, 1);
    }
    cdp__mem_split(m, p, size);
}

/* Frees `p`, which is in no list: merges it with free neighbours, and puts it into a list. */
CDP__MEM_HOT void cdp__mem_part_free(cdp_mem *m, cdp__mem_part *p) {
    const bool large = p->span->large;
    const uint64_t own = p->size;
    cdp__mem_bins *const b = cdp__mem_bins_of(p);
    cdp__mem_part *const next = p->next, *const prev = p->prev;
    uint32_t merged = 0;
    if (next && next->state == CDP_MEM_INACTIVE) {
        cdp__mem_bins_take(b, next);
        p->size += next->size;
        p->next = next->next;
        if (p->next)
            p->next->prev = p;
        else
            p->span->last = p;
        cdp__mem_part_drop(m, next);
        ++merged;
    }
    if (prev && prev->state == CDP_MEM_INACTIVE) {
        cdp__mem_bins_take(b, prev);
        prev->size += p->size;
        prev->next = p->next;
        if (prev->next)
            prev->next->prev = prev;
        else
            prev->span->last = prev;
        cdp__mem_part_drop(m, p);
        p = prev;
        ++merged;
    }
    cdp__mem_free_put(m, b, p);
    if (!cdp__mem_is_split(p)) {
        if (!merged) return;
        cdp__mem_down(&m->tally.inactive_split, large, merged);
        cdp__mem_down(&m->tally.inactive_split_bytes, large, p->size - own);
        return;
    }
    cdp__mem_up(&m->tally.inactive_split_bytes, large, own);
    if (!merged) cdp__mem_up(&m->tally.inactive_split, large, 1);
    if (merged == 2) cdp__mem_down(&m->tally.inactive_split, large, 1);
}

CDP__PRIVATE void cdp__mem_call_watchers(
    cdp_mem *m, cdp_mem_action action, uint64_t at, uint64_t bytes, cdp_mem_pool *pool) {
    uint32_t i;
    for (i = 0; i < CDP__MEM_WATCHERS; ++i) {
        const cdp__mem_watcher *const w = &m->watchers[i];
        if (w->func)
            w->func(w->user, action, (void *)(uintptr_t)at, bytes, pool == &m->base ? NULL : pool);
    }
}

/* Adds a segment with one block, which is in no list. `action`: SEGMENT_ALLOC or _MAP. */
CDP__PRIVATE cdp__mem_part *cdp__mem_span_add(cdp_mem *m, cdp_mem_action action,
    cdp__mem_arena *arena, uint64_t at, uint64_t size, bool large) {
    cdp__mem_span *const s = m->unused_spans;
    cdp__mem_part *const p = cdp__mem_part_new(m, at, size);
    m->unused_spans = s->next;
    memset(s, 0, sizeof *s);
    s->at = at;
    s->size = size;
    s->arena = arena;
    s->first = s->last = p;
    s->large = large;
    s->grows = action == CDP_MEM_SEGMENT_MAP;
    s->prev = m->last_span;
    if (s->prev)
        s->prev->next = s;
    else
        m->spans = s;
    m->last_span = s;
    p->span = s;
    m->held += size;
    cdp__mem_up(&m->tally.segment, large, 1);
    cdp__mem_up(&m->tally.reserved_bytes, large, size);
    if (size >= m->sizes.max_split) cdp__mem_up(&m->tally.oversize_segments, false, 1);
    cdp__mem_call_watchers(m, action, at, size, arena->pool);
    return p;
}

/* Takes a segment out of its range. */
CDP__PRIVATE void cdp__mem_span_unlink(const cdp__mem_span *s) {
    if (s->below)
        s->below->above = s->above;
    else
        s->range->first = s->above;
    if (s->above) s->above->below = s->below;
}

/* Forgets the record of a segment: its blocks are gone, or of another one. */
CDP__PRIVATE void cdp__mem_span_drop(cdp_mem *m, cdp__mem_span *s) {
    if (s->range) cdp__mem_span_unlink(s);
    if (s->prev)
        s->prev->next = s->next;
    else
        m->spans = s->next;
    if (s->next)
        s->next->prev = s->prev;
    else
        m->last_span = s->prev;
    cdp__mem_label_set(&m->log.labels, &s->label, 0);
    cdp__mem_down(&m->tally.segment, s->large, 1);
    if (s->size >= m->sizes.max_split) cdp__mem_down(&m->tally.oversize_segments, false, 1);
    s->next = m->unused_spans;
    m->unused_spans = s;
}

/* Removes a segment whose only block is in no list. */
CDP__PRIVATE void cdp__mem_span_remove(cdp_mem *m, cdp__mem_span *s) {
    cdp__mem_part_drop(m, s->first);
    m->held -= s->size;
    cdp__mem_down(&m->tally.reserved_bytes, s->large, s->size);
    cdp__mem_span_drop(m, s);
}

/* A block in no list becomes used: counts it, and adds it to the table. */
CDP__MEM_HOT void cdp__mem_part_begin(cdp_mem *m, cdp__mem_part *p, uint64_t requested) {
    const bool large = p->span->large;
    p->requested = requested;
    p->state = CDP_MEM_ACTIVE;
    p->began = 0;
    ++p->span->busy;
    cdp__mem_table_put(&m->table, p);
    cdp__mem_up(&m->tally.allocation, large, 1);
    cdp__mem_up(&m->tally.allocated_bytes, large, p->size);
    if (cdp__mem_now(&m->tally.active)) {
        cdp__mem_top(&m->tally.active, &m->tally.allocation, large);
        cdp__mem_top(&m->tally.active_bytes, &m->tally.allocated_bytes, large);
    }
    cdp__mem_up(&m->tally.requested_bytes, large, requested);
    if (p->size >= m->sizes.max_split) cdp__mem_up(&m->tally.oversize_allocations, false, 1);
}

/* The caller has freed the block. It may still have to wait. */
CDP__MEM_HOT void cdp__mem_part_leave(cdp_mem *m, const cdp__mem_part *p) {
    const bool large = p->span->large;
    cdp__mem_down(&m->tally.allocation, large, 1);
    cdp__mem_down(&m->tally.allocated_bytes, large, p->size);
    if (p->size >= m->sizes.max_split) cdp__mem_down(&m->tally.oversize_allocations, false, 1);
}

/* A block begins to wait for streams; or no longer waits. */
CDP__PRIVATE void cdp__mem_part_wait(cdp_mem *m, cdp__mem_part *p) {
    const bool large = p->span->large;
    p->state = CDP_MEM_PENDING;
    m->tally.active.current[large] += 1;
    m->tally.active_bytes.current[large] += p->size;
}

CDP__PRIVATE void cdp__mem_part_waited(cdp_mem *m, const cdp__mem_part *p) {
    const bool large = p->span->large;
    cdp__mem_down(&m->tally.active, large, 1);
    cdp__mem_down(&m->tally.active_bytes, large, p->size);
}

/* The block is no longer used by any stream. It is not in a list yet. */
CDP__MEM_HOT void cdp__mem_part_end(cdp_mem *m, cdp__mem_part *p) {
    --p->span->busy;
    cdp__mem_table_take(&m->table, p);
    if (p->label) cdp__mem_label_leave(&m->log.labels, &p->label, p->size);
    cdp__mem_down(&m->tally.requested_bytes, p->span->large, p->requested);
}

/* The arena of a pool for a stream; NULL: out of memory. Keeps the last used one first. */
CDP__MEM_HOT cdp__mem_arena *cdp__mem_arena_of(cdp_mem *m, cdp_mem_pool *pool, void *stream) {
    cdp__mem_arena **at = &pool->arenas, *a;
    for (a = *at; a && a->stream != stream; a = *at)
        at = &a->next;
    if (a) a->forgotten = false; /* another stream may have its handle */
    if (a && at == &pool->arenas) return a;
    if (a)
        *at = a->next;
    else
        a = (cdp__mem_arena *)cdp__alloc_zero(m->os, sizeof *a);
    if (!a) return NULL;
    a->pool = pool;
    a->stream = stream;
    a->next = pool->arenas;
    pool->arenas = a;
    return a;
}

CDP__MEM_HOT bool cdp__mem_arena_ready(cdp_mem *m, cdp__mem_arena *a, bool large) {
    const bool coarse = m->desc.coarse_bins;
    cdp__mem_bins *b = a->bins[large];
    if (b) return true;
    b = (cdp__mem_bins *)cdp__alloc_zero(m->os, cdp__mem_bins_bytes(coarse));
    if (!b) return false;
    b->coarse = coarse;
    b->count = coarse ? CDP__MEM_COARSE_BINS : CDP__MEM_BINS;
    a->bins[large] = b;
    return true;
}

/* ---- >>mem/pages: segments whose pages come and go ------------------------------------------- */

/* Knows: how a segment gets more pages at either end, how free pages leave it at its ends or in
   its middle, and how two segments become one. Promises: blocks tile their segment, and
   statistics are sums over blocks, before and after each call. */

/* A free block in a segment with others counts as a piece in the statistics. Every change of a
   segment's blocks is made between these two calls. */
CDP__PRIVATE void cdp__mem_piece_begin(cdp_mem *m, const cdp__mem_part *p) {
    if (!p || p->state != CDP_MEM_INACTIVE || !cdp__mem_is_split(p)) return;
    cdp__mem_up(&m->tally.inactive_split, p->span->large, 1);
    cdp__mem_up(&m->tally.inactive_split_bytes, p->span->large, p->size);
}

CDP__PRIVATE void cdp__mem_piece_end(cdp_mem *m, const cdp__mem_part *p) {
    if (!p || p->state != CDP_MEM_INACTIVE || !cdp__mem_is_split(p)) return;
    cdp__mem_down(&m->tally.inactive_split, p->span->large, 1);
    cdp__mem_down(&m->tally.inactive_split_bytes, p->span->large, p->size);
}

/* Cuts these bytes of a free block out as a block in no list. */
CDP__PRIVATE cdp__mem_part *cdp__mem_pages_of(
    cdp_mem *m, cdp__mem_part *whole, uint64_t at, uint64_t bytes) {
    cdp__mem_part *p = whole, *rest;
    cdp__mem_piece_end(m, whole);
    cdp__mem_bins_take(cdp__mem_bins_of(whole), whole);
    if (whole->at < at) {
        p = cdp__mem_part_rest(m, whole, at - whole->at);
        cdp__mem_free_put(m, cdp__mem_bins_of(whole), whole);
        cdp__mem_piece_begin(m, whole);
    }
    if (p->size > bytes) {
        rest = cdp__mem_part_rest(m, p, bytes);
        cdp__mem_free_put(m, cdp__mem_bins_of(rest), rest);
        cdp__mem_piece_begin(m, rest);
    }
    return p;
}

/* Cuts these bytes of a segment out as a block in no list; NULL: they are not free. */
CDP__PRIVATE cdp__mem_part *cdp__mem_pages_cut(
    cdp_mem *m, const cdp__mem_span *s, uint64_t at, uint64_t bytes) {
    cdp__mem_part *p = s->first;
    while (p && p->at + p->size <= at)
        p = p->next;
    if (!p || p->state != CDP_MEM_INACTIVE || p->at > at || at + bytes > p->at + p->size)
        return NULL;
    return cdp__mem_pages_of(m, p, at, bytes);
}

/* Counts a segment with another size; the caller updates the sum of all sizes. */
CDP__PRIVATE void cdp__mem_pages_set_size(cdp_mem *m, cdp__mem_span *s, uint64_t size) {
    const bool was = s->size >= m->sizes.max_split, is = size >= m->sizes.max_split;
    if (was && !is) cdp__mem_down(&m->tally.oversize_segments, false, 1);
    if (is && !was) cdp__mem_up(&m->tally.oversize_segments, false, 1);
    s->size = size;
}

/* Changes the size of a segment. Only the difference counts as taken or returned. */
CDP__PRIVATE void cdp__mem_pages_resize(cdp_mem *m, cdp__mem_span *s, uint64_t size) {
    if (size > s->size) cdp__mem_up(&m->tally.reserved_bytes, s->large, size - s->size);
    if (size < s->size) cdp__mem_down(&m->tally.reserved_bytes, s->large, s->size - size);
    m->held = m->held - s->size + size;
    cdp__mem_pages_set_size(m, s, size);
}

/* Makes two neighbours out of blocks that had none there. `mine` is free and in its list, and so
   may `other` be; they become one block then. Returns the block that `mine` is part of. */
CDP__PRIVATE cdp__mem_part *cdp__mem_pages_meet(
    cdp_mem *m, cdp__mem_part *left, cdp__mem_part *right, cdp__mem_part *mine) {
    cdp__mem_part *const other = mine == left ? right : left;
    cdp__mem_piece_end(m, left);
    cdp__mem_piece_end(m, right);
    left->next = right;
    right->prev = left;
    cdp__mem_bins_take(cdp__mem_bins_of(mine), mine);
    mine->state = CDP_MEM_PENDING; /* not free for a moment */
    cdp__mem_piece_begin(m, other);
    if (mine == right && left->state == CDP_MEM_INACTIVE) {
        cdp__mem_part_free(m, mine);
        return left;
    }
    cdp__mem_part_free(m, mine);
    return mine;
}

/* Adds pages after a segment, or before it. Returns the free block that they are part of. */
CDP__PRIVATE cdp__mem_part *cdp__mem_pages_grow(
    cdp_mem *m, cdp__mem_span *s, uint64_t at, uint64_t bytes) {
    const bool behind = at == s->at + s->size;
    cdp__mem_part *const p = cdp__mem_part_new(m, at, bytes);
    cdp__mem_part *const other = behind ? s->last : s->first;
    p->span = s;
    cdp__mem_free_put(m, cdp__mem_bins_of(p), p);
    if (behind)
        s->last = p;
    else {
        s->first = p;
        s->at = at;
    }
    cdp__mem_pages_resize(m, s, s->size + bytes);
    cdp__mem_call_watchers(m, CDP_MEM_SEGMENT_MAP, at, bytes, s->arena->pool);
    return cdp__mem_pages_meet(m, behind ? other : p, behind ? p : other, p);
}

/* Makes one segment of `s` and `t`, which begins where `s` ends. The last block of `s` is free.
   Returns it. */
CDP__PRIVATE cdp__mem_part *cdp__mem_pages_join(cdp_mem *m, cdp__mem_span *s, cdp__mem_span *t) {
    cdp__mem_part *const left = s->last, *const right = t->first;
    const uint64_t size = t->size;
    cdp__mem_part *p;
    for (p = right; p; p = p->next)
        p->span = s;
    s->last = t->last;
    s->busy += t->busy;
    cdp__mem_span_drop(m, t);
    cdp__mem_pages_set_size(m, s, s->size + size);
    return cdp__mem_pages_meet(m, left, right, left);
}

/* Makes the blocks from `p` on a segment of their own. */
CDP__PRIVATE void cdp__mem_pages_divide(cdp_mem *m, cdp__mem_span *s, cdp__mem_part *p) {
    cdp__mem_span *const t = m->unused_spans;
    const uint64_t end = s->at + s->size;
    m->unused_spans = t->next;
    *t = *s;
    t->label = 0;
    cdp__mem_label_set(&m->log.labels, &t->label, s->label);
    t->prev = s;
    t->next = s->next;
    if (t->next)
        t->next->prev = t;
    else
        m->last_span = t;
    s->next = t;
    t->first = p;
    t->at = p->at;
    t->size = 0;
    t->busy = 0;
    t->below = s;
    if (t->range && t->above) t->above->below = t;
    if (t->range) s->above = t;
    cdp__mem_up(&m->tally.segment, t->large, 1);
    cdp__mem_pages_set_size(m, s, p->at - s->at);
    cdp__mem_pages_set_size(m, t, end - p->at);
    for (; p; p = p->next) {
        p->span = t;
        if (p->state != CDP_MEM_INACTIVE) ++t->busy;
    }
    s->busy -= t->busy;
}

/* Removes free pages; `p` is their block, in no list. */
CDP__PRIVATE void cdp__mem_pages_shrink(cdp_mem *m, cdp__mem_part *p) {
    cdp__mem_span *const s = p->span;
    cdp__mem_part *const prev = p->prev, *const next = p->next;
    if (!prev && !next) {
        cdp__mem_span_remove(m, s);
        return;
    }
    cdp__mem_piece_end(m, prev);
    cdp__mem_piece_end(m, next);
    if (prev && next) cdp__mem_pages_divide(m, s, next);
    if (prev) {
        prev->next = NULL;
        s->last = prev;
    } else
        s->first = next;
    if (next) next->prev = NULL;
    if (!prev) s->at = next->at;
    cdp__mem_pages_resize(m, s, s->size - p->size);
    cdp__mem_part_drop(m, p);
    cdp__mem_piece_begin(m, prev);
    cdp__mem_piece_begin(m, next);
}

/* ---- >>mem/history: events into the ring ----------------------------------------------------- */

/* Knows: what is recorded, and how stacks are collected. Promises: a history has all events since
   it began; recording an event allocates nothing but room for labels, when more are carried than
   ever before. */

#define CDP__MEM_WANTS_STATE 1u /* stacks and labels of blocks */
#define CDP__MEM_WANTS_EVENTS 2u
#define CDP__MEM_WANTS_STACK 4u  /* collect a stack for allocations */
#define CDP__MEM_WANTS_FREE 8u   /* collect a stack for frees */
#define CDP__MEM_WANTS_ALLOC 16u /* events carry stacks           */
#define CDP__MEM_WANTS_TICKS 32u /* the clock is the system's, so ticks may stand for it */
#define CDP__MEM_WANTS_LEVEL 64u /* a function waits for a level; nothing to do with recording */

#define CDP__MEM_NESTED 16u

typedef struct cdp__mem_thread { /* labels of one thread */
    char text[CDP__MEM_LABEL_BYTES];
    uint64_t hash;
    uint32_t length[CDP__MEM_NESTED]; /* length of the text before each label */
    uint32_t depth;                   /* includes labels that found no room */
} cdp__mem_thread;

CDP__PRIVATE cdp__mem_thread *cdp__mem_thread_own(void) {
    static CDP__THREAD_LOCAL cdp__mem_thread t;
    return &t;
}

CDP__PRIVATE void cdp__mem_label_push(cdp__mem_thread *t, const char *text) {
    const uint32_t have = (uint32_t)strlen(t->text);
    if (t->depth++ >= CDP__MEM_NESTED) return;
    t->length[t->depth - 1] = have;
    if (have + 2 < sizeof t->text) {
        if (have) t->text[have] = '/';
        cdp__mem_text_copy(t->text + have + (have ? 1 : 0), text, sizeof t->text - have - 1);
    }
    t->hash = cdp__mem_text_hash(t->text);
}

CDP__PRIVATE void cdp__mem_label_pop(cdp__mem_thread *t) {
    if (!t->depth || --t->depth >= CDP__MEM_NESTED) return;
    t->text[t->length[t->depth]] = 0;
    t->hash = cdp__mem_text_hash(t->text);
}

/* A request, free or other call that may be recorded. */
typedef struct cdp__mem_call {
    const void *caller, *frame; /* where it returns to; the frame pointer of the public function */
    const cdp_mem_site *site;
    uint32_t wants, stack_if;
    uint32_t stack, label; /* numbers, known under the lock */
    uint64_t history;      /* the history of these numbers */
    uint64_t now_ns;
    cdp__mem_trace trace;
} cdp__mem_call;

/* The time of an event. Reading the clock twice costs as much as allocating and freeing. So for
   2000 ticks of the processor after a reading, its time goes on by a nanosecond for 8 ticks: never
   ahead of the clock, later for each call of a thread, and a microsecond behind at 2 GHz, which is
   the unit of files. */
#define CDP__MEM_TICKS 2000u
CDP__MEM_HOT uint64_t cdp__mem_time(const cdp_mem *m, uint32_t wants) {
    static CDP__THREAD_LOCAL uint64_t read_at, read_ns;
    const uint64_t ticks = wants & CDP__MEM_WANTS_TICKS ? cdp__ticks() : 0;
    if (!ticks) return m->os->now_ns(m->os->user);
    if (ticks - read_at >= CDP__MEM_TICKS) {
        read_ns = m->os->now_ns(m->os->user);
        read_at = cdp__ticks(); /* after the clock: what lies between must not count */
        if (read_at - ticks >= CDP__MEM_TICKS)
            read_at = 0; /* stopped in between: nobody goes on from here */
        return read_ns;
    }
    return read_ns + (ticks - read_at) / 8;
}

/* Call without the lock: decides what is probably recorded, and takes time and stack, which is
   slow. `stack_if`: CDP__MEM_WANTS_STACK, _FREE, or 0 for a call without a stack. */
CDP__MEM_HOT void cdp__mem_call_begin(
    const cdp_mem *m, cdp__mem_call *c, uint32_t stack_if, const cdp_mem_site *site) {
    uint32_t most;
    c->wants = cdp__atomic_load_u32(&m->log.what, CDP__ACQUIRE);
    c->stack_if = stack_if;
    c->stack = c->label = 0;
    c->history = 0;
    c->trace.count = 0;
    c->site = site;
    if (!c->wants) return;
    if (c->wants & CDP__MEM_WANTS_EVENTS) c->now_ns = cdp__mem_time(m, c->wants);
    most = c->wants >> 16 & 0xff; /* 0: only the site that was passed */
    if (!(c->wants & stack_if) || !most) return;
    if (c->wants >> 24 == CDP_MEM_STACKS_FRAME_POINTER)
        cdp__mem_walk(c->frame, most, &c->trace);
    else
        cdp__mem_unwind(c->caller, most, &c->trace);
}

/* The number of a site. Known ones are found by the addresses of their texts, so that nothing is
   formatted. */
CDP__PRIVATE uint32_t cdp__mem_site_number(cdp__mem_log *l, const cdp_mem_site *s) {
    const char *file = s->file ? s->file : "";
    const char *const function = s->function ? s->function : "";
    uint64_t length;
    uint64_t hash = cdp__mem_mix(s->line, (uint64_t)(uintptr_t)file);
    char text[CDP__MEM_LABEL_BYTES];
    uint32_t slot;
    hash = cdp__mem_mix(hash, (uint64_t)(uintptr_t)function);
    slot = cdp__mem_sites_slot(&l->sites, hash);
    if (l->sites.slots[slot]) return l->sites.slots[slot];
    length = strlen(file);
    if (length > 70) file += length - 70;
    cdp__format(text, sizeof text, "%s\n%u\n%s", file, s->line, function);
    return cdp__mem_sites_add(&l->sites, hash, text, slot);
}

/* The number of the stack of this call: the site, the frames. */
CDP__PRIVATE uint32_t cdp__mem_call_stack(cdp_mem *m, cdp__mem_call *c) {
    uint64_t *words = c->trace.words + 1;
    uint32_t count = c->trace.count, site, *alone;
    if (!c->site) return cdp__mem_depot_number(&m->log.depot, words, count);
    site = cdp__mem_site_number(&m->log, c->site);
    *--words = CDP__MEM_TAG_SITE | site;
    if (count) return cdp__mem_depot_number(&m->log.depot, words, count + 1);
    alone = &m->log.sites.stack[site - 1]; /* with STACKS_SITE, each call has such a stack */
    if (*alone) return *alone;
    count = cdp__mem_depot_number(&m->log.depot, words, 1);
    if (count > 1) *alone = count; /* 1: the table is full, which is counted for each call */
    return count;
}

/* The number of this thread's label. */
CDP__PRIVATE void cdp__mem_call_label(cdp_mem *m, cdp__mem_call *c) {
    const cdp__mem_thread *const t = cdp__mem_thread_own();
    c->label = t->depth ? cdp__mem_labels_number(&m->log.labels, t->hash, t->text) : 0;
}

/* Call with the lock held: decides what is recorded, so that a history has all events since it
   began. Recording may have begun, ended or restarted since cdp__mem_call_begin; a stack that
   was not collected then is missing. */
CDP__PRIVATE void cdp__mem_call_recorded(cdp_mem *m, cdp__mem_call *c) {
    const uint32_t before = c->wants;
    c->wants = m->log.what;
    c->history = m->histories;
    c->stack = c->label = 0;
    if (!c->wants) return;
    if (c->wants & CDP__MEM_WANTS_EVENTS) {
        if (!(before & CDP__MEM_WANTS_EVENTS)) c->now_ns = cdp__mem_time(m, c->wants);
        c->now_ns = cdp__max(c->now_ns, m->log.start_ns);
    }
    cdp__mem_call_label(m, c);
    if (c->wants & c->stack_if) c->stack = cdp__mem_call_stack(m, c);
}

CDP__MEM_HOT void cdp__mem_call_enter(cdp_mem *m, cdp__mem_call *c) {
    if (c->wants | m->log.what) cdp__mem_call_recorded(m, c);
}

/* Call after the lock was released for a while: if a new history has begun since, records the call
   again, because numbers of the old history are invalid in it. A label that nothing carries yet
   may have lost its number in any case. */
CDP__PRIVATE void cdp__mem_call_again(cdp_mem *m, cdp__mem_call *c) {
    if (c->history != m->histories)
        cdp__mem_call_recorded(m, c);
    else if (c->wants)
        cdp__mem_call_label(m, c);
}

/* Record an event of this call. */
CDP__PRIVATE cdp__mem_record *cdp__mem_event_add(
    cdp_mem *m, const cdp__mem_call *c, cdp_mem_action action, uint64_t at, uint64_t size) {
    cdp__mem_log *const l = &m->log;
    cdp__mem_record *e;
    if (!(c->wants & CDP__MEM_WANTS_EVENTS)) return NULL;
    if (l->desc.skip >> action & 1) return NULL;
    e = cdp__mem_ring_push(&l->ring);
    if (l->ring.total > l->ring.room) cdp__mem_label_set(&l->labels, &e->label, 0);
    memset(e, 0, sizeof *e);
    e->address = at;
    e->size = size;
    /* times were taken before the lock, so they may be out of order */
    if (c->now_ns > l->last_ns) l->last_ns = c->now_ns;
    e->time_ns = l->last_ns;
    e->action = (uint8_t)action;
    cdp__mem_label_set(&l->labels, &e->label, c->label);
    if (c->wants & CDP__MEM_WANTS_ALLOC) e->stack = c->stack;
    return e;
}

CDP__PRIVATE void cdp__mem_event_place(cdp__mem_record *e, const cdp__mem_arena *a) {
    if (!e) return;
    e->stream = (uint64_t)(uintptr_t)a->stream;
    e->pool[1] = a->pool->number;
}

/* Record an event of a block. Frees without a stack of their own show that of the allocation. */
CDP__MEM_HOT void cdp__mem_event_part(
    cdp_mem *m, const cdp__mem_call *c, cdp_mem_action action, const cdp__mem_part *p) {
    cdp__mem_record *e;
    if (!(c->wants & CDP__MEM_WANTS_EVENTS) || p->requested < m->log.desc.min_bytes) return;
    e = cdp__mem_event_add(m, c, action, p->at, p->requested);
    cdp__mem_event_place(e, p->span->arena);
    if (!e || action == CDP_MEM_ALLOC) return;
    cdp__mem_label_set(&m->log.labels, &e->label, p->label);
    if (!e->stack && (c->wants & CDP__MEM_WANTS_ALLOC)) e->stack = p->stack;
}

/* Record the alloc of a block; of one that is left out, only where its event would be. */
CDP__MEM_HOT void cdp__mem_event_alloc(cdp_mem *m, const cdp__mem_call *c, cdp__mem_part *p) {
    if (!(c->wants & CDP__MEM_WANTS_EVENTS)) return;
    if (p->requested < m->log.desc.min_bytes) p->began = m->log.ring.total;
    cdp__mem_event_part(m, c, CDP_MEM_ALLOC, p);
}

/* Looks whether memory in use has risen above a level by a block of `size` bytes. */
CDP__PRIVATE void cdp__mem_levels_look(cdp_mem *m, uint64_t size) {
    const uint64_t now = cdp__mem_now(&m->tally.allocated_bytes);
    uint32_t i;
    for (i = 0; i < CDP__MEM_WATCHERS; ++i) {
        cdp__mem_level *const l = &m->levels[i];
        if (now - size <= l->again) l->armed = true;
        if (!l->func || !l->armed || now <= l->bytes) continue;
        l->armed = false;
        l->due = m->levels_due = true;
        l->now = now;
    }
}

/* A block, counted already, is given out by a call that is recorded or watched. */
CDP__PRIVATE void cdp__mem_part_given(cdp_mem *m, const cdp__mem_call *c, cdp__mem_part *p) {
    if (c->wants & CDP__MEM_WANTS_STATE)
        cdp__mem_label_enter(
            &m->log.labels, &p->label, c->label, p->size, cdp__mem_active_bytes(m));
    if (c->wants & CDP__MEM_WANTS_LEVEL) cdp__mem_levels_look(m, p->size);
}

CDP__PRIVATE void cdp__mem_event_span(
    cdp_mem *m, const cdp__mem_call *c, cdp_mem_action action, const cdp__mem_span *s) {
    cdp__mem_record *const e = cdp__mem_event_add(m, c, action, s->at, s->size);
    cdp__mem_event_place(e, s->arena);
    if (e && !e->stack && (c->wants & CDP__MEM_WANTS_ALLOC)) e->stack = s->stack;
}

/* Record an event of pages of a segment that grows. */
CDP__PRIVATE void cdp__mem_event_pages(cdp_mem *m, const cdp__mem_call *c, cdp_mem_action action,
    uint64_t at, uint64_t bytes, cdp__mem_arena *arena, uint32_t stack) {
    cdp__mem_span pages;
    memset(&pages, 0, sizeof pages);
    pages.at = at;
    pages.size = bytes;
    pages.arena = arena;
    pages.stack = stack;
    cdp__mem_event_span(m, c, action, &pages);
}

/* A call of the library itself, without a stack. */
CDP__PRIVATE void cdp__mem_call_plain(cdp_mem *m, cdp__mem_call *c) {
    c->caller = c->frame = NULL;
    cdp__mem_call_begin(m, c, 0, NULL);
}

CDP__PRIVATE uint32_t cdp__mem_wants(const cdp_mem_record_desc *d) {
    uint32_t w = CDP__MEM_WANTS_STATE;
    if (d->history == CDP_MEM_HISTORY_OFF) return 0;
    if (d->history == CDP_MEM_HISTORY_ALL) w |= CDP__MEM_WANTS_EVENTS;
    if (d->context == CDP_MEM_CONTEXT_NONE) return w;
    w |= CDP__MEM_WANTS_STACK;
    if (d->context <= CDP_MEM_CONTEXT_ALLOC) w |= CDP__MEM_WANTS_ALLOC;
    if (d->context == CDP_MEM_CONTEXT_ALL) w |= CDP__MEM_WANTS_FREE;
    if (d->stacks != CDP_MEM_STACKS_SITE) w |= d->max_frames << 16;
    return w | (uint32_t)d->stacks << 24;
}

CDP__PRIVATE void cdp__mem_record_defaults(cdp_mem_record_desc *d) {
    d->max_entries = cdp__def(d->max_entries, 100000u);
    d->max_frames = cdp__def(d->max_frames, 32u);
    d->max_stacks = cdp__def(d->max_stacks, 16384u);
}

CDP__PRIVATE cdp_status cdp__mem_record_check(const cdp_mem_record_desc *d) {
    const uint32_t may = 1u << CDP_MEM_OOM | 1u << CDP_MEM_SNAPSHOT | 1u << CDP_MEM_USER_DEFINED
        | 1u << CDP_MEM_ANNOTATE;
    if (d->history > CDP_MEM_HISTORY_ALL || d->context > CDP_MEM_CONTEXT_NONE
        || d->stacks > CDP_MEM_STACKS_SITE)
        return cdp__fail(CDP_ERR_INVALID,
            "record: history %u, context %u or stacks %u is no value of its enum",
            (unsigned)d->history, (unsigned)d->context, (unsigned)d->stacks);
    if (d->max_frames > CDP__MEM_FRAMES)
        return cdp__fail(CDP_ERR_INVALID, "record: max_frames %u; %u is the most", d->max_frames,
            CDP__MEM_FRAMES);
    if (d->max_entries > 1u << 28 || d->max_stacks > 1u << 24)
        return cdp__fail(CDP_ERR_INVALID,
            "record: max_entries %u or max_stacks %u is above 2^28 or 2^24", d->max_entries,
            d->max_stacks);
    if (d->skip & ~may)
        return cdp__fail(CDP_ERR_INVALID,
            "record: skip 0x%x leaves out events of blocks or segments; without them the file "
            "cannot be replayed; use min_bytes",
            d->skip);
    if (!CDP__MEM_BACKTRACE && d->history && d->context != CDP_MEM_CONTEXT_NONE
        && d->stacks == CDP_MEM_STACKS_BACKTRACE)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "record: this C library has no backtrace(); set stacks to FRAME_POINTER or SITE");
    return CDP_OK;
}

/* Allocates ring, depot and sites of `l` in one piece. */
CDP__PRIVATE bool cdp__mem_log_open(const cdp_os *os, cdp__mem_log *l) {
    const cdp_mem_record_desc *const d = &l->desc;
    const uint64_t words = (uint64_t)d->max_stacks * (d->max_frames < 16 ? d->max_frames + 2 : 16);
    const bool all = d->history == CDP_MEM_HISTORY_ALL;
    uint64_t slots = 64;
    char *at;
    while (slots < 2ull * (d->max_stacks + 2))
        slots *= 2;
    l->ring.room = all ? d->max_entries : 0;
    l->depot.rows_room = d->max_stacks + 1;
    l->depot.words_room = (uint32_t)words + CDP__MEM_WORDS;
    l->depot.slot_mask = (uint32_t)slots - 1;
    at = (char *)cdp__alloc(os,
        l->ring.room * sizeof(cdp__mem_record) + l->depot.rows_room * sizeof(cdp__mem_row)
            + l->depot.words_room * sizeof(uint64_t) + CDP__MEM_SITES_ALL
            + slots * sizeof(uint32_t));
    l->memory = at;
    if (!at) return false;
    l->labels.os = os;
    l->ring.at = (cdp__mem_record *)(void *)at;
    at += l->ring.room * sizeof(cdp__mem_record);
    l->depot.rows = (cdp__mem_row *)(void *)at;
    at += l->depot.rows_room * sizeof(cdp__mem_row);
    l->depot.words = (uint64_t *)(void *)at;
    at += l->depot.words_room * sizeof(uint64_t);
    memset(at, 0, CDP__MEM_SITES_ALL);
    cdp__mem_sites_at(&l->sites, at);
    at += CDP__MEM_SITES_ALL;
    l->depot.slots = (uint32_t *)(void *)at;
    cdp__mem_depot_clear(&l->depot);
    return true;
}

CDP__PRIVATE void cdp__mem_log_close(const cdp_os *os, cdp__mem_log *l) {
    cdp__free(os, l->memory);
    cdp__mem_labels_close(&l->labels);
    memset(l, 0, sizeof *l);
}

/* ---- >>mem/streams: frees that wait ---------------------------------------------------------- */

/* Knows: which blocks wait for which events. Each stream has a queue; its events are queried from
   the front until one has not completed, because a stream works in order. Promises: a block
   becomes free after the last of its events, and a free that fails changes nothing. */

CDP__PRIVATE cdp__mem_stream_queue *cdp__mem_stream_queue_of(cdp_mem *m, void *stream) {
    cdp__mem_stream_queue *l = m->stream_queues;
    while (l && l->stream != stream)
        l = l->next;
    if (l) return l;
    l = (cdp__mem_stream_queue *)cdp__alloc_zero(m->os, sizeof *l);
    if (!l) return NULL;
    l->stream = stream;
    l->next = m->stream_queues;
    m->stream_queues = l;
    return l;
}

CDP__PRIVATE bool cdp__mem_capturing(const cdp_mem_source *s, void *stream) {
    return stream && s->capturing && s->capturing(s->user, stream);
}

/* Destroys an event unless it is of the ordinary source: only those are kept for reuse. */
CDP__PRIVATE void cdp__mem_use_forget(const cdp_mem_source *s, cdp__mem_use *u) {
    if (u->event) s->event_destroy(s->user, u->event);
    u->event = NULL;
}

/* Adds a stream to a block. The record is allocated now, so that a free needs no memory. */
CDP__PRIVATE cdp_status cdp__mem_use_add(cdp_mem *m, cdp__mem_part *p, void *stream) {
    cdp__mem_stream_queue *const queue = cdp__mem_stream_queue_of(m, stream);
    cdp__mem_use *u;
    if (!queue) return cdp__fail_nomem("cdp_mem_record_stream", sizeof *queue);
    for (u = p->uses; u; u = u->next)
        if (u->queue == queue && !u->forgotten) return CDP_OK;
    if (!m->unused_uses && !cdp__mem_more_uses(m))
        return cdp__fail_nomem("cdp_mem_record_stream", CDP__MEM_SLAB * sizeof *u);
    u = m->unused_uses;
    m->unused_uses = u->next;
    if (p->span->arena->pool->own_source) cdp__mem_use_forget(&m->base.source, u);
    u->part = p;
    u->queue = queue;
    u->after = NULL;
    u->forgotten = false;
    u->next = p->uses;
    p->uses = u;
    return CDP_OK;
}

CDP__PRIVATE void cdp__mem_use_drop(cdp_mem *m, cdp__mem_use *u) {
    const cdp_mem_pool *const pool = u->part->span->arena->pool;
    if (pool->own_source) cdp__mem_use_forget(&pool->source, u);
    u->part = NULL;
    u->next = m->unused_uses;
    m->unused_uses = u;
}

/* Returns a segment to the source; its only block is free and in its list. If the source fails,
   nothing changes. */
CDP__PRIVATE cdp_status cdp__mem_release(cdp_mem *m, const cdp__mem_call *c, cdp__mem_span *s) {
    cdp_mem_pool *const pool = s->arena->pool;
    const cdp_mem_source *const source = &pool->source;
    cdp__mem_call_watchers(m, CDP_MEM_SEGMENT_FREE, s->at, s->size, pool);
    if (source->release) {
        const cdp_status st = source->release(source->user, (void *)(uintptr_t)s->at, s->size);
        if (st != CDP_OK) {
            cdp__mem_call_watchers(m, CDP_MEM_SEGMENT_ALLOC, s->at, s->size, pool);
            return st;
        }
    }
    ++m->stats.device_frees;
    if (!s->unrecorded) cdp__mem_event_span(m, c, CDP_MEM_SEGMENT_FREE, s);
    cdp__mem_bins_take(cdp__mem_bins_of(s->first), s->first);
    cdp__mem_span_remove(m, s);
    return CDP_OK;
}

/* The block is reusable: merges it and puts it into its list. Without a cache, returns it to the
   source; if that fails, it stays in the list for a later trim. */
CDP__MEM_HOT void cdp__mem_complete(cdp_mem *m, const cdp__mem_call *c, cdp__mem_part *p) {
    cdp__mem_span *const s = p->span;
    cdp__mem_event_part(m, c, CDP_MEM_FREE_COMPLETED, p);
    cdp__mem_part_end(m, p);
    cdp__mem_part_free(m, p);
    if (m->desc.no_cache && !s->busy && !s->reported && !s->arena->pool->fixed_bytes)
        (void)cdp__mem_release(m, c, s);
}

CDP__PRIVATE void cdp__mem_complete_waited(cdp_mem *m, const cdp__mem_call *c, cdp__mem_part *p) {
    cdp__mem_part_waited(m, p);
    cdp__mem_complete(m, c, p);
}

CDP__PRIVATE void cdp__mem_stream_queue_push(cdp_mem *m, cdp__mem_use *u) {
    cdp__mem_stream_queue *const l = u->queue;
    u->after = NULL;
    if (l->last)
        l->last->after = u;
    else
        l->first = u;
    l->last = u;
    ++m->waiting;
}

/* Records an event for a stream that uses a block being freed. */
CDP__PRIVATE cdp_status cdp__mem_use_mark(const cdp_mem_source *s, cdp__mem_use *u) {
    cdp_status st;
    if (u->forgotten) return CDP_OK;
    if (!u->event) {
        st = s->event_create(s->user, &u->event);
        if (st != CDP_OK) {
            u->event = NULL;
            return st;
        }
    }
    return s->event_record(s->user, u->event, u->queue->stream);
}

/* A block no longer waits for one of its streams. */
CDP__PRIVATE void cdp__mem_use_over(cdp_mem *m, const cdp__mem_call *c, cdp__mem_use *u) {
    cdp__mem_part *const p = u->part;
    cdp__mem_use **at = &p->uses;
    while (*at != u)
        at = &(*at)->next;
    *at = u->next;
    cdp__mem_use_drop(m, u);
    if (!--p->waits) cdp__mem_complete_waited(m, c, p);
}

/* True if a stream of the block is being captured: events would become part of the graph. */
CDP__PRIVATE bool cdp__mem_use_captured(const cdp_mem_source *s, const cdp__mem_part *p) {
    const cdp__mem_use *u;
    if (!s->capturing || !p->uses) return false;
    if (cdp__mem_capturing(s, p->span->arena->stream)) return true;
    for (u = p->uses; u; u = u->next)
        if (cdp__mem_capturing(s, u->queue->stream)) return true;
    return false;
}

/* Frees a block that further streams use. All events are recorded before anything changes. */
CDP__PRIVATE cdp_status cdp__mem_free_later(cdp_mem *m, const cdp__mem_call *c, cdp__mem_part *p) {
    const cdp_mem_source *const s = &p->span->arena->pool->source;
    const bool captured = cdp__mem_use_captured(s, p);
    cdp__mem_use *u, *next;
    for (u = captured ? NULL : p->uses; u; u = u->next) {
        const cdp_status st = cdp__mem_use_mark(s, u);
        if (st != CDP_OK) return st;
    }
    cdp__mem_event_part(m, c, CDP_MEM_FREE_REQUESTED, p);
    cdp__mem_part_leave(m, p);
    cdp__mem_part_wait(m, p);
    for (u = p->uses; u; u = u->next)
        ++p->waits;
    for (u = p->uses; u; u = next) {
        next = u->next;
        if (captured) {
            u->after = m->delayed;
            m->delayed = u;
        } else if (u->forgotten)
            cdp__mem_use_over(m, c, u);
        else
            cdp__mem_stream_queue_push(m, u);
    }
    return CDP_OK;
}

CDP__MEM_HOT cdp_status cdp__mem_free_part(cdp_mem *m, const cdp__mem_call *c, cdp__mem_part *p) {
    if (p->uses) return cdp__mem_free_later(m, c, p);
    cdp__mem_event_part(m, c, CDP_MEM_FREE_REQUESTED, p);
    cdp__mem_part_leave(m, p);
    cdp__mem_complete(m, c, p);
    return CDP_OK;
}

/* Handles frees that a capture has delayed: when it has ended, their events can be recorded. */
CDP__PRIVATE cdp_status cdp__mem_poll_delayed(cdp_mem *m) {
    cdp__mem_use **at = &m->delayed;
    while (*at) {
        cdp__mem_use *const u = *at;
        const cdp_mem_source *const s = &u->part->span->arena->pool->source;
        cdp_status st;
        if (cdp__mem_use_captured(s, u->part)) {
            at = &u->after;
            continue;
        }
        st = cdp__mem_use_mark(s, u);
        if (st != CDP_OK) return st;
        *at = u->after;
        cdp__mem_stream_queue_push(m, u);
    }
    return CDP_OK;
}

/* Queries the events of one stream. */
CDP__PRIVATE cdp_status cdp__mem_poll_stream_queue(
    cdp_mem *m, const cdp__mem_call *c, cdp__mem_stream_queue *l) {
    while (l->first) {
        cdp__mem_use *const u = l->first;
        const cdp_mem_source *const s = &u->part->span->arena->pool->source;
        const cdp_status st = u->forgotten ? CDP_OK : s->event_query(s->user, u->event);
        if (st == CDP_PENDING) return CDP_OK;
        if (st != CDP_OK) return st;
        l->first = u->after;
        if (!l->first) l->last = NULL;
        --m->waiting;
        cdp__mem_use_over(m, c, u);
    }
    return CDP_OK;
}

/* Completes the frees whose events have completed. */
CDP__PRIVATE cdp_status cdp__mem_poll(cdp_mem *m, const cdp__mem_call *c) {
    cdp__mem_stream_queue *l;
    cdp_status st = m->delayed ? cdp__mem_poll_delayed(m) : CDP_OK;
    for (l = m->stream_queues; l && st == CDP_OK && m->waiting; l = l->next)
        st = cdp__mem_poll_stream_queue(m, c, l);
    return st;
}

CDP__PRIVATE void cdp__mem_pause(const cdp_os *os, uint32_t turn) {
    if (turn < 100 && os->threads.yield)
        os->threads.yield(os->user);
    else
        cdp__sleep_until(os, os->now_ns(os->user) + CDP__MS / 4);
}

/* Waits until no free waits for an event; other threads may use the allocator meanwhile. Frees
   delayed by a capture are left out. */
CDP__PRIVATE cdp_status cdp__mem_drain(cdp_mem *m, cdp__mem_call *c) {
    const uint64_t deadline = cdp__deadline(m->os, m->desc.timeout_ms);
    uint32_t turn = 0;
    cdp_status st = cdp__mem_poll(m, c);
    for (; st == CDP_OK && m->waiting; st = cdp__mem_poll(m, c), ++turn) {
        if (m->os->now_ns(m->os->user) >= deadline)
            return cdp__fail(CDP_ERR_TIMEOUT,
                "%u events of freed blocks on %s have not passed after %u ms; is a kernel stuck, "
                "or is timeout_ms too short?",
                m->waiting, m->base.source.name, m->desc.timeout_ms);
        cdp__mem_unlock(m);
        cdp__mem_pause(m->os, turn);
        cdp__mem_lock(m);
        cdp__mem_call_again(m, c);
    }
    return st;
}

/* ---- >>mem/ranges: segments that grow in ranges of addresses --------------------------------- */

/* Knows: where in the ranges of an arena a request fits if pages are mapped, and which pages are
   idle. Promises: segments of one range never touch; pages are mapped where the fewest are
   needed, and unmapped only if no block needs a byte of them. */

/* True if the segments of a pool grow. */
CDP__PRIVATE bool cdp__mem_expands(const cdp_mem *m, const cdp_mem_pool *pool) {
    return m->desc.expandable && pool->source.map && !pool->fixed_bytes && !pool->no_split;
}

/* Where a request may begin: behind segment `below` of a range (NULL: at its start), or in the
   free end of that segment. */
typedef struct cdp__mem_spot {
    cdp__mem_range *range;
    cdp__mem_span *below;
    uint64_t at;   /* where the block begins */
    uint64_t cost; /* bytes to map           */
} cdp__mem_spot;

/* The unmapped bytes behind a segment. */
CDP__PRIVATE uint64_t cdp__mem_hole(
    const cdp__mem_range *r, const cdp__mem_span *below, uint64_t *at) {
    const cdp__mem_span *const above = below ? below->above : r->first;
    *at = below ? below->at + below->size : r->at;
    return (above ? above->at : r->at + r->size) - *at;
}

/* How many bytes of a hole must be mapped so that a block reaches `end`: whole pages. */
CDP__PRIVATE uint64_t cdp__mem_hole_part(
    const cdp__mem_range *r, uint64_t at, uint64_t hole, uint64_t end, uint64_t page) {
    return cdp__min(hole, r->at + cdp__mem_up_to(end - r->at, page) - at);
}

/* Compares the place behind a segment with the best one so far. Free blocks at the edges of
   holes count, and segments between holes that are completely free. */
CDP__PRIVATE void cdp__mem_spot_look(
    cdp__mem_range *r, cdp__mem_span *below, uint64_t page, uint64_t size, cdp__mem_spot *best) {
    const cdp__mem_span *s = below;
    uint64_t at, cost = 0, start, hole = cdp__mem_hole(r, s, &at);
    if (!hole) return;
    start = s && s->last->state == CDP_MEM_INACTIVE ? s->last->at : at;
    for (;;) {
        const cdp__mem_part *p;
        cost += cdp__mem_hole_part(r, at, hole, start + size, page);
        if (cost >= best->cost) return;
        if (start + size <= at + hole) break;
        s = s ? s->above : r->first;
        p = s ? s->first : NULL; /* NULL: the range ends here */
        if (!p || p->state != CDP_MEM_INACTIVE) return;
        if (start + size <= p->at + p->size) break;
        if (p->next) return;
        hole = cdp__mem_hole(r, s, &at);
        if (!hole) return;
    }
    best->range = r;
    best->below = below;
    best->at = start;
    best->cost = cost;
}

/* The place in all ranges that needs the fewest pages; of several, the first. False: none. */
CDP__PRIVATE bool cdp__mem_spot_find(
    const cdp__mem_arena *a, bool large, uint64_t size, cdp__mem_spot *best) {
    const uint64_t page = a->pool->source.page_bytes;
    cdp__mem_range *r;
    best->cost = UINT64_MAX;
    for (r = a->ranges[large]; r; r = r->next) {
        cdp__mem_span *s;
        cdp__mem_spot_look(r, NULL, page, size, best);
        for (s = r->first; s; s = s->above)
            cdp__mem_spot_look(r, s, page, size, best);
    }
    return best->cost != UINT64_MAX;
}

/* Adds a range with room for `size` bytes to an arena. */
CDP__PRIVATE cdp_status cdp__mem_range_new(
    cdp_mem *m, cdp__mem_arena *a, bool large, uint64_t size, bool *no_host) {
    const cdp_mem_source *const s = &a->pool->source;
    cdp__mem_range *const r = (cdp__mem_range *)cdp__alloc_zero(m->os, sizeof *r);
    cdp__mem_range **last = &a->ranges[large];
    uint64_t least = cdp__mem_up_to(size, s->page_bytes), bytes = 0;
    void *at = NULL;
    cdp_status st = CDP_OK;
    if (!r) {
        *no_host = true;
        return cdp__fail_nomem("the records of cdp_mem_alloc", sizeof *r);
    }
    st = s->range_reserve(s->user, least, &at, &bytes);
    if (st == CDP_OK && ((uintptr_t)at % CDP__MEM_UNIT || bytes < least || bytes % s->page_bytes)) {
        s->range_release(s->user, at, bytes);
        st = cdp__fail(CDP_ERR_IO,
            "%s gave a range of %llu bytes at 0x%llx for %llu: not aligned to 512, or no multiple "
            "of its page of %llu",
            s->name, (unsigned long long)bytes, (unsigned long long)(uintptr_t)at,
            (unsigned long long)least, (unsigned long long)s->page_bytes);
    }
    if (st != CDP_OK) {
        cdp__free(m->os, r);
        return st;
    }
    r->at = (uint64_t)(uintptr_t)at;
    r->size = bytes;
    while (*last)
        last = &(*last)->next;
    *last = r;
    return CDP_OK;
}

/* Makes pages that were just mapped behind `below` part of the range. Returns the free block that
   they are part of; it is in its list. */
CDP__PRIVATE cdp__mem_part *cdp__mem_range_add(cdp_mem *m, const cdp__mem_call *c,
    cdp__mem_arena *a, bool large, cdp__mem_range *r, cdp__mem_span *below, uint64_t at,
    uint64_t bytes) {
    cdp__mem_span *const above = below ? below->above : r->first;
    cdp__mem_part *p;
    ++m->stats.device_allocs;
    cdp__mem_event_pages(m, c, CDP_MEM_SEGMENT_MAP, at, bytes, a, c->stack);
    if (below && below->at + below->size == at) {
        p = cdp__mem_pages_grow(m, below, at, bytes);
        return above && above->at == at + bytes ? cdp__mem_pages_join(m, below, above) : p;
    }
    if (above && above->at == at + bytes) return cdp__mem_pages_grow(m, above, at, bytes);
    p = cdp__mem_span_add(m, CDP_MEM_SEGMENT_MAP, a, at, bytes, large);
    p->span->range = r;
    p->span->below = below;
    p->span->above = above;
    if (below)
        below->above = p->span;
    else
        r->first = p->span;
    if (above) above->below = p->span;
    p->span->stack = c->stack;
    cdp__mem_label_set(&m->log.labels, &p->span->label, a->pool->label);
    cdp__mem_free_put(m, cdp__mem_bins_of(p), p);
    return p;
}

/* Maps pages for a block of `size` bytes; *out is a free block with room for it, in no list. If
   this fails half way, the pages that it got stay as free memory. */
CDP__PRIVATE cdp_status cdp__mem_expand(cdp_mem *m, const cdp__mem_call *c, cdp__mem_arena *a,
    bool large, uint64_t size, bool *no_host, cdp__mem_part **out) {
    const cdp_mem_source *const source = &a->pool->source;
    cdp__mem_part *p = NULL;
    cdp__mem_spot spot;
    cdp_status st = CDP_OK;
    if (!cdp__mem_spot_find(a, large, size, &spot)) {
        if (m->limit && size > m->limit) {
            ++m->stats.oom_rejections;
            return CDP_ERR_NOMEM;
        }
        st = cdp__mem_range_new(m, a, large, size, no_host);
        if (st != CDP_OK || !cdp__mem_spot_find(a, large, size, &spot)) return st;
    }
    if (m->limit && (spot.cost > m->limit || m->held > m->limit - spot.cost)) {
        ++m->stats.oom_rejections;
        return CDP_ERR_NOMEM;
    }
    do {
        uint64_t at, bytes = cdp__mem_hole(spot.range, spot.below, &at);
        bytes = cdp__mem_hole_part(spot.range, at, bytes, spot.at + size, source->page_bytes);
        if (!cdp__mem_prepare(m)) {
            *no_host = true;
            return cdp__fail_nomem("the records of cdp_mem_alloc", CDP__MEM_SLAB * sizeof *p);
        }
        st = source->map(source->user, (void *)(uintptr_t)at, bytes);
        if (st != CDP_OK) return st;
        p = cdp__mem_range_add(m, c, a, large, spot.range, spot.below, at, bytes);
        spot.below = p->span;
    } while (p->at + p->size < spot.at + size);
    cdp__mem_bins_take(cdp__mem_bins_of(p), p);
    *out = p;
    return CDP_OK;
}

/* The whole pages of a free block, from *at on. Returns their bytes. */
CDP__PRIVATE uint64_t cdp__mem_idle_pages(const cdp__mem_part *p, uint64_t *at) {
    const uint64_t start = p->span->range->at, page = p->span->arena->pool->source.page_bytes;
    const uint64_t from = cdp__mem_up_to(p->at - start, page);
    const uint64_t to = (p->at + p->size - start) / page * page;
    *at = start + from;
    return p->state == CDP_MEM_INACTIVE && to > from ? to - from : 0;
}

/* Unmaps pages of a free block. If the source fails, nothing changes. */
CDP__PRIVATE cdp_status cdp__mem_unmap(
    cdp_mem *m, const cdp__mem_call *c, cdp__mem_part *p, uint64_t at, uint64_t bytes) {
    cdp__mem_arena *const a = p->span->arena;
    const cdp_mem_source *const source = &a->pool->source;
    cdp_status st;
    if (!cdp__mem_prepare(m))
        return cdp__fail_nomem("the records of unmapped pages", CDP__MEM_SLAB * sizeof *p);
    cdp__mem_call_watchers(m, CDP_MEM_SEGMENT_UNMAP, at, bytes, a->pool);
    st = source->unmap(source->user, (void *)(uintptr_t)at, bytes, a->forgotten ? NULL : a->stream);
    if (st != CDP_OK) {
        cdp__mem_call_watchers(m, CDP_MEM_SEGMENT_MAP, at, bytes, a->pool);
        return st;
    }
    ++m->stats.device_frees;
    cdp__mem_event_pages(m, c, CDP_MEM_SEGMENT_UNMAP, at, bytes, a, p->span->stack);
    cdp__mem_pages_shrink(m, cdp__mem_pages_of(m, p, at, bytes));
    return CDP_OK;
}

/* Returns what is idle of a segment to the source: all of it, or of one that grows its idle
   pages. Adds to *bytes. From the end, so that what is divided off has been looked at. */
CDP__PRIVATE cdp_status cdp__mem_give_back(
    cdp_mem *m, const cdp__mem_call *c, cdp__mem_span *s, uint64_t *bytes) {
    cdp__mem_part *p, *prev;
    uint64_t at, n = s->size;
    cdp_status st = CDP_OK;
    if (!s->range) {
        if (s->busy) return CDP_OK;
        st = cdp__mem_release(m, c, s);
        if (st == CDP_OK) *bytes += n;
        return st;
    }
    for (p = s->last; p && st == CDP_OK; p = prev) {
        prev = p->prev;
        n = cdp__mem_idle_pages(p, &at);
        if (!n) continue;
        st = cdp__mem_unmap(m, c, p, at, n);
        if (st == CDP_OK) *bytes += n;
    }
    return st;
}

/* Frees the records of an arena, and its ranges unless something is still mapped in them. */
CDP__PRIVATE void cdp__mem_arena_close(const cdp_os *os, cdp__mem_arena *a) {
    const cdp_mem_source *const s = &a->pool->source;
    uint32_t i;
    for (i = 0; i < 2; ++i) {
        cdp__mem_range *r, *next;
        for (r = a->ranges[i]; r; r = next) {
            next = r->next;
            if (!r->first) s->range_release(s->user, (void *)(uintptr_t)r->at, r->size);
            cdp__free(os, r);
        }
        cdp__free(os, a->bins[i]);
    }
    cdp__free(os, a);
}

/* How far from the start of its segment, or of its range, a block lies: equal calls give equal
   offsets. */
CDP__MEM_HOT uint64_t cdp__mem_offset(const cdp__mem_part *p) {
    return p->at - (p->span->range ? p->span->range->at : p->span->at);
}

/* ---- >>mem/request: one allocation, step by step --------------------------------------------- */

/* Knows: the order in which memory is searched. Promises: a step that fails changes nothing, except
   that it may have returned memory to the source, or mapped pages that stay free. */

typedef struct cdp__mem_request { /* one request */
    cdp_mem_pool *pool;
    cdp__mem_arena *arena;
    void *stream;
    uint64_t bytes, size;
    bool large, capturing, no_host; /* no_host: no host memory for records */
} cdp__mem_request;

/* The best free block, from list *list on, that does not end its segment, else `end`, which does:
   the end is worth more than its size, because pages behind it make it larger. */
CDP__ONE_COPY CDP__PRIVATE cdp__mem_part *cdp__mem_bins_inner(
    const cdp__mem_bins *b, uint64_t size, cdp__mem_part *end, uint32_t *list) {
    uint32_t i;
    for (i = *list; i != CDP__MEM_BINS; i = cdp__mem_bins_next(b, i + 1)) {
        cdp__mem_part *p, *best = NULL;
        for (p = b->head[i]; p; p = p->bin_next)
            if (p->next && p->size >= size && (!best || p->size < best->size)) best = p;
        if (!best) continue;
        *list = i;
        return best;
    }
    return end;
}

/* Takes the best free block among the first `most` of each list out of its list; NULL: none has
   room and suits. */
CDP__MEM_HOT cdp__mem_part *cdp__mem_fit_among(
    const cdp_mem *m, const cdp__mem_arena *arena, const cdp__mem_request *a, uint64_t most) {
    cdp__mem_bins *const b = arena->bins[a->large];
    cdp__mem_part *p;
    uint32_t list;
    if (!b) return NULL;
    p = cdp__mem_bins_best(b, a->size, most, &list);
    if (!p) return NULL;
    if (p->span->range && !p->next) p = cdp__mem_bins_inner(b, a->size, p, &list);
    if (!arena->pool->fixed_bytes && !cdp__mem_suits(&m->sizes, a->size, p->size)) return NULL;
    cdp__mem_bins_take_from(b, list, p);
    return p;
}

/* One copy: beside the quick search in each caller it made every request slower. */
CDP__ONE_COPY CDP__PRIVATE cdp__mem_part *cdp__mem_fit_exact(
    const cdp_mem *m, const cdp__mem_arena *arena, const cdp__mem_request *a) {
    return cdp__mem_fit_among(m, arena, a, UINT64_MAX);
}

/* Takes the best free block out of its list; NULL: there is none. A quick search that finds none
   is followed by an exact one, which costs less than a segment. */
CDP__MEM_HOT cdp__mem_part *cdp__mem_fit(
    const cdp_mem *m, const cdp__mem_arena *arena, const cdp__mem_request *a) {
    cdp__mem_part *const p = cdp__mem_fit_among(m, arena, a, CDP__MEM_QUICK_SEARCH);
    return p ? p : cdp__mem_fit_exact(m, arena, a);
}

/* Adds a segment to the pool, or pages to one, for a block in no list. NOMEM: the source has none,
   or the limit forbids it. */
CDP__PRIVATE cdp_status cdp__mem_segment_new(
    cdp_mem *m, const cdp__mem_call *c, cdp__mem_request *a, cdp__mem_part **out) {
    const cdp_mem_source *const s = &a->pool->source;
    const uint64_t bytes = m->desc.no_cache ? a->size : cdp__mem_segment_size(&m->sizes, a->size);
    void *at = NULL;
    cdp_status st;
    if (cdp__mem_expands(m, a->pool))
        return cdp__mem_expand(m, c, a->arena, a->large, a->size, &a->no_host, out);
    if (m->limit && (bytes > m->limit || m->held > m->limit - bytes)) {
        ++m->stats.oom_rejections;
        return CDP_ERR_NOMEM;
    }
    if (!cdp__mem_prepare(m)) {
        a->no_host = true;
        return cdp__fail_nomem("the records of cdp_mem_alloc", CDP__MEM_SLAB * sizeof **out);
    }
    st = s->reserve(s->user, bytes, &at);
    if (st != CDP_OK) return st;
    if ((uintptr_t)at % CDP__MEM_UNIT || !at) {
        if (at) (void)s->release(s->user, at, bytes);
        return cdp__fail(CDP_ERR_IO, "%s gave a segment at 0x%llx, which is not aligned to 512",
            s->name, (unsigned long long)(uintptr_t)at);
    }
    ++m->stats.device_allocs;
    *out = cdp__mem_span_add(
        m, CDP_MEM_SEGMENT_ALLOC, a->arena, (uint64_t)(uintptr_t)at, bytes, a->large);
    (*out)->span->stack = c->stack;
    cdp__mem_label_set(&m->log.labels, &(*out)->span->label, a->pool->label);
    cdp__mem_event_span(m, c, CDP_MEM_SEGMENT_ALLOC, (*out)->span);
    return CDP_OK;
}

/* True if what is free of a segment may be returned while its pool lives. */
CDP__PRIVATE bool cdp__mem_returns(const cdp__mem_span *s) {
    const cdp_mem_pool *const pool = s->arena->pool;
    return !s->reported && !pool->fixed_bytes && !pool->keep && !pool->captured;
}

/* True if a segment that does not grow is completely free and may be returned. */
CDP__PRIVATE bool cdp__mem_idle(const cdp__mem_span *s) {
    return !s->busy && !s->range && cdp__mem_returns(s);
}

/* Returns the idle segments and pages of the ordinary pool and of `pool`, or, if it is NULL, of
   all pools. Returns the number of bytes; stops if the source fails, with its status in *st. */
CDP__PRIVATE uint64_t cdp__mem_release_idle(
    cdp_mem *m, const cdp__mem_call *c, const cdp_mem_pool *pool, cdp_status *st) {
    cdp__mem_span *s, *next;
    uint64_t bytes = 0;
    *st = CDP_OK;
    for (s = m->spans; s && *st == CDP_OK; s = next) {
        const cdp_mem_pool *const of = s->arena->pool;
        next = s->next;
        if (!cdp__mem_returns(s) || (pool && of != pool && of != &m->base)) continue;
        *st = cdp__mem_give_back(m, c, s, &bytes);
    }
    return bytes;
}

/* The mean age of idle large segments, in requests; 0: there are none. */
CDP__PRIVATE uint64_t cdp__mem_mean_age(const cdp_mem *m) {
    const cdp__mem_span *s;
    uint64_t sum = 0, n = 0;
    for (s = m->spans; s; s = s->next) {
        if (!s->large || !cdp__mem_idle(s)) continue;
        sum += m->requests - s->first->freed_at;
        ++n;
    }
    return n ? sum / n : 0;
}

/* Garbage collection: above the threshold, returns idle large segments to the source, oldest
   first: in each round, all that are at least of mean age. A round is not cut short, or a younger
   segment might go and an older one stay. Does not wait. */
CDP__PRIVATE void cdp__mem_collect(cdp_mem *m, const cdp__mem_call *c) {
    const uint64_t keep = (uint64_t)(m->desc.gc_threshold * (double)m->limit);
    bool found = true;
    while (m->held > keep && found) {
        const uint64_t age = cdp__mem_mean_age(m);
        cdp__mem_span *s, *next;
        found = false;
        for (s = m->spans; s; s = next) {
            next = s->next;
            if (!s->large || !cdp__mem_idle(s)) continue;
            if (m->requests - s->first->freed_at < age) continue;
            if (cdp__mem_release(m, c, s) != CDP_OK) return;
            found = true;
        }
    }
}

/* Of the idle oversize segments of this stream, the smallest with room for `size`, else the
   largest. */
CDP__PRIVATE cdp__mem_span *cdp__mem_oversize(
    const cdp_mem *m, const cdp__mem_request *a, uint64_t size) {
    cdp__mem_span *s, *best = NULL;
    for (s = m->spans; s; s = s->next) {
        bool better;
        if (!cdp__mem_idle(s) || s->arena != a->arena || s->size < m->sizes.max_split) continue;
        if (!best)
            better = true;
        else if (best->size >= size)
            better = s->size >= size && s->size < best->size;
        else
            better = s->size > best->size;
        if (better) best = s;
    }
    return best;
}

/* Returns oversize segments to the source until there is room for the request. */
CDP__PRIVATE bool cdp__mem_release_oversize(
    cdp_mem *m, const cdp__mem_call *c, const cdp__mem_request *a) {
    const uint64_t size = cdp__max(a->size, m->sizes.max_split);
    uint64_t back = 0;
    while (back < size) {
        cdp__mem_span *const s = cdp__mem_oversize(m, a, size);
        const uint64_t bytes = s ? s->size : 0;
        if (!s || cdp__mem_release(m, c, s) != CDP_OK) break;
        back += bytes;
    }
    return back >= size;
}

/* Waits for all events, returns all free memory, and asks the source again. */
CDP__PRIVATE cdp_status cdp__mem_retry(
    cdp_mem *m, cdp__mem_call *c, cdp__mem_request *a, cdp__mem_part **out) {
    cdp_status st = cdp__mem_drain(m, c);
    ++m->stats.sync_all_streams;
    if (st != CDP_OK) return st;
    *out = cdp__mem_fit_exact(m, a->arena, a);
    if (*out) return CDP_OK;
    (void)cdp__mem_release_idle(m, c, a->pool, &st);
    if (st != CDP_OK) return st;
    ++m->stats.alloc_retries;
    return cdp__mem_segment_new(m, c, a, out);
}

/* Takes a block of private pools that allow it. */
CDP__PRIVATE cdp__mem_part *cdp__mem_from_pools(cdp_mem *m, const cdp__mem_request *a) {
    const cdp_mem_pool *pool;
    for (pool = m->base.next; pool; pool = pool->next) {
        const cdp__mem_arena *arena;
        if (!pool->use_on_oom || pool->fixed_bytes) continue;
        for (arena = pool->arenas; arena; arena = arena->next) {
            cdp__mem_part *const p =
                arena->stream == a->stream ? cdp__mem_fit_exact(m, arena, a) : NULL;
            if (p) return p;
        }
    }
    return NULL;
}

/* Finds a block for a request; tries these steps in order. The block is in no list. */
CDP__MEM_HOT cdp_status cdp__mem_find(
    cdp_mem *m, cdp__mem_call *c, cdp__mem_request *a, cdp__mem_part **out) {
    cdp_status st;
    if ((m->waiting || m->delayed) && !a->capturing) {
        st = cdp__mem_poll(m, c);
        if (st != CDP_OK) return st;
    }
    *out = cdp__mem_fit(m, a->arena, a);
    if (*out) return CDP_OK;
    if (a->pool->fixed_bytes) return CDP_ERR_NOMEM;
    if (m->desc.gc_threshold > 0 && m->limit && !a->capturing) cdp__mem_collect(m, c);
    st = cdp__mem_segment_new(m, c, a, out);
    if (st != CDP_ERR_NOMEM || a->capturing || a->no_host) return st;
    if (m->desc.max_split_bytes && cdp__mem_release_oversize(m, c, a)) {
        st = cdp__mem_segment_new(m, c, a, out);
        if (st != CDP_ERR_NOMEM || a->no_host) return st;
    }
    st = cdp__mem_retry(m, c, a, out);
    if (st != CDP_ERR_NOMEM || a->no_host) return st;
    *out = cdp__mem_from_pools(m, a);
    if (*out) return CDP_OK;
    if (!cdp__mem_release_idle(m, c, NULL, &st)) return st == CDP_OK ? CDP_ERR_NOMEM : st;
    return cdp__mem_segment_new(m, c, a, out);
}

/* Fill in a request: the arena, the rounded size. */
CDP__MEM_HOT cdp_status cdp__mem_request_begin(
    cdp_mem *m, cdp__mem_request *a, cdp_mem_pool *pool, uint64_t bytes, void *stream) {
    const bool fixed = pool && pool->fixed_bytes;
    a->pool = pool ? pool : &m->base;
    a->stream = fixed ? NULL : stream;
    a->bytes = bytes;
    a->size =
        m->desc.no_cache ? cdp__mem_up_to(bytes, CDP__MEM_UNIT) : cdp__mem_round(&m->sizes, bytes);
    a->large = fixed || cdp__mem_is_large(a->size);
    a->no_host = false;
    a->capturing = cdp__mem_capturing(&a->pool->source, stream);
    if (a->capturing && !pool)
        return cdp__fail(CDP_ERR_STATE,
            "cdp_mem_alloc: stream 0x%llx is being captured; a graph needs its own pool: "
            "cdp_mem_pool_create and cdp_mem_alloc_at",
            (unsigned long long)(uintptr_t)stream);
    if (a->capturing) a->pool->captured = true;
    a->arena = cdp__mem_arena_of(m, a->pool, a->stream);
    if (a->arena && cdp__mem_arena_ready(m, a->arena, a->large) && cdp__mem_prepare(m))
        return CDP_OK;
    a->no_host = true;
    return cdp__fail_nomem("the records of cdp_mem_alloc", cdp__mem_bins_bytes(false));
}

/* Serves a request: finds a block, counts and records it. The caller holds the lock. */
CDP__MEM_HOT cdp_status cdp__mem_serve(
    cdp_mem *m, cdp__mem_call *c, cdp__mem_request *a, void **out) {
    cdp__mem_part *p = NULL;
    const cdp_status st = cdp__mem_find(m, c, a, &p);
    bool splits;
    if (st != CDP_OK) return st;
    splits = cdp__mem_splits(
                 &m->sizes, a->large && !a->pool->fixed_bytes && !p->span->range, a->size, p->size)
        && !p->span->arena->pool->no_split && !m->desc.no_cache;
    cdp__mem_part_cut(m, p, splits, a->size);
    ++m->requests;
    p->stack = c->stack;
    cdp__mem_part_begin(m, p, a->bytes);
    if (c->wants) cdp__mem_part_given(m, c, p);
    cdp__mem_event_alloc(m, c, p);
    if (a->pool != &m->base) {
        a->pool->hash = cdp__mem_mix(a->pool->hash, a->size);
        a->pool->hash = cdp__mem_mix(a->pool->hash, cdp__mem_offset(p));
    }
    *out = (void *)(uintptr_t)p->at;
    return CDP_OK;
}

/* ---- >>mem/out_of_memory: the error of a request --------------------------------------------- */

/* Knows: how to explain a failed request. Promises: the text needs no memory; only the name of the
   largest holder does. */

CDP__PRIVATE const char *cdp__mem_size_text(char text[32], uint64_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    uint32_t unit = 0;
    uint64_t rest = 0;
    for (; bytes >= 1024; bytes /= 1024, ++unit)
        rest = bytes % 1024;
    if (unit)
        cdp__format(
            text, 32, "%u.%u %s", (unsigned)bytes, (unsigned)(rest * 10 / 1024), units[unit]);
    else
        cdp__format(text, 32, "%u B", (unsigned)bytes);
    return text;
}

typedef struct cdp__mem_holder {   /* a label, or a stack */
    uint64_t bytes, blocks, first; /* first: the address of the first one */
    uint32_t label, stack;
} cdp__mem_holder;

typedef struct cdp__mem_figures {
    uint64_t device_free, device_total, largest_free, pending;
    cdp__mem_holder most;
} cdp__mem_figures;

/* Sums up live blocks by label or, without one, by stack; those without either are the first one.
   Empty sums are among the *count. NULL: no host memory. */
CDP__PRIVATE cdp__mem_holder *cdp__mem_live_holders(const cdp_mem *m, uint64_t *count) {
    const uint64_t labels = m->log.labels.used;
    cdp__mem_holder *sums;
    const cdp__mem_span *s;
    *count = labels + 1 + m->log.depot.rows_used;
    sums = (cdp__mem_holder *)cdp__alloc_zero(m->os, *count * sizeof(cdp__mem_holder));
    for (s = sums ? m->spans : NULL; s; s = s->next) {
        const cdp__mem_part *p;
        for (p = s->first; p; p = p->next) {
            uint64_t of = 0;
            if (p->state != CDP_MEM_ACTIVE) continue;
            if (p->label)
                of = p->label;
            else if (p->stack)
                of = labels + p->stack;
            if (!sums[of].blocks) sums[of].first = p->at;
            sums[of].bytes += p->size;
            ++sums[of].blocks;
            sums[of].label = p->label;
            sums[of].stack = p->stack;
        }
    }
    return sums;
}

/* The largest holder that has a name. Without host memory, it stays unknown. */
CDP__PRIVATE void cdp__mem_find_holder(const cdp_mem *m, cdp__mem_holder *most) {
    uint64_t i, count;
    cdp__mem_holder *const sums = cdp__mem_live_holders(m, &count);
    memset(most, 0, sizeof *most);
    for (i = 1; sums && i < count; ++i)
        if (sums[i].bytes > most->bytes) *most = sums[i];
    cdp__free(m->os, sums);
}

CDP__PRIVATE void cdp__mem_figure(
    const cdp_mem *m, const cdp__mem_request *a, cdp__mem_figures *f) {
    const cdp_mem_source *const s = &a->pool->source;
    const cdp__mem_span *span;
    memset(f, 0, sizeof *f);
    if (s->info && s->info(s->user, &f->device_free, &f->device_total) != CDP_OK)
        f->device_free = f->device_total = 0;
    for (span = m->spans; span; span = span->next) {
        const cdp__mem_part *p;
        for (p = span->first; p; p = p->next) {
            if (p->state == CDP_MEM_PENDING) f->pending += p->size;
            if (p->state == CDP_MEM_INACTIVE) f->largest_free = cdp__max(f->largest_free, p->size);
        }
    }
    cdp__mem_find_holder(m, &f->most);
}

typedef struct cdp__mem_module_lookup { /* an address, and the module that it is in */
    uint64_t address, base;
    uint64_t low, high; /* the beginning of its file, as far as it can be read */
    char path[512];
    bool found;
} cdp__mem_module_lookup;

CDP__PRIVATE bool cdp__mem_module_lookup_line(void *user, const cdp__mem_map_line *line) {
    cdp__mem_module_lookup *const spot = (cdp__mem_module_lookup *)user;
    if (strcmp(spot->path, line->path) != 0) { /* the first line of a module */
        cdp__mem_text_copy(spot->path, line->path, sizeof spot->path);
        spot->base = line->low - line->offset;
        spot->low = line->low;
        spot->high = line->readable && !line->offset ? line->high : line->low;
    }
    spot->found = spot->address >= line->low && spot->address < line->high;
    return !spot->found;
}

/* Adds "module+0x4f1a": an address alone means nothing in the next run of the program. */
CDP__PRIVATE void cdp__mem_module_offset_text(
    cdp__text *t, cdp__mem_module_lookup *spot, uint64_t address) {
    const char *slash;
    memset(spot, 0, sizeof *spot);
    spot->address = address;
    cdp__mem_maps(cdp__mem_module_lookup_line, spot);
    slash = strrchr(spot->path, '/');
    spot->found = spot->found && slash && strlen(slash) < 60;
    if (spot->found)
        cdp__text_add(t, "%s+0x%llx", slash + 1, (unsigned long long)(address - spot->base));
    else
        cdp__text_add(t, "0x%llx", (unsigned long long)address);
}

#define CDP__MEM_NAME 240u      /* bytes of the name of a holder */
#define CDP__MEM_NAME_FRAMES 3u /* a wrapper alone would say nothing */

/* Adds the innermost frames of a stack, and the build id of the module of the first one. */
CDP__PRIVATE void cdp__mem_stack_text(const cdp_mem *m, uint32_t stack, cdp__text *t) {
    const cdp__mem_row *const row = &m->log.depot.rows[stack - 1];
    const uint64_t *const words = m->log.depot.words + row->first;
    char id[CDP__MEM_BUILD_ID] = "";
    cdp__mem_module_lookup spot;
    uint32_t i;
    for (i = 0; i < row->count && i < CDP__MEM_NAME_FRAMES; ++i) {
        if (i) cdp__text_add(t, " < ");
        if ((words[i] & CDP__MEM_TAG) == CDP__MEM_TAG_FULL)
            cdp__text_add(t, "code without a stack (see max_stacks)");
        else if ((words[i] & CDP__MEM_TAG) == CDP__MEM_TAG_SITE) {
            const char *at = m->log.sites.text[(words[i] & 0xffff) - 1];
            for (; *at; ++at)
                cdp__text_char(t, *at == '\n' ? ':' : *at);
        } else {
            if (!i) cdp__text_add(t, "code at ");
            cdp__mem_module_offset_text(t, &spot, words[i]);
            if (!i && spot.found)
                (void)cdp__mem_build_id(
                    (const uint8_t *)(uintptr_t)spot.low, spot.high - spot.low, id);
        }
    }
    if (id[0]) cdp__text_add(t, " (build id %s)", id);
}

/* The name of a holder: its label in quotes, the site, or the innermost frames. */
CDP__PRIVATE void cdp__mem_holder_text(
    const cdp_mem *m, const cdp__mem_holder *h, char text[CDP__MEM_NAME]) {
    cdp__text t = cdp__text_of(text, CDP__MEM_NAME);
    if (h->label)
        cdp__text_add(&t, "\"%s\"", m->log.labels.at[h->label - 1].text);
    else
        cdp__mem_stack_text(m, h->stack, &t);
    (void)cdp__text_end(&t);
}

CDP__PRIVATE void cdp__mem_oom_holder(const cdp_mem *m, const cdp__mem_holder *h, cdp__text *t) {
    char name[CDP__MEM_NAME], size[32];
    if (!h->bytes) {
        cdp__text_add(t, "; set desc.record to know who holds it");
        return;
    }
    cdp__mem_holder_text(m, h, name);
    cdp__text_add(t, "; most is held by %s: %s in %llu blocks", name,
        cdp__mem_size_text(size, h->bytes), (unsigned long long)h->blocks);
}

/* The error of a failed request, with its numbers. */
CDP__PRIVATE cdp_status cdp__mem_oom_error(
    const cdp_mem *m, const cdp__mem_request *a, const cdp__mem_figures *f) {
    const cdp__mem_tallies *const s = &m->tally;
    const uint64_t cached =
        m->held - cdp__mem_now(&s->active_bytes) - cdp__mem_now(&s->allocated_bytes);
    char text[480], x[32], y[32];
    cdp__text t = cdp__text_of(text, sizeof text);
    text[0] = 0;
    cdp__text_add(&t, "cdp_mem_alloc: no %s for stream 0x%llx on %s",
        cdp__mem_size_text(x, a->bytes), (unsigned long long)(uintptr_t)a->stream,
        a->pool->source.name);
    if (f->device_total)
        cdp__text_add(&t, ": the device has %s free of %s", cdp__mem_size_text(x, f->device_free),
            cdp__mem_size_text(y, f->device_total));
    if (a->pool->fixed_bytes)
        cdp__text_add(&t, "; the pool is fixed at %s", cdp__mem_size_text(x, a->pool->fixed_bytes));
    cdp__text_add(&t, "; held here %s", cdp__mem_size_text(x, m->held));
    if (m->limit) cdp__text_add(&t, " (limit %s)", cdp__mem_size_text(x, m->limit));
    cdp__text_add(&t, ": %s allocated", cdp__mem_size_text(x, cdp__mem_now(&s->allocated_bytes)));
    if (f->pending) cdp__text_add(&t, ", %s wait for streams", cdp__mem_size_text(x, f->pending));
    cdp__text_add(&t, ", %s cached in pieces of at most %s", cdp__mem_size_text(x, cached),
        cdp__mem_size_text(y, f->largest_free));
    cdp__text_add(&t, ", %s of it fragmented between blocks in use",
        cdp__mem_size_text(x, cdp__mem_now(&s->inactive_split_bytes)));
    cdp__mem_oom_holder(m, &f->most, &t);
    return cdp__fail(CDP_ERR_NOMEM, "%s", text);
}

/* Counts, records and logs the failure. The caller holds the lock. */
CDP__PRIVATE cdp_status cdp__mem_oom_report(
    cdp_mem *m, const cdp__mem_call *c, const cdp__mem_request *a, cdp_mem_oom *out) {
    cdp__mem_figures f;
    cdp__mem_record *e;
    cdp__mem_figure(m, a, &f);
    ++m->stats.ooms;
    out->device = m->desc.device;
    out->bytes = a->bytes;
    out->held_bytes = m->held;
    out->limit_bytes = m->limit;
    out->free_bytes = f.device_free;
    e = cdp__mem_event_add(m, c, CDP_MEM_OOM, 0, a->bytes);
    cdp__mem_event_place(e, a->arena);
    if (e) e->extra = f.device_free;
    return cdp__mem_oom_error(m, a, &f);
}

/* ---- >>text/tree: the content of a file, as a tree ------------------------------------------- */

/* Knows: numbers, texts, lists and dicts of a file. Texts point into the file itself. Promises:
   memory is a chain of chunks, freed as a whole, and at most about 100 bytes for each byte of
   the file. */
#ifndef CDP_SRC_TEXT_TREE_H
#define CDP_SRC_TEXT_TREE_H

/* ---- memory */

#define CDP__CHUNK 16384u

typedef struct cdp__chunk {
    struct cdp__chunk *next;
    uint64_t room, used;
} cdp__chunk;

typedef struct cdp__chunks {
    const cdp_os *os;
    cdp__chunk *first;
} cdp__chunks;

/* Allocates `bytes` bytes, aligned to 8, which live as long as the chunks. */
CDP__PRIVATE void *cdp__chunks_room(cdp__chunks *t, uint64_t bytes) {
    cdp__chunk *c = t->first;
    const uint64_t need = (bytes + 7) / 8 * 8;
    if (!c || c->room - c->used < need) {
        const uint64_t room = cdp__max(need, CDP__CHUNK);
        c = (cdp__chunk *)cdp__alloc(t->os, sizeof *c + room);
        if (!c) return NULL;
        c->room = room;
        c->used = 0;
        c->next = t->first;
        t->first = c;
    }
    c->used += need;
    return (char *)(c + 1) + c->used - need;
}

CDP__PRIVATE void cdp__chunks_close(cdp__chunks *t) {
    cdp__chunk *c, *next;
    for (c = t->first; c; c = next) {
        next = c->next;
        cdp__free(t->os, c);
    }
    t->first = NULL;
}

/* Makes room for `need` items of `each` bytes in `at`, which may move. */
CDP__PRIVATE bool cdp__more_room(
    const cdp_os *os, void **at, uint64_t *room, uint64_t need, uint64_t each) {
    uint64_t more = *room ? *room : 64;
    void *bigger;
    if (need <= *room) return true;
    while (more < need)
        more *= 2;
    bigger = cdp__alloc(os, more * each);
    if (!bigger) return false;
    if (*room) memcpy(bigger, *at, (size_t)(*room * each));
    cdp__free(os, *at);
    *at = bigger;
    *room = more;
    return true;
}

/* ---- values */

typedef enum cdp__tree_kind {
    CDP__TREE_NONE,
    CDP__TREE_BOOL,
    CDP__TREE_INT,
    CDP__TREE_REAL,
    CDP__TREE_TEXT,
    CDP__TREE_LIST,
    CDP__TREE_DICT,
    CDP__TREE_GLOBAL, /* of a pickle: two texts, a module and a name in it */
    CDP__TREE_RECORD, /* a global, its arguments, and its state, if it has one */
    CDP__TREE_OUTSIDE /* a value that says what lies elsewhere */
} cdp__tree_kind;

typedef struct cdp__tree cdp__tree;

typedef struct cdp__tree_box { /* a list, or a dict: key, value, key, value */
    cdp__tree *items;
    uint64_t count, room;
    uint32_t mark; /* of who uses the tree; 0 at first */
} cdp__tree_box;

struct cdp__tree {
    cdp__tree_kind kind;
    uint32_t length; /* of a text */
    union {
        int64_t whole;
        double real;
        const char *text;
        cdp__tree_box *box;
    } as;
};

#define CDP__TREE_LOOKS 256u /* keys of a dict that are compared */

typedef struct cdp__tree_reader {
    const uint8_t *data;
    uint64_t bytes, at;
    cdp__chunks memory;
    cdp__tree *stack, *memo;
    uint64_t *marks;
    uint64_t depth, stack_room, memo_count, memo_room, mark_count, mark_room;
    const char *why; /* why the file cannot be read */
    bool no_memory, unknown;
    bool records; /* a pickle may have globals, records, and values that say what lies elsewhere */
} cdp__tree_reader;

CDP__PRIVATE bool cdp__tree_bad(cdp__tree_reader *r, const char *why) {
    if (!r->why) r->why = why;
    return false;
}

CDP__PRIVATE bool cdp__tree_nomem(cdp__tree_reader *r) {
    r->no_memory = true;
    return cdp__tree_bad(r, "out of memory");
}

CDP__PRIVATE cdp__tree_box *cdp__tree_box_new(cdp__tree_reader *r) {
    cdp__tree_box *const b = (cdp__tree_box *)cdp__chunks_room(&r->memory, sizeof *b);
    if (b)
        memset(b, 0, sizeof *b);
    else
        cdp__tree_nomem(r);
    return b;
}

/* Append `count` values. */
CDP__PRIVATE bool cdp__tree_box_add(
    cdp__tree_reader *r, cdp__tree_box *b, const cdp__tree *v, uint64_t count) {
    if (b->count + count > b->room) {
        const uint64_t room = cdp__max(b->count + count, b->count * 2);
        cdp__tree *const more = (cdp__tree *)cdp__chunks_room(&r->memory, room * sizeof *v);
        if (!more) return cdp__tree_nomem(r);
        if (b->count) memcpy(more, b->items, (size_t)(b->count * sizeof *v));
        b->items = more;
        b->room = room;
    }
    if (count) memcpy(b->items + b->count, v, (size_t)(count * sizeof *v));
    b->count += count;
    return true;
}

CDP__PRIVATE bool cdp__tree_is(const cdp__tree *v, const char *text) {
    return v->kind == CDP__TREE_TEXT && v->length == strlen(text)
        && memcmp(v->as.text, text, v->length) == 0;
}

/* The value of a key in a dict; NULL: there is none. */
CDP__PRIVATE const cdp__tree *cdp__tree_get(const cdp__tree *v, const char *key) {
    uint64_t i, n;
    if (!v || v->kind != CDP__TREE_DICT) return NULL;
    n = cdp__min(v->as.box->count, 2 * CDP__TREE_LOOKS);
    for (i = 0; i + 1 < n; i += 2)
        if (cdp__tree_is(&v->as.box->items[i], key)) return &v->as.box->items[i + 1];
    return NULL;
}

CDP__PRIVATE const cdp__tree_box *cdp__tree_list(const cdp__tree *v) {
    return v && v->kind == CDP__TREE_LIST ? v->as.box : NULL;
}

CDP__PRIVATE void cdp__tree_close(cdp__tree_reader *r) {
    cdp__free(r->memory.os, r->stack);
    cdp__free(r->memory.os, r->memo);
    cdp__free(r->memory.os, r->marks);
    cdp__chunks_close(&r->memory);
}

#endif /* CDP_SRC_TEXT_TREE_H */

/* ---- >>mem/texts: strings of a shot, each once ----------------------------------------------- */

/* Knows: strings, numbered from 0 on. Promises: equal strings have one address, which never
   changes. */

typedef struct cdp__mem_texts {
    cdp__chunks memory;
    const char **slots; /* open addressing */
    uint64_t mask;
    uint32_t count;
} cdp__mem_texts;

/* The number of a text that is in `texts`. */
CDP__PRIVATE uint32_t cdp__mem_text_number(const char *text) {
    uint32_t n;
    memcpy(&n, text - sizeof n, sizeof n);
    return n;
}

CDP__PRIVATE uint64_t cdp__mem_bytes_hash(const char *text, uint64_t bytes) {
    uint64_t h = bytes, word;
    for (; bytes >= 8; bytes -= 8, text += 8) {
        memcpy(&word, text, 8);
        h = cdp__mem_mix(h, word);
    }
    word = 0;
    memcpy(&word, text, (size_t)bytes);
    return cdp__mem_mix(h, word);
}

CDP__PRIVATE bool cdp__mem_texts_grow(cdp__mem_texts *t) {
    const uint64_t count = t->slots ? 2 * (t->mask + 1) : 256;
    const char **const slots = (const char **)cdp__alloc_zero(t->memory.os, count * sizeof *slots);
    uint64_t i;
    if (!slots) return false;
    for (i = 0; t->slots && i <= t->mask; ++i) {
        const char *const text = t->slots[i];
        uint64_t at;
        if (!text) continue;
        at = cdp__mem_bytes_hash(text, strlen(text)) & (count - 1);
        while (slots[at])
            at = (at + 1) & (count - 1);
        slots[at] = text;
    }
    cdp__free(t->memory.os, (void *)t->slots);
    t->slots = slots;
    t->mask = count - 1;
    return true;
}

/* The stored copy of a text, which ends at a zero byte; NULL: out of memory. */
CDP__PRIVATE const char *cdp__mem_text_of(cdp__mem_texts *t, const char *text, uint64_t bytes) {
    const char *const zero = bytes ? (const char *)memchr(text, 0, (size_t)bytes) : NULL;
    uint64_t i;
    char *copy;
    if (zero) bytes = (uint64_t)(zero - text);
    if ((!t->slots || t->count * 2ull >= t->mask) && !cdp__mem_texts_grow(t)) return NULL;
    for (i = cdp__mem_bytes_hash(text, bytes) & t->mask; t->slots[i]; i = (i + 1) & t->mask) {
        const char *const s = t->slots[i];
        if (strncmp(s, text, (size_t)bytes) == 0 && !s[bytes]) return s;
    }
    copy = (char *)cdp__chunks_room(&t->memory, bytes + 5);
    if (!copy) return NULL;
    memcpy(copy, &t->count, sizeof t->count);
    copy += sizeof t->count;
    memcpy(copy, text, (size_t)bytes);
    copy[bytes] = 0;
    t->slots[i] = copy;
    ++t->count;
    return copy;
}

CDP__PRIVATE void cdp__mem_texts_close(cdp__mem_texts *t) {
    cdp__free(t->memory.os, (void *)t->slots);
    cdp__chunks_close(&t->memory);
}

/* ---- >>text/json_real: real numbers as decimal text (pure) ----------------------------------- */

/* Knows: binary and decimal fractions. Promises: the shortest text that reads back as the same
   number, in every locale. */
#ifndef CDP_SRC_TEXT_JSON_REAL_H
#define CDP_SRC_TEXT_JSON_REAL_H

#include <stdlib.h>

/* `v` > 0 as x * 10^*exponent with x from 1 up to 10, about. */
CDP__PRIVATE double cdp__real_scale(double v, int32_t *exponent) {
    static const double powers[9] = {1e1, 1e2, 1e4, 1e8, 1e16, 1e32, 1e64, 1e128, 1e256};
    int32_t i;
    *exponent = 0;
    for (i = 8; i >= 0; --i)
        if (v >= powers[i]) {
            v /= powers[i];
            *exponent += 1 << i;
        }
    if (*exponent) return v;
    for (i = 8; i >= 0; --i)
        if (v * powers[i] < 10) {
            v *= powers[i];
            *exponent -= 1 << i;
        }
    return v;
}

/* Whether the digits, times 10^exponent, are read as `v`. */
CDP__PRIVATE bool cdp__real_is(double v, uint64_t digits, int32_t exponent) {
    char text[40];
    double back;
    (void)cdp__format(text, sizeof text, "%llue%d", (unsigned long long)digits, (int)exponent);
    back = strtod(text, NULL);
    return back <= v && back >= v;
}

/* The fewest digits of `v` > 0 that are read as `v`; it is digits * 10^*exponent. */
CDP__PRIVATE uint64_t cdp__real_digits(double v, int32_t *exponent) {
    int32_t at, count;
    const double x = cdp__real_scale(v, &at);
    double power = 1;
    uint64_t best = 0, step;
    for (count = 0; count < 17; ++count, power *= 10) {
        best = (uint64_t)(x * power + 0.5);
        *exponent = at - count;
        if (cdp__real_is(v, best, *exponent)) return best;
    }
    /* scaling has rounded: one of the next numbers of 17 digits it is */
    for (step = 1; step < 2000; ++step) {
        if (cdp__real_is(v, best + step, *exponent)) return best + step;
        if (cdp__real_is(v, best - step, *exponent)) return best - step;
    }
    return best;
}

/* `v` > 0 with seven digits, of which zeros at the end are left out. */
CDP__PRIVATE uint64_t cdp__real_seven(double v, int32_t *exponent) {
    uint64_t digits = (uint64_t)(cdp__real_scale(v, exponent) * 1e6 + 0.5);
    for (*exponent -= 6; digits && digits % 10 == 0; ++*exponent)
        digits /= 10;
    return digits;
}

/* Writes a number of JSON that is no whole number for its readers; null for what is not finite.
   `seven`: at most seven digits of it, which takes a fifth of the time. */
CDP__PRIVATE CDP__COLD void cdp__json_real(cdp__text *t, double v, bool seven) {
    char digits[24];
    int32_t exponent = 0, point, i, n;
    uint64_t all = 0;
    if (!(v - v >= 0)) {
        cdp__text_bytes(t, "null", 4);
        return;
    }
    if (v < 0) cdp__text_char(t, '-');
    v = v < 0 ? -v : v;
    if (v > 0) all = seven ? cdp__real_seven(v, &exponent) : cdp__real_digits(v, &exponent);
    n = (int32_t)cdp__format(digits, sizeof digits, "%llu", (unsigned long long)all);
    point = n + exponent; /* of the digits, this many stand before the point */
    if (point < -5 || point > 17) {
        cdp__text_add(t, "%c.%se%d", digits[0], n > 1 ? digits + 1 : "0", (int)point - 1);
        return;
    }
    if (point <= 0) cdp__text_bytes(t, "0.", 2);
    for (i = point; i < 0; ++i)
        cdp__text_char(t, '0');
    for (i = 0; i < n || i < point; ++i) {
        if (i && i == point) cdp__text_char(t, '.');
        cdp__text_char(t, i < n ? digits[i] : '0');
    }
    if (point >= n) cdp__text_bytes(t, ".0", 2);
}

#endif /* CDP_SRC_TEXT_JSON_REAL_H */

/* ---- >>mem/shot: a snapshot, from here or from a file ---------------------------------------- */

/* Knows: the parts of a snapshot, and how they are added one by one. Promises: when memory runs
   out, `failed` is set, and the parts added so far stay valid. */

/* The keys and values of files, as texts of the shot. */
/* clang-format off */
#define CDP__MEM_WORDS_OF_FILE(X) \
    X(segments) \
    X(device_traces) \
    X(allocator_settings) \
    X(external_annotations) \
    X(modules) \
    X(events_lost) \
    X(stacks_lost) \
    X(labels_lost) \
    X(device) \
    X(address) \
    X(total_size) \
    X(stream) \
    X(segment_type) \
    X(large) \
    X(small) \
    X(segment_pool_id) \
    X(is_expandable) \
    X(is_external) \
    X(allocated_size) \
    X(active_size) \
    X(requested_size) \
    X(frames) \
    X(blocks) \
    X(size) \
    X(state) \
    X(active_allocated) \
    X(active_pending_free) \
    X(inactive) \
    X(filename) \
    X(line) \
    X(name) \
    X(action) \
    X(addr) \
    X(time_us) \
    X(device_free) \
    X(user_metadata) \
    X(path) \
    X(base)
/* clang-format on */
#define CDP__MEM_MEMBER(name) const char *w_##name;
typedef struct cdp__mem_keys {
    CDP__MEM_WORDS_OF_FILE(CDP__MEM_MEMBER)
    const char *actions[CDP_MEM_ACTION_COUNT];
} cdp__mem_keys;
#undef CDP__MEM_MEMBER

/* A value that a file has under a key that is not known here, kept for writing. What a container
   holds follows it; in a dict each key, a text, before its value. */
typedef struct cdp__mem_token {
    cdp__tree_kind kind;
    uint32_t count; /* of a container: its items, or pairs */
    union {
        int64_t whole;
        double real;
        const char *text;
    } as;
} cdp__mem_token;

#define CDP__MEM_DEEP 32u /* containers inside each other */

typedef struct cdp__mem_stack { /* its frames */
    uint64_t first;
    uint32_t count;
} cdp__mem_stack;

typedef struct cdp__mem_device {
    cdp_mem_event *events;
    uint64_t count, room;
} cdp__mem_device;

typedef struct cdp__mem_setting { /* a setting, as text or as a number */
    const char *key, *text;       /* text NULL: a number */
    double number;
} cdp__mem_setting;

#define CDP__MEM_DEVICES 1024u
#define CDP__MEM_SETTINGS 64u

struct cdp_mem_shot {
    const cdp_os *os;
    cdp__mem_texts texts;
    const char *empty;
    cdp__mem_keys keys;
    cdp_mem_segment *segments;
    cdp_mem_block *blocks;
    cdp__mem_stack *stacks; /* stacks[0]: none */
    cdp_mem_frame *frames;
    uint64_t *addresses; /* of frames; 0: has a name already */
    uint64_t segment_count, segment_room, block_count, block_room;
    uint64_t stack_count, stack_room, frame_count, frame_room, address_room;
    cdp__mem_device *devices;
    uint64_t device_count, device_room;
    cdp__mem_setting settings[CDP__MEM_SETTINGS];
    uint32_t setting_count;
    cdp__mem_module *modules;
    uint64_t module_count, module_room;
    const char **module_paths;
    uint64_t module_path_count, module_path_room;
    uint64_t events_lost, stacks_lost, labels_lost; /* calls without them */
    const cdp_os *clock; /* of the first allocator with a history, while a shot is built */
    uint64_t clock_ns, clock_us;
    /* tokens[0] is none. others: of the file as a whole; file_settings: in place of settings */
    cdp__mem_token *tokens;
    uint64_t token_count, token_room;
    uint32_t others, file_settings, annotations;
    cdp_mem_rows rows; /* of reports */
    const char *skip;  /* functions that they skip; NULL: none */
    bool failed;       /* out of memory */
};

#define cdp__mem_add(shot, name, count)                                         \
    cdp__more_room((shot)->os, (void **)&(shot)->name##s, &(shot)->name##_room, \
        (shot)->name##_count + (count), sizeof *(shot)->name##s)

CDP__PRIVATE const char *cdp__mem_shot_text(cdp_mem_shot *s, const char *text) {
    const char *const t = text ? cdp__mem_text_of(&s->texts, text, strlen(text)) : s->empty;
    if (!t) s->failed = true;
    return t ? t : s->empty;
}

/* False: none, or one that was freed. */
CDP__PRIVATE bool cdp__mem_shot_known(const cdp_mem_shot *s) {
    return s && !cdp__ended(s);
}

CDP__PRIVATE cdp_status cdp__mem_shot_here(const cdp_mem_shot *s, const char *call) {
    if (!s) return cdp__missing(call, "shot");
    return cdp__ended(s) ? cdp__fail(CDP_ERR_STATE, "%s: this shot was freed", call) : CDP_OK;
}

CDP__PRIVATE void cdp__mem_shot_close(cdp_mem_shot *s) {
    const cdp_os *const os = s->os;
    uint64_t i;
    for (i = 0; i < s->device_count; ++i)
        cdp__free(os, s->devices[i].events);
    cdp__free(os, s->devices);
    cdp__free(os, s->segments);
    cdp__free(os, s->blocks);
    cdp__free(os, s->stacks);
    cdp__free(os, s->frames);
    cdp__free(os, s->addresses);
    cdp__free(os, s->modules);
    cdp__free(os, s->tokens);
    cdp__free(os, (void *)s->module_paths);
    cdp__mem_texts_close(&s->texts);
    cdp__ended_add(s);
    cdp__free(os, s);
}

/* These words are the first texts, so their numbers are small. */
#define CDP__MEM_WORD(name) s->keys.w_##name = cdp__mem_shot_text(s, #name);
CDP__PRIVATE void cdp__mem_shot_keys(cdp_mem_shot *s) {
    uint32_t i;
    CDP__MEM_WORDS_OF_FILE(CDP__MEM_WORD)
    for (i = 0; i < CDP_MEM_ACTION_COUNT; ++i)
        s->keys.actions[i] = cdp__mem_shot_text(s, cdp_mem_action_name((cdp_mem_action)i));
}
#undef CDP__MEM_WORD

CDP__PRIVATE cdp_mem_shot *cdp__mem_shot_new(const cdp_os *os) {
    cdp_mem_shot *const s = (cdp_mem_shot *)cdp__alloc_zero(os, sizeof *s);
    if (!s) return NULL;
    cdp__ended_remove(s);
    s->os = s->texts.memory.os = os;
    s->empty = cdp__mem_text_of(&s->texts, "", 0);
    if (s->empty && cdp__mem_add(s, stack, 1)) {
        memset(&s->stacks[s->stack_count++], 0, sizeof *s->stacks);
        cdp__mem_shot_keys(s);
        if (!s->failed) return s;
    }
    cdp__mem_shot_close(s);
    return NULL;
}

/* Makes sure that there are at least `count` devices. */
CDP__PRIVATE bool cdp__mem_shot_devices(cdp_mem_shot *s, uint64_t count) {
    if (count <= s->device_count) return true;
    if (!cdp__mem_add(s, device, count - s->device_count)) return false;
    memset(
        s->devices + s->device_count, 0, (size_t)((count - s->device_count) * sizeof *s->devices));
    s->device_count = count;
    return true;
}

/* Makes room for `count` more events of a device; NULL: out of memory. */
CDP__PRIVATE cdp_mem_event *cdp__mem_shot_events(cdp_mem_shot *s, uint32_t device, uint64_t count) {
    cdp__mem_device *d;
    if (!cdp__mem_shot_devices(s, device + 1ull)) return NULL;
    d = &s->devices[device];
    if (!cdp__more_room(
            s->os, (void **)&d->events, &d->room, d->count + count + 1, sizeof *d->events))
        return NULL;
    return d->events + d->count;
}

/* Adds a stack of `count` zeroed frames; returns its number, 0: out of memory. */
CDP__PRIVATE uint32_t cdp__mem_shot_stack(cdp_mem_shot *s, uint64_t count) {
    cdp__mem_stack *k;
    if (!cdp__mem_add(s, stack, 1) || !cdp__mem_add(s, frame, count)
        || !cdp__more_room(s->os, (void **)&s->addresses, &s->address_room, s->frame_count + count,
            sizeof *s->addresses)) {
        s->failed = true;
        return 0;
    }
    k = &s->stacks[s->stack_count++];
    k->first = s->frame_count;
    k->count = (uint32_t)count;
    memset(s->frames + k->first, 0, (size_t)(count * sizeof *s->frames));
    memset(s->addresses + k->first, 0, (size_t)(count * sizeof *s->addresses));
    s->frame_count += count;
    return (uint32_t)s->stack_count - 1;
}

CDP__PRIVATE void cdp__mem_shot_setting(
    cdp_mem_shot *s, const char *key, const char *text, double number) {
    cdp__mem_setting *const t = &s->settings[s->setting_count];
    if (s->setting_count == CDP__MEM_SETTINGS) return;
    t->key = cdp__mem_shot_text(s, key);
    t->text = text ? cdp__mem_shot_text(s, text) : NULL;
    t->number = number;
    ++s->setting_count;
}

/* Blocks may have moved while more were added: sets each segment's pointer again. */
CDP__PRIVATE void cdp__mem_shot_link(cdp_mem_shot *s) {
    uint64_t i, at = 0;
    for (i = 0; i < s->segment_count; ++i) {
        s->segments[i].blocks = s->blocks ? s->blocks + at : NULL;
        at += s->segments[i].block_count;
    }
}

/* Adds a block to the sums of its segment. */
CDP__PRIVATE void cdp__mem_segment_sum(cdp_mem_segment *g, const cdp_mem_block *b) {
    if (b->state == CDP_MEM_INACTIVE) return;
    g->active += b->size;
    g->requested += b->requested;
    if (b->state == CDP_MEM_ACTIVE) g->allocated += b->size;
}

/* ---- >>mem/build: a shot of allocators of this process --------------------------------------- */

/* Knows: how to copy the state of an allocator, and how to make a snapshot of the copy. Promises:
   nothing is allocated while the lock is held: the copy uses memory allocated before. */

typedef struct cdp__mem_raw_part {
    uint64_t at, size, requested, began;
    uint32_t stack, label;
    cdp_mem_state state;
} cdp__mem_raw_part;

typedef struct cdp__mem_raw_span {
    uint64_t at, size, stream;
    uint32_t stack, label, pool, parts;
    bool large, external, grows, unrecorded;
} cdp__mem_raw_span;

typedef struct cdp__mem_raw {
    char *memory;
    uint64_t room; /* bytes */
    cdp__mem_record *records;
    cdp__mem_raw_span *spans;
    cdp__mem_raw_part *parts;
    cdp__mem_row *rows;
    uint64_t *words;
    char (*sites)[CDP__MEM_LABEL_BYTES];
    cdp__mem_label *labels;
    uint64_t record_count, span_count, part_count, row_count, word_count;
    uint64_t site_count, label_count;
    uint64_t start_ns, start_us, lost, stacks_lost, labels_lost, limit;
    uint32_t *stacks; /* number here to number in the shot */
} cdp__mem_raw;

/* Counts all parts. The caller holds the lock. */
CDP__PRIVATE void cdp__mem_raw_counts(const cdp_mem *m, bool no_events, cdp__mem_raw *r) {
    const cdp__mem_log *const l = &m->log;
    r->record_count = no_events || !l->ring.room ? 0 : cdp__mem_ring_count(&l->ring);
    r->span_count = cdp__mem_now(&m->tally.segment) + m->externals;
    r->part_count = m->part_count + m->externals;
    r->row_count = l->memory ? l->depot.rows_used : 0;
    r->word_count = l->memory ? l->depot.words_used : 0;
    r->site_count = l->memory ? cdp__min(l->sites.used + 1ull, CDP__MEM_SITES) : 0;
    r->label_count = l->labels.used;
}

CDP__PRIVATE uint64_t cdp__mem_raw_bytes(const cdp__mem_raw *r) {
    return r->record_count * sizeof *r->records + r->span_count * sizeof *r->spans
        + r->part_count * sizeof *r->parts + r->row_count * sizeof *r->rows
        + r->word_count * sizeof *r->words + r->site_count * sizeof *r->sites
        + r->label_count * sizeof *r->labels + (r->row_count + 2) * sizeof *r->stacks + 64;
}

/* Places the arrays in the memory. */
CDP__PRIVATE void cdp__mem_raw_at(cdp__mem_raw *r) {
    char *at = r->memory;
    r->records = (cdp__mem_record *)(void *)at;
    at += r->record_count * sizeof *r->records;
    r->spans = (cdp__mem_raw_span *)(void *)at;
    at += r->span_count * sizeof *r->spans;
    r->parts = (cdp__mem_raw_part *)(void *)at;
    at += r->part_count * sizeof *r->parts;
    r->rows = (cdp__mem_row *)(void *)at;
    at += r->row_count * sizeof *r->rows;
    r->words = (uint64_t *)(void *)at;
    at += r->word_count * sizeof *r->words;
    r->labels = (cdp__mem_label *)(void *)at;
    at += r->label_count * sizeof *r->labels;
    r->sites = (char(*)[CDP__MEM_LABEL_BYTES])(void *)at;
    at += r->site_count * sizeof *r->sites;
    r->stacks = (uint32_t *)(void *)at;
}

CDP__PRIVATE void cdp__mem_raw_span_of(const cdp__mem_span *s, cdp__mem_raw_span *out) {
    out->at = s->at;
    out->size = s->size;
    out->stream = (uint64_t)(uintptr_t)s->arena->stream;
    out->stack = s->stack;
    out->label = s->label;
    out->pool = s->arena->pool->number;
    out->parts = 0;
    out->large = s->large;
    out->grows = s->grows;
    out->unrecorded = s->unrecorded;
    out->external = false;
}

CDP__PRIVATE void cdp__mem_raw_part_of(const cdp__mem_part *p, cdp__mem_raw_part *out) {
    out->at = p->at;
    out->size = p->size;
    out->requested = p->requested;
    out->stack = p->stack;
    out->label = p->label;
    out->began = p->began;
    out->state = p->state;
}

CDP__PRIVATE void cdp__mem_raw_outside(const cdp_mem *m, cdp__mem_raw *r, uint64_t s, uint64_t p) {
    const cdp__mem_outside *o;
    for (o = m->outside; o; o = o->next, ++s, ++p) {
        cdp__mem_raw_span *const span = &r->spans[s];
        cdp__mem_raw_part *const part = &r->parts[p];
        memset(span, 0, sizeof *span);
        memset(part, 0, sizeof *part);
        span->at = part->at = o->at;
        span->size = part->size = part->requested = o->bytes;
        span->label = part->label = o->label;
        span->large = span->external = true;
        span->parts = 1;
        part->state = CDP_MEM_ACTIVE;
    }
}

/* Copies everything. The caller holds the lock. */
CDP__PRIVATE void cdp__mem_raw_copy(const cdp_mem *m, cdp__mem_raw *r) {
    const cdp__mem_log *const l = &m->log;
    const cdp__mem_span *span;
    uint64_t s = 0, p = 0;
    if (r->record_count) cdp__mem_ring_copy(&l->ring, r->records);
    for (span = m->spans; span; span = span->next, ++s) {
        const cdp__mem_part *part;
        cdp__mem_raw_span_of(span, &r->spans[s]);
        for (part = span->first; part; part = part->next, ++p) {
            cdp__mem_raw_part_of(part, &r->parts[p]);
            ++r->spans[s].parts;
        }
    }
    cdp__mem_raw_outside(m, r, s, p);
    if (r->row_count) memcpy(r->rows, l->depot.rows, (size_t)(r->row_count * sizeof *r->rows));
    if (r->word_count) memcpy(r->words, l->depot.words, (size_t)(r->word_count * sizeof *r->words));
    if (r->label_count)
        memcpy(r->labels, l->labels.at, (size_t)(r->label_count * sizeof *r->labels));
    if (r->site_count) memcpy(r->sites, l->sites.text, (size_t)(r->site_count * sizeof *r->sites));
    r->limit = m->limit;
    r->start_ns = l->start_ns;
    r->start_us = l->start_us;
    r->stacks_lost = l->depot.lost + l->sites.lost;
    r->labels_lost = l->labels.lost;
    r->lost = l->ring.room ? cdp__mem_ring_lost(&l->ring) : 0;
}

/* Copies the state of `m`. Memory is allocated without the lock; if it is too small by then,
   tries again. */
CDP__PRIVATE cdp_status cdp__mem_raw_take(cdp_mem *m, bool no_events, cdp__mem_raw *r) {
    cdp__mem_call c;
    memset(r, 0, sizeof *r);
    for (;;) {
        cdp__mem_call_plain(m, &c);
        cdp__mem_lock(m);
        cdp__mem_raw_counts(m, no_events, r);
        if (r->memory && cdp__mem_raw_bytes(r) <= r->room) break;
        cdp__mem_unlock(m);
        cdp__free(m->os, r->memory);
        r->room = cdp__mem_raw_bytes(r) + cdp__mem_raw_bytes(r) / 8 + 4096;
        r->memory = (char *)cdp__alloc(m->os, r->room);
        if (!r->memory) return cdp__fail_nomem("a snapshot", r->room);
        /* maps the pages now instead of while holding the lock */
        memset(r->memory, 0, (size_t)r->room);
    }
    cdp__mem_raw_at(r);
    cdp__mem_raw_copy(m, r);
    cdp__mem_call_enter(m, &c);
    (void)cdp__mem_event_add(m, &c, CDP_MEM_SNAPSHOT, 0,
        cdp__mem_now(&m->tally.active_bytes) + cdp__mem_now(&m->tally.allocated_bytes));
    cdp__mem_unlock(m);
    return CDP_OK;
}

CDP__PRIVATE bool cdp__mem_module_line(void *user, const cdp__mem_map_line *line) {
    cdp_mem_shot *const s = (cdp_mem_shot *)user;
    const char *path;
    cdp__mem_module *k;
    if (line->path[0] != '/' && line->path[0] != '[') return true;
    path = cdp__mem_shot_text(s, line->path);
    if (!s->module_path_count || s->module_paths[s->module_path_count - 1] != path) {
        if (!cdp__mem_add(s, module_path, 1) || !cdp__mem_add(s, module, 1)) return false;
        s->module_paths[s->module_path_count++] = path;
        k = &s->modules[s->module_count++];
        k->base = line->low - line->offset;
        k->path = (uint32_t)s->module_path_count - 1;
        k->low = k->high = 0;
    }
    k = &s->modules[s->module_count - 1];
    if (line->code && !k->high) k->low = line->low;
    if (line->code) k->high = line->high;
    return true;
}

CDP__PRIVATE const cdp__mem_module *cdp__mem_module_of(const cdp_mem_shot *s, uint64_t address) {
    uint64_t i;
    for (i = 0; i < s->module_count; ++i)
        if (address >= s->modules[i].low && address < s->modules[i].high) return &s->modules[i];
    return NULL;
}

/* A name like "module+0x4f1a": the offset in the file of the module. */
CDP__PRIVATE void cdp__mem_frame_address(cdp_mem_shot *s, uint64_t address, cdp_mem_frame *f) {
    const cdp__mem_module *const k = cdp__mem_module_of(s, address);
    const char *const path = k ? s->module_paths[k->path] : s->empty;
    const char *const slash = strrchr(path, '/');
    char text[300];
    if (k)
        cdp__format(text, sizeof text, "%s+0x%llx", slash ? slash + 1 : path,
            (unsigned long long)(address - k->base));
    else
        cdp__format(text, sizeof text, "0x%llx", (unsigned long long)address);
    f->name = cdp__mem_shot_text(s, text);
    f->filename = path;
}

/* "file\nline\nfunction". */
CDP__PRIVATE void cdp__mem_frame_site(cdp_mem_shot *s, const char *site, cdp_mem_frame *f) {
    char text[CDP__MEM_LABEL_BYTES];
    char *line, *function;
    cdp__mem_text_copy(text, site, sizeof text);
    f->name = f->filename = s->empty;
    line = strchr(text, '\n');
    if (!line) return;
    *line++ = 0;
    function = strchr(line, '\n');
    if (!function) return;
    *function++ = 0;
    for (; *line >= '0' && *line <= '9'; ++line)
        f->line = f->line * 10 + (uint32_t)(*line - '0');
    f->filename = cdp__mem_shot_text(s, text);
    f->name = cdp__mem_shot_text(s, function);
}

CDP__PRIVATE const char *cdp__mem_raw_label(cdp_mem_shot *s, const cdp__mem_raw *r, uint64_t n) {
    if (!n || n > r->label_count) return NULL;
    return cdp__mem_shot_text(s, r->labels[n - 1].text);
}

/* Addresses that have names already, so that each is looked up once. */
typedef struct cdp__mem_known {
    uint64_t *address;
    cdp_mem_frame *frame;
    uint64_t mask;
} cdp__mem_known;

CDP__PRIVATE void cdp__mem_frame_known(
    cdp_mem_shot *s, cdp__mem_known *k, uint64_t address, cdp_mem_frame *f) {
    uint64_t i = cdp__mem_mix(0, address) & k->mask;
    while (k->address[i] && k->address[i] != address)
        i = (i + 1) & k->mask;
    if (!k->address[i]) {
        k->address[i] = address;
        memset(&k->frame[i], 0, sizeof *k->frame);
        cdp__mem_frame_address(s, address, &k->frame[i]);
    }
    *f = k->frame[i];
}

CDP__PRIVATE void cdp__mem_build_frame(
    cdp_mem_shot *s, const cdp__mem_raw *r, cdp__mem_known *k, uint64_t word, uint64_t at) {
    cdp_mem_frame *const f = &s->frames[at];
    switch (word & CDP__MEM_TAG) {
    case CDP__MEM_TAG_SITE: cdp__mem_frame_site(s, r->sites[(word & 0xffff) - 1], f); return;
    case CDP__MEM_TAG_FULL:
        f->name = cdp__mem_shot_text(s, "(stack table full: see max_stacks)");
        f->filename = s->empty;
        return;
    default: cdp__mem_frame_known(s, k, word, f); s->addresses[at] = word;
    }
}

/* The stacks of an allocator, with a name for each frame. */
CDP__PRIVATE bool cdp__mem_build_stacks(cdp_mem_shot *s, cdp__mem_raw *r) {
    cdp__mem_known k;
    uint64_t i, j;
    k.mask = 64;
    while (k.mask < 2 * r->word_count)
        k.mask *= 2;
    k.address = (uint64_t *)cdp__alloc_zero(s->os, k.mask * sizeof *k.address);
    k.frame = (cdp_mem_frame *)cdp__alloc(s->os, k.mask * sizeof *k.frame);
    --k.mask;
    r->stacks[0] = 0;
    for (i = 0; k.address && k.frame && i < r->row_count; ++i) {
        const cdp__mem_row *const row = &r->rows[i];
        const uint32_t n = r->stacks[i + 1] = cdp__mem_shot_stack(s, row->count);
        for (j = 0; n && j < row->count; ++j)
            cdp__mem_build_frame(s, r, &k, r->words[row->first + j], s->stacks[n].first + j);
    }
    i = k.address && k.frame;
    cdp__free(s->os, k.address);
    cdp__free(s->os, k.frame);
    return i && !s->failed;
}

/* A made-up address from `at` on that no other segment of the device in the shot has. */
CDP__PRIVATE uint64_t cdp__mem_build_place(const cdp_mem_shot *s, uint32_t device, uint64_t at) {
    uint64_t i;
    for (i = 0; i + 1 < s->segment_count; ++i) { /* the last one is the one being added */
        const cdp_mem_segment *const g = &s->segments[i];
        if (g->device != device || g->address != at) continue;
        at += 1ull << 40;
        i = UINT64_MAX; /* from the first one again */
    }
    return at;
}

CDP__PRIVATE bool cdp__mem_build_segments(cdp_mem_shot *s, const cdp__mem_raw *r, uint32_t device) {
    uint64_t i, j, at = 0;
    if (!cdp__mem_add(s, segment, r->span_count) || !cdp__mem_add(s, block, r->part_count))
        return false;
    for (i = 0; i < r->span_count; ++i) {
        const cdp__mem_raw_span *const span = &r->spans[i];
        cdp_mem_segment *const g = &s->segments[s->segment_count++];
        memset(g, 0, sizeof *g);
        g->device = device;
        g->stack = r->stacks[span->stack];
        g->pool[1] = span->pool;
        g->address = span->external ? cdp__mem_build_place(s, device, span->at) : span->at;
        g->size = span->size;
        g->stream = span->stream;
        g->large = span->large;
        g->external = span->external;
        g->grows = span->grows;
        g->label = cdp__mem_raw_label(s, r, span->label);
        g->block_count = span->parts;
        for (j = 0; j < span->parts; ++j, ++at) {
            const cdp__mem_raw_part *const part = &r->parts[at];
            cdp_mem_block *const b = &s->blocks[s->block_count++];
            b->address = span->external ? g->address : part->at;
            b->size = part->size;
            b->requested = part->requested;
            b->state = part->state;
            b->stack = r->stacks[part->stack];
            b->others = 0;
            b->label = cdp__mem_raw_label(s, r, part->label);
            cdp__mem_segment_sum(g, b);
        }
    }
    return true;
}

/* A live block whose alloc was left out. The viewer goes back from the final state and needs one,
   or it would show the block before its segment. */
typedef struct cdp__mem_omitted {
    uint64_t before; /* so many of the kept events came before it */
    uint64_t span, part;
} cdp__mem_omitted;

CDP__PRIVATE int cdp__mem_omitted_order(const void *a, const void *b) {
    const cdp__mem_omitted *const x = (const cdp__mem_omitted *)a,
                                  *const y = (const cdp__mem_omitted *)b;
    if (x->before != y->before) return x->before < y->before ? -1 : 1;
    if (x->part == y->part) return 0;
    return x->part < y->part ? -1 : 1;
}

/* Lists the blocks whose alloc was left out, in the order of time; those from before the first
   kept event were there from the beginning. `out` may be NULL. Returns their number. */
CDP__PRIVATE uint64_t cdp__mem_omitted_list(const cdp__mem_raw *r, cdp__mem_omitted *out) {
    uint64_t i, j, at = 0, n = 0;
    if (!r->record_count) return 0;
    for (i = 0; i < r->span_count; ++i)
        for (j = 0; j < r->spans[i].parts; ++j, ++at) {
            const cdp__mem_raw_part *const p = &r->parts[at];
            if (p->state == CDP_MEM_INACTIVE || p->began <= r->lost) continue;
            if (out) {
                out[n].before = p->began - r->lost;
                out[n].span = i;
                out[n].part = at;
            }
            ++n;
        }
    if (out && n) qsort(out, (size_t)n, sizeof *out, cdp__mem_omitted_order);
    return n;
}

/* Makes the events of such a block; they get the time of the event before. `ended`: at the end of
   the log, that it was freed and waits. */
CDP__PRIVATE cdp_mem_event *cdp__mem_omitted_events(cdp_mem_shot *s, const cdp__mem_raw *r,
    const cdp__mem_omitted *u, bool ended, cdp_mem_event *e) {
    const cdp__mem_raw_span *const span = &r->spans[u->span];
    const cdp__mem_raw_part *const part = &r->parts[u->part];
    static const cdp_mem_action actions[] = {
        CDP_MEM_SEGMENT_ALLOC, CDP_MEM_ALLOC, CDP_MEM_FREE_REQUESTED};
    uint32_t i = span->unrecorded ? 0 : 1, last = 1;
    if (ended) i = last = 2;
    if (ended && part->state != CDP_MEM_PENDING) return e;
    for (; i <= last; ++i, ++e) {
        memset(e, 0, sizeof *e);
        e->address = i ? part->at : span->at;
        e->size = i ? part->requested : span->size;
        e->stream = span->stream;
        e->time_us = e[-1].time_us;
        e->pool[1] = span->pool;
        e->action = actions[i];
        e->stack = r->stacks[part->stack];
        e->label = cdp__mem_raw_label(s, r, part->label);
    }
    return e;
}

/* Merges the events from `from` on into those before, by time: two allocators of one device. */
CDP__PRIVATE bool cdp__mem_events_merge(const cdp_os *os, cdp__mem_device *d, uint64_t from) {
    cdp_mem_event *first, *out = d->events;
    uint64_t i = 0, j = from;
    if (!from || from == d->count) return true;
    first = (cdp_mem_event *)cdp__alloc(os, from * sizeof *first);
    if (!first) return false;
    memcpy(first, d->events, (size_t)from * sizeof *first);
    while (i < from)
        *out++ =
            j < d->count && d->events[j].time_us < first[i].time_us ? d->events[j++] : first[i++];
    cdp__free(os, first);
    return true;
}

/* Adds the events of an allocator. Their times are nanoseconds until all are merged. */
CDP__PRIVATE bool cdp__mem_build_events(cdp_mem_shot *s, const cdp__mem_raw *r, uint32_t device) {
    const uint64_t more = cdp__mem_omitted_list(r, NULL);
    cdp__mem_omitted *const unsaid =
        (cdp__mem_omitted *)cdp__alloc(s->os, (more + 1) * sizeof(cdp__mem_omitted));
    cdp_mem_event *e = cdp__mem_shot_events(s, device, r->record_count + 3 * more);
    const uint64_t from = s->devices[device].count;
    uint64_t i, k = 0;
    bool ok = unsaid && (e || !(r->record_count + more));
    if (ok) (void)cdp__mem_omitted_list(r, unsaid);
    for (i = 0; ok && i < r->record_count; ++i, ++e) {
        const cdp__mem_record *const record = &r->records[i];
        for (; k < more && unsaid[k].before == i; ++k)
            e = cdp__mem_omitted_events(s, r, &unsaid[k], false, e);
        e->address = record->address;
        e->size = record->size;
        e->stream = record->stream;
        e->time_us = r->start_us * 1000 + record->time_ns - r->start_ns;
        e->device_free = record->extra;
        e->pool[0] = record->pool[0];
        e->pool[1] = record->pool[1];
        e->action = (cdp_mem_action)record->action;
        e->stack = r->stacks[record->stack];
        e->others = 0;
        e->label = cdp__mem_raw_label(s, r, record->label);
    }
    for (; ok && k < more; ++k)
        e = cdp__mem_omitted_events(s, r, &unsaid[k], false, e);
    for (k = 0; ok && k < more; ++k)
        e = cdp__mem_omitted_events(s, r, &unsaid[k], true, e);
    cdp__free(s->os, unsaid);
    if (!ok) return false;
    if (e) s->devices[device].count = (uint64_t)(e - s->devices[device].events);
    s->events_lost += r->lost;
    s->stacks_lost += r->stacks_lost;
    s->labels_lost += r->labels_lost;
    return cdp__mem_events_merge(s->os, &s->devices[device], from);
}

/* Call when all allocators are added: times become microseconds. */
CDP__PRIVATE void cdp__mem_build_times(cdp_mem_shot *s) {
    uint64_t i, j;
    for (i = 0; i < s->device_count; ++i)
        for (j = 0; j < s->devices[i].count; ++j)
            s->devices[i].events[j].time_us /= 1000;
}

/* The divisions in PyTorch's form: "1:4,2:4,...", one for each interval in MiB. */
CDP__PRIVATE void cdp__mem_build_divisions(cdp_mem_shot *s, const cdp__mem_sizes *z) {
    char text[400];
    uint32_t i;
    cdp__text t = cdp__text_of(text, sizeof text);
    text[0] = 0;
    for (i = 0; i < 16; ++i)
        cdp__text_add(&t, "%s%u:%u", i ? "," : "", 1u << i, (unsigned)z->divisions[i]);
    cdp__mem_shot_setting(s, "roundup_power2_divisions", text, 0);
}

CDP__PRIVATE void cdp__mem_build_settings(cdp_mem_shot *s, const cdp_mem *m, uint64_t limit) {
    const cdp_mem_desc *const d = &m->desc;
    if (s->setting_count) return;
    cdp__mem_shot_setting(s, "PYTORCH_CUDA_ALLOC_CONF", "", 0);
    cdp__mem_shot_setting(
        s, "max_split_size", NULL, d->max_split_bytes ? (double)d->max_split_bytes : -1.0);
    cdp__mem_shot_setting(s, "garbage_collection_threshold", NULL, d->gc_threshold);
    cdp__mem_shot_setting(s, "large_segment_size", NULL, (double)m->sizes.large_segment);
    cdp__mem_shot_setting(
        s, "max_non_split_rounding", NULL, (double)m->sizes.max_non_split_rounding);
    cdp__mem_build_divisions(s, &m->sizes);
    cdp__mem_shot_setting(s, "expandable_segments", NULL, d->expandable);
    cdp__mem_shot_setting(s, "coarse_bins", NULL, d->coarse_bins);
    cdp__mem_shot_setting(s, "no_cache", NULL, d->no_cache);
    cdp__mem_shot_setting(s, "timeout_ms", NULL, d->timeout_ms);
    cdp__mem_shot_setting(s, "limit", NULL, (double)limit);
    cdp__mem_shot_setting(s, "source", m->base.source.name, 0);
}

CDP__PRIVATE bool cdp__mem_build(cdp_mem_shot *s, const cdp_mem *m, cdp__mem_raw *r) {
    const uint32_t device = m->desc.device;
    if (!cdp__mem_shot_devices(s, device + 1ull)) return false;
    if (r->word_count && !s->module_count) cdp__mem_maps(cdp__mem_module_line, s);
    cdp__mem_build_settings(s, m, r->limit);
    if (!s->clock && r->start_us) { /* allocators with one clock share the date of the first */
        s->clock = m->os;
        s->clock_ns = r->start_ns;
        s->clock_us = r->start_us;
    } else if (s->clock && s->clock->now_ns == m->os->now_ns && s->clock->user == m->os->user) {
        r->start_ns = s->clock_ns;
        r->start_us = s->clock_us;
    }
    return cdp__mem_build_stacks(s, r) && cdp__mem_build_segments(s, r, device)
        && cdp__mem_build_events(s, r, device) && !s->failed;
}

/* ---- >>mem/writer: a file as a stream of bytes (pure) ---------------------------------------- */

/* Knows: how bytes are collected and passed to a sink. Promises: after the sink returned false it
   is not called again; bytes that are not UTF-8 become question marks. */

typedef struct cdp__mem_output {
    cdp__text text; /* the first member: the flush of a text gets its address */
    cdp_mem_sink sink;
    void *user;
    bool json, broken, fresh;         /* fresh: a dict in JSON has no key yet */
    uint32_t *text_memo, *stack_memo; /* number in the file + 1; 0: not written yet */
    uint32_t memos;
    char bytes[8192];
} cdp__mem_output;

CDP__PRIVATE void cdp__mem_output_flush(cdp__text *t) {
    cdp__mem_output *const w = (cdp__mem_output *)(void *)t;
    if (t->used && !w->broken && !w->sink(w->user, t->at, t->used)) w->broken = true;
    t->used = 0;
}

CDP__PRIVATE void cdp__mem_output_open(cdp__mem_output *w, cdp_mem_sink sink, void *user) {
    w->text = cdp__text_of(w->bytes, sizeof w->bytes);
    w->text.flush = cdp__mem_output_flush;
    w->sink = sink;
    w->user = user;
}

/* Most of a pickle is single bytes: one that fits costs a store, not a call. */
CDP__PRIVATE void cdp__mem_put(cdp__mem_output *w, uint32_t byte) {
    cdp__text *const t = &w->text;
    if (t->used + 1 < t->room)
        t->at[t->used++] = (char)byte;
    else
        cdp__text_char(t, (char)byte);
}

CDP__PRIVATE void cdp__mem_put_text(cdp__mem_output *w, const char *text) {
    cdp__text_bytes(&w->text, text, strlen(text));
}

/* `bytes` of a number, the lowest first. */
CDP__PRIVATE void cdp__mem_put_number(cdp__mem_output *w, uint64_t v, uint32_t bytes) {
    char all[8];
    for (uint32_t i = 0; i < bytes; ++i)
        all[i] = (char)(v >> 8 * i & 0xff);
    cdp__text_bytes(&w->text, all, bytes);
}

/* Bytes of a text as they are written: every byte that is no UTF-8 becomes '?'. */
CDP__PRIVATE void cdp__mem_put_utf8(cdp__mem_output *w, const char *text, uint64_t bytes) {
    const uint8_t *at = (const uint8_t *)text, *const end = at + bytes;
    while (at < end) {
        const uint8_t *const from = at;
        if (cdp__utf8_next(&at, end) == '?')
            cdp__mem_put(w, '?');
        else
            cdp__text_bytes(&w->text, from, (uint64_t)(at - from));
    }
}

/* ---- >>mem/pickle: values as opcodes (pure) -------------------------------------------------- */

/* Knows: the bytes of each value in a pickle of protocol 2. Promises: uses only opcodes that
   PyTorch's viewer supports. Strings and lists of frames are memoized; dicts never are, because
   the viewer writes into them. Lists grow by at most 1,000 items at a time, because the viewer
   passes these as arguments of one call. */

#define CDP__MEM_NUMBER_MAX (1ull << 53) /* the viewer rounds larger numbers */

CDP__PRIVATE void cdp__mem_pickle_number(cdp__mem_output *w, int64_t v) {
    uint32_t n = 5;
    if (v >= 0 && v < 256) {
        cdp__mem_put(w, 'K');
        cdp__mem_put(w, (uint32_t)v);
    } else if (v >= 0 && v < 65536) {
        cdp__mem_put(w, 'M');
        cdp__mem_put_number(w, (uint64_t)v, 2);
    } else if (v >= INT32_MIN && v <= INT32_MAX) {
        cdp__mem_put(w, 'J');
        cdp__mem_put_number(w, (uint64_t)v, 4);
    } else {
        while (n < 8 && (v >= 1ll << (8 * n - 1) || v < -(1ll << (8 * n - 1))))
            ++n;
        cdp__mem_put(w, 0x8a);
        cdp__mem_put(w, n);
        cdp__mem_put_number(w, (uint64_t)v, n);
    }
}

CDP__PRIVATE void cdp__mem_pickle_real(cdp__mem_output *w, double v) {
    uint64_t bits;
    uint32_t i;
    memcpy(&bits, &v, sizeof bits);
    cdp__mem_put(w, 'G');
    for (i = 0; i < 8; ++i)
        cdp__mem_put(w, (uint32_t)(bits >> (56 - 8 * i) & 0xff));
}

/* Memoizes the value on the stack. Returns its number + 1. */
CDP__PRIVATE uint32_t cdp__mem_pickle_keep(cdp__mem_output *w) {
    const uint32_t n = w->memos++;
    cdp__mem_put(w, n < 256 ? 'q' : 'r');
    cdp__mem_put_number(w, n, n < 256 ? 1 : 4);
    return n + 1;
}

CDP__PRIVATE void cdp__mem_pickle_again(cdp__mem_output *w, uint32_t memo) {
    const uint32_t n = memo - 1;
    cdp__mem_put(w, n < 256 ? 'h' : 'j');
    cdp__mem_put_number(w, n, n < 256 ? 1 : 4);
}

/* Writes a text of the shot, memoized. */
CDP__PRIVATE void cdp__mem_pickle_text(cdp__mem_output *w, const char *text) {
    uint32_t *const memo = &w->text_memo[cdp__mem_text_number(text)];
    if (*memo) {
        cdp__mem_pickle_again(w, *memo);
        return;
    }
    const uint64_t bytes = strlen(text);
    cdp__mem_put(w, 'X');
    cdp__mem_put_number(w, bytes, 4);
    cdp__mem_put_utf8(w, text, bytes);
    *memo = cdp__mem_pickle_keep(w);
}

/* ---- >>mem/json: the same values as text (pure) ---------------------------------------------- */

/* Knows: the values of a snapshot, as a pickle or as JSON behind one set of functions. Promises:
   both forms have the same keys, and no number is above 2^53. */

CDP__PRIVATE void cdp__mem_w_text(cdp__mem_output *w, const char *text) {
    if (w->json)
        cdp__json_string(&w->text, text);
    else
        cdp__mem_pickle_text(w, text);
}

CDP__PRIVATE void cdp__mem_w_number(cdp__mem_output *w, uint64_t v) {
    if (v > CDP__MEM_NUMBER_MAX) v = CDP__MEM_NUMBER_MAX;
    if (!w->json) {
        cdp__mem_pickle_number(w, (int64_t)v);
        return;
    }
    cdp__text_number(&w->text, v, false, 10);
}

CDP__PRIVATE void cdp__mem_w_bool(cdp__mem_output *w, bool v) {
    if (w->json)
        cdp__mem_put_text(w, v ? "true" : "false");
    else
        cdp__mem_put(w, v ? 0x88 : 0x89);
}

CDP__PRIVATE void cdp__mem_w_whole(cdp__mem_output *w, int64_t v) {
    if (w->json)
        cdp__text_add(&w->text, "%lld", (long long)v);
    else
        cdp__mem_pickle_number(w, v);
}

CDP__PRIVATE void cdp__mem_w_real(cdp__mem_output *w, double v) {
    if (w->json)
        cdp__json_real(&w->text, v, false);
    else
        cdp__mem_pickle_real(w, v);
}

/* Writes a setting: a whole number without a point. */
CDP__PRIVATE void cdp__mem_w_setting(cdp__mem_output *w, double v) {
    const int64_t whole = v > -9e15 && v < 9e15 ? (int64_t)v : INT64_MAX;
    if ((double)whole >= v && (double)whole <= v)
        cdp__mem_w_whole(w, whole);
    else
        cdp__mem_w_real(w, v);
}

CDP__PRIVATE void cdp__mem_w_dict(cdp__mem_output *w) {
    cdp__mem_put_text(w, w->json ? "{" : "}(");
    w->fresh = true;
}

CDP__PRIVATE void cdp__mem_w_dict_end(cdp__mem_output *w) {
    cdp__mem_put(w, w->json ? '}' : 'u');
    w->fresh = false;
}

/* `text` is a text of the shot. */
CDP__PRIVATE void cdp__mem_w_key(cdp__mem_output *w, const char *text) {
    if (w->json && !w->fresh) cdp__mem_put(w, ',');
    w->fresh = false;
    cdp__mem_w_text(w, text);
    if (w->json) cdp__mem_put(w, ':');
}

CDP__PRIVATE void cdp__mem_w_list(cdp__mem_output *w) {
    cdp__mem_put(w, w->json ? '[' : ']');
}

/* Call before the i-th item of a list. */
CDP__PRIVATE void cdp__mem_w_item(cdp__mem_output *w, uint64_t i) {
    if (w->json && i) cdp__mem_put(w, ',');
    if (w->json || i % 1000) return;
    if (i) cdp__mem_put(w, 'e');
    cdp__mem_put(w, '(');
}

CDP__PRIVATE void cdp__mem_w_list_end(cdp__mem_output *w, uint64_t count) {
    if (w->json)
        cdp__mem_put(w, ']');
    else if (count)
        cdp__mem_put(w, 'e');
    w->fresh = false;
}

CDP__PRIVATE void cdp__mem_w_pair(cdp__mem_output *w, const uint64_t pair[2]) {
    if (w->json) cdp__mem_put(w, '[');
    cdp__mem_w_number(w, pair[0]);
    if (w->json) cdp__mem_put(w, ',');
    cdp__mem_w_number(w, pair[1]);
    cdp__mem_put(w, w->json ? ']' : 0x86);
}

/* Writes a token that is no container. */
CDP__PRIVATE void cdp__mem_w_plain(cdp__mem_output *w, const cdp__mem_token *t) {
    switch (t->kind) {
    case CDP__TREE_BOOL: cdp__mem_w_bool(w, t->as.whole != 0); break;
    case CDP__TREE_TEXT: cdp__mem_w_text(w, t->as.text); break;
    case CDP__TREE_INT: cdp__mem_w_whole(w, t->as.whole); break;
    case CDP__TREE_REAL: cdp__mem_w_real(w, t->as.real); break;
    default: cdp__mem_put_text(w, w->json ? "null" : "N"); break;
    }
}

/* Writes the value that begins at a token; returns the token behind it. */
CDP__PRIVATE const cdp__mem_token *cdp__mem_w_tree(cdp__mem_output *w, const cdp__mem_token *t) {
    struct {
        const cdp__mem_token *box;
        uint32_t at;
    } open[CDP__MEM_DEEP];
    uint32_t depth = 0;
    for (;;) {
        const bool list = t->kind == CDP__TREE_LIST;
        if (list || t->kind == CDP__TREE_DICT) {
            if (list)
                cdp__mem_w_list(w);
            else
                cdp__mem_w_dict(w);
            open[depth].box = t;
            open[depth++].at = 0;
        } else
            cdp__mem_w_plain(w, t);
        ++t;
        for (; depth && open[depth - 1].at == open[depth - 1].box->count; --depth)
            if (open[depth - 1].box->kind == CDP__TREE_LIST)
                cdp__mem_w_list_end(w, open[depth - 1].box->count);
            else
                cdp__mem_w_dict_end(w);
        if (!depth) return t;
        if (open[depth - 1].box->kind == CDP__TREE_LIST)
            cdp__mem_w_item(w, open[depth - 1].at);
        else
            cdp__mem_w_key(w, t++->as.text);
        ++open[depth - 1].at;
    }
}

/* Writes the pairs of a dict that is a token, into the dict that is open. */
CDP__PRIVATE void cdp__mem_w_others(cdp__mem_output *w, const cdp_mem_shot *s, uint32_t others) {
    const cdp__mem_token *t = others ? &s->tokens[others + 1] : NULL;
    uint32_t i;
    for (i = 0; others && i < s->tokens[others].count; ++i) {
        cdp__mem_w_key(w, t->as.text);
        t = cdp__mem_w_tree(w, t + 1);
    }
}

CDP__PRIVATE void cdp__mem_w_frames(
    cdp__mem_output *w, const cdp_mem_shot *s, const cdp__mem_keys *k, uint32_t stack) {
    const cdp__mem_stack *const t = &s->stacks[stack];
    uint32_t i;
    if (!w->json && w->stack_memo[stack]) {
        cdp__mem_pickle_again(w, w->stack_memo[stack]);
        return;
    }
    cdp__mem_w_list(w);
    if (!w->json) w->stack_memo[stack] = cdp__mem_pickle_keep(w);
    for (i = 0; i < t->count; ++i) {
        const cdp_mem_frame *const f = &s->frames[t->first + i];
        cdp__mem_w_item(w, i);
        cdp__mem_w_dict(w);
        cdp__mem_w_key(w, k->w_filename);
        cdp__mem_w_text(w, f->filename);
        cdp__mem_w_key(w, k->w_line);
        cdp__mem_w_number(w, f->line);
        cdp__mem_w_key(w, k->w_name);
        cdp__mem_w_text(w, f->name);
        cdp__mem_w_others(w, s, f->others);
        cdp__mem_w_dict_end(w);
    }
    cdp__mem_w_list_end(w, t->count);
}

CDP__PRIVATE void cdp__mem_w_entry(cdp__mem_output *w, const char *key, uint64_t v) {
    cdp__mem_w_key(w, key);
    cdp__mem_w_number(w, v);
}

CDP__PRIVATE void cdp__mem_w_string(cdp__mem_output *w, const char *key, const char *text) {
    cdp__mem_w_key(w, key);
    cdp__mem_w_text(w, text);
}

CDP__PRIVATE const char *cdp__mem_state_word(const cdp__mem_keys *k, cdp_mem_state state) {
    if (state == CDP_MEM_ACTIVE) return k->w_active_allocated;
    return state == CDP_MEM_PENDING ? k->w_active_pending_free : k->w_inactive;
}

CDP__PRIVATE void cdp__mem_w_block(
    cdp__mem_output *w, const cdp_mem_shot *s, const cdp__mem_keys *k, const cdp_mem_block *b) {
    cdp__mem_w_dict(w);
    cdp__mem_w_entry(w, k->w_address, b->address);
    cdp__mem_w_entry(w, k->w_size, b->size);
    cdp__mem_w_entry(w, k->w_requested_size, b->requested);
    cdp__mem_w_string(w, k->w_state, cdp__mem_state_word(k, b->state));
    if (b->label) cdp__mem_w_string(w, k->w_user_metadata, b->label);
    cdp__mem_w_key(w, k->w_frames);
    cdp__mem_w_frames(w, s, k, b->stack);
    cdp__mem_w_others(w, s, b->others);
    cdp__mem_w_dict_end(w);
}

CDP__PRIVATE void cdp__mem_w_segment(
    cdp__mem_output *w, const cdp_mem_shot *s, const cdp__mem_keys *k, const cdp_mem_segment *g) {
    uint32_t i;
    cdp__mem_w_dict(w);
    cdp__mem_w_entry(w, k->w_device, g->device);
    cdp__mem_w_entry(w, k->w_address, g->address);
    cdp__mem_w_entry(w, k->w_total_size, g->size);
    cdp__mem_w_entry(w, k->w_allocated_size, g->allocated);
    cdp__mem_w_entry(w, k->w_active_size, g->active);
    cdp__mem_w_entry(w, k->w_requested_size, g->requested);
    cdp__mem_w_entry(w, k->w_stream, g->stream);
    cdp__mem_w_string(w, k->w_segment_type, g->large ? k->w_large : k->w_small);
    cdp__mem_w_key(w, k->w_segment_pool_id);
    cdp__mem_w_pair(w, g->pool);
    cdp__mem_w_key(w, k->w_is_expandable);
    cdp__mem_w_bool(w, g->grows);
    if (g->external) cdp__mem_w_key(w, k->w_is_external);
    if (g->external) cdp__mem_w_bool(w, true);
    if (g->label) cdp__mem_w_string(w, k->w_user_metadata, g->label);
    cdp__mem_w_key(w, k->w_frames);
    cdp__mem_w_frames(w, s, k, g->stack);
    cdp__mem_w_key(w, k->w_blocks);
    cdp__mem_w_list(w);
    for (i = 0; i < g->block_count; ++i) {
        cdp__mem_w_item(w, i);
        cdp__mem_w_block(w, s, k, &g->blocks[i]);
    }
    cdp__mem_w_list_end(w, g->block_count);
    cdp__mem_w_others(w, s, g->others);
    cdp__mem_w_dict_end(w);
}

CDP__PRIVATE void cdp__mem_w_event(
    cdp__mem_output *w, const cdp_mem_shot *s, const cdp__mem_keys *k, const cdp_mem_event *e) {
    const bool oom = e->action == CDP_MEM_OOM;
    cdp__mem_w_dict(w);
    cdp__mem_w_string(w, k->w_action, k->actions[e->action]);
    cdp__mem_w_entry(w, oom ? k->w_device_free : k->w_addr, oom ? e->device_free : e->address);
    cdp__mem_w_entry(w, k->w_size, e->size);
    cdp__mem_w_entry(w, k->w_stream, e->stream);
    cdp__mem_w_entry(w, k->w_time_us, e->time_us);
    if (e->label) cdp__mem_w_string(w, k->w_user_metadata, e->label);
    if (e->pool[0] || e->pool[1]) {
        cdp__mem_w_key(w, k->w_segment_pool_id);
        cdp__mem_w_pair(w, e->pool);
    }
    if (e->stack) {
        cdp__mem_w_key(w, k->w_frames);
        cdp__mem_w_frames(w, s, k, e->stack);
    }
    cdp__mem_w_others(w, s, e->others);
    cdp__mem_w_dict_end(w);
}

CDP__PRIVATE void cdp__mem_w_traces(
    cdp__mem_output *w, const cdp_mem_shot *s, const cdp__mem_keys *k) {
    uint64_t i, j;
    cdp__mem_w_key(w, k->w_device_traces);
    cdp__mem_w_list(w);
    for (i = 0; i < s->device_count; ++i) {
        const cdp__mem_device *const d = &s->devices[i];
        cdp__mem_w_item(w, i);
        cdp__mem_w_list(w);
        for (j = 0; j < d->count; ++j) {
            cdp__mem_w_item(w, j);
            cdp__mem_w_event(w, s, k, &d->events[j]);
        }
        cdp__mem_w_list_end(w, d->count);
    }
    cdp__mem_w_list_end(w, s->device_count);
}

CDP__PRIVATE void cdp__mem_w_settings(
    cdp__mem_output *w, const cdp_mem_shot *s, const cdp__mem_keys *k) {
    uint64_t i;
    cdp__mem_w_key(w, k->w_allocator_settings);
    cdp__mem_w_dict(w);
    for (i = 0; i < s->setting_count; ++i) {
        const cdp__mem_setting *const t = &s->settings[i];
        cdp__mem_w_key(w, t->key);
        if (t->text)
            cdp__mem_w_text(w, t->text);
        else
            cdp__mem_w_setting(w, t->number);
    }
    cdp__mem_w_others(w, s, s->file_settings);
    cdp__mem_w_dict_end(w);
    cdp__mem_w_key(w, k->w_external_annotations);
    if (s->annotations) {
        (void)cdp__mem_w_tree(w, &s->tokens[s->annotations]);
    } else {
        cdp__mem_w_list(w);
        cdp__mem_w_list_end(w, 0);
    }
    cdp__mem_w_entry(w, k->w_events_lost, s->events_lost);
    if (s->stacks_lost) cdp__mem_w_entry(w, k->w_stacks_lost, s->stacks_lost);
    if (s->labels_lost) cdp__mem_w_entry(w, k->w_labels_lost, s->labels_lost);
    cdp__mem_w_key(w, k->w_modules);
    cdp__mem_w_list(w);
    for (i = 0; i < s->module_count; ++i) {
        cdp__mem_w_item(w, i);
        cdp__mem_w_dict(w);
        cdp__mem_w_string(w, k->w_path, s->module_paths[s->modules[i].path]);
        cdp__mem_w_entry(w, k->w_base, s->modules[i].base);
        cdp__mem_w_dict_end(w);
    }
    cdp__mem_w_list_end(w, s->module_count);
}

/* Writes the whole file. */
CDP__PRIVATE void cdp__mem_w_shot(
    cdp__mem_output *w, const cdp_mem_shot *s, const cdp__mem_keys *k) {
    uint64_t i;
    if (!w->json) cdp__text_bytes(&w->text, "\x80\x02", 2);
    cdp__mem_w_dict(w);
    cdp__mem_w_key(w, k->w_segments);
    cdp__mem_w_list(w);
    for (i = 0; i < s->segment_count; ++i) {
        cdp__mem_w_item(w, i);
        cdp__mem_w_segment(w, s, k, &s->segments[i]);
    }
    cdp__mem_w_list_end(w, s->segment_count);
    cdp__mem_w_traces(w, s, k);
    cdp__mem_w_settings(w, s, k);
    cdp__mem_w_others(w, s, s->others);
    cdp__mem_w_dict_end(w);
    cdp__mem_put(w, w->json ? '\n' : '.');
    cdp__mem_output_flush(&w->text);
}

/* ---- >>text/json_read: JSON, piece by piece (pure) ------------------------------------------- */

/* Knows: the grammar of JSON, and the NaN and Infinity that Python writes. Promises: any bytes
   yield pieces or a reason; no recursion, no memory; at most 32 levels. */
#ifndef CDP_SRC_TEXT_JSON_READ_H
#define CDP_SRC_TEXT_JSON_READ_H

#include <stdlib.h>
#include <string.h>

#define CDP__JSON_DEEP 32u   /* as many as cdp__json_reader.dicts has bits */
#define CDP__JSON_DIGITS 40u /* what further digits of a number say is lost */

typedef enum cdp__json_kind {
    CDP__JSON_BAD, /* this is no JSON: `why` says why, `at` says where */
    CDP__JSON_END, /* nothing follows the value */
    CDP__JSON_DICT,
    CDP__JSON_LIST,
    CDP__JSON_CLOSE, /* the end of the last dict or list that is open */
    CDP__JSON_KEY,   /* a text; a value follows */
    CDP__JSON_TEXT,
    CDP__JSON_WHOLE,
    CDP__JSON_REAL, /* also a whole number that has more than 63 bits */
    CDP__JSON_TRUE,
    CDP__JSON_FALSE,
    CDP__JSON_NULL
} cdp__json_kind;

typedef struct cdp__json_reader {
    const uint8_t *data;
    uint64_t bytes, at;
    const char *why;
    uint32_t depth, dicts; /* bit i of dicts: the i-th open container is a dict */
    bool value, first;     /* a value must follow, after a key or at the beginning; just opened */
    /* of the last piece */
    const uint8_t *text; /* KEY, TEXT: what stands between the quotes, not decoded */
    uint64_t length;     /* of that; the decoded text is not longer */
    bool escapes;        /* it has some, else it is as it stands */
    int64_t whole;
    double real;
} cdp__json_reader;

CDP__PRIVATE cdp__json_reader cdp__json_open(const void *data, uint64_t bytes) {
    cdp__json_reader r;
    memset(&r, 0, sizeof r);
    r.data = (const uint8_t *)data;
    r.bytes = bytes;
    r.value = true;
    return r;
}

CDP__PRIVATE cdp__json_kind cdp__json_bad(cdp__json_reader *r, const char *why) {
    r->why = why;
    return CDP__JSON_BAD;
}

/* The next byte that is no blank, which is not taken; 0: there is none. */
CDP__PRIVATE uint8_t cdp__json_look(cdp__json_reader *r) {
    for (; r->at < r->bytes; ++r->at) {
        const uint8_t c = r->data[r->at];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return c;
    }
    return 0;
}

CDP__PRIVATE bool cdp__json_word(cdp__json_reader *r, const char *word) {
    const uint64_t n = strlen(word);
    if (r->bytes - r->at < n || memcmp(r->data + r->at, word, (size_t)n) != 0) return false;
    r->at += n;
    return true;
}

CDP__PRIVATE int cdp__hex_digit(uint8_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The four digits of an escape; -1: they are not there. */
CDP__PRIVATE int32_t cdp__json_unit_at(const uint8_t *s, uint64_t bytes) {
    int32_t unit = 0;
    uint32_t i;
    for (i = 0; i < 4; ++i) {
        const int digit = i < bytes ? cdp__hex_digit(s[i]) : -1;
        if (digit < 0) return -1;
        unit = unit * 16 + digit;
    }
    return unit;
}

/* Takes a text, from its first quote on. */
CDP__PRIVATE cdp__json_kind cdp__json_take_text(cdp__json_reader *r, cdp__json_kind kind) {
    const uint64_t from = ++r->at;
    r->escapes = false;
    for (; r->at < r->bytes && r->data[r->at] != '"'; ++r->at) {
        const uint8_t c = r->data[r->at];
        if (c < 32) return cdp__json_bad(r, "a text has a control character");
        if (c != '\\') continue;
        r->escapes = true;
        if (++r->at == r->bytes) break;
        if (r->data[r->at] == 'u') {
            if (cdp__json_unit_at(r->data + r->at + 1, r->bytes - r->at - 1) < 0)
                return cdp__json_bad(r, "four hexadecimal digits are expected after \\u");
            r->at += 4;
        } else if (!r->data[r->at] || !strchr("\"\\/bfnrt", r->data[r->at]))
            return cdp__json_bad(r, "there is no such escape");
    }
    if (r->at >= r->bytes) return cdp__json_bad(r, "a text does not end");
    r->text = r->data + from;
    r->length = r->at++ - from;
    return kind;
}

/* Decodes one escape of a text that was taken, from the byte after the backslash on. */
CDP__PRIVATE uint32_t cdp__json_escape(const uint8_t **at, const uint8_t *end) {
    static const char from[] = "nrtbf", to[] = "\n\r\t\b\f";
    const uint8_t c = *(*at)++;
    const char *const known = strchr(from, c);
    uint32_t unit;
    int32_t low;
    if (c != 'u') return known ? (uint8_t)to[known - from] : c;
    unit = (uint32_t)cdp__json_unit_at(*at, 4);
    *at += 4;
    if (unit < 0xd800 || unit >= 0xdc00) return unit;
    if (end - *at < 6 || (*at)[0] != '\\' || (*at)[1] != 'u') return unit;
    low = cdp__json_unit_at(*at + 2, 4);
    if (low < 0xdc00 || low >= 0xe000) return unit;
    *at += 6;
    return 0x10000 + ((unit - 0xd800) << 10) + ((uint32_t)low - 0xdc00);
}

/* Writes the last key or text, decoded, to `out`, which has room for r->length bytes. Returns its
   length. What is no character, and a zero byte, become '?'. */
CDP__PRIVATE uint64_t cdp__json_decode(const cdp__json_reader *r, char *out) {
    const uint8_t *at = r->text, *const end = at + r->length;
    const char *const from = out;
    while (at < end) {
        uint32_t c = *at++;
        if (c != '\\') {
            *out++ = (char)c;
            continue;
        }
        c = cdp__json_escape(&at, end);
        out += cdp__utf8_put(c ? c : '?', out);
    }
    return (uint64_t)(out - from);
}

CDP__PRIVATE bool cdp__json_is_digit(const cdp__json_reader *r) {
    return r->at < r->bytes && r->data[r->at] >= '0' && r->data[r->at] <= '9';
}

/* Digits of a number without its point, as text for strtod(), which then needs no locale. */
typedef struct cdp__json_digits {
    char text[CDP__JSON_DIGITS + 32];
    uint32_t count;
    int64_t exponent;
} cdp__json_digits;

CDP__PRIVATE void cdp__json_take_digits(cdp__json_reader *r, cdp__json_digits *d, bool fraction) {
    for (; cdp__json_is_digit(r); ++r->at) {
        const bool kept = d->count < CDP__JSON_DIGITS;
        const char c = (char)r->data[r->at];
        if (kept && (d->count || c != '0')) d->text[d->count++] = c;
        d->exponent += (int64_t)!kept - fraction;
    }
}

CDP__PRIVATE double cdp__json_real_of(cdp__json_digits *d) {
    const bool below = d->exponent < 0;
    uint64_t e = below ? 0 - (uint64_t)d->exponent : (uint64_t)d->exponent;
    char *at = d->text + sizeof d->text;
    uint32_t n = d->count;
    if (!n) return 0;
    *--at = 0;
    do
        *--at = (char)('0' + e % 10);
    while (e /= 10);
    d->text[n++] = 'e';
    d->text[n++] = below ? '-' : '+';
    memmove(d->text + n, at, strlen(at) + 1);
    return strtod(d->text, NULL);
}

/* Takes what follows the digits of a real number: digits behind a point, an exponent. */
CDP__PRIVATE bool cdp__json_take_rest(cdp__json_reader *r, cdp__json_digits *d) {
    int64_t exponent = 0;
    bool below = false;
    if (r->at < r->bytes && r->data[r->at] == '.') {
        ++r->at;
        if (!cdp__json_is_digit(r)) return false;
        cdp__json_take_digits(r, d, true);
    }
    if (r->at < r->bytes && (r->data[r->at] | 32) == 'e') {
        ++r->at;
        if (r->at < r->bytes && (r->data[r->at] == '+' || r->data[r->at] == '-'))
            below = r->data[r->at++] == '-';
        if (!cdp__json_is_digit(r)) return false;
        for (; cdp__json_is_digit(r); ++r->at)
            if (exponent < 1000000) exponent = exponent * 10 + (r->data[r->at] - '0');
    }
    d->exponent += below ? -exponent : exponent;
    return true;
}

CDP__PRIVATE cdp__json_kind cdp__json_take_number(cdp__json_reader *r) {
    const uint64_t from = r->at;
    const bool minus = cdp__json_word(r, "-");
    cdp__json_digits d;
    uint64_t whole = 0, i;
    uint8_t next;
    d.count = 0;
    d.exponent = 0;
    if (!cdp__json_is_digit(r)) {
        const bool nan = !minus && cdp__json_word(r, "NaN");
        if (!nan && !cdp__json_word(r, "Infinity"))
            return cdp__json_bad(r, "a value is expected here");
        r->real = strtod(nan ? "nan" : "inf", NULL);
        if (minus) r->real = -r->real;
        return CDP__JSON_REAL;
    }
    cdp__json_take_digits(r, &d, false);
    if (r->data[from + minus] == '0' && r->at > from + minus + 1)
        return cdp__json_bad(r, "a number begins with a zero");
    for (i = 0; i < d.count && d.count < 20; ++i)
        whole = whole * 10 + (uint64_t)(d.text[i] - '0');
    next = r->at < r->bytes ? r->data[r->at] : 0;
    if (next != '.' && (next | 32) != 'e' && d.count < 20 && whole <= (uint64_t)INT64_MAX) {
        r->whole = minus ? -(int64_t)whole : (int64_t)whole;
        return CDP__JSON_WHOLE;
    }
    if (!cdp__json_take_rest(r, &d)) return cdp__json_bad(r, "a digit is expected here");
    r->real = cdp__json_real_of(&d);
    if (minus) r->real = -r->real;
    return CDP__JSON_REAL;
}

CDP__PRIVATE cdp__json_kind cdp__json_take_value(cdp__json_reader *r) {
    const uint8_t c = cdp__json_look(r);
    r->value = r->first = false;
    if (c == '"') return cdp__json_take_text(r, CDP__JSON_TEXT);
    if (c == '{' || c == '[') {
        if (r->depth == CDP__JSON_DEEP) return cdp__json_bad(r, "it is nested too deep");
        ++r->at;
        r->dicts &= ~(1u << r->depth);
        r->dicts |= (uint32_t)(c == '{') << r->depth++;
        r->first = true;
        return c == '{' ? CDP__JSON_DICT : CDP__JSON_LIST;
    }
    if (cdp__json_word(r, "true")) return CDP__JSON_TRUE;
    if (cdp__json_word(r, "false")) return CDP__JSON_FALSE;
    if (cdp__json_word(r, "null")) return CDP__JSON_NULL;
    return cdp__json_take_number(r);
}

/* Takes the next piece. After BAD or END it must not be called again. */
CDP__PRIVATE cdp__json_kind cdp__json_next(cdp__json_reader *r) {
    const bool dict = r->depth && r->dicts >> (r->depth - 1) & 1;
    uint8_t c;
    if (r->value) return cdp__json_take_value(r);
    c = cdp__json_look(r);
    if (!r->depth)
        return r->at < r->bytes ? cdp__json_bad(r, "its end is expected here") : CDP__JSON_END;
    if (c == (dict ? '}' : ']')) {
        ++r->at;
        --r->depth;
        r->first = false;
        return CDP__JSON_CLOSE;
    }
    if (!r->first && !cdp__json_word(r, ","))
        return cdp__json_bad(r, "a comma or the end of a list is expected here");
    if (!dict) return cdp__json_take_value(r);
    if (cdp__json_look(r) != '"') return cdp__json_bad(r, "a key is expected here");
    if (cdp__json_take_text(r, CDP__JSON_KEY) == CDP__JSON_BAD) return CDP__JSON_BAD;
    if (cdp__json_look(r) != ':') return cdp__json_bad(r, "a colon is expected here");
    ++r->at;
    r->value = true;
    return CDP__JSON_KEY;
}

#endif /* CDP_SRC_TEXT_JSON_READ_H */

/* ---- >>mem/value: numbers of a snapshot ------------------------------------------------------ */

/* Knows: values of a tree. Promises: any value is a number that the writers can write. */

#define CDP__MEM_TEXT_MAX 4096u /* longer texts are truncated */

/* A number from 0 to 2^53; `other` if there is none. */
CDP__PRIVATE uint64_t cdp__mem_number_of(const cdp__tree *v, uint64_t other) {
    if (v && v->kind == CDP__TREE_REAL && v->as.real >= 0)
        return v->as.real < 9007199254740992.0 ? (uint64_t)v->as.real : CDP__MEM_NUMBER_MAX;
    if (!v || (v->kind != CDP__TREE_INT && v->kind != CDP__TREE_BOOL) || v->as.whole < 0)
        return other;
    return cdp__min((uint64_t)v->as.whole, CDP__MEM_NUMBER_MAX);
}

/* ---- >>text/unpickle: a pickle as a tree ----------------------------------------------------- */

/* Knows: the opcodes of values in protocols 0 to 5; and, if the reader takes records, those that
   make objects, as values that say of which class and from what. Promises: reading a file never
   looks up, calls or creates anything; any bytes yield a value or a reason. */
#ifndef CDP_SRC_TEXT_UNPICKLE_H
#define CDP_SRC_TEXT_UNPICKLE_H

CDP__PRIVATE bool cdp__pk_push(cdp__tree_reader *r, cdp__tree v) {
    if (!cdp__more_room(
            r->memory.os, (void **)&r->stack, &r->stack_room, r->depth + 1, sizeof *r->stack))
        return cdp__tree_nomem(r);
    r->stack[r->depth++] = v;
    return true;
}

CDP__PRIVATE cdp__tree cdp__pk_whole(cdp__tree_kind kind, int64_t n) {
    cdp__tree v;
    memset(&v, 0, sizeof v);
    v.kind = kind;
    v.as.whole = n;
    return v;
}

/* Takes the next `count` bytes; NULL: the file is too short. */
CDP__PRIVATE const uint8_t *cdp__pk_next(cdp__tree_reader *r, uint64_t count) {
    const uint8_t *const at = r->data + r->at;
    if (r->bytes - r->at < count) {
        cdp__tree_bad(r, "the file ends in the middle");
        return NULL;
    }
    r->at += count;
    return at;
}

/* A number of `count` bytes, the lowest first. */
CDP__PRIVATE bool cdp__pk_next_number(cdp__tree_reader *r, uint32_t count, uint64_t *out) {
    const uint8_t *const at = cdp__pk_next(r, count);
    uint32_t i;
    *out = 0;
    for (i = 0; at && i < count; ++i)
        *out |= (uint64_t)at[i] << 8 * i;
    return at != NULL;
}

/* The same with a sign bit in the last byte. */
CDP__PRIVATE bool cdp__pk_push_number(cdp__tree_reader *r, uint32_t count, bool has_sign) {
    uint64_t n;
    if (count > 8) return cdp__tree_bad(r, "a number has more than 8 bytes");
    if (!cdp__pk_next_number(r, count, &n)) return false;
    if (has_sign && count && count < 8 && n >> (8 * count - 1)) n |= ~0ull << 8 * count;
    return cdp__pk_push(r, cdp__pk_whole(CDP__TREE_INT, (int64_t)n));
}

CDP__PRIVATE bool cdp__pk_push_long(cdp__tree_reader *r) {
    uint64_t count;
    return cdp__pk_next_number(r, 1, &count) && cdp__pk_push_number(r, (uint32_t)count, true);
}

CDP__PRIVATE bool cdp__pk_push_real(cdp__tree_reader *r) {
    const uint8_t *const at = cdp__pk_next(r, 8);
    cdp__tree v = cdp__pk_whole(CDP__TREE_REAL, 0);
    uint64_t bits = 0;
    uint32_t i;
    if (!at) return false;
    for (i = 0; i < 8; ++i)
        bits = bits << 8 | at[i];
    memcpy(&v.as.real, &bits, sizeof bits);
    return cdp__pk_push(r, v);
}

CDP__PRIVATE bool cdp__pk_push_text(cdp__tree_reader *r, uint32_t length_bytes) {
    cdp__tree v = cdp__pk_whole(CDP__TREE_TEXT, 0);
    uint64_t length;
    if (!cdp__pk_next_number(r, length_bytes, &length)) return false;
    if (length > UINT32_MAX) return cdp__tree_bad(r, "a text is too long");
    v.as.text = (const char *)cdp__pk_next(r, length);
    v.length = (uint32_t)length;
    return v.as.text && cdp__pk_push(r, v);
}

/* ---- protocol 0: values as lines of text */

/* Takes a line without its end. */
CDP__PRIVATE bool cdp__pk_line_next(cdp__tree_reader *r, const uint8_t **line, uint64_t *bytes) {
    const uint8_t *const from = r->data + r->at;
    const uint8_t *const end =
        r->at < r->bytes ? (const uint8_t *)memchr(from, '\n', (size_t)(r->bytes - r->at)) : NULL;
    if (!end) return cdp__tree_bad(r, "a line does not end");
    *line = from;
    *bytes = (uint64_t)(end - from);
    r->at += *bytes + 1;
    return true;
}

CDP__PRIVATE bool cdp__pk_line_is(const uint8_t *line, uint64_t bytes, const char *word) {
    return bytes == strlen(word) && memcmp(line, word, (size_t)bytes) == 0;
}

/* A whole number or a real one, as Python prints it; 00 and 01 are False and True. */
CDP__PRIVATE bool cdp__pk_push_line(cdp__tree_reader *r) {
    cdp__tree v = cdp__pk_whole(CDP__TREE_REAL, 0);
    const uint8_t *line;
    uint64_t n;
    cdp__json_reader j;
    cdp__json_kind kind;
    if (!cdp__pk_line_next(r, &line, &n)) return false;
    if (n == 2 && line[0] == '0' && (line[1] | 1) == '1')
        return cdp__pk_push(r, cdp__pk_whole(CDP__TREE_BOOL, line[1] - '0'));
    if (n && line[n - 1] == 'L') --n;
    if (cdp__pk_line_is(line, n, "inf"))
        j = cdp__json_open("Infinity", 8);
    else if (cdp__pk_line_is(line, n, "-inf"))
        j = cdp__json_open("-Infinity", 9);
    else if (cdp__pk_line_is(line, n, "nan"))
        j = cdp__json_open("NaN", 3);
    else
        j = cdp__json_open(line, n);
    kind = cdp__json_next(&j);
    if ((kind != CDP__JSON_WHOLE && kind != CDP__JSON_REAL) || cdp__json_next(&j) != CDP__JSON_END)
        return cdp__tree_bad(r, "a line holds no number");
    v.as.real = j.real;
    return cdp__pk_push(r, kind == CDP__JSON_WHOLE ? cdp__pk_whole(CDP__TREE_INT, j.whole) : v);
}

/* The number after \x, \u or \U, of `digits` digits; UINT32_MAX: it is not there. */
CDP__PRIVATE uint32_t cdp__pk_escaped(const uint8_t *at, const uint8_t *end, uint32_t digits) {
    uint32_t code = 0, i;
    for (i = 0; i < digits; ++i) {
        const int digit = at + i < end ? cdp__hex_digit(at[i]) : -1;
        if (digit < 0) return UINT32_MAX;
        code = code << 4 | (uint32_t)digit;
    }
    return code;
}

/* A text in quotes, as Python 2 prints it. */
CDP__PRIVATE uint32_t cdp__pk_unquote(const uint8_t *at, const uint8_t *end, char *out) {
    static const char from[] = "nrtabfv", to[] = "\n\r\t\a\b\f\v";
    char *const start = out;
    while (at < end) {
        const char *known;
        uint32_t code;
        if (*at != '\\' || at + 1 == end) {
            *out++ = (char)*at++;
            continue;
        }
        known = at[1] ? strchr(from, at[1]) : NULL;
        code = at[1] == 'x' ? cdp__pk_escaped(at + 2, end, 2) : UINT32_MAX;
        if (code != UINT32_MAX)
            *out++ = (char)code;
        else
            *out++ = known ? to[known - from] : (char)at[1];
        at += code != UINT32_MAX ? 4 : 2;
    }
    return (uint32_t)(out - start);
}

/* A text of Latin-1 in which other characters are \u and \U. */
CDP__PRIVATE uint32_t cdp__pk_unescape(const uint8_t *at, const uint8_t *end, char *out) {
    char *const start = out;
    while (at < end) {
        const bool escaped = at[0] == '\\' && at + 1 < end && (at[1] | 32) == 'u';
        const uint32_t digits = escaped ? 4u << (at[1] == 'U') : 0;
        const uint32_t code = digits ? cdp__pk_escaped(at + 2, end, digits) : UINT32_MAX;
        out += cdp__utf8_put(code != UINT32_MAX ? code : *at, out);
        at += code != UINT32_MAX ? digits + 2 : 1;
    }
    return (uint32_t)(out - start);
}

CDP__PRIVATE bool cdp__pk_push_line_text(cdp__tree_reader *r, bool quoted) {
    cdp__tree v = cdp__pk_whole(CDP__TREE_TEXT, 0);
    const uint8_t *line;
    uint64_t n;
    char *copy;
    if (!cdp__pk_line_next(r, &line, &n)) return false;
    if (quoted && (n < 2 || line[0] != line[n - 1] || (line[0] != '"' && line[0] != '\'')))
        return cdp__tree_bad(r, "a text has no quotes");
    if (n > UINT32_MAX / 2) return cdp__tree_bad(r, "a line is too long");
    copy = (char *)cdp__chunks_room(&r->memory, 2 * n + 4);
    if (!copy) return cdp__tree_nomem(r);
    v.length = quoted ? cdp__pk_unquote(line + 1, line + n - 1, copy)
                      : cdp__pk_unescape(line, line + n, copy);
    v.as.text = copy;
    return cdp__pk_push(r, v);
}

CDP__PRIVATE bool cdp__pk_push_box(cdp__tree_reader *r, cdp__tree_kind kind) {
    cdp__tree v = cdp__pk_whole(kind, 0);
    v.as.box = cdp__tree_box_new(r);
    return v.as.box && cdp__pk_push(r, v);
}

/* Moves the last `count` values into the container below them, which must be of this kind. */
CDP__PRIVATE bool cdp__pk_fill(cdp__tree_reader *r, uint64_t count, cdp__tree_kind kind) {
    cdp__tree *box;
    const uint64_t floor = r->mark_count ? r->marks[r->mark_count - 1] : 0;
    if (r->depth < floor + count + 1) return cdp__tree_bad(r, "values are missing on the stack");
    box = &r->stack[r->depth - count - 1];
    if (box->kind != kind) return cdp__tree_bad(r, "items are added to what is no list or dict");
    if (kind == CDP__TREE_DICT && count % 2) return cdp__tree_bad(r, "a key has no value");
    r->depth -= count;
    return cdp__tree_box_add(r, box->as.box, r->stack + r->depth, count);
}

CDP__PRIVATE bool cdp__pk_mark(cdp__tree_reader *r) {
    if (!cdp__more_room(
            r->memory.os, (void **)&r->marks, &r->mark_room, r->mark_count + 1, sizeof *r->marks))
        return cdp__tree_nomem(r);
    r->marks[r->mark_count++] = r->depth;
    return true;
}

/* Removes the last mark, and returns the number of values above it. */
CDP__PRIVATE bool cdp__pk_marked(cdp__tree_reader *r, uint64_t *count) {
    if (!r->mark_count) return cdp__tree_bad(r, "there is no mark");
    *count = r->depth - r->marks[--r->mark_count];
    return true;
}

CDP__PRIVATE bool cdp__pk_fill_marked(cdp__tree_reader *r, cdp__tree_kind kind) {
    uint64_t count;
    return cdp__pk_marked(r, &count) && cdp__pk_fill(r, count, kind);
}

/* Makes a list or a dict of the last `count` values. */
CDP__PRIVATE bool cdp__pk_gather(cdp__tree_reader *r, uint64_t count, cdp__tree_kind kind) {
    cdp__tree v = cdp__pk_whole(kind, 0);
    const uint64_t floor = r->mark_count ? r->marks[r->mark_count - 1] : 0;
    if (r->depth < floor + count) return cdp__tree_bad(r, "values are missing on the stack");
    if (kind == CDP__TREE_DICT && count % 2) return cdp__tree_bad(r, "a key has no value");
    v.as.box = cdp__tree_box_new(r);
    if (!v.as.box) return false;
    r->depth -= count;
    return (!count || cdp__tree_box_add(r, v.as.box, r->stack + r->depth, count))
        && cdp__pk_push(r, v);
}

CDP__PRIVATE bool cdp__pk_gather_marked(cdp__tree_reader *r, cdp__tree_kind kind) {
    uint64_t count;
    return cdp__pk_marked(r, &count) && cdp__pk_gather(r, count, kind);
}

/* Memoizes the last value under a number. Writers count from 0, so no number exceeds the length
   of the file. */
CDP__PRIVATE bool cdp__pk_keep(cdp__tree_reader *r, uint64_t n) {
    if (!r->depth) return cdp__tree_bad(r, "there is no value to remember");
    if (n > r->bytes) return cdp__tree_bad(r, "a value is remembered under too large a number");
    if (!cdp__more_room(r->memory.os, (void **)&r->memo, &r->memo_room, n + 1, sizeof *r->memo))
        return cdp__tree_nomem(r);
    while (r->memo_count <= n)
        r->memo[r->memo_count++] = cdp__pk_whole(CDP__TREE_NONE, 1);
    r->memo[n] = r->stack[r->depth - 1];
    return true;
}

CDP__PRIVATE bool cdp__pk_keep_number(cdp__tree_reader *r, uint32_t bytes) {
    uint64_t n;
    return cdp__pk_next_number(r, bytes, &n) && cdp__pk_keep(r, n);
}

CDP__PRIVATE bool cdp__pk_again(cdp__tree_reader *r, uint64_t n) {
    if (n >= r->memo_count || (r->memo[n].kind == CDP__TREE_NONE && r->memo[n].as.whole))
        return cdp__tree_bad(r, "a value is used that was never remembered");
    return cdp__pk_push(r, r->memo[n]);
}

CDP__PRIVATE bool cdp__pk_again_number(cdp__tree_reader *r, uint32_t bytes) {
    uint64_t n;
    return cdp__pk_next_number(r, bytes, &n) && cdp__pk_again(r, n);
}

/* The same with the number as a line. */
CDP__PRIVATE bool cdp__pk_memo_line(cdp__tree_reader *r, bool keep) {
    if (!cdp__pk_push_line(r)) return false;
    const cdp__tree v = r->stack[--r->depth];
    if ((v.kind != CDP__TREE_INT && v.kind != CDP__TREE_BOOL) || v.as.whole < 0)
        return cdp__tree_bad(r, "a line holds no number");
    return keep ? cdp__pk_keep(r, (uint64_t)v.as.whole) : cdp__pk_again(r, (uint64_t)v.as.whole);
}

/* Drops the last value. */
CDP__PRIVATE bool cdp__pk_pop(cdp__tree_reader *r) {
    const uint64_t floor = r->mark_count ? r->marks[r->mark_count - 1] : 0;
    if (r->depth <= floor) return cdp__tree_bad(r, "values are missing on the stack");
    --r->depth;
    return true;
}

CDP__PRIVATE bool cdp__pk_pop_marked(cdp__tree_reader *r) {
    uint64_t count;
    if (!cdp__pk_marked(r, &count)) return false;
    r->depth -= count;
    return true;
}

CDP__PRIVATE bool cdp__pk_protocol(cdp__tree_reader *r) {
    uint64_t n;
    if (!cdp__pk_next_number(r, 1, &n)) return false;
    return (n >= 2 && n <= 5) || cdp__tree_bad(r, "this protocol is none of 2 to 5");
}

/* ---- records */

/* Makes a value of this kind of the last `count` ones. */
CDP__PRIVATE bool cdp__pk_record(cdp__tree_reader *r, uint64_t count, cdp__tree_kind kind) {
    if (!cdp__pk_gather(r, count, CDP__TREE_LIST)) return false;
    r->stack[r->depth - 1].kind = kind;
    return true;
}

CDP__PRIVATE bool cdp__pk_global(cdp__tree_reader *r) {
    uint32_t i;
    for (i = 0; i < 2; ++i) {
        cdp__tree v = cdp__pk_whole(CDP__TREE_TEXT, 0);
        const uint8_t *line;
        uint64_t n;
        if (!cdp__pk_line_next(r, &line, &n)) return false;
        v.as.text = (const char *)line;
        v.length = (uint32_t)cdp__min(n, UINT32_MAX);
        if (!cdp__pk_push(r, v)) return false;
    }
    return cdp__pk_record(r, 2, CDP__TREE_GLOBAL);
}

/* Whether a value is this global. */
CDP__PRIVATE bool cdp__pk_is(const cdp__tree *v, const char *module, const char *name) {
    return v->kind == CDP__TREE_GLOBAL && cdp__tree_is(&v->as.box->items[0], module)
        && cdp__tree_is(&v->as.box->items[1], name);
}

/* A global and its arguments, which are a record; but an OrderedDict is a dict. */
CDP__PRIVATE bool cdp__pk_made(cdp__tree_reader *r) {
    const cdp__tree *v;
    if (!cdp__pk_record(r, 2, CDP__TREE_RECORD)) return false;
    v = r->stack[r->depth - 1].as.box->items;
    if (v[0].kind != CDP__TREE_GLOBAL || v[1].kind != CDP__TREE_LIST)
        return cdp__tree_bad(r, "an object is made of what is no class");
    if (!cdp__pk_is(v, "collections", "OrderedDict") || v[1].as.box->count) return true;
    --r->depth;
    return cdp__pk_push_box(r, CDP__TREE_DICT);
}

/* The last value becomes the state of the record below it. */
CDP__PRIVATE bool cdp__pk_state(cdp__tree_reader *r) {
    const uint64_t floor = r->mark_count ? r->marks[r->mark_count - 1] : 0;
    const cdp__tree *v;
    if (r->depth < floor + 2) return cdp__tree_bad(r, "values are missing on the stack");
    v = &r->stack[--r->depth - 1];
    if (v->kind == CDP__TREE_DICT) return true; /* attributes of an OrderedDict */
    if (v->kind != CDP__TREE_RECORD || v->as.box->count != 2)
        return cdp__tree_bad(r, "a state is of no object");
    return cdp__tree_box_add(r, v->as.box, &r->stack[r->depth], 1);
}

/* Opcodes of records. */
CDP__PRIVATE bool cdp__pk_opcode_record(cdp__tree_reader *r, uint8_t code) {
    switch (r->records ? code : 0) {
    case 'c': return cdp__pk_global(r);
    case 0x93: return cdp__pk_record(r, 2, CDP__TREE_GLOBAL);
    case 'R':
    case 0x81: return cdp__pk_made(r);
    case 'b': return cdp__pk_state(r);
    case 'Q': return cdp__pk_record(r, 1, CDP__TREE_OUTSIDE);
    case 'C': return cdp__pk_push_text(r, 1);
    case 'B': return cdp__pk_push_text(r, 4);
    case 0x8d:
    case 0x8e: return cdp__pk_push_text(r, 8);
    default: r->unknown = true; return cdp__tree_bad(r, "this opcode is not known here");
    }
}

/* Opcodes that push a value. */
CDP__PRIVATE bool cdp__pk_opcode_value(cdp__tree_reader *r, uint8_t code) {
    switch (code) {
    case 'N': return cdp__pk_push(r, cdp__pk_whole(CDP__TREE_NONE, 0));
    case 0x88: return cdp__pk_push(r, cdp__pk_whole(CDP__TREE_BOOL, 1));
    case 0x89: return cdp__pk_push(r, cdp__pk_whole(CDP__TREE_BOOL, 0));
    case 'K': return cdp__pk_push_number(r, 1, false);
    case 'M': return cdp__pk_push_number(r, 2, false);
    case 'J': return cdp__pk_push_number(r, 4, true);
    case 0x8a: return cdp__pk_push_long(r);
    case 'G': return cdp__pk_push_real(r);
    case 'I':
    case 'L':
    case 'F': return cdp__pk_push_line(r);
    case 'S': return cdp__pk_push_line_text(r, true);
    case 'V': return cdp__pk_push_line_text(r, false);
    case 'T':
    case 'X': return cdp__pk_push_text(r, 4);
    case 'U':
    case 0x8c: return cdp__pk_push_text(r, 1);
    case ']': return cdp__pk_push_box(r, CDP__TREE_LIST);
    case ')': return cdp__pk_push_box(r, CDP__TREE_LIST);
    case '}': return cdp__pk_push_box(r, CDP__TREE_DICT);
    default: return cdp__pk_opcode_record(r, code);
    }
}

CDP__PRIVATE bool cdp__pk_opcode(cdp__tree_reader *r, uint8_t code) {
    switch (code) {
    case 0x80: return cdp__pk_protocol(r);
    case 0x95: return cdp__pk_next(r, 8) != NULL; /* the length of a frame */
    case '(': return cdp__pk_mark(r);
    case 'e': return cdp__pk_fill_marked(r, CDP__TREE_LIST);
    case 'a': return cdp__pk_fill(r, 1, CDP__TREE_LIST);
    case 'u': return cdp__pk_fill_marked(r, CDP__TREE_DICT);
    case 's': return cdp__pk_fill(r, 2, CDP__TREE_DICT);
    case 'l':
    case 't': return cdp__pk_gather_marked(r, CDP__TREE_LIST);
    case 'd': return cdp__pk_gather_marked(r, CDP__TREE_DICT);
    case 0x85:
    case 0x86:
    case 0x87: return cdp__pk_gather(r, code - 0x84u, CDP__TREE_LIST);
    case 'q': return cdp__pk_keep_number(r, 1);
    case 'r': return cdp__pk_keep_number(r, 4);
    case 'p': return cdp__pk_memo_line(r, true);
    case 'h': return cdp__pk_again_number(r, 1);
    case 'j': return cdp__pk_again_number(r, 4);
    case 'g': return cdp__pk_memo_line(r, false);
    case '0': return cdp__pk_pop(r);
    case '1': return cdp__pk_pop_marked(r);
    case '2': return r->depth ? cdp__pk_push(r, r->stack[r->depth - 1]) : cdp__pk_pop(r);
    case 0x94: return cdp__pk_keep(r, r->memo_count);
    default: return cdp__pk_opcode_value(r, code);
    }
}

/* Reads the value of a pickle. Bytes after its end are ignored. */
CDP__PRIVATE bool cdp__unpickle(cdp__tree_reader *r, cdp__tree *out) {
    const uint8_t *code;
    while ((code = cdp__pk_next(r, 1)) != NULL && *code != '.')
        if (!cdp__pk_opcode(r, *code)) return false;
    if (!code) return false;
    if (r->depth != 1 || r->mark_count) return cdp__tree_bad(r, "it does not end with one value");
    *out = r->stack[0];
    return true;
}

#endif /* CDP_SRC_TEXT_UNPICKLE_H */

/* ---- >>mem/unjson: JSON as a tree ------------------------------------------------------------ */

/* Knows: which piece of JSON is which value. Promises: no recursion; texts with escapes are
   copied. */

CDP__PRIVATE bool cdp__mem_json_text(
    cdp__tree_reader *r, const cdp__json_reader *j, cdp__tree *out) {
    char *copy;
    *out = cdp__pk_whole(CDP__TREE_TEXT, 0);
    out->as.text = (const char *)j->text;
    out->length = (uint32_t)cdp__min(j->length, UINT32_MAX);
    if (!j->escapes) return true;
    copy = (char *)cdp__chunks_room(&r->memory, j->length + 1);
    if (!copy) return cdp__tree_nomem(r);
    out->length = (uint32_t)cdp__min(cdp__json_decode(j, copy), UINT32_MAX);
    out->as.text = copy;
    return true;
}

/* Makes a value of a piece. A container is pushed on the stack of those that are open. */
CDP__PRIVATE bool cdp__mem_json_value(
    cdp__tree_reader *r, const cdp__json_reader *j, cdp__json_kind kind, cdp__tree *out) {
    switch (kind) {
    case CDP__JSON_KEY:
    case CDP__JSON_TEXT: return cdp__mem_json_text(r, j, out);
    case CDP__JSON_WHOLE: *out = cdp__pk_whole(CDP__TREE_INT, j->whole); break;
    case CDP__JSON_REAL:
        *out = cdp__pk_whole(CDP__TREE_REAL, 0);
        out->as.real = j->real;
        break;
    case CDP__JSON_TRUE:
    case CDP__JSON_FALSE: *out = cdp__pk_whole(CDP__TREE_BOOL, kind == CDP__JSON_TRUE); break;
    case CDP__JSON_DICT:
    case CDP__JSON_LIST:
        if (!cdp__pk_push_box(r, kind == CDP__JSON_DICT ? CDP__TREE_DICT : CDP__TREE_LIST))
            return false;
        *out = r->stack[r->depth - 1];
        break;
    default: *out = cdp__pk_whole(CDP__TREE_NONE, 0); break;
    }
    return true;
}

CDP__PRIVATE bool cdp__mem_unjson(cdp__tree_reader *r, cdp__tree *out) {
    cdp__json_reader j = cdp__json_open(r->data, r->bytes);
    cdp__json_kind kind;
    for (; (kind = cdp__json_next(&j)) != CDP__JSON_END; r->at = j.at) {
        cdp__tree_box *const in = r->depth ? r->stack[r->depth - 1].as.box : NULL;
        cdp__tree v;
        if (kind == CDP__JSON_CLOSE) {
            --r->depth;
            continue;
        }
        r->at = j.at;
        if (kind == CDP__JSON_BAD) return cdp__tree_bad(r, j.why);
        if (!cdp__mem_json_value(r, &j, kind, &v)) return false;
        if (!in)
            *out = v;
        else if (!cdp__tree_box_add(r, in, &v, 1))
            return false;
    }
    return true;
}

/* ---- >>mem/others: what a file says under keys that are not known here ----------------------- */

/* Knows: how such values are kept as tokens, so that they are written again. Promises: no more
   tokens than the file has bytes: a pickle that repeats a large value loses it. */

/* Adds a token. NULL: out of memory (r->no_memory), or there are as many as the file has bytes. */
CDP__PRIVATE cdp__mem_token *cdp__mem_token_add(
    cdp__tree_reader *r, cdp_mem_shot *s, cdp__tree_kind kind, uint64_t count) {
    cdp__mem_token *t;
    if (s->token_count > r->bytes) return NULL;
    if (!cdp__mem_add(s, token, 2)) {
        cdp__tree_nomem(r);
        return NULL;
    }
    if (!s->token_count) memset(&s->tokens[s->token_count++], 0, sizeof *t);
    t = &s->tokens[s->token_count++];
    memset(t, 0, sizeof *t);
    t->kind = kind;
    t->count = (uint32_t)count;
    return t;
}

CDP__PRIVATE const char *cdp__mem_token_text(
    cdp__tree_reader *r, cdp_mem_shot *s, const char *text, uint64_t bytes) {
    const char *const copy = cdp__mem_text_of(&s->texts, text, bytes);
    if (!copy) cdp__tree_nomem(r);
    return copy;
}

/* Adds the key of a dict: a text, or a number as text. */
CDP__PRIVATE bool cdp__mem_token_key(cdp__tree_reader *r, cdp_mem_shot *s, const cdp__tree *v) {
    cdp__mem_token *const t = cdp__mem_token_add(r, s, CDP__TREE_TEXT, 0);
    char number[24] = "?";
    if (!t) return false;
    if (v->kind == CDP__TREE_INT)
        (void)cdp__format(number, sizeof number, "%lld", (long long)v->as.whole);
    t->as.text = v->kind == CDP__TREE_TEXT ? cdp__mem_token_text(r, s, v->as.text, v->length)
                                           : cdp__mem_token_text(r, s, number, strlen(number));
    return t->as.text != NULL;
}

/* Adds a value without what it holds. */
CDP__PRIVATE bool cdp__mem_token_value(cdp__tree_reader *r, cdp_mem_shot *s, const cdp__tree *v) {
    const bool box = v->kind == CDP__TREE_LIST || v->kind == CDP__TREE_DICT;
    const uint64_t count = box ? v->as.box->count : 0;
    cdp__mem_token *const t =
        cdp__mem_token_add(r, s, v->kind, v->kind == CDP__TREE_DICT ? count / 2 : count);
    if (!t) return false;
    if (v->kind == CDP__TREE_REAL)
        t->as.real = v->as.real;
    else if (v->kind == CDP__TREE_TEXT)
        t->as.text = cdp__mem_token_text(r, s, v->as.text, v->length);
    else if (!box)
        t->as.whole = v->as.whole;
    return v->kind != CDP__TREE_TEXT || t->as.text;
}

/* Adds a value and everything that it holds. */
CDP__PRIVATE bool cdp__mem_token_tree(cdp__tree_reader *r, cdp_mem_shot *s, const cdp__tree *v) {
    struct {
        const cdp__tree *box;
        uint64_t at;
    } open[CDP__MEM_DEEP];
    uint32_t depth = 0;
    for (;;) {
        if (!cdp__mem_token_value(r, s, v)) return false;
        if (v->kind == CDP__TREE_LIST || v->kind == CDP__TREE_DICT) {
            if (depth == CDP__MEM_DEEP) return false;
            open[depth].box = v;
            open[depth++].at = 0;
        }
        while (depth && open[depth - 1].at == open[depth - 1].box->as.box->count)
            --depth;
        if (!depth) return true;
        v = &open[depth - 1].box->as.box->items[open[depth - 1].at++];
        if (open[depth - 1].box->kind != CDP__TREE_DICT) continue;
        if (!cdp__mem_token_key(r, s, v)) return false;
        v = &open[depth - 1].box->as.box->items[open[depth - 1].at++];
    }
}

/* Keeps the pairs of a dict whose keys are none of these words, which end with NULL. *out: the
   number of the token, a dict; 0: there are none. */
CDP__PRIVATE bool cdp__mem_import_others(cdp__tree_reader *r, cdp_mem_shot *s,
    const cdp__tree *dict, const char *const *words, uint32_t *out) {
    const cdp__tree_box *const b = dict->kind == CDP__TREE_DICT ? dict->as.box : NULL;
    uint64_t i, k, before;
    *out = 0;
    for (i = 0; b && i + 1 < b->count; i += 2) {
        for (k = 0; words[k] && !cdp__tree_is(&b->items[i], words[k]); ++k) {
        }
        if (words[k]) continue;
        if (!*out && !cdp__mem_token_add(r, s, CDP__TREE_DICT, 0)) return !r->no_memory;
        if (!*out) *out = (uint32_t)s->token_count - 1;
        before = s->token_count;
        if (cdp__mem_token_key(r, s, &b->items[i]) && cdp__mem_token_tree(r, s, &b->items[i + 1]))
            ++s->tokens[*out].count;
        else
            s->token_count = before;
    }
    return !r->no_memory;
}

/* Keeps a whole value, if it is of this kind. */
CDP__PRIVATE bool cdp__mem_import_whole(
    cdp__tree_reader *r, cdp_mem_shot *s, const cdp__tree *v, cdp__tree_kind kind, uint32_t *out) {
    *out = 0;
    if (!v || v->kind != kind) return true;
    *out = (uint32_t)(s->token_count ? s->token_count : 1);
    if (cdp__mem_token_tree(r, s, v)) return true;
    s->token_count = *out;
    *out = 0;
    return !r->no_memory;
}

/* ---- >>mem/import: a tree as a shot ---------------------------------------------------------- */

/* Knows: the keys of a snapshot, and what unknown or missing ones mean. Promises: lists that a file
   repeats are shared or counted, so that the snapshot stays in proportion to the file. */

CDP__PRIVATE const char *cdp__mem_import_text(
    cdp_mem_shot *s, const cdp__tree *v, const char *other) {
    const char *t;
    if (!v || v->kind != CDP__TREE_TEXT) return other;
    t = cdp__mem_text_of(&s->texts, v->as.text, cdp__min(v->length, CDP__MEM_TEXT_MAX));
    if (!t) s->failed = true;
    return t ? t : s->empty;
}

/* The number of a list of frames. Equal lists of the file are converted once. */
CDP__PRIVATE uint32_t cdp__mem_import_stack(
    cdp__tree_reader *r, cdp_mem_shot *s, const cdp__tree *v) {
    static const char *const words[] = {"filename", "name", "line", NULL};
    cdp__tree_box *const b = v && v->kind == CDP__TREE_LIST ? v->as.box : NULL;
    uint64_t i;
    uint32_t n;
    if (!b || !b->count) return 0;
    if (b->mark) return b->mark - 1; /* the number of the stack + 1 */
    n = cdp__mem_shot_stack(s, b->count);
    b->mark = n + 1;
    for (i = 0; n && i < b->count; ++i) {
        cdp_mem_frame *const f = &s->frames[s->stacks[n].first + i];
        const cdp__tree *const d = &b->items[i];
        f->filename = cdp__mem_import_text(s, cdp__tree_get(d, "filename"), s->empty);
        f->name = cdp__mem_import_text(s, cdp__tree_get(d, "name"), s->empty);
        f->line = (uint32_t)(cdp__mem_number_of(cdp__tree_get(d, "line"), 0) & 0xffffffffu);
        if (!cdp__mem_import_others(r, s, d, words, &f->others)) return 0;
    }
    return n;
}

CDP__PRIVATE void cdp__mem_import_pool(const cdp__tree *dict, uint64_t pool[2]) {
    const cdp__tree *v = cdp__tree_get(dict, "segment_pool_id");
    const cdp__tree_box *b = cdp__tree_list(v ? v : cdp__tree_get(dict, "pool_id"));
    pool[0] = b && b->count == 2 ? cdp__mem_number_of(&b->items[0], 0) : 0;
    pool[1] = b && b->count == 2 ? cdp__mem_number_of(&b->items[1], 0) : 0;
}

CDP__PRIVATE uint64_t cdp__mem_import_count(const cdp__tree *dict, const char *key) {
    return cdp__mem_number_of(cdp__tree_get(dict, key), 0);
}

CDP__PRIVATE cdp_mem_state cdp__mem_import_state(const cdp__tree *v) {
    if (!v || cdp__tree_is(v, "inactive")) return CDP_MEM_INACTIVE;
    return cdp__tree_is(v, "active_allocated") ? CDP_MEM_ACTIVE : CDP_MEM_PENDING;
}

/* A block without an address follows the previous one. */
CDP__PRIVATE bool cdp__mem_import_blocks(
    cdp__tree_reader *r, cdp_mem_shot *s, cdp_mem_segment *g, const cdp__tree_box *list) {
    static const char *const words[] = {
        "address", "size", "requested_size", "state", "frames", "user_metadata", NULL};
    uint64_t i, at = g->address;
    if (!list) return true;
    if (!cdp__mem_add(s, block, list->count)) return cdp__tree_nomem(r);
    for (i = 0; i < list->count; ++i) {
        const cdp__tree *const d = &list->items[i];
        cdp_mem_block *const b = &s->blocks[s->block_count++];
        b->address = cdp__mem_number_of(cdp__tree_get(d, "address"), at);
        b->size = cdp__mem_import_count(d, "size");
        b->requested = cdp__mem_number_of(cdp__tree_get(d, "requested_size"), b->size);
        b->state = cdp__mem_import_state(cdp__tree_get(d, "state"));
        b->stack = cdp__mem_import_stack(r, s, cdp__tree_get(d, "frames"));
        b->label = cdp__mem_import_text(s, cdp__tree_get(d, "user_metadata"), NULL);
        if (!cdp__mem_import_others(r, s, d, words, &b->others)) return false;
        at = b->address + b->size;
        cdp__mem_segment_sum(g, b);
    }
    g->block_count = (uint32_t)list->count;
    return true;
}

CDP__PRIVATE bool cdp__mem_import_segment(
    cdp__tree_reader *r, cdp_mem_shot *s, const cdp__tree *d) {
    static const char *const words[] = {"device", "address", "total_size", "allocated_size",
        "active_size", "requested_size", "stream", "segment_type", "segment_pool_id", "pool_id",
        "is_expandable", "is_external", "user_metadata", "frames", "blocks", NULL};
    const cdp__tree *const type = cdp__tree_get(d, "segment_type");
    const cdp__tree_box *const blocks = cdp__tree_list(cdp__tree_get(d, "blocks"));
    const uint64_t device = cdp__mem_import_count(d, "device");
    cdp_mem_segment *g;
    if (d->kind != CDP__TREE_DICT) return cdp__tree_bad(r, "a segment is no dict");
    if (device >= CDP__MEM_DEVICES) return cdp__tree_bad(r, "a device has a number above 1023");
    if (s->block_count + (blocks ? blocks->count : 0) > r->bytes)
        return cdp__tree_bad(r, "a list of blocks is repeated too often");
    if (!cdp__mem_add(s, segment, 1)) return cdp__tree_nomem(r);
    g = &s->segments[s->segment_count++];
    memset(g, 0, sizeof *g);
    g->device = (uint32_t)device;
    g->address = cdp__mem_import_count(d, "address");
    g->size = cdp__mem_import_count(d, "total_size");
    g->stream = cdp__mem_import_count(d, "stream");
    g->large = type && cdp__tree_is(type, "large");
    g->grows = cdp__mem_import_count(d, "is_expandable") != 0;
    g->external = cdp__mem_import_count(d, "is_external") != 0;
    g->stack = cdp__mem_import_stack(r, s, cdp__tree_get(d, "frames"));
    g->label = cdp__mem_import_text(s, cdp__tree_get(d, "user_metadata"), NULL);
    cdp__mem_import_pool(d, g->pool);
    if (!cdp__mem_import_others(r, s, d, words, &g->others)) return false;
    if (!cdp__mem_shot_devices(s, device + 1)) return cdp__tree_nomem(r);
    return cdp__mem_import_blocks(r, s, g, blocks);
}

CDP__PRIVATE cdp_mem_action cdp__mem_import_action(const cdp__tree *v) {
    uint32_t i;
    for (i = 0; v && i < CDP_MEM_ACTION_COUNT; ++i)
        if (cdp__tree_is(v, cdp_mem_action_name((cdp_mem_action)i))) return (cdp_mem_action)i;
    return CDP_MEM_ACTION_COUNT;
}

/* Reads events of one device. Skips actions that only newer writers use. */
CDP__PRIVATE bool cdp__mem_import_events(
    cdp__tree_reader *r, cdp_mem_shot *s, uint32_t device, const cdp__tree_box *list) {
    static const char *const words[] = {"action", "addr", "device_free", "size", "stream",
        "time_us", "frames", "user_metadata", "segment_pool_id", "pool_id", NULL};
    cdp_mem_event *e;
    uint64_t i, count = 0;
    for (i = 0; i < s->device_count; ++i)
        count += s->devices[i].count;
    if (count + list->count > r->bytes)
        return cdp__tree_bad(r, "a list of events is repeated too often");
    e = cdp__mem_shot_events(s, device, list->count);
    if (!e && list->count) return cdp__tree_nomem(r);
    for (i = 0; i < list->count; ++i) {
        const cdp__tree *const d = &list->items[i];
        const cdp_mem_action action = cdp__mem_import_action(cdp__tree_get(d, "action"));
        if (action == CDP_MEM_ACTION_COUNT) continue;
        e->action = action;
        e->address = cdp__mem_import_count(d, "addr");
        e->device_free = cdp__mem_import_count(d, "device_free");
        e->size = cdp__mem_import_count(d, "size");
        e->stream = cdp__mem_import_count(d, "stream");
        e->time_us = cdp__mem_import_count(d, "time_us");
        e->stack = cdp__mem_import_stack(r, s, cdp__tree_get(d, "frames"));
        e->label = cdp__mem_import_text(s, cdp__tree_get(d, "user_metadata"), NULL);
        cdp__mem_import_pool(d, e->pool);
        if (!cdp__mem_import_others(r, s, d, words, &e->others)) return false;
        ++s->devices[device].count;
        ++e;
    }
    return true;
}

CDP__PRIVATE bool cdp__mem_import_traces(cdp__tree_reader *r, cdp_mem_shot *s, const cdp__tree *v) {
    const cdp__tree_box *const b = cdp__tree_list(v);
    uint64_t i;
    if (!b) return cdp__tree_bad(r, "device_traces is no list");
    if (b->count > CDP__MEM_DEVICES) return cdp__tree_bad(r, "there are more than 1024 devices");
    if (!cdp__mem_shot_devices(s, b->count)) return cdp__tree_nomem(r);
    for (i = 0; i < b->count; ++i) {
        const cdp__tree_box *const list = cdp__tree_list(&b->items[i]);
        if (!list) return cdp__tree_bad(r, "the trace of a device is no list");
        if (!cdp__mem_import_events(r, s, (uint32_t)i, list)) return false;
    }
    return true;
}

CDP__PRIVATE bool cdp__mem_import_modules(cdp_mem_shot *s, const cdp__tree_box *b) {
    uint64_t i;
    for (i = 0; b && i < b->count; ++i) {
        cdp__mem_module *k;
        if (!cdp__mem_add(s, module, 1) || !cdp__mem_add(s, module_path, 1)) return false;
        k = &s->modules[s->module_count++];
        memset(k, 0, sizeof *k);
        k->base = cdp__mem_import_count(&b->items[i], "base");
        k->path = (uint32_t)s->module_path_count;
        s->module_paths[s->module_path_count++] =
            cdp__mem_import_text(s, cdp__tree_get(&b->items[i], "path"), s->empty);
    }
    return true;
}

CDP__PRIVATE bool cdp__mem_import(cdp__tree_reader *r, cdp_mem_shot *s, const cdp__tree *v) {
    static const char *const words[] = {"segments", "device_traces", "allocator_settings",
        "external_annotations", "events_lost", "stacks_lost", "labels_lost", "modules", NULL};
    const cdp__tree_box *const segments = cdp__tree_list(cdp__tree_get(v, "segments"));
    uint64_t i;
    if (!segments) return cdp__tree_bad(r, "it is no snapshot: there is no list of segments");
    for (i = 0; i < segments->count; ++i)
        if (!cdp__mem_import_segment(r, s, &segments->items[i])) return false;
    cdp__mem_shot_link(s);
    if (!cdp__mem_import_traces(r, s, cdp__tree_get(v, "device_traces"))) return false;
    if (!cdp__mem_import_whole(
            r, s, cdp__tree_get(v, "allocator_settings"), CDP__TREE_DICT, &s->file_settings)
        || !cdp__mem_import_whole(
            r, s, cdp__tree_get(v, "external_annotations"), CDP__TREE_LIST, &s->annotations)
        || !cdp__mem_import_others(r, s, v, words, &s->others))
        return false;
    s->events_lost = cdp__mem_import_count(v, "events_lost");
    s->stacks_lost = cdp__mem_import_count(v, "stacks_lost");
    s->labels_lost = cdp__mem_import_count(v, "labels_lost");
    if (!cdp__mem_import_modules(s, cdp__tree_list(cdp__tree_get(v, "modules"))))
        return cdp__tree_nomem(r);
    return s->failed ? cdp__tree_nomem(r) : true;
}

/* ---- >>mem/timeline: lifetimes of memory ----------------------------------------------------- */

/* Knows: the elements of a picture. An element was allocated by one event and freed by another; or
   existed at the beginning, or exists at the end. Promises: sums at the peak and at the end are
   those of the elements. */

#define CDP__MEM_ALWAYS UINT64_MAX

typedef struct cdp__mem_element {
    uint64_t address, size;
    uint64_t from, to; /* numbers of events; from 0 with `before`: was there; to ALWAYS: is there */
    uint32_t stack;
    bool before, drawn;
    const char *label;
} cdp__mem_element;

typedef struct cdp__mem_line { /* of one device */
    const cdp_mem_shot *shot;
    const cdp_mem_event *events;
    uint64_t event_count;
    cdp__mem_element *elements;
    uint64_t count, room;
    /* for each event, number + 1 of the element that it begins or ends; 0: none */
    uint32_t *of_event;
    uint64_t *live_at; /* open addressing: address ... */
    uint32_t *live;    /* ... to element + 1; 0: freed */
    uint64_t mask;
    double peak, end;
    uint64_t peak_event;
} cdp__mem_line;

CDP__PRIVATE void cdp__mem_line_close(cdp__mem_line *l) {
    const cdp_os *const os = l->shot->os;
    cdp__free(os, l->elements);
    cdp__free(os, l->of_event);
    cdp__free(os, l->live_at);
    cdp__free(os, l->live);
}

CDP__PRIVATE uint64_t cdp__mem_line_slot(const cdp__mem_line *l, uint64_t address) {
    uint64_t i = cdp__mem_mix(1, address) & l->mask;
    while (l->live_at[i] && l->live_at[i] != address)
        i = (i + 1) & l->mask;
    l->live_at[i] = address;
    return i;
}

CDP__PRIVATE cdp__mem_element *cdp__mem_line_add(
    cdp__mem_line *l, uint64_t address, uint64_t size, uint32_t stack, const char *label) {
    cdp__mem_element *e;
    if (!cdp__more_room(l->shot->os, (void **)&l->elements, &l->room, l->count + 1, sizeof *e))
        return NULL;
    e = &l->elements[l->count++];
    memset(e, 0, sizeof *e);
    e->address = address;
    e->size = size;
    e->stack = stack;
    e->label = label;
    e->to = CDP__MEM_ALWAYS;
    return e;
}

CDP__PRIVATE bool cdp__mem_line_begin(cdp__mem_line *l, uint64_t i) {
    const cdp_mem_event *const ev = &l->events[i];
    const uint64_t slot = cdp__mem_line_slot(l, ev->address);
    cdp__mem_element *const e = cdp__mem_line_add(l, ev->address, ev->size, ev->stack, ev->label);
    if (!e) return false;
    e->from = i;
    l->live[slot] = l->of_event[i] = (uint32_t)l->count;
    return true;
}

/* Ends an element. Without a recorded beginning, it existed before. */
CDP__PRIVATE bool cdp__mem_line_finish(cdp__mem_line *l, uint64_t i) {
    const cdp_mem_event *const ev = &l->events[i];
    const uint64_t slot = cdp__mem_line_slot(l, ev->address);
    if (!l->live[slot]) {
        cdp__mem_element *const e =
            cdp__mem_line_add(l, ev->address, ev->size, ev->stack, ev->label);
        if (!e) return false;
        e->before = true;
        l->live[slot] = (uint32_t)l->count;
    }
    l->elements[l->live[slot] - 1].to = i;
    l->of_event[i] = l->live[slot];
    l->live[slot] = 0;
    return true;
}

/* Adds elements of the final state that no event began. */
CDP__PRIVATE bool cdp__mem_line_rest(cdp__mem_line *l, uint32_t device, bool segments) {
    const cdp_mem_shot *const s = l->shot;
    uint64_t i, j;
    for (i = 0; i < s->segment_count; ++i) {
        const cdp_mem_segment *const g = &s->segments[i];
        const uint64_t parts = segments ? 1 : g->block_count;
        if (g->device != device) continue;
        for (j = 0; j < parts; ++j) {
            const cdp_mem_block *const b = segments ? NULL : &g->blocks[j];
            const uint64_t at = b ? b->address : g->address;
            cdp__mem_element *e;
            if ((b && b->state != CDP_MEM_ACTIVE) || l->live[cdp__mem_line_slot(l, at)]) continue;
            e = cdp__mem_line_add(l, at, b ? b->requested : g->size, b ? b->stack : g->stack,
                b ? b->label : g->label);
            if (!e) return false;
            e->before = true;
        }
    }
    return true;
}

/* Computes the sums over time. */
CDP__PRIVATE void cdp__mem_line_sums(cdp__mem_line *l) {
    double now = 0;
    uint64_t i;
    for (i = 0; i < l->count; ++i)
        if (l->elements[i].before) now += (double)l->elements[i].size;
    l->peak = now;
    for (i = 0; i < l->event_count; ++i) {
        const cdp__mem_element *e;
        if (!l->of_event[i]) continue;
        e = &l->elements[l->of_event[i] - 1];
        if (e->to == i)
            now -= (double)e->size;
        else
            now += (double)e->size;
        if (now <= l->peak) continue;
        l->peak = now;
        l->peak_event = i;
    }
    l->end = now;
}

CDP__PRIVATE bool cdp__mem_line_walk(cdp__mem_line *l, uint32_t device, bool segments) {
    const cdp_mem_action begin = segments ? CDP_MEM_SEGMENT_ALLOC : CDP_MEM_ALLOC;
    const cdp_mem_action end = segments ? CDP_MEM_SEGMENT_FREE : CDP_MEM_FREE_COMPLETED;
    uint64_t i;
    for (i = 0; i < l->event_count; ++i) {
        const cdp_mem_action a = l->events[i].action;
        if (a == begin && !cdp__mem_line_begin(l, i)) return false;
        if (a == end && !cdp__mem_line_finish(l, i)) return false;
    }
    if (!cdp__mem_line_rest(l, device, segments)) return false;
    cdp__mem_line_sums(l);
    return true;
}

/* Makes the elements of a device: blocks, or segments. False: out of memory. */
CDP__PRIVATE bool cdp__mem_line_open(
    cdp__mem_line *l, const cdp_mem_shot *s, uint32_t device, bool segments) {
    const uint64_t n = device < s->device_count ? s->devices[device].count : 0;
    memset(l, 0, sizeof *l);
    l->shot = s;
    l->event_count = n;
    l->events = n ? s->devices[device].events : NULL;
    l->mask = 64;
    while (l->mask < 2 * (n + s->block_count + s->segment_count))
        l->mask *= 2;
    l->live_at = (uint64_t *)cdp__alloc_zero(s->os, l->mask * sizeof *l->live_at);
    l->live = (uint32_t *)cdp__alloc_zero(s->os, l->mask * sizeof *l->live);
    l->of_event = (uint32_t *)cdp__alloc_zero(s->os, (n + 1) * sizeof *l->of_event);
    --l->mask;
    if (l->live_at && l->live && l->of_event && cdp__mem_line_walk(l, device, segments))
        return true;
    cdp__mem_line_close(l);
    return false;
}

/* ---- >>mem/holders: who holds memory --------------------------------------------------------- */

/* Knows: the rows of reports: labels, places or stacks, and which frames are skipped. Promises:
   equal holders of one shot or of two have one row; the largest row comes first. */

typedef struct cdp__mem_sum { /* a row: a label, or frames */
    const char *label;        /* NULL: the frames; without any, nobody knows */
    const cdp_mem_frame *frames;
    uint32_t frame_count;
    double bytes; /* negative: less than before */
    int64_t blocks;
} cdp__mem_sum;

/* True if a list of names, separated by commas, has this one; see cdp_mem_shot_rows. */
CDP__PRIVATE bool cdp__mem_skips(const char *list, const char *name) {
    while (list && *list) {
        const uint64_t n = strcspn(list, ",");
        const bool rest = n && list[n - 1] == '*';
        if (rest && strncmp(list, name, (size_t)(n - 1)) == 0) return true;
        if (!rest && strlen(name) == n && memcmp(list, name, (size_t)n) == 0) return true;
        list += n;
        list += *list == ',';
    }
    return false;
}

/* Sets the holder of a block of `s`, as `how` wants rows. */
CDP__PRIVATE void cdp__mem_sum_holder(const cdp_mem_shot *s, const cdp_mem_shot *how,
    const char *label, uint32_t stack, cdp__mem_sum *out) {
    const cdp__mem_stack *const k = &s->stacks[stack];
    const cdp_mem_frame *const f = k->count ? s->frames + k->first : NULL;
    uint32_t from = 0;
    out->label = label && (!f || how->rows == CDP_MEM_ROWS_LABEL) ? label : NULL;
    out->frames = NULL;
    out->frame_count = 0;
    if (out->label || !f) return;
    while (from + 1 < k->count && cdp__mem_skips(how->skip, f[from].name))
        ++from;
    out->frames = f + from;
    out->frame_count = how->rows == CDP_MEM_ROWS_STACK ? k->count - from : 1;
}

CDP__PRIVATE int cdp__mem_frame_order(const cdp_mem_frame *x, const cdp_mem_frame *y) {
    int order = strcmp(x->name, y->name);
    if (!order) order = strcmp(x->filename, y->filename);
    if (!order && x->line != y->line) order = x->line < y->line ? -1 : 1;
    return order;
}

/* Labels come first, and shorter stacks before longer ones that begin with them. */
CDP__PRIVATE int cdp__mem_sum_by_holder(const void *a, const void *b) {
    const cdp__mem_sum *const x = (const cdp__mem_sum *)a, *const y = (const cdp__mem_sum *)b;
    uint32_t i;
    if (x->label && y->label) return strcmp(x->label, y->label);
    if (x->label || y->label) return x->label ? -1 : 1;
    for (i = 0; i < x->frame_count && i < y->frame_count; ++i) {
        const int order = cdp__mem_frame_order(&x->frames[i], &y->frames[i]);
        if (order) return order;
    }
    if (x->frame_count == y->frame_count) return 0;
    return x->frame_count < y->frame_count ? -1 : 1;
}

CDP__PRIVATE int cdp__mem_sum_by_bytes(const void *a, const void *b) {
    const double x = ((const cdp__mem_sum *)a)->bytes, y = ((const cdp__mem_sum *)b)->bytes;
    const double p = x < 0 ? -x : x, q = y < 0 ? -y : y;
    if (p > q || p < q) return p > q ? -1 : 1;
    return cdp__mem_sum_by_holder(a, b);
}

/* Merges sums of equal holders and sorts them, largest first. Returns their number. */
CDP__PRIVATE uint64_t cdp__mem_sums(cdp__mem_sum *at, uint64_t count) {
    uint64_t i, n = 0;
    if (!count) return 0;
    qsort(at, (size_t)count, sizeof *at, cdp__mem_sum_by_holder);
    for (i = 0; i < count; ++i) {
        if (n && cdp__mem_sum_by_holder(&at[n - 1], &at[i]) == 0) {
            at[n - 1].bytes += at[i].bytes;
            at[n - 1].blocks += at[i].blocks;
        } else
            at[n++] = at[i];
    }
    qsort(at, (size_t)n, sizeof *at, cdp__mem_sum_by_bytes);
    return n;
}

/* Sums by holder right after an event; ALWAYS: at the end. */
CDP__PRIVATE uint64_t cdp__mem_line_holders(
    const cdp__mem_line *l, uint64_t at, cdp__mem_sum *out) {
    uint64_t i, n = 0;
    for (i = 0; i < l->count; ++i) {
        const cdp__mem_element *const e = &l->elements[i];
        if ((!e->before && e->from > at) || (e->to != CDP__MEM_ALWAYS && e->to <= at)) continue;
        cdp__mem_sum_holder(l->shot, l->shot, e->label, e->stack, &out[n]);
        out[n].bytes = (double)e->size;
        out[n++].blocks = 1;
    }
    return cdp__mem_sums(out, n);
}

/* Active blocks of a shot as sums, multiplied by `sign`, in the rows of `how`. */
CDP__PRIVATE uint64_t cdp__mem_sums_of(
    const cdp_mem_shot *s, const cdp_mem_shot *how, double sign, cdp__mem_sum *out) {
    uint64_t i, n = 0;
    for (i = 0; i < s->block_count; ++i) {
        const cdp_mem_block *const b = &s->blocks[i];
        if (b->state == CDP_MEM_INACTIVE) continue;
        cdp__mem_sum_holder(s, how, b->label, b->stack, &out[n]);
        out[n].bytes = sign * (double)b->size;
        out[n++].blocks = sign > 0 ? 1 : -1;
    }
    return n;
}

/* "function (file.c:12)", or the name alone where no line is known. */
CDP__PRIVATE void cdp__mem_frame_text(cdp__text *t, const cdp_mem_frame *f) {
    const char *const slash = strrchr(f->filename, '/');
    cdp__text_add(t, "%s", f->name);
    if (f->line)
        cdp__text_add(
            t, "%s(%s:%u)", f->name[0] ? " " : "", slash ? slash + 1 : f->filename, f->line);
}

/* The name of a holder; the frames of a stack, the innermost first, with " < " between them. */
CDP__PRIVATE void cdp__mem_holder_name(cdp__text *t, const cdp__mem_sum *h) {
    uint32_t i;
    if (h->label) cdp__text_add(t, "%s", h->label);
    for (i = 0; i < h->frame_count; ++i) {
        if (i) cdp__text_add(t, " < ");
        cdp__mem_frame_text(t, &h->frames[i]);
    }
    if (!h->label && !h->frame_count) cdp__text_add(t, "(unknown)");
}

CDP_API cdp_status cdp_mem_shot_rows(cdp_mem_shot *shot, cdp_mem_rows rows, const char *skip) {
    const char *copy = NULL;
    if (cdp__mem_shot_here(shot, "cdp_mem_shot_rows") != CDP_OK) return cdp_last_error()->status;
    if ((uint32_t)rows > CDP_MEM_ROWS_STACK)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_mem_shot_rows: there are no rows %u", (unsigned)rows);
    if (skip) copy = cdp__mem_text_of(&shot->texts, skip, strlen(skip));
    if (skip && !copy) return cdp__fail_nomem("cdp_mem_shot_rows", strlen(skip));
    shot->rows = rows;
    shot->skip = copy;
    return CDP_OK;
}

/* ---- >>mem/svg: pictures --------------------------------------------------------------------- */

/* Knows: how to draw memory over time, and segments with their blocks. Promises: pictures are
   readable on dark and light pages, need no script and no font, and have a bounded number of
   elements. */

#define CDP__MEM_DRAWN 1000u  /* elements; smaller ones become one area */
#define CDP__MEM_COLUMNS 800u /* steps in x */
#define CDP__MEM_SHOWN 130u   /* bytes of a name */
#define CDP__MEM_LEFT 80.0
#define CDP__MEM_TOP 50.0
#define CDP__MEM_WIDTH 1100.0
#define CDP__MEM_HEIGHT 400.0

/* Writes a text, truncated to about `most` bytes. */
CDP__PRIVATE void cdp__mem_put_xml(cdp__mem_output *w, const char *text, uint64_t most) {
    const uint8_t *at = (const uint8_t *)text, *const end = at + strlen(text);
    const uint8_t *const limit = at + cdp__min(most, (uint64_t)(end - at));
    while (at < limit) {
        const uint8_t *const from = at;
        const uint32_t c = cdp__utf8_next(&at, end);
        if (c == '<')
            cdp__mem_put_text(w, "&lt;");
        else if (c == '>')
            cdp__mem_put_text(w, "&gt;");
        else if (c == '&')
            cdp__mem_put_text(w, "&amp;");
        else if (c == '"')
            cdp__mem_put_text(w, "&quot;");
        else if (c < 32 || c == '?')
            cdp__mem_put(w, '?');
        else
            cdp__text_bytes(&w->text, from, (uint64_t)(at - from));
    }
    if (at < end) cdp__mem_put_text(w, "...");
}

CDP__PRIVATE void cdp__mem_put_size(cdp__mem_output *w, double bytes) {
    char text[32];
    uint64_t n = 0;
    if (bytes > 0) n = bytes < 9e18 ? (uint64_t)bytes : UINT64_MAX / 2;
    cdp__mem_put_text(w, cdp__mem_size_text(text, n));
}

/* Says what a recording could not keep, each after `before`. */
CDP__PRIVATE void cdp__mem_put_lost(cdp__mem_output *w, const cdp_mem_shot *s, const char *before) {
    if (s->events_lost)
        cdp__text_add(&w->text, "%s%llu older ones were overwritten", before,
            (unsigned long long)s->events_lost);
    if (s->stacks_lost)
        cdp__text_add(&w->text, "%s%llu calls have no stack, because max_stacks is too small",
            before, (unsigned long long)s->stacks_lost);
    if (s->labels_lost)
        cdp__text_add(&w->text, "%s%llu calls have no label, because memory ran out", before,
            (unsigned long long)s->labels_lost);
}

CDP__PRIVATE void cdp__mem_svg_begin(cdp__mem_output *w, double height, const char *title) {
    cdp__mem_put_text(w, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1200 ");
    cdp__text_tenths(&w->text, height);
    cdp__mem_put_text(w,
        "\" font-family=\"sans-serif\" font-size=\"13\">\n<style>\n"
        ".page { fill: #fff } text { fill: #222 } .axis { stroke: #888 } .rest { fill: #ccc }\n"
        ".sum { stroke: #222; fill: none } .oom { stroke: #d00; stroke-width: 2 }\n"
        ".block { stroke: #fff; stroke-width: 0.6 } .segment { fill: none; stroke: #888 }\n"
        ".lost { fill: #d00 }\n"
        "@media (prefers-color-scheme: dark) { .page { fill: #181818 } text { fill: #ddd }\n"
        ".rest { fill: #555 } .sum { stroke: #ddd } .block { stroke: #181818 }\n"
        ".oom { stroke: #f55 } .lost { fill: #f55 } }\n</style>\n");
    /* an explicit background, because not all SVG viewers support CSS or dark pages */
    cdp__mem_put_text(w, "<rect class=\"page\" width=\"1200\" height=\"");
    cdp__text_tenths(&w->text, height);
    cdp__mem_put_text(w, "\"/>\n");
    cdp__text_add(&w->text, "<text x=\"80\" y=\"22\" font-size=\"16\">%s</text>\n", title);
}

#define CDP__MEM_RED 2u /* too similar to the colour of lost bytes */

CDP__PRIVATE uint32_t cdp__mem_colour(uint64_t i) {
    static const uint32_t colours[10] = {0x4e79a7, 0xf28e2c, 0xe15759, 0x76b7b2, 0x59a14f, 0xedc949,
        0xaf7aa1, 0xff9da7, 0x9c755f, 0xbab0ab};
    return colours[i % 10];
}

typedef struct cdp__mem_point { /* lower edge of an element, from a column on */
    uint64_t element;
    uint32_t column;
    double y; /* bytes below it */
} cdp__mem_point;

typedef struct cdp__mem_plot {
    cdp__mem_line line;
    uint32_t columns;
    double top; /* bytes at the upper end */
    cdp__mem_point *points;
    uint64_t point_count, point_room;
    uint64_t *live; /* drawn elements, the lowest first */
    double *y;      /* bytes below each drawn element, by element */
    uint64_t live_count;
    double sum[CDP__MEM_COLUMNS], drawn[CDP__MEM_COLUMNS], most[CDP__MEM_COLUMNS];
} cdp__mem_plot;

CDP__PRIVATE int cdp__mem_sizes_down(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    if (x == y) return 0;
    return x > y ? -1 : 1;
}

/* Chooses the largest elements for drawing. */
CDP__PRIVATE void cdp__mem_plot_choose(cdp__mem_plot *p) {
    cdp__mem_line *const l = &p->line;
    uint64_t i, least = 0, n = 0;
    if (l->count > CDP__MEM_DRAWN) {
        for (i = 0; i < l->count; ++i)
            p->live[i] = l->elements[i].size;
        qsort(p->live, (size_t)l->count, sizeof *p->live, cdp__mem_sizes_down);
        least = p->live[CDP__MEM_DRAWN - 1];
    }
    for (i = 0; i < l->count && n < CDP__MEM_DRAWN; ++i) {
        l->elements[i].drawn = l->elements[i].size >= least && l->elements[i].size;
        n += l->elements[i].drawn;
    }
}

/* Computes the positions of drawn elements at the end of a column; adds a point for each that
   has moved. */
CDP__PRIVATE bool cdp__mem_plot_column(cdp__mem_plot *p, uint32_t column, uint64_t last) {
    double y = 0;
    uint64_t i, n = 0;
    for (i = 0; i < p->live_count; ++i) {
        const uint64_t at = p->live[i];
        const cdp__mem_element *const e = &p->line.elements[at];
        if (e->to <= last && e->to != CDP__MEM_ALWAYS) continue;
        p->live[n++] = at;
        if (p->y[at] < y || p->y[at] > y) {
            cdp__mem_point *k;
            if (!cdp__more_room(p->line.shot->os, (void **)&p->points, &p->point_room,
                    p->point_count + 1, sizeof *p->points))
                return false;
            k = &p->points[p->point_count++];
            k->element = at;
            k->column = column;
            k->y = p->y[at] = y;
        }
        y += (double)e->size;
    }
    p->live_count = n;
    p->drawn[column] = y;
    return true;
}

CDP__PRIVATE uint64_t cdp__mem_plot_until(const cdp__mem_plot *p, uint32_t column) {
    return (column + 1ull) * p->line.event_count / p->columns;
}

/* Walks through all events, column by column. */
CDP__PRIVATE bool cdp__mem_plot_walk(cdp__mem_plot *p) {
    const cdp__mem_line *const l = &p->line;
    double now = 0;
    uint64_t i = 0, j;
    uint32_t c;
    for (j = 0; j < l->count; ++j) {
        p->y[j] = -1;
        if (!l->elements[j].before) continue;
        now += (double)l->elements[j].size;
        if (l->elements[j].drawn) p->live[p->live_count++] = j;
    }
    for (c = 0; c < p->columns; ++c) {
        const uint64_t until = cdp__mem_plot_until(p, c);
        p->most[c] = now;
        for (; i < until; ++i) {
            const uint32_t n = l->of_event[i];
            const cdp__mem_element *const e = n ? &l->elements[n - 1] : NULL;
            if (!e) continue;
            if (e->to == i)
                now -= (double)e->size;
            else
                now += (double)e->size;
            if (e->to != i && e->drawn) p->live[p->live_count++] = n - 1;
            if (now > p->most[c]) p->most[c] = now;
        }
        p->sum[c] = now;
        if (!cdp__mem_plot_column(p, c, until ? until - 1 : 0)) return false;
    }
    return true;
}

CDP__PRIVATE double cdp__mem_plot_x(const cdp__mem_plot *p, double column) {
    return CDP__MEM_LEFT + CDP__MEM_WIDTH * column / p->columns;
}

CDP__PRIVATE double cdp__mem_plot_y(const cdp__mem_plot *p, double bytes) {
    return CDP__MEM_TOP + CDP__MEM_HEIGHT * (1 - bytes / p->top);
}

CDP__PRIVATE void cdp__mem_svg_point(
    cdp__mem_output *w, const cdp__mem_plot *p, double x, double y) {
    cdp__text_tenths(&w->text, cdp__mem_plot_x(p, x));
    cdp__mem_put(w, ',');
    cdp__text_tenths(&w->text, cdp__mem_plot_y(p, y));
    cdp__mem_put(w, ' ');
}

/* Draws an edge of an element, `up` bytes above its lower one, to the right or back. */
CDP__PRIVATE void cdp__mem_svg_edge(cdp__mem_output *w, const cdp__mem_plot *p,
    const cdp__mem_point *k, uint64_t count, uint32_t end, double up, bool back) {
    uint64_t i;
    if (back) cdp__mem_svg_point(w, p, end, k[count - 1].y + up);
    for (i = 0; i < count; ++i) {
        const uint64_t n = back ? count - 1 - i : i;
        const bool slides = n > 0 && k[n].column > 0;
        if (slides && !back) cdp__mem_svg_point(w, p, k[n].column - 1.0, k[n - 1].y + up);
        cdp__mem_svg_point(w, p, k[n].column, k[n].y + up);
        if (slides && back) cdp__mem_svg_point(w, p, k[n].column - 1.0, k[n - 1].y + up);
    }
    if (!back) cdp__mem_svg_point(w, p, end, k[count - 1].y + up);
}

CDP__PRIVATE void cdp__mem_svg_title(
    cdp__mem_output *w, const cdp_mem_shot *s, const cdp__mem_element *e) {
    const cdp__mem_stack *const k = &s->stacks[e->stack];
    uint32_t i;
    cdp__mem_put_text(w, "<title>");
    cdp__mem_put_size(w, (double)e->size);
    cdp__text_add(&w->text, " at 0x%llx", (unsigned long long)e->address);
    if (e->label) cdp__mem_put_text(w, ", ");
    if (e->label) cdp__mem_put_xml(w, e->label, CDP__MEM_SHOWN);
    for (i = 0; i < k->count && i < 6; ++i) {
        cdp__mem_put(w, '\n');
        cdp__mem_put_xml(w, s->frames[k->first + i].name, CDP__MEM_SHOWN);
    }
    cdp__mem_put_text(w, "</title>");
}

CDP__PRIVATE void cdp__mem_svg_element(
    cdp__mem_output *w, const cdp__mem_plot *p, const cdp__mem_point *k, uint64_t count) {
    const uint64_t at = k[0].element, n = cdp__max(p->line.event_count, (uint64_t)1);
    const cdp__mem_element *const e = &p->line.elements[at];
    const uint32_t end = e->to == CDP__MEM_ALWAYS ? p->columns : (uint32_t)(e->to * p->columns / n);
    cdp__text_add(&w->text, "<polygon fill=\"#%x\" points=\"", cdp__mem_colour(at));
    cdp__mem_svg_edge(w, p, k, count, end, 0, false);
    cdp__mem_svg_edge(w, p, k, count, end, (double)e->size, true);
    cdp__mem_put_text(w, "\">");
    cdp__mem_svg_title(w, p->line.shot, e);
    cdp__mem_put_text(w, "</polygon>\n");
}

CDP__PRIVATE int cdp__mem_points_order(const void *a, const void *b) {
    const cdp__mem_point *const x = (const cdp__mem_point *)a, *const y = (const cdp__mem_point *)b;
    if (x->element != y->element) return x->element < y->element ? -1 : 1;
    if (x->column == y->column) return 0;
    return x->column < y->column ? -1 : 1;
}

CDP__PRIVATE void cdp__mem_svg_elements(cdp__mem_output *w, cdp__mem_plot *p) {
    uint64_t i, from = 0;
    if (p->point_count)
        qsort(p->points, (size_t)p->point_count, sizeof *p->points, cdp__mem_points_order);
    for (i = 1; i <= p->point_count; ++i) {
        if (i < p->point_count && p->points[i].element == p->points[from].element) continue;
        cdp__mem_svg_element(w, p, p->points + from, i - from);
        from = i;
    }
}

/* Draws the remaining elements as one area, and the sum as a line. */
CDP__PRIVATE void cdp__mem_svg_sum(cdp__mem_output *w, const cdp__mem_plot *p) {
    uint32_t i;
    cdp__mem_put_text(w, "<polygon class=\"rest\" points=\"");
    for (i = 0; i < p->columns; ++i)
        cdp__mem_svg_point(w, p, i, p->drawn[i]);
    for (i = p->columns; i > 0; --i)
        cdp__mem_svg_point(
            w, p, i - 1, p->sum[i - 1] > p->drawn[i - 1] ? p->sum[i - 1] : p->drawn[i - 1]);
    cdp__mem_put_text(w, "\"><title>smaller ones, summarized</title></polygon>\n");
    cdp__mem_put_text(w, "<polyline class=\"sum\" points=\"");
    for (i = 0; i < p->columns; ++i)
        cdp__mem_svg_point(w, p, i, p->most[i]);
    cdp__mem_put_text(w, "\"/>\n");
}

CDP__PRIVATE void cdp__mem_svg_marks(cdp__mem_output *w, const cdp__mem_plot *p) {
    const cdp__mem_line *const l = &p->line;
    uint64_t i, n = 0;
    for (i = 0; i < l->event_count && n < 100; ++i) {
        const bool oom = l->events[i].action == CDP_MEM_OOM;
        const double x = cdp__mem_plot_x(p, (double)i * p->columns / (double)l->event_count);
        if (!oom && l->events[i].action != CDP_MEM_SNAPSHOT) continue;
        cdp__mem_put_text(w,
            oom ? "<line class=\"oom\" y1=\"50\" y2=\"450\" x1=\""
                : "<line class=\"axis\" y1=\"50\" y2=\"450\" x1=\"");
        cdp__text_tenths(&w->text, x);
        cdp__mem_put_text(w, "\" x2=\"");
        cdp__text_tenths(&w->text, x);
        cdp__mem_put_text(w, oom ? "\"><title>out of memory: no " : "\"><title>snapshot");
        if (oom) cdp__mem_put_size(w, (double)l->events[i].size);
        cdp__mem_put_text(w, "</title></line>\n");
        ++n;
    }
}

CDP__PRIVATE bool cdp__mem_line_has(const cdp__mem_line *l, cdp_mem_action action) {
    uint64_t i = 0;
    while (i < l->event_count && l->events[i].action != action)
        ++i;
    return i < l->event_count;
}

/* Draws lines at round numbers of bytes, at most six. */
CDP__PRIVATE void cdp__mem_svg_levels(cdp__mem_output *w, const cdp__mem_plot *p) {
    double step = 1, bytes;
    while (p->top / step > 5)
        step *= 2;
    for (bytes = 0; bytes <= p->top; bytes += step) {
        const double y = cdp__mem_plot_y(p, bytes);
        cdp__mem_put_text(
            w, "<line class=\"axis\" x1=\"76\" x2=\"1180\" stroke-opacity=\"0.4\" y1=\"");
        cdp__text_tenths(&w->text, y);
        cdp__mem_put_text(w, "\" y2=\"");
        cdp__text_tenths(&w->text, y);
        cdp__mem_put_text(w, "\"/><text x=\"72\" text-anchor=\"end\" y=\"");
        cdp__text_tenths(&w->text, y + 4);
        cdp__mem_put_text(w, "\">");
        cdp__mem_put_size(w, bytes);
        cdp__mem_put_text(w, "</text>\n");
    }
}

CDP__PRIVATE void cdp__mem_svg_axes(cdp__mem_output *w, const cdp__mem_plot *p) {
    const cdp__mem_line *const l = &p->line;
    const uint64_t n = l->event_count;
    cdp__mem_svg_levels(w, p);
    cdp__text_add(&w->text, "<text x=\"80\" y=\"470\">%llu events", (unsigned long long)n);
    if (n && l->events[n - 1].time_us > l->events[0].time_us)
        cdp__text_add(&w->text, " in %llu ms",
            (unsigned long long)((l->events[n - 1].time_us - l->events[0].time_us) / 1000));
    cdp__mem_put_lost(w, l->shot, "; ");
    cdp__mem_put_text(w, "; peak ");
    cdp__mem_put_size(w, l->peak);
    cdp__text_add(&w->text, " at event %llu, end ", (unsigned long long)l->peak_event);
    cdp__mem_put_size(w, l->end);
    if (cdp__mem_line_has(l, CDP_MEM_SNAPSHOT)) cdp__mem_put_text(w, "; grey line: snapshot");
    if (cdp__mem_line_has(l, CDP_MEM_OOM)) cdp__mem_put_text(w, "; red line: out of memory");
    cdp__mem_put_text(w, "</text>\n");
}

/* The five largest holders at the peak. */
CDP__PRIVATE bool cdp__mem_svg_table(cdp__mem_output *w, const cdp__mem_plot *p) {
    const cdp_os *const os = p->line.shot->os;
    cdp__mem_sum *const sums =
        (cdp__mem_sum *)cdp__alloc(os, (p->line.count + 1) * sizeof(cdp__mem_sum));
    char bytes[2 * CDP__MEM_SHOWN]; /* longer than what is shown */
    cdp__text name;
    uint64_t i, n;
    if (!sums) return false;
    n = cdp__mem_line_holders(&p->line, p->line.peak_event, sums);
    cdp__mem_put_text(w, "<text x=\"80\" y=\"494\">Largest at the peak:</text>\n");
    for (i = 0; i < n && i < 5; ++i) {
        cdp__text_add(&w->text, "<text x=\"96\" y=\"%u\">", (unsigned)(512 + 18 * i));
        cdp__mem_put_size(w, sums[i].bytes);
        cdp__text_add(&w->text, " in %lld %s: ", (long long)sums[i].blocks,
            sums[i].blocks == 1 ? "block" : "blocks");
        name = cdp__text_of(bytes, sizeof bytes);
        cdp__mem_holder_name(&name, &sums[i]);
        cdp__mem_put_xml(w, bytes, CDP__MEM_SHOWN);
        cdp__mem_put_text(w, "</text>\n");
    }
    cdp__free(os, sums);
    return true;
}

CDP__PRIVATE bool cdp__mem_plot_draw(cdp__mem_output *w, cdp__mem_plot *p) {
    const uint64_t n = p->line.event_count;
    p->columns = n < CDP__MEM_COLUMNS ? (uint32_t)n : CDP__MEM_COLUMNS;
    if (!p->columns) p->columns = 1;
    p->top = p->line.peak > 0 ? p->line.peak : 1;
    cdp__mem_plot_choose(p);
    if (!cdp__mem_plot_walk(p)) return false;
    cdp__mem_svg_axes(w, p);
    cdp__mem_svg_elements(w, p);
    cdp__mem_svg_sum(w, p);
    cdp__mem_svg_marks(w, p);
    return cdp__mem_svg_table(w, p);
}

#define CDP__MEM_PANELS 16u /* devices in a picture */
#define CDP__MEM_PANEL 600u /* height of the panel of one */

/* True if a device has something to draw. */
CDP__PRIVATE bool cdp__mem_device_used(const cdp_mem_shot *s, uint32_t device) {
    uint64_t i;
    if (device < s->device_count && s->devices[device].count) return true;
    for (i = 0; i < s->segment_count; ++i)
        if (s->segments[i].device == device) return true;
    return false;
}

/* The devices that have something to draw, in their order; the first one, if none has. Returns
   their number, which may be above that of `out`. */
CDP__PRIVATE uint32_t cdp__mem_devices_used(const cdp_mem_shot *s, uint32_t out[CDP__MEM_PANELS]) {
    uint32_t i, n = 0;
    for (i = 0; i < s->device_count; ++i) {
        if (!cdp__mem_device_used(s, i)) continue;
        if (n < CDP__MEM_PANELS) out[n] = i;
        ++n;
    }
    if (!n) out[0] = 0;
    return n ? n : 1;
}

/* Draws the panel of a device, under `above` others. */
CDP__PRIVATE bool cdp__mem_svg_panel(
    cdp__mem_output *w, const cdp_mem_shot *s, uint32_t device, uint32_t above) {
    cdp__mem_plot *const p = (cdp__mem_plot *)cdp__alloc_zero(s->os, sizeof *p);
    bool ok = p && cdp__mem_line_open(&p->line, s, device, false);
    if (ok) {
        cdp__text_add(&w->text,
            "<g transform=\"translate(0,%u)\">\n<text x=\"80\" y=\"42\">Device %u</text>\n",
            above * CDP__MEM_PANEL, device);
        p->live = (uint64_t *)cdp__alloc(s->os, (p->line.count + 1) * sizeof *p->live);
        p->y = (double *)cdp__alloc(s->os, (p->line.count + 1) * sizeof *p->y);
        ok = p->live && p->y && cdp__mem_plot_draw(w, p);
        cdp__mem_put_text(w, "</g>\n");
        cdp__free(s->os, p->live);
        cdp__free(s->os, p->y);
        cdp__free(s->os, p->points);
        cdp__mem_line_close(&p->line);
    }
    cdp__free(s->os, p);
    return ok;
}

CDP__PRIVATE bool cdp__mem_svg_timeline(cdp__mem_output *w, const cdp_mem_shot *s) {
    uint32_t devices[CDP__MEM_PANELS];
    const uint32_t all = cdp__mem_devices_used(s, devices);
    const uint32_t count = all < CDP__MEM_PANELS ? all : CDP__MEM_PANELS;
    uint32_t i;
    bool ok = true;
    cdp__mem_svg_begin(
        w, (double)(count * CDP__MEM_PANEL + (count < all ? 30 : 0)), "Memory in use over time");
    for (i = 0; ok && i < count; ++i)
        ok = cdp__mem_svg_panel(w, s, devices[i], i);
    if (count < all)
        cdp__text_add(&w->text, "<text x=\"80\" y=\"%u\">and %u more devices</text>\n",
            count * CDP__MEM_PANEL + 10, all - count);
    cdp__mem_put_text(w, "</svg>\n");
    cdp__mem_output_flush(&w->text);
    return ok;
}

#define CDP__MEM_ROWS_MOST 4000u /* segments in a picture */

/* A rectangle in the row of a segment, without its last attributes. */
CDP__PRIVATE void cdp__mem_svg_bytes(cdp__mem_output *w, double x, double y, double width) {
    cdp__mem_put_text(w, "<rect height=\"14\" y=\"");
    cdp__text_tenths(&w->text, y + 1);
    cdp__mem_put_text(w, "\" x=\"");
    cdp__text_tenths(&w->text, x);
    cdp__mem_put_text(w, "\" width=\"");
    cdp__text_tenths(&w->text, width);
}

/* Draws a block; red: it waits for streams, or bytes lost by rounding. */
CDP__PRIVATE void cdp__mem_svg_block(cdp__mem_output *w, const cdp_mem_shot *s,
    const cdp_mem_block *b, double x, double y, double scale) {
    const double width = (double)b->size * scale;
    const double lost = b->requested < b->size ? (double)(b->size - b->requested) * scale : 0;
    const uint64_t colour = (cdp__mem_mix(2, b->address) >> 8) % 9;
    cdp__mem_element e;
    memset(&e, 0, sizeof e);
    e.address = b->address;
    e.size = b->requested;
    e.stack = b->stack;
    e.label = b->label;
    cdp__mem_svg_bytes(w, x, y, width);
    if (b->state == CDP_MEM_PENDING)
        cdp__mem_put_text(w, "\" class=\"lost\">");
    else /* an edge would hide a narrow block */
        cdp__text_add(&w->text, "\" %sfill=\"#%x\">", width > 4 ? "class=\"block\" " : "",
            cdp__mem_colour(colour + (colour >= CDP__MEM_RED)));
    cdp__mem_svg_title(w, s, &e);
    cdp__mem_put_text(w, "</rect>\n");
    if (lost < 0.5) return;
    cdp__mem_svg_bytes(w, x + width - lost, y, lost);
    cdp__mem_put_text(w, "\" class=\"lost\"><title>lost by rounding: ");
    cdp__mem_put_size(w, (double)(b->size - b->requested));
    cdp__mem_put_text(w, "</title></rect>\n");
}

CDP__PRIVATE void cdp__mem_svg_segment(cdp__mem_output *w, const cdp_mem_shot *s,
    const cdp_mem_segment *g, double x, double y, double scale) {
    double at = x;
    uint32_t i;
    for (i = 0; i < g->block_count; ++i) {
        const cdp_mem_block *const b = &g->blocks[i];
        if (b->state != CDP_MEM_INACTIVE) cdp__mem_svg_block(w, s, b, at, y, scale);
        at += (double)b->size * scale;
    }
    cdp__mem_put_text(w, "<rect class=\"segment\" height=\"16\" y=\"");
    cdp__text_tenths(&w->text, y);
    cdp__mem_put_text(w, "\" x=\"");
    cdp__text_tenths(&w->text, x);
    cdp__mem_put_text(w, "\" width=\"");
    cdp__text_tenths(&w->text, (double)g->size * scale);
    cdp__text_add(&w->text, "\"><title>segment 0x%llx, device %u, stream 0x%llx, ",
        (unsigned long long)g->address, g->device, (unsigned long long)g->stream);
    cdp__mem_put_size(w, (double)g->size);
    cdp__mem_put_text(w, ", in use ");
    cdp__mem_put_size(w, (double)g->active);
    cdp__mem_put_text(w, "</title></rect>\n");
}

typedef struct cdp__mem_row_order {
    uint64_t size, index;
    uint32_t device;
} cdp__mem_row_order;

CDP__PRIVATE int cdp__mem_rows_by_size(const void *a, const void *b) {
    const cdp__mem_row_order *const x = (const cdp__mem_row_order *)a;
    const cdp__mem_row_order *const y = (const cdp__mem_row_order *)b;
    if (x->size != y->size) return x->size > y->size ? -1 : 1;
    if (x->index == y->index) return 0;
    return x->index < y->index ? -1 : 1;
}

CDP__PRIVATE int cdp__mem_rows_by_device(const void *a, const void *b) {
    const cdp__mem_row_order *const x = (const cdp__mem_row_order *)a;
    const cdp__mem_row_order *const y = (const cdp__mem_row_order *)b;
    if (x->device != y->device) return x->device < y->device ? -1 : 1;
    return cdp__mem_rows_by_size(a, b);
}

/* Draws segments in rows under the name of their device, the largest first; a row is as wide as the
   largest segment of all, of `most` bytes. */
CDP__PRIVATE void cdp__mem_svg_rows(cdp__mem_output *w, const cdp_mem_shot *s,
    const cdp__mem_row_order *order, uint64_t count, double most, bool draw, double *height) {
    const double scale = CDP__MEM_WIDTH / (most > 0 ? most : 1.0);
    double x = 0, y = CDP__MEM_TOP;
    uint64_t i;
    for (i = 0; i < count; ++i) {
        const cdp_mem_segment *const g = &s->segments[order[i].index];
        const double width = (double)g->size * scale;
        const bool first = i == 0 || order[i].device != order[i - 1].device;
        if (!first && x + width > CDP__MEM_WIDTH + 0.5) {
            x = 0;
            y += 20;
        }
        if (first) {
            if (i) y += 20;
            x = 0;
            if (draw)
                cdp__text_add(&w->text, "<text x=\"80\" y=\"%u\">Device %u</text>\n",
                    (uint32_t)y + 14, g->device);
            y += 20;
        }
        if (draw) cdp__mem_svg_segment(w, s, g, CDP__MEM_LEFT + x, y, scale);
        x += width + 2;
    }
    *height = y + 30;
}

CDP__PRIVATE bool cdp__mem_svg_segments(cdp__mem_output *w, const cdp_mem_shot *s) {
    const uint64_t all = s->segment_count;
    const uint64_t count = cdp__min(all, CDP__MEM_ROWS_MOST);
    cdp__mem_row_order *const order =
        (cdp__mem_row_order *)cdp__alloc(s->os, (all + 1) * sizeof(cdp__mem_row_order));
    double height, most, bytes = 0, active = 0;
    uint64_t i;
    if (!order) return false;
    for (i = 0; i < all; ++i) {
        order[i].size = s->segments[i].size;
        order[i].index = i;
        order[i].device = s->segments[i].device;
        bytes += (double)s->segments[i].size;
        active += (double)s->segments[i].active;
    }
    if (all) qsort(order, (size_t)all, sizeof *order, cdp__mem_rows_by_size);
    most = all ? (double)order[0].size : 0;
    if (count) qsort(order, (size_t)count, sizeof *order, cdp__mem_rows_by_device);
    cdp__mem_svg_rows(w, s, order, count, most, false, &height);
    cdp__mem_svg_begin(w, height, "Segments and blocks");
    cdp__text_add(&w->text, "<text x=\"80\" y=\"42\">%llu segments, ", (unsigned long long)all);
    cdp__mem_put_size(w, bytes);
    cdp__mem_put_text(w, ", in use ");
    cdp__mem_put_size(w, active);
    cdp__mem_put_text(w, "; red: waits for streams, or lost by rounding; a full row: ");
    cdp__mem_put_size(w, most);
    if (count < all)
        cdp__text_add(
            &w->text, "; the %llu smallest are not drawn", (unsigned long long)(all - count));
    cdp__mem_put_text(w, "</text>\n");
    cdp__mem_svg_rows(w, s, order, count, most, true, &height);
    cdp__mem_put_text(w, "</svg>\n");
    cdp__free(s->os, order);
    cdp__mem_output_flush(&w->text);
    return true;
}

/* ---- >>mem/reports: pictures in words -------------------------------------------------------- */

/* Knows: texts for logs and for flamegraph.pl. Promises: one line per event, block or holder. */

/* Writes a name in a line of a flame graph, in which ; and blanks are separators. */
CDP__PRIVATE void cdp__mem_flame_name(cdp__mem_output *w, const char *text) {
    for (; *text; ++text)
        cdp__mem_put(w, *text == ';' || (uint8_t)*text <= 32 ? '_' : (uint8_t)*text);
}

CDP__PRIVATE void cdp__mem_flame_frames(cdp__mem_output *w, const cdp_mem_shot *s, uint32_t stack) {
    const cdp__mem_stack *const k = &s->stacks[stack];
    uint32_t i;
    if (!k->count) cdp__mem_put_text(w, ";<no_stack>");
    for (i = k->count; i > 0; --i) {
        const cdp_mem_frame *const f = &s->frames[k->first + i - 1];
        cdp__mem_put(w, ';');
        if (f->line) {
            const char *const slash = strrchr(f->filename, '/');
            cdp__mem_flame_name(w, slash ? slash + 1 : f->filename);
            cdp__text_add(&w->text, ":%u:", f->line);
        }
        cdp__mem_flame_name(w, f->name);
    }
}

CDP__PRIVATE void cdp__mem_flame_block(cdp__mem_output *w, const cdp_mem_shot *s,
    const cdp_mem_segment *g, const cdp_mem_block *b, bool segments) {
    const bool idle = b->state == CDP_MEM_INACTIVE;
    const uint64_t gap = idle ? b->size : b->size - cdp__min(b->size, b->requested);
    cdp__text_add(&w->text, "stream_%llu", (unsigned long long)g->stream);
    if (segments) cdp__text_add(&w->text, ";seg_%llx", (unsigned long long)g->address);
    if (!idle) {
        cdp__mem_put(w, ';');
        cdp__mem_put_text(w, cdp__mem_state_word(&s->keys, b->state));
        if (b->label) cdp__mem_put(w, ';');
        if (b->label) cdp__mem_flame_name(w, b->label);
        cdp__mem_flame_frames(w, s, b->stack);
        cdp__text_add(&w->text, " %llu\n", (unsigned long long)b->requested);
    } else
        cdp__text_add(&w->text, ";inactive %llu\n", (unsigned long long)b->size);
    if (idle || !gap) return;
    cdp__text_add(&w->text, "stream_%llu", (unsigned long long)g->stream);
    if (segments) cdp__text_add(&w->text, ";seg_%llx", (unsigned long long)g->address);
    cdp__text_add(&w->text, ";<gaps> %llu\n", (unsigned long long)gap);
}

CDP__PRIVATE bool cdp__mem_flame(cdp__mem_output *w, const cdp_mem_shot *s, bool segments) {
    uint64_t i;
    uint32_t j;
    for (i = 0; i < s->segment_count; ++i)
        for (j = 0; j < s->segments[i].block_count; ++j)
            if (segments || s->segments[i].blocks[j].state != CDP_MEM_INACTIVE)
                cdp__mem_flame_block(w, s, &s->segments[i], &s->segments[i].blocks[j], segments);
    cdp__mem_output_flush(&w->text);
    return true;
}

CDP__PRIVATE void cdp__mem_trace_event(
    cdp__mem_output *w, const cdp_mem_shot *s, const cdp_mem_event *e) {
    const unsigned long long at = (unsigned long long)e->address,
                             size = (unsigned long long)e->size;
    cdp__mem_sum who;
    cdp__mem_sum_holder(s, s, e->label, e->stack, &who);
    switch (e->action) {
    case CDP_MEM_ALLOC: cdp__text_add(&w->text, "b%llx = alloc(%llu)", at, size); break;
    case CDP_MEM_FREE_REQUESTED: cdp__text_add(&w->text, "del b%llx", at); break;
    case CDP_MEM_FREE_COMPLETED: cdp__text_add(&w->text, "# free completed: b%llx", at); break;
    case CDP_MEM_SEGMENT_ALLOC:
        cdp__text_add(&w->text, "s%llx = cudaMalloc(%llu)", at, size);
        break;
    case CDP_MEM_SEGMENT_FREE: cdp__text_add(&w->text, "cudaFree(s%llx)", at); break;
    case CDP_MEM_SEGMENT_MAP: cdp__text_add(&w->text, "map(0x%llx, %llu)", at, size); break;
    case CDP_MEM_SEGMENT_UNMAP: cdp__text_add(&w->text, "unmap(0x%llx, %llu)", at, size); break;
    case CDP_MEM_OOM:
        cdp__text_add(&w->text, "raise OutOfMemoryError() # %llu bytes requested, %llu free", size,
            (unsigned long long)e->device_free);
        break;
    default: cdp__text_add(&w->text, "# %s", cdp_mem_action_name(e->action)); break;
    }
    cdp__text_add(&w->text, " # stream %llu", (unsigned long long)e->stream);
    if (who.label || who.frame_count) {
        cdp__mem_put_text(w, ", ");
        cdp__mem_holder_name(&w->text, &who);
    }
    cdp__mem_put(w, '\n');
}

CDP__PRIVATE bool cdp__mem_trace_text(cdp__mem_output *w, const cdp_mem_shot *s) {
    uint64_t i, j;
    for (i = 0; i < s->device_count; ++i) {
        cdp__text_add(&w->text, "# device %u: %llu events\n", (unsigned)i,
            (unsigned long long)s->devices[i].count);
        for (j = 0; j < s->devices[i].count; ++j)
            cdp__mem_trace_event(w, s, &s->devices[i].events[j]);
    }
    cdp__mem_output_flush(&w->text);
    return true;
}

CDP__PRIVATE void cdp__mem_peak_list(cdp__mem_output *w, const cdp__mem_sum *sums, uint64_t n) {
    uint64_t i;
    for (i = 0; i < n && i < 10; ++i) {
        cdp__mem_put_text(w, "    ");
        cdp__mem_put_size(w, sums[i].bytes);
        cdp__text_add(&w->text, " in %lld blocks: ", (long long)sums[i].blocks);
        cdp__mem_holder_name(&w->text, &sums[i]);
        cdp__mem_put(w, '\n');
    }
    if (n > 10) cdp__text_add(&w->text, "    and %llu others\n", (unsigned long long)(n - 10));
}

/* Sums of segments and blocks, in one line. */
CDP__PRIVATE void cdp__mem_peak_segments(
    cdp__mem_output *w, const cdp_mem_shot *s, uint32_t device) {
    double total = 0, allocated = 0, active = 0, split = 0, largest = 0;
    uint64_t i;
    uint32_t j;
    for (i = 0; i < s->segment_count; ++i) {
        const cdp_mem_segment *const g = &s->segments[i];
        if (g->device != device) continue;
        total += (double)g->size;
        allocated += (double)g->allocated;
        active += (double)g->active;
        for (j = 0; j < g->block_count; ++j) {
            const double free_bytes = (double)g->blocks[j].size;
            if (g->blocks[j].state != CDP_MEM_INACTIVE) continue;
            if (g->block_count > 1) split += free_bytes;
            if (free_bytes > largest) largest = free_bytes;
        }
    }
    cdp__mem_put_text(w, "  segments: ");
    cdp__mem_put_size(w, total);
    cdp__mem_put_text(w, "; allocated ");
    cdp__mem_put_size(w, allocated);
    cdp__mem_put_text(w, "; waiting for streams ");
    cdp__mem_put_size(w, active - allocated);
    cdp__mem_put_text(w, "; free ");
    cdp__mem_put_size(w, total - active);
    cdp__mem_put_text(w, ", of it between blocks in use ");
    cdp__mem_put_size(w, split);
    cdp__mem_put_text(w, "; largest free block ");
    cdp__mem_put_size(w, largest);
    cdp__mem_put(w, '\n');
}

CDP__PRIVATE bool cdp__mem_peak_device(cdp__mem_output *w, const cdp_mem_shot *s, uint32_t device) {
    cdp__mem_line l;
    cdp__mem_sum *sums;
    uint64_t i;
    if (!cdp__mem_line_open(&l, s, device, false)) return false;
    sums = (cdp__mem_sum *)cdp__alloc(s->os, (l.count + 1) * sizeof *sums);
    if (sums) {
        cdp__text_add(
            &w->text, "device %u: %llu events", device, (unsigned long long)l.event_count);
        cdp__mem_put_lost(w, s, "; ");
        cdp__mem_put_text(w, "\n  peak: ");
        cdp__mem_put_size(w, l.peak);
        cdp__text_add(&w->text, " after event %llu\n", (unsigned long long)l.peak_event);
        cdp__mem_peak_list(w, sums, cdp__mem_line_holders(&l, l.peak_event, sums));
        cdp__mem_put_text(w, "  end: ");
        cdp__mem_put_size(w, l.end);
        cdp__mem_put(w, '\n');
        cdp__mem_peak_list(w, sums, cdp__mem_line_holders(&l, CDP__MEM_ALWAYS - 1, sums));
        cdp__mem_peak_segments(w, s, device);
    }
    for (i = 0; sums && i < l.event_count; ++i)
        if (l.events[i].action == CDP_MEM_OOM) cdp__mem_trace_event(w, s, &l.events[i]);
    i = sums != NULL;
    cdp__free(s->os, sums);
    cdp__mem_line_close(&l);
    return i != 0;
}

CDP__PRIVATE bool cdp__mem_peak_text(cdp__mem_output *w, const cdp_mem_shot *s) {
    uint32_t i;
    for (i = 0; i < s->device_count; ++i)
        if (!cdp__mem_peak_device(w, s, i)) return false;
    cdp__mem_output_flush(&w->text);
    return true;
}

/* ---- >>os/pages: addresses without memory, and memory for their pages ------------------------ */

/* Knows: mmap() and VirtualAlloc(). Promises: reserved addresses cost no memory; what is committed
   reads as 0; what is taken back is memory of nobody. For cdp_mem.h. */

#ifdef CDP_NO_OS
#define CDP__PAGES 0
#else
#define CDP__PAGES 1 /* the functions below exist */
#ifdef _WIN32
CDP__PRIVATE void *cdp__pages_reserve(uint64_t bytes) {
    return VirtualAlloc(NULL, (SIZE_T)bytes, MEM_RESERVE, PAGE_NOACCESS);
}
CDP__PRIVATE void cdp__pages_release(void *at, uint64_t bytes) {
    (void)bytes;
    VirtualFree(at, 0, MEM_RELEASE);
}
CDP__PRIVATE bool cdp__pages_commit(void *at, uint64_t bytes) {
    return VirtualAlloc(at, (SIZE_T)bytes, MEM_COMMIT, PAGE_READWRITE) != NULL;
}
CDP__PRIVATE bool cdp__pages_take_back(void *at, uint64_t bytes) {
    return VirtualFree(at, (SIZE_T)bytes, MEM_DECOMMIT) != 0;
}
#else
#include <sys/mman.h>
#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif
#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif
CDP__PRIVATE void *cdp__pages_none(void *at, uint64_t bytes, int flags) {
    void *const p = mmap(
        at, (size_t)bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}
CDP__PRIVATE void *cdp__pages_reserve(uint64_t bytes) {
    return cdp__pages_none(NULL, bytes, 0);
}
CDP__PRIVATE void cdp__pages_release(void *at, uint64_t bytes) {
    munmap(at, (size_t)bytes);
}
CDP__PRIVATE bool cdp__pages_commit(void *at, uint64_t bytes) {
    return mprotect(at, (size_t)bytes, PROT_READ | PROT_WRITE) == 0;
}
/* A new mapping in place of the old one: that gives the memory back everywhere at once. */
CDP__PRIVATE bool cdp__pages_take_back(void *at, uint64_t bytes) {
    return cdp__pages_none(at, bytes, MAP_FIXED) != NULL;
}
#endif
#endif

/* ---- >>mem/sources: host memory, another allocator ------------------------------------------- */

/* Knows: host memory, as a whole or by pages, and segments of another allocator. Promises:
   addresses are aligned to 512; a free is complete at once, because there are no streams. */

typedef struct cdp__mem_host {
    const cdp_os *os;
    cdp_allocator from; /* of cdp_mem_source_of */
    uint64_t limit, used;
} cdp__mem_host;

/* NOMEM if so many bytes more are above the limit. */
CDP__PRIVATE cdp_status cdp__mem_host_room(const cdp__mem_host *h, uint64_t bytes) {
    if (h->limit && (bytes > h->limit || h->used > h->limit - bytes))
        return cdp__fail(CDP_ERR_NOMEM, "host memory: the limit of this source is reached");
    return CDP_OK;
}

/* os->alloc aligns to 64, so this aligns the segment, and stores the address to free before it. */
CDP__PRIVATE cdp_status cdp__mem_host_reserve(void *user, uint64_t bytes, void **out) {
    cdp__mem_host *const h = (cdp__mem_host *)user;
    char *raw, *at;
    if (cdp__mem_host_room(h, bytes) != CDP_OK) return CDP_ERR_NOMEM;
    raw = (char *)cdp__alloc(h->os, bytes + 1024);
    if (!raw) return cdp__fail_nomem("a segment of host memory", bytes);
    at = raw + 512;
    at += (512 - (uintptr_t)at % 512) % 512;
    memcpy(at - sizeof raw, &raw, sizeof raw);
    h->used += bytes;
    *out = at;
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__mem_host_release(void *user, void *at, uint64_t bytes) {
    cdp__mem_host *const h = (cdp__mem_host *)user;
    char *raw;
    memcpy(&raw, (char *)at - sizeof raw, sizeof raw);
    cdp__free(h->os, raw);
    h->used -= bytes;
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__mem_host_info(void *user, uint64_t *free_bytes, uint64_t *total) {
    const cdp__mem_host *const h = (const cdp__mem_host *)user;
    *total = h->limit;
    *free_bytes = h->limit - h->used;
    return CDP_OK;
}

#if CDP__PAGES
/* Addresses cost nothing where pointers have 64 bits; where the system refuses so many, fewer. */
#define CDP__MEM_HOST_RANGE (sizeof(void *) < 8 ? 256 * CDP__MEM_MIB : CDP__MEM_MIB << 20)

CDP__PRIVATE cdp_status cdp__mem_host_range_reserve(
    void *user, uint64_t least, void **at, uint64_t *bytes) {
    const cdp__mem_host *const h = (const cdp__mem_host *)user;
    const uint64_t limit = cdp__min(h->limit, CDP__MEM_HOST_RANGE / 2);
    uint64_t n =
        limit ? cdp__mem_up_to(limit + limit / 8, CDP__MEM_SMALL_SEGMENT) : CDP__MEM_HOST_RANGE;
    for (n = cdp__max(n, least);;
         n = cdp__max(least, n / 2 / CDP__MEM_SMALL_SEGMENT * CDP__MEM_SMALL_SEGMENT)) {
        *at = n <= PTRDIFF_MAX ? cdp__pages_reserve(n) : NULL;
        *bytes = n;
        if (*at) return CDP_OK;
        if (n == least) return cdp__fail_nomem("a range of addresses", least);
    }
}

CDP__PRIVATE void cdp__mem_host_range_release(void *user, void *at, uint64_t bytes) {
    (void)user;
    cdp__pages_release(at, bytes);
}

CDP__PRIVATE cdp_status cdp__mem_host_map(void *user, void *at, uint64_t bytes) {
    cdp__mem_host *const h = (cdp__mem_host *)user;
    if (cdp__mem_host_room(h, bytes) != CDP_OK) return CDP_ERR_NOMEM;
    if (!cdp__pages_commit(at, bytes)) return cdp__fail_nomem("pages of host memory", bytes);
    h->used += bytes;
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__mem_host_unmap(void *user, void *at, uint64_t bytes, void *stream) {
    cdp__mem_host *const h = (cdp__mem_host *)user;
    (void)stream;
    if (!cdp__pages_take_back(at, bytes))
        return cdp__fail(CDP_ERR_IO, "host memory: the system does not take %llu bytes back",
            (unsigned long long)bytes);
    h->used -= bytes;
    return CDP_OK;
}

CDP__PRIVATE void cdp__mem_host_pages(cdp_mem_source *out) {
    out->page_bytes = CDP__MEM_SMALL_SEGMENT;
    out->range_reserve = cdp__mem_host_range_reserve;
    out->range_release = cdp__mem_host_range_release;
    out->map = cdp__mem_host_map;
    out->unmap = cdp__mem_host_unmap;
}
#else
CDP__PRIVATE void cdp__mem_host_pages(cdp_mem_source *out) {
    (void)out;
}
#endif

CDP__PRIVATE cdp_status cdp__mem_of_reserve(void *user, uint64_t bytes, void **out) {
    const cdp__mem_host *const h = (const cdp__mem_host *)user;
    cdp__error_clear(cdp__error_slot(), CDP_OK);
    *out = h->from.alloc(h->from.user, bytes, NULL, "segment");
    if (*out) return CDP_OK;
    if (cdp_last_error()->status < 0) return cdp_last_error()->status;
    return cdp__fail(
        CDP_ERR_NOMEM, "the allocator below has no %llu bytes", (unsigned long long)bytes);
}

CDP__PRIVATE cdp_status cdp__mem_of_release(void *user, void *at, uint64_t bytes) {
    const cdp__mem_host *const h = (const cdp__mem_host *)user;
    (void)bytes;
    h->from.release(h->from.user, at);
    return CDP_OK;
}

CDP__PRIVATE void cdp__mem_host_destroy(void *user) {
    cdp__free(((cdp__mem_host *)user)->os, user);
}

CDP__PRIVATE cdp__mem_host *cdp__mem_host_new(const cdp_os *os, cdp_mem_source *out) {
    const cdp_os *const o = os ? os : cdp_os_default();
    cdp__mem_host *const h = (cdp__mem_host *)cdp__alloc_zero(o, sizeof *h);
    if (!h) return NULL;
    h->os = o;
    out->user = h;
    out->destroy = cdp__mem_host_destroy;
    return h;
}

CDP_API cdp_status cdp_mem_source_host(
    const cdp_os *os, uint64_t limit_bytes, cdp_mem_source *out) {
    cdp__mem_host *h;
    if (!out) return cdp__missing("cdp_mem_source_host", "out");
    memset(out, 0, sizeof *out);
    if (cdp__os_whole(os, "cdp_mem_source_host") != CDP_OK) return CDP_ERR_INVALID;
    h = cdp__mem_host_new(os, out);
    if (!h) return cdp__fail_nomem("cdp_mem_source_host", sizeof *h);
    h->limit = limit_bytes;
    out->name = "host";
    out->reserve = cdp__mem_host_reserve;
    out->release = cdp__mem_host_release;
    cdp__mem_host_pages(out);
    if (limit_bytes) out->info = cdp__mem_host_info;
    return CDP_OK;
}

CDP_API cdp_status cdp_mem_source_of(
    const cdp_allocator *from, const cdp_os *os, cdp_mem_source *out) {
    cdp__mem_host *h;
    if (!out) return cdp__missing("cdp_mem_source_of", "out");
    memset(out, 0, sizeof *out);
    if (!from) return cdp__missing("cdp_mem_source_of", "from");
    if (!from->alloc) return cdp__missing("cdp_mem_source_of", "from.alloc");
    if (!from->release) return cdp__missing("cdp_mem_source_of", "from.release");
    if (cdp__os_whole(os, "cdp_mem_source_of") != CDP_OK) return CDP_ERR_INVALID;
    h = cdp__mem_host_new(os, out);
    if (!h) return cdp__fail_nomem("cdp_mem_source_of", sizeof *h);
    h->from = *from;
    out->name = "another allocator";
    out->reserve = cdp__mem_of_reserve;
    out->release = cdp__mem_of_release;
    return CDP_OK;
}

/* ---- >>mem/cuda: device memory of the CUDA runtime, loaded on demand ------------------------- */

/* Knows: the functions of the CUDA runtime that a source needs; the library is loaded when the
   first source is made. Promises: every call leaves the current device and the capture mode as
   they were, and no error of its own in CUDA. */

/* clang-format off */
#define CDP__MEM_CUDA(X) \
    X(cudaRuntimeGetVersion, (int *)) \
    X(cudaGetDeviceCount, (int *)) \
    X(cudaGetDevice, (int *)) \
    X(cudaSetDevice, (int)) \
    X(cudaGetLastError, (void)) \
    X(cudaMalloc, (void **, size_t)) \
    X(cudaFree, (void *)) \
    X(cudaMemGetInfo, (size_t *, size_t *)) \
    X(cudaEventCreateWithFlags, (void **, unsigned)) \
    X(cudaEventDestroy, (void *)) \
    X(cudaEventRecord, (void *, void *)) \
    X(cudaEventQuery, (void *)) \
    X(cudaStreamIsCapturing, (void *, int *)) \
    X(cudaStreamSynchronize, (void *)) \
    X(cudaThreadExchangeStreamCaptureMode, (int *))
/* clang-format on */
#define CDP__MEM_CUDA_MEMBER(name, parameters) int(*name) parameters;
#define CDP__MEM_CUDA_NAME(name, parameters) #name,

enum {
    CDP__MEM_CUDA_NOMEM = 2,
    CDP__MEM_CUDA_NO_DRIVER = 35,
    CDP__MEM_CUDA_NO_DEVICE = 100,
    CDP__MEM_CUDA_NOT_READY = 600,
    CDP__MEM_CUDA_NO_TIMING = 2,
    CDP__MEM_CUDA_RELAXED = 2
};

typedef struct cdp__mem_cuda_calls {
    CDP__MEM_CUDA(CDP__MEM_CUDA_MEMBER)
    const char *(*cudaGetErrorString)(int);
} cdp__mem_cuda_calls;

typedef struct cdp__mem_cuda {
    cdp__mem_cuda_calls f;
    int device;
    char name[16];
} cdp__mem_cuda;

/* The caller's state before a call into CUDA: its device, and its capture mode. */
typedef struct cdp__mem_cuda_turn {
    int device, mode;
} cdp__mem_cuda_turn;

CDP__PRIVATE void cdp__mem_cuda_enter(const cdp__mem_cuda *u, cdp__mem_cuda_turn *t) {
    t->device = u->device;
    t->mode = CDP__MEM_CUDA_RELAXED;
    (void)u->f.cudaGetDevice(&t->device);
    if (t->device != u->device) (void)u->f.cudaSetDevice(u->device);
    (void)u->f.cudaThreadExchangeStreamCaptureMode(&t->mode);
}

/* After a failure, also clears the error that CUDA would otherwise return from the next
   unrelated call. */
CDP__PRIVATE void cdp__mem_cuda_leave(const cdp__mem_cuda *u, cdp__mem_cuda_turn *t, int code) {
    if (code) (void)u->f.cudaGetLastError();
    (void)u->f.cudaThreadExchangeStreamCaptureMode(&t->mode);
    if (t->device != u->device) (void)u->f.cudaSetDevice(t->device);
}

CDP__PRIVATE cdp_status cdp__mem_cuda_error(const cdp__mem_cuda *u, const char *call, int code) {
    const cdp_status st = code == CDP__MEM_CUDA_NOMEM ? CDP_ERR_NOMEM : CDP_ERR_IO;
    return cdp__fail(st, "%s on device %d: %s (CUDA error %d)", call, u->device,
        u->f.cudaGetErrorString(code), code);
}

/* Ends a call into CUDA that returned `code`. */
CDP__PRIVATE cdp_status cdp__mem_cuda_done(
    const cdp__mem_cuda *u, cdp__mem_cuda_turn *t, const char *call, int code) {
    cdp__mem_cuda_leave(u, t, code);
    return code ? cdp__mem_cuda_error(u, call, code) : CDP_OK;
}

CDP__PRIVATE cdp_status cdp__mem_cuda_reserve(void *user, uint64_t bytes, void **out) {
    const cdp__mem_cuda *const u = (const cdp__mem_cuda *)user;
    cdp__mem_cuda_turn t;
    cdp__mem_cuda_enter(u, &t);
    return cdp__mem_cuda_done(u, &t, "cudaMalloc", u->f.cudaMalloc(out, (size_t)bytes));
}

CDP__PRIVATE cdp_status cdp__mem_cuda_release(void *user, void *at, uint64_t bytes) {
    const cdp__mem_cuda *const u = (const cdp__mem_cuda *)user;
    cdp__mem_cuda_turn t;
    (void)bytes;
    cdp__mem_cuda_enter(u, &t);
    return cdp__mem_cuda_done(u, &t, "cudaFree", u->f.cudaFree(at));
}

CDP__PRIVATE cdp_status cdp__mem_cuda_info(void *user, uint64_t *free_bytes, uint64_t *total) {
    const cdp__mem_cuda *const u = (const cdp__mem_cuda *)user;
    cdp__mem_cuda_turn t;
    size_t left = 0, all = 0;
    int code;
    cdp__mem_cuda_enter(u, &t);
    code = u->f.cudaMemGetInfo(&left, &all);
    *free_bytes = left;
    *total = all;
    return cdp__mem_cuda_done(u, &t, "cudaMemGetInfo", code);
}

CDP__PRIVATE cdp_status cdp__mem_cuda_event_create(void *user, void **event) {
    const cdp__mem_cuda *const u = (const cdp__mem_cuda *)user;
    cdp__mem_cuda_turn t;
    cdp__mem_cuda_enter(u, &t);
    return cdp__mem_cuda_done(u, &t, "cudaEventCreateWithFlags",
        u->f.cudaEventCreateWithFlags(event, CDP__MEM_CUDA_NO_TIMING));
}

CDP__PRIVATE void cdp__mem_cuda_event_destroy(void *user, void *event) {
    const cdp__mem_cuda *const u = (const cdp__mem_cuda *)user;
    cdp__mem_cuda_turn t;
    int code;
    cdp__mem_cuda_enter(u, &t);
    code = u->f.cudaEventDestroy(event);
    cdp__mem_cuda_leave(u, &t, code);
}

CDP__PRIVATE cdp_status cdp__mem_cuda_event_record(void *user, void *event, void *stream) {
    const cdp__mem_cuda *const u = (const cdp__mem_cuda *)user;
    cdp__mem_cuda_turn t;
    cdp__mem_cuda_enter(u, &t);
    return cdp__mem_cuda_done(u, &t, "cudaEventRecord", u->f.cudaEventRecord(event, stream));
}

CDP__PRIVATE cdp_status cdp__mem_cuda_event_query(void *user, void *event) {
    const cdp__mem_cuda *const u = (const cdp__mem_cuda *)user;
    cdp__mem_cuda_turn t;
    int code;
    cdp__mem_cuda_enter(u, &t);
    code = u->f.cudaEventQuery(event);
    if (code != CDP__MEM_CUDA_NOT_READY) return cdp__mem_cuda_done(u, &t, "cudaEventQuery", code);
    cdp__mem_cuda_leave(u, &t, code);
    return CDP_PENDING;
}

/* If CUDA cannot tell, the stream counts as not captured. */
CDP__PRIVATE bool cdp__mem_cuda_capturing(void *user, void *stream) {
    const cdp__mem_cuda *const u = (const cdp__mem_cuda *)user;
    int state = 0;
    const int code = u->f.cudaStreamIsCapturing(stream, &state);
    if (code) (void)u->f.cudaGetLastError();
    return !code && state;
}

CDP__PRIVATE void cdp__mem_cuda_destroy(void *user) {
    cdp__free(cdp_os_default(), user);
}

#define CDP__MEM_CUDA_FILES                                                           \
    "libcudart.so.13 libcudart.so.12 libcudart.so.11.0 libcudart.so cudart64_13.dll " \
    "cudart64_12.dll cudart64_110.dll"

/* Opens the given file; or the program itself, if it contains CUDA; or the first of the usual
   names. */
CDP__PRIVATE void *cdp__mem_cuda_file(const char *file) {
    const char *at = CDP__MEM_CUDA_FILES;
    char name[64];
    void *lib;
    if (file) return cdp__library_open(file);
    lib = cdp__library_open(NULL);
    if (lib && cdp__library_find(lib, "cudaMalloc")) return lib;
    if (lib) cdp__library_close(lib);
    for (lib = NULL; *at && !lib;) {
        uint32_t n = 0;
        while (*at && *at != ' ')
            name[n++] = *at++;
        while (*at == ' ')
            ++at;
        name[n] = 0;
        lib = cdp__library_open(name);
    }
    return lib;
}

/* Loads the library, which then stays loaded. */
CDP__PRIVATE cdp_status cdp__mem_cuda_load(cdp__mem_cuda *u, const char *file) {
    static const char *const names[] = {CDP__MEM_CUDA(CDP__MEM_CUDA_NAME) "cudaGetErrorString"};
    void *const lib = cdp__mem_cuda_file(file);
    uint32_t i;
    if (!lib)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_mem_source_cuda: no CUDA runtime: looked for %s; install it, add its folder to "
            "LD_LIBRARY_PATH, or name the file",
            file ? file : CDP__MEM_CUDA_FILES);
    for (i = 0; i < sizeof names / sizeof *names; ++i) {
        void *const function = cdp__library_find(lib, names[i]);
        if (!function)
            return cdp__fail(CDP_ERR_UNSUPPORTED,
                "cdp_mem_source_cuda: the CUDA runtime has no function %s; 11.8 is the least",
                names[i]);
        memcpy((char *)&u->f + i * sizeof function, &function, sizeof function);
    }
    return CDP_OK;
}
#undef CDP__MEM_CUDA_MEMBER
#undef CDP__MEM_CUDA_NAME

CDP__PRIVATE cdp_status cdp__mem_cuda_device(cdp__mem_cuda *u) {
    int count = 0;
    int code = u->f.cudaGetDeviceCount(&count);
    if (!code && count) code = u->f.cudaGetDevice(&u->device);
    if (!code && count) return CDP_OK;
    (void)u->f.cudaGetLastError();
    if (!code || code == CDP__MEM_CUDA_NO_DEVICE || code == CDP__MEM_CUDA_NO_DRIVER)
        return cdp__fail(CDP_ERR_UNSUPPORTED, "cdp_mem_source_cuda: no GPU here: %s",
            code ? u->f.cudaGetErrorString(code) : "no device");
    return cdp__mem_cuda_error(u, "cudaGetDevice", code);
}

/* Fills in all but the functions of pages. */
CDP__PRIVATE void cdp__mem_cuda_source(cdp__mem_cuda *u, cdp_mem_source *out) {
    cdp__format(u->name, sizeof u->name, "cuda:%d", u->device);
    out->user = u;
    out->name = u->name;
    out->device = (uint32_t)u->device;
    out->reserve = cdp__mem_cuda_reserve;
    out->release = cdp__mem_cuda_release;
    out->info = cdp__mem_cuda_info;
    out->event_create = cdp__mem_cuda_event_create;
    out->event_destroy = cdp__mem_cuda_event_destroy;
    out->event_record = cdp__mem_cuda_event_record;
    out->event_query = cdp__mem_cuda_event_query;
    out->capturing = cdp__mem_cuda_capturing;
    out->destroy = cdp__mem_cuda_destroy;
}

/* ---- >>mem/cuda_pages: device memory page by page -------------------------------------------- */

/* Knows: the virtual memory functions of the CUDA driver, loaded with the first source. Promises: a
   driver or a device without them gives a source without pages; pages that cannot all be mapped
   leave none behind; pages are unmapped after the work of their stream. */

/* CUmemAllocationProp: memory of one device, without a handle for other processes. */
typedef struct cdp__mem_cuda_prop {
    int type, handle_types, location_type, device;
    void *windows;
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
} cdp__mem_cuda_prop;

/* CUmemAccessDesc */
typedef struct cdp__mem_cuda_access {
    int location_type, device, flags;
} cdp__mem_cuda_access;

enum {
    CDP__MEM_CUDA_PINNED = 1,
    CDP__MEM_CUDA_ON_DEVICE = 1,
    CDP__MEM_CUDA_READ_WRITE = 3,
    CDP__MEM_CUDA_HAS_PAGES = 102, /* attributes of devices */
    CDP__MEM_CUDA_HAS_RDMA = 110
};

/* clang-format off */
#define CDP__MEM_DRIVER(X) \
    X(cuDeviceGetAttribute, (int *, int, int)) \
    X(cuMemGetAllocationGranularity, (size_t *, const cdp__mem_cuda_prop *, int)) \
    X(cuMemAddressReserve, (unsigned long long *, size_t, size_t, unsigned long long, \
        unsigned long long)) \
    X(cuMemAddressFree, (unsigned long long, size_t)) \
    X(cuMemCreate, (unsigned long long *, size_t, const cdp__mem_cuda_prop *, \
        unsigned long long)) \
    X(cuMemRelease, (unsigned long long)) \
    X(cuMemMap, (unsigned long long, size_t, size_t, unsigned long long, unsigned long long)) \
    X(cuMemSetAccess, (unsigned long long, size_t, const cdp__mem_cuda_access *, size_t)) \
    X(cuMemUnmap, (unsigned long long, size_t))
/* clang-format on */
#define CDP__MEM_DRIVER_MEMBER(name, parameters) int(*name) parameters;
#define CDP__MEM_DRIVER_NAME(name, parameters) #name,

typedef struct cdp__mem_driver {
    CDP__MEM_DRIVER(CDP__MEM_DRIVER_MEMBER)
} cdp__mem_driver;

typedef struct cdp__mem_cuda_paged { /* a source with pages */
    cdp__mem_cuda cuda;              /* first, because the other functions get it */
    cdp__mem_driver f;
    cdp__mem_cuda_prop prop;
    uint64_t page;
} cdp__mem_cuda_paged;

/* As many addresses as the device has bytes, and an eighth more for holes. */
CDP__PRIVATE cdp_status cdp__mem_cuda_range_reserve(
    void *user, uint64_t least, void **at, uint64_t *bytes) {
    const cdp__mem_cuda_paged *const u = (const cdp__mem_cuda_paged *)user;
    unsigned long long address = 0;
    size_t left = 0, all = 0;
    cdp__mem_cuda_turn t;
    int code;
    cdp__mem_cuda_enter(&u->cuda, &t);
    code = u->cuda.f.cudaMemGetInfo(&left, &all); /* makes the context, too */
    if (code) return cdp__mem_cuda_done(&u->cuda, &t, "cudaMemGetInfo", code);
    *bytes = cdp__max(least, ((uint64_t)all + all / 8 + u->page - 1) / u->page * u->page);
    code = u->f.cuMemAddressReserve(&address, (size_t)*bytes, 0, 0, 0);
    *at = (void *)(uintptr_t)address;
    return cdp__mem_cuda_done(&u->cuda, &t, "cuMemAddressReserve", code);
}

CDP__PRIVATE void cdp__mem_cuda_range_release(void *user, void *at, uint64_t bytes) {
    const cdp__mem_cuda_paged *const u = (const cdp__mem_cuda_paged *)user;
    cdp__mem_cuda_turn t;
    cdp__mem_cuda_enter(&u->cuda, &t);
    cdp__mem_cuda_leave(&u->cuda, &t, u->f.cuMemAddressFree((uintptr_t)at, (size_t)bytes));
}

/* Gives one page memory, which lives as long as it is mapped: nobody needs the handle. */
CDP__PRIVATE int cdp__mem_cuda_page(
    const cdp__mem_cuda_paged *u, unsigned long long at, const char **call) {
    unsigned long long handle;
    int code = u->f.cuMemCreate(&handle, (size_t)u->page, &u->prop, 0);
    *call = "cuMemCreate";
    if (code) return code;
    *call = "cuMemMap";
    code = u->f.cuMemMap(at, (size_t)u->page, 0, handle, 0);
    (void)u->f.cuMemRelease(handle);
    return code;
}

CDP__PRIVATE cdp_status cdp__mem_cuda_map(void *user, void *at, uint64_t bytes) {
    const cdp__mem_cuda_paged *const u = (const cdp__mem_cuda_paged *)user;
    const unsigned long long start = (uintptr_t)at;
    cdp__mem_cuda_access access;
    const char *call = "";
    cdp__mem_cuda_turn t;
    uint64_t done = 0;
    int code = 0;
    access.location_type = CDP__MEM_CUDA_ON_DEVICE;
    access.device = u->cuda.device;
    access.flags = CDP__MEM_CUDA_READ_WRITE;
    cdp__mem_cuda_enter(&u->cuda, &t);
    while (!code && done < bytes) {
        code = cdp__mem_cuda_page(u, start + done, &call);
        if (!code) done += u->page;
    }
    if (!code) {
        call = "cuMemSetAccess";
        code = u->f.cuMemSetAccess(start, (size_t)bytes, &access, 1);
    }
    if (code && done) (void)u->f.cuMemUnmap(start, (size_t)done);
    return cdp__mem_cuda_done(&u->cuda, &t, call, code);
}

/* cudaFree() waits for the whole device; here only the stream that the pages belong to may still
   use them. */
CDP__PRIVATE cdp_status cdp__mem_cuda_unmap(void *user, void *at, uint64_t bytes, void *stream) {
    const cdp__mem_cuda_paged *const u = (const cdp__mem_cuda_paged *)user;
    cdp__mem_cuda_turn t;
    int code;
    cdp__mem_cuda_enter(&u->cuda, &t);
    code = u->cuda.f.cudaStreamSynchronize(stream);
    if (code) return cdp__mem_cuda_done(&u->cuda, &t, "cudaStreamSynchronize", code);
    code = u->f.cuMemUnmap((uintptr_t)at, (size_t)bytes);
    return cdp__mem_cuda_done(&u->cuda, &t, "cuMemUnmap", code);
}

/* Loads the driver, which then stays loaded. False: it has not all functions. */
CDP__PRIVATE bool cdp__mem_driver_load(cdp__mem_driver *d) {
    static const char *const names[] = {CDP__MEM_DRIVER(CDP__MEM_DRIVER_NAME)};
    void *lib = cdp__library_open("libcuda.so.1");
    uint32_t i;
    if (!lib) lib = cdp__library_open("nvcuda.dll");
    for (i = 0; lib && i < sizeof names / sizeof *names; ++i) {
        void *const function = cdp__library_find(lib, names[i]);
        if (!function) return false;
        memcpy((char *)d + i * sizeof function, &function, sizeof function);
    }
    return lib != NULL;
}
#undef CDP__MEM_DRIVER_MEMBER
#undef CDP__MEM_DRIVER_NAME

/* Adds the functions of pages to a source, if driver and device have them. */
CDP__PRIVATE void cdp__mem_cuda_pages(cdp__mem_cuda_paged *u, cdp_mem_source *out) {
    cdp__mem_cuda_prop *const p = &u->prop;
    cdp__mem_cuda_turn t;
    size_t page = 0;
    int code, has = 0, rdma = 0;
    if (!cdp__mem_driver_load(&u->f)) return;
    cdp__mem_cuda_enter(&u->cuda, &t);
    p->type = CDP__MEM_CUDA_PINNED;
    p->location_type = CDP__MEM_CUDA_ON_DEVICE;
    p->device = u->cuda.device;
    code = u->f.cuDeviceGetAttribute(&has, CDP__MEM_CUDA_HAS_PAGES, u->cuda.device);
    if (!code && !u->f.cuDeviceGetAttribute(&rdma, CDP__MEM_CUDA_HAS_RDMA, u->cuda.device))
        p->rdma = rdma != 0;
    if (!code && has) code = u->f.cuMemGetAllocationGranularity(&page, p, 0);
    cdp__mem_cuda_leave(&u->cuda, &t, code);
    if (code || !has || page < 4096 || page % 512) return;
    u->page = out->page_bytes = page;
    out->range_reserve = cdp__mem_cuda_range_reserve;
    out->range_release = cdp__mem_cuda_range_release;
    out->map = cdp__mem_cuda_map;
    out->unmap = cdp__mem_cuda_unmap;
}

CDP_API cdp_status cdp_mem_source_cuda(const char *cudart, cdp_mem_source *out) {
    cdp__mem_cuda_paged *u;
    cdp_status st;
    if (!out) return cdp__missing("cdp_mem_source_cuda", "out");
    memset(out, 0, sizeof *out);
    u = (cdp__mem_cuda_paged *)cdp__alloc_zero(cdp_os_default(), sizeof *u);
    if (!u) return cdp__fail_nomem("cdp_mem_source_cuda", sizeof *u);
    st = cdp__mem_cuda_load(&u->cuda, cudart);
    if (st == CDP_OK) st = cdp__mem_cuda_device(&u->cuda);
    if (st != CDP_OK) {
        cdp__mem_cuda_destroy(u);
        return st;
    }
    cdp__mem_cuda_source(&u->cuda, out);
    cdp__mem_cuda_pages(u, out);
    return CDP_OK;
}

/* ---- >>mem/names: names and time ------------------------------------------------------------- */

/* Knows: the names of actions, and the time of day. Promises: every value of an action has a
   name. */

CDP_API const char *cdp_mem_action_name(cdp_mem_action action) {
    static const char *const names[CDP_MEM_ACTION_COUNT] = {"alloc", "free_requested",
        "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom",
        "snapshot", "user_defined", "annotate"};
    return (uint32_t)action < CDP_MEM_ACTION_COUNT ? names[action] : "?";
}

CDP__PRIVATE uint64_t cdp__mem_wall_us(void *user) {
    (void)user;
    return cdp__os_date_us();
}

/* ---- >>mem/settings: PyTorch's texts of settings --------------------------------------------- */

/* Knows: the names and values of PYTORCH_CUDA_ALLOC_CONF. Promises: an invalid text changes
   nothing. */

typedef struct cdp__mem_word { /* of a text of settings */
    const char *at;
    uint32_t length;
} cdp__mem_word;

CDP__PRIVATE bool cdp__mem_word_is(const cdp__mem_word *w, const char *text) {
    return strlen(text) == w->length && memcmp(w->at, text, w->length) == 0;
}

/* Takes the text up to one of `ends`. */
CDP__PRIVATE cdp__mem_word cdp__mem_word_next(const char **text, const char *ends) {
    cdp__mem_word w;
    while (**text == ' ')
        ++*text;
    w.at = *text;
    while (**text && !strchr(ends, **text))
        ++*text;
    w.length = (uint32_t)(*text - w.at);
    while (w.length && w.at[w.length - 1] == ' ')
        --w.length;
    return w;
}

CDP__PRIVATE bool cdp__mem_word_number(const cdp__mem_word *w, uint64_t most, uint64_t *out) {
    uint32_t i;
    *out = 0;
    for (i = 0; i < w->length; ++i) {
        if (w->at[i] < '0' || w->at[i] > '9') return false;
        *out = *out * 10 + (uint64_t)(w->at[i] - '0');
        if (*out > most) return false;
    }
    return w->length > 0;
}

/* Parses a ratio like "0.8". */
CDP__PRIVATE bool cdp__mem_word_part(const cdp__mem_word *w, double *out) {
    double scale = 1;
    bool point = false;
    uint32_t i;
    *out = 0;
    for (i = 0; i < w->length && i < 15; ++i) {
        if (w->at[i] == '.' && !point)
            point = true;
        else if (w->at[i] < '0' || w->at[i] > '9')
            return false;
        else {
            *out = *out * 10 + (w->at[i] - '0');
            if (point) scale *= 10;
        }
    }
    *out /= scale;
    return *out > 0 && *out < 1;
}

CDP__PRIVATE bool cdp__mem_divisions_valid(uint64_t n) {
    return n <= 64 && (n & (n - 1)) == 0;
}

/* Parses "[256:1,512:2,>:4]": each value applies from its size in MiB up to the next size; >
   applies to all larger ones. */
CDP__PRIVATE bool cdp__mem_read_list(const char **text, uint32_t out[16]) {
    uint32_t at = 0;
    uint64_t n, parts;
    while (**text && **text != ']') {
        cdp__mem_word size, value;
        ++*text; /* [ or , */
        size = cdp__mem_word_next(text, ":]");
        if (**text != ':') return false;
        ++*text;
        value = cdp__mem_word_next(text, ",]");
        if (!cdp__mem_word_number(&value, 64, &parts) || !cdp__mem_divisions_valid(parts))
            return false;
        if (cdp__mem_word_is(&size, ">"))
            n = 1ull << 20;
        else if (!cdp__mem_word_number(&size, 1ull << 20, &n) || !n || (n & (n - 1)))
            return false;
        for (; at < 16 && (1ull << at) <= n; ++at)
            out[at] = (uint32_t)parts;
    }
    if (**text != ']') return false;
    ++*text;
    return true;
}

CDP__PRIVATE bool cdp__mem_read_divisions(const char **text, uint32_t out[16], cdp_mem_desc *d) {
    cdp__mem_word w;
    uint64_t n;
    uint32_t i;
    memset(out, 0, 16 * sizeof *out);
    d->roundup_divisions = out;
    if (**text == '[') return cdp__mem_read_list(text, out);
    w = cdp__mem_word_next(text, ",");
    if (!cdp__mem_word_number(&w, 64, &n) || !cdp__mem_divisions_valid(n)) return false;
    for (i = 0; i < 16; ++i)
        out[i] = (uint32_t)n;
    return true;
}

CDP__PRIVATE bool cdp__mem_read_mib(const char **text, uint64_t least, uint64_t *out) {
    const cdp__mem_word w = cdp__mem_word_next(text, ",");
    uint64_t n;
    if (!cdp__mem_word_number(&w, 1ull << 30, &n) || n < least) return false;
    *out = n * CDP__MEM_MIB;
    return true;
}

CDP__PRIVATE bool cdp__mem_read_setting(
    const cdp__mem_word *name, const char **text, uint32_t divisions[16], cdp_mem_desc *d) {
    if (cdp__mem_word_is(name, "max_split_size_mb"))
        return cdp__mem_read_mib(text, 20, &d->max_split_bytes);
    if (cdp__mem_word_is(name, "max_non_split_rounding_mb"))
        return cdp__mem_read_mib(text, 1, &d->max_non_split_rounding_bytes);
    if (cdp__mem_word_is(name, "large_segment_size_mb"))
        return cdp__mem_read_mib(text, 20, &d->large_segment_bytes);
    if (cdp__mem_word_is(name, "garbage_collection_threshold")) {
        const cdp__mem_word w = cdp__mem_word_next(text, ",");
        return cdp__mem_word_part(&w, &d->gc_threshold);
    }
    if (cdp__mem_word_is(name, "expandable_segments")) {
        const cdp__mem_word w = cdp__mem_word_next(text, ",");
        d->expandable = cdp__mem_word_is(&w, "True");
        return d->expandable || cdp__mem_word_is(&w, "False");
    }
    if (cdp__mem_word_is(name, "roundup_power2_divisions"))
        return cdp__mem_read_divisions(text, divisions, d);
    return false;
}

CDP_API cdp_status cdp_mem_settings_read(
    const char *text, uint32_t divisions[16], cdp_mem_desc *desc) {
    uint32_t parts[16];
    cdp_mem_desc d;
    if (!text) return cdp__missing("cdp_mem_settings_read", "text");
    if (!divisions) return cdp__missing("cdp_mem_settings_read", "divisions");
    if (!desc) return cdp__missing("cdp_mem_settings_read", "desc");
    d = *desc;
    while (*text) {
        const char *const from = text;
        const cdp__mem_word name = cdp__mem_word_next(&text, ":,");
        bool good = *text == ':';
        if (good) ++text;
        good = good && cdp__mem_read_setting(&name, &text, parts, &d);
        good = good && (!*text || *text == ',');
        if (!good)
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_mem_settings_read: cannot take \"%s\": an unknown name, or a value out of "
                "range",
                from);
        if (*text) ++text;
    }
    if (d.roundup_divisions == parts) {
        memcpy(divisions, parts, sizeof parts);
        d.roundup_divisions = divisions;
    }
    *desc = d;
    return CDP_OK;
}

/* ---- >>mem/lifetime: create and destroy ------------------------------------------------------ */

/* Knows: how a desc is checked and filled in, and what is destroyed with an allocator. Promises: a
   source that was passed is destroyed exactly once, even if creation fails. */

CDP__PRIVATE void cdp__mem_source_drop(const cdp_mem_source *s) {
    if (s->destroy) s->destroy(s->user);
}

CDP__PRIVATE cdp_status cdp__mem_source_check(const cdp_mem_source *s) {
    const int events =
        !!s->event_create + !!s->event_destroy + !!s->event_record + !!s->event_query;
    const int pages =
        !!s->page_bytes + !!s->range_reserve + !!s->range_release + !!s->map + !!s->unmap;
    if (!s->reserve || !s->release || !s->name)
        return cdp__fail(CDP_ERR_INVALID, "a source needs a name, reserve and release");
    if (events != 0 && events != 4)
        return cdp__fail(CDP_ERR_INVALID, "a source has all four functions of events, or none");
    if (pages != 0 && (pages != 5 || s->page_bytes < 4096 || s->page_bytes % CDP__MEM_UNIT))
        return cdp__fail(CDP_ERR_INVALID,
            "a source has page_bytes, range_reserve, range_release, map and unmap, or none of "
            "them; page_bytes %llu must be 4096 or more, and a multiple of 512",
            (unsigned long long)s->page_bytes);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__mem_desc_check(const cdp_mem_desc *d, uint32_t device) {
    uint32_t i;
    if (device >= CDP__MEM_DEVICES)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_mem_create: device %u is above %u", device, CDP__MEM_DEVICES - 1);
    if (d->max_split_bytes && d->max_split_bytes < 20 * CDP__MEM_MIB)
        return cdp__fail(CDP_ERR_INVALID, "max_split_bytes %llu is below 20 MiB",
            (unsigned long long)d->max_split_bytes);
    if (d->large_segment_bytes
        && (d->large_segment_bytes < 10 * CDP__MEM_MIB
            || d->large_segment_bytes % CDP__MEM_SMALL_SEGMENT))
        return cdp__fail(CDP_ERR_INVALID,
            "large_segment_bytes %llu is below 10 MiB, or no multiple of 2 MiB",
            (unsigned long long)d->large_segment_bytes);
    if (d->expandable && (d->max_split_bytes || d->no_cache || d->recorder_only))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_mem_create: expandable segments go with no max_split_bytes, no_cache or "
            "recorder_only; leave one of them out");
    if (!(d->gc_threshold >= 0 && d->gc_threshold < 1))
        return cdp__fail(CDP_ERR_INVALID, "gc_threshold is not between 0 and 1");
    for (i = 0; d->roundup_divisions && i < 16; ++i)
        if (!cdp__mem_divisions_valid(d->roundup_divisions[i]))
            return cdp__fail(CDP_ERR_INVALID,
                "roundup_divisions[%u] is %u, which is no power of two up to 64", i,
                d->roundup_divisions[i]);
    if (d->dump_path && strlen(d->dump_path) >= sizeof((cdp_mem *)NULL)->dump_path)
        return cdp__fail(CDP_ERR_INVALID, "dump_path has more than 1023 bytes");
    return CDP_OK;
}

CDP__PRIVATE void cdp__mem_desc_defaults(cdp_mem *m, const cdp_mem_desc *desc) {
    cdp__mem_sizes *const z = &m->sizes;
    m->desc = *desc;
    m->os = m->desc.os = cdp__def(desc->os, cdp_os_default());
    m->desc.timeout_ms = cdp__def(desc->timeout_ms, 60000u);
    m->desc.wall_us = cdp__def(desc->wall_us, cdp__mem_wall_us);
    m->desc.source = NULL;
    m->desc.roundup_divisions = NULL;
    m->desc.dump_path = NULL;
    if (desc->recorder_only) m->desc.no_cache = true;
    m->limit = desc->limit_bytes;
    z->max_split = cdp__def(desc->max_split_bytes, UINT64_MAX);
    z->max_non_split_rounding = cdp__def(desc->max_non_split_rounding_bytes, 20 * CDP__MEM_MIB);
    if (!desc->max_split_bytes) z->max_non_split_rounding = CDP__MEM_REQUEST_MAX;
    z->large_segment = cdp__def(desc->large_segment_bytes, 20 * CDP__MEM_MIB);
    if (desc->roundup_divisions) {
        memcpy(z->divisions, desc->roundup_divisions, sizeof z->divisions);
        z->divided = true;
    }
    if (desc->dump_path) cdp__mem_text_copy(m->dump_path, desc->dump_path, sizeof m->dump_path);
}

/* The source of a new allocator: that of the desc, none for a recorder, or CUDA. */
CDP__PRIVATE cdp_status cdp__mem_source_of_desc(const cdp_mem_desc *d, cdp_mem_source *out) {
    cdp_status st;
    memset(out, 0, sizeof *out);
    out->name = "recorder";
    if (d->recorder_only && d->source) {
        cdp__mem_source_drop(d->source);
        return cdp__fail(CDP_ERR_INVALID, "cdp_mem_create: recorder_only has no source");
    }
    if (d->recorder_only) return CDP_OK;
    if (!d->source) return cdp_mem_source_cuda(NULL, out);
    *out = *d->source;
    st = cdp__mem_source_check(out);
    if (st != CDP_OK) cdp__mem_source_drop(out);
    return st;
}

CDP_API cdp_status cdp_mem_create(const cdp_mem_desc *desc, cdp_mem **out) {
    cdp_mem_source source;
    const cdp_os *os;
    cdp_mem *m;
    cdp_status st;
    if (!out) return cdp__missing("cdp_mem_create", "out");
    *out = NULL;
    if (!desc) return cdp__missing("cdp_mem_create", "desc");
    if (cdp__os_whole(desc->os, "cdp_mem_create") != CDP_OK) {
        if (desc->source) cdp__mem_source_drop(desc->source);
        return CDP_ERR_INVALID;
    }
    os = cdp__def(desc->os, cdp_os_default());
    st = cdp__mem_source_of_desc(desc, &source);
    if (st != CDP_OK) return st;
    st = cdp__mem_desc_check(desc, desc->recorder_only ? desc->device : source.device);
    if (st == CDP_OK && desc->expandable && !source.map)
        st = cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_mem_create: the source %s cannot map pages, which expandable needs; leave "
            "expandable out",
            source.name);
    m = st == CDP_OK ? (cdp_mem *)cdp__alloc_zero(os, sizeof *m) : NULL;
    if (st == CDP_OK && !m) st = cdp__fail_nomem("cdp_mem_create", sizeof *m);
    if (st != CDP_OK) {
        cdp__mem_source_drop(&source);
        return st;
    }
    cdp__ended_remove(m);
    cdp__mem_desc_defaults(m, desc);
    m->forks = cdp__forks_watch();
    m->base.mem = m;
    m->base.source = source;
    if (!desc->recorder_only) m->desc.device = source.device;
    if (!cdp__lock_open(&m->lock, os, true)) st = cdp__fail_nomem("cdp_mem_create", sizeof *m);
    if (st == CDP_OK && desc->record.history) st = cdp_mem_record(m, &desc->record);
    if (st != CDP_OK)
        (void)cdp_mem_destroy(m);
    else
        *out = m;
    return st;
}

CDP__PRIVATE void cdp__mem_warn(const cdp_mem *m, const char *text) {
    const cdp_logger *const l = &m->desc.logger;
    if (cdp__log_wants(l, CDP_LOG_WARN)) cdp__log_text(l, CDP_LOG_WARN, -1, text);
}

CDP__PRIVATE int cdp__mem_holders_order(const void *a, const void *b) {
    const cdp__mem_holder *const x = (const cdp__mem_holder *)a;
    const cdp__mem_holder *const y = (const cdp__mem_holder *)b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    if (x->first == y->first) return 0;
    return x->first < y->first ? -1 : 1;
}

/* Logs what holds blocks that are still in use, the largest first. */
CDP__PRIVATE void cdp__mem_leaks_log(const cdp_mem *m, cdp__mem_holder *h, uint64_t count) {
    char name[CDP__MEM_NAME], text[CDP__MEM_NAME + 160], size[32];
    uint64_t i, blocks = 0;
    qsort(h, (size_t)count, sizeof *h, cdp__mem_holders_order);
    for (i = 0; i < count && h[i].blocks; ++i) {
        const bool known = h[i].label || h[i].stack;
        if (i >= 10) {
            blocks += h[i].blocks;
            continue;
        }
        if (known) cdp__mem_holder_text(m, &h[i], name);
        cdp__format(text, sizeof text,
            "cdp_mem_destroy: still in use: %s in %llu %s, at 0x%llx%s, allocated by %s",
            cdp__mem_size_text(size, h[i].bytes), (unsigned long long)h[i].blocks,
            h[i].blocks == 1 ? "block" : "blocks", (unsigned long long)h[i].first,
            h[i].blocks == 1 ? "" : " and others",
            known ? name : "calls that were not recorded (see desc.record)");
        cdp__mem_warn(m, text);
    }
    if (!blocks) return;
    cdp__format(text, sizeof text, "cdp_mem_destroy: and %llu more blocks of %llu others",
        (unsigned long long)blocks, (unsigned long long)(i - 10));
    cdp__mem_warn(m, text);
}

/* Logs the blocks that are still in use. Returns their bytes. */
CDP__PRIVATE uint64_t cdp__mem_leaks(const cdp_mem *m) {
    uint64_t count = 0;
    const uint64_t bytes = cdp__mem_now(&m->tally.allocated_bytes);
    cdp__mem_holder *const sums = bytes ? cdp__mem_live_holders(m, &count) : NULL;
    if (sums)
        cdp__mem_leaks_log(m, sums, count);
    else if (bytes)
        cdp__mem_warn(m, "cdp_mem_destroy: blocks are still in use; no memory to say which");
    cdp__free(m->os, sums);
    return bytes;
}

CDP__PRIVATE void cdp__mem_arenas_close(const cdp_os *os, cdp_mem_pool *pool) {
    cdp__mem_arena *a, *next;
    for (a = pool->arenas; a; a = next) {
        next = a->next;
        cdp__mem_arena_close(os, a);
    }
    pool->arenas = NULL;
}

/* Destroys the events of a slab of uses; events in use belong to the source of their block. */
CDP__PRIVATE void cdp__mem_slab_events(const cdp_mem *m, cdp__mem_slab *s) {
    cdp__mem_use *const uses = (cdp__mem_use *)(void *)((char *)s + cdp__mem_up_to(sizeof *s, 16));
    uint64_t i;
    for (i = 0; i < s->uses; ++i) {
        const cdp__mem_part *const p = uses[i].part;
        cdp__mem_use_forget(p ? &p->span->arena->pool->source : &m->base.source, &uses[i]);
    }
}

CDP__PRIVATE void cdp__mem_close(cdp_mem *m) {
    const cdp_os *const os = m->os;
    cdp_mem_pool *pool, *next_pool;
    cdp__mem_slab *s, *next_slab;
    cdp__mem_stream_queue *l, *next_queue;
    cdp__mem_outside *o, *next_outside;
    for (s = m->slabs; s; s = s->next)
        cdp__mem_slab_events(m, s);
    for (s = m->slabs; s; s = next_slab) {
        next_slab = s->next;
        cdp__free(os, s);
    }
    for (l = m->stream_queues; l; l = next_queue) {
        next_queue = l->next;
        cdp__free(os, l);
    }
    for (o = m->outside; o; o = next_outside) {
        next_outside = o->next;
        cdp__free(os, o);
    }
    for (pool = &m->base; pool; pool = next_pool) {
        next_pool = pool->next;
        cdp__mem_arenas_close(os, pool);
        if (pool == &m->base || pool->own_source) cdp__mem_source_drop(&pool->source);
        if (pool == &m->base) continue;
        cdp__ended_add(pool);
        cdp__free(os, pool);
    }
    cdp__free(os, m->table.slots);
    cdp__mem_log_close(os, &m->log);
    cdp__lock_close(&m->lock);
    cdp__free(os, m);
}

CDP_API uint64_t cdp_mem_destroy(cdp_mem *mem) {
    cdp__mem_span *s, *next;
    cdp__mem_call c;
    uint64_t bytes, back = 0;
    if (!mem || cdp__mem_here(mem, "cdp_mem_destroy") != CDP_OK) return 0;
    cdp__ended_add(mem);
    cdp__mem_call_plain(mem, &c);
    cdp__mem_lock(mem);
    cdp__mem_call_enter(mem, &c);
    if (cdp__mem_drain(mem, &c) != CDP_OK) cdp__mem_warn(mem, cdp_last_error()->text);
    bytes = cdp__mem_leaks(mem);
    for (s = mem->spans; s; s = next) {
        next = s->next;
        if (cdp__mem_give_back(mem, &c, s, &back) != CDP_OK)
            cdp__mem_warn(mem, cdp_last_error()->text);
    }
    cdp__mem_unlock(mem);
    cdp__mem_close(mem);
    return bytes;
}

/* ---- >>mem/budgets: what blocks with a label may hold ---------------------------------------- */

/* Knows: budgets of labels, and which labels lie inside others. Promises: a request above a budget
   changes nothing. */

/* True if `text` is the label of a budget, or lies inside it. */
CDP__PRIVATE bool cdp__mem_budget_covers(const cdp__mem_budget *b, const char *text) {
    const size_t length = strlen(b->text);
    return strncmp(b->text, text, length) == 0 && (!text[length] || text[length] == '/');
}

/* What its label and those inside it hold. */
CDP__PRIVATE uint64_t cdp__mem_budget_held(const cdp_mem *m, const cdp__mem_budget *b) {
    const cdp__mem_labels *const l = &m->log.labels;
    uint64_t held = 0;
    uint32_t i;
    for (i = 0; i < l->used; ++i)
        if (l->at[i].bytes && cdp__mem_budget_covers(b, l->at[i].text)) held += l->at[i].bytes;
    return held;
}

/* Looks whether a request fits into the budgets of this thread's label. The caller holds the
   lock. */
CDP__PRIVATE CDP__COLD cdp_status cdp__mem_budget_check(const cdp_mem *m, uint64_t bytes) {
    const uint64_t size = cdp__mem_round(&m->sizes, bytes);
    const cdp__mem_thread *const t = cdp__mem_thread_own();
    char asked[32], most[32], has[32];
    uint32_t i;
    for (i = 0; i < CDP__MEM_WATCHERS && t->depth; ++i) {
        const cdp__mem_budget *const b = &m->budgets[i];
        uint64_t held;
        if (!b->bytes || !cdp__mem_budget_covers(b, t->text)) continue;
        held = cdp__mem_budget_held(m, b);
        if (size <= b->bytes && held <= b->bytes - size) continue;
        return cdp__fail(CDP_ERR_NOMEM,
            "cdp_mem_alloc: no %s for \"%s\": the budget of \"%s\" is %s, of which %s are held; "
            "raise it with cdp_mem_set_budget, or free blocks with this label",
            cdp__mem_size_text(asked, bytes), t->text, b->text, cdp__mem_size_text(most, b->bytes),
            cdp__mem_size_text(has, held));
    }
    return CDP_OK;
}

CDP_API cdp_status cdp_mem_set_budget(cdp_mem *mem, const char *label, uint64_t bytes) {
    cdp__mem_budget *b = NULL, *vacant = NULL;
    cdp_status st = CDP_OK;
    uint32_t i;
    if (cdp__mem_here(mem, "cdp_mem_set_budget") != CDP_OK) return cdp_last_error()->status;
    if (!label || !label[0]) return cdp__missing("cdp_mem_set_budget", "label");
    if (strlen(label) >= CDP__MEM_LABEL_BYTES)
        return cdp__fail(CDP_ERR_INVALID, "cdp_mem_set_budget: the label has more than %u bytes",
            CDP__MEM_LABEL_BYTES - 1);
    cdp__mem_lock(mem);
    for (i = 0; i < CDP__MEM_WATCHERS; ++i) {
        if (!mem->budgets[i].bytes)
            vacant = &mem->budgets[i];
        else if (strcmp(mem->budgets[i].text, label) == 0)
            b = &mem->budgets[i];
    }
    if (!b) b = vacant;
    if (bytes && !mem->log.labels.os)
        st = cdp__fail(CDP_ERR_STATE,
            "cdp_mem_set_budget: nothing is recorded, so no label holds bytes; record with history "
            "STATE first");
    else if (bytes && !b)
        st = cdp__fail(CDP_ERR_INVALID,
            "cdp_mem_set_budget: %u labels have a budget already; set one of them to 0 first",
            CDP__MEM_WATCHERS);
    if (st == CDP_OK && b && (bytes || b != vacant)) {
        b->bytes = bytes;
        cdp__mem_text_copy(b->text, label, sizeof b->text);
    }
    mem->has_budgets = false;
    for (i = 0; i < CDP__MEM_WATCHERS; ++i)
        mem->has_budgets = mem->has_budgets || mem->budgets[i].bytes;
    cdp__mem_unlock(mem);
    return st;
}

/* ---- >>mem/calls: alloc and free ------------------------------------------------------------- */

/* Knows: the public calls around requests and frees. Promises: a mistake of the caller, or a failed
   free, changes nothing. */

#define CDP__MEM_CALLER(c) ((c)->caller = cdp__return_address(), (c)->frame = cdp__frame_address())

/* Call without the lock: calls the functions whose levels were passed. */
CDP__PRIVATE CDP__COLD void cdp__mem_levels_tell(cdp_mem *m) {
    uint32_t i;
    for (i = 0; i < CDP__MEM_WATCHERS; ++i) {
        cdp__mem_level l;
        cdp__mem_lock(m);
        if (!i) m->levels_due = false;
        l = m->levels[i];
        m->levels[i].due = false;
        cdp__mem_unlock(m);
        if (l.func && l.due) l.func(l.user, m, l.bytes, l.now);
    }
}

/* Tries once to allocate. */
CDP__PRIVATE cdp_status cdp__mem_alloc_once(cdp_mem *m, cdp__mem_call *c, cdp_mem_pool *pool,
    uint64_t bytes, void *stream, void **out, cdp_mem_oom *oom) {
    cdp__mem_request a;
    cdp_status st;
    bool due;
    cdp__mem_lock(m);
    cdp__mem_call_enter(m, c);
    a.no_host = true; /* no device is short of memory yet */
    st = m->has_budgets ? cdp__mem_budget_check(m, bytes) : CDP_OK;
    if (st == CDP_OK) st = cdp__mem_request_begin(m, &a, pool, bytes, stream);
    if (st == CDP_OK) st = cdp__mem_serve(m, c, &a, out);
    if (st == CDP_ERR_NOMEM && !a.no_host)
        st = cdp__mem_oom_report(m, c, &a, oom);
    else
        oom->bytes = 0;
    due = m->levels_due;
    cdp__mem_unlock(m);
    if (due) cdp__mem_levels_tell(m);
    return st;
}

/* Writes the dump and calls the caller's function. Returns whether to try once more. */
CDP__PRIVATE bool cdp__mem_oom_hooks(cdp_mem *m, const cdp_mem_oom *oom) {
    const cdp_error error = *cdp_last_error();
    cdp_mem_oom_func func;
    void *user;
    bool dump, again;
    cdp__mem_lock(m);
    dump = m->dump_path[0] && !m->dumped;
    m->dumped = m->dumped || dump;
    func = m->on_oom;
    user = m->on_oom_user;
    cdp__mem_unlock(m);
    if (dump && cdp_mem_dump(m, m->dump_path) != CDP_OK) cdp__mem_warn(m, cdp_last_error()->text);
    again = func && func(user, m, oom);
    *cdp__error_slot() = error;
    return again;
}

CDP__PRIVATE cdp_status cdp__mem_alloc_any(
    cdp_mem *m, cdp__mem_call *c, cdp_mem_pool *pool, uint64_t bytes, void *stream, void **out) {
    cdp_mem_oom oom;
    cdp_status st;
    bool again = false;
    if (m->desc.recorder_only)
        return cdp__fail(CDP_ERR_STATE, "cdp_mem_alloc: a recorder_only has no memory");
    if (bytes >= CDP__MEM_REQUEST_MAX)
        return cdp__fail(CDP_ERR_NOMEM,
            "cdp_mem_alloc: %llu bytes are 2^60 or more; was a negative "
            "number converted?",
            (unsigned long long)bytes);
    for (;;) {
        st = cdp__mem_alloc_once(m, c, pool, bytes, stream, out, &oom);
        if (st != CDP_ERR_NOMEM || !oom.bytes || again) return st;
        again = cdp__mem_oom_hooks(m, &oom);
        if (!again) return st;
    }
}

CDP_API cdp_status cdp_mem_alloc(cdp_mem *mem, uint64_t bytes, void *stream, void **out) {
    cdp__mem_call c;
    if (!out) return cdp__missing("cdp_mem_alloc", "out");
    *out = NULL;
    if (cdp__mem_here(mem, "cdp_mem_alloc") != CDP_OK) return cdp_last_error()->status;
    if (!bytes) return CDP_OK;
    CDP__MEM_CALLER(&c);
    cdp__mem_call_begin(mem, &c, CDP__MEM_WANTS_STACK, NULL);
    return cdp__mem_alloc_any(mem, &c, NULL, bytes, stream, out);
}

CDP_API cdp_status cdp_mem_alloc_at(cdp_mem *mem, cdp_mem_pool *pool, uint64_t bytes, void *stream,
    const cdp_mem_site *site, void **out) {
    cdp__mem_call c;
    if (!out) return cdp__missing("cdp_mem_alloc_at", "out");
    *out = NULL;
    if (cdp__mem_here(mem, "cdp_mem_alloc_at") != CDP_OK) return cdp_last_error()->status;
    if (cdp__mem_pool_here(pool, "cdp_mem_alloc_at") != CDP_OK) return CDP_ERR_STATE;
    if (pool && pool->mem != mem)
        return cdp__fail(CDP_ERR_INVALID, "cdp_mem_alloc_at: the pool is another allocator's");
    if (!bytes) return CDP_OK;
    CDP__MEM_CALLER(&c);
    cdp__mem_call_begin(mem, &c, CDP__MEM_WANTS_STACK, site);
    return cdp__mem_alloc_any(mem, &c, pool, bytes, stream, out);
}

/* The live block at `data`, or an error that says why there is none. The caller holds the lock. */
CDP__MEM_HOT cdp_status cdp__mem_live(
    const cdp_mem *m, const void *data, const char *call, cdp__mem_part **out) {
    const unsigned long long at = (unsigned long long)(uintptr_t)data;
    *out = cdp__mem_table_find(&m->table, (uint64_t)at);
    if (!*out)
        return cdp__fail(CDP_ERR_INVALID,
            "%s: 0x%llx is no block of this allocator on %s: freed already, or of another one, or "
            "not the start of a block",
            call, at, m->base.source.name);
    if ((*out)->state == CDP_MEM_ACTIVE) return CDP_OK;
    return cdp__fail(CDP_ERR_INVALID,
        "%s: 0x%llx was freed already, and waits for the streams that use it", call, at);
}

CDP__PRIVATE cdp_status cdp__mem_free_any(
    cdp_mem *m, cdp__mem_call *c, const void *data, const char *call) {
    cdp__mem_part *p;
    cdp_status st;
    cdp__mem_lock(m);
    cdp__mem_call_enter(m, c);
    st = cdp__mem_live(m, data, call, &p);
    if (st == CDP_OK) {
        cdp_mem_pool *const pool = p->span->arena->pool;
        const uint64_t offset = cdp__mem_offset(p);
        st = cdp__mem_free_part(m, c, p);
        if (st == CDP_OK && pool != &m->base) pool->hash = cdp__mem_mix(pool->hash, offset + 1);
    }
    cdp__mem_unlock(m);
    return st;
}

CDP_API cdp_status cdp_mem_free(cdp_mem *mem, void *data) {
    cdp__mem_call c;
    if (!data) return CDP_OK;
    if (cdp__mem_here(mem, "cdp_mem_free") != CDP_OK) return cdp_last_error()->status;
    CDP__MEM_CALLER(&c);
    cdp__mem_call_begin(mem, &c, CDP__MEM_WANTS_FREE, NULL);
    return cdp__mem_free_any(mem, &c, data, "cdp_mem_free");
}

CDP_API cdp_status cdp_mem_record_stream(cdp_mem *mem, void *data, void *stream) {
    cdp__mem_part *p;
    cdp_status st;
    if (cdp__mem_here(mem, "cdp_mem_record_stream") != CDP_OK) return cdp_last_error()->status;
    if (!data) return cdp__missing("cdp_mem_record_stream", "data");
    cdp__mem_lock(mem);
    st = cdp__mem_live(mem, data, "cdp_mem_record_stream", &p);
    if (st == CDP_OK) {
        const cdp__mem_arena *const a = p->span->arena;
        if (a->stream != stream && !a->pool->fixed_bytes && a->pool->source.event_create)
            st = cdp__mem_use_add(mem, p, stream);
    }
    cdp__mem_unlock(mem);
    return st;
}

/* Blocks recorded on this stream no longer wait for it. */
CDP__PRIVATE void cdp__mem_stream_queue_forget(cdp_mem *m, const cdp__mem_call *c, void *stream) {
    cdp__mem_slab *s;
    for (s = m->slabs; s; s = s->next) {
        cdp__mem_use *const uses =
            (cdp__mem_use *)(void *)((char *)s + cdp__mem_up_to(sizeof *s, 16));
        uint64_t i;
        for (i = 0; i < s->uses; ++i)
            if (uses[i].part && uses[i].queue->stream == stream) uses[i].forgotten = true;
    }
    (void)cdp__mem_poll(m, c);
}

/* Returns the free memory of this stream, and removes its data from the ordinary pool. */
CDP__PRIVATE cdp_status cdp__mem_arena_forget(cdp_mem *m, const cdp__mem_call *c, void *stream) {
    cdp__mem_span *s, *next;
    cdp__mem_arena **at, *a;
    uint64_t bytes = 0;
    for (s = m->spans; s; s = next) {
        cdp_status st;
        next = s->next;
        if (s->reported || s->arena->stream != stream || s->arena->pool != &m->base) continue;
        st = cdp__mem_give_back(m, c, s, &bytes);
        if (st != CDP_OK) return st;
    }
    for (at = &m->base.arenas; *at && (*at)->stream != stream;)
        at = &(*at)->next;
    a = *at;
    if (!a) return CDP_OK;
    *at = a->next;
    cdp__mem_arena_close(m->os, a);
    return CDP_OK;
}

CDP_API cdp_status cdp_mem_forget_stream(cdp_mem *mem, void *stream) {
    const cdp__mem_span *s;
    cdp_mem_pool *pool;
    cdp__mem_arena *a;
    cdp__mem_call c;
    cdp_status st = CDP_OK;
    if (cdp__mem_here(mem, "cdp_mem_forget_stream") != CDP_OK) return cdp_last_error()->status;
    cdp__mem_call_plain(mem, &c);
    cdp__mem_lock(mem);
    cdp__mem_call_enter(mem, &c);
    for (s = mem->spans; s && st == CDP_OK; s = s->next) {
        const cdp__mem_part *p = s->first;
        if (s->arena->stream != stream || s->arena->pool != &mem->base) continue;
        while (p && p->state == CDP_MEM_INACTIVE)
            p = p->next;
        if (p)
            st = cdp__fail(p->state == CDP_MEM_ACTIVE ? CDP_ERR_INVALID : CDP_ERR_STATE,
                "cdp_mem_forget_stream: 0x%llx, allocated for stream 0x%llx, is %s",
                (unsigned long long)p->at, (unsigned long long)(uintptr_t)stream,
                p->state == CDP_MEM_ACTIVE ? "still in use; free it first"
                                           : "freed, but waits for other streams");
    }
    if (st == CDP_OK) cdp__mem_stream_queue_forget(mem, &c, stream);
    if (st == CDP_OK) st = cdp__mem_arena_forget(mem, &c, stream);
    for (pool = st == CDP_OK ? mem->base.next : NULL; pool; pool = pool->next)
        for (a = pool->arenas; a; a = a->next)
            if (a->stream == stream) a->forgotten = true;
    cdp__mem_unlock(mem);
    return st;
}

CDP_API uint64_t cdp_mem_usable(const cdp_mem *mem, const void *data) {
    const cdp__mem_part *p;
    uint64_t bytes;
    if (!data || !cdp__mem_lives(mem)) return 0;
    cdp__mem_lock(mem);
    p = cdp__mem_table_find(&mem->table, (uint64_t)(uintptr_t)data);
    bytes = p && p->state == CDP_MEM_ACTIVE ? p->size : 0;
    cdp__mem_unlock(mem);
    return bytes;
}

CDP_API uint64_t cdp_mem_trim(cdp_mem *mem) {
    cdp__mem_call c;
    cdp_status st;
    uint64_t bytes;
    if (!cdp__mem_lives(mem)) return 0;
    cdp__mem_call_plain(mem, &c);
    cdp__mem_lock(mem);
    cdp__mem_call_enter(mem, &c);
    (void)cdp__mem_poll(mem, &c);
    bytes = cdp__mem_release_idle(mem, &c, NULL, &st);
    cdp__mem_unlock(mem);
    return bytes;
}

CDP_API void cdp_mem_set_limit(cdp_mem *mem, uint64_t bytes) {
    if (!cdp__mem_lives(mem)) return;
    cdp__mem_lock(mem);
    mem->limit = bytes;
    cdp__mem_unlock(mem);
}

CDP_API void cdp_mem_on_oom(cdp_mem *mem, cdp_mem_oom_func func, void *user) {
    if (!cdp__mem_lives(mem)) return;
    cdp__mem_lock(mem);
    mem->on_oom = func;
    mem->on_oom_user = user;
    cdp__mem_unlock(mem);
}

CDP_API cdp_status cdp_mem_watch(cdp_mem *mem, cdp_mem_watch_func func, void *user) {
    const cdp__mem_span *s;
    uint32_t i = 0;
    if (cdp__mem_here(mem, "cdp_mem_watch") != CDP_OK) return cdp_last_error()->status;
    if (!func) return cdp__missing("cdp_mem_watch", "func");
    cdp__mem_lock(mem);
    while (i < CDP__MEM_WATCHERS && mem->watchers[i].func)
        ++i;
    if (i < CDP__MEM_WATCHERS) {
        mem->watchers[i].func = func;
        mem->watchers[i].user = user;
        for (s = mem->spans; s; s = s->next)
            func(user, s->grows ? CDP_MEM_SEGMENT_MAP : CDP_MEM_SEGMENT_ALLOC,
                (void *)(uintptr_t)s->at, s->size,
                s->arena->pool == &mem->base ? NULL : s->arena->pool);
    }
    cdp__mem_unlock(mem);
    if (i < CDP__MEM_WATCHERS) return CDP_OK;
    return cdp__fail(
        CDP_ERR_INVALID, "cdp_mem_watch: %u watchers exist already", CDP__MEM_WATCHERS);
}

/* From now on requests look at levels, or no longer. */
CDP__PRIVATE void cdp__mem_levels_want(cdp_mem *m, bool wanted) {
    const uint32_t rest = m->log.what & ~CDP__MEM_WANTS_LEVEL;
    cdp__atomic_store_u32(&m->log.what, rest | (wanted ? CDP__MEM_WANTS_LEVEL : 0), CDP__RELEASE);
}

CDP_API void cdp_mem_unwatch(cdp_mem *mem, void *user) {
    bool left = false;
    uint32_t i;
    if (!cdp__mem_lives(mem)) return;
    cdp__mem_lock(mem);
    for (i = 0; i < CDP__MEM_WATCHERS; ++i) {
        if (mem->watchers[i].user == user) mem->watchers[i].func = NULL;
        if (mem->levels[i].user == user) mem->levels[i].func = NULL;
        left = left || mem->levels[i].func;
    }
    if (!left) cdp__mem_levels_want(mem, false);
    cdp__mem_unlock(mem);
}

CDP_API cdp_status cdp_mem_watch_level(
    cdp_mem *mem, uint64_t bytes, uint64_t again_bytes, cdp_mem_level_func func, void *user) {
    uint32_t i = 0;
    if (cdp__mem_here(mem, "cdp_mem_watch_level") != CDP_OK) return cdp_last_error()->status;
    if (!func) return cdp__missing("cdp_mem_watch_level", "func");
    if (again_bytes > bytes)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_mem_watch_level: again_bytes %llu is above bytes %llu; memory must fall to "
            "again_bytes before the next call",
            (unsigned long long)again_bytes, (unsigned long long)bytes);
    cdp__mem_lock(mem);
    while (i < CDP__MEM_WATCHERS && mem->levels[i].func)
        ++i;
    if (i < CDP__MEM_WATCHERS) {
        cdp__mem_level *const l = &mem->levels[i];
        memset(l, 0, sizeof *l);
        l->func = func;
        l->user = user;
        l->bytes = bytes;
        l->again = again_bytes;
        l->armed = true;
        cdp__mem_levels_want(mem, true);
    }
    cdp__mem_unlock(mem);
    if (i < CDP__MEM_WATCHERS) return CDP_OK;
    return cdp__fail(CDP_ERR_INVALID,
        "cdp_mem_watch_level: %u levels are watched already; cdp_mem_unwatch removes them",
        CDP__MEM_WATCHERS);
}

/* Lets *place carry a label; none while nothing is recorded. */
CDP__PRIVATE void cdp__mem_label_of(cdp__mem_log *l, uint32_t *place, const char *text) {
    const uint32_t n = cdp__mem_labels_number(&l->labels, cdp__mem_text_hash(text), text);
    cdp__mem_label_set(&l->labels, place, n);
}

/* ---- >>mem/pool_calls: private pools, callbacks ---------------------------------------------- */

/* Knows: how pools are created, emptied and destroyed, and allocators as callbacks. Promises: a
   failed creation leaves nothing behind, and a pool in use stays intact. */

/* Reserves the segment of a fixed pool. Idle segments go first where they are in the way. After a
   failure only the own source is asked again: another one may be an agreement of several ranks,
   who would not all ask again. */
CDP__PRIVATE cdp_status cdp__mem_pool_reserve(
    cdp_mem *m, const cdp__mem_call *c, const cdp_mem_pool *pool, void **at) {
    const cdp_mem_source *const s = &pool->source;
    const uint64_t bytes = pool->fixed_bytes;
    cdp_status st, released = CDP_OK;
    if (m->limit && m->held + bytes > m->limit) (void)cdp__mem_release_idle(m, c, NULL, &released);
    if (m->limit && m->held + bytes > m->limit)
        return cdp__fail(CDP_ERR_NOMEM,
            "cdp_mem_pool_create: %llu bytes are above the limit of %llu, of which %llu are held",
            (unsigned long long)bytes, (unsigned long long)m->limit, (unsigned long long)m->held);
    st = s->reserve(s->user, bytes, at);
    if (st != CDP_ERR_NOMEM || pool->own_source) return st;
    if (!cdp__mem_release_idle(m, c, NULL, &released)) return st;
    return s->reserve(s->user, bytes, at);
}

/* Allocates the one segment of a fixed pool. */
CDP__PRIVATE cdp_status cdp__mem_pool_fill(cdp_mem *m, cdp__mem_call *c, cdp_mem_pool *pool) {
    const uint64_t bytes = pool->fixed_bytes;
    cdp__mem_part *p;
    void *at = NULL;
    cdp_status st;
    cdp__mem_arena *const a = cdp__mem_arena_of(m, pool, NULL);
    if (!a || !cdp__mem_arena_ready(m, a, true) || !cdp__mem_prepare(m))
        return cdp__fail_nomem("cdp_mem_pool_create", cdp__mem_bins_bytes(false));
    st = cdp__mem_pool_reserve(m, c, pool, &at);
    if (st != CDP_OK) return st;
    if ((uintptr_t)at % CDP__MEM_UNIT) {
        (void)pool->source.release(pool->source.user, at, bytes);
        return cdp__fail(CDP_ERR_IO, "cdp_mem_pool_create: %s gave memory not aligned to 512",
            pool->source.name);
    }
    ++m->stats.device_allocs;
    p = cdp__mem_span_add(m, CDP_MEM_SEGMENT_ALLOC, a, (uint64_t)(uintptr_t)at, bytes, true);
    cdp__mem_label_set(&m->log.labels, &p->span->label, pool->label);
    cdp__mem_event_span(m, c, CDP_MEM_SEGMENT_ALLOC, p->span);
    cdp__mem_free_put(m, cdp__mem_bins_of(p), p);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__mem_pool_check(const cdp_mem *m, const cdp_mem_pool_desc *d) {
    if (m->desc.recorder_only)
        return cdp__fail(CDP_ERR_INVALID, "cdp_mem_pool_create: a recorder_only has no pools");
    if (d->source && cdp__mem_source_check(d->source) != CDP_OK) return CDP_ERR_INVALID;
    if (d->fixed_bytes % CDP__MEM_UNIT || d->fixed_bytes >= CDP__MEM_REQUEST_MAX)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_mem_pool_create: fixed_bytes %llu is no multiple of 512, or too large",
            (unsigned long long)d->fixed_bytes);
    return CDP_OK;
}

CDP_API cdp_status cdp_mem_pool_create(
    cdp_mem *mem, const cdp_mem_pool_desc *desc, cdp_mem_pool **out) {
    cdp_mem_pool *pool, **last;
    cdp__mem_call c;
    cdp_status st;
    if (!out) return cdp__missing("cdp_mem_pool_create", "out");
    *out = NULL;
    if (cdp__mem_here(mem, "cdp_mem_pool_create") != CDP_OK) return cdp_last_error()->status;
    if (!desc) return cdp__missing("cdp_mem_pool_create", "desc");
    st = cdp__mem_pool_check(mem, desc);
    pool = st == CDP_OK ? (cdp_mem_pool *)cdp__alloc_zero(mem->os, sizeof *pool) : NULL;
    if (st == CDP_OK && !pool) st = cdp__fail_nomem("cdp_mem_pool_create", sizeof *pool);
    if (st != CDP_OK) {
        if (desc->source) cdp__mem_source_drop(desc->source);
        return st;
    }
    cdp__mem_call_plain(mem, &c);
    cdp__mem_lock(mem);
    cdp__ended_remove(pool);
    pool->mem = mem;
    pool->source = desc->source ? *desc->source : mem->base.source;
    pool->own_source = desc->source != NULL;
    pool->fixed_bytes = desc->fixed_bytes;
    pool->no_split = desc->no_split;
    pool->use_on_oom = desc->use_on_oom;
    pool->keep = desc->keep;
    pool->number = ++mem->pool_count;
    if (desc->label) cdp__mem_text_copy(pool->text, desc->label, sizeof pool->text);
    cdp__mem_label_of(&mem->log, &pool->label, pool->text);
    cdp__mem_call_enter(mem, &c);
    if (pool->fixed_bytes) st = cdp__mem_pool_fill(mem, &c, pool);
    if (st == CDP_OK) {
        for (last = &mem->base.next; *last;)
            last = &(*last)->next;
        *last = *out = pool;
    } else {
        cdp__mem_label_set(&mem->log.labels, &pool->label, 0);
        cdp__mem_arenas_close(mem->os, pool);
        if (pool->own_source) cdp__mem_source_drop(&pool->source);
        cdp__free(mem->os, pool);
    }
    cdp__mem_unlock(mem);
    return st;
}

/* The number of blocks of a pool that are in use or wait for streams. */
CDP__PRIVATE uint32_t cdp__mem_pool_busy(const cdp_mem *m, const cdp_mem_pool *pool) {
    const cdp__mem_span *s;
    uint32_t n = 0;
    for (s = m->spans; s; s = s->next)
        if (s->arena->pool == pool) n += s->busy;
    return n;
}

/* Returns the segments of a pool that have no block in use, and idle pages. Adds their bytes to
   *bytes. */
CDP__PRIVATE cdp_status cdp__mem_pool_empty(
    cdp_mem *m, const cdp__mem_call *c, cdp_mem_pool *pool, uint64_t *bytes) {
    cdp__mem_span *s, *next;
    for (s = m->spans; s; s = next) {
        cdp_status st;
        next = s->next;
        if (s->arena->pool != pool) continue;
        st = cdp__mem_give_back(m, c, s, bytes);
        if (st != CDP_OK) return st;
    }
    return CDP_OK;
}

CDP_API uint64_t cdp_mem_pool_trim(cdp_mem_pool *pool) {
    cdp_mem *const m = pool && !cdp__ended(pool) ? pool->mem : NULL;
    cdp__mem_call c;
    uint64_t bytes = 0;
    if (!cdp__mem_lives(m) || pool->fixed_bytes) return 0;
    cdp__mem_call_plain(m, &c);
    cdp__mem_lock(m);
    cdp__mem_call_enter(m, &c);
    (void)cdp__mem_poll(m, &c);
    (void)cdp__mem_pool_empty(m, &c, pool, &bytes);
    cdp__mem_unlock(m);
    return bytes;
}

CDP_API cdp_status cdp_mem_pool_destroy(cdp_mem_pool *pool) {
    cdp_mem_pool **at;
    cdp__mem_call c;
    cdp_mem *m;
    uint64_t bytes = 0;
    cdp_status st = cdp__mem_pool_here(pool, "cdp_mem_pool_destroy");
    if (st != CDP_OK || !pool) return st;
    m = pool->mem;
    st = cdp__mem_here(m, "cdp_mem_pool_destroy");
    if (st != CDP_OK) return st;
    cdp__mem_call_plain(m, &c);
    cdp__mem_lock(m);
    cdp__mem_call_enter(m, &c);
    st = cdp__mem_poll(m, &c);
    if (st == CDP_OK && cdp__mem_pool_busy(m, pool))
        st = cdp__fail(CDP_ERR_STATE,
            "cdp_mem_pool_destroy: %u blocks of pool %u are in use, or wait for streams",
            cdp__mem_pool_busy(m, pool), pool->number);
    if (st == CDP_OK) st = cdp__mem_pool_empty(m, &c, pool, &bytes);
    if (st == CDP_OK) {
        for (at = &m->base.next; *at != pool;)
            at = &(*at)->next;
        *at = pool->next;
        cdp__mem_label_set(&m->log.labels, &pool->label, 0);
        cdp__mem_arenas_close(m->os, pool);
        if (pool->own_source) cdp__mem_source_drop(&pool->source);
        cdp__ended_add(pool);
        cdp__free(m->os, pool);
    }
    cdp__mem_unlock(m);
    return st;
}

CDP_API uint64_t cdp_mem_pool_hash(const cdp_mem_pool *pool) {
    uint64_t hash;
    if (!pool || cdp__ended(pool) || !cdp__mem_lives(pool->mem)) return 0;
    cdp__mem_lock(pool->mem);
    hash = pool->hash;
    cdp__mem_unlock(pool->mem);
    return hash;
}

CDP__PRIVATE void *cdp__mem_callback_alloc(
    cdp_mem *m, cdp_mem_pool *pool, uint64_t bytes, void *stream, const char *label) {
    void *data = NULL;
    cdp_status st;
    if (label) cdp_mem_label(label);
    st = cdp_mem_alloc_at(m, pool, bytes, stream, NULL, &data);
    if (label) cdp_mem_label(NULL);
    return st == CDP_OK ? data : NULL;
}

CDP__PRIVATE void *cdp__mem_alloc_of_mem(
    void *user, uint64_t bytes, void *stream, const char *label) {
    return cdp__mem_callback_alloc((cdp_mem *)user, NULL, bytes, stream, label);
}

CDP__PRIVATE void *cdp__mem_alloc_of_pool(
    void *user, uint64_t bytes, void *stream, const char *label) {
    cdp_mem_pool *const pool = (cdp_mem_pool *)user;
    if (cdp__mem_pool_here(pool, "cdp_mem_alloc_at") != CDP_OK) return NULL;
    return cdp__mem_callback_alloc(pool->mem, pool, bytes, stream, label);
}

CDP__PRIVATE void cdp__mem_free_of_mem(void *user, void *data) {
    cdp_mem *const m = (cdp_mem *)user;
    if (cdp_mem_free(m, data) != CDP_OK && cdp__mem_lives(m))
        cdp__mem_warn(m, cdp_last_error()->text);
}

CDP__PRIVATE void cdp__mem_free_of_pool(void *user, void *data) {
    cdp_mem_pool *const pool = (cdp_mem_pool *)user;
    if (cdp__mem_pool_here(pool, "cdp_mem_free") == CDP_OK) cdp__mem_free_of_mem(pool->mem, data);
}

CDP_API cdp_allocator cdp_mem_allocator(cdp_mem *mem) {
    cdp_allocator a;
    a.user = mem;
    a.alloc = cdp__mem_alloc_of_mem;
    a.release = cdp__mem_free_of_mem;
    return a;
}

CDP_API cdp_allocator cdp_mem_pool_allocator(cdp_mem_pool *pool) {
    cdp_allocator a;
    a.user = pool;
    a.alloc = cdp__mem_alloc_of_pool;
    a.release = cdp__mem_free_of_pool;
    return a;
}

/* ---- >>mem/recording: what the caller records ------------------------------------------------ */

/* Knows: how a history is replaced, and the events that only callers create. Promises: numbers of
   an old history are never looked up in a new one. */

/* Clears numbers of an old history, which are invalid in the new one. */
CDP__PRIVATE void cdp__mem_forget_numbers(cdp_mem *m) {
    cdp__mem_outside *o;
    cdp_mem_pool *pool;
    cdp__mem_span *s;
    cdp__mem_part *p;
    for (s = m->spans; s; s = s->next) {
        s->stack = s->label = 0;
        for (p = s->first; p; p = p->next) {
            if (p->state != CDP_MEM_INACTIVE) p->began = 0;
            p->stack = p->label = 0;
        }
    }
    for (o = m->outside; o; o = o->next) {
        o->label = 0;
        cdp__mem_label_of(&m->log, &o->label, o->text);
    }
    for (pool = &m->base; pool; pool = pool->next) {
        pool->label = 0;
        cdp__mem_label_of(&m->log, &pool->label, pool->text);
    }
}

/* True if the tables of the old history can be used for the new one. */
CDP__PRIVATE bool cdp__mem_log_fits(const cdp__mem_log *l, const cdp_mem_record_desc *d) {
    return l->memory && d->keep && l->desc.max_frames == d->max_frames
        && l->desc.max_stacks == d->max_stacks && l->desc.max_entries == d->max_entries
        && l->desc.min_bytes == d->min_bytes && l->desc.history == d->history;
}

/* `what` is read without the lock, so it is stored separately. */
CDP__PRIVATE void cdp__mem_log_replace(cdp_mem *m, cdp__mem_log *fresh) {
    const uint32_t what = fresh->what;
    const size_t before = offsetof(cdp__mem_log, what), after = before + sizeof what;
    memcpy(&m->log, fresh, before);
    memcpy((char *)&m->log + after, (const char *)fresh + after, sizeof *fresh - after);
    cdp__atomic_store_u32(&m->log.what, what, CDP__RELEASE);
    ++m->histories;
    cdp__mem_forget_numbers(m);
}

CDP_API cdp_status cdp_mem_record(cdp_mem *mem, const cdp_mem_record_desc *desc) {
    cdp__mem_log fresh, old;
    cdp_status st;
    if (cdp__mem_here(mem, "cdp_mem_record") != CDP_OK) return cdp_last_error()->status;
    memset(&fresh, 0, sizeof fresh);
    if (desc) fresh.desc = *desc;
    cdp__mem_record_defaults(&fresh.desc);
    st = cdp__mem_record_check(&fresh.desc);
    if (st != CDP_OK) return st;
    if (fresh.desc.history && !cdp__mem_log_open(mem->os, &fresh)) {
        cdp__mem_log_close(mem->os, &fresh);
        return cdp__fail_nomem("cdp_mem_record", fresh.ring.room * sizeof(cdp__mem_record));
    }
    fresh.what = cdp__mem_wants(&fresh.desc);
    if (fresh.what && cdp_os_default() && mem->os->now_ns == cdp_os_default()->now_ns)
        fresh.what |= CDP__MEM_WANTS_TICKS;
    fresh.start_ns = mem->os->now_ns(mem->os->user);
    fresh.start_us = mem->desc.wall_us(mem->desc.wall_user);
    if (fresh.what & CDP__MEM_WANTS_STACK && fresh.desc.stacks == CDP_MEM_STACKS_BACKTRACE) {
        cdp__mem_trace t;
        t.count = 0;
        cdp__mem_unwind(NULL, 1, &t); /* the first call loads a library, and allocates */
    }
    cdp__mem_lock(mem);
    fresh.what |= mem->log.what & CDP__MEM_WANTS_LEVEL;
    fresh.labels.bare_peak = cdp__mem_active_bytes(mem);
    if (cdp__mem_log_fits(&mem->log, &fresh.desc)) {
        old = fresh;
        mem->log.desc = fresh.desc;
        cdp__atomic_store_u32(&mem->log.what, fresh.what, CDP__RELEASE);
    } else {
        old = mem->log;
        cdp__mem_log_replace(mem, &fresh);
    }
    cdp__mem_unlock(mem);
    cdp__mem_log_close(mem->os, &old);
    return CDP_OK;
}

CDP_API void cdp_mem_label(const char *text) {
    cdp__mem_thread *const t = cdp__mem_thread_own();
    if (text)
        cdp__mem_label_push(t, text);
    else
        cdp__mem_label_pop(t);
}

CDP_API void cdp_mem_note(cdp_mem *mem, const void *data, const char *text) {
    cdp__mem_call c;
    cdp__mem_part *p;
    uint32_t label;
    if (!text || !cdp__mem_lives(mem)) return;
    CDP__MEM_CALLER(&c);
    cdp__mem_call_begin(mem, &c, CDP__MEM_WANTS_STACK, NULL);
    cdp__mem_lock(mem);
    cdp__mem_call_enter(mem, &c);
    p = data ? cdp__mem_table_find(&mem->table, (uint64_t)(uintptr_t)data) : NULL;
    if (c.wants & CDP__MEM_WANTS_STATE && (p || !data)) {
        cdp__mem_record *e;
        label = cdp__mem_labels_number(&mem->log.labels, cdp__mem_text_hash(text), text);
        c.label = label;
        if (p && p->label) cdp__mem_label_leave(&mem->log.labels, &p->label, p->size);
        if (p)
            cdp__mem_label_enter(
                &mem->log.labels, &p->label, label, p->size, cdp__mem_active_bytes(mem));
        e = cdp__mem_event_add(mem, &c, p ? CDP_MEM_ANNOTATE : CDP_MEM_USER_DEFINED, p ? p->at : 0,
            p ? p->requested : 0);
        if (p) cdp__mem_event_place(e, p->span->arena);
    }
    cdp__mem_unlock(mem);
}

#define CDP__MEM_OUTSIDE_FROM (1ull << 52) /* no address of a program; each has 2^40 bytes */

CDP_API cdp_status cdp_mem_external(cdp_mem *mem, const char *label, uint64_t bytes) {
    cdp__mem_outside **at, *o;
    cdp_status st = CDP_OK;
    if (cdp__mem_here(mem, "cdp_mem_external") != CDP_OK) return cdp_last_error()->status;
    if (!label) return cdp__missing("cdp_mem_external", "label");
    cdp__mem_lock(mem);
    for (at = &mem->outside; *at && strncmp((*at)->text, label, sizeof o->text - 1) != 0;)
        at = &(*at)->next;
    o = *at;
    if (o && !bytes) {
        *at = o->next;
        cdp__mem_label_set(&mem->log.labels, &o->label, 0);
        --mem->externals;
        cdp__free(mem->os, o);
    } else if (!o && bytes) {
        o = (cdp__mem_outside *)cdp__alloc_zero(mem->os, sizeof *o);
        if (!o)
            st = cdp__fail_nomem("cdp_mem_external", sizeof *o);
        else {
            ++mem->externals;
            o->at = CDP__MEM_OUTSIDE_FROM + (mem->external_places++ % 4096 << 40);
            cdp__mem_text_copy(o->text, label, sizeof o->text);
            cdp__mem_label_of(&mem->log, &o->label, o->text);
            *at = o;
        }
    }
    if (o && bytes && st == CDP_OK) o->bytes = bytes;
    cdp__mem_unlock(mem);
    return st;
}

/* ---- >>mem/external: events of another allocator --------------------------------------------- */

/* Knows: segments and blocks whose addresses another allocator chose. Promises: the recorded
   history of its events can be replayed; inconsistent events are refused, and nothing changes. */

/* The first segment that overlaps these bytes. */
CDP__PRIVATE cdp__mem_span *cdp__mem_foreign_at(const cdp_mem *m, uint64_t at, uint64_t bytes) {
    cdp__mem_span *s;
    for (s = m->spans; s; s = s->next)
        if (s->at < at + bytes && at < s->at + s->size) return s;
    return NULL;
}

/* Adds a segment that is completely free. */
CDP__PRIVATE void cdp__mem_foreign_add(
    cdp_mem *m, const cdp__mem_call *c, const cdp_mem_event *e, cdp__mem_arena *a, bool large) {
    cdp__mem_part *const p = cdp__mem_span_add(m, e->action, a, e->address, e->size, large);
    p->span->reported = true;
    p->span->stack = c->stack;
    cdp__mem_label_set(&m->log.labels, &p->span->label, c->label);
    cdp__mem_free_put(m, cdp__mem_bins_of(p), p);
}

CDP__PRIVATE cdp_status cdp__mem_foreign_error(const cdp_mem_event *e, const char *why) {
    return cdp__fail(CDP_ERR_INVALID, "cdp_mem_note_event: %s of %llu bytes at 0x%llx: %s",
        cdp_mem_action_name(e->action), (unsigned long long)e->size, (unsigned long long)e->address,
        why);
}

/* The growing segment of this stream that is adjacent to these pages. */
CDP__PRIVATE cdp__mem_span *cdp__mem_foreign_adjacent(
    const cdp_mem *m, const cdp__mem_arena *a, const cdp_mem_event *e) {
    cdp__mem_span *s;
    for (s = m->spans; s; s = s->next)
        if (s->grows && s->arena == a
            && (s->at + s->size == e->address || e->address + e->size == s->at))
            return s;
    return NULL;
}

/* Handles SEGMENT_ALLOC and SEGMENT_MAP. */
CDP__PRIVATE cdp_status cdp__mem_foreign_reserve(
    cdp_mem *m, const cdp__mem_call *c, const cdp_mem_event *e) {
    const bool large = e->size > CDP__MEM_SMALL_SEGMENT;
    cdp__mem_arena *const a = cdp__mem_arena_of(m, &m->base, (void *)(uintptr_t)e->stream);
    cdp__mem_span *s;
    if (cdp__mem_foreign_at(m, e->address, e->size))
        return cdp__mem_foreign_error(e, "overlaps a segment that exists");
    if (!a || !cdp__mem_arena_ready(m, a, large) || !cdp__mem_prepare(m))
        return cdp__fail_nomem("cdp_mem_note_event", cdp__mem_bins_bytes(false));
    s = e->action == CDP_MEM_SEGMENT_MAP ? cdp__mem_foreign_adjacent(m, a, e) : NULL;
    if (s)
        (void)cdp__mem_pages_grow(m, s, e->address, e->size);
    else
        cdp__mem_foreign_add(m, c, e, a, large);
    cdp__mem_event_pages(m, c, e->action, e->address, e->size, a, c->stack);
    return CDP_OK;
}

/* Handles SEGMENT_FREE and SEGMENT_UNMAP. */
CDP__PRIVATE cdp_status cdp__mem_foreign_release(
    cdp_mem *m, const cdp__mem_call *c, const cdp_mem_event *e) {
    const bool pages = e->action == CDP_MEM_SEGMENT_UNMAP;
    cdp__mem_span *const s = cdp__mem_foreign_at(m, e->address, e->size);
    cdp__mem_arena *a;
    cdp__mem_part *p;
    if (!s || !s->reported || s->grows != pages
        || (!pages && (s->at != e->address || s->size != e->size)))
        return cdp__mem_foreign_error(e, "there is no such segment");
    if (!cdp__mem_prepare(m)) return cdp__fail_nomem("cdp_mem_note_event", sizeof *p);
    a = s->arena;
    p = cdp__mem_pages_cut(m, s, e->address, e->size);
    if (!p) return cdp__mem_foreign_error(e, "it is not free, or not of one segment");
    cdp__mem_call_watchers(m, e->action, e->address, e->size, &m->base);
    cdp__mem_event_pages(m, c, e->action, e->address, e->size, a, c->stack);
    cdp__mem_pages_shrink(m, p);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__mem_foreign_alloc(
    cdp_mem *m, cdp__mem_call *c, uint64_t at, uint64_t bytes, void *stream) {
    cdp__mem_arena *const a = cdp__mem_arena_of(m, &m->base, stream);
    const bool large = cdp__mem_is_large(bytes);
    cdp__mem_span *s;
    cdp__mem_part *p;
    if (cdp__mem_table_find(&m->table, at))
        return cdp__fail(CDP_ERR_INVALID, "cdp_mem_note_alloc: 0x%llx is in use already",
            (unsigned long long)at);
    if (!a || !cdp__mem_arena_ready(m, a, large) || !cdp__mem_prepare(m))
        return cdp__fail_nomem("cdp_mem_note_alloc", cdp__mem_bins_bytes(false));
    s = m->has_external ? cdp__mem_foreign_at(m, at, bytes) : NULL;
    p = s && s->reported ? cdp__mem_pages_cut(m, s, at, bytes) : NULL;
    if (s && !p)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_mem_note_alloc: %llu bytes at 0x%llx are not free in one segment",
            (unsigned long long)bytes, (unsigned long long)at);
    if (!p) {
        p = cdp__mem_span_add(m, CDP_MEM_SEGMENT_ALLOC, a, at, bytes, large);
        p->span->stack = c->stack;
        cdp__mem_label_set(&m->log.labels, &p->span->label, c->label);
        p->span->unrecorded = bytes < m->log.desc.min_bytes;
        if (!p->span->unrecorded) cdp__mem_event_span(m, c, CDP_MEM_SEGMENT_ALLOC, p->span);
    }
    p->stack = c->stack;
    cdp__mem_part_begin(m, p, bytes);
    if (c->wants) cdp__mem_part_given(m, c, p);
    cdp__mem_event_alloc(m, c, p);
    return CDP_OK;
}

/* Handles FREE_REQUESTED and FREE_COMPLETED. */
CDP__PRIVATE cdp_status cdp__mem_foreign_free(
    cdp_mem *m, const cdp__mem_call *c, const cdp_mem_event *e) {
    cdp__mem_part *const p = cdp__mem_table_find(&m->table, e->address);
    const bool asked = e->action == CDP_MEM_FREE_REQUESTED;
    if (!p || p->state != (asked ? CDP_MEM_ACTIVE : CDP_MEM_PENDING))
        return cdp__mem_foreign_error(e, asked ? "no block in use begins there" : "no free waits");
    if (!asked) {
        cdp__mem_complete_waited(m, c, p);
        return CDP_OK;
    }
    cdp__mem_event_part(m, c, CDP_MEM_FREE_REQUESTED, p);
    cdp__mem_part_leave(m, p);
    cdp__mem_part_wait(m, p);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__mem_foreign_oom(
    cdp_mem *m, const cdp__mem_call *c, const cdp_mem_event *e) {
    cdp__mem_arena *const a = cdp__mem_arena_of(m, &m->base, (void *)(uintptr_t)e->stream);
    cdp__mem_record *r;
    if (!a) return cdp__fail_nomem("cdp_mem_note_event", sizeof *a);
    ++m->stats.ooms;
    r = cdp__mem_event_add(m, c, CDP_MEM_OOM, 0, e->size);
    cdp__mem_event_place(r, a);
    if (r) r->extra = e->device_free;
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__mem_foreign_any(cdp_mem *m, cdp__mem_call *c, const cdp_mem_event *e) {
    cdp_status st;
    switch (e->action) {
    case CDP_MEM_ALLOC:
        return cdp__mem_foreign_alloc(m, c, e->address, e->size, (void *)(uintptr_t)e->stream);
    case CDP_MEM_FREE_REQUESTED:
    case CDP_MEM_FREE_COMPLETED: return cdp__mem_foreign_free(m, c, e);
    case CDP_MEM_SEGMENT_ALLOC:
    case CDP_MEM_SEGMENT_MAP:
        st = cdp__mem_foreign_reserve(m, c, e);
        m->has_external = m->has_external || st == CDP_OK;
        return st;
    case CDP_MEM_SEGMENT_FREE:
    case CDP_MEM_SEGMENT_UNMAP: return cdp__mem_foreign_release(m, c, e);
    case CDP_MEM_OOM: return cdp__mem_foreign_oom(m, c, e);
    case CDP_MEM_SNAPSHOT:
    case CDP_MEM_USER_DEFINED:
    case CDP_MEM_ANNOTATE:
    case CDP_MEM_ACTION_COUNT:
    default: return cdp__mem_foreign_error(e, "this action has a call of its own, or is none");
    }
}

CDP_API cdp_status cdp_mem_note_event(cdp_mem *mem, const cdp_mem_event *event) {
    const uint64_t most = CDP__MEM_REQUEST_MAX;
    cdp__mem_call c;
    cdp_status st;
    bool due;
    if (cdp__mem_here(mem, "cdp_mem_note_event") != CDP_OK) return cdp_last_error()->status;
    if (!event) return cdp__missing("cdp_mem_note_event", "event");
    if (!mem->desc.recorder_only)
        return cdp__fail(CDP_ERR_STATE, "cdp_mem_note_event: this allocator has a source");
    if (!event->size || event->size >= most || event->address > UINT64_MAX - most)
        return cdp__mem_foreign_error(event, "no such size or place is possible");
    CDP__MEM_CALLER(&c);
    cdp__mem_call_begin(mem, &c, CDP__MEM_WANTS_STACK, NULL);
    cdp__mem_lock(mem);
    cdp__mem_call_enter(mem, &c);
    st = cdp__mem_foreign_any(mem, &c, event);
    due = mem->levels_due;
    cdp__mem_unlock(mem);
    if (due) cdp__mem_levels_tell(mem);
    return st;
}

CDP_API cdp_status cdp_mem_note_alloc(
    cdp_mem *mem, const void *data, uint64_t bytes, void *stream) {
    cdp__mem_call c;
    cdp_status st;
    bool due;
    if (cdp__mem_here(mem, "cdp_mem_note_alloc") != CDP_OK) return cdp_last_error()->status;
    if (!data) return cdp__missing("cdp_mem_note_alloc", "data");
    if (!bytes || bytes >= CDP__MEM_REQUEST_MAX)
        return cdp__fail(CDP_ERR_INVALID, "cdp_mem_note_alloc: %llu bytes are no block",
            (unsigned long long)bytes);
    if (!mem->desc.recorder_only)
        return cdp__fail(CDP_ERR_STATE, "cdp_mem_note_alloc: this allocator has a source");
    CDP__MEM_CALLER(&c);
    cdp__mem_call_begin(mem, &c, CDP__MEM_WANTS_STACK, NULL);
    cdp__mem_lock(mem);
    cdp__mem_call_enter(mem, &c);
    st = cdp__mem_foreign_alloc(mem, &c, (uint64_t)(uintptr_t)data, bytes, stream);
    due = mem->levels_due;
    cdp__mem_unlock(mem);
    if (due) cdp__mem_levels_tell(mem);
    return st;
}

CDP_API cdp_status cdp_mem_note_free(cdp_mem *mem, const void *data) {
    cdp__mem_call c;
    if (cdp__mem_here(mem, "cdp_mem_note_free") != CDP_OK) return cdp_last_error()->status;
    if (!mem->desc.recorder_only)
        return cdp__fail(CDP_ERR_STATE, "cdp_mem_note_free: this allocator has a source");
    CDP__MEM_CALLER(&c);
    cdp__mem_call_begin(mem, &c, CDP__MEM_WANTS_FREE, NULL);
    return cdp__mem_free_any(mem, &c, data, "cdp_mem_note_free");
}

/* ---- >>mem/scopes: peaks of a stretch of a program ------------------------------------------- */

/* Knows: the scopes that are open. While some are, the peaks of the tallies are those since the
   newest began, or since peaks were reset; `whole` has those before. Promises: whenever a scope
   begins or ends, or peaks are reset, each open one gets the peaks until then, so that requests
   know nothing of scopes. */

#define CDP__MEM_SCOPED 3u /* statistics in front of a scope */

CDP__PRIVATE cdp_mem_stat *cdp__mem_scope_stats(cdp_mem_scope *s) {
    return (cdp_mem_stat *)(void *)s;
}

/* The sums now, in the order of a scope; `freed` is not set. */
CDP__PRIVATE void cdp__mem_scope_now(const cdp_mem *m, cdp_mem_stat out[CDP__MEM_SCOPED]) {
    const cdp__mem_tally *const held = &m->tally.allocated_bytes;
    const cdp__mem_tally *const reserved = &m->tally.reserved_bytes;
    out[0].current = cdp__mem_now(held);
    out[0].peak = held->peak_all;
    out[0].allocated = held->allocated[0] + held->allocated[1];
    out[1] = out[0];
    out[1].current = cdp__mem_active_bytes(m);
    out[1].peak = cdp__max(held->peak_all, m->tally.active_bytes.peak_all);
    out[2].current = cdp__mem_now(reserved);
    out[2].peak = reserved->peak_all;
    out[2].allocated = reserved->allocated[0] + reserved->allocated[1];
}

/* Passes the peaks until now on to all open scopes, and keeps them for the statistics. */
CDP__PRIVATE void cdp__mem_scopes_fold(cdp_mem *m) {
    cdp_mem_stat now[CDP__MEM_SCOPED];
    cdp_mem_scope *s;
    uint32_t i;
    memset(now, 0, sizeof now);
    cdp__mem_scope_now(m, now);
    for (i = 0; i < CDP__MEM_SCOPED; ++i)
        m->whole[i] = cdp__max(m->whole[i], now[i].peak);
    for (s = m->scopes; s; s = s->next)
        for (i = 0; i < CDP__MEM_SCOPED; ++i)
            cdp__mem_scope_stats(s)[i].peak =
                cdp__max(cdp__mem_scope_stats(s)[i].peak, now[i].peak);
}

CDP__PRIVATE void cdp__mem_scopes_peaks_set(cdp_mem *m, const uint64_t peaks[CDP__MEM_SCOPED]) {
    m->tally.allocated_bytes.peak_all = peaks[0];
    m->tally.active_bytes.peak_all = peaks[1];
    m->tally.reserved_bytes.peak_all = peaks[2];
}

/* Puts the peaks before the newest scope into a copy of the tallies for statistics. */
CDP__PRIVATE void cdp__mem_scopes_whole(const cdp_mem *m, cdp__mem_tallies *t) {
    t->allocated_bytes.peak_all = cdp__max(t->allocated_bytes.peak_all, m->whole[0]);
    t->active_bytes.peak_all = cdp__max(t->active_bytes.peak_all, m->whole[1]);
    t->reserved_bytes.peak_all = cdp__max(t->reserved_bytes.peak_all, m->whole[2]);
}

/* Call before the tallies are reset: open scopes go on as if nothing were. */
CDP__PRIVATE void cdp__mem_scopes_before_reset(cdp_mem *m, bool peak, bool accumulated) {
    cdp_mem_stat now[CDP__MEM_SCOPED];
    cdp_mem_scope *s;
    uint32_t i;
    if (peak) cdp__mem_scopes_fold(m);
    if (peak) memset(m->whole, 0, sizeof m->whole);
    memset(now, 0, sizeof now);
    cdp__mem_scope_now(m, now);
    for (s = accumulated ? m->scopes : NULL; s; s = s->next)
        for (i = 0; i < CDP__MEM_SCOPED; ++i)
            cdp__mem_scope_stats(s)[i].allocated -= now[i].allocated;
}

/* The place that points to an open scope, or the end of the list. */
CDP__PRIVATE cdp_mem_scope **cdp__mem_scope_find(cdp_mem *m, const cdp_mem_scope *scope) {
    cdp_mem_scope **at = &m->scopes;
    while (*at && *at != scope)
        at = &(*at)->next;
    return at;
}

CDP_API cdp_status cdp_mem_scope_begin(cdp_mem *mem, cdp_mem_scope *scope) {
    uint64_t peaks[CDP__MEM_SCOPED];
    bool open;
    uint32_t i;
    if (cdp__mem_here(mem, "cdp_mem_scope_begin") != CDP_OK) return cdp_last_error()->status;
    if (!scope) return cdp__missing("cdp_mem_scope_begin", "scope");
    cdp__mem_lock(mem);
    open = *cdp__mem_scope_find(mem, scope) != NULL;
    if (!open) {
        cdp_mem_stat *const s = cdp__mem_scope_stats(scope);
        cdp__mem_scopes_fold(mem);
        memset(scope, 0, sizeof *scope);
        cdp__mem_scope_now(mem, s); /* until the end, `freed` is what was current */
        for (i = 0; i < CDP__MEM_SCOPED; ++i)
            peaks[i] = s[i].peak = s[i].freed = s[i].current;
        cdp__mem_scopes_peaks_set(mem, peaks);
        scope->next = mem->scopes;
        mem->scopes = scope;
    }
    cdp__mem_unlock(mem);
    if (!open) return CDP_OK;
    return cdp__fail(CDP_ERR_INVALID,
        "cdp_mem_scope_begin: this scope is open already; end it "
        "first, or use another cdp_mem_scope");
}

CDP_API cdp_status cdp_mem_scope_end(cdp_mem *mem, cdp_mem_scope *scope) {
    cdp_mem_stat now[CDP__MEM_SCOPED];
    cdp_mem_scope **at;
    bool open;
    uint32_t i;
    if (cdp__mem_here(mem, "cdp_mem_scope_end") != CDP_OK) return cdp_last_error()->status;
    if (!scope) return cdp__missing("cdp_mem_scope_end", "scope");
    memset(now, 0, sizeof now);
    cdp__mem_lock(mem);
    at = cdp__mem_scope_find(mem, scope);
    open = *at != NULL;
    if (open) {
        cdp_mem_stat *const s = cdp__mem_scope_stats(scope);
        cdp__mem_scopes_fold(mem);
        *at = scope->next;
        scope->next = NULL;
        cdp__mem_scope_now(mem, now);
        for (i = 0; i < CDP__MEM_SCOPED; ++i) {
            s[i].allocated = now[i].allocated - s[i].allocated;
            s[i].freed = s[i].freed + s[i].allocated - now[i].current;
            s[i].current = now[i].current;
        }
        if (!mem->scopes) cdp__mem_scopes_peaks_set(mem, mem->whole);
        if (!mem->scopes) memset(mem->whole, 0, sizeof mem->whole);
    }
    cdp__mem_unlock(mem);
    if (open) return CDP_OK;
    return cdp__fail(CDP_ERR_INVALID,
        "cdp_mem_scope_end: this scope is not open: it was not begun with this allocator, or it "
        "ended already");
}

/* ---- >>mem/figures: statistics --------------------------------------------------------------- */

/* Knows: how tallies become statistics. Promises: allocated minus freed is current, and a peak is
   never below it. */

#define CDP__MEM_TRIPLES 9u /* statistics with [3], in front of the two of oversize blocks */

/* Turns the tally of active blocks into an ordinary one, which includes blocks held by callers. */
CDP__PRIVATE void cdp__mem_tally_active(cdp__mem_tally *active, const cdp__mem_tally *held) {
    uint32_t i;
    for (i = 0; i < 2; ++i) {
        active->current[i] += held->current[i];
        active->allocated[i] = held->allocated[i];
        active->peak[i] = cdp__max(active->peak[i], held->peak[i]);
    }
    active->peak_all = cdp__max(active->peak_all, held->peak_all);
}

CDP__PRIVATE void cdp__mem_stat_class(const cdp__mem_tally *t, uint32_t large, cdp_mem_stat *out) {
    out->current = t->current[large];
    out->peak = t->peak[large];
    out->allocated = t->allocated[large];
    out->freed = t->allocated[large] + t->before[large] - t->current[large];
}

CDP__PRIVATE void cdp__mem_stat_triple(const cdp__mem_tally *t, cdp_mem_stat out[3]) {
    cdp__mem_stat_class(t, 0, &out[1]);
    cdp__mem_stat_class(t, 1, &out[2]);
    out[0].current = out[1].current + out[2].current;
    out[0].allocated = out[1].allocated + out[2].allocated;
    out[0].freed = out[1].freed + out[2].freed;
    out[0].peak = t->peak_all;
}

CDP_API cdp_mem_stats cdp_mem_stats_of(const cdp_mem *mem) {
    cdp_mem_stats out;
    cdp__mem_tallies all;
    const cdp__mem_tally *const t = (const cdp__mem_tally *)(const void *)&all;
    cdp_mem_stat *const s = (cdp_mem_stat *)(void *)&out;
    uint32_t i;
    memset(&out, 0, sizeof out);
    if (!cdp__mem_lives(mem)) return out;
    cdp__mem_lock(mem);
    out = mem->stats;
    all = mem->tally;
    cdp__mem_tally_active(&all.active, &all.allocation);
    cdp__mem_tally_active(&all.active_bytes, &all.allocated_bytes);
    cdp__mem_scopes_whole(mem, &all);
    for (i = 0; i < CDP__MEM_TRIPLES; ++i)
        cdp__mem_stat_triple(&t[i], &s[3 * i]);
    cdp__mem_stat_class(&mem->tally.oversize_allocations, 0, &out.oversize_allocations);
    cdp__mem_stat_class(&mem->tally.oversize_segments, 0, &out.oversize_segments);
    out.events_lost = mem->log.ring.room ? cdp__mem_ring_lost(&mem->log.ring) : 0;
    out.stacks_lost = mem->log.depot.lost + mem->log.sites.lost;
    out.labels_lost = mem->log.labels.lost;
    cdp__mem_unlock(mem);
    return out;
}

CDP__PRIVATE void cdp__mem_tally_reset(cdp__mem_tally *t, bool peak, bool accumulated) {
    uint32_t i;
    for (i = 0; i < 2; ++i) {
        if (peak) t->peak[i] = t->current[i];
        if (accumulated) t->allocated[i] = 0;
        if (accumulated) t->before[i] = t->current[i];
    }
    if (peak) t->peak_all = cdp__mem_now(t);
}

CDP__PRIVATE void cdp__mem_active_reset(
    cdp__mem_tally *active, const cdp__mem_tally *held, bool peak, bool accumulated) {
    uint32_t i;
    for (i = 0; i < 2; ++i) {
        if (peak) active->peak[i] = active->current[i] + held->current[i];
        if (accumulated) active->before[i] = active->current[i] + held->current[i];
    }
    if (peak) active->peak_all = cdp__mem_now(active) + cdp__mem_now(held);
}

CDP_API void cdp_mem_reset(cdp_mem *mem, bool peak, bool accumulated) {
    cdp__mem_tally *t;
    cdp_mem_stats *s;
    uint32_t i;
    if (!cdp__mem_lives(mem)) return;
    s = &mem->stats;
    t = (cdp__mem_tally *)(void *)&mem->tally;
    cdp__mem_lock(mem);
    cdp__mem_scopes_before_reset(mem, peak, accumulated);
    if (peak) cdp__mem_labels_reset(&mem->log.labels, cdp__mem_active_bytes(mem));
    for (i = 0; i < CDP__MEM_TRIPLES + 2; ++i)
        cdp__mem_tally_reset(&t[i], peak, accumulated);
    cdp__mem_active_reset(&mem->tally.active, &mem->tally.allocation, peak, accumulated);
    cdp__mem_active_reset(&mem->tally.active_bytes, &mem->tally.allocated_bytes, peak, accumulated);
    if (accumulated) s->alloc_retries = s->ooms = s->oom_rejections = s->sync_all_streams = 0;
    if (accumulated) s->device_allocs = s->device_frees = 0;
    cdp__mem_unlock(mem);
}

/* ---- >>mem/summary: statistics as a table, as a line of JSON, and by label ------------------- */

/* Knows: the rows of labels, and the names of statistics. Promises: rows are copied at one moment,
   the largest first; texts are made without the lock. */

#define CDP__MEM_SUMMARY_LABELS 20u

CDP__PRIVATE int cdp__mem_held_order(const void *a, const void *b) {
    const cdp_mem_held *const x = (const cdp_mem_held *)a, *const y = (const cdp_mem_held *)b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    if (x->peak != y->peak) return x->peak > y->peak ? -1 : 1;
    return strcmp(x->label, y->label);
}

CDP__PRIVATE void cdp__mem_held_add(
    cdp_mem_held *rows, uint32_t *n, const char *label, const uint64_t sums[3]) {
    cdp_mem_held *const r = &rows[*n];
    if (!sums[0] && !sums[1]) return;
    memset(r, 0, sizeof *r);
    cdp__mem_text_copy(r->label, label, sizeof r->label);
    r->bytes = sums[0];
    r->peak = sums[1];
    r->blocks = sums[2];
    ++*n;
}

/* Copies all rows; the caller holds the lock. Returns their number. */
CDP__PRIVATE uint32_t cdp__mem_held_copy(const cdp_mem *m, cdp_mem_held *rows) {
    const cdp__mem_labels *const l = &m->log.labels;
    uint64_t bare[3];
    uint32_t i, n = 0;
    bare[0] = cdp__mem_active_bytes(m) - l->bytes;
    bare[1] = l->bare_peak;
    bare[2] = cdp__mem_now(&m->tally.active) + cdp__mem_now(&m->tally.allocation) - l->blocks;
    cdp__mem_held_add(rows, &n, "", bare);
    for (i = 0; i < l->used; ++i) {
        uint64_t sums[3];
        sums[0] = l->at[i].bytes;
        sums[1] = l->at[i].peak;
        sums[2] = l->at[i].blocks;
        cdp__mem_held_add(rows, &n, l->at[i].text, sums);
    }
    return n;
}

/* All rows, the largest first, in memory that the caller frees; NULL: nothing is recorded, or there
   is no memory for them (*recorded). */
CDP__PRIVATE cdp_mem_held *cdp__mem_held_rows(const cdp_mem *m, uint32_t *count, bool *recorded) {
    cdp_mem_held *rows = NULL;
    uint32_t room = 0;
    for (*count = 0;;) {
        uint32_t needed;
        cdp__mem_lock(m);
        needed = m->log.labels.used + 1;
        *recorded = m->log.labels.os != NULL;
        if (*recorded && needed <= room) *count = cdp__mem_held_copy(m, rows);
        cdp__mem_unlock(m);
        if (*recorded && needed <= room) break;
        cdp__free(m->os, rows);
        rows = NULL;
        if (!*recorded) return NULL;
        room = needed + 8;
        rows = (cdp_mem_held *)cdp__alloc(m->os, room * sizeof *rows);
        if (!rows) return NULL;
    }
    qsort(rows, *count, sizeof *rows, cdp__mem_held_order);
    return rows;
}

CDP_API uint32_t cdp_mem_held_by(const cdp_mem *mem, cdp_mem_held *out, uint32_t room) {
    cdp_mem_held *rows;
    uint32_t count;
    bool recorded;
    if (!cdp__mem_lives(mem)) return 0;
    rows = cdp__mem_held_rows(mem, &count, &recorded);
    if (rows && out) memcpy(out, rows, (size_t)cdp__min(count, room) * sizeof *rows);
    cdp__free(mem->os, rows);
    return count;
}

#define CDP__MEM_COLUMN 14u /* of a number */
#define CDP__MEM_FIRST 24u  /* of a name   */

/* Writes numbers right-aligned after a name. `sizes`: they are bytes. */
CDP__PRIVATE void cdp__mem_summary_row(
    cdp__text *t, const char *name, const uint64_t *v, uint32_t count, uint32_t sizes) {
    const uint64_t line = t->used, length = cdp__max((uint64_t)strlen(name), CDP__MEM_FIRST);
    uint32_t i;
    cdp__text_add(t, "%s", name);
    for (i = 0; i < count; ++i) {
        char text[32];
        if (i < sizes)
            (void)cdp__mem_size_text(text, v[i]);
        else
            cdp__format(text, sizeof text, "%llu", (unsigned long long)v[i]);
        cdp__text_pad(t, line, length + (i + 1) * CDP__MEM_COLUMN - strlen(text));
        cdp__text_add(t, "%s", text);
    }
    cdp__text_add(t, "\n");
}

CDP__PRIVATE void cdp__mem_summary_stat(
    cdp__text *t, const char *name, const cdp_mem_stat *s, bool bytes) {
    uint64_t v[4];
    v[0] = s->current;
    v[1] = s->peak;
    v[2] = s->allocated;
    v[3] = s->freed;
    cdp__mem_summary_row(t, name, v, 4, bytes ? 4 : 0);
}

CDP__PRIVATE void cdp__mem_summary_head(
    cdp__text *t, const char *name, const char *const *columns, uint32_t count) {
    const uint64_t line = t->used;
    uint32_t i;
    cdp__text_add(t, "%s", name);
    for (i = 0; i < count; ++i) {
        cdp__text_pad(t, line, CDP__MEM_FIRST + (i + 1) * CDP__MEM_COLUMN - strlen(columns[i]));
        cdp__text_add(t, "%s", columns[i]);
    }
    cdp__text_add(t, "\n");
}

CDP__PRIVATE void cdp__mem_summary_stats(cdp__text *t, const cdp_mem_stats *s) {
    static const char *const names[] = {"blocks in use", "segments", "and waiting", "free pieces",
        "in use", "reserved", "and waiting", "in free pieces", "requested"};
    static const uint32_t order[] = {4, 6, 8, 5, 7, 0, 2, 3, 1};
    static const char *const columns[] = {"now", "peak", "allocated", "freed"};
    const cdp_mem_stat *const all = (const cdp_mem_stat *)(const void *)s;
    uint32_t i;
    cdp__mem_summary_head(t, "", columns, 4);
    for (i = 0; i < CDP__MEM_TRIPLES; ++i) {
        const cdp_mem_stat *const at = &all[3 * order[i]];
        cdp__mem_summary_stat(t, names[order[i]], &at[0], order[i] >= 4);
        cdp__mem_summary_stat(t, "  small", &at[1], order[i] >= 4);
        cdp__mem_summary_stat(t, "  large", &at[2], order[i] >= 4);
    }
    cdp__mem_summary_stat(t, "oversize blocks", &s->oversize_allocations, false);
    cdp__mem_summary_stat(t, "oversize segments", &s->oversize_segments, false);
}

CDP__PRIVATE void cdp__mem_summary_labels(cdp__text *t, const cdp_mem_held *rows, uint32_t count) {
    static const char *const columns[] = {"now", "peak", "blocks"};
    uint32_t i;
    cdp__mem_summary_head(t, "label", columns, 3);
    for (i = 0; i < count && i < CDP__MEM_SUMMARY_LABELS; ++i) {
        uint64_t v[3];
        v[0] = rows[i].bytes;
        v[1] = rows[i].peak;
        v[2] = rows[i].blocks;
        cdp__mem_summary_row(t, rows[i].label[0] ? rows[i].label : "(no label)", v, 3, 2);
    }
    if (i < count) cdp__text_add(t, "and %u others\n", count - i);
}

CDP_API uint64_t cdp_mem_summary(const cdp_mem *mem, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    cdp_mem_stats stats;
    cdp_mem_held *rows;
    uint32_t count;
    bool recorded;
    (void)cdp__text_end(&t);
    if (!cdp__mem_lives(mem)) return 0;
    stats = cdp_mem_stats_of(mem);
    rows = cdp__mem_held_rows(mem, &count, &recorded);
    cdp__text_add(&t, "memory of %s: %llu requests failed, %llu retries\n", mem->base.source.name,
        (unsigned long long)stats.ooms, (unsigned long long)stats.alloc_retries);
    cdp__mem_summary_stats(&t, &stats);
    if (rows)
        cdp__mem_summary_labels(&t, rows, count);
    else if (recorded)
        cdp__text_add(&t, "labels: out of memory: the os has none for a list of them\n");
    else
        cdp__text_add(&t, "labels: nothing is recorded (see desc.record)\n");
    cdp__free(mem->os, rows);
    return t.used;
}

CDP__PRIVATE void cdp__mem_line_number(cdp__text *t, const char *name, uint64_t v) {
    cdp__text_add(t, ",\"%s\":%llu", name, (unsigned long long)v);
}

CDP__PRIVATE void cdp__mem_line_stat(cdp__text *t, const char *name, const cdp_mem_stat *s) {
    cdp__text_add(t, ",\"%s.all.current\":%llu,\"%s.all.peak\":%llu", name,
        (unsigned long long)s->current, name, (unsigned long long)s->peak);
}

CDP__PRIVATE void cdp__mem_line_labels(cdp__text *t, const cdp_mem_held *rows, uint32_t count) {
    uint32_t i;
    cdp__text_add(t, ",\"labels\":{");
    for (i = 0; i < count; ++i) {
        if (i) cdp__text_char(t, ',');
        cdp__json_string(t, rows[i].label);
        cdp__text_add(t, ":{\"bytes\":%llu,\"peak\":%llu,\"blocks\":%llu}",
            (unsigned long long)rows[i].bytes, (unsigned long long)rows[i].peak,
            (unsigned long long)rows[i].blocks);
    }
    cdp__text_add(t, "}");
}

CDP_API uint64_t cdp_mem_json_line(const cdp_mem *mem, uint64_t step, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    cdp_mem_stats s;
    cdp_mem_held *rows;
    uint32_t count;
    bool recorded;
    (void)cdp__text_end(&t);
    if (!cdp__mem_lives(mem)) return 0;
    s = cdp_mem_stats_of(mem);
    rows = cdp__mem_held_rows(mem, &count, &recorded);
    cdp__text_add(&t, "{\"step\":%llu,\"device\":%u", (unsigned long long)step, mem->desc.device);
    cdp__mem_line_number(&t, "time_us", mem->desc.wall_us(mem->desc.wall_user));
    cdp__mem_line_stat(&t, "allocated_bytes", &s.allocated_bytes[0]);
    cdp__mem_line_stat(&t, "active_bytes", &s.active_bytes[0]);
    cdp__mem_line_stat(&t, "requested_bytes", &s.requested_bytes[0]);
    cdp__mem_line_stat(&t, "reserved_bytes", &s.reserved_bytes[0]);
    cdp__mem_line_stat(&t, "inactive_split_bytes", &s.inactive_split_bytes[0]);
    cdp__mem_line_stat(&t, "allocation", &s.allocation[0]);
    cdp__mem_line_stat(&t, "segment", &s.segment[0]);
    cdp__mem_line_number(&t, "num_alloc_retries", s.alloc_retries);
    cdp__mem_line_number(&t, "num_ooms", s.ooms);
    cdp__mem_line_number(&t, "num_device_alloc", s.device_allocs);
    cdp__mem_line_number(&t, "num_device_free", s.device_frees);
    if (rows) cdp__mem_line_labels(&t, rows, count);
    cdp__text_add(&t, "}\n");
    cdp__free(mem->os, rows);
    return t.used;
}

/* ---- >>mem/files: snapshots, writing and reading files --------------------------------------- */

/* Knows: the public calls around snapshots. Promises: a file is complete or absent: it is written
   under another name and renamed. */

CDP__PRIVATE cdp_status cdp__mem_snapshot_one(cdp_mem_shot *s, cdp_mem *m, bool no_events) {
    cdp__mem_raw r;
    cdp_status st = cdp__mem_raw_take(m, no_events, &r);
    if (st == CDP_OK && !cdp__mem_build(s, m, &r)) st = cdp__fail_nomem("a snapshot", r.room);
    cdp__free(m->os, r.memory);
    return st;
}

CDP_API cdp_status cdp_mem_snapshot(
    cdp_mem *const *mems, uint32_t count, bool no_events, cdp_mem_shot **out) {
    cdp_mem_shot *s;
    cdp_status st = CDP_OK;
    uint32_t i;
    if (!out) return cdp__missing("cdp_mem_snapshot", "out");
    *out = NULL;
    if (!mems) return cdp__missing("cdp_mem_snapshot", "mems");
    if (!count) return cdp__missing("cdp_mem_snapshot", "count");
    for (i = 0; i < count; ++i)
        if (!mems[i]) return cdp__fail(CDP_ERR_INVALID, "cdp_mem_snapshot: mems[%u] is NULL", i);
    for (i = 0; i < count && st == CDP_OK; ++i)
        st = cdp__mem_here(mems[i], "cdp_mem_snapshot");
    if (st != CDP_OK) return st;
    s = cdp__mem_shot_new(mems[0]->os);
    if (!s) return cdp__fail_nomem("a snapshot", sizeof *s);
    for (i = 0; i < count && st == CDP_OK; ++i)
        st = cdp__mem_snapshot_one(s, mems[i], no_events);
    cdp__mem_shot_link(s);
    cdp__mem_build_times(s);
    if (st == CDP_OK)
        *out = s;
    else
        cdp__mem_shot_close(s);
    return st;
}

CDP_API void cdp_mem_shot_free(cdp_mem_shot *shot) {
    if (shot && cdp__mem_shot_here(shot, "cdp_mem_shot_free") == CDP_OK) cdp__mem_shot_close(shot);
}

/* Parses "module(function+0x1a) [address]", the form of backtrace_symbols(). */
CDP__PRIVATE void cdp__mem_symbol(cdp_mem_shot *s, cdp_mem_frame *f, const char *symbol) {
    const char *const open = strrchr(symbol, '(');
    const char *const close = open ? strchr(open, ')') : NULL;
    char text[256];
    uint64_t n;
    if (!close || open[1] == '+' || open[1] == ')') return; /* no name */
    n = cdp__min((uint64_t)(close - open - 1), sizeof text - 1);
    memcpy(text, open + 1, (size_t)n);
    text[n] = 0;
    f->name = cdp__mem_shot_text(s, text);
}

CDP_API void cdp_mem_shot_names(cdp_mem_shot *shot) {
#if CDP__MEM_BACKTRACE
    uint64_t i;
    for (i = 0; cdp__mem_shot_known(shot) && i < shot->frame_count; ++i) {
        void *at = (void *)(uintptr_t)shot->addresses[i];
        char **symbols;
        if (!at) continue;
        symbols = backtrace_symbols(&at, 1);
        if (!symbols) return;
        cdp__mem_symbol(shot, &shot->frames[i], symbols[0]);
        free(symbols);
    }
#else
    (void)shot;
#endif
}

/* Writes a file. Needs memory for the numbers of texts and stacks that are written already. */
CDP__PRIVATE bool cdp__mem_write_data(cdp__mem_output *w, const cdp_mem_shot *s) {
    w->text_memo = (uint32_t *)cdp__alloc_zero(s->os, s->texts.count * sizeof(uint32_t));
    w->stack_memo = (uint32_t *)cdp__alloc_zero(s->os, s->stack_count * sizeof(uint32_t));
    if (w->text_memo && w->stack_memo) cdp__mem_w_shot(w, s, &s->keys);
    cdp__free(s->os, w->text_memo);
    cdp__free(s->os, w->stack_memo);
    return w->text_memo && w->stack_memo;
}

CDP__PRIVATE bool cdp__mem_write_any(
    cdp__mem_output *w, const cdp_mem_shot *s, cdp_mem_format format) {
    switch (format) {
    case CDP_MEM_PICKLE: return cdp__mem_write_data(w, s);
    case CDP_MEM_JSON: w->json = true; return cdp__mem_write_data(w, s);
    case CDP_MEM_SVG: return cdp__mem_svg_timeline(w, s);
    case CDP_MEM_SVG_SEGMENTS: return cdp__mem_svg_segments(w, s);
    case CDP_MEM_FLAME: return cdp__mem_flame(w, s, true);
    case CDP_MEM_FLAME_MEMORY: return cdp__mem_flame(w, s, false);
    case CDP_MEM_TRACE: return cdp__mem_trace_text(w, s);
    case CDP_MEM_PEAK: return cdp__mem_peak_text(w, s);
    }
    return false;
}

CDP_API cdp_status cdp_mem_write(
    const cdp_mem_shot *shot, cdp_mem_format format, cdp_mem_sink sink, void *user) {
    cdp__mem_output *w;
    bool done, broken;
    if (cdp__mem_shot_here(shot, "cdp_mem_write") != CDP_OK) return cdp_last_error()->status;
    if (!sink) return cdp__missing("cdp_mem_write", "sink");
    if ((uint32_t)format > CDP_MEM_PEAK)
        return cdp__fail(CDP_ERR_INVALID, "cdp_mem_write: there is no format %u", (unsigned)format);
    w = (cdp__mem_output *)cdp__alloc_zero(shot->os, sizeof *w);
    if (!w) return cdp__fail_nomem("cdp_mem_write", sizeof *w);
    cdp__mem_output_open(w, sink, user);
    done = cdp__mem_write_any(w, shot, format);
    broken = w->broken;
    cdp__free(shot->os, w);
    if (broken) return cdp__fail(CDP_ERR_IO, "cdp_mem_write: the sink stopped it");
    return done ? CDP_OK : cdp__fail_nomem("cdp_mem_write", sizeof *w);
}

typedef struct cdp__mem_file {
    const cdp_os *os;
    uint64_t at;
    int32_t fd, err;
} cdp__mem_file;

CDP__PRIVATE bool cdp__mem_file_sink(void *user, const void *data, uint64_t bytes) {
    cdp__mem_file *const f = (cdp__mem_file *)user;
    const char *from = (const char *)data;
    while (bytes) {
        const int64_t n = f->os->files.write_at(f->os->user, f->fd, f->at, from, bytes);
        if (n <= 0) {
            f->err = n ? (int32_t)-n : EIO;
            return false;
        }
        from += n;
        f->at += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return true;
}

CDP_API cdp_status cdp_mem_write_file(
    const cdp_mem_shot *shot, cdp_mem_format format, const char *path) {
    cdp__mem_file f = {NULL, 0, -1, 0};
    char beside[1100];
    int32_t err;
    cdp_status st;
    if (cdp__mem_shot_here(shot, "cdp_mem_write_file") != CDP_OK) return cdp_last_error()->status;
    if (!path) return cdp__missing("cdp_mem_write_file", "path");
    if (strlen(path) + 5 > sizeof beside)
        return cdp__fail(CDP_ERR_INVALID, "cdp_mem_write_file: the path has more than 1 KiB");
    f.os = shot->os;
    if (!f.os->files.open_file)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_mem_write_file: this cdp_os has no files; set its member `files`, or use "
            "cdp_mem_write()");
    cdp__format(beside, sizeof beside, "%s.tmp", path);
    f.fd = f.os->files.open_file(
        f.os->user, beside, CDP_FILE_WRITE | CDP_FILE_CREATE | CDP_FILE_EMPTY);
    if (f.fd < 0)
        return cdp__fail_peer(CDP_ERR_IO, -1, -f.fd, "cdp_mem_write_file: cannot write %s", beside);
    st = cdp_mem_write(shot, format, cdp__mem_file_sink, &f);
    err = -f.os->files.close_file(f.os->user, f.fd);
    if (st == CDP_OK) f.err = err;
    if (st == CDP_OK && !err) f.err = -f.os->files.rename_file(f.os->user, beside, path);
    if (st == CDP_OK && !f.err) return CDP_OK;
    (void)f.os->files.remove_file(f.os->user, beside);
    if (!f.err) return st;
    return cdp__fail_peer(CDP_ERR_IO, -1, f.err, "cdp_mem_write_file: cannot write %s", path);
}

CDP_API cdp_status cdp_mem_dump(cdp_mem *mem, const char *path) {
    cdp_mem_shot *s;
    cdp_status st = cdp_mem_snapshot(&mem, 1, false, &s);
    if (st != CDP_OK) return st;
    st = cdp_mem_write_file(s, CDP_MEM_PICKLE, path);
    cdp_mem_shot_free(s);
    return st;
}

/* Reads a pickle or JSON; the first byte tells which. */
CDP__PRIVATE bool cdp__mem_read_tree(cdp__tree_reader *r, cdp__tree *out) {
    /* protocols 0 and 1 say no number: they begin with the dict, "(d" or "}" */
    if (r->bytes && (r->data[0] == 0x80 || r->data[0] == '(' || r->data[0] == '}'))
        return cdp__unpickle(r, out);
    while (r->at < r->bytes && r->data[r->at] <= ' ')
        ++r->at;
    if (r->at < r->bytes && r->data[r->at] == '{') return cdp__mem_unjson(r, out);
    return cdp__tree_bad(r, "it is neither a pickle nor JSON");
}

CDP_API cdp_status cdp_mem_read(
    const void *data, uint64_t bytes, const cdp_os *os, cdp_mem_shot **out) {
    cdp__tree_reader r;
    cdp__tree tree;
    cdp_mem_shot *s = NULL;
    cdp_status st = CDP_OK;
    if (!out) return cdp__missing("cdp_mem_read", "out");
    *out = NULL;
    if (!data) return cdp__missing("cdp_mem_read", "data");
    memset(&r, 0, sizeof r);
    r.data = (const uint8_t *)data;
    r.bytes = bytes;
    if (cdp__os_whole(os, "cdp_mem_read") != CDP_OK) return CDP_ERR_INVALID;
    r.memory.os = cdp__def(os, cdp_os_default());
    if (cdp__mem_read_tree(&r, &tree)) {
        s = cdp__mem_shot_new(r.memory.os);
        if (!s)
            cdp__tree_nomem(&r);
        else if (cdp__mem_import(&r, s, &tree))
            *out = s;
    }
    if (!*out) {
        if (s) cdp__mem_shot_close(s);
        if (r.no_memory)
            st = cdp__fail_nomem("cdp_mem_read", bytes);
        else
            st = cdp__fail(r.unknown ? CDP_ERR_UNSUPPORTED : CDP_ERR_INVALID,
                "cdp_mem_read: byte %llu of %llu: %s", (unsigned long long)r.at,
                (unsigned long long)bytes, r.why);
    }
    cdp__tree_close(&r);
    return st;
}

CDP__PRIVATE void cdp__mem_compare_text(cdp__text *t, const cdp__mem_sum *sums, uint64_t n) {
    uint64_t i;
    for (i = 0; i < n; ++i) {
        const double b = sums[i].bytes;
        char size[32];
        if (b >= 0 && b <= 0) continue;
        cdp__text_add(t, "%s%s in %lld blocks: ", b < 0 ? "-" : "+",
            cdp__mem_size_text(size, (uint64_t)(b < 0 ? -b : b)), (long long)sums[i].blocks);
        cdp__mem_holder_name(t, &sums[i]);
        cdp__text_add(t, "\n");
    }
}

CDP_API uint64_t cdp_mem_compare(const cdp_mem_shot *before, const cdp_mem_shot *after,
    int64_t *more, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    cdp__mem_sum *sums;
    double sum = 0;
    uint64_t i, n;
    (void)cdp__text_end(&t);
    if (more) *more = 0;
    if (!cdp__mem_shot_known(before) || !cdp__mem_shot_known(after)) return 0;
    n = before->block_count + after->block_count + 1;
    sums = (cdp__mem_sum *)cdp__alloc(after->os, n * sizeof *sums);
    if (!sums) return 0;
    n = cdp__mem_sums_of(before, after, -1, sums);
    n += cdp__mem_sums_of(after, after, 1, sums + n);
    for (i = 0; i < n; ++i)
        sum += sums[i].bytes;
    cdp__mem_compare_text(&t, sums, cdp__mem_sums(sums, n));
    cdp__free(after->os, sums);
    if (more && sum > -9e18) *more = sum < 9e18 ? (int64_t)sum : INT64_MAX;
    if (more && sum <= -9e18) *more = INT64_MIN;
    return t.used;
}

CDP_API uint32_t cdp_mem_segments(const cdp_mem_shot *shot, const cdp_mem_segment **out) {
    const bool there = cdp__mem_shot_known(shot);
    if (out) *out = there ? shot->segments : NULL;
    return there ? (uint32_t)shot->segment_count : 0;
}

CDP_API uint32_t cdp_mem_devices(const cdp_mem_shot *shot) {
    return cdp__mem_shot_known(shot) ? (uint32_t)shot->device_count : 0;
}

CDP_API uint64_t cdp_mem_events(
    const cdp_mem_shot *shot, uint32_t device, const cdp_mem_event **out) {
    const bool there = cdp__mem_shot_known(shot) && device < shot->device_count;
    if (out) *out = there ? shot->devices[device].events : NULL;
    return there ? shot->devices[device].count : 0;
}

CDP_API uint32_t cdp_mem_frames(
    const cdp_mem_shot *shot, uint32_t stack, const cdp_mem_frame **out) {
    const bool there =
        cdp__mem_shot_known(shot) && stack < shot->stack_count && shot->stacks[stack].count;
    if (out) *out = there ? shot->frames + shot->stacks[stack].first : NULL;
    return there ? shot->stacks[stack].count : 0;
}

CDP_API bool cdp_mem_module(
    const cdp_mem_shot *shot, uint32_t i, const char **path, uint64_t *base) {
    if (!cdp__mem_shot_known(shot) || i >= shot->module_count) return false;
    if (path) *path = shot->module_paths[shot->modules[i].path];
    if (base) *base = shot->modules[i].base;
    return true;
}

CDP_API cdp_status cdp_mem_frame_set(cdp_mem_shot *shot, uint32_t stack, uint32_t frame,
    const char *filename, const char *name, uint32_t line) {
    cdp_mem_frame f;
    if (shot && cdp__mem_shot_here(shot, "cdp_mem_frame_set") != CDP_OK) return CDP_ERR_STATE;
    if (!shot || stack >= shot->stack_count || frame >= shot->stacks[stack].count)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_mem_frame_set: there is no frame %u of stack %u", frame, stack);
    f.filename = cdp__mem_shot_text(shot, filename);
    f.name = cdp__mem_shot_text(shot, name);
    f.line = line;
    if (shot->failed) return cdp__fail_nomem("cdp_mem_frame_set", sizeof f);
    f.others = shot->frames[shot->stacks[stack].first + frame].others;
    shot->frames[shot->stacks[stack].first + frame] = f;
    return CDP_OK;
}

#endif /* CDP_MEM_IMPL_INCLUDED */
