/* mem/external.h - events of another allocator

   Knows: segments and blocks whose addresses another allocator chose. Promises: the recorded
   history of its events can be replayed; inconsistent events are refused, and nothing changes. */
#ifndef CDP_SRC_MEM_EXTERNAL_H
#define CDP_SRC_MEM_EXTERNAL_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "desc_api.h"
#include "allocator_api.h"
#include "record_api.h"
#include "shots_api.h"
#include "sizes.h"
#include "bins.h"
#include "table.h"
#include "ring.h"
#include "blocks.h"
#include "history.h"
#include "pages.h"
#include "streams.h"
#include "calls.h"

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

#endif /* CDP_SRC_MEM_EXTERNAL_H */
