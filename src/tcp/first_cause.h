/* tcp/first_cause.h - the first failure of a job, recorded in the store

   Knows: the store's keys "fail" and "wait". Promises: an earlier or deeper cause that another rank
   has recorded replaces this rank's own; its own record there is its latest one. */
#ifndef CDP_SRC_TCP_FIRST_CAUSE_H
#define CDP_SRC_TCP_FIRST_CAUSE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../store/interface_api.h"
#include "../message/transport_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../os/linux.h"
#include "../os/loop.h"
#include "../base/bytes.h"
#include "../failure/records.h"
#include "../message/stream.h"
#include "../group/state.h"
#include "../store/desc_api.h"
#include "../store/store_api.h"
#include "../store/addr.h"
#include "../store/auth.h"
#include "../store/server_create.h"
#include "../store/client_calls.h"
#include "memory.h"
#include "link.h"
#include "mesh.h"
#include "link_streams.h"
#include "incoming.h"

CDP__PRIVATE uint64_t cdp__mesh_now(const cdp__mesh *m) {
    return m->os->now_ns(m->os->user);
}

/* Returns an error if another rank has stored a cause under "fail". */
CDP__PRIVATE cdp_status cdp__mesh_cause_status(cdp__mesh *m) {
    if (!m->watching || m->watch_rq.status == CDP_PENDING) return CDP_OK;
    m->watching = false;
    /* the store is gone: rank 0 may have left, which is no failure */
    if (m->watch_rq.status != CDP_OK) return CDP_OK;
    return cdp__fail(CDP_ERR_ABORTED, "another rank reported a failure");
}

CDP__PRIVATE cdp_status cdp__mesh_wait(void *self, cdp_lock *lock, uint64_t deadline_ns) {
    cdp__mesh *m = (cdp__mesh *)self;
    cdp_status st;
    if (cdp__mesh_sharing(m)
        && !deadline_ns) { /* a caller in a busy loop polls the memory itself */
        const uint64_t now = cdp__mesh_now(m);
        if (now < m->looked_ns + CDP__LOOK_NS) return CDP_OK;
        m->looked_ns = now;
    }
    if (cdp__mesh_sharing(m) && deadline_ns && cdp__shared_doze(m->sharing)) deadline_ns = 0;
    st = cdp__loop_run(&m->loop, lock, deadline_ns);
    cdp__shared_awake(cdp__mesh_sharing(m));
    return st == CDP_OK ? cdp__mesh_cause_status(m) : st;
}

CDP__PRIVATE void cdp__mesh_wake(void *self) {
    cdp__loop_wake(&((cdp__mesh *)self)->loop);
}

CDP__PRIVATE void cdp__mesh_key(const cdp__mesh *m, char out[96], const char *what, uint32_t rank) {
    if (rank == UINT32_MAX)
        cdp__format(out, 96, "%s%s/%s", m->desc.job, m->round, what);
    else
        cdp__format(out, 96, "%s%s/%s/%u", m->desc.job, m->round, what, rank);
}

/* A key that all starts of the job have in common. */
CDP__PRIVATE void cdp__mesh_common_key(const cdp__mesh *m, char out[96], const char *what) {
    cdp__format(out, 96, "%s/%s", m->desc.job, what);
}

/* Starts an asynchronous request. False: the store refused it. */
CDP__PRIVATE cdp_status cdp__mesh_start(cdp_store *s, cdp_store_request *rq, cdp_store_op op,
    const cdp_bytes *keys, uint32_t count, const cdp_bytes *values) {
    memset(rq, 0, sizeof *rq);
    rq->op = op;
    rq->keys = keys;
    rq->key_count = count;
    rq->values = values;
    rq->status = CDP_PENDING;
    return s->start(s->self, rq);
}

/* Starts to store this rank's cause under "fail" if `expected` is there now. False: the store
   refused the request. */
CDP__PRIVATE bool cdp__mesh_put(cdp__mesh *m, cdp__cause_put *p, cdp_bytes expected) {
    bool begun;
    p->key.data = m->fail_key;
    p->key.bytes = strlen(m->fail_key);
    p->values[0] = expected;
    memcpy(p->value, m->cause, m->cause_bytes);
    p->values[1].data = p->value;
    p->values[1].bytes = m->cause_bytes;
    begun =
        cdp__mesh_start(m->store, &p->rq, CDP_STORE_COMPARE_SET, &p->key, 1, p->values) >= CDP_OK;
    if (!begun) p->rq.status = CDP_ERR_STORE; /* there is nothing to cancel */
    return begun;
}

CDP__PRIVATE cdp__cause_put *cdp__mesh_last_put(cdp__mesh *m) {
    return m->put_count ? &m->puts[(m->put_count - 1) % 2] : NULL;
}

/* Stores this rank's cause, if no rank has stored one before. Stores it again when this rank has
   received a deeper cause, because ranks that are still starting read only the store. */
CDP__PRIVATE CDP__COLD void cdp__mesh_put_cause(cdp__mesh *m) {
    cdp__cause_put *const last = cdp__mesh_last_put(m), *const p = &m->puts[m->put_count % 2];
    cdp_bytes expected = {NULL, 0};
    if (!m->store) return;
    if (last) {
        expected = last->values[1];
        if (expected.bytes == m->cause_bytes && !memcmp(expected.data, m->cause, m->cause_bytes))
            return;
        /* a third one needs the memory of both: some stores do not answer in order */
        if (m->put_count > 1 && (last->rq.status == CDP_PENDING || p->rq.status == CDP_PENDING))
            return;
        if (m->put_count > 1) cdp_store_request_free(m->store, &p->rq);
    }
    m->put_count += cdp__mesh_put(m, p, expected);
}

/* Stores a correction that had to wait. Only >>tcp/rendezvous stores the cause of a start that
   failed: a process that does not belong to the job must not end it. */
CDP__PRIVATE void cdp__mesh_put_again(cdp__mesh *m) {
    if (m->put_count) cdp__mesh_put_cause(m);
}

CDP__PRIVATE void cdp__mesh_publish(void *self, const void *record, uint32_t bytes) {
    cdp__mesh *m = (cdp__mesh *)self;
    CDP_ASSERT(bytes <= sizeof m->cause);
    m->failing = true;
    memcpy(m->cause, record, bytes);
    m->cause_bytes = bytes;
    cdp__mesh_put_cause(m);
}

/* Rank 0 has left without a goodbye, and its store with it: makes a record that blames rank 0. */
CDP__PRIVATE uint32_t cdp__mesh_store_lost(const cdp__mesh *m, void *record, uint32_t room) {
    uint8_t body[CDP__FAILURE_BYTES];
    cdp__failure_record r;
    uint32_t n;
    if (m->desc.external_store || !m->desc.group.rank || !m->watch || m->watch_rq.number
        || m->watch_rq.status != CDP_ERR_STORE)
        return 0;
    cdp__failure_plain(&r, CDP_ERR_PEER_LOST, (int32_t)m->desc.group.rank, 0,
        "rank 0 is gone, and its store with it");
    r.domain = 0; /* this is a guess */
    n = cdp__failure_encode(&r, body);
    if (n > room) return 0;
    memcpy(record, body, n);
    return n;
}

/* True if this rank's own record blames rank 0 and its store is gone, too. Then there is no
   store to ask. */
CDP__PRIVATE bool cdp__mesh_lost_store_with_rank0(const cdp__mesh *m) {
    cdp__failure_record r;
    return !m->desc.external_store && m->watch && m->watch_rq.status == CDP_ERR_STORE
        && cdp__failure_decode(m->cause, m->cause_bytes, m->desc.group.world_size, &r)
        && r.end.named == 0;
}

/* How long the rank that serves the store waits for other ranks to read a cause, at most. */
#define CDP__HOST_MS CDP__REPORT_MS

CDP__PRIVATE void cdp__mesh_readers_late(cdp__timer *t) {
    (void)t; /* the timer only makes the group poll again */
}

/* A process may exit as soon as it has an error, and the store that it serves ends with it. True
   while other ranks may not have read the first cause; for CDP__HOST_MS at most, since one of
   them may have stopped. */
CDP__PRIVATE bool cdp__mesh_readers(cdp__mesh *m) {
    const uint64_t now = cdp__mesh_now(m);
    if (!cdp__mesh_serves(m) || !m->started) return false;
    if (!m->known_ns) {
        m->known_ns = now;
        cdp__loop_timer_set(
            &m->loop, &m->readers_timer, now + CDP__HOST_MS * CDP__MS, cdp__mesh_readers_late, m);
    }
    return now < m->known_ns + CDP__HOST_MS * CDP__MS && !cdp__store_server_quiet(m->server);
}

CDP__PRIVATE CDP__COLD uint32_t cdp__mesh_first(void *self, void *record, uint32_t room) {
    cdp__mesh *m = (cdp__mesh *)self;
    const cdp_bytes *v = NULL;
    uint32_t i;
    if (m->watch && m->watch_rq.status == CDP_OK) v = m->watch_rq.results;
    for (i = m->put_count > 2 ? m->put_count - 2 : 0; i < m->put_count; ++i)
        if (m->puts[i % 2].rq.status == CDP_OK) v = m->puts[i % 2].rq.results;
    cdp__mesh_put_again(m);
    if (v && cdp__mesh_readers(m)) return 0;
    if (!v && cdp__mesh_lost_store_with_rank0(m) && m->cause_bytes <= room) {
        memcpy(record, m->cause, m->cause_bytes);
        return m->cause_bytes;
    }
    if (!v || v->bytes > room) return cdp__mesh_store_lost(m, record, room);
    memcpy(record, v->data, (size_t)v->bytes);
    return (uint32_t)v->bytes;
}

CDP__PRIVATE void cdp__mesh_wait_record_start(cdp__mesh *m, cdp_store_op op) {
    const bool begun =
        cdp__mesh_start(m->store, &m->wait_record_rq, op, &m->wait_record_key, 1, NULL) >= CDP_OK;
    m->wait_record_state = CDP__WAIT_RECORD_DONE;
    if (begun)
        m->wait_record_state = op == CDP_STORE_GET ? CDP__WAIT_RECORD_GET : CDP__WAIT_RECORD_CHECK;
}

/* Takes the next step of reading the wait record of `wait_record_rank`. */
CDP__PRIVATE void cdp__mesh_wait_record_step(cdp__mesh *m) {
    if (m->wait_record_state == CDP__WAIT_RECORD_DONE || m->wait_record_rq.status == CDP_PENDING)
        return;
    if (m->wait_record_state == CDP__WAIT_RECORD_CHECK && m->wait_record_rq.status == CDP_OK
        && m->wait_record_rq.number) {
        cdp_store_request_free(m->store, &m->wait_record_rq);
        cdp__mesh_wait_record_start(m, CDP_STORE_GET);
        return;
    }
    if (m->wait_record_state == CDP__WAIT_RECORD_GET && m->wait_record_rq.status == CDP_OK
        && m->wait_record_rq.results[0].bytes == 4)
        m->wait_record_named =
            (int32_t)cdp__get_u32((const uint8_t *)m->wait_record_rq.results[0].data);
    cdp_store_request_free(m->store, &m->wait_record_rq);
    m->wait_record_state = CDP__WAIT_RECORD_DONE;
}

/* How long a store that answers may take for it. */
#define CDP__WAIT_RECORD_MS 10u

/* Reads the wait record of a rank that does not answer: returns the rank that it waits for while it
   starts, or -1 if that is not known (yet) or it has started. A lost rank that was connected before
   has started. If the store has not answered by the last call (`last`) and has had
   CDP__WAIT_RECORD_MS, returns 0, because rank 0 serves it. -2: the rank is lost, and so is the
   store of rank 0, so either may be the cause. */
CDP__PRIVATE CDP__COLD int32_t cdp__mesh_starting(void *self, uint32_t peer, bool lost, bool last) {
    cdp__mesh *m = (cdp__mesh *)self;
    if (lost && peer && !m->desc.external_store && m->watch && m->watch_rq.status < CDP_OK)
        return -2;
    if (lost && m->links[peer].was_up) return -1;
    if (!m->store) return -1;
    if (m->wait_record_state != CDP__WAIT_RECORD_NONE) cdp__mesh_wait_record_step(m);
    if (m->wait_record_state == CDP__WAIT_RECORD_DONE && m->wait_record_rank != peer)
        m->wait_record_state = CDP__WAIT_RECORD_NONE;
    if (m->wait_record_state == CDP__WAIT_RECORD_NONE) {
        m->wait_record_rank = peer;
        m->wait_record_named = -1;
        cdp__mesh_key(m, m->wait_record_text, "wait", peer);
        m->wait_record_key.data = m->wait_record_text;
        m->wait_record_key.bytes = strlen(m->wait_record_text);
        cdp__mesh_wait_record_start(m, CDP_STORE_CHECK);
        m->wait_record_ns = cdp__mesh_now(m);
    }
    if (m->wait_record_state == CDP__WAIT_RECORD_DONE) return m->wait_record_named;
    if (!last || m->wait_record_rq.status != CDP_PENDING
        || cdp__mesh_now(m) < m->wait_record_ns + CDP__WAIT_RECORD_MS * CDP__MS)
        return -1;
    return m->desc.group.rank && !m->desc.external_store ? 0 : -1;
}

CDP__PRIVATE bool cdp__mesh_linked(void *self, uint32_t peer) {
    cdp__mesh *m = (cdp__mesh *)self;
    uint32_t i = 0;
    while (i < m->desc.connections && cdp__bundle_at(&m->links[peer], i)->state == CDP__LINK_UP)
        ++i;
    return i == m->desc.connections || (i && cdp__link_shared(&m->links[peer]));
}

/* Longer than a lost packet or two take on any network that works. */
#define CDP__UNACKED_MS 500u

CDP__PRIVATE CDP__COLD bool cdp__mesh_unacked(void *self, uint32_t peer) {
    cdp__mesh *m = (cdp__mesh *)self;
    uint32_t i;
    for (i = 0; m->os->net.unanswered_ns && i < m->desc.connections; ++i) {
        const cdp__link *l = cdp__bundle_at(&m->links[peer], i);
        if (l->state == CDP__LINK_UP && !l->shared
            && m->os->net.unanswered_ns(m->os->user, l->io.fd) >= CDP__UNACKED_MS * CDP__MS)
            return true;
    }
    return false;
}

/* The number of a rank's host. */
CDP__PRIVATE uint32_t cdp__mesh_host(void *self, uint32_t peer) {
    return ((cdp__mesh *)self)->hosts[peer];
}

#ifndef CDP_NO_RECORDER
CDP__PRIVATE void cdp__mesh_describe(void *self, uint32_t peer, char *out, uint64_t size) {
    static const char *const states[] = {
        "not used yet", "awaited", "trying its addresses", "being made", "", "lost"};
    cdp__mesh *m = (cdp__mesh *)self;
    const cdp__shared *s = m->links[peer].state == CDP__LINK_UP ? m->links[peer].shared : NULL;
    cdp__text t = cdp__text_of(out, size);
    char here[80], there[80];
    cdp_addr at;
    uint64_t views;
    uint32_t i;
    if (s)
        cdp__text_add(&t, "memory, %llu KiB each way, ", (unsigned long long)(s->line.size / 1024));
    for (i = 0, views = 0; s && i < CDP_SEGMENTS; ++i)
        views += s->mappings[i].at ? s->mappings[i].bytes : 0;
    if (views)
        cdp__text_add(
            &t, "%llu KiB of its group memory mapped here, ", (unsigned long long)(views / 1024));
    if (s) cdp__text_add(&t, "beside ");
    cdp__text_add(&t, "TCP");
    for (i = 0; i < (s ? 1 : m->desc.connections); ++i) {
        const cdp__link *l = cdp__bundle_at(&m->links[peer], i);
        memset(&at, 0, sizeof at);
        if (l->state == CDP__LINK_UP) (void)m->os->net.local_addr(m->os->user, l->io.fd, &at);
        cdp__addr_text(&at, here, sizeof here);
        cdp__addr_text(&l->addr, there, sizeof there);
        if (l->state == CDP__LINK_UP)
            cdp__text_add(&t, ", %s to %s", here, there);
        else
            cdp__text_add(&t, l->addr.family ? ", %s, at %s" : ", %s", states[l->state], there);
    }
    if (m->keyed && cdp__mesh_linked(m, peer)) cdp__text_add(&t, ", key proved");
    if (m->desc.mac && !s && cdp__mesh_linked(m, peer)) cdp__text_add(&t, ", mac");
}
#endif

/* How long the rank that serves the store waits for ranks that started late, at most. */
#define CDP__LATE_MS 1000u

/* This rank could not start, and others may not have connected yet. Rank 0 keeps the store open
   for 2 * CDP__SETTLE_MS, so that they can read the cause, and then until no rank is connected, for
   CDP__LATE_MS at most. Another rank whose store is gone tells ranks that connect, for
   CDP__REPORT_MS. True: it waited, until until_ns at most, and is to be called again. */
CDP__PRIVATE bool cdp__mesh_lingers(cdp__mesh *m, uint64_t until_ns) {
    const bool serves = cdp__mesh_serves(m);
    const uint32_t own = (m->store ? 1u : 0u) + (m->watch ? 1u : 0u);
    const uint64_t now = cdp__mesh_now(m), *at = m->linger_ns;
    if (!serves && m->watch_rq.status >= CDP_OK) return false;
    if (!at[1]) {
        const uint64_t most =
            (serves ? 2 * CDP__SETTLE_MS + CDP__LATE_MS : CDP__REPORT_MS) * CDP__MS;
        m->linger_ns[0] = now + 2 * CDP__SETTLE_MS * CDP__MS;
        m->linger_ns[1] = cdp__min(now + most, m->init_deadline_ns);
    }
    if (now >= at[1]) return false;
    if (serves && now >= at[0] && cdp__store_server_clients(m->server) <= own) return false;
    until_ns = cdp__min(until_ns, now < at[0] ? cdp__min(at[0], at[1]) : at[1]);
    return cdp__loop_run(&m->loop, NULL, until_ns) == CDP_OK;
}

/* A failed rank leaves only when the store has its cause. The rank that serves the store waits
   until the others have disconnected; after CDP__REPORT_MS it suffices that all answers were sent.
   Without a store, waits for late ranks to connect, and tells them. One step, until `until_ns` at
   most. False: there is nothing more to wait for. */
CDP__PRIVATE bool cdp__mesh_linger(cdp__mesh *m, uint64_t until_ns) {
    const bool serves = cdp__mesh_serves(m), store_gone = !serves && m->watch_rq.status < CDP_OK;
    const uint64_t now = cdp__mesh_now(m), told = m->leave_ns + CDP__REPORT_MS * CDP__MS;
    const uint64_t end = serves ? m->leave_ns + CDP__SETTLE_MS * CDP__MS : told;
    const uint32_t own = (m->store ? 1u : 0u) + (m->watch ? 1u : 0u);
    uint64_t at = end;
    bool more;
    if (!serves && !store_gone) {
        /* ranks that see this one leave ask the store why: the answer must be there before */
        cdp__mesh_put_again(m);
        more = m->put_count && cdp__mesh_last_put(m)->rq.status == CDP_PENDING;
    } else {
        m->leaving = true;
        if (!m->started) return cdp__mesh_lingers(m, until_ns);
        more = !serves || cdp__store_server_clients(m->server) > own;
        if (now < told)
            at = told;
        else if (serves && cdp__store_server_quiet(m->server))
            more = false;
    }
    return more && now < end && cdp__loop_run(&m->loop, NULL, cdp__min(at, until_ns)) == CDP_OK;
}

#define CDP__PART_MS 100u

/* True if the peer may still send data on this connection, or close it. */
CDP__PRIVATE bool cdp__link_open(const cdp__link *l) {
    return l->io.next && !cdp__link_shared(l)
        && (l->state == CDP__LINK_UP || l->state == CDP__LINK_LOST);
}

/* Sends the rest of the cause on links whose socket accepted only a part of it. True: on some link
   a rest still waits for room. */
CDP__PRIVATE bool cdp__mesh_sending_cause(cdp__mesh *m) {
    bool more = false;
    uint32_t i;
    for (i = 0; i < m->desc.group.world_size; ++i) {
        cdp__link *l = &m->links[i];
        if (l->state != CDP__LINK_UP || !l->cause_unsent) continue;
        cdp__link_send_cause(l);
        more = more || l->cause_unsent;
    }
    return more;
}

CDP__PRIVATE bool cdp__mesh_parting(const cdp__mesh *m) {
    uint32_t i;
    for (i = 0; i < m->desc.group.world_size * m->desc.connections; ++i)
        if (cdp__link_open(&m->links[i])) return true;
    return false;
}

/* This rank leaves: drops what still arrives, until the peers close their connections. */
CDP__PRIVATE void cdp__mesh_discard(cdp__mesh *m, bool end_sending) {
    uint32_t i;
    for (i = 0; m->links && i < m->desc.group.world_size * m->desc.connections; ++i) {
        cdp__link *l = &m->links[i];
        if (!cdp__link_open(l)) continue;
        l->io.func = cdp__link_parting;
        l->io.ready |= CDP_IO_READ;
        if (end_sending && l->state == CDP__LINK_UP)
            cdp__link_end_sending(l);
        else
            cdp__link_discard(l);
    }
}

/* Ends this rank's side of its links, and then waits until the peers have closed theirs. True: some
   have not yet. */
CDP__PRIVATE bool cdp__mesh_links_part(cdp__mesh *m, uint64_t now) {
    if (!m->links || !m->os->net.end_sending) return false;
    if (!m->parting && (now >= m->part_ns || !cdp__mesh_sending_cause(m))) {
        m->parting = true;
        cdp__mesh_discard(m, true);
    }
    return now < m->part_ns && (!m->parting || cdp__mesh_parting(m));
}

/* Says goodbye to the store, so that the last will of this rank is not carried out. True: the store
   has not answered, and may until *until_ns. */
CDP__PRIVATE bool cdp__mesh_store_parts(cdp__mesh *m, uint64_t *until_ns) {
    if (!m->watch) return false;
    if (m->watching && m->watch_rq.status == CDP_PENDING) {
        m->watch->cancel(m->watch->self, &m->watch_rq);
        m->watching = false;
    }
    return cdp__tcp_store_parts(m->watch, until_ns);
}

/* Leaves the other ranks. Closing a connection on which data arrives later resets it, and the
   peer would lose unread data of this rank. So this rank ends its sending side first, and closes
   the connection when the peer has closed its side, or after CDP__PART_MS if it is busy. It leaves
   the store at the same time; if it serves that, clients then may take their last answers. True: it
   waited, until until_ns at most, and is to be called again. */
CDP__PRIVATE bool cdp__mesh_parts(cdp__mesh *m, uint64_t until_ns) {
    const uint64_t now = cdp__mesh_now(m);
    uint64_t end = 0;
    bool links, store;
    if (!m->part_ns) m->part_ns = now + CDP__PART_MS * CDP__MS;
    store = cdp__mesh_store_parts(m, &end);
    links = cdp__mesh_links_part(m, now);
    if (links) end = m->part_ns;
    if (!links && !store && (!cdp__mesh_serves(m) || !cdp__store_server_parts(m->server, &end)))
        return false;
    return cdp__loop_run(&m->loop, NULL, cdp__min(until_ns, end)) == CDP_OK;
}

/* No peer connects any more. */
CDP__PRIVATE void cdp__mesh_shut(cdp__mesh *m) {
    if (cdp__mesh_serves(m)) cdp__store_server_share(m->server, NULL, NULL);
    cdp__loop_timer_clear(&m->accept_timer);
    cdp__loop_timer_clear(&m->unanswered_timer);
    cdp__loop_timer_clear(&m->readers_timer);
    cdp__loop_remove(&m->loop, &m->listener);
    while (m->incoming)
        cdp__incoming_close(m->incoming);
}

/* This rank leaves: ends the link and releases its memory. May be called again. */
CDP__PRIVATE void cdp__link_release(cdp__link *l) {
    cdp__mesh *m = l->mesh;
    cdp__link_lose(l, CDP_ERR_STATE, 0);
    cdp__loop_remove(&m->loop, &l->io);
    cdp__free(m->os, l->rx);
    l->rx = NULL;
    cdp__link_unguard(l);
    cdp__shared_close(cdp__link_shared(l));
    l->shared = NULL;
}

/* Releases links in steps, if this rank leaves within a budget. Returns false when nothing is left
   to release, or when there is no budget: then destroy() releases all of them. */
CDP__PRIVATE bool cdp__mesh_release_some(cdp__mesh *m, uint64_t until_ns) {
    const uint32_t n = m->links ? m->desc.group.world_size * m->desc.connections : 0;
    uint32_t i;
    m->sharing = NULL; /* memory that is released is not polled any more */
    for (i = 0; CDP__BUDGETS && until_ns != CDP__NEVER && i < n; ++i) {
        cdp__link *l = &m->links[i];
        cdp__shared *s = cdp__link_shared(l);
        while (s && cdp__shared_leave(s))
            if (cdp__mesh_now(m) >= until_ns) return true;
        if (!s && !l->rx && !l->io.next) continue;
        cdp__link_release(l);
        if (cdp__mesh_now(m) >= until_ns) return true;
    }
    return false;
}

/* One step of leaving, until `until_ns` at most. False: there is nothing more to wait for. */
CDP__PRIVATE CDP__COLD bool cdp__mesh_leave(void *self, uint64_t until_ns) {
    cdp__mesh *m = (cdp__mesh *)self;
    if (!m->leave_ns) {
        cdp__mesh_discard(m, false);
        m->leave_ns = cdp__mesh_now(m);
    }
    if (!m->part_ns) {
        if ((m->failing || (cdp__mesh_serves(m) && cdp__store_server_has(m->server, m->fail_key)))
            && cdp__mesh_linger(m, until_ns))
            return true;
        cdp__mesh_shut(m);
    }
    return cdp__mesh_parts(m, until_ns) || cdp__mesh_release_some(m, until_ns);
}

/* Closes everything. Accepts a mesh that was only partly created. */
CDP__PRIVATE CDP__COLD void cdp__mesh_close(void *self) {
    cdp__mesh *m = (cdp__mesh *)self;
    const cdp_os *os = m->os;
    uint32_t i;
    cdp__mesh_discard(m, false);
    cdp__mesh_shut(m);
    for (i = 0; m->links && i < m->desc.group.world_size * m->desc.connections; ++i)
        cdp__link_release(&m->links[i]);
    for (i = 0; m->segments && i < CDP_SEGMENTS; ++i)
        /* memory that was not freed may still be in use: it stays mapped */
        if (m->segments[i].at) os->net.close_fd(os->user, m->segments[i].fd);
    cdp__free(os, m->segments);
    for (i = 0; i < 2 && m->store; ++i) {
        cdp_store_request *rq = &m->puts[i].rq;
        if (i < m->put_count && rq->status == CDP_PENDING) m->store->cancel(m->store->self, rq);
        cdp_store_request_free(m->store, rq);
    }
    if ((m->wait_record_state == CDP__WAIT_RECORD_CHECK
            || m->wait_record_state == CDP__WAIT_RECORD_GET)
        && m->wait_record_rq.status == CDP_PENDING)
        m->store->cancel(m->store->self, &m->wait_record_rq);
    if (m->store) cdp_store_request_free(m->store, &m->wait_record_rq);
    if (m->store) cdp_store_request_free(m->store, &m->addrs);
    if (cdp__mesh_alone(m))
        cdp__store_request_drop_results(
            m->os, &m->addrs, cdp__store_request_result_count(&m->addrs));
    cdp__free(m->os, m->hosts);
    if (m->watching && m->watch_rq.status == CDP_PENDING)
        m->watch->cancel(m->watch->self, &m->watch_rq);
    if (m->watch) {
        cdp_store_request_free(m->watch, &m->watch_rq);
        cdp_store_destroy(m->watch);
    }
    if (m->store) cdp_store_destroy(m->store);
#ifndef CDP_NO_STORE_SERVER
    cdp_store_server_destroy(m->server);
#endif
    cdp__loop_close(&m->loop);
    cdp__free(os, m->links);
    cdp__wipe(m->key, sizeof m->key);
    cdp__free(os, m);
}

#endif /* CDP_SRC_TCP_FIRST_CAUSE_H */
