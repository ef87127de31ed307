/* pipeline/pace.h - when does each row run, and does each one run at all? (pure)

   Knows: a table that is complete. Promises: every walk ends, since each turn of its loop runs a
   row or ends it. */
#ifndef CDP_SRC_PIPELINE_PACE_H
#define CDP_SRC_PIPELINE_PACE_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "../text/format.h"
#include "schedule_api.h"
#include "table.h"
#include "rules.h"

/* ---- with times ---- */

typedef struct cdp__pipe_pace {
    const cdp__pipe_table *table;
    const cdp_pipe_cost *cost; /* of each stage; NULL: each row costs nothing */
    bool early;
    double *forward, *backward; /* of each cell: when its result is there; below 0: not yet */
    double *start, *end;        /* of each row; may be NULL */
    uint64_t *at;               /* of each rank: its next row */
    double *free;               /* and when it is free */
} cdp__pipe_pace;

CDP__PRIVATE double cdp__pipe_time(const cdp__pipe_pace *k, const cdp_act *a) {
    if (!k->cost) return 0;
    const cdp_pipe_cost *c = &k->cost[a->stage];
    if (a->kind == CDP_ACT_F) return c->f_us;
    if (a->kind == CDP_ACT_B) return c->i_us + c->w_us;
    return a->kind == CDP_ACT_I ? c->i_us : c->w_us;
}

/* What a row that may be a pair takes. */
CDP__PRIVATE double cdp__pipe_span(const cdp__pipe_pace *k, const cdp_act *a) {
    if (!a->pair) return cdp__pipe_time(k, a);
    const cdp_act *f = a->kind == CDP_ACT_F ? a : a + 1;
    const double given = k->cost ? k->cost[f->stage].pair_us : 0;
    return given > 0 ? given : cdp__pipe_time(k, a) + cdp__pipe_time(k, a + 1);
}

/* The time at which the result of a stage is on the rank of another one. */
CDP__PRIVATE double cdp__pipe_arrives(
    const cdp__pipe_pace *k, double done, uint32_t from, uint32_t to) {
    const bool apart = k->table->place[from] != k->table->place[to];
    return done < 0 || !apart || !k->cost ? done : done + k->cost[from].message_us;
}

/* When what the row needs is there; below 0: not known yet. `other`: the other row of its pair,
   which may give it. */
CDP__PRIVATE double cdp__pipe_ready(
    const cdp__pipe_pace *k, const cdp_act *a, const cdp_act *other) {
    const cdp__pipe_table *t = k->table;
    uint32_t stage = a->stage;
    bool forward = a->kind == CDP_ACT_F;
    if (a->kind == CDP_ACT_W || (forward && !stage)) return 0; /* its I came before on its rank */
    if (forward)
        --stage;
    else if (stage + 1u < t->stages)
        ++stage;
    else
        forward = true; /* the last stage goes back from its own forward */
    if (other && other->stage == stage && other->micro == a->micro
        && (other->kind == CDP_ACT_F) == forward)
        return 0;
    return cdp__pipe_arrives(k,
        (forward ? k->forward : k->backward)[cdp__pipe_cell(t, stage, a->micro)], stage, a->stage);
}

CDP__PRIVATE void cdp__pipe_ran(cdp__pipe_pace *k, const cdp_act *a, double begin, double end) {
    const uint64_t cell = cdp__pipe_cell(k->table, a->stage, a->micro);
    const uint64_t row = (uint64_t)(a - k->table->acts);
    if (a->kind == CDP_ACT_F) k->forward[cell] = end;
    if (cdp__pipe_is_back(a)) {
        const bool early = k->early && a->kind == CDP_ACT_B && k->cost;
        k->backward[cell] = early ? begin + k->cost[a->stage].i_us : end;
    }
    if (k->start) k->start[row] = begin;
    if (k->end) k->end[row] = end;
}

/* Runs the next row of a rank, or pair; false if what it needs is not there. */
CDP__PRIVATE bool cdp__pipe_tick(cdp__pipe_pace *k, uint32_t r) {
    const cdp__pipe_table *t = k->table;
    const cdp_act *a = &t->acts[k->at[r]];
    double begin = k->free[r];
    for (uint32_t i = 0; i < cdp__pipe_width(a); ++i) {
        const cdp_act *other = NULL;
        if (a->pair) other = i ? a : a + 1;
        const double ready = cdp__pipe_ready(k, a + i, other);
        if (ready < 0) return false;
        if (ready > begin) begin = ready;
    }
    k->free[r] = begin + cdp__pipe_span(k, a);
    for (uint32_t i = 0; i < cdp__pipe_width(a); ++i)
        cdp__pipe_ran(k, a + i, begin, k->free[r]);
    k->at[r] += cdp__pipe_width(a);
    return true;
}

/* Runs all rows; false: some of them wait in a circle, and k->at says which. */
CDP__PRIVATE bool cdp__pipe_run_rows(cdp__pipe_pace *k) {
    const cdp__pipe_table *t = k->table;
    bool moved = true, all = true;
    for (uint64_t c = 0; c < cdp__pipe_cells(t); ++c)
        k->forward[c] = k->backward[c] = -1;
    for (uint32_t r = 0; r < t->ranks; ++r) {
        k->at[r] = t->first[r];
        k->free[r] = 0;
    }
    while (moved) {
        moved = false;
        for (uint32_t r = 0; r < t->ranks; ++r)
            while (k->at[r] < t->first[r + 1] && cdp__pipe_tick(k, r))
                moved = true;
    }
    for (uint32_t r = 0; r < t->ranks; ++r)
        if (k->at[r] < t->first[r + 1]) all = false;
    return all;
}

/* ": rank 0, row 3 (1B0); rank 1, row 2 (0F1)": where each rank waits. */
CDP__PRIVATE void cdp__pipe_add_waits(
    cdp__text *why, const cdp__pipe_table *t, const uint64_t *at) {
    uint32_t n = 0, more = 0;
    for (uint32_t r = 0; r < t->ranks; ++r) {
        if (at[r] >= t->first[r + 1]) continue;
        if (n == 8) {
            ++more;
            continue;
        }
        cdp__text_add(why, n++ ? "; " : ": ");
        cdp__pipe_add_row(why, t, r, at[r] - t->first[r]);
    }
    if (more) cdp__text_add(why, "; and %u more", more);
}

/* ---- with messages ---- */

enum {
    CDP__PIPE_POSTED = 1,  /* the receiver waits for it */
    CDP__PIPE_SENT = 2,    /* and it was sent */
    CDP__PIPE_BUFFERED = 4 /* it left its sender */
};

typedef struct cdp__pipe_messages {
    const cdp__pipe_table *table;
    cdp_pipe_wire wire;
    uint8_t *state;     /* of each message */
    uint32_t *buffered; /* from rank to rank; NULL: none can be */
    uint64_t *at;       /* of each rank: its next row */
    uint64_t *posted;   /* of each rank: rows before it have posted their receives */
    bool *sent;         /* of each rank: its row has sent, and waits */
    bool moved;         /* something has changed since the last look at all ranks */
} cdp__pipe_messages;

CDP__PRIVATE uint32_t cdp__pipe_sender(const cdp__pipe_table *t, uint64_t message) {
    const uint64_t cells = cdp__pipe_cells(t);
    const uint32_t stage = (uint32_t)(message % cells / t->micros);
    return t->place[message < cells ? stage - 1 : stage + 1];
}

CDP__PRIVATE uint32_t *cdp__pipe_buffer(cdp__pipe_messages *k, uint64_t message) {
    return &k->buffered[(uint64_t)cdp__pipe_sender(k->table, message) * k->table->ranks
        + cdp__pipe_taker(k->table, message)];
}

/* Posts the receives of the row of a rank and of those `ahead` of it. */
CDP__PRIVATE void cdp__pipe_post(cdp__pipe_messages *k, uint32_t r) {
    const cdp__pipe_table *t = k->table;
    const uint64_t width = cdp__pipe_width(&t->acts[k->at[r]]);
    const uint64_t to = cdp__min(k->at[r] + width + k->wire.ahead, t->first[r + 1]);
    for (; k->posted[r] < to; ++k->posted[r]) {
        const uint64_t m = cdp__pipe_needs(t, &t->acts[k->posted[r]]);
        if (m == CDP__PIPE_NONE) continue;
        if (k->state[m] & CDP__PIPE_BUFFERED) --*cdp__pipe_buffer(k, m);
        k->state[m] |= CDP__PIPE_POSTED;
        k->moved = true;
    }
}

CDP__PRIVATE void cdp__pipe_send(cdp__pipe_messages *k, uint64_t m) {
    k->state[m] |= CDP__PIPE_SENT;
    if (k->state[m] & CDP__PIPE_POSTED || !k->buffered) return;
    uint32_t *const buffer = cdp__pipe_buffer(k, m);
    if (*buffer >= k->wire.buffers) return;
    k->state[m] |= CDP__PIPE_BUFFERED;
    ++*buffer;
}

/* Has the sender of a message done its part? */
CDP__PRIVATE bool cdp__pipe_left(const cdp__pipe_messages *k, uint64_t m) {
    return (k->state[m] & (CDP__PIPE_POSTED | CDP__PIPE_BUFFERED)) != 0;
}

/* The next step of a rank: false if it waits. */
CDP__PRIVATE bool cdp__pipe_messages_step(cdp__pipe_messages *k, uint32_t r) {
    const cdp__pipe_table *t = k->table;
    const cdp_act *a = &t->acts[k->at[r]];
    const uint32_t width = cdp__pipe_width(a);
    cdp__pipe_post(k, r);
    for (uint32_t i = 0; i < width && !k->sent[r]; ++i) {
        const uint64_t m = cdp__pipe_needs(t, a + i);
        if (m != CDP__PIPE_NONE && !(k->state[m] & CDP__PIPE_SENT)) return false;
    }
    for (uint32_t i = 0; i < width && !k->sent[r]; ++i) {
        const uint64_t m = cdp__pipe_gives(t, a + i);
        if (m == CDP__PIPE_NONE) continue;
        cdp__pipe_send(k, m);
        k->moved = true;
    }
    k->sent[r] = true;
    for (uint32_t i = 0; i < width && k->wire.blocking; ++i) {
        const uint64_t m = cdp__pipe_gives(t, a + i);
        if (m != CDP__PIPE_NONE && !cdp__pipe_left(k, m)) return false;
    }
    k->sent[r] = false;
    k->at[r] += width;
    return true;
}

/* False: ranks wait for each other. The memory of `k` is all zeros before. */
CDP__PRIVATE bool cdp__pipe_messages_end(cdp__pipe_messages *k) {
    const cdp__pipe_table *t = k->table;
    bool all = true;
    for (uint32_t r = 0; r < t->ranks; ++r)
        k->at[r] = k->posted[r] = t->first[r];
    for (k->moved = true; k->moved;) {
        k->moved = false;
        for (uint32_t r = 0; r < t->ranks; ++r)
            while (k->at[r] < t->first[r + 1] && cdp__pipe_messages_step(k, r))
                k->moved = true;
    }
    for (uint32_t r = 0; r < t->ranks; ++r)
        if (k->at[r] < t->first[r + 1]) all = false;
    return all;
}

/* One row of a rank, where messages are only counted; false if what it needs is not sent. */
CDP__PRIVATE bool cdp__pipe_count_step(
    const cdp__pipe_table *t, uint8_t *state, uint64_t *at, uint32_t watched, int64_t *waiting) {
    const cdp_act *a = &t->acts[*at];
    const uint32_t width = cdp__pipe_width(a);
    for (uint32_t i = 0; i < width; ++i) {
        const uint64_t m = cdp__pipe_needs(t, a + i);
        if (m != CDP__PIPE_NONE && !(state[m] & CDP__PIPE_SENT)) return false;
    }
    for (uint32_t i = 0; i < width; ++i) {
        const uint64_t needs = cdp__pipe_needs(t, a + i), gives = cdp__pipe_gives(t, a + i);
        if (needs != CDP__PIPE_NONE && cdp__pipe_taker(t, needs) == watched) --*waiting;
        if (gives == CDP__PIPE_NONE) continue;
        state[gives] |= CDP__PIPE_SENT;
        if (cdp__pipe_taker(t, gives) == watched) ++*waiting;
    }
    *at += width;
    return true;
}

/* Most messages that are sent to a rank and not yet used: it is stopped before each of its rows
   in turn while all others run on. `state` and `at` are all zeros before. */
CDP__PRIVATE uint32_t cdp__pipe_slots_of(
    const cdp__pipe_table *t, uint32_t watched, uint8_t *state, uint64_t *at) {
    int64_t waiting = 0, top = 0;
    for (uint32_t r = 0; r < t->ranks; ++r)
        at[r] = t->first[r];
    for (;;) {
        bool moved = true;
        while (moved) {
            moved = false;
            for (uint32_t r = 0; r < t->ranks; ++r)
                while (r != watched && at[r] < t->first[r + 1]
                    && cdp__pipe_count_step(t, state, &at[r], watched, &waiting))
                    moved = true;
        }
        if (waiting > top) top = waiting;
        if (at[watched] == t->first[watched + 1]) return (uint32_t)top;
        (void)cdp__pipe_count_step(t, state, &at[watched], watched, &waiting);
    }
}

#endif /* CDP_SRC_PIPELINE_PACE_H */
