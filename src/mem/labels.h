/* mem/labels.h - labels that live blocks and recorded events carry

   Knows: texts by number, from 1 on, how many blocks, segments and events carry each, and the bytes
   of its blocks, now and at most; 0 means none. Promises: a label that nothing carries any more
   makes room for another one, except the first 256 that blocks have carried, whose peaks stay: so
   there are at most twice as many as are carried or stay, and 64. When memory runs out, a label
   gets number 0, and a counter grows. */
#ifndef CDP_SRC_MEM_LABELS_H
#define CDP_SRC_MEM_LABELS_H

#include "../base/config.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "sizes.h"
#include "depot.h"

#define CDP__MEM_LABELS_STAY 256u

typedef struct cdp__mem_label {
    uint64_t hash;
    uint64_t bytes, peak, blocks; /* of blocks in use or waiting; peak 0: never any */
    uint32_t carried;             /* by so many; 0: its place may be used again     */
    uint32_t next;                /* place that is free, too: its number            */
    char text[CDP__MEM_LABEL_BYTES];
} cdp__mem_label;

typedef struct cdp__mem_labels {
    const cdp_os *os;   /* NULL: nothing is recorded                */
    cdp__mem_label *at; /* at[i]: of number i + 1                   */
    uint32_t *slots;    /* open addressing, 2 * room numbers        */
    uint32_t used, room;
    uint32_t vacant; /* first place that became free; 0: none    */
    uint64_t lost;
    uint64_t bytes, blocks; /* of all blocks with a label      */
    uint64_t bare_peak;     /* most bytes of blocks without one */
} cdp__mem_labels;

CDP__PRIVATE void cdp__mem_labels_close(cdp__mem_labels *l) {
    if (!l->os) return;
    cdp__free(l->os, l->at);
    cdp__free(l->os, l->slots);
}

/* The slot of a text, or the empty one where it would be. */
CDP__MEM_HOT uint32_t cdp__mem_labels_slot(
    const cdp__mem_labels *l, uint64_t hash, const char *text) {
    const uint32_t mask = 2 * l->room - 1;
    uint32_t i = (uint32_t)hash & mask;
    for (; l->slots[i]; i = (i + 1) & mask) {
        const cdp__mem_label *const k = &l->at[l->slots[i] - 1];
        if (k->hash == hash && strncmp(k->text, text, CDP__MEM_LABEL_BYTES - 1) == 0) break;
    }
    return i;
}

/* The number up to which labels stay that nothing carries, because they have a peak. */
CDP__PRIVATE uint32_t cdp__mem_labels_stay(const cdp__mem_labels *l) {
    uint32_t i, n = 0;
    for (i = 0; i < l->used && n < CDP__MEM_LABELS_STAY; ++i)
        if (!l->at[i].carried && l->at[i].peak) ++n;
    return i;
}

/* Fills the slots anew with the labels that are carried or stay; the places of the others become
   free. Returns the number of free places. */
CDP__PRIVATE uint32_t cdp__mem_labels_sweep(cdp__mem_labels *l) {
    const uint32_t stay = cdp__mem_labels_stay(l);
    uint32_t i, n = 0;
    memset(l->slots, 0, 2 * (size_t)l->room * sizeof *l->slots);
    l->vacant = 0;
    for (i = l->used; i > 0; --i) {
        cdp__mem_label *const k = &l->at[i - 1];
        if (k->carried || (k->peak && i <= stay)) {
            l->slots[cdp__mem_labels_slot(l, k->hash, k->text)] = i;
            continue;
        }
        k->peak = 0;
        k->next = l->vacant;
        l->vacant = i;
        ++n;
    }
    return n + l->room - l->used;
}

/* Doubles the room. The places keep their numbers. */
CDP__PRIVATE bool cdp__mem_labels_grow(cdp__mem_labels *l) {
    const uint32_t room = l->room ? 2 * l->room : 64;
    cdp__mem_label *const at = (cdp__mem_label *)cdp__alloc(l->os, room * sizeof(cdp__mem_label));
    uint32_t *const slots = (uint32_t *)cdp__alloc(l->os, 2ull * room * sizeof(uint32_t));
    if (!at || !slots) {
        cdp__free(l->os, at);
        cdp__free(l->os, slots);
        return false;
    }
    if (l->used) memcpy(at, l->at, l->used * sizeof *at);
    cdp__mem_labels_close(l);
    l->at = at;
    l->slots = slots;
    l->room = room;
    (void)cdp__mem_labels_sweep(l);
    return true;
}

/* A place for one more, from 1 on; 0: out of memory. Grows when more than half are carried. */
CDP__PRIVATE uint32_t cdp__mem_labels_place(cdp__mem_labels *l) {
    uint32_t n = l->vacant;
    if (!n && l->used == l->room) {
        const uint32_t there = l->room ? cdp__mem_labels_sweep(l) : 0;
        if (there <= l->room / 2 && !cdp__mem_labels_grow(l) && !there) return 0;
        n = l->vacant;
    }
    if (!n) return ++l->used;
    l->vacant = l->at[n - 1].next;
    return n;
}

/* The number of a text, which is copied if it is new; 0 for an empty one. `hash`: its hash. It
   counts until the next call, or as long as something carries it. */
CDP__PRIVATE uint32_t cdp__mem_labels_number(cdp__mem_labels *l, uint64_t hash, const char *text) {
    uint32_t slot, n;
    cdp__mem_label *k;
    if (!l->os || !text[0]) return 0;
    slot = l->room ? cdp__mem_labels_slot(l, hash, text) : 0;
    if (l->room && l->slots[slot]) return l->slots[slot];
    n = cdp__mem_labels_place(l);
    if (!n) {
        ++l->lost;
        return 0;
    }
    k = &l->at[n - 1];
    k->hash = hash;
    k->carried = 0;
    k->bytes = k->peak = k->blocks = 0;
    cdp__mem_text_copy(k->text, text, CDP__MEM_LABEL_BYTES);
    l->slots[cdp__mem_labels_slot(l, hash, text)] = n; /* places may have moved */
    return n;
}

/* Lets *place carry label `n` in place of the one it has; 0: none. */
CDP__MEM_HOT void cdp__mem_label_set(cdp__mem_labels *l, uint32_t *place, uint32_t n) {
    if (n) ++l->at[n - 1].carried;
    if (*place) --l->at[*place - 1].carried;
    *place = n;
}

/* A block without a label gets label `n`; 0: none. `all`: the bytes of all blocks, with its own. */
CDP__MEM_HOT void cdp__mem_label_enter(
    cdp__mem_labels *l, uint32_t *place, uint32_t n, uint64_t bytes, uint64_t all) {
    cdp__mem_label *const k = n ? &l->at[n - 1] : NULL;
    if (!k) {
        if (all - l->bytes > l->bare_peak) l->bare_peak = all - l->bytes;
        return;
    }
    l->bytes += bytes;
    ++l->blocks;
    k->bytes += bytes;
    ++k->blocks;
    if (k->bytes > k->peak) k->peak = k->bytes;
    cdp__mem_label_set(l, place, n);
}

/* A block with a label loses it. */
CDP__MEM_HOT void cdp__mem_label_leave(cdp__mem_labels *l, uint32_t *place, uint64_t bytes) {
    cdp__mem_label *const k = &l->at[*place - 1];
    l->bytes -= bytes;
    --l->blocks;
    k->bytes -= bytes;
    --k->blocks;
    cdp__mem_label_set(l, place, 0);
}

/* Sets all peaks to the bytes of now. `all`: as above. */
CDP__PRIVATE void cdp__mem_labels_reset(cdp__mem_labels *l, uint64_t all) {
    uint32_t i;
    for (i = 0; i < l->used; ++i)
        l->at[i].peak = l->at[i].bytes;
    l->bare_peak = all - l->bytes;
}

#endif /* CDP_SRC_MEM_LABELS_H */
