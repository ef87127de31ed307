/* mem/table.h - from an address to its block (pure)

   Knows: where blocks in use begin. Promises: a block is found by its address in a few steps. Open
   addressing with linear probing; a removed entry is filled by shifting later ones back; the
   caller keeps the table at most half full. */
#ifndef CDP_SRC_MEM_TABLE_H
#define CDP_SRC_MEM_TABLE_H

#include "../base/config.h"
#include "../base/basics.h"
#include "sizes.h"
#include "bins.h"

typedef struct cdp__mem_table {
    cdp__mem_part **slots;
    uint64_t mask, used;
    uint32_t shift; /* 64 - log2 of the number of slots */
} cdp__mem_table;

CDP__MEM_HOT uint64_t cdp__mem_table_home(const cdp__mem_table *t, uint64_t at) {
    return at * 0x9e3779b97f4a7c15ull >> t->shift;
}

CDP__MEM_HOT cdp__mem_part *cdp__mem_table_find(const cdp__mem_table *t, uint64_t at) {
    uint64_t i;
    if (!t->slots) return NULL;
    for (i = cdp__mem_table_home(t, at); t->slots[i]; i = (i + 1) & t->mask)
        if (t->slots[i]->at == at) return t->slots[i];
    return NULL;
}

CDP__MEM_HOT void cdp__mem_table_put(cdp__mem_table *t, cdp__mem_part *p) {
    uint64_t i = cdp__mem_table_home(t, p->at);
    while (t->slots[i])
        i = (i + 1) & t->mask;
    t->slots[i] = p;
    ++t->used;
}

/* True if the entry of slot `i` may move to the hole: its home slot is not after the hole. */
CDP__MEM_HOT bool cdp__mem_table_moves(const cdp__mem_table *t, uint64_t i, uint64_t hole) {
    const uint64_t home = cdp__mem_table_home(t, t->slots[i]->at);
    return ((i - home) & t->mask) >= ((i - hole) & t->mask);
}

CDP__MEM_HOT void cdp__mem_table_take(cdp__mem_table *t, const cdp__mem_part *p) {
    uint64_t hole = cdp__mem_table_home(t, p->at);
    uint64_t i;
    while (t->slots[hole] != p)
        hole = (hole + 1) & t->mask;
    for (i = (hole + 1) & t->mask; t->slots[i]; i = (i + 1) & t->mask) {
        if (!cdp__mem_table_moves(t, i, hole)) continue;
        t->slots[hole] = t->slots[i];
        hole = i;
    }
    t->slots[hole] = NULL;
    --t->used;
}

#endif /* CDP_SRC_MEM_TABLE_H */
