/* pipeline/rules.h - is a table complete, and in an order that each rank can keep? (pure)

   Knows: the rows of a table. Promises: the first wrong row is named. */
#ifndef CDP_SRC_PIPELINE_RULES_H
#define CDP_SRC_PIPELINE_RULES_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "../text/format.h"
#include "schedule_api.h"
#include "table.h"

/* `seen`: a byte for each cell, with bit k for kind k. */

CDP__PRIVATE bool cdp__pipe_has(uint8_t seen, uint32_t kind) {
    return seen >> kind & 1;
}

/* Does row a of a pair go with row b? */
CDP__PRIVATE bool cdp__pipe_pairs(const cdp_act *a, const cdp_act *b) {
    return (a->kind == CDP_ACT_F && cdp__pipe_is_back(b))
        || (cdp__pipe_is_back(a) && b->kind == CDP_ACT_F);
}

/* Is the row right after those before it? Marks what it does. */
CDP__PRIVATE const char *cdp__pipe_row_fault(
    const cdp__pipe_table *t, uint32_t rank, uint64_t row, uint8_t *seen) {
    const cdp_act *a = &t->acts[row];
    uint8_t *cell;
    if (a->kind < CDP_ACT_F || a->kind > CDP_ACT_W) return "this kind of action does not exist";
    if (a->stage >= t->stages) return "there is no such stage";
    if (a->micro >= t->micros) return "there is no such micro-batch";
    if (t->place[a->stage] != rank) return "the stage lies on another rank";
    cell = &seen[cdp__pipe_cell(t, a->stage, a->micro)];
    if (cdp__pipe_has(*cell, a->kind)) return "it is there twice";
    if (cdp__pipe_is_back(a) && !cdp__pipe_has(*cell, CDP_ACT_F))
        return "it comes before the forward of this stage and micro-batch";
    if (a->kind == CDP_ACT_W && !cdp__pipe_has(*cell, CDP_ACT_I))
        return "it comes before the I of this stage and micro-batch";
    if ((a->kind == CDP_ACT_B && cdp__pipe_has(*cell, CDP_ACT_I))
        || (a->kind == CDP_ACT_I && cdp__pipe_has(*cell, CDP_ACT_B)))
        return "a backward is B, or I and W, not both";
    if (a->pair && (row + 1 == t->first[rank + 1] || a[1].pair || !cdp__pipe_pairs(a, a + 1)))
        return "a pair is one F and one B or I";
    *cell = (uint8_t)(*cell | 1u << a->kind);
    return NULL;
}

/* What a micro-batch of a stage lacks; NULL: nothing. */
CDP__PRIVATE const char *cdp__pipe_lacks(uint8_t seen, bool forward_only) {
    if (!cdp__pipe_has(seen, CDP_ACT_F)) return "no forward";
    if (forward_only || cdp__pipe_has(seen, CDP_ACT_B)) return NULL;
    if (!cdp__pipe_has(seen, CDP_ACT_I)) return "a forward and no backward";
    return cdp__pipe_has(seen, CDP_ACT_W) ? NULL : "an I and no W";
}

CDP__PRIVATE bool cdp__pipe_complete(
    const cdp__pipe_table *t, const uint8_t *seen, cdp__text *why) {
    for (uint32_t s = 0; s < t->stages; ++s) {
        for (uint32_t i = 0; i < t->micros; ++i) {
            const char *const lacks =
                cdp__pipe_lacks(seen[cdp__pipe_cell(t, s, i)], t->forward_only);
            if (!lacks) continue;
            cdp__text_add(
                why, "rank %u: stage %u has %s of micro-batch %u", t->place[s], s, lacks, i);
            return false;
        }
    }
    return true;
}

/* Also finds out whether there are backwards, and halves of them. */
CDP__PRIVATE bool cdp__pipe_valid(cdp__pipe_table *t, uint8_t *seen, cdp__text *why) {
    t->forward_only = true;
    t->split = false;
    for (uint32_t r = 0; r < t->ranks; ++r) {
        for (uint64_t row = t->first[r]; row < t->first[r + 1]; ++row) {
            const char *const fault = cdp__pipe_row_fault(t, r, row, seen);
            if (fault) {
                cdp__pipe_add_row(why, t, r, row - t->first[r]);
                cdp__text_add(why, ": %s", fault);
                return false;
            }
            if (t->acts[row].kind != CDP_ACT_F) t->forward_only = false;
            if (t->acts[row].kind == CDP_ACT_I) t->split = true;
        }
    }
    return cdp__pipe_complete(t, seen, why);
}

/* Most activations of a rank at one time. */
CDP__PRIVATE uint32_t cdp__pipe_peak(const cdp__pipe_table *t, uint32_t rank) {
    uint32_t live = 0, top = 0;
    for (uint64_t row = t->first[rank]; row < t->first[rank + 1]; ++row) {
        if (t->acts[row].kind == CDP_ACT_F) ++live;
        if (live > top) top = live;
        if (cdp__pipe_is_last(&t->acts[row]) || t->forward_only) --live;
    }
    return top;
}

#endif /* CDP_SRC_PIPELINE_RULES_H */
