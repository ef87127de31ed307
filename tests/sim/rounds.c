/* The proof of the collective algorithms: all ranks' round functions run side by side, without any
   I/O.

   An algorithm is a pure function from (shape, round) to steps, so its correctness does not need a
   network to be shown. For every algorithm, every world size 1..64 (without --all: 1..32 and some)
   and some up to 4,096 (257 where all ranks send to all in one round, 129 of those with parts),
   this checks
     - that all ranks have the same number of rounds, and at most CDP__ROUND_MAX steps in each;
     - that what is sent in a round is received in that round, equally long, at most one message per
       ordered pair: so no buffering is needed at all, and ranks that wait for each other always
       wait for something that comes;
     - that no message of a round writes what another message of that round reads or writes, and
       that every range lies inside its buffer. Messages are moved in pieces of random size and
       order straight from memory to memory, so a hazard also spoils the contents;
     - all that with parts of one length and, where an algorithm takes them, of any lengths, also of
       none;
     - the result: every element is a pair of random 64-bit numbers. One is summed modulo 2^64, so
       that a contribution that is lost or counted twice cannot hide. The other is combined by a
       function that is neither associative nor commutative, and compared with the order of operands
       written down here: so floats get the same bits everywhere;
     - rounds, messages and elements sent per rank against formulas of their own;
     - where ranks share hosts, all that for hosts of as many ranks and of different ones, numbered
       host by host, in turn, and at random; and what crosses the network, per host, against what no
       algorithm can go below.
   The last part plants defects in the round functions and demands that each of them is noticed.

   rounds [--all] [--verbose] [WORDS]     only algorithms with these words in "name (operation)";
                                          up to 129 ranks, and with --all all of the above */
#define CDP_STATIC /* what is not called here is not compiled */
#define CDP_IMPLEMENTATION
#define CDP__WAVE 4u       /* so that a few elements already take several waves */
#define CDP__SCAN_PIECE 4u /* and several pieces */
#include "cdp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct value {
    uint64_t sum, order;
} value;

static uint64_t passed, failed, seed = 1;
static bool verbose;

static uint64_t mix(uint64_t z) { /* the finaliser of splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static uint64_t draw(void) {
    return mix(seed += 0x9e3779b97f4a7c15ull);
}

/* Neither associative nor commutative. */
static value combine(value left, value right) {
    value v;
    v.sum = left.sum + right.sum;
    v.order = mix(3 * left.order + mix(right.order + 0x5bd1e995));
    return v;
}

/* Division by the number of ranks, as far as this proof is concerned: twice is not once, and
   before is not after. */
static value divided(value x) {
    value v;
    v.sum = mix(x.sum + 0x1234567);
    v.order = mix(x.order ^ 0xabcdef);
    return v;
}

static void *zeroed(uint64_t n, uint64_t size) {
    void *m = calloc((size_t)(n ? n : 1), (size_t)size);
    if (!m) abort();
    return m;
}

static bool same(value a, value b) {
    return a.sum == b.sum && a.order == b.order;
}

/* What rank r brings as its element i; nothing is stored. */
static value brought(uint32_t r, uint64_t i) {
    value v;
    v.sum = mix(i * 0x9e3779b97f4a7c15ull + r + 17);
    v.order = mix(v.sum + r);
    return v;
}

/* ---- >>defects ------------------------------------------------------------------------------- */

typedef enum defect_kind {
    D_NONE,
    D_OFFSET,
    D_SHORTER,
    D_LONGER,
    D_PEER,
    D_MISSING,
    D_TWICE,
    D_OPERANDS,
    D_OVERWRITE,
    D_ADD,
    D_NO_SCRATCH,
    D_UNCHAINED,
    D_EXTRA_ROUND,
    D_COUNT
} defect_kind;
static const char *const defect_names[D_COUNT] = {"none", "wrong block", "one element less",
    "one element more", "wrong peer", "missing step", "step twice", "operands swapped",
    "received instead of reduced", "reduced instead of received",
    "received in place instead of into scratch", "not one after the other",
    "one rank has a round more"};

typedef struct defect {
    defect_kind kind;
    uint32_t rank, round, step;
} defect;

/* Applies where it fits; false where it would change nothing that matters. */
static bool spoil(const defect *d, const cdp__shape *s, cdp__step steps[], uint32_t *n) {
    cdp__step *t = &steps[d->step];
    const bool message = t->peer >= 0, reads = t->src != 0,
               reduces = t->kind == CDP__RECV_REDUCE || t->kind == CDP__REDUCE;
    switch (d->kind) {
    case D_OFFSET:
        if (!t->len) return false;
        *(reads && (t->dst == 0 || t->len % 2) ? &t->src_off : &t->dst_off) += 1;
        return true;
    case D_SHORTER:
        if (!t->len) return false;
        --t->len;
        return true;
    case D_LONGER:
        /* between slots of scratch, or over a part that is still to come: harmless */
        if (t->src == CDP__TMP && !message) return false;
        if (t->kind == CDP__COPY && t->dst == CDP__TMP) return false;
        if (t->kind == CDP__COPY && steps[0].peer >= 0) return false;
        /* spoils an element that the next rounds overwrite: harmless */
        if (t->kind == CDP__DIVIDE) return false;
        /* likewise */
        if (t->kind == CDP__COPY && (s->kind == CDP_COLL_ALLTOALL || s->in_place)) return false;
        ++t->len;
        return true;
    case D_PEER:
        if (!message || s->size < 3) return false;
        do
            t->peer = (int32_t)(((uint32_t)t->peer + 1) % s->size);
        while ((uint32_t)t->peer == s->rank);
        return true;
    case D_MISSING:
        if (!message && !t->len) return false;
        memmove(t, t + 1, (*n - d->step - 1) * sizeof *t);
        --*n;
        return true;
    case D_TWICE:
        if ((t->kind == CDP__COPY || t->kind == CDP__COMBINE || !t->len) && !message) return false;
        if (*n == CDP__ROUND_MAX) return false;
        /* into scratch that has been used already: harmless */
        if ((t->kind == CDP__REDUCE || t->kind == CDP__DIVIDE) && t->dst == CDP__TMP
            && d->step + 1 < *n)
            return false;
        steps[(*n)++] = *t;
        return true;
    case D_OPERANDS:
        if (!reduces || !t->len) return false;
        t->flags ^= CDP__SRC_FIRST;
        return true;
    case D_OVERWRITE:
        if (!reduces || !t->len) return false;
        t->kind = t->kind == CDP__REDUCE ? CDP__COPY : CDP__RECV;
        return true;
    case D_ADD:
        if ((t->kind != CDP__RECV && t->kind != CDP__COPY) || !t->len) return false;
        t->kind = t->kind == CDP__COPY ? CDP__REDUCE : CDP__RECV_REDUCE;
        return true;
    case D_NO_SCRATCH:
        if (t->dst != CDP__TMP || !t->len) return false;
        t->dst = CDP__OUT;
        return true;
    case D_UNCHAINED:
        if (!(t->flags & CDP__CHAINED) || !t->len) return false;
        t->flags = 0;
        return true;
    default: return false;
    }
}

/* ---- >>all ranks at once --------------------------------------------------------------------- */

typedef struct proof {
    const cdp__algo *algo;
    cdp__shape shape; /* of every rank but for `rank` */
    bool data;        /* move contents; else only look at the steps */
    const defect *bad;
    bool spoilt; /* the defect found its place */
    uint32_t rounds;
    uint64_t in_len, out_len, tmp_len; /* of the rank that has most */
    bool uneven;                       /* parts of any lengths */
    uint32_t layout;                   /* of ranks on hosts */
    cdp__hosts hosts;
    /* of rank r; which of its ranks, counted from the root on; how many it has */
    uint32_t *host, *spot, *on;
    uint64_t *gone, *come; /* elements that left host h, and that came there */
    /* where they begin: size + 1 numbers; alltoall: as many for each rank's IN and OUT */
    uint64_t *offs;
    value *in, *out, *tmp; /* rank r's part at r * len */
    uint64_t *heard;       /* barrier: a bit per rank, of which ranks it has heard */
    uint32_t heard_words;
    cdp__step *steps; /* [rank * CDP__ROUND_MAX] of this round */
    uint32_t *step_count;
    uint64_t *messages, *elements; /* sent, per rank */
    char why[200];                 /* empty: no objection */
} proof;

static __attribute__((format(printf, 2, 3))) bool object(proof *p, const char *f, ...) {
    va_list ap;
    if (p->why[0]) return false;
    va_start(ap, f);
    vsnprintf(p->why, sizeof p->why, f, ap);
    va_end(ap);
    return false;
}

static bool has_parts(cdp_coll_kind k) {
    return k == CDP_COLL_GATHER || k == CDP_COLL_SCATTER || k == CDP_COLL_REDUCE_SCATTER
        || k == CDP_COLL_ALLTOALL;
}

/* Where part i begins in rank r's IN (`in`) or OUT; i == size: where the last one ends. */
static uint64_t off_of(const proof *p, bool in, uint32_t r, uint32_t i) {
    if (!p->offs) return i * p->shape.count;
    return p
        ->offs[p->shape.kind == CDP_COLL_ALLTOALL ? (2 * r + !in) * (p->shape.size + 1ull) + i : i];
}
static uint64_t len_of(const proof *p, bool in, uint32_t r, uint32_t i) {
    return off_of(p, in, r, i + 1) - off_of(p, in, r, i);
}

/* Which part element *i of rank r's OUT lies in; *i becomes its place there. */
static uint32_t part_at(const proof *p, uint32_t r, uint64_t *i) {
    uint32_t k = 0;
    if (!p->offs) {
        k = (uint32_t)(*i / p->shape.count);
        *i %= p->shape.count;
        return k;
    }
    while (*i >= off_of(p, false, r, k + 1))
        ++k;
    *i -= off_of(p, false, r, k);
    return k;
}

static cdp__shape shape_of(const proof *p, uint32_t rank) {
    const cdp_coll_kind k = p->shape.kind;
    cdp__shape s = p->shape;
    s.rank = rank;
    s.hosts = p->host ? &p->hosts : NULL;
    if (!p->offs) return s;
    if (k != CDP_COLL_ALLGATHER && k != CDP_COLL_GATHER)
        s.in_offs = &p->offs[k == CDP_COLL_ALLTOALL ? 2 * rank * (s.size + 1ull) : 0];
    if (k != CDP_COLL_SCATTER && k != CDP_COLL_REDUCE_SCATTER)
        s.out_offs = &p->offs[k == CDP_COLL_ALLTOALL ? (2 * rank + 1) * (s.size + 1ull) : 0];
    s.count = len_of(p, s.out_offs == NULL, rank, rank);
    return s;
}

static uint64_t room_of(const proof *p, uint32_t r, uint8_t buffer) {
    const cdp_coll_kind k = p->shape.kind;
    const uint32_t n = p->shape.size;
    const uint64_t all = p->offs ? off_of(p, buffer == CDP__IN, r, n) : 0,
                   own = p->offs && k != CDP_COLL_ALLTOALL ? len_of(p, true, 0, r) : 0;
    if (buffer == CDP__TMP) return p->tmp_len;
    if (!p->offs && buffer == CDP__IN) return p->in_len;
    if (!p->offs) return buffer == CDP__OUT ? p->out_len : 0;
    if (k == CDP_COLL_ALLTOALL) return all;
    if (buffer == CDP__IN && p->shape.in_place) return 0;
    if (buffer == CDP__IN) return k == CDP_COLL_ALLGATHER || k == CDP_COLL_GATHER ? own : all;
    return k == CDP_COLL_ALLGATHER || k == CDP_COLL_GATHER || p->shape.in_place ? all : own;
}

static value *at(const proof *p, uint32_t rank, uint8_t buffer, uint64_t off) {
    if (buffer == CDP__IN) return p->in + rank * p->in_len + off;
    if (buffer == CDP__OUT) return p->out + rank * p->out_len + off;
    return p->tmp + rank * p->tmp_len + off;
}

static bool is_message(const cdp__step *t) {
    return t->kind == CDP__SEND || t->kind == CDP__RECV || t->kind == CDP__RECV_REDUCE;
}

static bool range_fits(proof *p, uint32_t r, uint8_t buffer, uint64_t off, uint64_t len) {
    const uint64_t room = room_of(p, r, buffer);
    if (buffer < CDP__IN || buffer > CDP__TMP)
        return object(p, "rank %u: step uses buffer %u", r, buffer);
    if (buffer == CDP__IN && p->shape.in_place)
        return object(p, "rank %u: reads IN, which is OUT here", r);
    return (off <= room && len <= room - off)
        || object(p, "rank %u: a step reaches beyond its buffer", r);
}

static bool check_step(proof *p, uint32_t r, const cdp__step *t) {
    const bool combines = t->kind == CDP__COMBINE;
    const bool reads = t->kind == CDP__SEND || t->kind == CDP__COPY || t->kind == CDP__REDUCE
        || combines || (t->kind == CDP__RECV_REDUCE && t->src),
               writes = t->kind != CDP__SEND;
    const uint64_t read = t->len + (combines ? (p->shape.size - 1) * t->stride : 0);
    if (t->kind < CDP__SEND || t->kind > CDP__COMBINE)
        return object(p, "rank %u: unknown kind of step", r);
    if (is_message(t) ? t->peer < 0 || (uint32_t)t->peer >= p->shape.size || (uint32_t)t->peer == r
                      : t->peer != -1)
        return object(p, "rank %u: a step has peer %d", r, (int)t->peer);
    if (combines && t->stride < t->len) return object(p, "rank %u: slices overlap", r);
    if (reads && !range_fits(p, r, t->src, t->src_off, t->len ? read : 0)) return false;
    if (writes && !range_fits(p, r, t->dst, t->dst_off, t->len)) return false;
    if (writes && t->dst == CDP__IN) return object(p, "rank %u: writes IN", r);
    if (reads && writes && t->src == t->dst && t->src_off < t->dst_off + t->len
        && t->dst_off < t->src_off + read && t->len)
        return object(p, "rank %u: a local step overlaps itself", r);
    return true;
}

static bool overlap(
    uint8_t buf_a, uint64_t a, uint64_t a_len, uint8_t buf_b, uint64_t b, uint64_t b_len) {
    return buf_a == buf_b && a_len && b_len && a < b + b_len && b < a + a_len;
}

/* Which receive is the first of those that are combined one after the other with this one,
   itself if it stands alone. A chain of messages that do not go to the same range, or are not
   all reduced, is none. */
static uint32_t chained_to(const cdp__step *steps, uint32_t n, uint32_t i) {
    uint32_t before = i;
    if (i >= n || steps[i].kind != CDP__RECV_REDUCE || !(steps[i].flags & CDP__CHAINED)) return i;
    while (before-- > 0 && steps[before].kind != CDP__RECV_REDUCE) {
    }
    if (before == UINT32_MAX || steps[i].src || steps[before].dst != steps[i].dst
        || steps[before].dst_off != steps[i].dst_off || steps[before].len != steps[i].len)
        return i;
    return chained_to(steps, n, before);
}

/* Rules inside one rank's round: ranges of messages do not meet unless both only read; one
   message per peer and way. */
static bool check_round_of(proof *p, uint32_t r) {
    const cdp__step *steps = p->steps + r * CDP__ROUND_MAX;
    const uint32_t n = p->step_count[r];
    uint32_t i, k;
    bool local = false;
    for (i = 0; i < n; ++i) {
        if (!check_step(p, r, &steps[i])) return false;
        local = local || !is_message(&steps[i]);
        for (k = 0; k < i && is_message(&steps[i]); ++k) {
            const cdp__step *a = &steps[i], *b = &steps[k];
            if (!is_message(b)) continue;
            if (a->peer == b->peer && (a->kind == CDP__SEND) == (b->kind == CDP__SEND))
                return object(
                    p, "rank %u: two messages of one round with rank %d", r, (int)a->peer);
            if (a->kind == CDP__SEND && b->kind == CDP__SEND) continue;
            /* one after the other */
            if ((a->flags & CDP__CHAINED) && chained_to(steps, n, k) == chained_to(steps, n, i))
                continue;
            if (overlap(a->kind == CDP__SEND ? a->src : a->dst,
                    a->kind == CDP__SEND ? a->src_off : a->dst_off, a->len,
                    b->kind == CDP__SEND ? b->src : b->dst,
                    b->kind == CDP__SEND ? b->src_off : b->dst_off, b->len))
                return object(p, "rank %u: messages of one round overlap", r);
            if ((a->kind == CDP__RECV_REDUCE && b->kind != CDP__SEND
                    && overlap(a->src, a->src_off, a->len, b->dst, b->dst_off, b->len))
                || (b->kind == CDP__RECV_REDUCE && a->kind != CDP__SEND
                    && overlap(b->src, b->src_off, b->len, a->dst, a->dst_off, a->len)))
                return object(p, "rank %u: an operand is overwritten", r);
        }
    }
    /* may be made at any time */
    for (k = 0; n && steps[n - 1].kind == CDP__COPY && steps[n - 1].src == CDP__IN && k < n; ++k) {
        const cdp__step *a = &steps[k], *c = &steps[n - 1];
        if (is_message(a)
            && ((a->src && overlap(a->src, a->src_off, a->len, c->dst, c->dst_off, c->len))
                || (a->dst && overlap(a->dst, a->dst_off, a->len, c->dst, c->dst_off, c->len))))
            return object(p, "rank %u: a copy that is made meanwhile meets a message", r);
    }
    return true;
}

static const cdp__step *find_receive(const proof *p, uint32_t from, uint32_t to) {
    uint32_t i;
    for (i = 0; i < p->step_count[to]; ++i) {
        const cdp__step *t = &p->steps[to * CDP__ROUND_MAX + i];
        if ((t->kind == CDP__RECV || t->kind == CDP__RECV_REDUCE) && (uint32_t)t->peer == from)
            return t;
    }
    return NULL;
}

/* Every send has its receive and the other way round: as many receives as sends, and a partner
   for each send. */
static bool check_matching(proof *p) {
    uint64_t sends = 0, receives = 0;
    uint32_t r, i;
    for (r = 0; r < p->shape.size; ++r)
        for (i = 0; i < p->step_count[r]; ++i) {
            const cdp__step *t = &p->steps[r * CDP__ROUND_MAX + i], *to;
            if (t->kind == CDP__RECV || t->kind == CDP__RECV_REDUCE) ++receives;
            if (t->kind != CDP__SEND) continue;
            ++sends;
            to = find_receive(p, r, (uint32_t)t->peer);
            if (!to)
                return object(p, "rank %u sends to %d, which does not receive", r, (int)t->peer);
            if (to->len != t->len)
                return object(p, "rank %u sends %llu elements, %d receives %llu", r,
                    (unsigned long long)t->len, (int)t->peer, (unsigned long long)to->len);
            p->messages[r]++;
            p->elements[r] += t->len;
            if (p->host && p->host[r] != p->host[t->peer]) {
                p->gone[p->host[r]] += t->len;
                p->come[p->host[t->peer]] += t->len;
            }
        }
    return sends == receives
        || object(p, "%llu sends, %llu receives", (unsigned long long)sends,
            (unsigned long long)receives);
}

static void move_piece(
    proof *p, uint32_t from, const cdp__step *s, const cdp__step *t, uint64_t start, uint64_t len) {
    const uint32_t to = (uint32_t)s->peer;
    const value *x = at(p, from, s->src, s->src_off + start);
    value *y = at(p, to, t->dst, t->dst_off + start);
    const value *z =
        t->src && t->kind == CDP__RECV_REDUCE ? at(p, to, t->src, t->src_off + start) : y;
    uint64_t i;
    for (i = 0; i < len; ++i)
        if (t->kind == CDP__RECV)
            y[i] = x[i];
        else
            y[i] = t->flags & CDP__SRC_FIRST ? combine(x[i], z[i]) : combine(z[i], x[i]);
}

static const cdp__step *find_send(const proof *p, uint32_t from, uint32_t to) {
    const cdp__step *t = &p->steps[from * CDP__ROUND_MAX];
    while (t->kind != CDP__SEND || (uint32_t)t->peer != to)
        ++t; /* there is one: check_matching */
    return t;
}

static bool in_chain(const proof *p, uint32_t r, uint32_t i) {
    const cdp__step *steps = &p->steps[r * CDP__ROUND_MAX];
    const uint32_t n = p->step_count[r];
    uint32_t k;
    for (k = 0; k < n && !(steps[k].flags & CDP__CHAINED); ++k) {
    }
    if (k == n) return false; /* most have none */
    for (k = 0; k < n; ++k)
        if (k != i && chained_to(steps, n, k) == chained_to(steps, n, i)) return true;
    return false;
}

/* All messages of a round in pieces: first a random part of each, in rank order, then the rest
   from the last rank on. */
static void exchange(proof *p) {
    const uint32_t n = p->shape.size;
    const uint64_t salt = draw();
    uint32_t pass, r, i, w;
    for (pass = 0; pass < 2; ++pass) {
        /* chains: each message up to where the one before it is at most */
        for (r = 0; r < n; ++r) {
            const cdp__step *steps = &p->steps[r * CDP__ROUND_MAX];
            uint64_t part = UINT64_MAX;
            for (i = 0; i < p->step_count[r]; ++i) {
                if (steps[i].kind != CDP__RECV_REDUCE || !in_chain(p, r, i)) continue;
                part = steps[i].len
                    ? mix(salt + r * CDP__ROUND_MAX + i) % (cdp__min(part, steps[i].len) + 1)
                    : 0;
                move_piece(p, (uint32_t)steps[i].peer, find_send(p, (uint32_t)steps[i].peer, r),
                    &steps[i], pass ? part : 0, pass ? steps[i].len - part : part);
            }
        }
        for (r = 0; r < n; ++r) {
            const uint32_t from = pass ? n - 1 - r : r;
            for (i = 0; i < p->step_count[from]; ++i) {
                const cdp__step *s = &p->steps[from * CDP__ROUND_MAX + i], *to;
                const uint64_t part =
                    s->len ? mix(salt + from * CDP__ROUND_MAX + i) % (s->len + 1) : 0;
                if (s->kind != CDP__SEND) continue;
                to = find_receive(p, from, (uint32_t)s->peer);
                if (!in_chain(p, (uint32_t)s->peer,
                        (uint32_t)(to - &p->steps[(uint32_t)s->peer * CDP__ROUND_MAX])))
                    move_piece(p, from, s, to, pass ? part : 0, pass ? s->len - part : part);
            }
        }
    }
    if (!p->heard) return;
    memcpy(p->heard + (size_t)n * p->heard_words, p->heard,
        (size_t)n * p->heard_words * sizeof *p->heard);
    for (r = 0; r < n; ++r)
        for (i = 0; i < p->step_count[r]; ++i) {
            const cdp__step *s = &p->steps[r * CDP__ROUND_MAX + i];
            if (s->kind != CDP__SEND) continue;
            for (w = 0; w < p->heard_words; ++w)
                p->heard[(uint32_t)s->peer * p->heard_words + w] |=
                    p->heard[(n + r) * p->heard_words + w];
        }
}

/* One element of each rank's slice, `stride` apart, along the tree of recursive doubling: written
   here once more, because tree() below knows what each rank brought. */
static value slices(const value *first, uint64_t stride, uint32_t n, uint32_t lo, uint32_t hi) {
    uint32_t two = 1, extra;
    while (two <= n / 2)
        two *= 2;
    extra = n - two;
    if (hi - lo > 1)
        return combine(slices(first, stride, n, lo, lo + (hi - lo) / 2),
            slices(first, stride, n, lo + (hi - lo) / 2, hi));
    if (lo >= extra) return first[(lo + extra) * stride];
    return combine(first[2 * lo * stride], first[(2 * lo + 1) * stride]);
}

static void local_steps(proof *p, uint32_t r) {
    uint32_t two = 1;
    while (two <= p->shape.size / 2)
        two *= 2;
    uint32_t i;
    for (i = 0; i < p->step_count[r]; ++i) {
        const cdp__step *t = &p->steps[r * CDP__ROUND_MAX + i];
        uint64_t k;
        if (is_message(t)) continue;
        for (k = 0; k < t->len; ++k) {
            value *y = at(p, r, t->dst, t->dst_off + k);
            if (t->kind == CDP__DIVIDE)
                *y = divided(*y);
            else if (t->kind == CDP__COMBINE) {
                *y = slices(at(p, r, t->src, t->src_off + k), t->stride, p->shape.size, 0, two);
                if (p->shape.op == CDP_REDUCE_AVG) *y = divided(*y);
            } else if (t->kind == CDP__COPY)
                *y = *at(p, r, t->src, t->src_off + k);
            else
                *y = t->flags & CDP__SRC_FIRST ? combine(*at(p, r, t->src, t->src_off + k), *y)
                                               : combine(*y, *at(p, r, t->src, t->src_off + k));
        }
    }
}

static bool run_round(proof *p, uint32_t k) {
    uint32_t r;
    for (r = 0; r < p->shape.size; ++r) {
        const cdp__shape s = shape_of(p, r);
        cdp__step *steps = p->steps + r * CDP__ROUND_MAX;
        p->step_count[r] = p->algo->round(&s, k, steps);
        if (p->step_count[r] > CDP__ROUND_MAX)
            return object(p, "rank %u: %u steps in round %u", r, p->step_count[r], k);
        if (p->bad && p->bad->rank == r && p->bad->round == k && p->bad->step < p->step_count[r])
            p->spoilt = spoil(p->bad, &s, steps, &p->step_count[r]) || p->spoilt;
    }
    for (r = 0; r < p->shape.size; ++r)
        if (!check_round_of(p, r)) return false;
    if (!check_matching(p)) return false;
    if (!p->data) return true;
    exchange(p);
    for (r = 0; r < p->shape.size; ++r)
        local_steps(p, r);
    return true;
}

/* ---- >>what must come out -------------------------------------------------------------------- */

static bool has_root(cdp_coll_kind k) {
    return k == CDP_COLL_BROADCAST || k == CDP_COLL_REDUCE || k == CDP_COLL_GATHER
        || k == CDP_COLL_SCATTER || k == CDP_COLL_SEND;
}
static bool reduces(cdp_coll_kind k) {
    return k == CDP_COLL_ALLREDUCE || k == CDP_COLL_REDUCE || k == CDP_COLL_REDUCE_SCATTER;
}
static bool is_ring(const proof *p) {
    return strcmp(p->algo->name, "ring") == 0;
}

/* What lies in OUT before: whoever must not write there leaves it. */
static value garbage(uint32_t r, uint64_t i) {
    value v;
    v.sum = mix(i * 31 + r * 0x51ull + 5);
    v.order = mix(v.sum + 1);
    return v;
}

static bool is_fixed(const cdp__algo *a) {
    return strcmp(a->name, "fixed order") == 0;
}
static bool is_doubling(const proof *p) {
    return strcmp(p->algo->name, "recursive doubling") == 0;
}

/* What is combined between hosts is what each has combined before. */
static const proof *between;
static uint32_t between_spot;
static value host_value(const proof *p, uint32_t host, uint32_t spot, uint64_t i);
static value operand(uint32_t r, uint64_t i) {
    return between ? host_value(between, r, between_spot, i) : brought(r, i);
}

static uint32_t power_below(uint32_t n) { /* the largest power of two that is not above n */
    uint32_t k = 1;
    while (k <= n / 2)
        k *= 2;
    return k;
}

/* Recursive doubling: pairs (0,1), (2,3), ... fold first while there are ranks beyond a power of
   two; then a balanced tree over what is left, the lower half always on the left. */
static value tree(uint32_t n, uint32_t lo, uint32_t hi, uint64_t i) {
    const uint32_t extra = n - power_below(n);
    if (hi - lo > 1)
        return combine(tree(n, lo, lo + (hi - lo) / 2, i), tree(n, lo + (hi - lo) / 2, hi, i));
    if (lo < extra) return combine(operand(2 * lo, i), operand(2 * lo + 1, i));
    return operand(lo + extra, i);
}

/* Scans: after round k, rank r has combined ranks r - 2^k + 1 .. r with what it had before on the
   right; in a chain everything from rank 0 on is on the left. `stride`: of the last round. */
static value doubled_prefix(uint32_t r, uint32_t stride, uint64_t i) {
    if (!stride) return operand(r, i);
    if (stride > r) return doubled_prefix(r, stride / 2, i);
    return combine(doubled_prefix(r - stride, stride / 2, i), doubled_prefix(r, stride / 2, i));
}
static value chained_prefix(uint32_t r, uint64_t i) {
    value v = operand(0, i);
    for (uint32_t k = 1; k <= r; ++k)
        v = combine(v, operand(k, i));
    return v;
}

/* which part of the ring element i lies in */
static uint32_t part_of(uint64_t i, uint64_t count, uint32_t n) {
    uint64_t at_ = 0;
    uint32_t k;
    for (k = 0; k + 1 < n; ++k) {
        at_ += count / n + (k < count % n);
        if (i < at_) break;
    }
    return k;
}

/* Reducing along a binomial tree: after round k, rank v (counted from the root) has the sum of v
   .. v + 2^k - 1. */
static value binomial(uint32_t n, uint32_t root, uint32_t v, uint32_t k, uint64_t i) {
    if (k == 0) return operand((v + root) % n, i);
    if (v + (1ull << (k - 1)) >= n) return binomial(n, root, v, k - 1, i);
    return combine(
        binomial(n, root, v, k - 1, i), binomial(n, root, v + (1u << (k - 1)), k - 1, i));
}

/* the ranks from the part's number on, one after the other, from the left */
static value ring_sum(uint32_t n, uint64_t count, uint64_t at_, uint64_t i) {
    const uint32_t first = part_of(at_, count, n);
    value v = operand(first, i);
    uint32_t k;
    for (k = 1; k < n; ++k)
        v = combine(v, operand((first + k) % n, i));
    return v;
}

/* the own part, then that of the ranks before, backwards */
static value pairwise_sum(const proof *p, uint32_t r, uint64_t i) {
    const uint32_t n = p->shape.size;
    value v = operand(r, i);
    uint32_t k;
    for (k = 1; k < n; ++k)
        v = combine(v, operand((r + n - k) % n, i));
    return v;
}

/* Recursive halving: first ranks whose numbers differ in the highest bit are combined, at last
   those that are neighbours. */
static value halved(uint32_t n, uint32_t first, uint32_t step, uint64_t i) {
    const uint32_t two = power_below(n), extra = n - two;
    if (step < two)
        return combine(halved(n, first, 2 * step, i), halved(n, first + step, 2 * step, i));
    return first < extra ? combine(operand(2 * first, i), operand(2 * first + 1, i))
                         : operand(first + extra, i);
}

static uint64_t part_len(const proof *p, uint32_t i) {
    const uint32_t n = p->shape.size;
    return p->shape.count / n + (i % n < p->shape.count % n);
}

/* The algorithms for small messages between many, by name. */
static bool is_of(const cdp__algo *a, const char *name) {
    return strcmp(a->name, name) == 0;
}
static bool is_named(const proof *p, const char *name) {
    return strcmp(p->algo->name, name) == 0;
}
static bool is_direct(const proof *p) {
    return is_named(p, "direct") && p->shape.kind != CDP_COLL_SEND;
}

/* ranks below v in a binomial tree, v with them */
static uint32_t subtree(uint32_t v, uint32_t n) {
    uint32_t far = 1;
    while (v && !(v & far))
        far *= 2;
    return v == 0 ? n : (uint32_t)cdp__min(far, n - v);
}

/* How many messages a rank sends where the first `extra` pairs meet before and after what the
   others do, who send `steps`: only the odd one of a pair takes part in that. */
static uint32_t folded_messages(uint32_t r, uint32_t extra, uint32_t steps) {
    if (r >= 2 * extra) return steps;
    return r % 2 ? steps + 1 : 1;
}

/* Their figures; false: it is another algorithm. */
static bool formula_of_small(
    const proof *p, uint32_t r, uint64_t *rounds, uint64_t *messages, uint64_t *elements) {
    const uint32_t n = p->shape.size, two = power_below(n), extra = n - two;
    const uint64_t c = p->shape.count;
    uint32_t log_up = 0, log_down = 0, far, v = (r + n - p->shape.root) % n;
    while ((1u << log_up) < n)
        ++log_up;
    while ((2u << log_down) <= n)
        ++log_down;
    *rounds = 1 + log_up;
    /* likewise, from the root alone */
    if (is_named(p, "at once") && p->shape.kind == CDP_COLL_BROADCAST) {
        *rounds = n == 1 ? 1 : (2 * (n - 1) + 11) / 12;
        *messages = v ? 0 : n - 1;
        *elements = *messages * c;
        /* everything to everybody, and what is done with it, a dozen steps at a time */
    } else if (is_named(p, "at once")) {
        const bool all = p->shape.kind == CDP_COLL_ALLREDUCE;
        const uint32_t steps = 2 * (n - 1) + (all ? n + 2 : p->shape.kind == CDP_COLL_ALLGATHER);
        *rounds = n == 1 ? 1 : (steps + 11) / 12 + (p->shape.op == CDP_REDUCE_PREMUL_SUM);
        *messages = n - 1;
        *elements = all ? (n - 1) * c : 0;
        if (p->shape.kind == CDP_COLL_ALLGATHER) *elements = (n - 1) * len_of(p, false, 0, r);
    } else if (is_named(p, "Bruck")) {
        *messages = log_up;
        *elements = (n - 1) * c;
    } else if (is_named(p, "spread")) {
        *rounds = (n + 5) / 6; /* of partners, oneself among them, six at a time */
        *messages = n - 1;
        *elements = (n - 1) * c;
        /* everybody's part of the own vector to everybody, three at once; then the own part to
           all */
    } else if (is_direct(p)) {
        const bool all = p->shape.kind == CDP_COLL_ALLREDUCE;
        *rounds = 1 + (n - 1 + 2) / 3 * (all ? 2 : 1);
        *messages = (n - 1) * (all ? 2 : 1);
        if (all)
            *elements = c - part_len(p, r) + (n - 1) * part_len(p, r);
        else if (p->shape.kind == CDP_COLL_ALLGATHER)
            *elements = (n - 1) * len_of(p, false, 0, r);
        else
            *elements = off_of(p, true, 0, n) - len_of(p, true, 0, r);
    } else if (is_named(p, "recursive halving")) {
        *rounds = 1 + log_down + (extra ? 2 : 0);
        *messages = folded_messages(r, extra, log_down);
        *elements = r < 2 * extra && r % 2 == 0 ? n * c : (n - 1) * c;
        /* all but the own part, twice; folded, all once more */
    } else if (is_named(p, "rabenseifner")) {
        const uint32_t id = r < 2 * extra ? r / 2 : r - extra;
        const uint64_t own = c / two + (id < c % two);
        uint64_t passed_on = 0;
        for (far = 1; far < two; far *= 2) /* what it has collected, and hands to the next */
            for (v = id & ~(far - 1); v < (id & ~(far - 1)) + far; ++v)
                passed_on += c / two + (v < c % two);
        *rounds = 1 + 2 * log_down + (extra ? 2 : 0);
        *messages = folded_messages(r, extra, 2 * log_down);
        *elements = c - own + passed_on + (r < 2 * extra ? c : 0);
        if (r < 2 * extra && r % 2 == 0) *elements = c;
    } else if (is_named(p, "binomial tree") && p->shape.kind == CDP_COLL_GATHER) {
        *messages = v != 0;
        *elements = v ? subtree(v, n) * c : 0;
    } else if (is_named(p, "binomial tree") && p->shape.kind == CDP_COLL_SCATTER) {
        for (*messages = 0, far = 1; far < subtree(v, n); far *= 2)
            ++*messages;
        *elements = (subtree(v, n) - 1) * c;
    } else {
        return false;
    }
    return true;
}

/* ---- >>several hosts ---- */

enum {
    BLOCKS,
    TURNS,
    RANDOM
};
static const struct {
    /* BLOCKS: n ranks for each host, what is left for the last; TURNS and RANDOM: n hosts */
    uint32_t how, n;
} layouts[] = {{BLOCKS, 2}, {TURNS, 2}, {BLOCKS, 3}, {RANDOM, 3}, {TURNS, 3}, {BLOCKS, 4},
    {RANDOM, 2}, {TURNS, 5}, {BLOCKS, 8}, {RANDOM, 7}, {TURNS, 16}, {BLOCKS, 64}};
#define LAYOUTS (sizeof layouts / sizeof layouts[0])

static bool on_hosts(const cdp__algo *a) {
    return is_of(a, "hierarchical") || is_of(a, "leaders");
}
static bool wants_even(cdp_coll_kind k) {
    return k == CDP_COLL_ALLGATHER || k == CDP_COLL_REDUCE_SCATTER;
}

/* False: the algorithm is not for this layout. */
static bool lay_out(proof *p) {
    const uint32_t n = p->shape.size, how = layouts[p->layout].how, of = layouts[p->layout].n;
    const uint32_t root =
        p->shape.kind == CDP_COLL_BROADCAST || p->shape.kind == CDP_COLL_REDUCE ? p->shape.root : 0;
    uint32_t r, k, h, at_ = 0;
    p->host = (uint32_t *)zeroed(4ull * n, sizeof *p->host);
    p->spot = p->host + n;
    p->on = p->spot + n;
    p->hosts.ranks = (uint16_t *)zeroed(n, sizeof *p->hosts.ranks);
    p->gone = (uint64_t *)zeroed(2ull * n, sizeof *p->gone);
    p->come = p->gone + n;
    for (r = 0; r < n; ++r) { /* numbered by the host's lowest rank */
        uint32_t there = (uint32_t)(mix(r * 77ull + n * 1000 + of) % of);
        if (how == BLOCKS) there = r / of;
        if (how == TURNS) there = r % of;
        p->host[3 * n + r] = there;
        for (k = 0; k < r && p->host[3 * n + k] != there; ++k) {
        }
        p->host[r] = k < r ? p->host[k] : p->hosts.count++;
        ++p->on[p->host[r]];
    }
    p->hosts.fewest = n;
    for (h = 0; h < p->hosts.count; ++h) {
        const uint32_t first = at_;
        p->hosts.fewest = p->on[h] < p->hosts.fewest ? p->on[h] : p->hosts.fewest;
        p->hosts.most = p->on[h] > p->hosts.most ? p->on[h] : p->hosts.most;
        for (r = 0; r < n; ++r) {
            if (p->host[r] != h) continue;
            p->spot[r] = at_ - first;
            p->hosts.ranks[at_] = (uint16_t)(r | (at_ == first ? CDP__HOST_BEGINS : 0));
            ++at_;
        }
    }
    for (r = 0, k = p->spot[root]; r < n; ++r)
        if (p->host[r] == p->host[root])
            p->spot[r] = (p->spot[r] + p->on[p->host[r]] - k) % p->on[p->host[r]];
    return p->hosts.count > 1 && p->hosts.most > 1
        && (p->hosts.fewest == p->hosts.most || !wants_even(p->shape.kind));
}

static void forget_layout(proof *p) {
    free(p->host);
    free(p->hosts.ranks);
    free(p->gone);
    p->host = NULL;
}

static uint32_t rank_at(const proof *p, uint32_t host, uint32_t spot) {
    uint32_t r = 0;
    while (p->host[r] != host || p->spot[r] != spot)
        ++r;
    return r;
}

static bool in_lanes(const proof *p) {
    return p->shape.kind == CDP_COLL_ALLREDUCE && is_named(p, "hierarchical");
}
static uint64_t lane_len(const proof *p, uint32_t i) {
    return i < p->hosts.fewest
        ? p->shape.count / p->hosts.fewest + (i < p->shape.count % p->hosts.fewest)
        : 0;
}

/* What the ranks of a host combine where `spot` does it: in lanes from that rank on upwards, for
   reduce-scatter downwards, else in a tree. */
static value host_value(const proof *p, uint32_t host, uint32_t spot, uint64_t i) {
    const uint32_t n = p->on[host];
    value v[128];
    uint32_t k, far;
    for (k = 0; k < n; ++k)
        v[k] = brought(
            rank_at(p, host,
                p->shape.kind == CDP_COLL_REDUCE_SCATTER ? (spot + n - k) % n : (spot + k) % n),
            i);
    if (in_lanes(p) || p->shape.kind == CDP_COLL_REDUCE_SCATTER)
        for (k = 1; k < n; ++k)
            v[0] = combine(v[0], v[k]);
    else
        for (far = 1; far < n; far *= 2)
            for (k = 0; k + far < n; k += 2 * far)
                v[k] = combine(v[k], v[k + far]);
    return v[0];
}

static value over_hosts(const proof *p, uint32_t r, uint64_t i) {
    const uint32_t n = p->hosts.count;
    uint32_t lane = 0, k = 0;
    uint64_t at_ = i;
    value v;
    between = p;
    between_spot = 0;
    if (p->shape.kind == CDP_COLL_REDUCE_SCATTER) {
        v = host_value(p, p->host[r], p->spot[r], i);
        for (k = 1; k < n; ++k)
            v = combine(v, host_value(p, (p->host[r] + n - k) % n, p->spot[r], i));
    } else if (in_lanes(p)) {
        while (at_ >= lane_len(p, lane))
            at_ -= lane_len(p, lane++);
        between_spot = lane;
        v = n & (n - 1) ? ring_sum(n, lane_len(p, lane), at_, i) : halved(n, 0, 1, i);
    } else if (p->shape.kind == CDP_COLL_ALLREDUCE) {
        v = tree(n, 0, power_below(n), i);
    } else {
        while ((1u << k) < n)
            ++k;
        v = n > 2 && p->shape.count >= 65536 ? ring_sum(n, p->shape.count, i, i)
                                             : binomial(n, p->host[p->shape.root], 0, k, i);
    }
    between = NULL;
    return v;
}

static uint32_t log2_up(uint32_t n) {
    uint32_t k = 0;
    while ((1ull << k) < n)
        ++k;
    return k;
}

/* to how many in a binomial tree of n, in which it is v */
static uint32_t passes_on(uint32_t v, uint32_t n) {
    uint32_t k, m = 0;
    for (k = 0; (1ull << k) < n; ++k)
        m += v < (1u << k) && v + (1u << k) < n;
    return m;
}

/* False: the number of messages depends on which parts are empty. */
static bool hosts_formula(
    const proof *p, uint32_t r, uint64_t *rounds, uint64_t *messages, uint64_t *elements) {
    const uint32_t n = p->hosts.count, most = p->hosts.most, m = p->on[p->host[r]], v = p->spot[r],
                   waves = (most - 1 + 2) / 3, up = log2_up(n), root = p->host[p->shape.root];
    const uint64_t c = p->shape.count;
    uint64_t lane = 0, i;
    uint32_t k, far, j, sent = 0;
    /* parts of its likes on all hosts */
    for (k = 0; k < n && wants_even(p->shape.kind); ++k)
        lane += len_of(p, p->shape.kind != CDP_COLL_ALLGATHER, 0, rank_at(p, k, v));
    switch (p->shape.kind) {
    case CDP_COLL_ALLGATHER:
        *rounds = 1 + n * waves;
        *messages = n - 1 + n * (m - 1);
        *elements =
            lane - len_of(p, false, 0, rank_at(p, (p->host[r] + 1) % n, v)) + lane * (m - 1);
        return true;
    case CDP_COLL_REDUCE_SCATTER:
        *rounds = n * (waves + 1);
        *messages = n - 1 + n * (m - 1);
        *elements = off_of(p, true, 0, p->shape.size) - len_of(p, true, 0, r);
        return true;
    case CDP_COLL_BROADCAST:
        *rounds = up + log2_up(most);
        *messages = passes_on(v, m) + (v ? 0 : passes_on((p->host[r] + n - root) % n, n));
        break;
    case CDP_COLL_BARRIER:
        *rounds = 1 + up + 2 * log2_up(most);
        *messages = (v != 0) + passes_on(v, m) + (v ? 0 : up);
        break;
    case CDP_COLL_REDUCE:
        *rounds = 1 + log2_up(most) + (n > 2 && c >= 65536 ? 2 * (n - 1) : up);
        *messages = v != 0 || p->host[r] != root;
        if (!v && n > 2 && c >= 65536) {
            *messages = n - 1 + (p->host[r] != root);
            *elements = c - (p->host[r] == root ? c / n + ((root + 1) % n < c % n) : 0);
            return true;
        }
        break;
    default: /* ALLREDUCE */
        far = power_below(n);
        j = n - far; /* beyond a power of two */
        if (!in_lanes(p)) {
            *rounds = 1 + 2 * log2_up(most) + log2_up(far) + (j ? 2 : 0);
            *messages = (v != 0) + passes_on(v, m);
            if (!v) *messages += folded_messages(p->host[r], j, log2_up(far));
            break;
        }
        *rounds = 1 + 2 * waves + (j ? 2 * (n - 1) : 2 * up);
        *elements = c - lane_len(p, v) + (m - 1) * lane_len(p, v);
        lane = lane_len(p, v);
        if (lane && j) { /* a ring */
            *elements += 2 * lane - (lane / n + ((p->host[r] + 1) % n < lane % n))
                - (lane / n + ((p->host[r] + 2) % n < lane % n));
        } else if (lane) { /* halving, then doubling */
            *elements += lane - (lane / n + (p->host[r] < lane % n));
            for (far = 1; far < n; far *= 2)
                for (k = p->host[r] & ~(far - 1); k < (p->host[r] & ~(far - 1)) + far; ++k)
                    *elements += lane / n + (k < lane % n);
        }
        for (i = 0; i < p->hosts.fewest; ++i)
            sent += i != v;
        *messages = sent;
        if (v < p->hosts.fewest) *messages += m - 1 + 2 * (j ? n - 1 : up);
        return c >= (uint64_t)n * p->hosts.fewest;
    }
    *elements = *messages * c;
    return true;
}

/* What crosses the network, per host: no more than must. */
static bool check_network(proof *p) {
    const uint32_t n = p->hosts.count, root = p->host[p->shape.root];
    const uint64_t c = p->shape.count;
    uint64_t all = 0;
    uint32_t r, h;
    for (r = 0; r < p->shape.size && wants_even(p->shape.kind); ++r)
        all += len_of(p, p->shape.kind != CDP_COLL_ALLGATHER, 0, r);
    for (h = 0; h < n; ++h) {
        uint64_t own = 0, out = UINT64_MAX, in = UINT64_MAX;
        for (r = 0; r < p->shape.size && all; ++r)
            own += p->host[r] == h ? len_of(p, p->shape.kind != CDP_COLL_ALLGATHER, 0, r) : 0;
        switch (p->shape.kind) {
        case CDP_COLL_ALLGATHER: in = all - own; break;
        case CDP_COLL_REDUCE_SCATTER: out = all - own; break;
        case CDP_COLL_BROADCAST: in = h == root ? 0 : c; break;
        case CDP_COLL_REDUCE: out = h != root || (n > 2 && c >= 65536) ? c : 0; break;
        /* parts are rounded up */
        case CDP_COLL_ALLREDUCE:
            if (in_lanes(p)) out = in = 2 * (c - c / n) + 2ull * p->hosts.fewest * n;
            break;
        default: break;
        }
        if (p->gone[h] > out || p->come[h] > in)
            return object(p,
                "%llu elements leave host %u, %llu come there; it should be %llu and %llu at most",
                (unsigned long long)p->gone[h], h, (unsigned long long)p->come[h],
                (unsigned long long)out, (unsigned long long)in);
    }
    return true;
}

/* Element i of rank r's result; false where it may be anything. */
static bool expected(const proof *p, uint32_t r, uint64_t i, value *v) {
    const uint32_t n = p->shape.size;
    const bool root = r == p->shape.root;
    const uint64_t own = has_parts(p->shape.kind) ? off_of(p, true, r, r) : 0;
    uint32_t k = 0;
    if (p->host
        && (p->shape.kind == CDP_COLL_ALLREDUCE || (p->shape.kind == CDP_COLL_REDUCE && root)
            || p->shape.kind == CDP_COLL_REDUCE_SCATTER)
        && i < room_of(p, r, CDP__OUT)) {
        if (p->shape.kind == CDP_COLL_REDUCE_SCATTER && p->shape.in_place
            && (i < own || i >= off_of(p, true, r, r + 1)))
            return false;
        *v = over_hosts(
            p, r, p->shape.kind == CDP_COLL_REDUCE_SCATTER && !p->shape.in_place ? own + i : i);
        if (p->shape.op == CDP_REDUCE_AVG) *v = divided(*v);
        return true;
    }
    if (i >= room_of(p, r, CDP__OUT)) return false;
    switch (p->shape.kind) {
    case CDP_COLL_SEND:
    case CDP_COLL_BROADCAST: *v = brought(p->shape.root, i); return true;
    case CDP_COLL_GATHER:
        *v = garbage(r, i);
        if (!root) return true;
        /* fallthrough */
    case CDP_COLL_ALLGATHER:
        k = part_at(p, r, &i);
        *v = brought(k, i);
        return true;
    case CDP_COLL_SCATTER:
        *v = brought(p->shape.root, p->shape.in_place && root ? i : own + i);
        return (p->shape.in_place && root) || i < len_of(p, true, r, r);
    case CDP_COLL_ALLTOALL:
        k = part_at(p, r, &i);
        *v = brought(k, off_of(p, true, k, r) + i);
        return true;
    case CDP_COLL_REDUCE_SCATTER:
        if (p->shape.in_place && (i < own || i >= off_of(p, true, r, r + 1))) return false;
        if (!p->shape.in_place) i += own;
        if (is_fixed(p->algo))
            *v = tree(n, 0, power_below(n), i);
        else
            *v = is_named(p, "recursive halving") ? halved(n, 0, 1, i) : pairwise_sum(p, r, i);
        break;
    case CDP_COLL_SCAN:
    case CDP_COLL_EXSCAN:
        if (p->shape.kind == CDP_COLL_EXSCAN && r-- == 0) {
            *v = p->shape.in_place ? brought(0, i) : garbage(0, i);
            return true;
        }
        *v = is_doubling(p) ? doubled_prefix(r, 1u << 31, i) : chained_prefix(r, i);
        return true;
    case CDP_COLL_REDUCE:
        if (!root) {
            *v = p->shape.in_place ? brought(r, i) : garbage(r, i);
            return true;
        }
        while ((1u << k) < n)
            ++k;
        if (is_fixed(p->algo))
            *v = tree(n, 0, power_below(n), i);
        else if (is_ring(p))
            *v = ring_sum(n, p->shape.count, i, i);
        else
            *v = binomial(n, p->shape.root, 0, k, i);
        break;
    default:
        if (is_named(p, "rabenseifner"))
            *v = halved(n, 0, 1, i);
        else if (is_doubling(p) || is_fixed(p->algo) || is_named(p, "at once"))
            *v = tree(n, 0, power_below(n), i);
        else
            *v = ring_sum(n, p->shape.count, i, i);
        break;
    }
    if (p->shape.op == CDP_REDUCE_AVG && n > 1) *v = divided(*v);
    return true;
}

/* As many elements as the ring, or as pairwise exchange; a message for every slice of at most
   `slot`, five in a round. */
static void fixed_formula(
    const proof *p, uint32_t r, uint64_t *rounds, uint64_t *messages, uint64_t *elements) {
    const uint32_t n = p->shape.size;
    const bool scatter = p->shape.kind == CDP_COLL_REDUCE_SCATTER;
    uint64_t longest = p->shape.count;
    uint32_t i;
    for (i = 0; i < n && p->offs; ++i)
        longest = i && longest > len_of(p, true, 0, i) ? longest : len_of(p, true, 0, i);
    const uint64_t part = scatter ? longest : part_len(p, 0),
                   small = n <= 32 ? 4 : (128 + n - 1) / n;
    const uint64_t slot = part > 1024 * small ? (part + 1023) / 1024 : small,
                   waves = (part + slot - 1) / slot;
    uint64_t last = r != p->shape.root;
    if (p->shape.kind == CDP_COLL_ALLREDUCE) last = n - 1;
    if (scatter) last = 0;
    *rounds = 1;
    *rounds += (waves + !scatter) * ((n + 3) / 5);
    *messages = n == 1 ? 0 : waves * (n - 1) + last;
    /* every part but the own one goes to its rank */
    *elements =
        scatter ? off_of(p, true, 0, n) - len_of(p, true, 0, r) : p->shape.count - part_len(p, r);
    /* and the own one to all others */
    if (p->shape.kind == CDP_COLL_ALLREDUCE) *elements += (n - 1) * part_len(p, r);
    if (p->shape.kind == CDP_COLL_REDUCE && r != p->shape.root) *elements += part_len(p, r);
}

static void formula(
    const proof *p, uint32_t r, uint64_t *rounds, uint64_t *messages, uint64_t *elements) {
    const uint32_t n = p->shape.size, two = power_below(n), extra = n - two;
    const uint64_t c = p->shape.count;
    uint32_t log_up = 0, log_down = 0, v, k;
    while ((1u << log_up) < n)
        ++log_up;
    while ((2u << log_down) <= n)
        ++log_down;
    if (is_fixed(p->algo)) {
        fixed_formula(p, r, rounds, messages, elements);
        return;
    }
    if (formula_of_small(p, r, rounds, messages, elements)) return;
    switch (p->shape.kind) {
    case CDP_COLL_ALLREDUCE:
        if (is_doubling(p)) {
            *rounds = 1 + log_down + (extra ? 2 : 0);
            *messages = folded_messages(r, extra, log_down);
            *elements = *messages * c;
        } else { /* every part but one, twice */
            *rounds = 2 * n - 1;
            *messages = 2 * (n - 1);
            *elements = n > 1 ? 2 * c - part_len(p, r + 1) - part_len(p, r + 2) : 0;
        }
        return;
    case CDP_COLL_SCAN:
    case CDP_COLL_EXSCAN: {
        /* exclusive: a message to the next rank, then as if there were no rank 0 */
        const uint32_t shift = p->shape.kind == CDP_COLL_EXSCAN;
        uint64_t pieces = c / 4 < 8 * (n - 1) ? c / 4 : 8 * (n - 1);
        if (pieces > 512) pieces = 512;
        if (!pieces) pieces = 1;
        if (is_doubling(p)) {
            *messages = shift && r + 1 < n;
            *rounds = 1 + (n > 1 ? shift : 0);
            for (k = 1; k < n - shift; k *= 2) {
                ++*rounds;
                *messages += r >= shift && k < n - r;
            }
            *elements = *messages * c;
        } else { /* everything to the next rank, in pieces */
            *rounds = n > 1 ? n - 1 + pieces : 1;
            *messages = r + 1 < n ? pieces : 0;
            *elements = r + 1 < n ? c : 0;
        }
        return;
    }
    case CDP_COLL_ALLGATHER:
        *rounds = n;
        *messages = n - 1;
        /* what is the next rank's own is not passed to it */
        *elements = off_of(p, false, 0, n) - len_of(p, false, 0, (r + 1) % n);
        return;
    case CDP_COLL_GATHER:
        *rounds = n;
        *messages = r != p->shape.root;
        *elements = *messages * len_of(p, false, 0, r);
        return;
    case CDP_COLL_SCATTER:
        *rounds = n;
        *messages = r == p->shape.root ? n - 1 : 0;
        *elements = *messages ? off_of(p, true, 0, n) - len_of(p, true, 0, r) : 0;
        return;
    case CDP_COLL_REDUCE_SCATTER:
    case CDP_COLL_ALLTOALL:
        *rounds = n;
        *messages = n - 1;
        *elements = off_of(p, true, r, n) - len_of(p, true, r, r);
        return;
    case CDP_COLL_REDUCE:
        if (is_ring(p)) { /* every part but one to the next rank, that one to the root */
            *rounds = 2 * n - 1;
            *messages = n - 1 + (r != p->shape.root);
            *elements = n > 1 ? c : 0;
            if (n > 1 && r == p->shape.root) *elements -= part_len(p, r + 1);
        } else {
            *rounds = 1 + log_up;
            *messages = r != p->shape.root;
            *elements = *messages * c;
        }
        return;
    case CDP_COLL_SEND:
    /* who has it after round k passes it on in every later round, while there is somebody */
    case CDP_COLL_BROADCAST:
        v = (r + n - p->shape.root) % n;
        *rounds = log_up;
        *messages = 0;
        for (k = 0; k < log_up; ++k)
            *messages += v < (1u << k) && v + (1u << k) < n;
        *elements = *messages * c;
        return;
    default:
        *rounds = *messages = log_up;
        *elements = 0;
        return;
    }
}

static bool check_end(proof *p) {
    const uint32_t n = p->shape.size;
    uint64_t rounds = 0, messages = 0, elements = 0, i;
    uint32_t r, w;
    for (r = 0; r < n; ++r) {
        if (!p->host)
            formula(p, r, &rounds, &messages, &elements);
        else if (!hosts_formula(p, r, &rounds, &messages, &elements))
            messages = p->messages[r];
        if (p->rounds != rounds)
            return object(
                p, "%u rounds, the formula says %llu", p->rounds, (unsigned long long)rounds);
        /* how many pass through a rank is stated for even parts only */
        if (p->offs
            && (is_named(p, "Bruck") || is_named(p, "binomial tree")
                || is_named(p, "recursive halving") || is_named(p, "spread")))
            elements = p->elements[r];
        if (p->messages[r] != messages || p->elements[r] != elements)
            return object(p,
                "rank %u sent %llu messages, %llu elements; the formula says %llu and %llu", r,
                (unsigned long long)p->messages[r], (unsigned long long)p->elements[r],
                (unsigned long long)messages, (unsigned long long)elements);
    }
    if (p->host && !check_network(p)) return false;
    for (i = 0; p->data && i < p->out_len; ++i) {
        const bool all_alike = p->shape.kind == CDP_COLL_ALLREDUCE
            || p->shape.kind == CDP_COLL_ALLGATHER || p->shape.kind == CDP_COLL_BROADCAST;
        value v = {0, 0};
        bool known = false;
        for (r = 0; r < n; ++r)
            if ((known = r && all_alike ? known : expected(p, r, i, &v))
                && !same(*at(p, r, CDP__OUT, i), v))
                return object(p, "rank %u element %llu is wrong%s", r, (unsigned long long)i,
                    at(p, r, CDP__OUT, i)->sum == v.sum ? " (order of operands)" : "");
    }
    for (i = 0; p->data && !p->shape.in_place && p->in && i < p->in_len; ++i)
        for (r = 0; r < n; ++r)
            if (!same(*at(p, r, CDP__IN, i), brought(r, i)))
                return object(p, "rank %u: the input was changed", r);
    for (r = 0; p->heard && r < n; ++r)
        for (w = 0; w < n; ++w)
            if (!(p->heard[r * p->heard_words + w / 64] >> w % 64 & 1))
                return object(p, "rank %u passed the barrier without rank %u", r, w);
    return true;
}

static void prepare(proof *p) {
    const uint32_t n = p->shape.size;
    const uint64_t c = p->shape.count;
    uint64_t i;
    uint32_t r;
    for (r = 0; r < n; ++r) {
        for (i = 0; i < p->in_len; ++i)
            *at(p, r, CDP__IN, i) = brought(r, i);
        for (i = 0; i < p->out_len; ++i)
            *at(p, r, CDP__OUT, i) = garbage(r, i);
        if ((p->shape.kind == CDP_COLL_BROADCAST || p->shape.kind == CDP_COLL_SEND)
            && r == p->shape.root)
            for (i = 0; i < c; ++i)
                *at(p, r, CDP__OUT, i) = brought(r, i);
        if (p->shape.in_place
            && (p->shape.kind == CDP_COLL_ALLREDUCE || p->shape.kind == CDP_COLL_REDUCE
                || p->shape.kind == CDP_COLL_REDUCE_SCATTER || p->shape.kind == CDP_COLL_SCAN
                || p->shape.kind == CDP_COLL_EXSCAN
                || (p->shape.kind == CDP_COLL_SCATTER && r == p->shape.root)))
            for (i = 0; i < p->out_len; ++i)
                *at(p, r, CDP__OUT, i) = brought(r, i);
        if (p->shape.in_place && p->shape.kind == CDP_COLL_ALLGATHER)
            for (i = 0; i < len_of(p, false, 0, r); ++i)
                *at(p, r, CDP__OUT, off_of(p, false, 0, r) + i) = brought(r, i);
        if (p->heard) p->heard[r * p->heard_words + r / 64] |= 1ull << r % 64;
    }
}

/* Parts of any lengths up to 2 * count, also of none. */
static void cut(proof *p) {
    const uint32_t n = p->shape.size;
    const bool each = p->shape.kind == CDP_COLL_ALLTOALL;
    uint32_t r, i;
    p->offs = (uint64_t *)zeroed((each ? 2ull * n : 1) * (n + 1), sizeof *p->offs);
    for (r = 0; r < (each ? n : 1); ++r) /* what r sends to i */
        for (i = 0; i < n; ++i)
            p->offs[2ull * r * (n + 1) + i + 1] = p->offs[2ull * r * (n + 1) + i]
                + (draw() % 4 ? draw() % (2 * p->shape.count + 1) : 0);
    for (r = 0; r < n && each; ++r) /* what r gets from i */
        for (i = 0; i < n; ++i)
            p->offs[(2ull * r + 1) * (n + 1) + i + 1] =
                p->offs[(2ull * r + 1) * (n + 1) + i] + len_of(p, true, i, r);
}

static void lengths(proof *p) {
    const cdp_coll_kind k = p->shape.kind;
    const uint64_t c = p->shape.count, all = p->shape.size * c;
    p->out_len = c;
    if (k == CDP_COLL_ALLGATHER || k == CDP_COLL_GATHER || k == CDP_COLL_ALLTOALL
        || (has_parts(k) && p->shape.in_place))
        p->out_len = all;
    if (k == CDP_COLL_BARRIER) p->out_len = 0;
    if (p->offs) {
        uint32_t r;
        for (r = 0, p->in_len = p->out_len = 0; r < p->shape.size; ++r) {
            p->in_len = cdp__max(p->in_len, room_of(p, r, CDP__IN));
            p->out_len = cdp__max(p->out_len, room_of(p, r, CDP__OUT));
        }
        return;
    }
    p->in_len = has_parts(k) && k != CDP_COLL_GATHER ? all : c;
    if (p->shape.in_place || k == CDP_COLL_BROADCAST || k == CDP_COLL_SEND || k == CDP_COLL_BARRIER)
        p->in_len = 0;
}

/* Returns whether there was no objection. */
static bool prove(proof *p) {
    const uint32_t n = p->shape.size;
    uint32_t r, k;
    p->rounds = UINT32_MAX;
    if (p->uneven) cut(p);
    if (on_hosts(p->algo) && !p->host && !lay_out(p)) abort();
    for (r = 0; r < n; ++r) {
        const cdp__shape s = shape_of(p, r);
        uint32_t rounds = p->algo->rounds(&s);
        if (p->bad && p->bad->kind == D_EXTRA_ROUND && p->bad->rank == r) {
            ++rounds;
            p->spoilt = true;
        }
        if (p->rounds == UINT32_MAX) p->rounds = rounds;
        if (p->rounds != rounds)
            return object(p, "rank %u has %u rounds, rank 0 has %u", r, rounds, p->rounds);
        p->tmp_len = cdp__max(p->tmp_len, p->algo->tmp_len(&s));
    }
    lengths(p);
    p->steps = (cdp__step *)zeroed((uint64_t)n * CDP__ROUND_MAX, sizeof *p->steps);
    p->step_count = (uint32_t *)zeroed(n, sizeof *p->step_count);
    p->messages = (uint64_t *)zeroed(n, sizeof *p->messages);
    p->elements = (uint64_t *)zeroed(n, sizeof *p->elements);
    if (p->data) {
        p->in = (value *)zeroed(n * p->in_len, sizeof *p->in);
        p->out = (value *)zeroed(n * p->out_len, sizeof *p->out);
        p->tmp = (value *)zeroed(n * p->tmp_len, sizeof *p->tmp);
        p->heard_words = (n + 63) / 64;
        if (p->shape.kind == CDP_COLL_BARRIER)
            p->heard = (uint64_t *)zeroed(2ull * n * p->heard_words, sizeof *p->heard);
        prepare(p);
    }
    for (k = 0; k < p->rounds && run_round(p, k); ++k) {
    }
    if (!p->why[0]) check_end(p);
    forget_layout(p);
    free(p->offs);
    p->offs = NULL;
    free(p->steps);
    free(p->step_count);
    free(p->messages);
    free(p->elements);
    free(p->in);
    free(p->out);
    free(p->tmp);
    free(p->heard);
    return !p->why[0];
}

/* ---- >>cases --------------------------------------------------------------------------------- */

static uint32_t layout; /* of the proofs that are made */

/* Does the algorithm suit the layout? */
static bool suits(uint32_t algo, uint32_t n) {
    proof p;
    bool yes;
    memset(&p, 0, sizeof p);
    p.algo = cdp__algo_at(algo);
    if (!on_hosts(p.algo)) return layout == 0;
    p.shape.kind = p.algo->kind;
    p.shape.size = n;
    p.layout = layout;
    yes = n > 2 && lay_out(&p) && p.hosts.most <= 128;
    forget_layout(&p);
    return yes;
}

static proof proof_of(
    uint32_t algo, uint32_t n, uint64_t count, uint32_t root, bool in_place, cdp_reduce_op op) {
    proof p;
    memset(&p, 0, sizeof p);
    p.algo = cdp__algo_at(algo);
    p.shape.kind = p.algo->kind;
    p.shape.size = n;
    p.shape.count = count;
    p.shape.root = root;
    p.shape.in_place = in_place;
    p.shape.op = op;
    p.layout = layout;
    p.data = true;
    return p;
}

static void report(const proof *p, bool ok, const char *extra) {
    if (ok)
        ++passed;
    else
        ++failed;
    if (ok && !verbose) return;
    printf("%s %s %s, %u ranks (hosts %u), %llu elements, root %u%s%s%s%s: %s\n",
        ok ? "ok  " : "FAIL", p->algo->name, cdp_coll_name(p->shape.kind), p->shape.size, p->layout,
        (unsigned long long)p->shape.count, p->shape.root, p->shape.in_place ? ", in place" : "",
        p->shape.op == CDP_REDUCE_AVG ? ", avg" : "", extra[0] ? ", " : "", extra,
        p->why[0] ? p->why : "right");
}

static bool can_be_uneven(cdp_coll_kind k) {
    return k == CDP_COLL_ALLGATHER || has_parts(k);
}

static void one(uint32_t algo, uint32_t n, uint64_t count, uint32_t root, bool in_place,
    cdp_reduce_op op, bool data) {
    /* of the others: enough is enough */
    const bool too = can_be_uneven(cdp__algo_at(algo)->kind) && count
        && (n <= 12 || count == n - 1 || n > 64 || !data);
    static const char *const how_proved[2][2] = {
        {"steps only", ""}, {"uneven, steps only", "uneven"}};
    uint32_t uneven;
    for (layout = 0; layout < LAYOUTS; ++layout) {
        /* of many ranks: enough is enough */
        if (!suits(algo, n)
            || (on_hosts(cdp__algo_at(algo)) && n > 9
                && layout != (n > 600 ? LAYOUTS - 1 : (n + count) % LAYOUTS)))
            continue;
        for (uneven = 0; uneven < (too ? 2u : 1u); ++uneven) {
            proof p = proof_of(algo, n, count, root, in_place, op);
            p.data = data;
            p.uneven = uneven;
            report(&p, prove(&p), how_proved[uneven][data]);
        }
        if (!on_hosts(cdp__algo_at(algo))) break;
    }
    layout = 0;
}

/* Every kind of call of this size. `roots`: how many roots to try where there is one. */
static void all_of(uint32_t algo, uint32_t n, uint64_t count, uint32_t roots, bool data) {
    const cdp_coll_kind kind = cdp__algo_at(algo)->kind;
    const bool in_place = kind != CDP_COLL_BARRIER && kind != CDP_COLL_BROADCAST
        && kind != CDP_COLL_SEND && kind != CDP_COLL_GATHER && kind != CDP_COLL_ALLTOALL;
    uint32_t i, k;
    if (kind == CDP_COLL_BARRIER && count) return;
    if (kind == CDP_COLL_SEND) { /* between two */
        if (n == 2) one(algo, n, count, 0, false, CDP_REDUCE_SUM, data);
        return;
    }
    for (i = 0; i < (has_root(kind) ? roots : 1) && i < n; ++i) {
        uint32_t root = 0;
        if (has_root(kind)) {
            if (roots >= n)
                root = i;
            else if (i)
                root = i == 1 ? n - 1 : (uint32_t)(draw() % n);
        }
        for (k = 0; k < 4; ++k)
            if ((!(k % 2) || in_place) && (k < 2 || reduces(kind)))
                one(algo, n, count, root, k % 2, k / 2 ? CDP_REDUCE_AVG : CDP_REDUCE_SUM, data);
    }
}

/* The largest number of ranks: 4,096 with --all. */
static uint32_t most_ranks = 129;

static void prove_sizes(uint32_t algo) {
    static const uint32_t large[] = {
        65, 96, 100, 127, 128, 129, 255, 256, 257, 511, 512, 1000, 1024, 2048, 4096};
    const cdp_coll_kind kind = cdp__algo_at(algo)->kind;
    /* n * n messages: for few ranks */
    const bool all_pairs = strcmp(cdp__algo_at(algo)->name, "direct") == 0
        || strcmp(cdp__algo_at(algo)->name, "at once") == 0;
    const bool fixed = is_fixed(cdp__algo_at(algo)),
               gather = kind == CDP_COLL_ALLGATHER || has_parts(kind),
               ring =
                   (fixed || all_pairs || strcmp(cdp__algo_at(algo)->name, "ring") == 0) && !gather;
    const bool in_place = kind != CDP_COLL_GATHER && kind != CDP_COLL_ALLTOALL;
    const bool hosts = on_hosts(cdp__algo_at(algo));
    const uint32_t roots = has_parts(kind) || kind == CDP_COLL_REDUCE || hosts ? 2 : 64;
    uint32_t n, i, k;
    for (n = 1; n <= 64; ++n) {
        if (n > 33 && n != 48 && n != 57 && n < 63 && most_ranks < 4096) continue;
        const uint64_t counts[] = {0, 1, n - 1, n, n + 1, 5ull * n - 1, 97};
        for (i = 0; i < sizeof counts / sizeof counts[0]; ++i) {
            /* n parts of n ranks: enough is enough */
            if (n > 12 && counts[i] > n + 1 && (has_parts(kind) || kind == CDP_COLL_REDUCE))
                continue;
            for (k = 0; k < i && counts[k] != counts[i]; ++k) {
            }
            if (k == i) all_of(algo, n, counts[i], n <= (hosts ? 5 : 9) ? 64 : roots, true);
        }
        if (fixed && n > 5 && n != 8) continue; /* a thousand waves */
        all_of(algo, n, 1ull << 40, 2, false);  /* far beyond 32 bits */
        all_of(algo, n, (3ull << 41) + 7, 2, false);
    }
    /* in a ring */
    if (hosts && kind == CDP_COLL_REDUCE) one(algo, 6, 65537, 5, true, CDP_REDUCE_AVG, true);
    for (i = 0; i < sizeof large / sizeof large[0]; ++i) {
        n = large[i];
        if (n > most_ranks) break;
        if ((fixed || all_pairs) && n > (gather ? 129u : 257u)) break;
        if (hosts) {
            if (n <= 1024 || !wants_even(kind)) all_of(algo, n, 3, n > 300 ? 1 : 2, n < 300);
            continue;
        }
        /* n ranks of 2n rounds: the largest only with few elements, and fewer kinds of call */
        if (ring || gather) {
            if (n <= 257)
                all_of(algo, n, gather ? 3 : n + 1, 1, true);
            else if (n <= 1024)
                one(algo, n, gather ? 1 : n - 1, 0, in_place, CDP_REDUCE_SUM, true);
            else if (n <= 2048)
                one(algo, n, gather ? 1 : 65, 0, in_place,
                    reduces(kind) ? CDP_REDUCE_AVG : CDP_REDUCE_SUM, !has_parts(kind));
            else
                one(algo, n, gather ? 1ull << 40 : (1ull << 45) + 1, 0, in_place, CDP_REDUCE_SUM,
                    false);
        } else {
            all_of(algo, n, 0, 5, true);
            all_of(algo, n, 3, 5, true);
            all_of(algo, n, (1ull << 45) + 1, 5, false);
        }
    }
}

/* Every step of every rank in every round of some sizes, spoilt in every way: none may pass. */
static void plant_defects(uint32_t algo) {
    static const uint32_t sizes[] = {2, 3, 4, 5, 7, 8};
    uint32_t z;
    for (z = 0; z < sizeof sizes / sizeof sizes[0]; ++z) {
        const uint32_t n = sizes[z];
        const cdp_coll_kind kind = cdp__algo_at(algo)->kind;
        const uint64_t count = kind == CDP_COLL_BARRIER ? 0 : 2 * n + 1;
        defect d;
        layout = n == 8 || n == 4 ? 0 : 3;
        if (on_hosts(cdp__algo_at(algo)) ? !suits(algo, n) : kind == CDP_COLL_SEND && n != 2)
            continue;
        for (d.rank = 0; d.rank < n; ++d.rank)
            for (d.round = 0; d.round < 2 * n; ++d.round)
                for (d.step = 0; d.step < CDP__ROUND_MAX; ++d.step) {
                    cdp__step steps[CDP__ROUND_MAX];
                    uint32_t what;
                    for (what = D_NONE + 1; what < D_COUNT; ++what) {
                        proof p = proof_of(algo, n, count,
                            has_root(kind) && kind != CDP_COLL_SEND ? n / 2 : 0, false,
                            reduces(kind) ? CDP_REDUCE_AVG : CDP_REDUCE_SUM);
                        bool clean;
                        d.kind = (defect_kind)what;
                        if (d.kind == D_EXTRA_ROUND && d.round + d.step > 0) continue;
                        if (on_hosts(p.algo)) lay_out(&p);
                        if (d.kind != D_EXTRA_ROUND) { /* no need to run what would not be spoilt */
                            const cdp__shape of = shape_of(&p, d.rank);
                            if (d.round >= p.algo->rounds(&of)
                                || d.step >= p.algo->round(&of, d.round, steps)) {
                                forget_layout(&p);
                                continue;
                            }
                        }
                        p.bad = &d;
                        /* where parts are uneven, more than is needed may be harmless */
                        p.uneven = can_be_uneven(kind) && z % 2 && d.kind != D_LONGER;
                        clean = prove(&p);
                        if (!p.spoilt) continue;
                        if (clean)
                            snprintf(p.why, sizeof p.why,
                                "not noticed: %s at rank %u, round %u, step %u", defect_names[what],
                                d.rank, d.round, d.step);
                        report(&p, !clean, defect_names[what]);
                    }
                }
    }
}

static void check_selection(void) {
    static const uint64_t bytes[] = {0, 1, 65536, 65537, 1ull << 40};
    uint32_t kind, i;
    for (kind = CDP_COLL_ALLREDUCE; kind < CDP_COLL_COUNT; ++kind)
        for (i = 0; i < 10; ++i) {
            cdp__choosing c = {NULL, 0, 65536, i % 2 != 0};
            static const uint8_t can[] = {
                CDP__SHARED | CDP__WIDER, CDP__HOSTS | CDP__UNIFORM, CDP__WIDER};
            const cdp__algo *a =
                cdp__algo_at(cdp__select(&c, (cdp_coll_kind)kind, bytes[i / 2], 2 + i, can[i % 3]));
            const bool ok = a && a->kind == (cdp_coll_kind)kind && (a->fixed || !c.reproducible);
            if (ok)
                ++passed;
            else
                ++failed;
            if (!ok)
                printf("FAIL: the selection for %s, %llu bytes names an algorithm for something "
                       "else\n",
                    cdp_coll_name((cdp_coll_kind)kind), (unsigned long long)bytes[i / 2]);
        }
}

static void prove_algorithm(uint32_t i) {
    const uint64_t p0 = passed, f0 = failed;
    uint64_t p1, f1;
    seed = i + 1; /* whichever process has it */
    prove_sizes(i);
    p1 = passed;
    f1 = failed;
    plant_defects(i);
    layout = 0;
    printf("%s (%s): %llu cases right, %llu wrong; %llu of %llu planted defects noticed\n",
        cdp__algo_at(i)->name, cdp_coll_name(cdp__algo_at(i)->kind), (unsigned long long)(p1 - p0),
        (unsigned long long)(f1 - f0), (unsigned long long)(passed - p1),
        (unsigned long long)(passed - p1 + failed - f1));
    fflush(stdout);
}

/* As many processes as there are processors; each takes the next algorithm from `queue` and says
   in the end what it has found. */
static void work(int queue, int results) {
    uint8_t i;
    uint64_t sums[2];
    while (read(queue, &i, 1) == 1)
        prove_algorithm(i);
    sums[0] = passed;
    sums[1] = failed;
    _exit(write(results, sums, sizeof sums) != sizeof sums);
}

int main(int argc, char **argv) {
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    const uint32_t jobs = processors < 1 ? 1 : (uint32_t)cdp__min((uint64_t)processors, 16);
    int queue[2], results[2];
    uint64_t sums[2];
    uint32_t i, done = 0;
    const char *only = argc > 1 ? argv[argc - 1] : "--";
    for (i = 1; i < (uint32_t)argc; ++i) {
        if (strcmp(argv[i], "--verbose") == 0) verbose = true;
        if (strcmp(argv[i], "--all") == 0) most_ranks = 4096;
    }
    if (pipe(queue) != 0 || pipe(results) != 0) return 2;
    for (i = 0; i < CDP__ALGO_COUNT; ++i) {
        char name[64];
        snprintf(name, sizeof name, "%s (%s)", cdp__algo_at(i)->name,
            cdp_coll_name(cdp__algo_at(i)->kind));
        if ((only[0] == '-' || strstr(name, only))
            && write(queue[1], &(uint8_t){(uint8_t)i}, 1) != 1)
            return 2;
    }
    close(queue[1]);
    fflush(stdout);
    for (i = 0; i < jobs; ++i)
        if (fork() == 0) {
            close(results[0]);
            work(queue[0], results[1]);
        }
    close(results[1]);
    check_selection();
    while (read(results[0], sums, sizeof sums) == sizeof sums) {
        passed += sums[0];
        failed += sums[1];
        ++done;
    }
    while (wait(NULL) > 0) { /* their processor time is counted as that of this process */
    }
    if (done != jobs) {
        printf("%u of %u processes did not come to their end\n", jobs - done, jobs);
        ++failed;
    }
    printf("%llu passed, %llu failed\n", (unsigned long long)passed, (unsigned long long)failed);
    return failed ? 1 : 0;
}
