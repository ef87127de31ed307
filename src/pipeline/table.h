/* pipeline/table.h - rows of all ranks (pure)

   Knows: who needs what of whom. Promises: no row has more than one message to receive and one to
   send. */
#ifndef CDP_SRC_PIPELINE_TABLE_H
#define CDP_SRC_PIPELINE_TABLE_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "../text/format.h"
#include "schedule_api.h"

#define CDP__PIPE_NONE UINT64_MAX

typedef struct cdp__pipe_table {
    uint32_t ranks, stages, micros;
    bool forward_only, split;
    uint32_t *place; /* of each stage */
    uint64_t *first; /* of each rank, and the number of all */
    cdp_act *acts;
} cdp__pipe_table;

/* A micro-batch of a stage, as an index. */
CDP__PRIVATE uint64_t cdp__pipe_cell(const cdp__pipe_table *t, uint32_t stage, uint32_t micro) {
    return (uint64_t)stage * t->micros + micro;
}
CDP__PRIVATE uint64_t cdp__pipe_cells(const cdp__pipe_table *t) {
    return (uint64_t)t->stages * t->micros;
}

/* Does it compute the gradient of the input? */
CDP__PRIVATE bool cdp__pipe_is_back(const cdp_act *a) {
    return a->kind == CDP_ACT_B || a->kind == CDP_ACT_I;
}

/* Are the gradients of the weights complete with it? */
CDP__PRIVATE bool cdp__pipe_is_last(const cdp_act *a) {
    return a->kind == CDP_ACT_B || a->kind == CDP_ACT_W;
}

/* The message of other ranks that a row needs: the cell of the row for what goes forward, behind
   all of these for a gradient. CDP__PIPE_NONE: none. */
CDP__PRIVATE uint64_t cdp__pipe_needs(const cdp__pipe_table *t, const cdp_act *a) {
    const uint32_t here = t->place[a->stage];
    if (a->kind == CDP_ACT_F && a->stage && t->place[a->stage - 1] != here)
        return cdp__pipe_cell(t, a->stage, a->micro);
    if (cdp__pipe_is_back(a) && a->stage + 1u < t->stages && t->place[a->stage + 1] != here)
        return cdp__pipe_cells(t) + cdp__pipe_cell(t, a->stage, a->micro);
    return CDP__PIPE_NONE;
}

/* The message that it sends, by the cell of its receiver. */
CDP__PRIVATE uint64_t cdp__pipe_gives(const cdp__pipe_table *t, const cdp_act *a) {
    const uint32_t here = t->place[a->stage];
    if (a->kind == CDP_ACT_F && a->stage + 1u < t->stages && t->place[a->stage + 1] != here)
        return cdp__pipe_cell(t, a->stage + 1u, a->micro);
    if (cdp__pipe_is_back(a) && a->stage && t->place[a->stage - 1] != here)
        return cdp__pipe_cells(t) + cdp__pipe_cell(t, a->stage - 1u, a->micro);
    return CDP__PIPE_NONE;
}

/* The rank that takes a message. */
CDP__PRIVATE uint32_t cdp__pipe_taker(const cdp__pipe_table *t, uint64_t message) {
    return t->place[message % cdp__pipe_cells(t) / t->micros];
}

/* How many rows run as one: 2 for a pair. */
CDP__PRIVATE uint32_t cdp__pipe_width(const cdp_act *a) {
    return a->pair ? 2 : 1;
}

CDP__PRIVATE char cdp__pipe_letter(uint32_t kind) {
    return kind <= CDP_ACT_W ? "?FBIW"[kind] : '?';
}

/* Writes "2F0": stage, kind, micro-batch. */
CDP__PRIVATE void cdp__pipe_add_act(cdp__text *t, const cdp_act *a) {
    cdp__text_add(t, "%u%c%u", (unsigned)a->stage, cdp__pipe_letter(a->kind), a->micro);
}

/* "rank 1, row 4 (2B0)" */
CDP__PRIVATE void cdp__pipe_add_row(
    cdp__text *why, const cdp__pipe_table *t, uint32_t rank, uint64_t row) {
    cdp__text_add(why, "rank %u, row %llu", rank, (unsigned long long)row);
    if (t->first[rank] + row < t->first[rank + 1]) {
        cdp__text_add(why, " (");
        cdp__pipe_add_act(why, &t->acts[t->first[rank] + row]);
        cdp__text_add(why, ")");
    }
}

#endif /* CDP_SRC_PIPELINE_TABLE_H */
