/* rpc/roll.h - ranks that are alive agree on who is, and add up counts (pure)

   Knows: what each rank has said last. Promises: every rank that ends a turn has the same sum and
   the same list of ranks that are counted out, whichever ranks die meanwhile; a rank is never
   counted in again.

   In a turn every rank says its counts and whom it counts out to all others that it counts in. It
   counts out whom it has lost, and whom a rank that it counts in does. The turn is over as soon as
   all that are counted in have said the same list; a rank that says the next turn has ended this
   one, and says its sum, which the others take over. So two ranks cannot end a turn with different
   lists: the one that has ended it does not say another list in it. */
#ifndef CDP_SRC_RPC_ROLL_H
#define CDP_SRC_RPC_ROLL_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/bytes.h"
#include "../text/utf8.h"
#include "table.h"

#define CDP__ROLL_COUNTS 6u
#define CDP__ROLL_TEXT 160u
#define CDP__ROLL_SAY_BYTES (8u * CDP__ROLL_COUNTS + 12u + CDP__ROLL_TEXT)

/* What one rank says in a turn, or the sum of what all have said. */
typedef struct cdp__roll_say {
    uint64_t counts[CDP__ROLL_COUNTS];
    uint32_t weight, rank; /* how strongly something of this rank keeps the others; 0: nothing */
    uint32_t at;           /* the rank that does not answer */
    char text[CDP__ROLL_TEXT];
} cdp__roll_say;

/* What is said. */
typedef enum cdp__roll_kind {
    CDP__ROLL_TURN,
    CDP__ROLL_LAST, /* the turn before was the last one: this rank leaves */
    CDP__ROLL_FAIL, /* it ends with a failure, whose text is said */
    CDP__ROLL_KINDS
} cdp__roll_kind;

typedef struct cdp__roll_word {
    uint64_t turn; /* 0: it has said nothing */
    uint32_t outs; /* so many were in its list, which is a part of this rank's */
    bool left;
    cdp__roll_say say;
} cdp__roll_word;

typedef struct cdp__roll {
    uint32_t rank, ranks;
    uint64_t turn;  /* 0: this rank has not begun */
    bool over;      /* `sum` is that of this turn */
    bool done;      /* it was the last one */
    bool failed;    /* a rank ends with the failure in `why` */
    int32_t cut_by; /* a rank that counts this one out, or -1 */
    uint32_t outs;  /* in `out` */
    cdp__roll_say mine, sum, why;
    cdp__roll_word *words; /* by rank, as the lists */
    bool *out;             /* counted out */
    bool *sum_out;         /* when the turn of `sum` was over */
} cdp__roll;

CDP__PRIVATE uint64_t cdp__roll_bytes(uint32_t ranks) {
    return 2u * CDP__ROLL_SAY_BYTES + 2u * ((ranks + 7ull) / 8);
}

CDP__PRIVATE uint8_t *cdp__roll_put_say(uint8_t *at, const cdp__roll_say *s) {
    uint32_t i;
    for (i = 0; i < CDP__ROLL_COUNTS; ++i, at += 8)
        cdp__put_u64(at, s->counts[i]);
    cdp__put_u32(at, s->weight);
    cdp__put_u32(at + 4, s->rank);
    cdp__put_u32(at + 8, s->at);
    memcpy(at + 12, s->text, CDP__ROLL_TEXT);
    return at + 12 + CDP__ROLL_TEXT;
}

/* False: it names ranks that there are not. */
CDP__PRIVATE bool cdp__roll_get_say(const uint8_t *at, uint32_t ranks, cdp__roll_say *s) {
    uint32_t i;
    for (i = 0; i < CDP__ROLL_COUNTS; ++i, at += 8)
        s->counts[i] = cdp__get_u64(at);
    s->weight = cdp__get_u32(at);
    s->rank = cdp__get_u32(at + 4);
    s->at = cdp__get_u32(at + 8);
    cdp__text_foreign_in(s->text, sizeof s->text, (const char *)at + 12, CDP__ROLL_TEXT - 1);
    return s->rank < ranks && s->at < ranks;
}

CDP__PRIVATE uint8_t *cdp__roll_put_list(uint8_t *at, const bool *list, uint32_t ranks) {
    uint32_t r;
    memset(at, 0, (ranks + 7u) / 8);
    for (r = 0; r < ranks; ++r)
        at[r / 8] = (uint8_t)(at[r / 8] | (unsigned)list[r] << r % 8);
    return at + (ranks + 7u) / 8;
}

CDP__PRIVATE bool cdp__roll_listed(const uint8_t *list, uint32_t rank) {
    return list[rank / 8] >> rank % 8 & 1;
}

/* Writes what this rank says: `say`, its list, and the sum of the turn that was over last. */
CDP__PRIVATE void cdp__roll_put(const cdp__roll *roll, const cdp__roll_say *say, uint8_t *at) {
    at = cdp__roll_put_say(at, say);
    at = cdp__roll_put_say(at, &roll->sum);
    at = cdp__roll_put_list(at, roll->out, roll->ranks);
    (void)cdp__roll_put_list(at, roll->sum_out, roll->ranks);
}

/* Adds what one rank says to a sum; the strongest keeper stays, of equal ones that of the lowest
   rank. */
CDP__PRIVATE void cdp__roll_add(cdp__roll_say *sum, const cdp__roll_say *s) {
    cdp__roll_say most =
        sum->weight > s->weight || (sum->weight == s->weight && sum->rank < s->rank) ? *sum : *s;
    uint32_t i;
    for (i = 0; i < CDP__ROLL_COUNTS; ++i)
        most.counts[i] = sum->counts[i] + s->counts[i];
    *sum = most;
}

/* This turn waits no more for this rank. */
CDP__PRIVATE bool cdp__roll_has_said(const cdp__roll *roll, uint32_t rank) {
    const cdp__roll_word *w = &roll->words[rank];
    return roll->out[rank] || (w->turn == roll->turn && !w->left && w->outs == roll->outs);
}

/* Ends the turn if all that are counted in have said the same list. */
CDP__PRIVATE void cdp__roll_judge(cdp__roll *roll) {
    cdp__roll_say sum = roll->mine;
    uint32_t r;
    if (!roll->turn || roll->over) return;
    for (r = 0; r < roll->ranks; ++r) {
        const cdp__roll_word *w = &roll->words[r];
        if (r == roll->rank || roll->out[r]) continue;
        if (!cdp__roll_has_said(roll, r) && !(CDP__RPC_PLANT(ANY_LIST) && w->turn == roll->turn))
            return;
        cdp__roll_add(&sum, &w->say);
    }
    roll->sum = sum;
    memcpy(roll->sum_out, roll->out, roll->ranks * sizeof *roll->out);
    roll->over = true;
}

/* False: it was counted out before. */
CDP__PRIVATE bool cdp__roll_count_out(cdp__roll *roll, uint32_t rank) {
    if (roll->out[rank]) return false;
    roll->out[rank] = true;
    ++roll->outs;
    return true;
}

/* Begins the next turn. Who has said its last word although another turn is needed is mistaken. */
CDP__PRIVATE void cdp__roll_begin(cdp__roll *roll, const cdp__roll_say *mine) {
    uint32_t r;
    for (r = 0; r < roll->ranks; ++r) {
        if (roll->words[r].left) (void)cdp__roll_count_out(roll, r);
        roll->words[r].left = false;
    }
    roll->mine = *mine;
    ++roll->turn;
    roll->over = false;
    cdp__roll_judge(roll);
}

/* The link to a rank has ended. True: the list has changed. */
CDP__PRIVATE bool cdp__roll_lost(cdp__roll *roll, uint32_t rank) {
    if (roll->words[rank].left || roll->done || !cdp__roll_count_out(roll, rank)) return false;
    cdp__roll_judge(roll);
    return true;
}

/* Takes over the list of a rank, which is counted in. True: this rank's has changed. */
CDP__PRIVATE bool cdp__roll_join(cdp__roll *roll, const uint8_t *list, uint32_t *outs) {
    bool changed = false;
    uint32_t r;
    *outs = 0;
    for (r = 0; r < roll->ranks; ++r) {
        if (!cdp__roll_listed(list, r)) continue;
        ++*outs;
        if (cdp__roll_count_out(roll, r)) changed = true;
    }
    return changed;
}

/* A rank has said something, in cdp__roll_bytes(). Returns NULL or what is wrong with it. *changed:
   so has this rank's list. */
CDP__PRIVATE const char *cdp__roll_got(cdp__roll *roll, uint32_t from, cdp__roll_kind kind,
    uint64_t turn, const uint8_t *body, bool *changed) {
    const uint8_t *list = body + 2 * CDP__ROLL_SAY_BYTES;
    const uint8_t *before = list + (roll->ranks + 7u) / 8;
    cdp__roll_word *w = &roll->words[from];
    cdp__roll_say say, sum;
    uint32_t r;
    *changed = false;
    memset(&say, 0, sizeof say);
    memset(&sum, 0, sizeof sum);
    if (!cdp__roll_get_say(body, roll->ranks, &say)
        || !cdp__roll_get_say(body + CDP__ROLL_SAY_BYTES, roll->ranks, &sum)
        || cdp__roll_listed(list, from))
        return "a word about ranks that there are not";
    if (roll->out[from]) return NULL;
    if (roll->done) { /* this rank waits for last words alone */
        w->left = w->left || kind == CDP__ROLL_LAST;
        return NULL;
    }
    if (cdp__roll_listed(list, roll->rank)) {
        roll->cut_by = (int32_t)from;
        return NULL;
    }
    if (turn > roll->turn + 1 || turn < w->turn || w->left) return "a turn that cannot be";
    if (kind == CDP__ROLL_LAST && (!roll->turn || turn != roll->turn + 1))
        return "a last word that cannot be";
    if (kind == CDP__ROLL_FAIL) {
        if (!roll->failed) roll->why = say;
        roll->failed = true;
        return NULL;
    }
    *changed = cdp__roll_join(roll, list, &w->outs);
    w->turn = turn;
    w->say = say;
    w->left = kind == CDP__ROLL_LAST;
    if (turn == roll->turn + 1 && roll->turn && !roll->over) {
        roll->sum = sum;
        for (r = 0; r < roll->ranks; ++r)
            roll->sum_out[r] = cdp__roll_listed(before, r);
        roll->over = true;
    }
    cdp__roll_judge(roll);
    return NULL;
}

#endif /* CDP_SRC_RPC_ROLL_H */
