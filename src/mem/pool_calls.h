/* mem/pool_calls.h - private pools, callbacks

   Knows: how pools are created, emptied and destroyed, and allocators as callbacks. Promises: a
   failed creation leaves nothing behind, and a pool in use stays intact. */
#ifndef CDP_SRC_MEM_POOL_CALLS_H
#define CDP_SRC_MEM_POOL_CALLS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../os/child.h"
#include "../base/compiler.h"
#include "../base/ended.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "desc_api.h"
#include "allocator_api.h"
#include "pools_api.h"
#include "record_api.h"
#include "sizes.h"
#include "bins.h"
#include "depot.h"
#include "blocks.h"
#include "history.h"
#include "streams.h"
#include "ranges.h"
#include "request.h"
#include "lifetime.h"
#include "calls.h"

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

#endif /* CDP_SRC_MEM_POOL_CALLS_H */
