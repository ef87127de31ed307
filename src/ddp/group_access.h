/* ddp/group_access.h - functions of a group for training only

   Knows: the members of cdp_group. Promises: later sections access a group only through its public
   functions and those of this section. */
#ifndef CDP_SRC_DDP_GROUP_ACCESS_H
#define CDP_SRC_DDP_GROUP_ACCESS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../collective/kinds.h"
#include "../dtype/dtype.h"
#include "../collective/kinds.h"
#include "../message/header.h"
#include "../group/state.h"
#include "../group/progress.h"
#include "../group/group_calls.h"
#include "../group/queue.h"

/* The operating system interface that the group was created with. */
CDP__PRIVATE const cdp_os *cdp__group_os(const cdp_group *g) {
    return g->os;
}

/* Breaks the group on every rank with error `e`, unless it is failing already: then its own
   cause stands. */
CDP__PRIVATE void cdp__group_break_unless_failing(cdp_group *g, const cdp_error *e) {
    cdp__enter(g);
    if (g->health == CDP__HEALTHY) cdp__group_break(g, e);
    cdp__leave(g);
}

/* True if communication advances only inside calls. */
CDP__PRIVATE bool cdp__group_is_polled(const cdp_group *g) {
    return !g->w->thread;
}

/* The number of a new ddp of this group; equal on all ranks, because ddps are created in the
   same order. */
CDP__PRIVATE uint32_t cdp__group_next_ddp(cdp_group *g) {
    return g->ddps++;
}

/* Makes a failure of `part`, which has no parent yet, one of `whole`, and the reverse. */
CDP__PRIVATE void cdp__group_share_failures(cdp_group *part, cdp_group *whole) {
    cdp__enter(whole);
    part->parent = cdp__group_top(whole);
    ++part->parent->children;
    cdp__leave(whole);
}

/* A group of all ranks, in which nothing else runs; `room`: one number for each of them. Without
   groups it is the same one. */
CDP__PRIVATE cdp_status cdp__group_alike(cdp_group *whole, uint32_t *room, cdp_group **out) {
#ifdef CDP_NO_GROUPS
    (void)room;
    *out = whole;
    return CDP_OK;
#else
    const uint32_t n = cdp_size(whole);
    cdp_status st;
    uint32_t i;
    for (i = 0; i < n; ++i)
        room[i] = i;
    st = cdp_group_new(whole, room, n, out);
    if (st == CDP_OK) cdp__group_share_failures(*out, whole);
    return st;
#endif
}

/* A work that completes when the group's backend has done everything given to it so far. */
CDP__PRIVATE cdp_work cdp__group_device_work(cdp_group *g) {
    cdp_work w;
    w.group = g;
    w.seq = CDP__DEVICE_BIT;
    return w;
}

/* Starts an operation for bucket `bucket` (0xffff: none) of ddp number `ddp`. Ranks compare both
   numbers, so that ranks at different buckets of equal size get an error. `done`, which may be
   NULL, is called with the times at which the operation began and ended, with the group's lock
   held. */
CDP__PRIVATE cdp_status cdp__group_start_bucket(cdp_group *g, const cdp_request *request,
    uint32_t ddp, uint32_t bucket, void (*done)(void *, uint64_t, uint64_t), void *user,
    cdp_work *out) {
    const cdp__with with = {{NULL, 0}, done, user, false, 0};
    cdp_request rq = *request;
    cdp_status st;
    if (!cdp__kind_has_root(rq.kind))
        rq.root = CDP__TAG_BUCKET | (ddp & 0xffu) << 16 | (bucket & 0xffffu);
    st = cdp__start(g, &rq, &with, out);
    if (st == CDP_OK) cdp__hand_over(g);
    return st;
}

/* Starts a broadcast. Errors say what it copies (CDP__TAG_BUFFERS, for one) of ddp number `ddp`. */
CDP__PRIVATE cdp_status cdp__group_start_copy(
    cdp_group *g, const cdp_request *request, uint32_t tag, uint32_t ddp, cdp_work *out) {
    const cdp__with with = {{NULL, 0}, NULL, NULL, false, tag | (ddp & 0xffu) << 16};
    const cdp_status st = cdp__start(g, request, &with, out);
    if (st == CDP_OK) cdp__hand_over(g);
    return st;
}

#endif /* CDP_SRC_DDP_GROUP_ACCESS_H */
