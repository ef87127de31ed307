/* tcp/memory.h - memory that two processes of one host share

   Knows: memory that the os shares between processes, and how far a process can read the memory of
   another one. The line between two ranks is that of >>message/fabric in cdp.h. Promises: values
   that the peer stores are read once and checked. */
#ifndef CDP_SRC_TCP_MEMORY_H
#define CDP_SRC_TCP_MEMORY_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../message/fabric.h"
#include "../message/stream.h"
#include "handshake.h"

#ifndef CDP_SEGMENTS
#define CDP_SEGMENTS 128u /* of one rank, at once */
#endif
#if CDP_SEGMENTS < 1 || CDP_SEGMENTS > 1024
#error "cdp_tcp.h: CDP_SEGMENTS must be 1 to 1024"
#endif
#define CDP__SEGMENT_BYTES (1024u * 1024u) /* smaller allocations share a segment of this size */
#define CDP__RETIRED CDP_SEGMENTS          /* more than these are unmapped at once */
/* How a rank can read its peer's memory: any address; mapped segments. */
#define CDP__READS_ANY 1u
#define CDP__READS_SEGMENTS 2u

/* The values that one rank of a pair stores. (Peers store the counts of its doorbell.) */
typedef struct cdp__side {
    cdp__doorbell bell;
    /* address of this side's private copy of the proof: a peer that can read it can read all
       memory */
    uint64_t proof_at;
    uint32_t reads; /* CDP__READS_... */
    uint32_t freed; /* incremented when a segment of this side is freed */
    uint8_t pad_[48];
    /* [i]: the number of the descriptor that passed segment i of this side, from 1; 0: there is
       no segment i. Whole cache lines: one layout for processes of 32 and 64 bits */
    uint32_t segments[(CDP_SEGMENTS + 15) / 16 * 16];
} cdp__side;

/* A segment of memory for cdp_group_alloc(). */
typedef struct cdp__segment {
    uint8_t *at;
    uint64_t bytes, used;
    uint32_t live; /* live allocations; at 0 it is closed */
    int32_t fd;
} cdp__segment;

/* A segment of the peer, mapped here. */
typedef struct cdp__mapping {
    const uint8_t *at;
    uint64_t bytes;
    uint32_t number;
} cdp__mapping;

typedef struct cdp__pair {
    /* random, repeated in CHOSEN: proves that both ranks have mapped the same memory */
    uint8_t proof[CDP__NAME_BYTES];
    uint32_t taken;  /* the other side has mapped this memory */
    uint64_t layout; /* of the rank that created it */
    uint8_t pad_[40];
    cdp__side side[2]; /* 0: the rank that created the memory */
} cdp__pair;           /* followed by the two ways with their rings, first the one from side 0 */

/* Equal where two builds lay out this memory in the same way. */
#define CDP__LAYOUT                                                                           \
    ((uint64_t)CDP_SLOT_BYTES + ((uint64_t)CDP_SLOTS << 16) + ((uint64_t)CDP_EXPOSURES << 32) \
        + ((uint64_t)CDP_SEGMENTS << 48))

typedef struct cdp__shared {
    cdp__pair *pair;
    uint64_t bytes; /* of the whole mapping */
    cdp__line line;
    cdp__side *mine, *theirs;
    const cdp_os *os;
    uint32_t bell_counts[2]; /* counts of this side's doorbell when last polled */
    uint8_t proof[CDP__NAME_BYTES];
    int32_t pid; /* process id of the peer if its memory can be read; else 0 */
    cdp__mapping mappings[CDP_SEGMENTS];
    cdp__mapping retired[CDP__RETIRED]; /* that the peer has freed: they are unmapped in steps */
    uint32_t retired_count;
    bool passed_on[CDP_SEGMENTS]; /* segments passed to the peer */
    uint32_t passed, received;    /* numbers of descriptors */
    uint32_t freed;               /* the peer's count of freed segments, as last read */
    int32_t bell;                 /* descriptor that wakes the peer */
    int32_t pass;                 /* socket for descriptors of segments */
    int32_t memory;               /* its descriptor, until the peer has mapped it */
    bool taken;                   /* the peer has mapped it */
    struct cdp__shared *next;
} cdp__shared;

/* The peer has freed this segment. To unmap it takes 0.1 to 0.3 ms per MiB, too long for one step
   of a poll with a budget. */
CDP__PRIVATE void cdp__shared_retire(cdp__shared *s, cdp__mapping *v, bool now) {
    if (now || s->retired_count == CDP__RETIRED || !s->os->shared.unmap_parts)
        s->os->shared.unmap(s->os->user, (void *)(uintptr_t)v->at, v->bytes);
    else
        s->retired[s->retired_count++] = *v;
    v->at = NULL;
}

/* One step: unmaps a piece of a retired segment. */
CDP__PRIVATE void cdp__shared_shrink(cdp__shared *s) {
    cdp__mapping *v = &s->retired[s->retired_count - 1];
    const uint64_t bytes = cdp__min(v->bytes, CDP__STEP_BYTES);
    s->os->shared.unmap(s->os->user, (void *)(uintptr_t)v->at, bytes);
    v->at += bytes;
    v->bytes -= bytes;
    if (!v->bytes) --s->retired_count;
}

/* This rank leaves: unmaps a piece of what is mapped. False: nothing is left. */
CDP__PRIVATE bool cdp__shared_leave(cdp__shared *s) {
    uint32_t i;
    for (i = 0; i < CDP_SEGMENTS && !s->retired_count; ++i)
        if (s->mappings[i].at) cdp__shared_retire(s, &s->mappings[i], false);
    if (!s->retired_count) return false;
    cdp__shared_shrink(s);
    return true;
}

/* One pass over the peer's segments: unmaps those that the peer has freed (`all`: every one),
   and maps the latest descriptor `fd` (-1: none) at its place. */
CDP__PRIVATE void cdp__shared_remap(cdp__shared *s, int32_t fd, bool all) {
    const cdp_os *os = s->os;
    uint32_t i;
    for (i = 0; i < CDP_SEGMENTS; ++i) {
        cdp__mapping *v = &s->mappings[i];
        const uint32_t number = cdp__atomic_load_u32(&s->theirs->segments[i], CDP__ACQUIRE);
        if (v->at && (all || number != v->number)) cdp__shared_retire(s, v, all);
        if (fd < 0 || v->at || number != s->received) continue;
        /* maps the real length of that memory, because the peer may claim any */
        v->at = (const uint8_t *)os->shared.map(os->user, fd, false, &v->bytes);
        v->number = number;
    }
}

/* Unmaps segments that the peer has freed (`all`: every one), and maps those that it has passed.
   The peer may reuse a place at any time, so its number is read once for both decisions. */
CDP__PRIVATE CDP__COLD void cdp__shared_tidy(cdp__shared *s, bool all) {
    const cdp_os *os = s->os;
    int32_t fd = -1;
    uint32_t tries = 0;
    bool more;
    s->freed = cdp__atomic_load_u32(&s->theirs->freed, CDP__ACQUIRE);
    while (all && s->retired_count)
        cdp__shared_retire(s, &s->retired[--s->retired_count], true);
    do {
        more = !all && tries++ < CDP_SEGMENTS
            && os->shared.pass(os->user, s->pass, &fd, 1, false) >= 0;
        if (more) ++s->received;
        cdp__shared_remap(s, more ? fd : -1, all);
        if (more) os->net.close_fd(os->user, fd);
    } while (more);
}

/* Returns that many bytes of a segment of the peer, or NULL if it was freed or cannot be mapped.
   The index comes from the peer: out of range, it wraps to another segment, which is harmless. */
CDP__PRIVATE const uint8_t *cdp__shared_map(
    cdp__shared *s, uint32_t i, uint64_t off, uint64_t bytes) {
    const cdp__mapping *v = &s->mappings[i %= CDP_SEGMENTS];
    if (!v->at || v->number != cdp__atomic_load_u32(&s->theirs->segments[i], CDP__ACQUIRE))
        cdp__shared_tidy(s, false);
    return v->at && off <= v->bytes && bytes <= v->bytes - off ? v->at + off : NULL;
}

/* Passes this rank's segment i to the peer, which maps it. */
CDP__PRIVATE bool cdp__shared_pass(cdp__shared *s, uint32_t i, int32_t fd) {
    cdp__atomic_store_u32(&s->mine->segments[i], s->passed + 1, CDP__RELEASE);
    s->passed_on[i] = s->os->shared.pass(s->os->user, s->pass, &fd, 1, true) >= 0;
    if (s->passed_on[i])
        ++s->passed;
    else
        cdp__atomic_store_u32(&s->mine->segments[i], 0, CDP__RELEASE);
    return s->passed_on[i];
}

/* Makes the peer unmap this rank's segment i at its next poll. It stays mapped there until then. */
CDP__PRIVATE void cdp__shared_withdraw(cdp__shared *s, uint32_t i) {
    if (!s->passed_on[i]) return;
    s->passed_on[i] = false;
    cdp__atomic_store_u32(&s->mine->segments[i], 0, CDP__RELEASE);
    (void)cdp__atomic_add_u32(&s->mine->freed, 1, CDP__RELEASE);
    cdp__line_ring(&s->line, CDP__BELL_DATA);
}

CDP__PRIVATE void cdp__shared_close(cdp__shared *s) {
    const cdp_os *os;
    if (!s) return;
    os = s->os;
    if (s->theirs) cdp__shared_tidy(s, true);
    if (s->pair) os->shared.unmap(os->user, s->pair, s->bytes);
    if (s->bell >= 0) os->net.close_fd(os->user, s->bell);
    if (s->pass >= 0) os->net.close_fd(os->user, s->pass);
    if (s->memory >= 0) os->net.close_fd(os->user, s->memory);
    cdp__free(os, s);
}

CDP__PRIVATE void cdp__shared_wake(cdp__line *l) {
    const cdp__shared *s = (const cdp__shared *)l->owner;
    s->os->net.wake_set(s->os->user, s->bell);
}

/* The length of a pair's memory with rings of `room` bytes each. */
CDP__PRIVATE uint64_t cdp__shared_size(uint64_t room) {
    return sizeof(cdp__pair) + 2 * (sizeof(cdp__way) + room);
}

/* Maps the memory of descriptor `memory`, and takes ownership of the descriptor. NULL: it is not
   usable. */
CDP__PRIVATE cdp__shared *cdp__shared_open(const cdp_os *os, int32_t memory, bool maker) {
#ifdef CDP_NO_SHARED_MEMORY
    (void)maker;
    os->net.close_fd(os->user, memory);
    return NULL;
#else
    cdp__shared *s = (cdp__shared *)cdp__alloc_zero(os, sizeof *s);
    cdp__way *first, *second;
    if (!s) {
        os->net.close_fd(os->user, memory);
        return NULL;
    }
    s->os = os;
    s->bell = s->pass = -1;
    s->memory = memory;
    s->pair = (cdp__pair *)os->shared.map(os->user, memory, true, &s->bytes);
    if (s->pair && s->bytes >= cdp__shared_size(0))
        s->line.size = (s->bytes - sizeof *s->pair) / 2 / 64 * 64 - sizeof *first;
    if (!s->line.size) {
        cdp__shared_close(s);
        return NULL;
    }
    first = (cdp__way *)(s->pair + 1);
    second = (cdp__way *)((uint8_t *)(first + 1) + s->line.size);
    s->line.out = maker ? first : second;
    s->line.in = maker ? second : first;
    s->mine = &s->pair->side[maker ? 0 : 1];
    s->theirs = &s->pair->side[maker ? 1 : 0];
    s->line.theirs = &s->theirs->bell;
    s->line.wake = cdp__shared_wake;
    s->line.owner = s;
    return s;
#endif
}

/* Both sides know the proof now: publishes the address of this rank's copy, for the peer to
   read. */
CDP__PRIVATE void cdp__shared_prove(cdp__shared *s, const uint8_t proof[CDP__NAME_BYTES]) {
    memcpy(s->proof, proof, CDP__NAME_BYTES);
    s->mine->proof_at = (uint64_t)(uintptr_t)s->proof;
}

/* Reads the peer's memory. Also reads its proof, because another process may have the same
   process id by now. Returns 0 or -errno. */
CDP__PRIVATE int32_t cdp__shared_read(
    const cdp__shared *s, int32_t pid, uint64_t at, void *dst, uint64_t bytes) {
    uint8_t proof[CDP__NAME_BYTES];
    uint64_t from[2];
    cdp_iov to[2];
    int32_t r;
    from[0] = cdp__atomic_load_u64(&s->theirs->proof_at, CDP__RELAXED);
    to[0].data = proof;
    to[0].bytes = sizeof proof;
    from[1] = at;
    to[1].data = dst;
    to[1].bytes = bytes;
    r = s->os->shared.read_process(s->os->user, pid, from, to, bytes ? 2 : 1);
    return r == 0 && memcmp(proof, s->proof, sizeof proof) != 0 ? -ESRCH : r;
}

/* The peer has published the address of its proof: finds out what memory of the peer is
   readable. */
CDP__PRIVATE void cdp__shared_try(cdp__shared *s, int32_t pid) {
    if (pid > 0 && s->os->shared.read_process && cdp__shared_read(s, pid, 0, NULL, 0) == 0)
        s->pid = pid;
    cdp__atomic_store_u32(&s->mine->reads,
        s->pid ? CDP__READS_ANY | CDP__READS_SEGMENTS : CDP__READS_SEGMENTS, CDP__RELEASE);
}

/* Call before sleeping: arms all doorbells, then polls once more. True: there is something to
   do. */
CDP__PRIVATE bool cdp__shared_doze(cdp__shared *list) {
    cdp__shared *s;
    bool news = false;
    for (s = list; s; s = s->next) {
        cdp__doorbell_arm(&s->mine->bell, cdp__line_wants(&s->line));
        news = news || s->retired_count;
    }
    for (s = list; s && !news; s = s->next)
        news = cdp__doorbell_rung(&s->mine->bell, s->bell_counts, cdp__line_wants(&s->line))
            && (cdp__line_busy(&s->line)
                || cdp__atomic_load_u32(&s->theirs->freed, CDP__ACQUIRE) != s->freed);
    return news;
}

/* Call after sleeping: the caller polls everything next. */
CDP__PRIVATE void cdp__shared_awake(cdp__shared *list) {
    for (; list; list = list->next) {
        cdp__doorbell_read(&list->mine->bell, list->bell_counts);
        if (cdp__atomic_load_u32(&list->theirs->freed, CDP__RELAXED) != list->freed)
            cdp__shared_tidy(list, false);
        if (list->retired_count) cdp__shared_shrink(list);
    }
}

#endif /* CDP_SRC_TCP_MEMORY_H */
