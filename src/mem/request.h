/* mem/request.h - one allocation, step by step

   Knows: the order in which memory is searched. Promises: a step that fails changes nothing, except
   that it may have returned memory to the source, or mapped pages that stay free. */
#ifndef CDP_SRC_MEM_REQUEST_H
#define CDP_SRC_MEM_REQUEST_H

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
#include "blocks.h"
#include "history.h"
#include "streams.h"
#include "ranges.h"

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

#endif /* CDP_SRC_MEM_REQUEST_H */
