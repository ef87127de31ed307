/* elastic/quorum.h - one key that several servers keep, changed by a majority of them (pure)

   Knows: one operation on one key, and what the servers answered. Each server keeps a record of the
   key: the ballot that it has promised, and the last value that it has accepted, with its ballot.
   (This is Paxos without a leader, as in "CASPaxos".) A client asks each server to replace the
   record that it knows by another one, compare-and-set, so a request that arrives late changes
   nothing that is newer.
   Promises: the values of a key are one history. A change that was reported is in it once, a change
   that was refused is not in it, and who asks later sees it. This holds whichever servers and
   clients die, stop or are cut off, as long as no server forgets. If a majority of the servers
   answers and clients pause differently long after BEATEN, each operation ends. */
#ifndef CDP_SRC_ELASTIC_QUORUM_H
#define CDP_SRC_ELASTIC_QUORUM_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"

#ifndef CDP__QUORUM_PLANT
#define CDP__QUORUM_PLANT(defect) false /* tests plant mistakes */
#endif

#define CDP__QUORUM_SERVERS 5u
#ifndef CDP__QUORUM_WRITERS
#define CDP__QUORUM_WRITERS 32u /* how many versions back a record says who made them */
#endif

typedef struct cdp__ballot { /* round 0: none */
    uint64_t round, proposer;
} cdp__ballot;

/* What a record says beside the value. A server without a record has one of zeros. */
typedef struct cdp__quorum_head {
    cdp__ballot promised, accepted;
    uint64_t version;                      /* changes until this value */
    uint64_t writers[CDP__QUORUM_WRITERS]; /* the tag of the change to version - i */
    bool present;                          /* false: the key is absent */
} cdp__quorum_head;

typedef enum cdp__quorum_phase {
    CDP__QUORUM_READ,    /* asks for records */
    CDP__QUORUM_PREPARE, /* asks for promises */
    CDP__QUORUM_ACCEPT   /* asks to accept a value */
} cdp__quorum_phase;

typedef enum cdp__quorum_outcome {
    CDP__QUORUM_VALUE,   /* a read: `next` is the head of the value */
    CDP__QUORUM_SWAPPED, /* the change is in the history */
    CDP__QUORUM_DIFFERS, /* it is not, and never will be: the key had another value */
    CDP__QUORUM_UNKNOWN  /* nobody knows any more: too many changes since the first attempt */
} cdp__quorum_outcome;

typedef enum cdp__quorum_verdict {
    CDP__QUORUM_WAITS,    /* for answers */
    CDP__QUORUM_PROMISED, /* call cdp__quorum_decide() */
    CDP__QUORUM_DONE,     /* `outcome` and `next` hold */
    CDP__QUORUM_BEATEN,   /* call cdp__quorum_again(), after a pause if it is not the first time */
    CDP__QUORUM_LOST      /* too many servers are lost */
} cdp__quorum_verdict;

typedef enum cdp__quorum_state { /* of a server, in this phase */
    CDP__QUORUM_IDLE,            /* to be asked; again, if its record was not the one known here */
    CDP__QUORUM_ASKED,
    CDP__QUORUM_YES,
    CDP__QUORUM_NO
} cdp__quorum_state;

typedef struct cdp__quorum_server {
    cdp__quorum_head head; /* its record as far as known */
    uint8_t state;
    bool known; /* false: it must be asked for its record first */
    bool lost;  /* no answer will come */
} cdp__quorum_server;

typedef struct cdp__quorum {
    uint32_t count, from;  /* from: the server whose record has the value */
    uint64_t proposer;     /* of this client alone */
    uint64_t tag;          /* of this change alone */
    uint64_t tried;        /* the lowest version that this change may have made; 0: none */
    cdp__ballot ballot;    /* its last one, also of earlier operations */
    cdp__quorum_head next; /* the record that is to be accepted, or was read */
    uint8_t phase, outcome;
    bool swaps;
    bool fresh;     /* `next` is the new value, not that of `from` */
    bool impatient; /* a read does not wait for slow servers any more */
    cdp__quorum_server at[CDP__QUORUM_SERVERS];
} cdp__quorum;

CDP__PRIVATE int32_t cdp__ballot_order(const cdp__ballot *a, const cdp__ballot *b) {
    if (a->round != b->round) return a->round < b->round ? -1 : 1;
    if (a->proposer != b->proposer) return a->proposer < b->proposer ? -1 : 1;
    return 0;
}

CDP__PRIVATE uint32_t cdp__quorum_majority(uint32_t count) {
    if (CDP__QUORUM_PLANT(HALF)) return (count + 1) / 2;
    if (CDP__QUORUM_PLANT(NEEDS_ALL)) return count;
    return count / 2 + 1;
}

CDP__PRIVATE void cdp__quorum_ask_all(cdp__quorum *q, cdp__quorum_phase phase) {
    uint32_t i;
    q->phase = (uint8_t)phase;
    for (i = 0; i < q->count; ++i) {
        /* a server that is known to have promised a higher ballot is not asked to break it */
        const bool no = phase == CDP__QUORUM_ACCEPT
            && cdp__ballot_order(&q->at[i].head.promised, &q->ballot) > 0;
        q->at[i].state = CDP__QUORUM_IDLE;
        if (no && !CDP__QUORUM_PLANT(ASKS_TOO_MUCH)) q->at[i].state = CDP__QUORUM_NO;
    }
}

/* A new ballot, above all that this client has seen. */
CDP__PRIVATE void cdp__quorum_again(cdp__quorum *q) {
    uint64_t round = q->ballot.round;
    uint32_t i;
    for (i = 0; i < q->count; ++i)
        round = cdp__max(round, q->at[i].head.promised.round);
    q->ballot.round = round + !CDP__QUORUM_PLANT(SAME_BALLOT);
    q->ballot.proposer = CDP__QUORUM_PLANT(SAME_BALLOT) ? 1 : q->proposer;
    if (!q->ballot.round) q->ballot.round = 1;
    cdp__quorum_ask_all(q, CDP__QUORUM_PREPARE);
}

/* Begins an operation; the caller has set count, proposer and, of each server, head, known and
   lost. `tag`: of a change, never used before; 0: a read. */
CDP__PRIVATE void cdp__quorum_begin(cdp__quorum *q, uint64_t tag) {
    q->tag = tag;
    q->swaps = tag != 0;
    q->tried = 0;
    q->fresh = q->impatient = false;
    /* ballot stays: a request of an earlier operation may be on its way, so none is used twice */
    if (q->swaps)
        cdp__quorum_again(q);
    else
        cdp__quorum_ask_all(q, CDP__QUORUM_READ);
}

/* The head of the record that server i is asked to keep in place of the known one. */
CDP__PRIVATE cdp__quorum_head cdp__quorum_wanted(const cdp__quorum *q, uint32_t i) {
    cdp__quorum_head h = q->at[i].head;
    if (q->phase == CDP__QUORUM_ACCEPT) return q->next;
    h.promised = q->ballot;
    return h;
}

/* Server i answered: its record is `h` now. */
CDP__PRIVATE void cdp__quorum_answer(cdp__quorum *q, uint32_t i, const cdp__quorum_head *h) {
    cdp__quorum_server *s = &q->at[i];
    const bool first = !s->known;
    int32_t order = cdp__ballot_order(&h->promised, &q->ballot);
    s->head = *h;
    s->known = true;
    if (CDP__QUORUM_PLANT(BREAKS_PROMISES) && q->phase == CDP__QUORUM_ACCEPT && order > 0)
        order = -1;
    if (q->phase == CDP__QUORUM_READ)
        s->state = CDP__QUORUM_YES;
    else if (q->phase == CDP__QUORUM_ACCEPT && cdp__ballot_order(&h->accepted, &q->ballot) == 0)
        s->state = CDP__QUORUM_YES;
    else if (order > 0)
        s->state = CDP__QUORUM_NO;
    else if (q->phase == CDP__QUORUM_PREPARE && order == 0 && !first)
        s->state = CDP__QUORUM_YES;
    else
        s->state = CDP__QUORUM_IDLE;
}

CDP__PRIVATE uint32_t cdp__quorum_in(const cdp__quorum *q, cdp__quorum_state state) {
    uint32_t i, n = 0;
    for (i = 0; i < q->count; ++i)
        n += q->at[i].state == state && (state != CDP__QUORUM_IDLE || !q->at[i].lost);
    return n;
}

/* Of the servers that said yes, one that accepted the highest ballot; how many accepted it. */
CDP__PRIVATE uint32_t cdp__quorum_newest(const cdp__quorum *q, uint32_t *count) {
    uint32_t i, best = q->count;
    *count = 0;
    for (i = 0; i < q->count; ++i) {
        int32_t order;
        if (q->at[i].state != CDP__QUORUM_YES) continue;
        order = best == q->count
            ? 1
            : cdp__ballot_order(&q->at[i].head.accepted, &q->at[best].head.accepted);
        if (order > 0 && !(CDP__QUORUM_PLANT(FIRST_VALUE) && best < q->count)) {
            best = i;
            *count = 0;
        }
        *count += order >= 0;
    }
    return best;
}

CDP__PRIVATE cdp__quorum_verdict cdp__quorum_verdict_of(cdp__quorum *q) {
    const uint32_t need = cdp__quorum_majority(q->count);
    uint32_t i, same, may = 0, lost = 0;
    for (i = 0; i < q->count; ++i) {
        const bool open = q->at[i].state == CDP__QUORUM_IDLE || q->at[i].state == CDP__QUORUM_ASKED;
        may += open && !q->at[i].lost;
        lost += q->at[i].lost && q->at[i].state != CDP__QUORUM_YES;
    }
    if (cdp__quorum_in(q, CDP__QUORUM_YES) >= need) {
        q->from = cdp__quorum_newest(q, &same);
        if (q->phase == CDP__QUORUM_PREPARE) return CDP__QUORUM_PROMISED;
        if (q->phase == CDP__QUORUM_ACCEPT) return CDP__QUORUM_DONE;
        q->next = q->at[q->from].head;
        q->outcome = CDP__QUORUM_VALUE;
        if (same >= need || CDP__QUORUM_PLANT(READS_ANY)) return CDP__QUORUM_DONE;
        return same + may >= need && !q->impatient ? CDP__QUORUM_WAITS : CDP__QUORUM_BEATEN;
    }
    if (q->count - lost < need) return CDP__QUORUM_LOST;
    return cdp__quorum_in(q, CDP__QUORUM_YES) + may >= need ? CDP__QUORUM_WAITS
                                                            : CDP__QUORUM_BEATEN;
}

/* What became of earlier attempts at this change, given the newest value. */
CDP__PRIVATE cdp__quorum_outcome cdp__quorum_fate(
    const cdp__quorum *q, const cdp__quorum_head *newest) {
    uint64_t i;
    if (!q->tried || CDP__QUORUM_PLANT(FORGETS_ATTEMPTS)) return CDP__QUORUM_DIFFERS;
    for (i = 0; i < CDP__QUORUM_WRITERS && i < newest->version; ++i)
        if (newest->writers[i] == q->tag) return CDP__QUORUM_SWAPPED;
    return newest->version >= q->tried + CDP__QUORUM_WRITERS ? CDP__QUORUM_UNKNOWN
                                                             : CDP__QUORUM_DIFFERS;
}

/* After PROMISED: decides which value the servers are asked to accept. `equal`: the value of server
   `from` is the one that the change expects; `present`: the change leaves the key present. */
CDP__PRIVATE void cdp__quorum_decide(cdp__quorum *q, bool equal, bool present) {
    const cdp__quorum_head *const newest = &q->at[q->from].head;
    uint32_t i;
    q->outcome = CDP__QUORUM_VALUE;
    q->next = *newest;
    q->fresh = false;
    if (q->swaps) {
        q->outcome = (uint8_t)cdp__quorum_fate(q, newest);
        q->fresh = q->outcome == CDP__QUORUM_DIFFERS && equal;
    }
    if (q->fresh) {
        for (i = CDP__QUORUM_WRITERS - 1; i; --i)
            q->next.writers[i] = q->next.writers[i - 1];
        q->next.writers[0] = q->tag;
        ++q->next.version;
        q->next.present = present;
        q->outcome = CDP__QUORUM_SWAPPED;
        if (!q->tried || q->next.version < q->tried) q->tried = q->next.version;
    }
    q->next.promised = q->next.accepted = q->ballot;
    cdp__quorum_ask_all(q, CDP__QUORUM_ACCEPT);
}

#endif /* CDP_SRC_ELASTIC_QUORUM_H */
