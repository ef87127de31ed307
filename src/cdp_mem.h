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
#if defined(CDP_MEM_IMPLEMENTATION) && !defined(CDP_CORE_IMPLEMENTATION)
#define CDP_CORE_IMPLEMENTATION
#endif
#include "cdp.h"

#ifndef CDP_MEM_INCLUDED
#define CDP_MEM_INCLUDED

#define CDP_MEM_VERSION 300 /* major * 10000 + minor * 100 + patch */
#if CDP_MEM_VERSION != CDP_VERSION
#error "cdp_mem.h and cdp.h are of different versions: copy all headers from the same release"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#include "mem/source_api.h"
#include "mem/desc_api.h"
#include "mem/allocator_api.h"
#include "mem/pools_api.h"
#include "mem/record_api.h"
#include "mem/statistics_api.h"
#include "mem/live_api.h"
#include "mem/shots_api.h"

#ifdef __cplusplus
} /* extern "C" */
#endif
#include "mem/cxx_api.h"

#endif /* CDP_MEM_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_MEM_IMPLEMENTATION)) \
    && !defined(CDP_MEM_IMPL_INCLUDED)
#define CDP_MEM_IMPL_INCLUDED
#undef CDP__HERE
#define CDP__HERE CDP__FILE_MEM

#include "mem/sizes.h"
#include "mem/bins.h"
#include "mem/table.h"
#include "mem/ring.h"
#include "mem/depot.h"
#include "mem/labels.h"
#include "mem/os_stacks.h"
#include "mem/build_id.h"
#include "mem/blocks.h"
#include "mem/pages.h"
#include "mem/history.h"
#include "mem/streams.h"
#include "mem/ranges.h"
#include "mem/request.h"
#include "mem/out_of_memory.h"
#include "text/tree.h"
#include "mem/texts.h"
#include "text/json_real.h"
#include "mem/shot.h"
#include "mem/build.h"
#include "mem/writer.h"
#include "mem/pickle.h"
#include "mem/json.h"
#include "text/json_read.h"
#include "mem/value.h"
#include "text/unpickle.h"
#include "mem/unjson.h"
#include "mem/others.h"
#include "mem/import.h"
#include "mem/timeline.h"
#include "mem/holders.h"
#include "mem/svg.h"
#include "mem/reports.h"
#include "os/pages.h"
#include "mem/sources.h"
#include "mem/cuda.h"
#include "mem/cuda_pages.h"
#include "mem/names.h"
#include "mem/settings.h"
#include "mem/lifetime.h"
#include "mem/budgets.h"
#include "mem/calls.h"
#include "mem/pool_calls.h"
#include "mem/recording.h"
#include "mem/external.h"
#include "mem/scopes.h"
#include "mem/figures.h"
#include "mem/summary.h"
#include "mem/files.h"

#endif /* CDP_MEM_IMPL_INCLUDED */
