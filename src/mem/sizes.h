/* mem/sizes.h - size classes and rounding (pure)

   Knows: the sizes of blocks and segments, and when a block is split. The constants are PyTorch's,
   so that snapshots are comparable. Promises: a block is never smaller than its request, and
   every size is a multiple of 512. */
#ifndef CDP_SRC_MEM_SIZES_H
#define CDP_SRC_MEM_SIZES_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"

/* Used by every request, so inlining pays. */
#define CDP__MEM_HOT CDP__PRIVATE inline

#define CDP__MEM_UNIT 512ull
#define CDP__MEM_MIB (1ull << 20)
#define CDP__MEM_SMALL CDP__MEM_MIB               /* largest small request */
#define CDP__MEM_SMALL_SEGMENT (2 * CDP__MEM_MIB) /* segment for small requests */
#define CDP__MEM_OWN_SEGMENT (10 * CDP__MEM_MIB)  /* from this size on: a segment each */
#define CDP__MEM_REQUEST_MAX (1ull << 60)

typedef struct cdp__mem_sizes {
    uint64_t max_split, max_non_split_rounding, large_segment;
    bool divided; /* some number of divisions is not 0 */
    uint32_t divisions[16];
} cdp__mem_sizes;

CDP__PRIVATE uint64_t cdp__mem_up_to(uint64_t n, uint64_t unit) {
    return (n + unit - 1) / unit * unit;
}

/* The index of the interval that contains a size. The 16 intervals begin at 1, 2, 4 MiB .. 32
   GiB; smaller sizes are in the first. */
CDP__MEM_HOT uint32_t cdp__mem_interval(uint64_t bytes) {
    const uint32_t log = cdp__highest_bit(bytes);
    if (log < 20) return 0;
    return log > 35 ? 15 : log - 20;
}

/* Rounds up to one of `parts` equal steps between two powers of two; powers of two stay. */
CDP__PRIVATE uint64_t cdp__mem_next_part(uint64_t bytes, uint32_t parts) {
    const uint64_t low = 1ull << cdp__highest_bit(bytes);
    const uint64_t part = low / parts;
    return cdp__mem_up_to(bytes, part);
}

/* The size of the block for a request of at least one byte. */
CDP__MEM_HOT uint64_t cdp__mem_round(const cdp__mem_sizes *s, uint64_t bytes) {
    uint32_t parts;
    if (!s->divided || bytes < CDP__MEM_UNIT) return cdp__mem_up_to(bytes, CDP__MEM_UNIT);
    parts = s->divisions[cdp__mem_interval(bytes)];
    if (parts > 1 && bytes > CDP__MEM_UNIT * parts) return cdp__mem_next_part(bytes, parts);
    return cdp__mem_up_to(bytes, CDP__MEM_UNIT);
}

CDP__PRIVATE bool cdp__mem_is_large(uint64_t size) {
    return size > CDP__MEM_SMALL;
}

/* The size of the segment for a block. */
CDP__PRIVATE uint64_t cdp__mem_segment_size(const cdp__mem_sizes *s, uint64_t size) {
    if (!cdp__mem_is_large(size)) return CDP__MEM_SMALL_SEGMENT;
    if (size < CDP__MEM_OWN_SEGMENT) return s->large_segment;
    return cdp__mem_up_to(size, CDP__MEM_SMALL_SEGMENT);
}

/* True if a free block of `have` bytes may serve a request of `size` bytes. Oversize blocks only
   serve oversize requests, and not much smaller ones. */
CDP__MEM_HOT bool cdp__mem_suits(const cdp__mem_sizes *s, uint64_t size, uint64_t have) {
    if (size < s->max_split) return have < s->max_split;
    return have < size + s->max_non_split_rounding;
}

/* True if the unused rest of `have` bytes becomes a block of its own. */
CDP__MEM_HOT bool cdp__mem_splits(
    const cdp__mem_sizes *s, bool large, uint64_t size, uint64_t have) {
    if (!large) return have - size >= CDP__MEM_UNIT;
    return size < s->max_split && have - size > CDP__MEM_SMALL;
}

CDP__PRIVATE uint64_t cdp__mem_mix(uint64_t h, uint64_t v) {
    h = (h ^ v) * 0x9e3779b97f4a7c15ull;
    return h ^ h >> 29;
}

#endif /* CDP_SRC_MEM_SIZES_H */
