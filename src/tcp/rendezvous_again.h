/* tcp/rendezvous_again.h - starting again at the same address

   Knows: the keys of a start that this process has found in the store. Promises: a process waits
   for the next start, until its own deadline, if the one it found was over before. */
#ifndef CDP_SRC_TCP_RENDEZVOUS_AGAIN_H
#define CDP_SRC_TCP_RENDEZVOUS_AGAIN_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../base/log_api.h"
#include "../os/os_api.h"
#include "../store/interface_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../os/loop.h"
#include "../base/bytes.h"
#include "../failure/chains.h"
#include "../store/desc_api.h"
#include "../store/store_api.h"
#include "../store/addr.h"
#include "../store/client_calls.h"
#include "starts.h"
#include "mesh.h"
#include "first_cause.h"
#include "rendezvous.h"

#define CDP__TWICE_MS 200u /* how long a store may need to notice that a process has ended */

/* ---- looking at a start */

CDP__PRIVATE void cdp__join_look_at(cdp__mesh *m, uint32_t i);
CDP__PRIVATE cdp_status cdp__join_store_failed(cdp__mesh *m);

CDP__PRIVATE cdp_status cdp__join_looked(cdp__mesh *m) {
    cdp__join *s = m->join;
    if (s->result != CDP_OK) return cdp__join_store_failed(m);
    cdp__start_see(&s->seen, s->look, s->rq.number != 0);
    if (s->look + 1 == CDP__START_KEYS) return s->back(m);
    cdp__join_look_at(m, s->look + 1);
    return CDP_OK;
}

CDP__PRIVATE void cdp__join_look_at(cdp__mesh *m, uint32_t i) {
    cdp__join *s = m->join;
    const uint32_t whose = cdp__start_keys[i].whose;
    s->look = i;
    cdp__mesh_key(m, s->key_text, cdp__start_keys[i].name,
        whose == 0       ? 0
            : whose == 1 ? m->desc.group.rank
                         : UINT32_MAX);
    cdp__join_ask(m, m->store, CDP_STORE_CHECK, 0, cdp__join_looked);
}

/* Reads s->seen from the keys of the start m->round; then the state `back`. */
CDP__PRIVATE cdp_status cdp__join_look(cdp__mesh *m, cdp__join_func *back) {
    m->join->back = back;
    cdp__join_look_at(m, 0);
    return CDP_OK;
}

/* The store has failed, see the last error. Rank 0 may have served it for the start before, and has
   left: then there will be another one. */
CDP__PRIVATE cdp_status cdp__join_store_failed(cdp__mesh *m) {
    const cdp_status st = cdp_last_error()->status;
    if (m->desc.group.rank == 0 || m->desc.external_store || m->claimed) return st;
    return st == CDP_ERR_STORE || st == CDP_ERR_STATE ? cdp__join_again(m) : st;
}

/* The start in the store was over when this process came: waits for the next one. */
CDP__PRIVATE CDP__COLD cdp_status cdp__join_next(cdp__mesh *m) {
    const cdp_addr a = cdp__tcp_store_peer_addr(m->store);
    const uint32_t r = m->desc.group.rank;
    char at[80];
    cdp__addr_text(&a, at, sizeof at);
    if (m->join->seen.begun)
        (void)cdp__fail_peer(CDP_ERR_TIMEOUT, 0, 0,
            "after %llu ms still waiting for rank 0 to start again: in the store at %s is a job "
            "that has begun with another rank %u; end it, or give every process its own RANK",
            (unsigned long long)((cdp__mesh_now(m) - m->start_ns) / CDP__MS), at, r);
    else
        (void)cdp__fail_peer(CDP_ERR_TIMEOUT, 0, 0,
            "after %llu ms still waiting for rank 0 to start again: in the store at %s is only a "
            "start that has failed",
            (unsigned long long)((cdp__mesh_now(m) - m->start_ns) / CDP__MS), at);
    return cdp__join_again(m);
}

#endif /* CDP_SRC_TCP_RENDEZVOUS_AGAIN_H */
