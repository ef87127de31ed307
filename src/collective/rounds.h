/* collective/rounds.h - collectives as rounds of steps (pure)

   Knows: numbers of ranks and elements. Promises: the contract below. */
#ifndef CDP_SRC_COLLECTIVE_ROUNDS_H
#define CDP_SRC_COLLECTIVE_ROUNDS_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "kinds.h"

/* An algorithm is a function of (shape, round) that lists the steps of one rank in one round.
   The contract:
   1. The messages of a round (SEND, RECV, RECV_REDUCE) are posted together. When all of them are
     done, the local steps (COPY, REDUCE, DIVIDE, SCALE, COMBINE) run in their order, then the next
     round.
   2. What one rank sends in round k, its peer receives in round k, with equal length. A round has
     at most one message per ordered pair of ranks.
   3. No message of a round writes a range that another message of that round reads or writes.
   4. The order of operands is fixed by rank, so all ranks compute the same bits, in every run.
   5. A RECV_REDUCE combines the received elements with those at its destination or, if it names
     a source, with those at its source.
   6. Exception to 3: several RECV_REDUCE may share a destination if all but the first are marked
     CDP__CHAINED. Then each element is combined in the order in which the steps are listed.
   7. A COPY from IN that is listed last may run while the messages are in flight, because none
     of them touches its destination. No algorithm relies on buffering: a send may complete only
     after its receive is posted. */
typedef enum cdp__step_kind {
    CDP__SEND = 1,
    CDP__RECV,
    CDP__RECV_REDUCE,
    CDP__COPY,
    CDP__REDUCE,
    CDP__DIVIDE,
    CDP__SCALE,
    /* combines one slice per rank, in the order of the ranks and `stride` apart in the source, into
       the destination, as >>dtype/slices does */
    CDP__COMBINE,
    /* only of the executor, before and after the rounds of an algorithm: from IN to the dtype of
       the computation, and from that to OUT */
    CDP__WIDEN,
    CDP__NARROW
} cdp__step_kind;
typedef enum cdp__buffer {
    CDP__IN = 1,
    CDP__OUT,
    CDP__TMP
} cdp__buffer;

#define CDP__SRC_FIRST 1u /* step flag: the source is the left operand */
/* step flag: has the destination of the RECV_REDUCE listed before it, and is combined after it */
#define CDP__CHAINED 2u

typedef struct cdp__step { /* relocatable: offsets and lengths in elements, never pointers */
    uint64_t src_off, dst_off, len;
    uint64_t stride; /* of COMBINE */
    int32_t peer;    /* -1 for local steps */
    uint8_t kind, src, dst, flags;
} cdp__step;

/* Which ranks of a group share a host, 2 bytes per rank. Exists only for groups that span
   several hosts and have several ranks on at least one. */
typedef struct cdp__hosts {
    uint32_t count, fewest, most; /* number of hosts; ranks of the host with the fewest, the most */
    /* ranks host by host, ordered by each host's lowest rank; the first rank of a host is marked */
    uint16_t *ranks;
} cdp__hosts;
#define CDP__HOST_BEGINS 0x8000u

typedef struct cdp__shape {
    cdp_coll_kind kind;
    cdp_reduce_op op;
    cdp_dtype partial; /* of partial results; the choice of the algorithm depends on it */
    uint32_t rank, size, root;
    /* number of parts that a vector is cut into; 0: one per rank */
    uint32_t lanes;
    const cdp__hosts *hosts; /* NULL: all on one host, or irrelevant */
    uint64_t count;          /* elements, as in cdp_request */
    bool in_place;
    /* where part i begins, size + 1 entries; NULL: at i * count */
    const uint64_t *in_offs, *out_offs;
} cdp__shape;

#define CDP__ROUND_MAX 12u

typedef struct cdp__algo {
    const char *name;
    cdp_coll_kind kind;
    /* the bits of the result depend on the inputs alone, not on the length of the message nor on
       the position of an element in it */
    bool fixed;
    /* number of rounds; equal on all ranks */
    uint32_t (*rounds)(const cdp__shape *s);
    /* lists the steps of round k, returns how many */
    uint32_t (*round)(const cdp__shape *s, uint32_t k, cdp__step out[CDP__ROUND_MAX]);
    /* elements of scratch memory (TMP) */
    uint64_t (*tmp_len)(const cdp__shape *s);
} cdp__algo;

typedef struct cdp__span {
    uint64_t off, len;
} cdp__span;

/* Part i when `count` elements are cut into parts that differ by at most one element. There are
   s->lanes parts (if 0, s->size); ranks beyond that number have none. */
CDP__PRIVATE cdp__span cdp__cut(const cdp__shape *s, uint32_t i) {
    const uint32_t n = s->lanes ? s->lanes : s->size;
    const uint64_t q = s->count / n, rest = s->count % n;
    cdp__span p;
    p.off = i < n ? i * q + cdp__min(i, rest) : s->count;
    p.len = i < n ? q + (i < rest) : 0;
    return p;
}

/* For collectives in which each rank has a part of its own: where rank i's part begins, the
   parts of ranks `from` to `to` - 1, and the part of rank i. */
CDP__PRIVATE uint64_t cdp__edge(const cdp__shape *s, const uint64_t *offs, uint32_t i) {
    return offs ? offs[i] : i * s->count;
}

CDP__PRIVATE CDP__ONE_COPY cdp__span cdp__blocks(
    const cdp__shape *s, const uint64_t *offs, uint32_t from, uint32_t to) {
    cdp__span p;
    p.off = cdp__edge(s, offs, from);
    p.len = cdp__edge(s, offs, to) - p.off;
    return p;
}

CDP__PRIVATE cdp__span cdp__block_of(const cdp__shape *s, const uint64_t *offs, uint32_t i) {
    return cdp__blocks(s, offs, i, i + 1);
}

/* The part of rank i: the one that it begins or ends with or, where all ranks begin and end with
   everything, a piece of that. (Ranks of an alltoall have two: use cdp__block_of().) */
CDP__PRIVATE cdp__span cdp__part(const cdp__shape *s, uint32_t i) {
    if (cdp__kind_parts_in(s->kind)) return cdp__block_of(s, s->in_offs, i);
    if (cdp__kind_parts_out(s->kind)) return cdp__block_of(s, s->out_offs, i);
    return cdp__cut(s, i);
}

CDP__PRIVATE cdp__span cdp__first(uint64_t len) {
    cdp__span p;
    p.off = 0;
    p.len = len;
    return p;
}

CDP__PRIVATE cdp__step cdp__step_make(uint8_t kind, int32_t peer, uint8_t src, uint8_t dst,
    uint64_t src_off, uint64_t dst_off, uint64_t len) {
    cdp__step t;
    t.kind = kind;
    t.peer = peer;
    t.src = src;
    t.dst = dst;
    t.src_off = src_off;
    t.dst_off = dst_off;
    t.len = len;
    t.stride = 0;
    t.flags = 0;
    return t;
}

CDP__PRIVATE cdp__step cdp__step_send(uint32_t peer, uint8_t buf, cdp__span p) {
    return cdp__step_make(CDP__SEND, (int32_t)peer, buf, 0, p.off, 0, p.len);
}

CDP__PRIVATE cdp__step cdp__step_recv(uint32_t peer, uint8_t buf, cdp__span p) {
    return cdp__step_make(CDP__RECV, (int32_t)peer, 0, buf, 0, p.off, p.len);
}

/* Round 0 of most algorithms: copies the first `len` elements of this rank's input to the buffer
   that the next rounds work on, and scales them for PREMUL_SUM. */
CDP__PRIVATE uint32_t cdp__bring(
    const cdp__shape *s, uint64_t len, uint8_t dst, uint64_t dst_off, cdp__step out[]) {
    const uint8_t src = s->in_place ? CDP__OUT : CDP__IN;
    uint32_t n = 0;
    if (src != dst || dst_off) out[n++] = cdp__step_make(CDP__COPY, -1, src, dst, 0, dst_off, len);
    if (s->op == CDP_REDUCE_PREMUL_SUM)
        out[n++] = cdp__step_make(CDP__SCALE, -1, 0, dst, 0, dst_off, len);
    return n;
}

/* Divides `len` elements of a complete sum by the number of ranks if the average is wanted. Returns
   the number of steps, 0 or 1. */
CDP__PRIVATE CDP__ONE_COPY uint32_t cdp__average(
    const cdp__shape *s, uint8_t buf, uint64_t off, uint64_t len, cdp__step *out) {
    if (s->op != CDP_REDUCE_AVG) return 0;
    *out = cdp__step_make(CDP__DIVIDE, -1, 0, buf, 0, off, len);
    return 1;
}

CDP__PRIVATE uint32_t cdp__log2_up(uint32_t n) {
    uint32_t k = 0;
    while ((1ull << k) < n)
        ++k;
    return k;
}

CDP__PRIVATE uint64_t cdp__no_tmp(const cdp__shape *s) {
    (void)s;
    return 0;
}

/* Ring allreduce (Patarasuk, Yuan 2009): optimal in bytes. n parts travel round the ring. In n-1
   rounds each part collects the contribution of one rank after the other; in n-1 more rounds the
   ranks pass on the finished parts. With 3 ranks, part -> what the rank holds:
       start        round 1             round 2             rounds 3, 4
       r0: a0       r0: part 2 = r2+r0  part 1 complete     the finished parts are passed on
   Sender and receiver of a round agree, because in round k rank r receives the part that rank
   r-1 sends. */
CDP__PRIVATE uint32_t cdp__ring_rounds(const cdp__shape *s) {
    return 1 + 2 * (s->size - 1);
}

/* True if this rank's input need not be copied first: it is combined in place with received
   data. */
CDP__PRIVATE bool cdp__reads_in(const cdp__shape *s) {
    return !s->in_place && s->op != CDP_REDUCE_PREMUL_SUM && s->size > 1;
}

/* Rounds 1 .. n-1, in buffer `work`. Afterwards rank r holds the finished part r+1. */
CDP__PRIVATE uint32_t cdp__ring_reduce(
    const cdp__shape *s, uint32_t k, uint8_t work, cdp__step out[]) {
    const uint32_t n = s->size, r = s->rank, send = (r + n - (k - 1)) % n;
    const cdp__span p = cdp__part(s, (send + n - 1) % n);
    const bool from_in = cdp__reads_in(s);
    out[0] = cdp__step_send(
        (r + 1) % n, from_in && k == 1 ? (uint8_t)CDP__IN : work, cdp__part(s, send));
    out[1] = cdp__step_make(CDP__RECV_REDUCE, (int32_t)((r + n - 1) % n), from_in ? CDP__IN : 0,
        work, p.off, p.off, p.len);
    out[1].flags = CDP__SRC_FIRST; /* the running value stays the left operand all the way round */
    if (k != n - 1) return 2;
    /* this part has just been completed: divide it here, once */
    return 2 + cdp__average(s, work, p.off, p.len, out + 2);
}

CDP__PRIVATE uint32_t cdp__ring_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    /* which part, in rounds n .. 2n-2 */
    const uint32_t n = s->size, r = s->rank, send = (r + 2 * n - k + 1) % n;
    if (k == 0) return cdp__reads_in(s) ? 0 : cdp__bring(s, s->count, CDP__OUT, 0, out);
    if (k < n) return cdp__ring_reduce(s, k, CDP__OUT, out);
    out[0] = cdp__step_send((r + 1) % n, CDP__OUT, cdp__part(s, send));
    out[1] = cdp__step_recv((r + n - 1) % n, CDP__OUT, cdp__part(s, (send + n - 1) % n));
    return 2;
}

/* Recursive doubling (Thakur, Rabenseifner, Gropp 2005): log2 n rounds of the whole vector, for
   small messages. Each rank beyond the largest power of two first adds its vector to a
   neighbour's ("folds"), and receives the result at the end. */
typedef struct cdp__fold {
    uint32_t extra; /* ranks beyond the power of two */
    uint32_t bits;  /* log2 of the power of two */
    int32_t id;     /* this rank's number among the 2^bits; -1: folded, takes no part */
} cdp__fold;

CDP__PRIVATE cdp__fold cdp__fold_of(const cdp__shape *s) {
    cdp__fold f;
    f.bits = 0;
    while ((2ull << f.bits) <= s->size)
        ++f.bits;
    f.extra = s->size - (1u << f.bits);
    if (s->rank >= 2 * f.extra)
        f.id = (int32_t)(s->rank - f.extra);
    else
        f.id = s->rank % 2 ? (int32_t)(s->rank / 2) : -1;
    return f;
}

CDP__PRIVATE uint32_t cdp__doubling_rounds(const cdp__shape *s) {
    const cdp__fold f = cdp__fold_of(s);
    return 1 + f.bits + (f.extra ? 2 : 0);
}

CDP__PRIVATE uint64_t cdp__doubling_tmp(const cdp__shape *s) {
    return s->size > 1 ? s->count : 0;
}

/* Receives a whole vector into TMP and combines it; the lower rank's vector is the left operand. */
CDP__PRIVATE uint32_t cdp__combine(const cdp__shape *s, uint32_t peer, cdp__step out[]) {
    cdp__span all;
    all.off = 0;
    all.len = s->count;
    out[0] = cdp__step_recv(peer, CDP__TMP, all);
    out[1] = cdp__step_make(CDP__REDUCE, -1, CDP__TMP, CDP__OUT, 0, 0, s->count);
    out[1].flags = peer < s->rank ? CDP__SRC_FIRST : 0;
    return 2;
}

CDP__PRIVATE uint32_t cdp__doubling_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const cdp__fold f = cdp__fold_of(s);
    const uint32_t first = f.extra ? 2 : 1; /* the first doubling round */
    cdp__span all;
    uint32_t m, id, peer;
    all.off = 0;
    all.len = s->count;
    if (k == 0) return cdp__bring(s, s->count, CDP__OUT, 0, out);
    if (k < first || k == first + f.bits) { /* fold, or send the result to the folded rank */
        const bool back = k != 1;
        if (s->rank >= 2 * f.extra) return 0;
        if ((s->rank % 2 == 0) == back) {
            if (!back) return cdp__combine(s, s->rank - 1, out);
            out[0] = cdp__step_recv(s->rank + 1, CDP__OUT, all);
            return 1;
        }
        out[0] = cdp__step_send(back ? s->rank - 1 : s->rank + 1, CDP__OUT, all);
        return 1;
    }
    if (f.id < 0) return 0;
    id = (uint32_t)f.id ^ (1u << (k - first));
    peer = id < f.extra ? 2 * id + 1 : id + f.extra;
    m = cdp__combine(s, peer, out);
    out[m++] = cdp__step_send(peer, CDP__OUT, all);
    if (k + 1 == first + f.bits) m += cdp__average(s, CDP__OUT, 0, s->count, out + m);
    return m;
}

/* Binomial tree: in round k, each of the 2^k ranks that have the data (counted from the root)
   sends it to one more rank. */
CDP__PRIVATE uint32_t cdp__log_rounds(const cdp__shape *s) {
    return cdp__log2_up(s->size);
}

CDP__PRIVATE uint32_t cdp__tree_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t n = s->size, v = (s->rank + n - s->root) % n, half = 1u << k;
    cdp__span all;
    all.off = 0;
    all.len = s->count;
    if (v < half && half < n - v)
        out[0] = cdp__step_send((s->rank + half) % n, CDP__OUT, all);
    else if (v >= half && v - half < half)
        out[0] = cdp__step_recv((s->rank + n - half) % n, CDP__OUT, all);
    else
        return 0;
    return 1;
}

/* Ring allgather: in every round each rank passes on the part that it received last. It sends
   its own part straight from the input, and copies it meanwhile. */
CDP__PRIVATE uint32_t cdp__gather_rounds(const cdp__shape *s) {
    return s->size;
}

/* Makes all sends among the m steps read this rank's own part from the input; in the first round
   also adds its copy to the output. Returns the number of steps. */
CDP__PRIVATE CDP__ONE_COPY uint32_t cdp__gather_own(
    const cdp__shape *s, uint32_t k, uint32_t m, cdp__step out[]) {
    const cdp__span own = cdp__part(s, s->rank);
    uint32_t i;
    if (s->in_place) return m;
    for (i = 0; i < m; ++i)
        if (out[i].kind == CDP__SEND) {
            out[i].src = CDP__IN;
            out[i].src_off = 0;
        }
    if (k <= 1) out[m++] = cdp__step_make(CDP__COPY, -1, CDP__IN, CDP__OUT, 0, own.off, own.len);
    return m;
}

CDP__PRIVATE uint32_t cdp__gather_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t n = s->size, r = s->rank;
    if (k == 0) return n > 1 ? 0 : cdp__gather_own(s, 0, 0, out);
    out[0] = cdp__step_send((r + 1) % n, CDP__OUT, cdp__part(s, (r + n - (k - 1)) % n));
    out[1] = cdp__step_recv((r + n - 1) % n, CDP__OUT, cdp__part(s, (r + n - k) % n));
    return k == 1 ? cdp__gather_own(s, 1, 2, out) : 2;
}

/* Binomial tree towards the root: in round k+1, every second remaining rank (counted from the
   root) sends its sum to the rank before it. The root works in OUT, the others in TMP, because
   their OUT must not change. */
CDP__PRIVATE uint8_t cdp__reduce_buffer(const cdp__shape *s) {
    return s->rank == s->root ? CDP__OUT : CDP__TMP;
}
CDP__PRIVATE uint64_t cdp__reduce_tmp(const cdp__shape *s) {
    return s->rank == s->root ? 0 : s->count;
}
CDP__PRIVATE uint32_t cdp__reduce_tree_rounds(const cdp__shape *s) {
    return 1 + cdp__log2_up(s->size);
}

CDP__PRIVATE uint32_t cdp__reduce_tree_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t n = s->size, v = (s->rank + n - s->root) % n, stride = k ? 1u << (k - 1) : 0;
    const uint8_t work = cdp__reduce_buffer(s);
    uint32_t m = 0;
    if (k == 0) return cdp__bring(s, s->count, work, 0, out);
    if (v % (2 * stride) == stride) {
        out[m++] = cdp__step_send((s->rank + n - stride) % n, work, cdp__first(s->count));
    } else if (v % (2 * stride) == 0 && stride < n - v) {
        out[m] = cdp__step_recv((s->rank + stride) % n, work, cdp__first(s->count));
        out[m++].kind = CDP__RECV_REDUCE;
    }
    if (v == 0 && 2ull * stride >= n) m += cdp__average(s, work, 0, s->count, out + m);
    return m;
}

/* Gather and scatter: in each round the root exchanges one part with one other rank. All parts
   are in the root's OUT (gather) or IN (scatter). */
CDP__PRIVATE uint32_t cdp__linear_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const bool root = s->rank == s->root, gather = s->kind == CDP_COLL_GATHER;
    const uint32_t other = (s->root + k) % s->size;
    const cdp__span own = cdp__part(s, s->rank);
    const uint8_t parts = gather || s->in_place ? CDP__OUT : CDP__IN;
    if (k == 0) {
        if (!root || s->in_place) return 0;
        out[0] = cdp__step_make(
            CDP__COPY, -1, CDP__IN, CDP__OUT, gather ? 0 : own.off, gather ? own.off : 0, own.len);
        return 1;
    }
    if (root)
        out[0] = gather ? cdp__step_recv(other, parts, cdp__part(s, other))
                        : cdp__step_send(other, parts, cdp__part(s, other));
    else if (s->rank == other)
        out[0] = gather ? cdp__step_send(s->root, CDP__IN, cdp__first(own.len))
                        : cdp__step_recv(s->root, CDP__OUT, cdp__first(own.len));
    else
        return 0;
    return 1;
}

/* Pairwise exchange: in round k every rank sends to the rank k after it and receives from the
   rank k before it. Reduce-scatter combines received data with its own part in the order r, r-1,
   r-2, ...; only PREMUL_SUM needs scratch memory, for the scaled input. */
CDP__PRIVATE CDP__ONE_COPY uint64_t cdp__pairwise_tmp(const cdp__shape *s) {
    if (s->kind != CDP_COLL_REDUCE_SCATTER || s->op != CDP_REDUCE_PREMUL_SUM || s->in_place)
        return 0;
    return s->in_offs ? s->in_offs[s->size] : s->size * s->count;
}

CDP__PRIVATE uint32_t cdp__scatter_reduce_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t n = s->size, r = s->rank;
    const bool scaled = s->op == CDP_REDUCE_PREMUL_SUM;
    const uint8_t outside = scaled ? CDP__TMP : CDP__IN,
                  src = s->in_place ? (uint8_t)CDP__OUT : outside;
    const cdp__span own = cdp__part(s, r), result = s->in_place ? own : cdp__first(own.len);
    uint32_t m = 0;
    if (k == 0) {
        if (scaled) m = cdp__bring(s, cdp__edge(s, s->in_offs, n), src, 0, out);
        if (n == 1 && !s->in_place)
            out[m++] = cdp__step_make(CDP__COPY, -1, src, CDP__OUT, own.off, 0, own.len);
    } else {
        out[m++] = cdp__step_send((r + k) % n, src, cdp__part(s, (r + k) % n));
        out[m++] = cdp__step_make(CDP__RECV_REDUCE, (int32_t)((r + n - k) % n),
            k == 1 && !s->in_place ? src : 0, CDP__OUT, own.off, result.off, result.len);
    }
    if (k && k == n - 1) m += cdp__average(s, CDP__OUT, result.off, result.len, out + m);
    return m;
}

/* The rank to send to (`back`: to receive from) at distance `stride`. With 2, 4, 8, ... ranks
   both are the same rank, so that only two ranks wait for each other; if they share a core, a
   barrier takes about a fifth less time than with a ring. */
CDP__PRIVATE uint32_t cdp__partner(const cdp__shape *s, uint32_t stride, bool back) {
    const uint32_t n = s->size, onward = back ? n - stride : stride;
    return n & (n - 1) ? (s->rank + onward) % n : s->rank ^ stride;
}

CDP__PRIVATE uint32_t cdp__alltoall_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t to = cdp__partner(s, k, false), from = cdp__partner(s, k, true);
    const cdp__span there = cdp__block_of(s, s->in_offs, to),
                    here = cdp__block_of(s, s->out_offs, from);
    if (k == 0) {
        out[0] = cdp__step_make(
            CDP__COPY, -1, CDP__IN, CDP__OUT, there.off, here.off, cdp__min(there.len, here.len));
        return 1;
    }
    out[0] = cdp__step_send(to, CDP__IN, there);
    out[1] = cdp__step_recv(from, CDP__OUT, here);
    return 2;
}

/* Dissemination barrier (Hensgen, Finkel, Manber 1988): after round k, every rank has learned,
   directly or through others, that 2^(k+1) ranks have arrived. */
CDP__PRIVATE uint32_t cdp__barrier_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const uint32_t stride = 1u << k;
    cdp__span none;
    none.off = none.len = 0;
    out[0] = cdp__step_send(cdp__partner(s, stride, false), CDP__OUT, none);
    out[1] = cdp__step_recv(cdp__partner(s, stride, true), CDP__OUT, none);
    return 2;
}

#endif /* CDP_SRC_COLLECTIVE_ROUNDS_H */
