/* pipeline/meet.h - ranks compare their schedules and the tensors between stages

   Knows: collectives of a group. Promises: all ranks return the same kind of answer, and the group
   stays usable. */
#ifndef CDP_SRC_PIPELINE_MEET_H
#define CDP_SRC_PIPELINE_MEET_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "../text/format.h"
#include "schedule_api.h"
#include "driver_api.h"
#include "table.h"
#include "schedule.h"

CDP__PRIVATE uint64_t cdp__pipe_mix(uint64_t h, uint64_t word) {
    for (uint32_t byte = 0; byte < 8; ++byte)
        h = (h ^ (word >> 8 * byte & 0xff)) * 0x100000001b3u;
    return h;
}

CDP__PRIVATE uint64_t cdp__pipe_packed(const cdp_act *a) {
    return (uint64_t)a->kind | (uint64_t)a->pair << 8 | (uint64_t)a->stage << 16
        | (uint64_t)a->micro << 32;
}

CDP__PRIVATE cdp_act cdp__pipe_unpacked(uint64_t word) {
    cdp_act a;
    a.kind = (uint8_t)(word & 0xff);
    a.pair = (word >> 8 & 1) != 0;
    a.stage = (uint16_t)(word >> 16 & 0xffff);
    a.micro = (uint32_t)(word >> 32);
    return a;
}

CDP__PRIVATE uint64_t cdp__pipe_hash(const cdp__pipe_table *t) {
    uint64_t h = cdp__pipe_mix(0xcbf29ce484222325u, t->stages);
    for (uint32_t r = 0; r <= t->ranks; ++r)
        h = cdp__pipe_mix(h, t->first[r]);
    for (uint64_t i = 0; i < t->first[t->ranks]; ++i)
        h = cdp__pipe_mix(h, cdp__pipe_packed(&t->acts[i]));
    return h;
}

/* 0: no tensors. */
CDP__PRIVATE uint64_t cdp__pipe_edge_hash(const cdp_pipe_edge *list, uint32_t count) {
    uint64_t h = 0xcbf29ce484222325u;
    for (uint32_t i = 0; i < count; ++i) {
        h = cdp__pipe_mix(h, list[i].count);
        h = cdp__pipe_mix(h, (uint64_t)list[i].dtype);
    }
    return count ? h | 1 : 0;
}

CDP__PRIVATE uint64_t cdp__pipe_tied_hash(const cdp_pipe_stage *s) {
    uint64_t h = 0xcbf29ce484222325u;
    for (uint32_t i = 0; i < s->tied_count; ++i) {
        h = cdp__pipe_mix(h, s->tied[i].count);
        h = cdp__pipe_mix(h, (uint64_t)s->tied[i].dtype);
    }
    return s->tied_count ? h | 1 : 0;
}

/* ---- which row differs ---- */

/* Row i of the table of a rank in the order of its sending: ends of ranks, then rows. */
CDP__PRIVATE uint64_t cdp__pipe_word(const cdp__pipe_table *t, uint32_t rank, uint64_t row) {
    const uint64_t i = t->first[rank] + row;
    return i < t->first[rank + 1] ? cdp__pipe_packed(&t->acts[i]) : 0;
}

typedef struct cdp__pipe_difference {
    uint64_t place, mine, other; /* place: rank << 32 | row; UINT64_MAX: none */
} cdp__pipe_difference;

/* The first row that differs from that of rank 0, of one rank's list in it. */
CDP__PRIVATE cdp_status cdp__pipe_compare_list(
    const cdp_pipeline_desc *d, uint32_t list, cdp__pipe_difference *first) {
    const cdp__pipe_table *t = &d->schedule->table;
    uint64_t all = t->first[list + 1] - t->first[list];
    cdp_status st = cdp_allreduce(d->group, NULL, &all, 1, CDP_DTYPE_U64, CDP_REDUCE_MAX);
    if (st != CDP_OK) return st;
    for (uint64_t from = 0; from < all && st == CDP_OK; from += 64) {
        uint64_t piece[64] = {0};
        const uint32_t n = (uint32_t)cdp__min(64, all - from);
        for (uint32_t i = 0; i < n; ++i)
            piece[i] = cdp__pipe_word(t, list, from + i);
        st = cdp_broadcast(d->group, piece, n, CDP_DTYPE_U64, 0);
        for (uint32_t i = 0; i < n && st == CDP_OK; ++i) {
            const uint64_t mine = cdp__pipe_word(t, list, from + i);
            if (first->place != UINT64_MAX || mine == piece[i]) continue;
            first->place = (uint64_t)list << 32 | (from + i);
            first->mine = mine;
            first->other = piece[i];
        }
    }
    return st;
}

CDP__PRIVATE void cdp__pipe_add_packed(cdp__text *t, uint64_t word) {
    const cdp_act a = cdp__pipe_unpacked(word);
    if (word)
        cdp__pipe_add_act(t, &a);
    else
        cdp__text_add(t, "no row");
    if (a.pair) cdp__text_add(t, " (of a pair)");
}

/* All ranks find out which row differs first, and say so. Their tables have equally many ranks. */
CDP__PRIVATE CDP__COLD cdp_status cdp__pipe_find_difference(const cdp_pipeline_desc *d) {
    cdp__pipe_difference mine = {UINT64_MAX, 0, 0};
    uint64_t record[3], best[4] = {UINT64_MAX, 0, 0, 0};
    char room[200];
    cdp__text text = cdp__text_of(room, sizeof room);
    for (uint32_t r = 0; r < d->schedule->table.ranks; ++r) {
        const cdp_status st = cdp__pipe_compare_list(d, r, &mine);
        if (st != CDP_OK) return st;
    }
    for (uint32_t r = 0; r < cdp_size(d->group); ++r) {
        record[0] = mine.place;
        record[1] = mine.mine;
        record[2] = mine.other;
        const cdp_status st = cdp_broadcast(d->group, record, 3, CDP_DTYPE_U64, r);
        if (st != CDP_OK) return st;
        if (record[0] >= best[0]) continue;
        memcpy(best, record, sizeof record);
        best[3] = r;
    }
    if (best[0] == UINT64_MAX)
        return cdp_error_set(CDP_ERR_MISMATCH, -1, 0,
            "cdp_pipeline_create: ranks have different schedules: other numbers of stages or "
            "ranks");
    cdp__pipe_add_packed(&text, best[1]);
    cdp__text_add(&text, " on rank %u, ", (unsigned)best[3]);
    cdp__pipe_add_packed(&text, best[2]);
    return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)best[3], 0,
        "cdp_pipeline_create: ranks have different schedules: row %u of rank %u is %s on rank 0",
        (unsigned)(best[0] & 0xffffffffu), (unsigned)(best[0] >> 32), room);
}

/* ---- meeting ---- */

/* Two stages that disagree about what is between them. */
CDP__PRIVATE cdp_status cdp__pipe_check_edges(const cdp__pipe_table *t, const uint64_t *hashes) {
    for (uint32_t s = 0; s + 1 < t->stages; ++s)
        if (hashes[2 * s + 1] != hashes[2 * (s + 1)])
            return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)t->place[s + 1], 0,
                "cdp_pipeline_create: the out of stage %u on rank %u is not the in of stage %u on "
                "rank %u: numbers of tensors, counts or dtypes differ",
                s, t->place[s], s + 1, t->place[s + 1]);
    if (hashes[2 * t->stages] != hashes[2 * t->stages + 1])
        return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)t->place[t->stages - 1], 0,
            "cdp_pipeline_create: the tied gradients of stage 0 on rank %u are not those of stage "
            "%u on rank %u: numbers, counts or dtypes differ",
            t->place[0], t->stages - 1, t->place[t->stages - 1]);
    return CDP_OK;
}

/* Collective: `st` is what this rank found out alone. */
CDP__PRIVATE cdp_status cdp__pipe_agree(
    const cdp_pipeline_desc *d, cdp_status st, uint64_t *hashes) {
    const uint32_t n = cdp_size(d->group);
    uint64_t first = 0;
    bool same = true;
    uint32_t refused = UINT32_MAX;
    for (uint32_t r = 0; r < n; ++r) {
        uint64_t word[2];
        word[0] = (uint64_t)(st != CDP_OK);
        word[1] = st == CDP_OK ? cdp__pipe_hash(&d->schedule->table) : 0;
        const cdp_status met = cdp_broadcast(d->group, word, 2, CDP_DTYPE_U64, r);
        if (met != CDP_OK) return met;
        if (r == 0) first = word[1];
        if (word[1] != first) same = false;
        if (word[0] && refused == UINT32_MAX) refused = r;
    }
    if (st != CDP_OK) return st;
    if (refused != UINT32_MAX)
        return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)refused, 0,
            "cdp_pipeline_create: rank %u refused: its error says why", refused);
    if (!same) return cdp__pipe_find_difference(d);
    st = cdp_allreduce(d->group, NULL, hashes, 2ull * d->schedule->table.stages + 2, CDP_DTYPE_U64,
        CDP_REDUCE_SUM);
    return st == CDP_OK ? cdp__pipe_check_edges(&d->schedule->table, hashes) : st;
}

#endif /* CDP_SRC_PIPELINE_MEET_H */
