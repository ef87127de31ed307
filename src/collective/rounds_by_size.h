/* collective/rounds_by_size.h - algorithms for some sizes and numbers of ranks (pure)

   Knows: shapes and steps. Promises: the contract of >>collective/rounds. */
#ifndef CDP_SRC_COLLECTIVE_ROUNDS_BY_SIZE_H
#define CDP_SRC_COLLECTIVE_ROUNDS_BY_SIZE_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "rounds.h"

#ifndef CDP_FEW_ALGORITHMS

/* Reduce: the first half of a ring allreduce, then every rank sends its finished part to the
   root. */
CDP__PRIVATE uint32_t cdp__reduce_ring_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t n = s->size, from = k < n ? 0 : (s->root + (k - n) + 1) % n;
    const uint8_t work = cdp__reduce_buffer(s);
    if (k == 0 && cdp__reads_in(s)) return 0;
    if (k == 0) return cdp__bring(s, s->count, work, 0, out);
    if (k < n) return cdp__ring_reduce(s, k, work, out);
    if (s->rank == s->root)
        out[0] = cdp__step_recv(from, work, cdp__part(s, (from + 1) % n));
    else if (s->rank == from)
        out[0] = cdp__step_send(s->root, work, cdp__part(s, (from + 1) % n));
    else
        return 0;
    return 1;
}

/* Alltoall that exchanges parts with several peers in each round, for small messages. */
#define CDP__SPREAD_WIDTH 6u /* two messages per peer; place 0 copies this rank's part */

CDP__PRIVATE uint32_t cdp__spread_rounds(const cdp__shape *s) {
    return (s->size - 1) / CDP__SPREAD_WIDTH + 1;
}

CDP__PRIVATE uint32_t cdp__spread_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    uint32_t i, m = 0;
    for (i = k * CDP__SPREAD_WIDTH; i < s->size && i < (k + 1) * CDP__SPREAD_WIDTH; ++i)
        m += cdp__alltoall_round(s, i, out + m);
    return m;
}

/* The elements in `parts` consecutive parts from rank `first` on, continuing at rank 0 after the
   last. */
CDP__PRIVATE uint64_t cdp__run_len(
    const cdp__shape *s, const uint64_t *offs, uint32_t first, uint32_t parts) {
    const uint32_t n = s->size, to = first + parts;
    return to <= n ? cdp__edge(s, offs, to) - cdp__edge(s, offs, first)
                   : cdp__edge(s, offs, n) - cdp__edge(s, offs, first) + cdp__edge(s, offs, to - n);
}

/* TMP holds all parts, rotated so that rank `first` comes first: copies them to their places in
   `buf` or, if `in`, from there. */
CDP__PRIVATE uint32_t cdp__turn_back(const cdp__shape *s, const uint64_t *offs, uint32_t first,
    uint8_t buf, bool in, cdp__step out[]) {
    const uint64_t at = cdp__edge(s, offs, first), head = cdp__edge(s, offs, s->size) - at;
    out[0] = in ? cdp__step_make(CDP__COPY, -1, buf, CDP__TMP, at, 0, head)
                : cdp__step_make(CDP__COPY, -1, CDP__TMP, buf, 0, at, head);
    out[1] = in ? cdp__step_make(CDP__COPY, -1, buf, CDP__TMP, 0, head, at)
                : cdp__step_make(CDP__COPY, -1, CDP__TMP, buf, head, 0, at);
    return at ? 2 : 1;
}

/* Allgather in log2 n rounds (Bruck and others 1997): each rank holds 1, 2, 4, ... consecutive
   parts that end with its own, and receives as many from the rank just before them. TMP is
   filled from its end towards its beginning. With 2, 4, 8, ... ranks the parts are those of an
   aligned group of 1, 2, 4, ... ranks, already in their final places, and the partner in the
   neighbouring group holds the next ones. */
CDP__PRIVATE uint32_t cdp__bruck_rounds(const cdp__shape *s) {
    return 1 + cdp__log2_up(s->size);
}
CDP__PRIVATE uint64_t cdp__bruck_tmp(const cdp__shape *s) {
    return s->size & (s->size - 1) ? cdp__edge(s, s->out_offs, s->size) : 0;
}

CDP__PRIVATE uint32_t cdp__paired_gather_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t stride = k ? 1u << (k - 1) : 0, first = s->rank & ~(stride - 1),
                   next = first ^ stride;
    if (k == 0) return cdp__gather_round(s, 0, out);
    out[0] = cdp__step_send(
        s->rank ^ stride, CDP__OUT, cdp__blocks(s, s->out_offs, first, first + stride));
    out[1] = cdp__step_recv(
        s->rank ^ stride, CDP__OUT, cdp__blocks(s, s->out_offs, next, next + stride));
    return k == 1 ? cdp__gather_own(s, 1, 2, out) : 2;
}

CDP__PRIVATE uint32_t cdp__bruck_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t n = s->size, r = s->rank, stride = k ? 1u << (k - 1) : 0,
                   parts = (uint32_t)cdp__min(stride, n - stride), first = (r + 1) % n;
    const uint64_t *offs = s->out_offs;
    const cdp__span own = cdp__part(s, r);
    const uint64_t all = cdp__bruck_tmp(s), from = cdp__run_len(s, offs, first, n - parts),
                   to = cdp__run_len(s, offs, first, n - stride - parts);
    if (!(n & (n - 1))) return cdp__paired_gather_round(s, k, out);
    if (k == 0) {
        out[0] = cdp__step_make(CDP__COPY, -1, s->in_place ? CDP__OUT : CDP__IN, CDP__TMP,
            s->in_place ? own.off : 0, all - own.len, own.len);
        return 1;
    }
    out[0] =
        cdp__step_make(CDP__SEND, (int32_t)((r + stride) % n), CDP__TMP, 0, from, 0, all - from);
    out[1] = cdp__step_make(CDP__RECV, (int32_t)((r + n - stride) % n), 0, CDP__TMP, 0, to,
        cdp__run_len(s, offs, first, n - stride) - to);
    return 2 + (2ull * stride >= n ? cdp__turn_back(s, offs, first, CDP__OUT, false, out + 2) : 0);
}

/* Gather and scatter along a binomial tree, for small messages of many ranks. In TMP each rank
   holds the parts of its subtree, its own first. Gather works from the leaves, scatter from the
   root. Counted from the root, rank v has the parent v - stride, where stride is v's lowest set
   bit. */
/* The number of ranks in the subtree of this rank. */
CDP__PRIVATE uint32_t cdp__subtree(const cdp__shape *s, uint32_t stride) {
    return (uint32_t)cdp__min(stride, s->size - (s->rank + s->size - s->root) % s->size);
}

CDP__PRIVATE uint64_t cdp__subtree_tmp(const cdp__shape *s) {
    const uint32_t v = (s->rank + s->size - s->root) % s->size;
    return cdp__run_len(s, s->kind == CDP_COLL_GATHER ? s->out_offs : s->in_offs, s->rank,
        cdp__subtree(s, v ? v & (~v + 1) : s->size));
}

CDP__PRIVATE uint32_t cdp__subtree_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t n = s->size, r = s->rank, v = (r + n - s->root) % n, last = cdp__log2_up(n);
    const bool root = v == 0, gather = s->kind == CDP_COLL_GATHER;
    const uint64_t *offs = gather ? s->out_offs : s->in_offs;
    const cdp__span own = cdp__part(s, r);
    const uint32_t doublings = gather ? k - 1 : last - k, stride = k ? 1u << doublings : 0;
    uint32_t m = 0;
    if (n == 1) return cdp__linear_round(s, 0, out);
    if (k == 0 && gather)
        out[m++] = cdp__step_make(CDP__COPY, -1, root && s->in_place ? CDP__OUT : CDP__IN, CDP__TMP,
            root && s->in_place ? own.off : 0, 0, own.len);
    if (k == 0 && !gather && root)
        m = cdp__turn_back(s, offs, r, s->in_place ? CDP__OUT : CDP__IN, true, out);
    if (k && v % (2 * stride) == stride) {
        const uint64_t len = cdp__run_len(s, offs, r, cdp__subtree(s, stride));
        out[m++] = cdp__step_make(gather ? CDP__SEND : CDP__RECV, (int32_t)((r + n - stride) % n),
            gather ? CDP__TMP : 0, gather ? 0 : CDP__TMP, 0, 0, len);
    } else if (k && v % (2 * stride) == 0 && stride < n - v) {
        const uint64_t at = cdp__run_len(s, offs, r, stride),
                       len = cdp__run_len(s, offs, r, cdp__subtree(s, 2 * stride)) - at;
        out[m++] = cdp__step_make(gather ? CDP__RECV : CDP__SEND, (int32_t)((r + stride) % n),
            gather ? 0 : CDP__TMP, gather ? CDP__TMP : 0, at, at, len);
    }
    if (k == last && gather && root) m += cdp__turn_back(s, offs, r, CDP__OUT, false, out + m);
    if (k == last && !gather && !(root && s->in_place))
        out[m++] = cdp__step_make(CDP__COPY, -1, CDP__TMP, CDP__OUT, 0, 0, own.len);
    return m;
}

/* Reduce-scatter by recursive halving (Thakur, Rabenseifner, Gropp 2005), for small messages: in
   each round two ranks whose numbers differ in one bit, the highest bit first, exchange halves,
   and each keeps the half that its partner no longer needs. Ranks beyond the power of two fold
   first and receive their part at the end, as in recursive doubling. */
CDP__PRIVATE uint64_t cdp__halving_tmp(const cdp__shape *s) {
    return s->in_place || s->size == 1 ? 0 : cdp__edge(s, s->in_offs, s->size);
}

/* The parts of ranks `id` to `id` + `ids` - 1, as numbered after folding. */
CDP__PRIVATE cdp__span cdp__halving_range(
    const cdp__shape *s, const cdp__fold *f, uint32_t id, uint32_t ids) {
    return cdp__blocks(s, s->in_offs, id < f->extra ? 2 * id : id + f->extra,
        id + ids < f->extra ? 2 * (id + ids) : id + ids + f->extra);
}

/* For ranks beyond the power of two: the even ones send their whole vector to a neighbour, and
   receive their part at the end. */
CDP__PRIVATE uint32_t cdp__halving_fold(
    const cdp__shape *s, bool back, uint8_t work, cdp__step out[]) {
    const uint32_t r = s->rank;
    const uint8_t brought = cdp__reads_in(s) ? (uint8_t)CDP__IN : work;
    const cdp__span all = cdp__first(cdp__edge(s, s->in_offs, s->size)), own = cdp__part(s, r);
    if (r >= 2 * cdp__fold_of(s).extra) return 0;
    if (back && r % 2)
        out[0] = cdp__step_send(r - 1, work, cdp__part(s, r - 1));
    else if (back)
        out[0] = cdp__step_make(
            CDP__RECV, (int32_t)r + 1, 0, CDP__OUT, 0, s->in_place ? own.off : 0, own.len);
    else if (r % 2 == 0)
        out[0] = cdp__step_send(r + 1, brought, all);
    else {
        out[0] = cdp__step_make(
            CDP__RECV_REDUCE, (int32_t)r - 1, cdp__reads_in(s) ? brought : 0, work, 0, 0, all.len);
        out[0].flags = CDP__SRC_FIRST;
    }
    return 1;
}

CDP__PRIVATE uint32_t cdp__halving_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const cdp__fold f = cdp__fold_of(s);
    const uint32_t first = f.extra ? 2 : 1, id = (uint32_t)f.id;
    const uint8_t work = s->in_place ? CDP__OUT : CDP__TMP;
    /* this rank's input is still in IN */
    const bool fresh = cdp__reads_in(s) && k == first && s->rank >= 2 * f.extra;
    const cdp__span own = cdp__part(s, s->rank);
    cdp__span mine, theirs;
    uint32_t half, peer, m = 2;
    if (s->size == 1) return cdp__scatter_reduce_round(s, 0, out);
    if (k == 0 && cdp__reads_in(s)) return 0;
    if (k == 0) return cdp__bring(s, cdp__edge(s, s->in_offs, s->size), work, 0, out);
    if (k < first || k == first + f.bits) return cdp__halving_fold(s, k >= first, work, out);
    if (f.id < 0) return 0;
    half = 1u << (f.bits - 1 - (k - first));
    peer = id ^ half;
    mine = cdp__halving_range(s, &f, id & ~(half - 1), half);
    theirs = cdp__halving_range(s, &f, peer & ~(half - 1), half);
    peer = peer < f.extra ? 2 * peer + 1 : peer + f.extra;
    out[0] = cdp__step_send(peer, fresh ? (uint8_t)CDP__IN : work, theirs);
    out[1] = cdp__step_make(
        CDP__RECV_REDUCE, (int32_t)peer, fresh ? CDP__IN : 0, work, mine.off, mine.off, mine.len);
    out[1].flags = peer < s->rank ? CDP__SRC_FIRST : 0;
    if (half > 1) return m;
    m += cdp__average(s, work, mine.off, mine.len, out + m);
    if (!s->in_place) out[m++] = cdp__step_make(CDP__COPY, -1, work, CDP__OUT, own.off, 0, own.len);
    return m;
}

/* Allreduce as a reduce-scatter by recursive halving and an allgather by recursive doubling
   (Rabenseifner 2004): hardly more bytes than a ring, in 2 log2 n rounds. The vector is cut into
   one part per rank that is not folded. */
CDP__PRIVATE uint32_t cdp__rabenseifner_rounds(const cdp__shape *s) {
    const cdp__fold f = cdp__fold_of(s);
    return 1 + 2 * f.bits + (f.extra ? 2 : 0);
}

CDP__PRIVATE cdp__span cdp__rabenseifner_range(
    const cdp__shape *s, uint32_t bits, uint32_t id, uint32_t ids) {
    const uint64_t q = s->count >> bits, rest = s->count - (q << bits);
    cdp__span p;
    p.off = id * q + cdp__min(id, rest);
    p.len = ids * q + cdp__min(id + ids, rest) - cdp__min(id, rest);
    return p;
}

CDP__PRIVATE uint32_t cdp__rabenseifner_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const cdp__fold f = cdp__fold_of(s);
    const uint32_t first = f.extra ? 2 : 1, j = k - first, id = (uint32_t)f.id;
    /* this rank's input is still in IN */
    const bool from_in = cdp__reads_in(s),
               fresh = from_in && k == (s->rank < 2 * f.extra ? 1 : first);
    const cdp__span all = cdp__first(s->count);
    uint32_t half, peer;
    cdp__span mine, theirs;
    if (k == 0) return from_in ? 0 : cdp__bring(s, s->count, CDP__OUT, 0, out);
    if (k < first || k == first + 2 * f.bits) { /* as in recursive doubling */
        const bool back = k >= first, odd = s->rank % 2 != 0;
        if (s->rank >= 2 * f.extra) return 0;
        if (odd == back)
            out[0] = cdp__step_send(
                back ? s->rank - 1 : s->rank + 1, (uint8_t)(fresh ? CDP__IN : CDP__OUT), all);
        else
            out[0] = cdp__step_make(back ? CDP__RECV : CDP__RECV_REDUCE,
                (int32_t)(back ? s->rank + 1 : s->rank - 1), fresh ? CDP__IN : 0, CDP__OUT, 0, 0,
                all.len);
        if (!back && odd) out[0].flags = CDP__SRC_FIRST;
        return 1;
    }
    if (f.id < 0) return 0;
    half = 1u << (j < f.bits ? f.bits - 1 - j : j - f.bits);
    peer = id ^ half;
    mine = cdp__rabenseifner_range(s, f.bits, id & ~(half - 1), half);
    theirs = cdp__rabenseifner_range(s, f.bits, peer & ~(half - 1), half);
    peer = peer < f.extra ? 2 * peer + 1 : peer + f.extra;
    if (j >= f.bits) {
        out[0] = cdp__step_send(peer, CDP__OUT, mine);
        out[1] = cdp__step_recv(peer, CDP__OUT, theirs);
        return 2;
    }
    out[0] = cdp__step_send(peer, (uint8_t)(fresh ? CDP__IN : CDP__OUT), theirs);
    out[1] = cdp__step_make(CDP__RECV_REDUCE, (int32_t)peer, fresh ? CDP__IN : 0, CDP__OUT,
        mine.off, mine.off, mine.len);
    out[1].flags = peer < s->rank ? CDP__SRC_FIRST : 0;
    if (half > 1) return 2;
    return 2 + cdp__average(s, CDP__OUT, mine.off, mine.len, out + 2);
}

/* For ranks that read each other's memory: each rank reads its part of all vectors in place and
   combines CDP__DIRECT_WIDTH of them at once, so that the result is written once; then it copies
   the finished parts in the same way. Elements are combined in the order of the ring, or of
   pairwise exchange, so the result has the same bits. */
#define CDP__DIRECT_WIDTH 3u /* two messages per peer, and a division, make a round */

CDP__PRIVATE uint32_t cdp__direct_waves(const cdp__shape *s) {
    return (s->size - 1 + CDP__DIRECT_WIDTH - 1) / CDP__DIRECT_WIDTH;
}
CDP__PRIVATE uint32_t cdp__direct_rounds(const cdp__shape *s) {
    return 1 + cdp__direct_waves(s) * (s->kind == CDP_COLL_ALLREDUCE ? 2 : 1);
}

/* The buffer that peers read. `copies`: the reduction is over, or there is none. */
CDP__PRIVATE uint8_t cdp__direct_source(const cdp__shape *s, bool copies) {
    if (s->kind == CDP_COLL_REDUCE_SCATTER && !s->in_place)
        return s->op == CDP_REDUCE_PREMUL_SUM ? CDP__TMP : CDP__IN;
    return s->kind == CDP_COLL_ALLREDUCE && !copies && cdp__reads_in(s) ? CDP__IN : CDP__OUT;
}

CDP__PRIVATE uint32_t cdp__direct_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t n = s->size, r = s->rank, waves = cdp__direct_waves(s);
    const bool scatter = s->kind == CDP_COLL_REDUCE_SCATTER, gather = s->kind == CDP_COLL_ALLGATHER,
               copies = gather || k > waves;
    const uint8_t src = cdp__direct_source(s, copies);
    const cdp__span own = cdp__part(s, r);
    const uint64_t result = scatter && !s->in_place ? 0 : own.off;
    uint32_t first, d, m = 0;
    if (k == 0 && scatter) return cdp__scatter_reduce_round(s, 0, out);
    if (k == 0 && gather) return cdp__gather_round(s, 0, out);
    if (k == 0) return cdp__ring_round(s, 0, out);
    first = (k > waves ? k - waves - 1 : k - 1) * CDP__DIRECT_WIDTH + 1;
    for (d = first; d < n && d < first + CDP__DIRECT_WIDTH; ++d) {
        const uint32_t above = (r + d) % n, below = (r + n - d) % n, to = scatter ? above : below,
                       from = scatter ? below : above;
        out[m++] = cdp__step_send(to, src, copies ? own : cdp__part(s, to));
        if (copies) {
            out[m++] = cdp__step_recv(from, CDP__OUT, cdp__part(s, from));
            continue;
        }
        out[m] = cdp__step_make(CDP__RECV_REDUCE, (int32_t)from,
            d == 1 && src != CDP__OUT ? src : 0, CDP__OUT, own.off, result, own.len);
        out[m++].flags = (uint8_t)(d > first ? CDP__CHAINED : 0);
    }
    if (!copies && k == waves) m += cdp__average(s, CDP__OUT, result, own.len, out + m);
    return gather ? cdp__gather_own(s, k, m, out) : m;
}

/* For small operations of ranks that share memory: every rank sends its vector to all others at
   once, so that each sleeping rank is woken once, and combines all vectors in TMP along the tree
   of recursive doubling. The list of messages and local steps is cut into rounds; up to 4 ranks
   need one round (and one before it to scale). */
CDP__PRIVATE uint32_t cdp__once_units(const cdp__shape *s) {
    return 2 * (s->size - 1)
        + (s->kind == CDP_COLL_ALLREDUCE ? s->size + 2 : s->kind == CDP_COLL_ALLGATHER);
}
CDP__PRIVATE uint32_t cdp__once_before(const cdp__shape *s) {
    return s->op == CDP_REDUCE_PREMUL_SUM && s->size > 1;
}
CDP__PRIVATE uint32_t cdp__once_rounds(const cdp__shape *s) {
    return cdp__once_before(s)
        + (s->size > 1 ? (cdp__once_units(s) + CDP__ROUND_MAX - 1) / CDP__ROUND_MAX : 1);
}
CDP__PRIVATE uint64_t cdp__once_tmp(const cdp__shape *s) {
    return s->kind == CDP_COLL_ALLREDUCE && s->size > 1 ? s->size * s->count : 0;
}

/* Step t of the tree's n-1. Ranks beyond the power of two fold first; a combined pair is kept in
   the place of the lower rank. */
CDP__PRIVATE cdp__step cdp__once_combine(const cdp__shape *s, uint32_t t) {
    const cdp__fold f = cdp__fold_of(s);
    uint32_t stride = 1, half = (1u << f.bits) / 2, left = 2 * t, right = 2 * t + 1;
    if (t >= f.extra) {
        for (t -= f.extra; t >= half; half /= 2, stride *= 2)
            t -= half;
        left = 2 * stride * t;
        right = left + stride;
        left += left < f.extra ? left : f.extra;
        right += right < f.extra ? right : f.extra;
    }
    return cdp__step_make(
        CDP__REDUCE, -1, CDP__TMP, CDP__TMP, right * s->count, left * s->count, s->count);
}

CDP__PRIVATE uint32_t cdp__once_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t n = s->size, r = s->rank, before = cdp__once_before(s), pairs = n - 1,
                   units = cdp__once_units(s);
    const bool gather = s->kind == CDP_COLL_ALLGATHER, reduce = s->kind == CDP_COLL_ALLREDUCE,
               cast = s->kind == CDP_COLL_BROADCAST;
    const uint8_t whole = s->in_place || cast ? CDP__OUT : CDP__IN;
    const uint8_t mine = before ? (uint8_t)CDP__TMP : whole;
    const uint64_t length = reduce || cast ? s->count : 0;
    const cdp__span own = gather ? cdp__part(s, r) : cdp__first(length);
    const uint64_t whole_at = gather && s->in_place ? own.off : 0;
    const uint64_t mine_at = before ? r * s->count : whole_at;
    uint32_t m = 0, u = (k - before) * CDP__ROUND_MAX;
    if (n == 1 && gather) return cdp__gather_round(s, 0, out);
    if (n == 1) return reduce ? cdp__bring(s, s->count, CDP__OUT, 0, out) : 0;
    if (k < before) return cdp__bring(s, own.len, CDP__TMP, r * s->count, out);
    for (; u < units && u < (k - before + 1) * CDP__ROUND_MAX; ++u) {
        const uint32_t to = (r + u / 2 + 1) % n, from = (r + n - u / 2 - 1) % n,
                       step = u - 2 * pairs;
        const cdp__span theirs = gather ? cdp__part(s, from) : own;
        if (cast && (u % 2 ? from : r) != s->root) continue;
        if (u < 2 * pairs && u % 2 == 0)
            out[m++] = cdp__step_make(CDP__SEND, (int32_t)to, mine, 0, mine_at, 0, own.len);
        else if (u < 2 * pairs)
            out[m++] = cdp__step_make(CDP__RECV, (int32_t)from, 0, reduce ? CDP__TMP : CDP__OUT, 0,
                reduce ? from * s->count : theirs.off, theirs.len);
        else if (step == 0 && !before && !(gather && s->in_place))
            out[m++] = cdp__step_make(CDP__COPY, -1, mine, reduce ? CDP__TMP : CDP__OUT, mine_at,
                reduce ? r * s->count : own.off, own.len);
        else if (step && step < n)
            out[m++] = cdp__once_combine(s, step - 1);
        else if (step == n)
            m += cdp__average(s, CDP__TMP, 0, s->count, out + m);
        else if (step == n + 1)
            out[m++] = cdp__step_make(CDP__COPY, -1, CDP__TMP, CDP__OUT, 0, 0, s->count);
    }
    return m;
}

#endif /* CDP_FEW_ALGORITHMS */

#endif /* CDP_SRC_COLLECTIVE_ROUNDS_BY_SIZE_H */
