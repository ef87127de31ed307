/* fsdp/holders.h - who holds which shard, and what counts after a death (pure)

   Knows: records in which ranks describe themselves. Promises: every rank decides the same from the
   same records. A step counts for all ranks or for none: a rank enters the closing allreduce when
   it has all that its update needs, so where one rank has seen the end of it, all can update. */
#ifndef CDP_SRC_FSDP_HOLDERS_H
#define CDP_SRC_FSDP_HOLDERS_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "fsdp_api.h"
#include "cuts.h"
#include "checks.h"

/* What a rank says of itself where groups change. All words are of one size: they are sent. */
typedef struct cdp__fsdp_record {
    uint64_t layout; /* number of the layout whose shards it holds; 0: it holds none */
    uint64_t ranks, rank, copies, distance; /* of that layout */
    uint64_t pending; /* number of a later one that is complete here; others may use it already */
    uint64_t pending_ranks, pending_rank, pending_copies;
    uint64_t seen;    /* the highest number that it has met */
    uint64_t turn;    /* steps that have ended here */
    uint64_t wanted;  /* those that the program says count; CDP_FSDP_AGREE: as the ranks find */
    uint64_t updates; /* of the program's optimizer, and of its own count */
    uint64_t optim_step;
    uint64_t flags;
    double scale; /* of the last update, or of the one that comes next if ENDED */
} cdp__fsdp_record;

enum {
    CDP__FSDP_READY = 1,    /* it has entered the closing allreduce of its step: can update */
    CDP__FSDP_ENDED = 2,    /* the allreduce has ended: so can all */
    CDP__FSDP_TORN = 4,     /* an update has stopped half-way: nothing that it holds counts */
    CDP__FSDP_FILLED = 8,   /* its copies of other shards are complete */
    CDP__FSDP_LEFT_OUT = 16 /* ENDED: that step will update nothing; else: the last one has not */
};

/* What a rank does before shards move. */
typedef enum cdp__fsdp_role {
    CDP__FSDP_RECEIVES, /* holds nothing that counts */
    CDP__FSDP_KEEPS,
    CDP__FSDP_UPDATES /* has all of a step that counts, and lacks its update */
} cdp__fsdp_role;

typedef struct cdp__fsdp_verdict {
    uint64_t layout, seen;
    uint32_t ranks, copies, distance;   /* of the layout */
    uint64_t turn, updates, optim_step; /* afterwards */
    bool left_out;                      /* the last step updates nothing */
    bool unknown;                       /* nobody has the scale of the update */
    double scale;
    uint32_t lost;   /* the first shard without a holder; CDP__FSDP_NONE: there is none */
    bool impossible; /* the wanted turn, which is now in `turn`, is not one that ranks can reach */
} cdp__fsdp_verdict;

/* Where a shard is held in its layout: by its owner (0) and by `copies` further ranks. */
CDP__PRIVATE uint32_t cdp__fsdp_holder(
    uint32_t ranks, uint32_t distance, uint32_t shard, uint32_t copy) {
    return (uint32_t)((shard + (uint64_t)copy * distance) % ranks);
}

/* The shard of which `rank` has copy number `copy`. */
CDP__PRIVATE uint32_t cdp__fsdp_held(
    uint32_t ranks, uint32_t distance, uint32_t rank, uint32_t copy) {
    return (uint32_t)((rank + ranks - (uint64_t)copy * distance % ranks) % ranks);
}

/* As many copies as there are other ranks for. */
CDP__PRIVATE uint32_t cdp__fsdp_copies(uint32_t copies, uint32_t distance, uint32_t ranks) {
    return (uint32_t)cdp__min(copies, (ranks - 1) / distance);
}

/* Whether the layout that all go on with is this rank's: 1, its pending one: 2, or neither: 0. */
CDP__PRIVATE uint32_t cdp__fsdp_has_layout(const cdp__fsdp_record *r, uint64_t layout) {
    if (!layout || r->flags & CDP__FSDP_TORN) return 0;
    if (r->layout == layout) return 1;
    return r->pending == layout ? 2 : 0;
}

CDP__PRIVATE cdp__fsdp_role cdp__fsdp_role_of(
    const cdp__fsdp_record *r, const cdp__fsdp_verdict *v) {
    if (!cdp__fsdp_has_layout(r, v->layout)) return CDP__FSDP_RECEIVES;
    if (r->turn == v->turn) return CDP__FSDP_KEEPS;
    if (cdp__fsdp_has_layout(r, v->layout) == 2) return CDP__FSDP_RECEIVES; /* no gradient there */
    return r->turn + 1 == v->turn && r->flags & CDP__FSDP_READY ? CDP__FSDP_UPDATES
                                                                : CDP__FSDP_RECEIVES;
}

/* The rank in the layout that all go on with; CDP__FSDP_NONE: it receives. */
CDP__PRIVATE uint32_t cdp__fsdp_old_rank(const cdp__fsdp_record *r, const cdp__fsdp_verdict *v) {
    if (cdp__fsdp_role_of(r, v) == CDP__FSDP_RECEIVES) return CDP__FSDP_NONE;
    return (uint32_t)(cdp__fsdp_has_layout(r, v->layout) == 1 ? r->rank : r->pending_rank);
}

/* Which copy of a shard a member holds, 0 for its owner; CDP__FSDP_NONE: it does not hold it. */
CDP__PRIVATE uint32_t cdp__fsdp_holds(
    const cdp__fsdp_record *r, const cdp__fsdp_verdict *v, uint32_t shard) {
    const uint32_t old = cdp__fsdp_old_rank(r, v);
    const bool filled = cdp__fsdp_has_layout(r, v->layout) == 2 || r->flags & CDP__FSDP_FILLED;
    uint32_t copy;
    if (old == CDP__FSDP_NONE) return CDP__FSDP_NONE;
    for (copy = 0; copy <= (filled ? v->copies : 0); ++copy)
        if (cdp__fsdp_held(v->ranks, v->distance, old, copy) == shard) return copy;
    return CDP__FSDP_NONE;
}

/* Goes on with a layout that r describes, if it is newer than the one before. */
CDP__PRIVATE void cdp__fsdp_take_newer(cdp__fsdp_verdict *v, const cdp__fsdp_record *r,
    uint64_t layout, uint64_t ranks, uint64_t copies) {
    if (layout <= v->layout || r->flags & CDP__FSDP_TORN) return;
    v->layout = layout;
    v->ranks = (uint32_t)ranks;
    v->copies = (uint32_t)copies;
    v->distance = (uint32_t)r->distance;
}

/* The layout of the member that has used the newest one. Whoever used it had seen that it is
   complete on all of its ranks. */
CDP__PRIVATE void cdp__fsdp_find_layout(
    const cdp__fsdp_record *r, uint32_t count, cdp__fsdp_verdict *v) {
    uint32_t i;
    for (i = 0; i < count; ++i) {
        v->seen = cdp__max(v->seen, r[i].seen);
        cdp__fsdp_take_newer(v, &r[i], r[i].layout, r[i].ranks, r[i].copies);
    }
}

/* How many steps count. */
CDP__PRIVATE void cdp__fsdp_find_turn(
    const cdp__fsdp_record *r, uint32_t count, cdp__fsdp_verdict *v) {
    uint64_t wanted = CDP_FSDP_AGREE, most = 0;
    bool ended = false, ready = false;
    uint32_t i;
    for (i = 0; i < count; ++i) {
        if (r[i].wanted != CDP_FSDP_AGREE) wanted = r[i].wanted;
        if (cdp__fsdp_has_layout(&r[i], v->layout)) most = cdp__max(most, r[i].turn);
    }
    for (i = 0; i < count; ++i) {
        if (cdp__fsdp_has_layout(&r[i], v->layout) != 1 || r[i].turn != most) continue;
        ready = ready || r[i].flags & CDP__FSDP_READY;
        ended = ended || r[i].flags & CDP__FSDP_ENDED;
    }
    v->turn = wanted == CDP_FSDP_AGREE ? most + ended : wanted;
    v->impossible = v->turn < most || v->turn > most + ready;
    for (i = 0; i < count; ++i)
        if (r[i].wanted != CDP_FSDP_AGREE && r[i].wanted != wanted) v->impossible = true;
}

/* How well a member knows what the last step that counts has done, or will do. */
CDP__PRIVATE uint32_t cdp__fsdp_knows(const cdp__fsdp_record *r, const cdp__fsdp_verdict *v) {
    const cdp__fsdp_role role = cdp__fsdp_role_of(r, v);
    if (role == CDP__FSDP_RECEIVES) return 0;
    if (role == CDP__FSDP_KEEPS) return 3; /* it has made that step */
    return r->flags & CDP__FSDP_ENDED ? 2 : 1;
}

CDP__PRIVATE void cdp__fsdp_find_update(
    const cdp__fsdp_record *r, uint32_t count, cdp__fsdp_verdict *v) {
    const cdp__fsdp_record *best = NULL;
    bool adds;
    uint32_t i;
    for (i = 0; i < count; ++i)
        if (cdp__fsdp_knows(&r[i], v) > (best ? cdp__fsdp_knows(best, v) : 0)) best = &r[i];
    v->unknown = best && cdp__fsdp_knows(best, v) == 1;
    if (!best) return;
    v->scale = best->scale;
    v->left_out = !v->unknown && best->flags & CDP__FSDP_LEFT_OUT;
    adds = best->turn < v->turn && !v->left_out;
    v->updates = best->updates + adds;
    v->optim_step = best->optim_step + adds;
}

/* Decides how many steps count, and whether all shards of the layout are there. */
CDP__PRIVATE void cdp__fsdp_weigh(const cdp__fsdp_record *r, uint32_t count, cdp__fsdp_verdict *v) {
    uint32_t i, shard;
    v->lost = CDP__FSDP_NONE;
    cdp__fsdp_find_turn(r, count, v);
    cdp__fsdp_find_update(r, count, v);
    for (shard = 0; shard < v->ranks && v->lost == CDP__FSDP_NONE; ++shard) {
        for (i = 0; i < count && cdp__fsdp_holds(&r[i], v, shard) == CDP__FSDP_NONE; ++i) {
        }
        if (i == count) v->lost = shard;
    }
}

/* The newest layout that a member has all of its part of, though nobody has seen that all do: what
   is there of it is right. */
CDP__PRIVATE void cdp__fsdp_find_pending(
    const cdp__fsdp_record *r, uint32_t count, cdp__fsdp_verdict *v) {
    uint32_t i;
    for (i = 0; i < count; ++i)
        cdp__fsdp_take_newer(v, &r[i], r[i].pending, r[i].pending_ranks, r[i].pending_copies);
}

/* All ranks of the new group decide from their records. v->layout 0: no rank holds anything. */
CDP__PRIVATE void cdp__fsdp_resolve(
    const cdp__fsdp_record *r, uint32_t count, cdp__fsdp_verdict *v) {
    cdp__fsdp_verdict other;
    memset(v, 0, sizeof *v);
    v->lost = CDP__FSDP_NONE;
    cdp__fsdp_find_layout(r, count, v);
    if (!v->layout) return;
    cdp__fsdp_weigh(r, count, v);
    if (v->lost == CDP__FSDP_NONE) return;
    other = *v;
    cdp__fsdp_find_pending(r, count, &other);
    if (other.layout == v->layout) return;
    cdp__fsdp_weigh(r, count, &other);
    if (other.lost == CDP__FSDP_NONE) *v = other;
}

/* ---- moves ---- */

/* A stretch of one range of a unit that a rank of the new layout lacks or has. */
typedef struct cdp__fsdp_piece_move {
    uint32_t to, image;    /* the rank of the new group, and which of the shards that it holds */
    uint32_t from;         /* the rank of the new group that has it; `to` itself: it stays there */
    uint32_t shard;        /* of the old layout */
    uint64_t first, count; /* elements of the range */
} cdp__fsdp_piece_move;

/* Walks over all stretches of one range. Each that its receiver does not hold moves once, so no
   plan moves less; it comes from the holder that has sent least. */
typedef struct cdp__fsdp_mover {
    const cdp__fsdp_record *records; /* of the new group */
    const cdp__fsdp_verdict *verdict;
    uint32_t ranks, copies, distance; /* of the new layout */
    uint64_t *old_cuts, *new_cuts;    /* one more than ranks */
    uint32_t *member; /* of the new group, for each old rank; CDP__FSDP_NONE: it has none */
    uint64_t *sent;   /* elements, by each rank of the new group, so far */
    uint32_t to, image, shard;
} cdp__fsdp_mover;

CDP__PRIVATE void cdp__fsdp_cut_all(
    const cdp__fsdp_list *l, uint32_t unit, bool frozen, uint32_t ranks, uint64_t *cuts) {
    cdp__fsdp_walk w = cdp__fsdp_walk_of(l, unit, frozen);
    uint32_t r;
    for (r = 0; r <= ranks; ++r)
        cuts[r] = cdp__fsdp_cut(&w, ranks, r);
}

/* The walk begins anew, for one range. */
CDP__PRIVATE void cdp__fsdp_move_range(
    cdp__fsdp_mover *m, const cdp__fsdp_list *l, uint32_t unit, bool frozen) {
    cdp__fsdp_cut_all(l, unit, frozen, m->verdict->ranks, m->old_cuts);
    cdp__fsdp_cut_all(l, unit, frozen, m->ranks, m->new_cuts);
    m->to = m->image = m->shard = 0;
}

/* The rank that sends a shard's stretch to `to`. */
CDP__PRIVATE uint32_t cdp__fsdp_sender(const cdp__fsdp_mover *m, uint32_t shard, uint32_t to) {
    const cdp__fsdp_verdict *v = m->verdict;
    uint32_t copy, best = CDP__FSDP_NONE;
    if (cdp__fsdp_holds(&m->records[to], v, shard) != CDP__FSDP_NONE) return to;
    for (copy = 0; copy <= v->copies; ++copy) {
        const uint32_t i = m->member[cdp__fsdp_holder(v->ranks, v->distance, shard, copy)];
        if (i == CDP__FSDP_NONE || cdp__fsdp_holds(&m->records[i], v, shard) == CDP__FSDP_NONE)
            continue;
        if (best == CDP__FSDP_NONE || m->sent[i] < m->sent[best]) best = i;
    }
    return best;
}

/* The next stretch; false: there is no other one. */
CDP__PRIVATE bool cdp__fsdp_next_move(cdp__fsdp_mover *m, cdp__fsdp_piece_move *out) {
    for (; m->to < m->ranks; ++m->to, m->image = 0)
        for (; m->image <= m->copies; ++m->image, m->shard = 0) {
            const uint32_t held = cdp__fsdp_held(m->ranks, m->distance, m->to, m->image);
            for (; m->shard < m->verdict->ranks; ++m->shard) {
                const uint64_t low = cdp__max(m->new_cuts[held], m->old_cuts[m->shard]);
                const uint64_t high = cdp__min(m->new_cuts[held + 1], m->old_cuts[m->shard + 1]);
                if (low >= high) continue;
                out->to = m->to;
                out->image = m->image;
                out->shard = m->shard++;
                out->first = low;
                out->count = high - low;
                out->from = cdp__fsdp_sender(m, out->shard, out->to);
                if (out->from != out->to) m->sent[out->from] += out->count;
                return true;
            }
        }
    return false;
}

#endif /* CDP_SRC_FSDP_HOLDERS_H */
