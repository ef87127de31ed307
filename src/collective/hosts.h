/* collective/hosts.h - collectives of several hosts whose ranks share memory (pure)

   Knows: which ranks share a host. Promises: rounds that obey the contract of algo, and send each
   byte between two hosts once. */
#ifndef CDP_SRC_COLLECTIVE_HOSTS_H
#define CDP_SRC_COLLECTIVE_HOSTS_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "kinds.h"
#include "rounds.h"
#include "rounds_by_size.h"

#ifndef CDP_FEW_ALGORITHMS

/* In three phases: the ranks of each host combine their vectors in shared memory; hosts exchange
   each byte once; the result spreads in shared memory. Each phase is an algorithm from above, run
   among fewer ranks. In a large allreduce, rank i of each host has part i of the vector and
   exchanges it with rank i of the other hosts, so that all ranks share the network traffic.
   Otherwise one rank acts for its host: the root, or the first rank of the host.
       2 hosts, ranks 0 1 | 2 3      inside               between              inside
       part 0 of rank 0, 2           0 = 0+1, 2 = 2+3     0 = 2 = 0+1+2+3      to 1, 3
       part 1 of rank 1, 3           1 = 1+0, 3 = 3+2     1 = 3 = 1+0+3+2      to 0, 2 */
/* Where a rank is: its host, and its number among the ranks of that host. The root, if it is on
   this host, has number 0. */
typedef struct cdp__placement {
    /* first: index of the host's first rank in the list; ranks: their number on the host */
    uint32_t host, first, ranks, at;
} cdp__placement;

CDP__PRIVATE cdp__placement cdp__placement_of(
    const cdp__shape *s, uint32_t rank, const cdp__placement *root) {
    const uint16_t *list = s->hosts->ranks;
    cdp__placement p;
    uint32_t i;
    bool there = false;
    p.host = p.first = p.at = 0;
    for (i = 0; i < s->size; ++i) {
        if (i && list[i] >= CDP__HOST_BEGINS) {
            if (there) break;
            ++p.host;
            p.first = i;
        }
        if (list[i] % CDP__HOST_BEGINS != rank) continue;
        there = true;
        p.at = i - p.first;
    }
    p.ranks = i - p.first;
    if (root && root->host == p.host) p.at = (p.at + p.ranks - root->at) % p.ranks;
    return p;
}

CDP__PRIVATE uint32_t cdp__rank_on(
    const cdp__shape *s, const cdp__placement *root, uint32_t host, uint32_t at) {
    const uint16_t *list = s->hosts->ranks;
    uint32_t left = host;
    if (host == root->host) at = (at + root->at) % root->ranks;
    if (s->hosts->fewest == s->hosts->most)
        return list[host * s->hosts->most + at] % CDP__HOST_BEGINS;
    while (left)
        left -= *++list >= CDP__HOST_BEGINS;
    return list[at] % CDP__HOST_BEGINS;
}

/* Phase 0, 1 or 2 of an operation, as an operation among fewer ranks. `p` is the place of this
   rank or, for counting rounds, of a rank on the largest host. Input is scaled in phase 0, and
   sums are divided in phase 1. */
typedef struct cdp__phase {
    cdp__shape s;
    uint32_t (*round)(const cdp__shape *s, uint32_t k, cdp__step out[CDP__ROUND_MAX]);
    uint32_t rounds, skip; /* its rounds; of these, left out at the beginning */
    uint64_t off;          /* where its vector begins in that of the whole operation */
} cdp__phase;

CDP__PRIVATE cdp__phase cdp__phase_of(const cdp__shape *s, uint32_t part, bool lanes,
    const cdp__placement *p, const cdp__placement *root) {
    const uint32_t hosts = s->hosts->count;
    const bool sums = cdp__kind_reduces(s->kind);
    cdp__phase f;
    f.s = *s;
    f.s.hosts = NULL;
    f.s.lanes = lanes ? s->hosts->fewest : 0;
    f.s.rank = p->at;
    f.s.size = p->ranks;
    f.s.root = 0;
    f.skip = 0;
    f.off = 0;
    if (s->op == (part == 1 ? CDP_REDUCE_PREMUL_SUM : CDP_REDUCE_AVG)) f.s.op = CDP_REDUCE_SUM;
    if (part == 1) {
        const cdp__span own = lanes ? cdp__part(&f.s, p->at) : cdp__first(s->count);
        f.off = own.off;
        f.s.count = own.len;
        f.s.rank = p->host;
        f.s.size = hosts;
        f.s.root = root->host;
        f.s.lanes = 0;
        f.s.in_place = true;
        f.skip = sums; /* without its first round: the data is already in the right buffer */
        if (s->kind == CDP_COLL_REDUCE) {
            const bool ring = hosts > 2 && s->count >= 65536;
            f.round = ring ? cdp__reduce_ring_round : cdp__reduce_tree_round;
            f.rounds = ring ? cdp__ring_rounds(&f.s) : cdp__reduce_tree_rounds(&f.s);
        } else if (lanes) {
            f.round = hosts & (hosts - 1) ? cdp__ring_round : cdp__rabenseifner_round;
            f.rounds =
                hosts & (hosts - 1) ? cdp__ring_rounds(&f.s) : cdp__rabenseifner_rounds(&f.s);
        } else {
            f.round = s->kind == CDP_COLL_BARRIER ? cdp__barrier_round : cdp__tree_round;
            if (sums) f.round = cdp__doubling_round;
            f.rounds = sums ? cdp__doubling_rounds(&f.s) : cdp__log_rounds(&f.s);
        }
    } else if (lanes) {
        f.round = cdp__direct_round;
        f.rounds = 1 + cdp__direct_waves(&f.s);
        f.skip = part ? f.rounds : 0;
        f.rounds += part ? f.rounds - 1 : 0;
    } else {
        f.round = part ? cdp__tree_round : cdp__reduce_tree_round;
        f.rounds = part ? cdp__log_rounds(&f.s) : cdp__reduce_tree_rounds(&f.s);
        if (s->kind == (part ? CDP_COLL_REDUCE : CDP_COLL_BROADCAST)) f.rounds = 0;
    }
    return f;
}

CDP__PRIVATE uint32_t cdp__phase_rounds(
    const cdp__shape *s, uint32_t part, bool lanes, const cdp__placement *root) {
    cdp__placement p = *root;
    p.ranks = s->hosts->most;
    {
        const cdp__phase f = cdp__phase_of(s, part, lanes, &p, root);
        return f.rounds - f.skip;
    }
}

/* The rank that acts for the first host. */
CDP__PRIVATE cdp__placement cdp__head_of(const cdp__shape *s) {
    return cdp__placement_of(s, cdp__kind_has_root(s->kind) ? s->root : 0, NULL);
}

CDP__PRIVATE uint32_t cdp__phases_count(const cdp__shape *s, bool lanes) {
    const cdp__placement root = cdp__head_of(s);
    return cdp__phase_rounds(s, 0, lanes, &root) + cdp__phase_rounds(s, 1, lanes, &root)
        + cdp__phase_rounds(s, 2, lanes, &root);
}

CDP__PRIVATE uint32_t cdp__phases_round(
    const cdp__shape *s, uint32_t k, bool lanes, cdp__step out[]) {
    const cdp__placement root = cdp__head_of(s), me = cdp__placement_of(s, s->rank, &root);
    /* OUT of ranks other than the root must not change */
    const uint8_t work = s->kind == CDP_COLL_REDUCE ? cdp__reduce_buffer(s) : 0;
    cdp__phase f;
    uint32_t part, rounds, n, i, m = 0;
    if (k == 0 && work) return cdp__reduce_tree_round(s, 0, out);
    for (part = 0; k >= (rounds = cdp__phase_rounds(s, part, lanes, &root)); ++part)
        k -= rounds;
    f = cdp__phase_of(s, part, lanes, &me, &root);
    /* this rank takes no part: its host has fewer ranks, or another rank acts for the host */
    if (k + f.skip >= f.rounds || (part == 1 && me.at >= (lanes ? s->hosts->fewest : 1))) return 0;
    n = (f.round)(&f.s, k + f.skip, out);
    for (i = 0; i < n; ++i) {
        cdp__step t = out[i];
        if (!t.len && (s->count || t.peer < 0)) continue; /* both sides leave out empty messages */
        if (t.peer >= 0)
            t.peer = (int32_t)(part == 1 ? cdp__rank_on(s, &root, (uint32_t)t.peer, me.at)
                                         : cdp__rank_on(s, &root, me.host, (uint32_t)t.peer));
        t.src_off += f.off;
        t.dst_off += f.off;
        if (t.src && work) t.src = work;
        if (t.dst && work) t.dst = work;
        out[m++] = t;
    }
    return m;
}

CDP__PRIVATE uint32_t cdp__lanes_rounds(const cdp__shape *s) {
    return cdp__phases_count(s, true);
}
CDP__PRIVATE uint32_t cdp__lanes_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    return cdp__phases_round(s, k, true, out);
}
CDP__PRIVATE uint32_t cdp__leaders_rounds(const cdp__shape *s) {
    return cdp__phases_count(s, false);
}
CDP__PRIVATE uint32_t cdp__leaders_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    return cdp__phases_round(s, k, false, out);
}

/* Allgather where all hosts have equally many ranks: the i-th ranks of all hosts form a ring
   that passes on their parts. Each rank sends the part that it received last to the other ranks
   of its host, CDP__DIRECT_WIDTH at once, while the next part is in flight. */
CDP__PRIVATE uint32_t cdp__hosts_waves(const cdp__shape *s) {
    return (s->hosts->most + CDP__DIRECT_WIDTH - 2) / CDP__DIRECT_WIDTH;
}

/* `host` and `at` wrap around. */
CDP__PRIVATE int32_t cdp__even_rank(const cdp__shape *s, uint32_t host, uint32_t at) {
    return s->hosts->ranks[host % s->hosts->count * s->hosts->most + at % s->hosts->most]
        % CDP__HOST_BEGINS;
}

CDP__PRIVATE cdp__span cdp__even_block(const cdp__shape *s, uint32_t host, uint32_t at) {
    return cdp__part(s, (uint32_t)cdp__even_rank(s, host, at));
}

CDP__PRIVATE uint32_t cdp__hosts_gather_rounds(const cdp__shape *s) {
    return 1 + s->hosts->count * cdp__hosts_waves(s);
}

CDP__PRIVATE uint32_t cdp__hosts_gather_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const cdp__placement me = cdp__placement_of(s, s->rank, NULL);
    const uint32_t n = s->hosts->count, waves = cdp__hosts_waves(s), j = (k - 1) / waves,
                   host = me.host + n - j, end = ((k - 1) % waves + 1) * CDP__DIRECT_WIDTH;
    cdp__span last;
    uint32_t d = end - CDP__DIRECT_WIDTH + 1, m = 0;
    if (k == 0) return cdp__gather_own(s, 0, 0, out);
    last = cdp__even_block(s, host, me.at);
    if (d == 1 && j + 1 < n) {
        out[m++] = cdp__step_send((uint32_t)cdp__even_rank(s, me.host + 1, me.at), CDP__OUT, last);
        out[m++] = cdp__step_recv((uint32_t)cdp__even_rank(s, me.host + n - 1, me.at), CDP__OUT,
            cdp__even_block(s, host + n - 1, me.at));
    }
    for (; d < me.ranks && d <= end; ++d) {
        const uint32_t from = me.at + me.ranks - d;
        out[m++] = cdp__step_send((uint32_t)cdp__even_rank(s, me.host, me.at + d), CDP__OUT, last);
        out[m++] = cdp__step_recv(
            (uint32_t)cdp__even_rank(s, me.host, from), CDP__OUT, cdp__even_block(s, host, from));
    }
    return m;
}

/* Reduce-scatter where all hosts have equally many ranks: for one host after the other, its own
   first, a rank combines the parts for the rank of the same number there, and sends it the sum.
   TMP: the scaled input, then data in flight. */
CDP__PRIVATE uint32_t cdp__hosts_scatter_rounds(const cdp__shape *s) {
    return s->hosts->count * (cdp__hosts_waves(s) + 1);
}

CDP__PRIVATE uint64_t cdp__hosts_scatter_tmp(const cdp__shape *s) {
    uint64_t longest = 0;
    uint32_t i;
    for (i = 0; i < s->size; ++i)
        longest = cdp__max(longest, cdp__part(s, i).len);
    return cdp__pairwise_tmp(s) + longest;
}

CDP__PRIVATE uint32_t cdp__hosts_scatter_round(const cdp__shape *s, uint32_t k, cdp__step out[]) {
    const cdp__placement me = cdp__placement_of(s, s->rank, NULL);
    const uint32_t n = s->hosts->count, per = cdp__hosts_waves(s) + 1, at = k < per ? k : k + 1,
                   j = (at - 1) / per, host = me.host + j, wave = at % per;
    const uint8_t outside = s->op == CDP_REDUCE_PREMUL_SUM ? CDP__TMP : CDP__IN;
    const uint8_t src = s->in_place ? (uint8_t)CDP__OUT : outside;
    const cdp__span own = cdp__part(s, s->rank), there = cdp__even_block(s, host, me.at);
    const uint64_t result = s->in_place ? own.off : 0, way = cdp__pairwise_tmp(s);
    uint32_t d = (wave - 1) * CDP__DIRECT_WIDTH + 1, i, m = 0;
    if (k == 0) return cdp__scatter_reduce_round(s, 0, out);
    if (!wave) {
        out[m++] = cdp__step_make(
            CDP__SEND, cdp__even_rank(s, host, me.at), CDP__TMP, 0, way, 0, there.len);
        out[m++] = cdp__step_make(CDP__RECV_REDUCE, cdp__even_rank(s, me.host + n - j, me.at), 0,
            CDP__OUT, 0, result, own.len);
        if (j == n - 1) m += cdp__average(s, CDP__OUT, result, own.len, out + m);
        return m;
    }
    for (i = 0; d < me.ranks && i < CDP__DIRECT_WIDTH; ++d, ++i) {
        out[m++] = cdp__step_send((uint32_t)cdp__even_rank(s, me.host, me.at + d), src,
            cdp__even_block(s, host, me.at + d));
        out[m] = cdp__step_make(CDP__RECV_REDUCE, cdp__even_rank(s, me.host, me.at + me.ranks - d),
            d == 1 && (j || !s->in_place) ? src : 0, j ? CDP__TMP : CDP__OUT, there.off,
            j ? way : result, there.len);
        out[m++].flags = i ? CDP__CHAINED : 0;
    }
    return m;
}

#endif /* CDP_FEW_ALGORITHMS */

#endif /* CDP_SRC_COLLECTIVE_HOSTS_H */
