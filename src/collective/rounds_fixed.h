/* collective/rounds_fixed.h - reductions whose bits depend on the inputs alone (pure)

   Knows: shapes and steps. Promises: the contract of >>collective/rounds; the same bits for all
   message sizes. */
#ifndef CDP_SRC_COLLECTIVE_ROUNDS_FIXED_H
#define CDP_SRC_COLLECTIVE_ROUNDS_FIXED_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "rounds.h"

#ifndef CDP_NO_REPRODUCIBLE

/* Allreduce, reduce and reduce-scatter whose bits depend on the inputs alone: every element is
   combined along the same tree over the ranks (that of recursive doubling), wherever it lies in
   a message. The parts are handled in waves: each rank collects all ranks' slices of its own
   part in scratch memory, one slot per rank, and combines the slots. Then the parts travel round
   the ring, or to the root. The algorithm sends as many bytes as a ring. */
#ifndef CDP__WAVE
#define CDP__WAVE 65536u /* elements of a slot; fewer for many ranks, more for huge messages */
#endif
#define CDP__TREE_STEPS 3u /* per round */

/* Returns the number of waves and stores the elements of a slot. */
CDP__PRIVATE uint32_t cdp__fixed_waves(const cdp__shape *s, uint64_t *slot) {
    uint64_t longest = cdp__part(s, 0).len;
    uint32_t i;
    for (i = 1; i < s->size && s->in_offs; ++i)
        longest = cdp__max(longest, cdp__part(s, i).len);
    *slot =
        cdp__max(cdp__min(CDP__WAVE, (32u * CDP__WAVE - 1) / s->size + 1), (longest + 1023) / 1024);
    return (uint32_t)((longest + *slot - 1) / *slot);
}

CDP__PRIVATE cdp__span cdp__fixed_slice(
    const cdp__shape *s, uint32_t i, uint64_t at, uint64_t slot) {
    cdp__span p = cdp__part(s, i);
    at = cdp__min(at, p.len);
    p.off += at;
    p.len = cdp__min(p.len - at, slot);
    return p;
}

/* TMP begins with a working copy, for operations that must not work in OUT; the slots follow. */
CDP__PRIVATE uint64_t cdp__fixed_work_len(const cdp__shape *s) {
    if (s->kind == CDP_COLL_REDUCE) return cdp__reduce_tmp(s);
    return s->kind == CDP_COLL_REDUCE_SCATTER ? cdp__pairwise_tmp(s) : 0;
}

CDP__PRIVATE uint64_t cdp__fixed_tmp(const cdp__shape *s) {
    uint64_t slot;
    const uint32_t waves = cdp__fixed_waves(s, &slot);
    return cdp__fixed_work_len(s) + (waves && s->size > 1 ? s->size * slot : 0);
}

CDP__PRIVATE uint32_t cdp__fixed_wave_rounds(const cdp__shape *s) {
    return s->size - 1 + (s->size - 1 + CDP__TREE_STEPS - 1) / CDP__TREE_STEPS;
}

CDP__PRIVATE uint32_t cdp__fixed_rounds(const cdp__shape *s) {
    uint64_t slot;
    const uint32_t last = s->kind == CDP_COLL_REDUCE_SCATTER ? 0 : s->size - 1;
    return 1 + (s->size > 1 ? cdp__fixed_waves(s, &slot) * cdp__fixed_wave_rounds(s) + last : 0);
}

/* The buffer of a tree node, which combines 2^level ranks (after folding) from node * 2^level
   on. A node that includes this rank's contribution is kept in this rank's own buffer, so the
   result ends up there; other nodes are kept in the slot of one of their ranks. */
CDP__PRIVATE cdp__step cdp__fixed_place(const cdp__shape *s, uint32_t node, uint32_t level,
    uint64_t slots, uint64_t slot, cdp__step own) {
    const cdp__fold f = cdp__fold_of(s);
    const uint32_t me = f.id < 0 ? s->rank / 2 : (uint32_t)f.id, id = node << level;
    if (me >> level == node) return own;
    return cdp__step_make(CDP__REDUCE, -1, 0, CDP__TMP, 0,
        slots + (id < f.extra ? 2 * id + 1 : id + f.extra) * slot, own.len);
}

/* Step t of the tree's n-1: combines two nodes, the lower ranks on the left. */
CDP__PRIVATE cdp__step cdp__fixed_tree_step(
    const cdp__shape *s, uint32_t t, uint64_t slots, uint64_t slot, cdp__step own) {
    const cdp__fold f = cdp__fold_of(s);
    uint32_t level = 0, node = t;
    cdp__step left = own, right = own, into;
    bool keep_left;
    if (t < f.extra) {
        keep_left = s->rank == 2 * t;
        left = cdp__step_make(CDP__REDUCE, -1, 0, CDP__TMP, 0, slots + 2 * t * slot, own.len);
        right =
            cdp__step_make(CDP__REDUCE, -1, 0, CDP__TMP, 0, slots + (2 * t + 1) * slot, own.len);
        if (s->rank == 2 * t) left = own;
        if (s->rank == 2 * t + 1) right = own;
    } else {
        for (node -= f.extra; node >= 1u << (f.bits - 1 - level); ++level)
            node -= 1u << (f.bits - 1 - level);
        left = cdp__fixed_place(s, 2 * node, level, slots, slot, own);
        right = cdp__fixed_place(s, 2 * node + 1, level, slots, slot, own);
        keep_left = right.dst != own.dst || right.dst_off != own.dst_off;
    }
    into = keep_left ? left : right;
    into.src = keep_left ? right.dst : left.dst;
    into.src_off = keep_left ? right.dst_off : left.dst_off;
    into.flags = (uint8_t)(keep_left ? 0 : CDP__SRC_FIRST);
    return into;
}

/* Lists the steps of round k of a wave; the wave begins at element `at` of every part. */
CDP__PRIVATE uint32_t cdp__fixed_wave(
    const cdp__shape *s, uint32_t k, uint64_t at, uint64_t slot, uint8_t work, cdp__step out[]) {
    const uint32_t n = s->size, r = s->rank, there = (r + k + 1) % n,
                   here = (r + 2 * n - k - 1) % n;
    const uint64_t slots = cdp__fixed_work_len(s);
    const cdp__span from = cdp__fixed_slice(s, r, at, slot);
    /* the result goes to another buffer than the input */
    const bool moved = s->kind == CDP_COLL_REDUCE_SCATTER && !s->in_place;
    const cdp__step own = cdp__step_make(CDP__COPY, -1, work, moved ? (uint8_t)CDP__OUT : work,
        from.off, moved ? from.off - cdp__part(s, r).off : from.off, from.len);
    uint32_t m = 0, t;
    if (k < n - 1) {
        out[m++] = cdp__step_send(there, work, cdp__fixed_slice(s, there, at, slot));
        out[m++] =
            cdp__step_make(CDP__RECV, (int32_t)here, 0, CDP__TMP, 0, slots + here * slot, own.len);
        if (k == 0 && moved) out[m++] = own;
        return m;
    }
    for (t = (k - (n - 1)) * CDP__TREE_STEPS; t < n - 1 && m < CDP__TREE_STEPS; ++t) {
        out[m] = cdp__fixed_tree_step(s, t, slots, slot, own);
        out[m++].kind = CDP__REDUCE;
    }
    if (t == n - 1) m += cdp__average(s, own.dst, own.dst_off, own.len, out + m);
    return m;
}

CDP__PRIVATE uint32_t cdp__fixed_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t n = s->size, r = s->rank, per = cdp__fixed_wave_rounds(s);
    const uint8_t mine = s->in_place ? CDP__OUT : CDP__IN;
    uint8_t work = s->kind == CDP_COLL_REDUCE ? cdp__reduce_buffer(s) : (uint8_t)CDP__OUT;
    uint64_t all = s->count, slot;
    uint32_t from, waves;
    if (s->kind == CDP_COLL_REDUCE_SCATTER) {
        all = cdp__edge(s, s->in_offs, n);
        /* working in IN is possible unless the input must be scaled */
        work = s->op == CDP_REDUCE_PREMUL_SUM && !s->in_place ? (uint8_t)CDP__TMP : mine;
        if (n == 1) return cdp__bring(s, all, CDP__OUT, 0, out);
    }
    if (k == 0) return cdp__bring(s, all, work, 0, out);
    waves = cdp__fixed_waves(s, &slot);
    if (--k < waves * per) return cdp__fixed_wave(s, k % per, k / per * slot, slot, work, out);
    k -= waves * per;
    if (s->kind == CDP_COLL_ALLREDUCE) {
        out[0] = cdp__step_send((r + 1) % n, CDP__OUT, cdp__part(s, (r + n - k) % n));
        out[1] = cdp__step_recv((r + n - 1) % n, CDP__OUT, cdp__part(s, (r + 2 * n - k - 1) % n));
        return 2;
    }
    from = (s->root + k + 1) % n;
    if (r == s->root)
        out[0] = cdp__step_recv(from, work, cdp__part(s, from));
    else if (r == from)
        out[0] = cdp__step_send(s->root, work, cdp__part(s, from));
    else
        return 0;
    return 1;
}

#endif /* CDP_NO_REPRODUCIBLE */

#endif /* CDP_SRC_COLLECTIVE_ROUNDS_FIXED_H */
