/* fsdp/paper.h - what a rank will need and receive, without ranks

   Knows: a desc. Promises: the same numbers as a run. */
#ifndef CDP_SRC_FSDP_PAPER_H
#define CDP_SRC_FSDP_PAPER_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "fsdp_api.h"
#include "cuts.h"
#include "checks.h"
#include "holders.h"

/* A unit on one rank: elements of all ranks and of this one; [0] trainable, [1] frozen. */
typedef struct cdp__fsdp_plan {
    uint64_t total[2], own[2];
} cdp__fsdp_plan;

CDP__PRIVATE cdp__fsdp_plan cdp__fsdp_plan_of(
    const cdp__fsdp_list *l, uint32_t unit, uint32_t ranks, uint32_t rank) {
    cdp__fsdp_plan p;
    uint32_t k;
    for (k = 0; k < 2; ++k) {
        const cdp__fsdp_walk w = cdp__fsdp_walk_of(l, unit, k == 1);
        uint64_t start, end;
        cdp__fsdp_cut_of(&w, ranks, rank, &start, &end);
        p.total[k] = w.total;
        p.own[k] = end - start;
    }
    return p;
}

CDP__PRIVATE uint64_t cdp__fsdp_whole(const cdp__fsdp_plan *p) {
    return p->total[0] + p->total[1];
}

#define CDP__FSDP_SIZES 64u /* sizes that are counted at once; of others all units are looked at */

/* How many units with slots there are of each size, and how many of them came so far. */
typedef struct cdp__fsdp_sizes {
    const cdp_fsdp_desc *d;
    cdp__fsdp_list list;
    uint64_t whole[CDP__FSDP_SIZES];
    uint32_t units[CDP__FSDP_SIZES], came[CDP__FSDP_SIZES], count;
} cdp__fsdp_sizes;

CDP__PRIVATE uint64_t cdp__fsdp_whole_of(const cdp__fsdp_list *l, uint32_t unit) {
    return cdp__fsdp_walk_of(l, unit, false).total + cdp__fsdp_walk_of(l, unit, true).total;
}

CDP__PRIVATE uint32_t cdp__fsdp_find_size(const cdp__fsdp_sizes *s, uint64_t whole) {
    uint32_t i;
    for (i = 0; i < s->count && s->whole[i] != whole; ++i) {
    }
    return i;
}

CDP__PRIVATE cdp__fsdp_sizes cdp__fsdp_sizes_of(
    const cdp_fsdp_desc *d, const cdp__fsdp_list *l, uint32_t units) {
    cdp__fsdp_sizes s;
    uint32_t u;
    memset(&s, 0, sizeof s);
    s.d = d;
    s.list = *l;
    for (u = 0; u < units; ++u) {
        const uint64_t whole = cdp__fsdp_whole_of(l, u);
        const uint32_t i = cdp__fsdp_find_size(&s, whole);
        if (cdp__fsdp_keeps(d, u) || i == CDP__FSDP_SIZES) continue;
        s.whole[i] = whole;
        ++s.units[i];
        if (i == s.count) ++s.count;
    }
    return s;
}

/* How many units with slots of the same size come before `unit`, and with *all, there are at all.
   Asked once for each unit with a slot, in order. */
CDP__PRIVATE uint32_t cdp__fsdp_alike(
    cdp__fsdp_sizes *s, uint32_t unit, uint32_t units, uint32_t *all) {
    const uint64_t whole = cdp__fsdp_whole_of(&s->list, unit);
    const uint32_t i = cdp__fsdp_find_size(s, whole);
    uint32_t u, before = 0;
    *all = 0;
    if (i < s->count) {
        *all = s->units[i];
        return s->came[i]++;
    }
    for (u = 0; u < units; ++u) {
        if (cdp__fsdp_keeps(s->d, u) || cdp__fsdp_whole_of(&s->list, u) != whole) continue;
        ++*all;
        before += u < unit;
    }
    return before;
}

/* Slots, and gathers in a step: of each size the last units stay until backward begins. */
CDP__PRIVATE void cdp__fsdp_preview_slots(cdp__fsdp_sizes *s, uint32_t unit, uint32_t units,
    const cdp__fsdp_plan *p, cdp_fsdp_stats *out) {
    const cdp_fsdp_desc *const d = s->d;
    const uint64_t size = cdp__fsdp_size_of(d->compute), bytes = cdp__fsdp_whole(p) * size;
    const uint64_t received = bytes - (p->own[0] + p->own[1]) * size;
    uint32_t gathers = 1;
    if (!bytes) return;
    if (cdp__fsdp_keeps(d, unit))
        out->slot_bytes += bytes;
    else {
        uint32_t alike;
        const uint32_t before = cdp__fsdp_alike(s, unit, units, &alike);
        const uint32_t slots = cdp__fsdp_slots_for(d, alike);
        if (before < slots) out->slot_bytes += bytes;
        if (before + slots < alike) gathers = 2;
    }
    out->gathers += gathers;
    out->gather_bytes += gathers * received;
}

#define CDP__FSDP_RANKS 256u /* whose shares are added up at a time */

/* Adds what ranks from `first` on own of one range. */
CDP__PRIVATE void cdp__fsdp_add_shares(
    cdp__fsdp_walk *w, uint32_t ranks, uint32_t first, uint32_t count, uint64_t *share) {
    uint64_t from = cdp__fsdp_cut(w, ranks, first);
    uint32_t r;
    for (r = 0; r < count; ++r) {
        const uint64_t at = cdp__fsdp_cut(w, ranks, first + r + 1);
        share[r] += at - from;
        from = at;
    }
}

/* The largest rank's share of all elements over the mean. */
CDP__PRIVATE double cdp__fsdp_largest_share(
    const cdp__fsdp_list *l, uint32_t units, uint32_t ranks) {
    uint64_t all = 0, largest = 0, share[CDP__FSDP_RANKS];
    uint32_t first, k, r;
    for (first = 0; first < ranks; first += CDP__FSDP_RANKS) {
        const uint32_t count = (uint32_t)cdp__min(CDP__FSDP_RANKS, ranks - first);
        memset(share, 0, sizeof share);
        for (k = 0; k < 2 * units; ++k) {
            cdp__fsdp_walk w = cdp__fsdp_walk_of(l, k / 2, k % 2 == 1);
            if (!first) all += w.total;
            cdp__fsdp_add_shares(&w, ranks, first, count, share);
        }
        for (r = 0; r < count; ++r)
            largest = cdp__max(largest, share[r]);
    }
    return all ? (double)largest * ranks / (double)all : 1;
}

CDP__PRIVATE void cdp__fsdp_preview_sum(cdp_fsdp_stats *s) {
    s->total_bytes = s->shard_bytes + s->state_bytes + s->copy_bytes + s->slot_bytes
        + s->gradient_bytes + s->scratch_bytes + s->held_bytes;
}

/* Copies of other shards, and what goes to the holders of this one. */
CDP__PRIVATE void cdp__fsdp_preview_held(const cdp_fsdp_desc *d, const cdp__fsdp_list *l,
    uint32_t unit, uint32_t ranks, uint32_t rank, const cdp__fsdp_plan *own, cdp_fsdp_stats *out) {
    const uint32_t distance = cdp__def(d->copy_distance, 1u);
    const uint32_t copies = cdp__fsdp_copies(d->copies, distance, ranks);
    uint32_t k;
    for (k = 1; k <= copies; ++k) {
        const cdp__fsdp_plan p =
            cdp__fsdp_plan_of(l, unit, ranks, cdp__fsdp_held(ranks, distance, rank, k));
        out->held_bytes += ((2 + cdp__fsdp_states(d)) * p.own[0] + p.own[1]) * 4;
    }
    out->forward_bytes += copies * own->own[0] * 4;
}

CDP__PRIVATE void cdp__fsdp_preview(
    const cdp_fsdp_desc *d, uint32_t ranks, uint32_t rank, cdp_fsdp_stats *out) {
    const uint32_t units = cdp__fsdp_unit_count(d);
    const cdp__fsdp_list l = cdp__fsdp_list_of(d);
    cdp__fsdp_sizes sizes = cdp__fsdp_sizes_of(d, &l, units);
    uint64_t most_shared = 0, most = 0;
    uint32_t u, shared = 0, trained = 0;
    for (u = 0; u < units; ++u) {
        const cdp__fsdp_plan p = cdp__fsdp_plan_of(&l, u, ranks, rank);
        out->shard_bytes += (2 * p.own[0] + p.own[1]) * 4;
        out->state_bytes += cdp__fsdp_states(d) * p.own[0] * 4;
        if (cdp__fsdp_size_of(d->compute) == 2) out->copy_bytes += (p.own[0] + p.own[1]) * 2;
        cdp__fsdp_preview_held(d, &l, u, ranks, rank, &p, out);
        cdp__fsdp_preview_slots(&sizes, u, units, &p, out);
        if (!p.total[0]) continue;
        ++trained;
        most = cdp__max(most, p.total[0]);
        ++out->reductions;
        out->reduce_bytes += (ranks - 1ull) * p.own[0] * cdp__fsdp_size_of(d->reduce);
        if (cdp__fsdp_owns_gradients(d, u)) {
            out->gradient_bytes += p.total[0] * 4;
            continue;
        }
        ++shared;
        most_shared = cdp__max(most_shared, p.total[0]);
    }
    out->gradient_bytes += cdp__min(shared, 2) * most_shared * 4;
    if (cdp__fsdp_size_of(d->reduce) == 2) out->scratch_bytes = cdp__min(trained, 2) * most * 2;
    cdp__fsdp_preview_sum(out);
    out->largest_share = cdp__fsdp_largest_share(&l, units, ranks);
}

/* Of which rank of how many paper is about. */
CDP__PRIVATE cdp_status cdp__fsdp_paper_ranks(
    const char *call, const cdp_fsdp_desc *d, uint32_t rank, uint32_t *ranks) {
    *ranks = d->group ? cdp_size(d->group) : d->paper_ranks;
    if (*ranks <= 65535 && rank < *ranks) return CDP_OK;
    return cdp_error_set(CDP_ERR_INVALID, -1, 0,
        "%s: rank %u of %u; set desc.group, or desc.paper_ranks to 1 to 65535", call, rank, *ranks);
}

CDP_API cdp_status cdp_fsdp_preview(const cdp_fsdp_desc *d, uint32_t rank, cdp_fsdp_stats *out) {
    cdp_status st;
    uint32_t ranks;
    if (!out) return cdp__fsdp_missing("cdp_fsdp_preview", "out");
    memset(out, 0, sizeof *out);
    st = cdp__fsdp_check("cdp_fsdp_preview", d);
    if (st == CDP_OK) st = cdp__fsdp_paper_ranks("cdp_fsdp_preview", d, rank, &ranks);
    if (st != CDP_OK) return st;
    cdp__fsdp_preview(d, ranks, rank, out);
    return CDP_OK;
}

CDP_API uint32_t cdp_fsdp_wrap(cdp_fsdp_param *params, uint32_t param_count, uint64_t elements) {
    uint64_t so_far = 0;
    uint32_t i, unit = 0;
    if (!params || !param_count) return 0;
    for (i = 0; i < param_count; ++i) {
        const bool full = i && so_far >= elements && unit + 1 < CDP_FSDP_UNITS;
        if (full) {
            ++unit;
            so_far = 0;
        }
        params[i].unit = unit;
        so_far += cdp__fsdp_count(&params[i]);
    }
    return unit + 1;
}

CDP_API cdp_status cdp_fsdp_range(const cdp_fsdp_desc *d, uint32_t unit, bool frozen,
    uint32_t ranks, uint32_t rank, uint64_t *start, uint64_t *end) {
    cdp__fsdp_list l;
    cdp__fsdp_walk w;
    cdp_status st;
    if (start) *start = 0;
    if (end) *end = 0;
    if (!start) return cdp__fsdp_missing("cdp_fsdp_range", "start");
    if (!end) return cdp__fsdp_missing("cdp_fsdp_range", "end");
    st = cdp__fsdp_check("cdp_fsdp_range", d);
    if (st != CDP_OK) return st;
    if (unit >= cdp__fsdp_unit_count(d) || rank >= ranks || ranks > 65535)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_fsdp_range: there is no rank %u of %u, or no unit %u", rank, ranks, unit);
    l = cdp__fsdp_list_of(d);
    w = cdp__fsdp_walk_of(&l, unit, frozen);
    cdp__fsdp_cut_of(&w, ranks, rank, start, end);
    return CDP_OK;
}

#endif /* CDP_SRC_FSDP_PAPER_H */
