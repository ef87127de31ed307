/* group/hub.h - the in-process transport

   Knows: the lines of >>message/fabric between threads of one process, in memory of the os's
   allocator. Promises: what cdp_transport asks for; peers read exposed memory in place. Without
   condition variables, as when one thread polls all ranks in turn, a wait sleeps briefly, so
   that other ranks run. */
#ifndef CDP_SRC_GROUP_HUB_H
#define CDP_SRC_GROUP_HUB_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../os/whole.h"
#include "../message/transport_api.h"
#include "hub_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/ended.h"
#include "../base/text.h"
#include "../os/linux.h"
#include "../os/child.h"
#include "../message/header.h"
#include "../message/fabric.h"
#include "state.h"

#ifndef CDP_NO_HUB

/* The state of one rank that all ranks share. */
typedef struct cdp__hub_rank {
    cdp__doorbell bell; /* one doorbell for all its lines */
    cdp_lock lock;      /* guards the owner's sleep */
    void *cond;
    uint32_t left, taken; /* (atomic) */
} cdp__hub_rank;

struct cdp_hub {
    cdp_hub_desc desc;
    const cdp_os *os;
    uint32_t forks;  /* see cdp__is_child() */
    cdp__way **ways; /* [from * world_size + to], made on first use (atomic) */
    cdp__hub_rank *ranks;
    cdp_lock cause_lock;
    uint8_t cause[CDP__FAILURE_MAX]; /* the first record of any rank */
    uint32_t cause_bytes;            /* 0: none yet */
    uint32_t broken;                 /* a record exists: every rank must be told (atomic) */
};

typedef struct cdp__hub_end {
    cdp_hub *hub;
    cdp__line **lines; /* by peer, made on first use */
    uint32_t rank;
    uint32_t bell_counts[2]; /* counts of its doorbell when last polled */
    bool broken_read;        /* this rank's group was told that there is a record */
    /* the rank has joined, so destroying this end means that it leaves; false after an invalid
       desc, so that the rank may try again */
    bool made;
} cdp__hub_end;

/* Two threads may create the same way at once; the one that loses the race frees its own. */
CDP__PRIVATE cdp__way *cdp__hub_way(cdp_hub *h, uint32_t from, uint32_t to, bool make) {
    cdp__way **place = &h->ways[(uint64_t)from * h->desc.world_size + to];
    cdp__way *way = (cdp__way *)cdp__atomic_load_ptr(place, CDP__ACQUIRE), *expected = NULL;
    if (way || !make) return way;
    way = (cdp__way *)cdp__alloc(h->os, sizeof *way + h->desc.ring_bytes);
    if (!way) {
        cdp__fail_nomem("the ring between two ranks of a hub", sizeof *way + h->desc.ring_bytes);
        return NULL;
    }
    memset(way, 0, sizeof *way);
    if (cdp__atomic_cas_ptr(place, &expected, way, CDP__ACQ_REL, CDP__ACQUIRE)) return way;
    cdp__free(h->os, way);
    return expected;
}

CDP__PRIVATE void cdp__hub_wake_rank(const cdp_hub *h, cdp__hub_rank *r) {
    if (!r->cond) return;
    cdp_lock_acquire(&r->lock);
    h->os->threads.cond_broadcast(h->os->user, r->cond);
    cdp_lock_release(&r->lock);
}

CDP__PRIVATE void cdp__hub_wake_peer(cdp__line *l) {
    cdp_hub *h = (cdp_hub *)l->owner;
    cdp__hub_wake_rank(h, &h->ranks[l->peer]);
}

CDP__PRIVATE void cdp__hub_ring(cdp_hub *h, uint32_t rank) {
    if (cdp__doorbell_ring(&h->ranks[rank].bell, CDP__BELL_DATA))
        cdp__hub_wake_rank(h, &h->ranks[rank]);
}

CDP__PRIVATE void cdp__hub_ring_all(cdp_hub *h) {
    uint32_t r;
    for (r = 0; r < h->desc.world_size; ++r)
        cdp__hub_ring(h, r);
}

CDP__PRIVATE cdp__line *cdp__hub_line_make(cdp__hub_end *e, uint32_t peer) {
    cdp_hub *h = e->hub;
    cdp__line *l = (cdp__line *)cdp__alloc_zero(h->os, sizeof *l);
    if (!l) {
        cdp__fail_nomem("a line between two ranks of a hub", sizeof *l);
        return NULL;
    }
    l->size = h->desc.ring_bytes;
    l->same_process = true;
    l->theirs = &h->ranks[peer].bell;
    l->wake = cdp__hub_wake_peer;
    l->owner = h;
    l->peer = peer;
    return e->lines[peer] = l;
}

/* The line to a peer, whose way in this direction exists. NULL: out of memory or, unless `make`
   is set, neither side has created the way. */
CDP__PRIVATE cdp__line *cdp__hub_line(cdp__hub_end *e, uint32_t peer, bool outgoing, bool make) {
    cdp__line *l = e->lines[peer];
    cdp__way *way = NULL;
    if (l) way = outgoing ? l->out : l->in;
    if (way) return l;
    way = cdp__hub_way(e->hub, outgoing ? e->rank : peer, outgoing ? peer : e->rank, make);
    if (!way || (!l && !(l = cdp__hub_line_make(e, peer)))) return NULL;
    *(outgoing ? &l->out : &l->in) = way;
    return l;
}

CDP__PRIVATE bool cdp__hub_left(const cdp__hub_end *e, uint32_t peer) {
    return cdp__atomic_load_u32(&e->hub->ranks[peer].left, CDP__ACQUIRE) != 0;
}

CDP__PRIVATE int64_t cdp__hub_move(
    cdp__hub_end *e, uint32_t peer, const cdp_iov *v, uint32_t n, bool sending) {
    cdp__line *l = cdp__hub_line(e, peer, sending, true);
    /* read before the ring, because data that the peer wrote before it left is still valid */
    const bool left = cdp__hub_left(e, peer);
    int64_t moved;
    if (!l) return CDP_ERR_NOMEM;
    moved = sending && left ? 0 : cdp__line_move(l, v, n, sending);
    CDP_ASSERT(moved >= 0); /* threads of one process store no invalid values */
    if (!moved && left)
        return cdp__fail_peer(CDP_ERR_PEER_LOST, peer, 0, "rank %u has left the group", peer);
    return moved;
}

CDP__PRIVATE int64_t cdp__hub_send(void *self, uint32_t peer, const cdp_iov *v, uint32_t n) {
    return cdp__hub_move((cdp__hub_end *)self, peer, v, n, true);
}

CDP__PRIVATE int64_t cdp__hub_recv(void *self, uint32_t peer, const cdp_iov *v, uint32_t n) {
    return cdp__hub_move((cdp__hub_end *)self, peer, v, n, false);
}

CDP__PRIVATE void *cdp__hub_slots(void *self, uint32_t peer, bool outgoing) {
    cdp__hub_end *e = (cdp__hub_end *)self;
    cdp__line *l = cdp__hub_line(e, peer, outgoing, false);
    if (!l || (outgoing && cdp__hub_left(e, peer))) return NULL;
    return outgoing ? &l->out->eager.slots : &l->in->eager.slots;
}

CDP__PRIVATE void cdp__hub_doorbell(void *self, uint32_t peer) {
    cdp__hub_ring(((cdp__hub_end *)self)->hub, peer);
}

CDP__PRIVATE bool cdp__hub_linked(void *self, uint32_t peer) {
    const cdp__hub_end *e = (const cdp__hub_end *)self;
    return cdp__hub_way(e->hub, peer, e->rank, false) != NULL;
}

/* Sleeps until the doorbell rings or the deadline. The lock guards only the sleep: a peer takes
   it after it has incremented the count, so no ring is lost between the last poll and the sleep. */
CDP__PRIVATE void cdp__hub_sleep(cdp__hub_end *e, uint64_t deadline_ns) {
    cdp__hub_rank *r = &e->hub->ranks[e->rank];
    const cdp_os *os = e->hub->os;
    if (!r->cond) {
        cdp__sleep_until(os, cdp__min(deadline_ns, os->now_ns(os->user) + CDP__MS / 10));
        return;
    }
    cdp_lock_acquire(&r->lock);
    /* again before each sleep: a peer that rang for an earlier one may clear `wants` only now */
    cdp__doorbell_arm(&r->bell, CDP__BELL_ALL);
    while (!cdp__doorbell_rung(&r->bell, e->bell_counts, CDP__BELL_ALL)
        && os->now_ns(os->user) < deadline_ns) {
        os->threads.cond_wait(os->user, r->cond, r->lock.mutex, deadline_ns);
        cdp__doorbell_arm(&r->bell, CDP__BELL_ALL);
    }
    cdp_lock_release(&r->lock);
}

CDP__PRIVATE cdp_status cdp__hub_wait(void *self, cdp_lock *lock, uint64_t deadline_ns) {
    cdp__hub_end *e = (cdp__hub_end *)self;
    cdp__doorbell *bell = &e->hub->ranks[e->rank].bell;
    if (deadline_ns && !cdp__doorbell_rung(bell, e->bell_counts, CDP__BELL_ALL)) {
        cdp_lock_release(lock);
        cdp__hub_sleep(e, deadline_ns);
        cdp_lock_acquire(lock);
    }
    cdp__doorbell_read(bell, e->bell_counts);
    if (e->broken_read || !cdp__atomic_load_u32(&e->hub->broken, CDP__ACQUIRE)) return CDP_OK;
    e->broken_read = true;
    /* cdp__hub_first() returns the record */
    return cdp__fail(CDP_ERR_PEER_LOST, "another rank has failed");
}

CDP__PRIVATE void cdp__hub_wake(void *self) {
    cdp__hub_end *e = (cdp__hub_end *)self;
    cdp__hub_ring(e->hub, e->rank);
}

CDP__PRIVATE bool cdp__hub_expose(
    void *self, uint32_t peer, const void *data, uint64_t bytes, bool fresh, uint64_t *token) {
    cdp__line *l = cdp__hub_line((cdp__hub_end *)self, peer, true, true);
    (void)fresh;
    return l && cdp__line_expose(l, data, bytes, 0, 0, token);
}

CDP__PRIVATE void cdp__hub_revoke(void *self, uint32_t peer, uint64_t token) {
    const cdp__hub_end *e = (const cdp__hub_end *)self;
    const cdp_os *os = e->hub->os;
    while (!cdp__line_revoke(e->lines[peer], token))
        if (os->threads.yield) os->threads.yield(os->user);
}

CDP__PRIVATE bool cdp__hub_try_revoke(void *self, uint32_t peer, uint64_t token) {
    return cdp__line_try_revoke(((cdp__hub_end *)self)->lines[peer], token);
}

CDP__PRIVATE uint32_t cdp__hub_host(void *self, uint32_t peer) {
    (void)self;
    (void)peer;
    return 0;
}

CDP__PRIVATE const void *cdp__hub_map(void *self, uint32_t peer, uint64_t token, uint64_t bytes) {
    cdp__line *l = cdp__hub_line((cdp__hub_end *)self, peer, false, false);
    cdp__exposure e;
    if (!l || !cdp__line_read_begin(l, token, &e)) return NULL;
    if (e.bytes == bytes) return (const void *)(uintptr_t)e.at;
    (void)cdp__line_read_end(l, token);
    return NULL;
}

CDP__PRIVATE bool cdp__hub_unmap(void *self, uint32_t peer, uint64_t token) {
    return cdp__line_read_end(((cdp__hub_end *)self)->lines[peer], token);
}

/* Returns the failure record that the first failing rank published. Ranks that only see other
   ranks leave learn the cause from it. */
CDP__PRIVATE uint32_t cdp__hub_first(void *self, void *record, uint32_t room) {
    cdp_hub *h = ((cdp__hub_end *)self)->hub;
    uint32_t n;
    cdp_lock_acquire(&h->cause_lock);
    n = h->cause_bytes <= room ? h->cause_bytes : 0;
    if (n) memcpy(record, h->cause, n);
    cdp_lock_release(&h->cause_lock);
    return n;
}

CDP__PRIVATE CDP__COLD void cdp__hub_publish(void *self, const void *record, uint32_t bytes) {
    cdp__hub_end *end = (cdp__hub_end *)self;
    cdp_hub *h = end->hub;
    cdp_lock_acquire(&h->cause_lock);
    if (!h->cause_bytes && bytes <= sizeof h->cause) {
        memcpy(h->cause, record, bytes);
        h->cause_bytes = bytes;
    }
    cdp_lock_release(&h->cause_lock);
    end->broken_read = true;
    /* also those without messages from this rank */
    if (!cdp__atomic_swap_u32(&h->broken, 1, CDP__ACQ_REL)) cdp__hub_ring_all(h);
}

CDP__PRIVATE void cdp__hub_end_free(cdp__hub_end *e) {
    const cdp_os *os = e->hub->os;
    uint32_t r;
    for (r = 0; e->lines && r < e->hub->desc.world_size; ++r)
        cdp__free(os, e->lines[r]);
    cdp__free(os, e->lines);
    cdp__free(os, e);
}

CDP__PRIVATE void cdp__hub_leave(void *self) {
    cdp__hub_end *e = (cdp__hub_end *)self;
    cdp__atomic_store_u32(&e->hub->ranks[e->rank].left, e->made, CDP__RELEASE);
    cdp__atomic_store_u32(&e->hub->ranks[e->rank].taken, e->made, CDP__RELEASE);
    cdp__hub_ring_all(e->hub);
    cdp__hub_end_free(e);
}

CDP__PRIVATE cdp_status cdp__hub_attach(
    cdp_hub *h, uint32_t rank, uint32_t world_size, cdp_transport *out) {
    cdp__hub_end *e;
    if (cdp__ended(h)) return cdp__fail(CDP_ERR_STATE, "cdp_group_create: this hub was destroyed");
    if (cdp__is_child(h->forks))
        return cdp__child_refuses(CDP_ERR_STATE, "cdp_group_create", "hub");
    if (h->desc.world_size != world_size)
        return cdp__fail(CDP_ERR_INVALID,
            "the hub connects %u ranks, the group is to have %u: make them equal",
            h->desc.world_size, world_size);
    e = (cdp__hub_end *)cdp__alloc_zero(h->os, sizeof *e);
    if (!e) return cdp__fail_nomem("a rank's end of a hub", sizeof *e);
    e->hub = h;
    e->rank = rank;
    e->made = true;
    e->lines = (cdp__line **)cdp__alloc_zero(h->os, world_size * sizeof *e->lines);
    if (!e->lines) {
        cdp__hub_end_free(e);
        return cdp__fail_nomem("a rank's end of a hub", world_size * sizeof *e->lines);
    }
    if (cdp__atomic_swap_u32(&h->ranks[rank].taken, 1, CDP__ACQ_REL)) {
        cdp__hub_end_free(e);
        return cdp__fail(CDP_ERR_INVALID,
            "rank %u of this hub has a group, or had one; for another world make another hub",
            rank);
    }
    out->self = e;
    out->send = cdp__hub_send;
    out->recv = cdp__hub_recv;
    out->wait = cdp__hub_wait;
    out->wake = cdp__hub_wake;
    out->name = "hub";
    out->failure.publish = cdp__hub_publish;
    out->failure.first = cdp__hub_first;
    out->failure.linked = cdp__hub_linked;
    out->destroy = cdp__hub_leave;
    out->remote.expose = cdp__hub_expose;
    out->remote.revoke = cdp__hub_revoke;
    out->remote.try_revoke = cdp__hub_try_revoke;
    out->remote.map = cdp__hub_map;
    out->slots.memory = cdp__hub_slots;
    out->slots.ring = cdp__hub_doorbell;
    out->remote.unmap = cdp__hub_unmap;
    out->topology.host = cdp__hub_host;
    return CDP_OK;
}

/* The group was not created because its desc is invalid: this rank may try again. */
CDP__PRIVATE void cdp__hub_refuse(void *self) {
    ((cdp__hub_end *)self)->made = false;
}

CDP_API void cdp_hub_destroy(cdp_hub *h) {
    uint64_t i;
    if (!h || cdp__ended(h) || cdp__is_child(h->forks)) return;
    cdp__ended_add(h);
    for (i = 0; h->ways && i < (uint64_t)h->desc.world_size * h->desc.world_size; ++i)
        cdp__free(h->os, h->ways[i]);
    for (i = 0; h->ranks && i < h->desc.world_size; ++i) {
        if (h->ranks[i].cond) h->os->threads.cond_destroy(h->os, h->ranks[i].cond);
        cdp__lock_close(&h->ranks[i].lock);
    }
    cdp__lock_close(&h->cause_lock);
    cdp__free(h->os, h->ways);
    cdp__free(h->os, h->ranks);
    cdp__free(h->os, h);
}

CDP_API cdp_status cdp_hub_create(const cdp_hub_desc *desc, cdp_hub **out) {
    const cdp_os *os;
    cdp_hub *h;
    uint32_t i;
    if (!out) return cdp__missing("cdp_hub_create", "out");
    *out = NULL;
    if (!desc) return cdp__missing("cdp_hub_create", "desc");
    if (desc->world_size - 1 >= 65535) return cdp__world_wrong("cdp_hub_create", desc->world_size);
    if (cdp__os_whole(desc->os, "cdp_hub_create") != CDP_OK) return CDP_ERR_INVALID;
    os = desc->os ? desc->os : cdp_os_default();
    h = (cdp_hub *)cdp__alloc_zero(os, sizeof *h);
    if (!h) return cdp__fail_nomem("a hub", sizeof *h);
    cdp__ended_remove(h);
    h->os = os;
    h->forks = cdp__forks_watch();
    h->desc = *desc;
    h->desc.ring_bytes = cdp__def(desc->ring_bytes, 256 * 1024);
    h->ways = (cdp__way **)cdp__alloc_zero(
        os, (uint64_t)desc->world_size * desc->world_size * sizeof *h->ways);
    h->ranks = (cdp__hub_rank *)cdp__alloc_zero(os, desc->world_size * sizeof *h->ranks);
    for (i = 0; h->ways && h->ranks && i < desc->world_size; ++i) {
        if (!cdp__lock_open(&h->ranks[i].lock, os, os->threads.mutex_create != NULL)) break;
        h->ranks[i].cond = os->threads.cond_create ? os->threads.cond_create(os) : NULL;
        if (os->threads.cond_create && !h->ranks[i].cond) break;
    }
    if (!h->ways || !h->ranks || i < desc->world_size
        || !cdp__lock_open(&h->cause_lock, os, os->threads.mutex_create != NULL)) {
        cdp_hub_destroy(h);
        return cdp__fail_nomem("a hub", sizeof *h);
    }
    *out = h;
    return CDP_OK;
}

#else

CDP__PRIVATE cdp_status cdp__hub_attach(
    cdp_hub *h, uint32_t rank, uint32_t world_size, cdp_transport *out) {
    (void)h;
    (void)rank;
    (void)world_size;
    (void)out;
    return cdp__fail(CDP_ERR_UNSUPPORTED,
        "cdp_group_create: hub is set, but CDP_NO_HUB was defined when cdp.h was compiled");
}
CDP__PRIVATE void cdp__hub_refuse(void *self) {
    (void)self;
}

#endif /* CDP_NO_HUB */

#endif /* CDP_SRC_GROUP_HUB_H */
