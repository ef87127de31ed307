/* mem/ranges.h - segments that grow in ranges of addresses

   Knows: where in the ranges of an arena a request fits if pages are mapped, and which pages are
   idle. Promises: segments of one range never touch; pages are mapped where the fewest are
   needed, and unmapped only if no block needs a byte of them. */
#ifndef CDP_SRC_MEM_RANGES_H
#define CDP_SRC_MEM_RANGES_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "source_api.h"
#include "desc_api.h"
#include "allocator_api.h"
#include "sizes.h"
#include "bins.h"
#include "labels.h"
#include "blocks.h"
#include "pages.h"
#include "history.h"
#include "streams.h"

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

#endif /* CDP_SRC_MEM_RANGES_H */
