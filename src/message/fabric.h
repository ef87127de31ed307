/* message/fabric.h - memory that two ranks share (pure)

   Knows: memory of two kinds, shared by the threads of one process (a hub) or by processes of one
   host (cdp_tcp.h). The caller provides that memory, and wakes a sleeping peer in the function
   `wake` of a line. Promises: bytes arrive in order. A rank that arms its doorbell before its
   last poll is woken by every later change. Exposed memory is not read after it was revoked, or
   what was read is discarded. A peer in another process may store any value: each of its values
   is read once and checked, and a wrong one damages only messages of that peer. */
#ifndef CDP_SRC_MESSAGE_FABRIC_H
#define CDP_SRC_MESSAGE_FABRIC_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "transport_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "header.h"

/* ---- doorbells */

#define CDP__BELL_DATA 1u
#define CDP__BELL_ROOM 2u
#define CDP__BELL_ALL (CDP__BELL_DATA | CDP__BELL_ROOM)

/* The owner stores `wants`, then reads the counts; a peer increments a count, then reads
   `wants`. All four accesses are SEQ_CST, so at least one of the two sees the other's store.
   Counts are only compared for change. */
typedef struct cdp__doorbell {
    uint32_t wants;   /* what the owner sleeps for (CDP__BELL_...); 0: it is awake */
    uint32_t rung[2]; /* incremented by peers: for new data, for new room */
    uint8_t pad_[52];
} cdp__doorbell;

/* Call after a change. Returns true if the owner must be woken. `wants` is cleared, so that
   usually only one peer wakes it. */
CDP__PRIVATE bool cdp__doorbell_ring(cdp__doorbell *b, uint32_t what) {
    CDP_ASSERT(what == CDP__BELL_DATA || what == CDP__BELL_ROOM);
    (void)cdp__atomic_add_u32(&b->rung[what == CDP__BELL_ROOM], 1, CDP__SEQ_CST);
    if (!(cdp__atomic_load_u32(&b->wants, CDP__SEQ_CST) & what)) return false;
    cdp__atomic_store_u32(&b->wants, 0, CDP__SEQ_CST);
    return true;
}

CDP__PRIVATE void cdp__doorbell_arm(cdp__doorbell *b, uint32_t wants) {
    cdp__atomic_store_u32(&b->wants, wants, CDP__SEQ_CST);
}

/* True if a peer rang for one of `wants` since `last` was stored: checked before each sleep. */
CDP__PRIVATE bool cdp__doorbell_rung(
    const cdp__doorbell *b, const uint32_t last[2], uint32_t wants) {
    return ((wants & CDP__BELL_DATA) && cdp__atomic_load_u32(&b->rung[0], CDP__SEQ_CST) != last[0])
        || ((wants & CDP__BELL_ROOM) && cdp__atomic_load_u32(&b->rung[1], CDP__SEQ_CST) != last[1]);
}

/* The owner is awake. It polls everything after this call. */
CDP__PRIVATE void cdp__doorbell_read(cdp__doorbell *b, uint32_t last[2]) {
    if (cdp__atomic_load_u32(&b->wants, CDP__RELAXED))
        cdp__atomic_store_u32(&b->wants, 0, CDP__RELAXED);
    last[0] = cdp__atomic_load_u32(&b->rung[0], CDP__ACQUIRE);
    last[1] = cdp__atomic_load_u32(&b->rung[1], CDP__ACQUIRE);
}

/* ---- rings */

/* Bytes from one writer to one reader. Head and tail only grow; the ring's bytes follow in
   memory. */
typedef struct cdp__ring {
    uint64_t head; /* bytes ever written; only the writer stores */
    uint8_t pad_[56];
    uint64_t tail; /* bytes ever read; only the reader stores */
    uint8_t pad2_[56];
} cdp__ring;

/* Copies at most `room` bytes between pieces of memory and the ring, which has `size` bytes,
   from position `at` on, wrapping. Returns how many. */
CDP__PRIVATE uint64_t cdp__ring_move(cdp__ring *ring, uint64_t size, uint64_t at, uint64_t room,
    const cdp_iov *v, uint32_t n, bool into_ring) {
    uint8_t *bytes = (uint8_t *)(ring + 1);
    uint64_t off = at % size, moved = 0;
    uint32_t i;
    CDP_ASSERT(room <= size);
    for (i = 0; i < n && moved < room; ++i) {
        const uint64_t k = cdp__min(v[i].bytes, room - moved), first = cdp__min(k, size - off);
        uint8_t *mem = (uint8_t *)v[i].data;
        if (into_ring) {
            if (first) memcpy(bytes + off, mem, (size_t)first);
            if (k > first) memcpy(bytes, mem + first, (size_t)(k - first));
        } else {
            if (first) memcpy(mem, bytes + off, (size_t)first);
            if (k > first) memcpy(mem + first, bytes, (size_t)(k - first));
        }
        off += k;
        if (off >= size) off -= size;
        moved += k;
    }
    return moved;
}

/* ---- eager slots for small messages */

/* A message of at most CDP_SLOT_BYTES may travel in an eager slot instead of the stream, if its
   slot is free. The slot follows from the message's number in its stream, so the reader polls
   one word. If the slot is in use (the reader is behind, or the slot holds an unread message of
   another channel), the message takes the stream; the number tells the reader which of the two
   comes next. So no rank waits for a slot, and none is reserved. The header of a message is
   opaque here and has a fixed length. */
typedef struct cdp__eager_slot {
    uint32_t serial;  /* counts the messages stored in this slot; written last (atomic) */
    uint32_t number;  /* number of the message in its stream, from 0 */
    uint64_t channel; /* identifies the stream */
    uint16_t bytes;
    uint8_t head[CDP__SLOT_HEAD];
    uint8_t data[CDP_SLOT_BYTES + 16]; /* the first 16 bytes lie in the first cache line */
} cdp__eager_slot;
typedef struct cdp__eager_slots {
    cdp__eager_slot place[CDP_SLOTS];
    uint32_t taken[16]; /* written by the reader: the last serial that it has read (atomic) */
} cdp__eager_slots;

/* The slots must fit into the memory that a transport reserves for them. */
typedef char cdp__slots_fit[sizeof(cdp__eager_slots) <= CDP_SLOTS_BYTES ? 1 : -1];

/* One side's private state of the slots of both directions. */
typedef struct cdp__eager {
    uint32_t put[CDP_SLOTS], freed[CDP_SLOTS], got[CDP_SLOTS];
} cdp__eager;

CDP__PRIVATE uint32_t cdp__eager_place(uint64_t channel, uint32_t number) {
    return ((uint32_t)channel + number) % CDP_SLOTS;
}

/* True if slot i is free. Refreshes the copy of all `taken` counts at once, because reading that
   cache line of the other side is expensive. */
CDP__PRIVATE bool cdp__eager_free(cdp__eager *w, const cdp__eager_slots *to, uint32_t i) {
    uint32_t k;
    for (k = 0; k < CDP_SLOTS && w->put[i] != w->freed[i]; ++k) {
        const uint32_t at = (i + 1 + k) % CDP_SLOTS;
        w->freed[at] = cdp__atomic_load_u32(&to->taken[at], CDP__ACQUIRE);
    }
    return w->put[i] == w->freed[i];
}

/* Stores a message in its slot. False: the slot is in use. The caller rings the peer's doorbell
   afterwards. */
CDP__PRIVATE bool cdp__eager_put(cdp__eager *w, cdp__eager_slots *to, uint64_t channel,
    uint32_t number, const uint8_t head[CDP__SLOT_HEAD], const void *data, uint32_t bytes) {
    const uint32_t i = cdp__eager_place(channel, number);
    cdp__eager_slot *p = &to->place[i];
    CDP_ASSERT(bytes <= CDP_SLOT_BYTES);
    if (!cdp__eager_free(w, to, i)) return false;
    p->number = number;
    p->channel = channel;
    p->bytes = (uint16_t)bytes;
    memcpy(p->head, head, CDP__SLOT_HEAD);
    if (bytes) memcpy(p->data, data, bytes);
    cdp__atomic_store_u32(&p->serial, ++w->put[i], CDP__RELEASE);
    return true;
}

/* The slot that holds this message, or NULL. */
CDP__PRIVATE const cdp__eager_slot *cdp__eager_find(
    const cdp__eager *w, const cdp__eager_slots *from, uint64_t channel, uint32_t number) {
    const uint32_t i = cdp__eager_place(channel, number);
    const cdp__eager_slot *p = &from->place[i];
    if (cdp__atomic_load_u32(&p->serial, CDP__ACQUIRE) == w->got[i]) return NULL;
    return p->number == number && p->channel == channel ? p : NULL;
}

/* Copies the header. Returns the length of the message, or UINT32_MAX if the stored length is
   impossible. A malicious peer may change the stored length: use the returned one. */
CDP__PRIVATE uint32_t cdp__eager_head(const cdp__eager_slot *p, uint8_t head[CDP__SLOT_HEAD]) {
    const uint32_t bytes = cdp__atomic_load_u16(&p->bytes, CDP__RELAXED);
    memcpy(head, p->head, CDP__SLOT_HEAD);
    return bytes <= CDP_SLOT_BYTES ? bytes : UINT32_MAX;
}

/* The message has been read: frees its slot. */
CDP__PRIVATE void cdp__eager_taken(
    cdp__eager *w, cdp__eager_slots *from, uint64_t channel, uint32_t number) {
    const uint32_t i = cdp__eager_place(channel, number);
    w->got[i] = cdp__atomic_load_u32(&from->place[i].serial, CDP__RELAXED);
    cdp__atomic_store_u32(&from->taken[i], w->got[i], CDP__RELEASE);
}

/* True if any slot holds an unread message. */
CDP__PRIVATE bool cdp__eager_any(const cdp__eager_slots *from) {
    uint32_t i;
    for (i = 0; i < CDP_SLOTS; ++i)
        if (cdp__atomic_load_u32(&from->place[i].serial, CDP__ACQUIRE)
            != cdp__atomic_load_u32(&from->taken[i], CDP__RELAXED))
            return true;
    return false;
}

/* ---- exposures */

/* A large message stays in the sender's memory, and the receiver reads it in place. The state of
   an exposure is a growing number and three bits. Every change is a compare-and-swap of a known
   value (or clears bits), so all changes have one order.
     Owner:  free -> EXPOSED; try_revoke: EXPOSED -> free; revoke: any -> free, with the next
             number.
     Reader: EXPOSED -> EXPOSED, BEGUN before its first read.
   In one process the reader also sets HELD while it reads, and the owner waits until it is
   cleared. That wait is bounded, because threads of one process end together. Processes do not
   wait for each other: the reader checks the state again after each slice. If the owner revoked
   before that check, the slice is discarded; if it revokes later, it writes its memory only after
   the slice was read. A reader may see fields of a later exposure: it only reads memory that it
   has mapped. */
#define CDP__HELD 1u
#define CDP__EXPOSED 2u
#define CDP__BEGUN 4u
#define CDP__STATE_BITS 7u

typedef struct cdp__exposure {
    uint64_t at, bytes, off; /* address and length; offset in a segment */
    uint32_t state;
    uint32_t segment; /* number of that segment + 1; 0: in none */
} cdp__exposure;

/* ---- ways and lines */

/* One direction of a pair. The ring is the last member, because its bytes follow it. */
typedef struct cdp__way {
    cdp__exposure exposed[CDP_EXPOSURES]; /* the writer's memory that the reader may read */
    union {
        cdp__eager_slots slots;
        uint8_t slots_room[CDP_SLOTS_BYTES];
    } eager;
    cdp__ring ring;
} cdp__way;

/* Long data moves in pieces, so that both sides copy at the same time. */
#define CDP__LINE_PIECE (32u * 1024u)

typedef struct cdp__line {
    cdp__way *out, *in;            /* NULL until made */
    uint64_t size;                 /* bytes of each ring */
    uint64_t out_at, in_at;        /* bytes that this side has written and read */
    uint64_t out_tail;             /* bytes that the peer had read, as last loaded */
    bool full;                     /* the last write did not fit */
    bool same_process;             /* the peer is a thread of this process */
    uint32_t state[CDP_EXPOSURES]; /* states of this side's exposures */
    cdp__doorbell *theirs;
    void (*wake)(struct cdp__line *line); /* wakes the sleeping peer */
    void *owner;
    uint32_t peer;
} cdp__line;

CDP__PRIVATE void cdp__line_ring(cdp__line *l, uint32_t what) {
    if (cdp__doorbell_ring(l->theirs, what)) l->wake(l);
}

/* Writes one piece and rings the peer's doorbell. < 0: the peer has stored impossible values. */
CDP__PRIVATE int64_t cdp__line_put(cdp__line *l, const cdp_iov *v, uint32_t n, uint64_t bytes) {
    cdp__ring *ring = &l->out->ring;
    uint64_t moved;
    CDP_ASSERT(l->out_at - l->out_tail <= l->size);
    if (bytes > l->size - (l->out_at - l->out_tail)) {
        const uint64_t tail = cdp__atomic_load_u64(&ring->tail, CDP__ACQUIRE);
        if (l->out_at - tail > l->size) return -1;
        l->out_tail = tail;
    }
    moved =
        cdp__ring_move(ring, l->size, l->out_at, l->size - (l->out_at - l->out_tail), v, n, true);
    l->full = moved < bytes;
    if (!moved) return 0;
    l->out_at += moved;
    cdp__atomic_store_u64(&ring->head, l->out_at, CDP__RELEASE);
    cdp__line_ring(l, CDP__BELL_DATA);
    return (int64_t)moved;
}

CDP__PRIVATE int64_t cdp__line_get(cdp__line *l, const cdp_iov *v, uint32_t n) {
    cdp__ring *ring = &l->in->ring;
    const uint64_t head = cdp__atomic_load_u64(&ring->head, CDP__ACQUIRE);
    uint64_t moved;
    if (head - l->in_at > l->size) return -1;
    if (head == l->in_at) return 0;
    moved = cdp__ring_move(ring, l->size, l->in_at, head - l->in_at, v, n, false);
    if (!moved) return 0;
    l->in_at += moved;
    cdp__atomic_store_u64(&ring->tail, l->in_at, CDP__RELEASE);
    cdp__line_ring(l, CDP__BELL_ROOM);
    return (int64_t)moved;
}

/* As transport.send and .recv. < 0: the peer has stored impossible values. */
CDP__PRIVATE int64_t cdp__line_move(cdp__line *l, const cdp_iov *v, uint32_t n, bool sending) {
    uint64_t bytes = 0, off;
    int64_t moved = 0, r = 0;
    uint32_t i;
    for (i = 0; i < n; ++i)
        bytes += v[i].bytes;
    if (bytes <= CDP__LINE_PIECE)
        return sending ? cdp__line_put(l, v, n, bytes) : cdp__line_get(l, v, n);
    for (i = 0; i < n; ++i)
        for (off = 0; off < v[i].bytes; off += (uint64_t)r) {
            cdp_iov one;
            one.data = (uint8_t *)v[i].data + off;
            one.bytes = cdp__min(v[i].bytes - off, CDP__LINE_PIECE);
            r = sending ? cdp__line_put(l, &one, 1, one.bytes) : cdp__line_get(l, &one, 1);
            if (r <= 0) return moved ? moved : r;
            moved += r;
        }
    return moved;
}

/* What this rank sleeps for (CDP__BELL_...), for a line that has a doorbell of its own. */
CDP__PRIVATE uint32_t cdp__line_wants(const cdp__line *l) {
    return CDP__BELL_DATA | (l->full ? CDP__BELL_ROOM : 0u);
}

/* True if there is unread data, or new room for data that did not fit. Checked after the
   doorbell rang: it may have rung for data that has been read since. */
CDP__PRIVATE bool cdp__line_busy(const cdp__line *l) {
    return cdp__atomic_load_u64(&l->in->ring.head, CDP__ACQUIRE) != l->in_at
        || cdp__eager_any(&l->in->eager.slots)
        || (l->full && cdp__atomic_load_u64(&l->out->ring.tail, CDP__ACQUIRE) != l->out_tail);
}

/* The slot of the exposure table that a token of this side names. */
CDP__PRIVATE uint32_t cdp__exposure_index(const cdp__line *l, uint64_t token) {
    const uint32_t i = (uint32_t)(token >> 32);
    CDP_ASSERT(i < CDP_EXPOSURES && l->state[i] == (uint32_t)token);
    (void)l;
    return i % CDP_EXPOSURES;
}

/* Exposes memory to the peer. False: too many exposures. `segment` and `off` say where the peer
   can map the memory; 0: it cannot. */
CDP__PRIVATE bool cdp__line_expose(cdp__line *l, const void *data, uint64_t bytes, uint32_t segment,
    uint64_t off, uint64_t *token) {
    cdp__exposure *e;
    uint32_t i = 0;
    while (i < CDP_EXPOSURES && (l->state[i] & CDP__EXPOSED))
        ++i;
    if (i == CDP_EXPOSURES) return false;
    e = &l->out->exposed[i];
    cdp__atomic_store_u64(&e->at, (uint64_t)(uintptr_t)data, CDP__RELAXED);
    cdp__atomic_store_u64(&e->bytes, bytes, CDP__RELAXED);
    cdp__atomic_store_u64(&e->off, off, CDP__RELAXED);
    cdp__atomic_store_u32(&e->segment, segment, CDP__RELAXED);
    l->state[i] |= CDP__EXPOSED;
    cdp__atomic_store_u32(&e->state, l->state[i], CDP__RELEASE);
    *token = (uint64_t)i << 32 | l->state[i];
    return true;
}

CDP__PRIVATE bool cdp__line_try_revoke(cdp__line *l, uint64_t token) {
    const uint32_t i = cdp__exposure_index(l, token);
    const uint32_t next = (l->state[i] & ~CDP__STATE_BITS) + CDP__STATE_BITS + 1;
    uint32_t state = l->state[i];
    if (!cdp__atomic_cas_u32(&l->out->exposed[i].state, &state, next, CDP__ACQ_REL, CDP__RELAXED))
        return false;
    l->state[i] = next;
    return true;
}

/* False: the reader, a thread of this process, is reading a slice, and will not begin another
   one. Let it run, then call again. */
CDP__PRIVATE bool cdp__line_revoke(cdp__line *l, uint64_t token) {
    const uint32_t i = cdp__exposure_index(l, token);
    uint32_t *state = &l->out->exposed[i].state;
    const uint32_t next = (l->state[i] & ~CDP__STATE_BITS) + CDP__STATE_BITS + 1;
    if (l->same_process
        && (cdp__atomic_and_u32(state, ~(CDP__EXPOSED | CDP__BEGUN), CDP__ACQ_REL) & CDP__HELD))
        return false;
    l->state[i] = next;
    /* must precede the owner's next write to that memory */
    (void)cdp__atomic_swap_u32(state, next, CDP__ACQ_REL);
    return true;
}

/* Call before reading a slice of a peer's exposure. Copies its fields, which may hold any
   values. False: the memory is not exposed, or no longer. */
CDP__PRIVATE bool cdp__line_read_begin(cdp__line *l, uint64_t token, cdp__exposure *out) {
    const uint32_t exposed = (uint32_t)token, begun = exposed | CDP__BEGUN;
    const uint32_t hold = begun | (l->same_process ? CDP__HELD : 0u);
    uint32_t first = exposed, again = begun;
    cdp__exposure *e;
    if (!l->in || token >> 32 >= CDP_EXPOSURES || (exposed & CDP__STATE_BITS) != CDP__EXPOSED)
        return false;
    e = &l->in->exposed[token >> 32];
    if (!cdp__atomic_cas_u32(&e->state, &first, hold, CDP__ACQ_REL, CDP__ACQUIRE)
        && !cdp__atomic_cas_u32(&e->state, &again, hold, CDP__ACQ_REL, CDP__ACQUIRE))
        return false;
    out->at = cdp__atomic_load_u64(&e->at, CDP__RELAXED);
    out->bytes = cdp__atomic_load_u64(&e->bytes, CDP__RELAXED);
    out->off = cdp__atomic_load_u64(&e->off, CDP__RELAXED);
    out->segment = cdp__atomic_load_u32(&e->segment, CDP__RELAXED);
    return true;
}

/* Call after reading a slice. True if the memory was exposed all the time, so the slice is
   valid. */
CDP__PRIVATE bool cdp__line_read_end(cdp__line *l, uint64_t token) {
    uint32_t begun = (uint32_t)token | CDP__BEGUN;
    cdp__exposure *e = &l->in->exposed[(token >> 32) % CDP_EXPOSURES];
    if (l->same_process) {
        (void)cdp__atomic_and_u32(&e->state, ~CDP__HELD, CDP__RELEASE);
        return true;
    }
    return cdp__atomic_cas_u32(&e->state, &begun, begun, CDP__ACQ_REL, CDP__ACQUIRE);
}

#endif /* CDP_SRC_MESSAGE_FABRIC_H */
