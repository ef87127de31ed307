/* mem/blocks.h - segments, splitting, merging, statistics

   Knows: all segments and blocks of an allocator. Promises: the blocks of a segment tile it; two
   free neighbours are merged; the table has exactly the blocks that are in use or waiting;
   statistics are sums over blocks. Memory for records is allocated before anything changes. */
#ifndef CDP_SRC_MEM_BLOCKS_H
#define CDP_SRC_MEM_BLOCKS_H

#include "../base/config.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../base/compiler.h"
#include "../base/ended.h"
#include "../base/basics.h"
#include "../os/linux.h"
#include "../os/child.h"
#include "source_api.h"
#include "desc_api.h"
#include "allocator_api.h"
#include "statistics_api.h"
#include "live_api.h"
#include "shots_api.h"
#include "sizes.h"
#include "bins.h"
#include "table.h"
#include "ring.h"
#include "depot.h"
#include "labels.h"

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

#endif /* CDP_SRC_MEM_BLOCKS_H */
