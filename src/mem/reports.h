/* mem/reports.h - pictures in words

   Knows: texts for logs and for flamegraph.pl. Promises: one line per event, block or holder. */
#ifndef CDP_SRC_MEM_REPORTS_H
#define CDP_SRC_MEM_REPORTS_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "desc_api.h"
#include "allocator_api.h"
#include "shots_api.h"
#include "shot.h"
#include "writer.h"
#include "json.h"
#include "timeline.h"
#include "holders.h"
#include "svg.h"

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

#endif /* CDP_SRC_MEM_REPORTS_H */
