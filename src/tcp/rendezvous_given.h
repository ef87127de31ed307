/* tcp/rendezvous_given.h - a start whose caller exchanges the addresses

   Knows: a table with the record of each rank, as ranks publish it under "addr". Promises: no
   store is asked; the start ends when all ranks are connected, and a rank that is lost meanwhile,
   or does not connect by the deadline, is named. */
#ifndef CDP_SRC_TCP_RENDEZVOUS_GIVEN_H
#define CDP_SRC_TCP_RENDEZVOUS_GIVEN_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../store/interface_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../store/addr.h"
#include "../store/request.h"
#include "../store/calls.h"
#include "../store/client_calls.h"
#include "handshake.h"
#include "link.h"
#include "mesh.h"
#include "link_streams.h"
#include "first_cause.h"
#include "rendezvous.h"
#include "rendezvous_missing.h"
#include "rendezvous_steps.h"
#include "rendezvous_meeting.h"

#ifndef CDP_NO_FRAMES

/* The first link of `state`; NULL: none is in it. */
CDP__PRIVATE const cdp__link *cdp__mesh_link_in(const cdp__mesh *m, cdp__link_state state) {
    const uint32_t n = m->desc.group.world_size * m->desc.connections;
    uint32_t i;
    for (i = 0; i < n; ++i)
        if (m->links[i].peer != m->desc.group.rank && m->links[i].state == state)
            return &m->links[i];
    return NULL;
}

/* No link is being made any more, or the time is over. */
CDP__PRIVATE cdp_status cdp__given_linked(cdp__mesh *m) {
    const cdp__link *l = cdp__mesh_link_in(m, CDP__LINK_LOST);
    uint32_t state;
    if (l) return cdp__link_explain(l);
    for (state = CDP__LINK_AWAITED; !l && state < CDP__LINK_UP; ++state)
        l = cdp__mesh_link_in(m, (cdp__link_state)state);
    if (!l) return CDP_OK;
    return cdp__fail_peer(CDP_ERR_TIMEOUT, l->peer, 0,
        "rank %u has come, and is not connected to this rank within %u ms", l->peer,
        m->desc.init_timeout_ms);
}

/* The records of all ranks are known: connects to all ranks. */
CDP__PRIVATE cdp_status cdp__given_connect(cdp__mesh *m) {
    cdp__join *s = m->join;
    const cdp_status st = cdp__mesh_read_addrs(m);
    if (st != CDP_OK || m->frugal || !m->desc.connect_all) return st;
    cdp__mesh_need_all(m);
    s->until_ns = s->deadline_ns;
    s->waits = CDP__WAITS_LINKS;
    s->next = cdp__given_linked;
    return CDP_OK;
}

/* Prepares a start that asks no store: this rank listens, and its record is
   m->join->values[0]. `job`:
   the name of the start, which no other start has. `store`: through which the caller exchanges the
   records; this rank listens where it reaches that, if this is known. */
CDP__PRIVATE cdp_status cdp__mesh_given(
    cdp__mesh *m, const uint8_t job[CDP__JOB_BYTES], cdp_store *store) {
    cdp__join *s = m->join;
    cdp_status st = cdp__mesh_check_descriptors(m);
    m->desc.external_store = true; /* rank 0 serves none */
    memcpy(m->job, job, CDP__JOB_BYTES);
    store = cdp__store_base(store);
    if (store->destroy != cdp__client_destroy || !cdp__tcp_store_local_addr(store, &m->home))
        (void)cdp__addr_parse("127.0.0.1", &m->home);
    s->step = s->hold = CDP__JOIN_STEPS;
    if (st == CDP_OK) st = cdp__mesh_listen(m);
    return st == CDP_OK ? cdp__mesh_exchange(m) : st;
}

/* Takes copies of the records of all ranks, in the order of ranks. */
CDP__PRIVATE cdp_status cdp__mesh_take_records(cdp__mesh *m, const cdp_bytes *records) {
    cdp_store_request *rq = &m->addrs;
    uint32_t r;
    rq->op = CDP_STORE_MULTI_GET;
    rq->key_count = m->desc.group.world_size;
    if (!cdp__store_request_make_results(m->os, rq))
        return cdp__fail_nomem("the addresses of all ranks", rq->key_count * sizeof *records);
    for (r = 0; r < rq->key_count; ++r)
        if (!cdp__store_request_put_result(m->os, rq, r, records[r]))
            return cdp__fail_nomem("the addresses of a rank", records[r].bytes);
    m->join->next = cdp__given_connect;
    return CDP_OK;
}

#endif /* CDP_NO_FRAMES */

#endif /* CDP_SRC_TCP_RENDEZVOUS_GIVEN_H */
