/* mem/bins.h - free blocks by size (pure)

   Knows: the records of blocks, segments and streams, and lists of the free blocks of one stream
   and size class. Promises: best fit, exact up to 2 MiB: one list for each multiple of 512;
   above that, 32 lists for each power of two, of which a quick search compares the first 8 blocks
   and an exact one compares all. A bitmap over the lists, and one over its words, find the next
   list that is not empty. */
#ifndef CDP_SRC_MEM_BINS_H
#define CDP_SRC_MEM_BINS_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "allocator_api.h"
#include "shots_api.h"
#include "sizes.h"

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

#endif /* CDP_SRC_MEM_BINS_H */
