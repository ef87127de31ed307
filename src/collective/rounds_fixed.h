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

/* Allreduce, reduce and reduce-scatter by exchange: rank r collects all ranks' slices of part r in
   scratch memory, one slot per rank, and combines them along the tree of recursive doubling,
   wherever an element lies in a message. So the bits depend on the inputs alone, and partial
   results can have a wider dtype than messages, which needs no more bytes than a ring. Long parts
   are handled in waves. Then the finished parts go to all ranks, or to the root. */
#ifndef CDP__WAVE
#define CDP__WAVE 65536u /* elements of a slot; fewer for many ranks, more for huge messages */
#endif
#define CDP__FIXED_PAIRS 5u /* messages per round and way; with a copy and the sum, a whole round */

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

/* Elements of the vector that each rank brings. */
CDP__PRIVATE uint64_t cdp__fixed_all(const cdp__shape *s) {
    return s->kind == CDP_COLL_REDUCE_SCATTER ? cdp__edge(s, s->in_offs, s->size) : s->count;
}

/* TMP begins with the scaled input of PREMUL_SUM; then the result of a rank that is not the root
   of a reduce; then the slots. */
CDP__PRIVATE uint64_t cdp__fixed_scaled(const cdp__shape *s) {
    return s->op == CDP_REDUCE_PREMUL_SUM ? cdp__fixed_all(s) : 0;
}
CDP__PRIVATE uint64_t cdp__fixed_slots(const cdp__shape *s) {
    const bool apart = s->kind == CDP_COLL_REDUCE && s->rank != s->root;
    return cdp__fixed_scaled(s) + (apart ? cdp__part(s, s->rank).len : 0);
}

CDP__PRIVATE uint64_t cdp__fixed_tmp(const cdp__shape *s) {
    uint64_t slot;
    const uint32_t waves = cdp__fixed_waves(s, &slot);
    if (s->size == 1) return 0;
    return cdp__fixed_slots(s) + (waves ? s->size * slot : 0);
}

/* Rounds in which each rank exchanges something with every other rank. */
CDP__PRIVATE uint32_t cdp__fixed_exchange_rounds(const cdp__shape *s) {
    return (s->size - 1 + CDP__FIXED_PAIRS - 1) / CDP__FIXED_PAIRS;
}

CDP__PRIVATE uint32_t cdp__fixed_rounds(const cdp__shape *s) {
    uint64_t slot;
    const uint32_t waves = s->size > 1 ? cdp__fixed_waves(s, &slot) : 0;
    return 1 + (waves + (s->kind != CDP_COLL_REDUCE_SCATTER)) * cdp__fixed_exchange_rounds(s);
}

/* Where this rank's finished part goes. */
CDP__PRIVATE uint8_t cdp__fixed_result(const cdp__shape *s, uint64_t *off) {
    *off = cdp__part(s, s->rank).off;
    if (s->kind == CDP_COLL_REDUCE_SCATTER && !s->in_place) *off = 0;
    if (s->kind != CDP_COLL_REDUCE || s->rank == s->root) return CDP__OUT;
    *off = cdp__fixed_scaled(s);
    return CDP__TMP;
}

/* Lists the steps of round k of a wave; the wave begins at element `at` of every part. */
CDP__PRIVATE uint32_t cdp__fixed_wave(
    const cdp__shape *s, uint32_t k, uint64_t at, uint64_t slot, cdp__step out[]) {
    const uint32_t n = s->size, r = s->rank;
    const uint64_t slots = cdp__fixed_slots(s);
    const cdp__span own = cdp__fixed_slice(s, r, at, slot);
    uint8_t mine = s->in_place ? CDP__OUT : CDP__IN, result;
    uint64_t result_off;
    uint32_t m = 0, d;
    if (s->op == CDP_REDUCE_PREMUL_SUM) mine = CDP__TMP;
    for (d = k * CDP__FIXED_PAIRS + 1; d < n && d <= (k + 1) * CDP__FIXED_PAIRS; ++d) {
        const uint32_t to = (r + d) % n, from = (r + n - d) % n;
        out[m++] = cdp__step_send(to, mine, cdp__fixed_slice(s, to, at, slot));
        out[m++] =
            cdp__step_make(CDP__RECV, (int32_t)from, 0, CDP__TMP, 0, slots + from * slot, own.len);
    }
    if (k == 0)
        out[m++] =
            cdp__step_make(CDP__COPY, -1, mine, CDP__TMP, own.off, slots + r * slot, own.len);
    if (k + 1 < cdp__fixed_exchange_rounds(s)) return m;
    result = cdp__fixed_result(s, &result_off);
    result_off += own.off - cdp__part(s, r).off;
    out[m] = cdp__step_make(CDP__COMBINE, -1, CDP__TMP, result, slots, result_off, own.len);
    out[m++].stride = slot;
    return m;
}

/* Round k after the last wave: the finished parts go to all ranks, or to the root. */
CDP__PRIVATE uint32_t cdp__fixed_spread(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t n = s->size, r = s->rank;
    const bool all = s->kind == CDP_COLL_ALLREDUCE;
    cdp__span own = cdp__part(s, r);
    const uint8_t result = cdp__fixed_result(s, &own.off);
    uint32_t m = 0, d;
    for (d = k * CDP__FIXED_PAIRS + 1; d < n && d <= (k + 1) * CDP__FIXED_PAIRS; ++d) {
        const uint32_t to = (r + d) % n, from = (r + n - d) % n;
        if (all || to == s->root) out[m++] = cdp__step_send(to, result, own);
        if (all || r == s->root) out[m++] = cdp__step_recv(from, CDP__OUT, cdp__part(s, from));
    }
    return m;
}

CDP__PRIVATE uint32_t cdp__fixed_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t per = cdp__fixed_exchange_rounds(s);
    uint64_t slot;
    uint32_t waves;
    if (s->size == 1) return cdp__bring(s, cdp__fixed_all(s), CDP__OUT, 0, out);
    if (k == 0)
        return cdp__fixed_scaled(s) ? cdp__bring(s, cdp__fixed_all(s), CDP__TMP, 0, out) : 0;
    waves = cdp__fixed_waves(s, &slot);
    if (--k < waves * per) return cdp__fixed_wave(s, k % per, k / per * slot, slot, out);
    return cdp__fixed_spread(s, k - waves * per, out);
}

#endif /* CDP_NO_REPRODUCIBLE */

#endif /* CDP_SRC_COLLECTIVE_ROUNDS_FIXED_H */
