/* collective/rounds_scan.h - reductions of the ranks before this one (pure)

   Knows: shapes and steps. Promises: the contract of >>collective/rounds; the output of rank 0 of
   an exclusive scan is not touched. */
#ifndef CDP_SRC_COLLECTIVE_ROUNDS_SCAN_H
#define CDP_SRC_COLLECTIVE_ROUNDS_SCAN_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "rounds.h"

#ifndef CDP_NO_SCAN

/* Recursive doubling (Hillis and Steele 1986): after round k each rank has combined the vectors of
   up to 2^k ranks, its own the last of them. In an exclusive scan every rank first gets the vector
   of the rank before it; then ranks 1 .. n-1 scan those.
       inclusive, 4 ranks   start   round 1   round 2
                       r0   a       a         a
                       r1   b       ab        ab
                       r2   c       bc        abc
                       r3   d       cd        abcd                       */
CDP__PRIVATE uint32_t cdp__scan_shift(const cdp__shape *s) {
    return s->kind == CDP_COLL_EXSCAN;
}

CDP__PRIVATE uint32_t cdp__scan_rounds(const cdp__shape *s) {
    const uint32_t shift = cdp__scan_shift(s);
    return 1 + (s->size > 1 ? shift + cdp__log2_up(s->size - shift) : 0);
}

CDP__PRIVATE uint64_t cdp__scan_tmp(const cdp__shape *s) {
    return s->size > 1 ? s->count : 0;
}

/* Every rank gets the vector of the rank before it: straight into OUT, unless OUT is the input,
   which is being sent. Scaled input is in TMP. */
CDP__PRIVATE uint32_t cdp__scan_shift_round(const cdp__shape *s, cdp__step out[]) {
    const bool scaled = s->op == CDP_REDUCE_PREMUL_SUM, moved = s->in_place && !scaled;
    const uint8_t input = s->in_place ? CDP__OUT : CDP__IN;
    uint32_t m = 0;
    if (s->rank + 1 < s->size)
        out[m++] =
            cdp__step_send(s->rank + 1, scaled ? (uint8_t)CDP__TMP : input, cdp__first(s->count));
    if (!s->rank) return m;
    out[m++] = cdp__step_recv(
        s->rank - 1, moved ? (uint8_t)CDP__TMP : (uint8_t)CDP__OUT, cdp__first(s->count));
    if (moved) out[m++] = cdp__step_make(CDP__COPY, -1, CDP__TMP, CDP__OUT, 0, 0, s->count);
    return m;
}

CDP__PRIVATE uint32_t cdp__scan_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t shift = cdp__scan_shift(s), n = s->size, r = s->rank;
    uint32_t m = 0, stride;
    if (k == 0 && !shift) return cdp__bring(s, s->count, CDP__OUT, 0, out);
    if (k == 0)
        return s->op == CDP_REDUCE_PREMUL_SUM && n > 1 ? cdp__bring(s, s->count, CDP__TMP, 0, out)
                                                       : 0;
    if (k <= shift) return cdp__scan_shift_round(s, out);
    if (r < shift) return 0;
    stride = 1u << (k - 1 - shift);
    if (r - shift >= stride) m = cdp__combine(s, r - stride, out);
    if (stride < n - r) out[m++] = cdp__step_send(r + stride, CDP__OUT, cdp__first(s->count));
    return m;
}

#ifndef CDP_FEW_ALGORITHMS

/* A chain, for large messages: the vector goes from rank to rank in pieces, and each rank combines
   its own with what has come. As many bytes as one vector per rank, in n + pieces - 1 rounds.
   Inclusive: combined in OUT. Exclusive: received in OUT; TMP has the input, and what goes on. */
#ifndef CDP__SCAN_PIECE
#define CDP__SCAN_PIECE 16384u /* elements, at least; there are at most 8 pieces per rank */
#endif
#define CDP__SCAN_PIECES 512u

CDP__PRIVATE uint32_t cdp__chain_pieces(const cdp__shape *s) {
    const uint64_t most = cdp__min(8ull * (s->size - 1), CDP__SCAN_PIECES);
    return (uint32_t)cdp__max(cdp__min(s->count / CDP__SCAN_PIECE, most), 1);
}

CDP__PRIVATE uint32_t cdp__chain_rounds(const cdp__shape *s) {
    return s->size > 1 ? cdp__chain_pieces(s) + s->size - 1 : 1;
}

CDP__PRIVATE uint64_t cdp__chain_tmp(const cdp__shape *s) {
    return cdp__scan_shift(s) ? cdp__scan_tmp(s) : 0;
}

CDP__PRIVATE uint32_t cdp__chain_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t n = s->size, r = s->rank, pieces = cdp__chain_pieces(s);
    const bool apart = cdp__scan_shift(s) != 0, from_in = !apart && r && cdp__reads_in(s);
    const uint8_t work = apart ? CDP__TMP : CDP__OUT;
    cdp__shape cut = *s;
    uint32_t m = 0;
    cut.lanes = pieces;
    if (k == 0 && (from_in || (apart && r + 1 == n))) return 0; /* nothing is passed on */
    if (k == 0) return cdp__bring(s, s->count, work, 0, out);
    if (r + 1 < n && k >= r + 1 && k - r - 1 < pieces)
        out[m++] = cdp__step_send(r + 1, work, cdp__cut(&cut, k - r - 1));
    if (r && k >= r && k - r < pieces) {
        const cdp__span p = cdp__cut(&cut, k - r);
        out[m] = cdp__step_make(apart ? CDP__RECV : CDP__RECV_REDUCE, (int32_t)(r - 1),
            from_in ? CDP__IN : 0, CDP__OUT, p.off, p.off, p.len);
        out[m++].flags = (uint8_t)(apart ? 0 : CDP__SRC_FIRST);
        if (apart && r + 1 < n) {
            out[m] = cdp__step_make(CDP__REDUCE, -1, CDP__OUT, CDP__TMP, p.off, p.off, p.len);
            out[m++].flags = CDP__SRC_FIRST;
        }
    }
    return m;
}

#endif /* CDP_FEW_ALGORITHMS */
#endif /* CDP_NO_SCAN */

#endif /* CDP_SRC_COLLECTIVE_ROUNDS_SCAN_H */
