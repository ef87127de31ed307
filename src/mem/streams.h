/* mem/streams.h - frees that wait

   Knows: which blocks wait for which events. Each stream has a queue; its events are queried from
   the front until one has not completed, because a stream works in order. Promises: a block
   becomes free after the last of its events, and a free that fails changes nothing. */
#ifndef CDP_SRC_MEM_STREAMS_H
#define CDP_SRC_MEM_STREAMS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
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

#endif /* CDP_SRC_MEM_STREAMS_H */
