/* pipeline/places.h - what is known of other ranks' rows, and where activations are kept (pure)

   Knows: a table. Promises: no two activations that live at one time have one slot. */
#ifndef CDP_SRC_PIPELINE_PLACES_H
#define CDP_SRC_PIPELINE_PLACES_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "schedule_api.h"
#include "table.h"
#include "rules.h"

/* Gives each F of a rank a slot, and later rows of its stage and micro-batch the same one.
   of_cell: an entry for each micro-batch of each stage; used: one for each slot, all false. */
CDP__PRIVATE void cdp__pipe_deal_slots(
    const cdp__pipe_table *t, uint32_t rank, uint32_t *of_cell, bool *used) {
    for (uint64_t i = t->first[rank]; i < t->first[rank + 1]; ++i) {
        const cdp_act *a = &t->acts[i];
        uint32_t *slot = &of_cell[cdp__pipe_cell(t, a->stage, a->micro)];
        if (a->kind == CDP_ACT_F) {
            for (*slot = 0; used[*slot];)
                ++*slot;
            used[*slot] = true;
        }
        if (cdp__pipe_is_last(a) || t->forward_only) used[*slot] = false;
    }
}

/* The row of all rows that sends what the row needs; CDP__PIPE_NONE: it needs no message. */
CDP__PRIVATE uint64_t cdp__pipe_source(const cdp__pipe_table *t, const cdp_act *a) {
    const uint64_t m = cdp__pipe_needs(t, a);
    if (m == CDP__PIPE_NONE) return m;
    const uint32_t from = t->place[a->kind == CDP_ACT_F ? a->stage - 1u : a->stage + 1u];
    uint64_t row = t->first[from];
    while (row < t->first[from + 1] && cdp__pipe_gives(t, &t->acts[row]) != m)
        ++row;
    return row;
}

/* How many rows each rank must have run, if known[r] of each rank r have: raises known[]. */
CDP__PRIVATE void cdp__pipe_spread_known(const cdp__pipe_table *t, uint64_t *known) {
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t r = 0; r < t->ranks; ++r) {
            for (uint64_t i = 0; i < known[r]; ++i) {
                const uint64_t row = cdp__pipe_source(t, &t->acts[t->first[r] + i]);
                if (row == CDP__PIPE_NONE) continue;
                const uint32_t from = t->place[t->acts[row].stage];
                const uint64_t number = row - t->first[from] + 1;
                if (number <= known[from]) continue;
                known[from] = number;
                moved = true;
            }
        }
    }
}

#endif /* CDP_SRC_PIPELINE_PLACES_H */
