/* rpc/table.h - owners, users, forks and holds by number (pure)

   Knows: slots, chains of a hash. Promises: a slot keeps its index until it is removed; the time of
   every function is independent of how full the table is. */
#ifndef CDP_SRC_RPC_TABLE_H
#define CDP_SRC_RPC_TABLE_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"

/* Tests plant defects here, to see that their checks find them. */
#ifndef CDP__RPC_PLANT
#define CDP__RPC_PLANT(defect) false
#endif

typedef enum cdp__ref_kind {
    CDP__REF_FREE,
    CDP__REF_OWNER, /* a value of this rank; key: its rid */
    CDP__REF_USER,  /* a reference to a value of another rank; key: its fid */
    CDP__REF_FORK,  /* a reference of another rank that this owner has recorded; key: its fid, of
                       which each rank has its own */
    CDP__REF_HOLD,  /* a child sent to another rank and not accepted yet; key: the child's fid */
    CDP__REF_KINDS
} cdp__ref_kind;

typedef enum cdp__ref_state {
    CDP__REF_PENDING, /* the owner has not confirmed it */
    CDP__REF_LIVE,    /* the owner has recorded it */
    CDP__REF_BROKEN   /* the owner is lost, or no longer had the value, or had no room */
} cdp__ref_state;

#define CDP__REF_NONE 0xffffffffu

typedef struct cdp__ref {
    uint64_t key, rid;
    uint32_t next;    /* in its chain of the hash, or in the list of free slots; 0: the last */
    uint32_t of;      /* fork: the slot of its owner entry; hold: of its user entry */
    uint32_t sibling; /* user: its first hold; hold: the next one of the same user; 0: none */
    uint32_t rank;    /* user: the owner; fork: its holder; hold: the receiver of the child */
    uint32_t parent;  /* user: the rank that shared it; NONE: the owner, or created here */
    /* user: handles of the program; owner: those, and all other local uses of the value */
    uint32_t handles;
    uint32_t count; /* user: holds, and calls on it in flight; owner: forks */
    uint32_t uses;  /* how often this slot was in use: tells stale handles from valid ones */
    uint8_t kind, state;
    bool waiting; /* hold: the message with the child waits until the user is LIVE */
} cdp__ref;

/* What the caller must do: send messages, tell the program. */
typedef enum cdp__ref_what {
    CDP__REF_SEND_REMOTE_ACK, /* to, rid, fid, how */
    CDP__REF_SEND_FORK,       /* to, rid, fid, parent */
    CDP__REF_SEND_FORK_ACK,   /* to, rid, fid, how */
    CDP__REF_SEND_ACCEPT,     /* to, fid */
    CDP__REF_SEND_DELETE,     /* to, rid, fid */
    CDP__REF_SHARE_NOW,       /* to, rid, fid: the waiting message may be sent */
    CDP__REF_SHARE_NEVER,     /* to, rid, fid: the waiting message must not be sent */
    CDP__REF_NOW_LIVE,        /* slot */
    CDP__REF_NOW_BROKEN,      /* slot, how */
    /* slot of a user or owner entry that ends: an owner's value must be destroyed */
    CDP__REF_NOW_ENDED,
    CDP__REF_WHATS
} cdp__ref_what;

typedef enum cdp__ref_how {
    CDP__REF_OK,
    CDP__REF_GONE,
    CDP__REF_FULL,
    CDP__REF_LOST
} cdp__ref_how;

typedef struct cdp__ref_act {
    cdp__ref_what what;
    cdp__ref_how how;
    uint32_t to, parent, slot;
    uint64_t rid, fid;
} cdp__ref_act;

typedef struct cdp__refs {
    cdp__ref *at;    /* slot 0 is not used */
    uint32_t *heads; /* the first slot of each chain */
    uint32_t room;   /* slots */
    uint32_t mask;   /* chains - 1 */
    uint32_t vacant; /* the first free slot */
    uint32_t left;   /* number of free slots */
    uint32_t used[CDP__REF_KINDS];
    uint32_t rank;      /* this rank */
    uint32_t first_use; /* `uses` of a slot that is new */
    const bool *lost;   /* by rank: its link has ended */
    /* Called by the functions below, in the order in which to act. Must not use the table. */
    void (*act)(void *user, const cdp__ref_act *act);
    void *user;
} cdp__refs;

CDP__PRIVATE uint32_t *cdp__refs_chain(const cdp__refs *t, uint32_t kind, uint64_t key) {
    uint64_t h = (key ^ kind) * 0x9e3779b97f4a7c15ull;
    return &t->heads[(uint32_t)(h >> 32) & t->mask];
}

/* The slot with this key; 0: there is none. */
CDP__PRIVATE uint32_t cdp__refs_find(const cdp__refs *t, cdp__ref_kind kind, uint64_t key) {
    uint32_t slot = t->heads ? *cdp__refs_chain(t, (uint32_t)kind, key) : 0;
    while (slot && (t->at[slot].kind != kind || t->at[slot].key != key))
        slot = t->at[slot].next;
    return slot;
}

/* The fork with this number that `rank` holds; 0: there is none. Only that rank and its parent know
   the number, and one of them may lie about it: each rank has entries of its own. */
CDP__PRIVATE uint32_t cdp__refs_fork(const cdp__refs *t, uint64_t fid, uint32_t rank) {
    uint32_t slot = t->heads ? *cdp__refs_chain(t, CDP__REF_FORK, fid) : 0;
    while (slot
        && (t->at[slot].kind != CDP__REF_FORK || t->at[slot].key != fid
            || t->at[slot].rank != rank))
        slot = t->at[slot].next;
    return slot;
}

/* Adds an entry, all zero. There must be a free slot. */
CDP__PRIVATE uint32_t cdp__refs_add(cdp__refs *t, cdp__ref_kind kind, uint64_t key) {
    const uint32_t slot = t->vacant;
    cdp__ref *r = &t->at[slot];
    uint32_t *head = cdp__refs_chain(t, (uint32_t)kind, key);
    const uint32_t uses = r->uses + 1;
    CDP_ASSERT(slot && t->left);
    t->vacant = r->next;
    --t->left;
    ++t->used[kind];
    memset(r, 0, sizeof *r);
    r->uses = uses;
    r->kind = (uint8_t)kind;
    r->key = key;
    r->next = *head;
    *head = slot;
    return slot;
}

CDP__PRIVATE void cdp__refs_remove(cdp__refs *t, uint32_t slot) {
    cdp__ref *r = &t->at[slot];
    uint32_t *at = cdp__refs_chain(t, r->kind, r->key);
    while (*at != slot)
        at = &t->at[*at].next;
    *at = r->next;
    --t->used[r->kind];
    ++t->left;
    r->kind = CDP__REF_FREE;
    r->next = t->vacant;
    t->vacant = slot;
}

/* Moves the table to larger arrays: `at` has `room` slots, `heads` a power of two of chains. The
   old contents are copied; the caller owns the old arrays again. */
CDP__PRIVATE void cdp__refs_move(
    cdp__refs *t, cdp__ref *at, uint32_t room, uint32_t *heads, uint32_t chains) {
    const uint32_t before = t->room ? t->room : 1;
    uint32_t slot;
    if (t->room) memcpy(at, t->at, t->room * sizeof *at);
    memset(at + t->room, 0, (room - t->room) * sizeof *at);
    for (slot = t->room; slot < room; ++slot)
        at[slot].uses = t->first_use;
    memset(heads, 0, chains * sizeof *heads);
    t->at = at;
    t->heads = heads;
    t->mask = chains - 1;
    for (slot = 1; slot < t->room; ++slot) {
        uint32_t *head = cdp__refs_chain(t, at[slot].kind, at[slot].key);
        if (at[slot].kind == CDP__REF_FREE) continue;
        at[slot].next = *head;
        *head = slot;
    }
    for (slot = room; slot-- > before; ++t->left) {
        at[slot].next = t->vacant;
        t->vacant = slot;
    }
    t->room = room;
}

#endif /* CDP_SRC_RPC_TABLE_H */
