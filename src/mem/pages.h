/* mem/pages.h - segments whose pages come and go

   Knows: how a segment gets more pages at either end, how free pages leave it at its ends or in
   its middle, and how two segments become one. Promises: blocks tile their segment, and
   statistics are sums over blocks, before and after each call. */
#ifndef CDP_SRC_MEM_PAGES_H
#define CDP_SRC_MEM_PAGES_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "desc_api.h"
#include "allocator_api.h"
#include "shots_api.h"
#include "sizes.h"
#include "bins.h"
#include "labels.h"
#include "blocks.h"

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

#endif /* CDP_SRC_MEM_PAGES_H */
