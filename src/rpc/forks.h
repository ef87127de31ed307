/* rpc/forks.h - when a value may be destroyed (pure)

   Knows: the table. Promises: a value is destroyed once, when no rank has a reference to it any
   more, and never before, in whatever order messages of different ranks and of one rank arrive;
   nothing waits for a lost rank. */
#ifndef CDP_SRC_RPC_FORKS_H
#define CDP_SRC_RPC_FORKS_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "table.h"

CDP__PRIVATE void cdp__ref_do(
    const cdp__refs *t, cdp__ref_what what, uint32_t slot, uint32_t to, cdp__ref_how how) {
    const cdp__ref *r = &t->at[slot];
    cdp__ref_act act;
    if (what <= CDP__REF_SEND_DELETE && t->lost[to]) return;
    memset(&act, 0, sizeof act);
    act.what = what;
    act.how = how;
    act.to = to;
    act.slot = slot;
    act.rid = r->rid;
    act.fid = r->key;
    act.parent = r->parent;
    t->act(t->user, &act);
}

/* Answers a message about an entry that does not exist here. */
CDP__PRIVATE void cdp__ref_answer(const cdp__refs *t, cdp__ref_what what, uint32_t to, uint64_t rid,
    uint64_t fid, cdp__ref_how how) {
    cdp__ref_act act;
    if (t->lost[to]) return;
    memset(&act, 0, sizeof act);
    act.what = what;
    act.how = how;
    act.to = to;
    act.rid = rid;
    act.fid = fid;
    t->act(t->user, &act);
}

/* Ends the entry if nothing needs it any more. */
CDP__PRIVATE void cdp__ref_release(cdp__refs *t, uint32_t slot) {
    cdp__ref *r = &t->at[slot];
    if (r->handles || r->count) return;
    if (r->kind == CDP__REF_USER) {
        if (r->state == CDP__REF_PENDING) return; /* the answer of the owner decides */
        if (r->state == CDP__REF_LIVE)
            cdp__ref_do(t, CDP__REF_SEND_DELETE, slot, r->rank, CDP__REF_OK);
    }
    cdp__ref_do(t, CDP__REF_NOW_ENDED, slot, r->rank, CDP__REF_OK);
    cdp__refs_remove(t, slot);
}

/* Ends a hold. Its user entry stays, even if nothing needs it: see cdp__ref_release(). */
CDP__PRIVATE void cdp__ref_hold_ends(cdp__refs *t, uint32_t hold) {
    cdp__ref *user = &t->at[t->at[hold].of];
    uint32_t *at = &user->sibling;
    while (*at != hold)
        at = &t->at[*at].sibling;
    *at = t->at[hold].sibling;
    --user->count;
    cdp__refs_remove(t, hold);
}

/* The state of a user entry is decided: its waiting shares may be sent now, or never. */
CDP__PRIVATE void cdp__ref_waiting(cdp__refs *t, uint32_t slot) {
    const bool live = t->at[slot].state == CDP__REF_LIVE;
    uint32_t hold = t->at[slot].sibling;
    while (hold) {
        const uint32_t next = t->at[hold].sibling;
        if (t->at[hold].waiting) {
            t->at[hold].waiting = false;
            cdp__ref_do(t, live ? CDP__REF_SHARE_NOW : CDP__REF_SHARE_NEVER, hold, t->at[hold].rank,
                CDP__REF_OK);
            if (!live) cdp__ref_hold_ends(t, hold);
        }
        hold = next;
    }
}

/* Adds a user entry: pending, or broken if the owner is lost. */
CDP__PRIVATE uint32_t cdp__ref_user(
    cdp__refs *t, uint64_t rid, uint64_t fid, uint32_t owner, uint32_t parent) {
    const uint32_t slot = cdp__refs_add(t, CDP__REF_USER, fid);
    cdp__ref *r = &t->at[slot];
    r->rid = rid;
    r->rank = owner;
    r->parent = parent;
    r->handles = 1;
    r->state = t->lost[owner] ? CDP__REF_BROKEN : CDP__REF_PENDING;
    return slot;
}

/* ---- actions of the program */

/* This rank creates a value, with one handle. Needs one free slot. */
CDP__PRIVATE uint32_t cdp__ref_create(cdp__refs *t, uint64_t rid) {
    const uint32_t slot = cdp__refs_add(t, CDP__REF_OWNER, rid);
    t->at[slot].rid = rid;
    t->at[slot].rank = t->rank;
    t->at[slot].parent = CDP__REF_NONE;
    t->at[slot].handles = 1;
    t->at[slot].state = CDP__REF_LIVE;
    return slot;
}

/* This rank asks `owner` to create a value; the caller sends REMOTE with both numbers. Needs one
   free slot. */
CDP__PRIVATE uint32_t cdp__ref_remote(cdp__refs *t, uint64_t rid, uint64_t fid, uint32_t owner) {
    return cdp__ref_user(t, rid, fid, owner, CDP__REF_NONE);
}

CDP__PRIVATE void cdp__ref_drop(cdp__refs *t, uint32_t slot) {
    CDP_ASSERT(t->at[slot].handles);
    --t->at[slot].handles;
    cdp__ref_release(t, slot);
}

/* A call on a reference is about to be sent, or is over on the wire. */
CDP__PRIVATE void cdp__ref_on_wire(cdp__refs *t, uint32_t slot) {
    ++t->at[slot].count;
}
CDP__PRIVATE void cdp__ref_off_wire(cdp__refs *t, uint32_t slot) {
    CDP_ASSERT(t->at[slot].count);
    --t->at[slot].count;
    cdp__ref_release(t, slot);
}

/* Records that a message with the new fork `child` goes to rank `to`. PENDING: the message must
   wait for SHARE_NOW or SHARE_NEVER. BROKEN: it cannot be shared, nothing was recorded. Needs
   one free slot. */
CDP__PRIVATE cdp__ref_state cdp__ref_share(
    cdp__refs *t, uint32_t slot, uint64_t child, uint32_t to) {
    const bool own = t->at[slot].kind == CDP__REF_OWNER;
    const cdp__ref_state state = (cdp__ref_state)t->at[slot].state;
    cdp__ref *r;
    uint32_t s;
    if (state == CDP__REF_BROKEN) return state;
    s = cdp__refs_add(t, own ? CDP__REF_FORK : CDP__REF_HOLD, child);
    r = &t->at[s];
    r->rid = t->at[slot].rid;
    r->of = slot;
    r->rank = to;
    r->parent = CDP__REF_NONE;
    ++t->at[slot].count;
    if (own) return state;
    r->waiting = state == CDP__REF_PENDING;
    r->sibling = t->at[slot].sibling;
    t->at[slot].sibling = s;
    return state;
}

/* The message with this child was not sent. */
CDP__PRIVATE void cdp__ref_unshare(cdp__refs *t, uint64_t child) {
    uint32_t s = cdp__refs_find(t, CDP__REF_HOLD, child), of;
    if (s) {
        of = t->at[s].of;
        cdp__ref_hold_ends(t, s);
        cdp__ref_release(t, of);
        return;
    }
    s = cdp__refs_find(t, CDP__REF_FORK, child);
    if (!s) return; /* its rank was lost meanwhile */
    of = t->at[s].of;
    cdp__refs_remove(t, s);
    --t->at[of].count;
    cdp__ref_release(t, of);
}

/* ---- messages of peers */

/* At the owner: rank `from` asks this rank to create a value. *slot: its entry; 0: there was no
   room. */
CDP__PRIVATE bool cdp__ref_got_remote(
    cdp__refs *t, uint32_t from, uint64_t rid, uint64_t fid, uint32_t *slot) {
    uint32_t fork;
    *slot = 0;
    if (cdp__refs_find(t, CDP__REF_OWNER, rid) || cdp__refs_fork(t, fid, from)) return false;
    if (t->left < 2) {
        cdp__ref_answer(t, CDP__REF_SEND_REMOTE_ACK, from, rid, fid, CDP__REF_FULL);
        return true;
    }
    *slot = cdp__ref_create(t, rid);
    t->at[*slot].handles = 0;
    (void)cdp__ref_share(t, *slot, fid, from);
    fork = cdp__refs_fork(t, fid, from);
    cdp__ref_do(t, CDP__REF_SEND_REMOTE_ACK, fork, from, CDP__REF_OK);
    return true;
}

/* At a user: the owner's answer to REMOTE or FORK. */
CDP__PRIVATE bool cdp__ref_got_ack(cdp__refs *t, uint32_t from, uint64_t fid, cdp__ref_how how) {
    const uint32_t slot = cdp__refs_find(t, CDP__REF_USER, fid);
    cdp__ref *r = &t->at[slot];
    if (!slot || r->rank != from || r->state != CDP__REF_PENDING) return false;
    r->state = how == CDP__REF_OK ? CDP__REF_LIVE : CDP__REF_BROKEN;
    if (r->parent != CDP__REF_NONE) cdp__ref_do(t, CDP__REF_SEND_ACCEPT, slot, r->parent, how);
    cdp__ref_do(t, how == CDP__REF_OK ? CDP__REF_NOW_LIVE : CDP__REF_NOW_BROKEN, slot, from, how);
    cdp__ref_waiting(t, slot);
    cdp__ref_release(t, slot);
    return true;
}

/* At the owner: rank `from` has received the reference from another user. */
CDP__PRIVATE bool cdp__ref_got_fork(cdp__refs *t, uint32_t from, uint64_t rid, uint64_t fid) {
    const uint32_t slot = cdp__refs_find(t, CDP__REF_OWNER, rid);
    cdp__ref_how how = slot ? CDP__REF_OK : CDP__REF_GONE;
    if (cdp__refs_fork(t, fid, from)) return false;
    if (slot && !t->left) how = CDP__REF_FULL;
    if (how == CDP__REF_OK) (void)cdp__ref_share(t, slot, fid, from);
    cdp__ref_answer(t, CDP__REF_SEND_FORK_ACK, from, rid, fid, how);
    return true;
}

/* At a parent: the owner has recorded the child, or the child was refused. */
CDP__PRIVATE bool cdp__ref_got_accept(cdp__refs *t, uint32_t from, uint64_t child) {
    const uint32_t hold = cdp__refs_find(t, CDP__REF_HOLD, child);
    uint32_t of;
    if (!hold || t->at[hold].rank != from || t->at[hold].waiting) return false;
    of = t->at[hold].of;
    cdp__ref_hold_ends(t, hold);
    cdp__ref_release(t, of);
    return true;
}

/* At the owner: a fork ends. */
CDP__PRIVATE bool cdp__ref_got_delete(cdp__refs *t, uint32_t from, uint64_t rid, uint64_t fid) {
    const uint32_t fork = cdp__refs_fork(t, fid, from);
    uint32_t of;
    if (!fork || t->at[fork].rid != rid) return false;
    of = t->at[fork].of;
    cdp__refs_remove(t, fork);
    --t->at[of].count;
    cdp__ref_release(t, of);
    return true;
}

/* A message contained a reference {owner, rid, fid}, shared by `from`. *slot: an entry with one
   handle for the receiver; 0: the value is gone, or there was no room. */
CDP__PRIVATE bool cdp__ref_take(
    cdp__refs *t, uint32_t from, uint32_t owner, uint64_t rid, uint64_t fid, uint32_t *slot) {
    if (owner == t->rank) { /* returned to the owner: no fork is needed */
        *slot = cdp__refs_find(t, CDP__REF_OWNER, rid);
        if (*slot) ++t->at[*slot].handles;
        cdp__ref_answer(t, CDP__REF_SEND_ACCEPT, from, rid, fid, CDP__REF_OK);
        return true;
    }
    *slot = 0;
    if (cdp__refs_find(t, CDP__REF_USER, fid)) return false;
    if (!t->left) {
        cdp__ref_answer(t, from == owner ? CDP__REF_SEND_DELETE : CDP__REF_SEND_ACCEPT, from, rid,
            fid, CDP__REF_FULL);
        return true;
    }
    *slot = cdp__ref_user(t, rid, fid, owner, from == owner ? CDP__REF_NONE : from);
    if (from == owner) {
        t->at[*slot].state = CDP__REF_LIVE;
    } else if (t->lost[owner]) {
        cdp__ref_do(t, CDP__REF_SEND_ACCEPT, *slot, from, CDP__REF_LOST);
        cdp__ref_do(t, CDP__REF_NOW_BROKEN, *slot, owner, CDP__REF_LOST);
    } else {
        cdp__ref_do(t, CDP__REF_SEND_FORK, *slot, owner, CDP__REF_OK);
    }
    return true;
}

/* ---- losses */

CDP__PRIVATE void cdp__ref_user_lost(cdp__refs *t, uint32_t slot, uint32_t rank) {
    cdp__ref *r = &t->at[slot];
    uint32_t hold = r->sibling;
    while (hold) { /* children sent to that rank */
        const uint32_t next = t->at[hold].sibling;
        if (t->at[hold].rank == rank) {
            if (t->at[hold].waiting)
                cdp__ref_do(t, CDP__REF_SHARE_NEVER, hold, rank, CDP__REF_LOST);
            cdp__ref_hold_ends(t, hold);
        }
        hold = next;
    }
    if (r->rank == rank && r->state != CDP__REF_BROKEN) {
        /* otherwise its parent would wait for ever */
        if (r->state == CDP__REF_PENDING && r->parent != CDP__REF_NONE)
            cdp__ref_do(t, CDP__REF_SEND_ACCEPT, slot, r->parent, CDP__REF_LOST);
        r->state = CDP__REF_BROKEN;
        cdp__ref_do(t, CDP__REF_NOW_BROKEN, slot, rank, CDP__REF_LOST);
        cdp__ref_waiting(t, slot);
    }
    cdp__ref_release(t, slot);
}

/* The link to `rank` has ended; lost[rank] is set already. */
CDP__PRIVATE void cdp__ref_lost(cdp__refs *t, uint32_t rank) {
    uint32_t slot;
    for (slot = 1; slot < t->room; ++slot) {
        cdp__ref *r = &t->at[slot];
        if (r->kind == CDP__REF_USER) cdp__ref_user_lost(t, slot, rank);
        if (r->kind == CDP__REF_FORK && r->rank == rank) {
            const uint32_t of = r->of;
            cdp__refs_remove(t, slot);
            --t->at[of].count;
            cdp__ref_release(t, of);
        }
    }
}

#endif /* CDP_SRC_RPC_FORKS_H */
