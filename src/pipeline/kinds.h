/* pipeline/kinds.h - the rows of built-in schedules (pure)

   Knows: the rule of each kind. Promises: rows depend on sizes alone. */
#ifndef CDP_SRC_PIPELINE_KINDS_H
#define CDP_SRC_PIPELINE_KINDS_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "schedule_api.h"
#include "table.h"

/* The rows of one rank while they are made. */
typedef struct cdp__pipe_maker {
    uint32_t p, v, m, rank;
    uint32_t ahead;
    cdp_act *acts;
    uint64_t count;
    uint64_t later;                               /* rows before it have had their W */
    uint32_t forward[2], backward[2], weights[2]; /* the next micro-batch, of the kinds in a V */
} cdp__pipe_maker;

CDP__PRIVATE bool cdp__pipe_is_v(cdp_pipe_kind kind) {
    return kind == CDP_PIPE_ZBV || kind == CDP_PIPE_DUALPIPEV;
}

/* Up the ranks and down again, or always from the first rank on. */
CDP__PRIVATE uint32_t cdp__pipe_place(cdp_pipe_kind kind, uint32_t p, uint32_t stage) {
    return cdp__pipe_is_v(kind) && stage / p % 2 ? p - 1 - stage % p : stage % p;
}

/* At most so many rows for each micro-batch of a stage. */
CDP__PRIVATE uint32_t cdp__pipe_row_kinds(cdp_pipe_kind kind) {
    if (kind == CDP_PIPE_EVAL) return 1;
    return cdp__pipe_is_v(kind) || kind == CDP_PIPE_ZERO_BUBBLE ? 3 : 2;
}

CDP__PRIVATE void cdp__pipe_put(
    cdp__pipe_maker *k, cdp_act_kind kind, uint32_t stage, uint32_t micro) {
    cdp_act *a = &k->acts[k->count];
    if (micro >= k->m) return; /* ZBV is made for more of them than there may be */
    a->kind = (uint8_t)kind;
    a->pair = false;
    a->stage = (uint16_t)stage;
    a->micro = micro;
    ++k->count;
}

CDP__PRIVATE void cdp__pipe_make_gpipe(cdp__pipe_maker *k) {
    for (uint32_t i = 0; i < k->m; ++i)
        cdp__pipe_put(k, CDP_ACT_F, k->rank, i);
    for (uint32_t i = 0; i < k->m; ++i)
        cdp__pipe_put(k, CDP_ACT_B, k->rank, i);
}

CDP__PRIVATE void cdp__pipe_make_1f1b(cdp__pipe_maker *k) {
    const uint32_t behind = k->p - 1 - k->rank;
    const uint32_t most = behind + (k->ahead < behind ? k->ahead : behind);
    const uint32_t warm = k->m < most ? k->m : most;
    for (uint32_t i = 0; i < warm; ++i)
        cdp__pipe_put(k, CDP_ACT_F, k->rank, i);
    for (uint32_t i = 0; i < k->m; ++i) {
        if (warm + i < k->m) cdp__pipe_put(k, CDP_ACT_F, k->rank, warm + i);
        cdp__pipe_put(k, CDP_ACT_B, k->rank, i);
    }
}

/* How many micro-batches a stage takes before the next stage of the rank has its turn; 0: they
   cannot be dealt out. */
CDP__PRIVATE uint32_t cdp__pipe_turn(uint32_t p, uint32_t m) {
    const uint32_t rounds = m / p ? m / p : 1;
    return m % rounds ? 0 : m / rounds;
}

/* Number n of the forwards of this rank, or of its backwards. */
CDP__PRIVATE void cdp__pipe_put_nth(cdp__pipe_maker *k, cdp_act_kind kind, uint64_t n) {
    const uint64_t q = cdp__pipe_turn(k->p, k->m);
    const uint32_t up = (uint32_t)(n / q % k->v);
    const uint32_t nth = kind == CDP_ACT_F ? up : k->v - 1 - up;
    const uint32_t micro = (uint32_t)(n / (q * k->v) * q + n % q);
    cdp__pipe_put(k, kind, nth * k->p + k->rank, micro);
}

CDP__PRIVATE void cdp__pipe_make_interleaved(cdp__pipe_maker *k, uint32_t per_hop, bool split) {
    const uint64_t total = (uint64_t)k->m * k->v, q = cdp__pipe_turn(k->p, k->m);
    const uint64_t warm =
        cdp__min((k->v - 1) * q + (uint64_t)per_hop * (k->p - 1 - k->rank), total);
    uint64_t weights = 0;
    for (uint64_t n = 0; n < warm; ++n)
        cdp__pipe_put_nth(k, CDP_ACT_F, n);
    for (uint64_t n = 0; n < total; ++n) {
        if (warm + n < total) cdp__pipe_put_nth(k, CDP_ACT_F, warm + n);
        cdp__pipe_put_nth(k, split ? CDP_ACT_I : CDP_ACT_B, n);
        if (split && n >= k->rank) cdp__pipe_put_nth(k, CDP_ACT_W, weights++);
    }
    while (split && weights < total)
        cdp__pipe_put_nth(k, CDP_ACT_W, weights++);
}

CDP__PRIVATE void cdp__pipe_make_bfs(cdp__pipe_maker *k, bool forward_only) {
    for (uint32_t nth = 0; nth < k->v; ++nth)
        for (uint32_t i = 0; i < k->m; ++i)
            cdp__pipe_put(k, CDP_ACT_F, nth * k->p + k->rank, i);
    for (uint32_t nth = forward_only ? 0 : k->v; nth-- > 0;)
        for (uint32_t i = k->m; i-- > 0;)
            cdp__pipe_put(k, CDP_ACT_B, nth * k->p + k->rank, i);
}

/* ---- in a V: this rank has stage 0, on the way up, and stage 1, on the way down ---- */

CDP__PRIVATE uint32_t cdp__pipe_v_stage(const cdp__pipe_maker *k, uint32_t which) {
    return which ? 2 * k->p - 1 - k->rank : k->rank;
}

CDP__PRIVATE void cdp__pipe_v_put(cdp__pipe_maker *k, cdp_act_kind kind, uint32_t which) {
    uint32_t *next = kind == CDP_ACT_F ? &k->forward[which] : &k->backward[which];
    if (kind == CDP_ACT_W) next = &k->weights[which];
    cdp__pipe_put(k, kind, cdp__pipe_v_stage(k, which), (*next)++);
}

/* Forward, and both halves of backward, of a stage. */
CDP__PRIVATE void cdp__pipe_v_halves(cdp__pipe_maker *k, uint32_t which) {
    cdp__pipe_v_put(k, CDP_ACT_I, which);
    cdp__pipe_v_put(k, CDP_ACT_W, which);
}

CDP__PRIVATE void cdp__pipe_make_zbv(cdp__pipe_maker *k) {
    const uint32_t p = k->p, r = k->rank, n = k->m > 2 * p - 1 ? k->m : 2 * p - 1;
    for (uint32_t i = 0; i < 2 * (p - r) - 1; ++i)
        cdp__pipe_v_put(k, CDP_ACT_F, 0);
    for (uint32_t i = 0; i < r; ++i) {
        cdp__pipe_v_put(k, CDP_ACT_F, 1);
        cdp__pipe_v_put(k, CDP_ACT_F, 0);
    }
    for (uint32_t i = 0; i < p - r; ++i) {
        cdp__pipe_v_put(k, CDP_ACT_F, 1);
        cdp__pipe_v_halves(k, 1);
    }
    while (k->forward[1] < k->forward[0] || k->forward[0] < n) {
        if (k->forward[0] < n) cdp__pipe_v_put(k, CDP_ACT_F, 0);
        cdp__pipe_v_halves(k, 0);
        cdp__pipe_v_put(k, CDP_ACT_F, 1);
        cdp__pipe_v_halves(k, 1);
    }
    for (uint32_t i = 0; i < r; ++i) {
        cdp__pipe_v_put(k, CDP_ACT_I, 0);
        cdp__pipe_v_put(k, CDP_ACT_I, 1);
    }
    for (uint32_t i = 0; i < p - r; ++i)
        cdp__pipe_v_halves(k, 0);
    for (uint32_t which = 2; which-- > 0;)
        while (k->weights[which] < k->backward[which])
            cdp__pipe_v_put(k, CDP_ACT_W, which);
}

/* The W of the first I that has had none, if there is one. */
CDP__PRIVATE void cdp__pipe_v_weights(cdp__pipe_maker *k) {
    while (k->later < k->count && k->acts[k->later].kind != CDP_ACT_I)
        ++k->later;
    if (k->later == k->count) return;
    const cdp_act a = k->acts[k->later++];
    cdp__pipe_put(k, CDP_ACT_W, a.stage, a.micro);
}

CDP__PRIVATE void cdp__pipe_v_pair(cdp__pipe_maker *k, uint32_t forward, uint32_t backward) {
    cdp__pipe_v_put(k, CDP_ACT_F, forward);
    k->acts[k->count - 1].pair = true;
    cdp__pipe_v_put(k, CDP_ACT_B, backward);
}

/* DualPipeV's end: backwards of both stages, from the middle on in halves. */
CDP__PRIVATE void cdp__pipe_v_cool(cdp__pipe_maker *k) {
    const uint32_t r = k->rank, half = (r + 1) / 2;
    for (uint32_t i = 0; i < r + 1; ++i) {
        const bool first = r % 2 ? i >= half : i > half, second = i >= half;
        cdp__pipe_v_put(k, first ? CDP_ACT_I : CDP_ACT_B, 1);
        cdp__pipe_v_put(k, second ? CDP_ACT_I : CDP_ACT_B, 0);
    }
    for (uint32_t i = 0; i < k->p - r - 1; ++i) {
        cdp__pipe_v_weights(k);
        cdp__pipe_v_put(k, CDP_ACT_I, 0);
    }
    for (uint32_t i = 0; i < r + 1; ++i)
        cdp__pipe_v_weights(k);
}

CDP__PRIVATE void cdp__pipe_make_dualpipev(cdp__pipe_maker *k) {
    const uint32_t p = k->p, r = k->rank;
    for (uint32_t i = 0; i < 2 * (p - r - 1); ++i)
        cdp__pipe_v_put(k, CDP_ACT_F, 0);
    for (uint32_t i = 0; i < r + 1; ++i) {
        cdp__pipe_v_put(k, CDP_ACT_F, 0);
        cdp__pipe_v_put(k, CDP_ACT_F, 1);
    }
    for (uint32_t i = 0; i < p - r - 1; ++i) {
        cdp__pipe_v_put(k, CDP_ACT_I, 1);
        cdp__pipe_v_weights(k);
        cdp__pipe_v_put(k, CDP_ACT_F, 1);
    }
    for (uint32_t i = 0; i < k->m - 2 * p + r + 1; ++i) {
        if (i == 0 && r == p - 1) {
            cdp__pipe_v_put(k, CDP_ACT_F, 0);
            cdp__pipe_v_put(k, CDP_ACT_B, 1);
        } else {
            cdp__pipe_v_pair(k, 0, 1);
        }
        cdp__pipe_v_pair(k, 1, 0);
    }
    for (uint32_t i = 0; i < p - r - 1; ++i) {
        cdp__pipe_v_put(k, CDP_ACT_B, 1);
        cdp__pipe_v_pair(k, 1, 0);
    }
    cdp__pipe_v_cool(k);
}

/* Makes the rows of k->rank at k->acts, and counts them. */
CDP__PRIVATE void cdp__pipe_make(cdp__pipe_maker *k, cdp_pipe_kind kind) {
    switch (kind) {
    case CDP_PIPE_GPIPE: cdp__pipe_make_gpipe(k); break;
    case CDP_PIPE_INTERLEAVED: cdp__pipe_make_interleaved(k, 2, false); break;
    case CDP_PIPE_BFS: cdp__pipe_make_bfs(k, false); break;
    case CDP_PIPE_ZERO_BUBBLE: cdp__pipe_make_interleaved(k, 1, true); break;
    case CDP_PIPE_ZBV: cdp__pipe_make_zbv(k); break;
    case CDP_PIPE_DUALPIPEV: cdp__pipe_make_dualpipev(k); break;
    case CDP_PIPE_EVAL: cdp__pipe_make_bfs(k, true); break;
    default: cdp__pipe_make_1f1b(k); break;
    }
}

#endif /* CDP_SRC_PIPELINE_KINDS_H */
