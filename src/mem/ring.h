/* mem/ring.h - events, the oldest overwritten (pure)

   Knows: the last `room` events. Promises: events are overwritten oldest first, and the lost ones
   are counted. */
#ifndef CDP_SRC_MEM_RING_H
#define CDP_SRC_MEM_RING_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"

typedef struct cdp__mem_record { /* 64 bytes */
    uint64_t address, size, stream, time_ns;
    uint64_t extra; /* OOM: free bytes of the device */
    uint32_t stack, label;
    uint32_t pool[2];
    uint8_t action, spare[7];
} cdp__mem_record;

typedef struct cdp__mem_ring {
    cdp__mem_record *at;
    uint32_t room, next;
    uint64_t total; /* ever recorded */
} cdp__mem_ring;

/* Returns the entry for a new event; overwrites the oldest one if the ring is full. */
CDP__PRIVATE cdp__mem_record *cdp__mem_ring_push(cdp__mem_ring *r) {
    cdp__mem_record *const e = &r->at[r->next];
    r->next = r->next + 1 == r->room ? 0 : r->next + 1;
    ++r->total;
    return e;
}

CDP__PRIVATE uint32_t cdp__mem_ring_count(const cdp__mem_ring *r) {
    return r->total < r->room ? (uint32_t)r->total : r->room;
}

CDP__PRIVATE uint64_t cdp__mem_ring_lost(const cdp__mem_ring *r) {
    return r->total - cdp__mem_ring_count(r);
}

/* All events, oldest first. */
CDP__PRIVATE void cdp__mem_ring_copy(const cdp__mem_ring *r, cdp__mem_record *out) {
    const uint32_t n = cdp__mem_ring_count(r);
    const uint32_t first = n < r->room ? 0 : r->next;
    const uint32_t head = n - first;
    if (!n) return;
    memcpy(out, r->at + first, head * sizeof *out);
    if (first) memcpy(out + head, r->at, first * sizeof *out);
}

#endif /* CDP_SRC_MEM_RING_H */
