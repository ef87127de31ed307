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
#include "../text/utf8.h"
#include "../text/format.h"
#include "../os/loop.h"
#include "../base/bytes.h"
#include "../message/header.h"
#include "../failure/chains.h"
#include "../store/desc_api.h"
#include "../store/store_api.h"
#include "../store/addr.h"
#include "../store/client_calls.h"
#include "handshake.h"
#include "starts.h"
#include "mesh.h"
#include "first_cause.h"
#include "rendezvous.h"

#define CDP__TWICE_MS 200u /* how long a store may need to notice that a process has ended */

/* ---- looking at a start */

CDP__PRIVATE void cdp__join_look_at(cdp__mesh *m, uint32_t i);
CDP__PRIVATE cdp_status cdp__join_store_failed(cdp__mesh *m, const cdp_error *why);

CDP__PRIVATE cdp_status cdp__join_looked(cdp__mesh *m) {
    cdp__join *s = m->join;
    if (s->result != CDP_OK) return cdp__join_store_failed(m, &s->why);
    cdp__start_record_key(&s->start, s->look, s->rq.number != 0);
    if (s->look + 1 == CDP__START_KEYS) return s->back(m);
    cdp__join_look_at(m, s->look + 1);
    return CDP_OK;
}

CDP__PRIVATE void cdp__join_look_at(cdp__mesh *m, uint32_t i) {
    cdp__join *s = m->join;
    const uint32_t of[] = {0, m->desc.group.rank, UINT32_MAX};
    s->look = i;
    cdp__mesh_key(m, s->key_text, cdp__start_keys[i].name, of[cdp__start_keys[i].whose]);
    cdp__join_ask(m, m->store, CDP_STORE_CHECK, 0, cdp__join_looked);
}

/* Reads s->start from the keys of the start m->round; then the state `back`. */
CDP__PRIVATE cdp_status cdp__join_look(cdp__mesh *m, cdp__join_func *back) {
    m->join->back = back;
    cdp__join_look_at(m, 0);
    return CDP_OK;
}

/* The store has failed. Rank 0 may have served it for the start before, and has left: then there
   will be another one. */
CDP__PRIVATE cdp_status cdp__join_store_failed(cdp__mesh *m, const cdp_error *why) {
    const bool served = m->desc.group.rank != 0 && !m->desc.external_store && !m->claimed;
    return served && (why->status == CDP_ERR_STORE || why->status == CDP_ERR_STATE)
        ? cdp__join_again(m, why)
        : cdp__error_record(why);
}

/* The start in the store was over when this process came: waits for the next one. */
CDP__PRIVATE CDP__COLD cdp_status cdp__join_next(cdp__mesh *m) {
    const cdp_addr a = cdp__tcp_store_peer_addr(m->store);
    const uint32_t r = m->desc.group.rank;
    cdp_error why;
    char at[80];
    if (m->join->start.begun)
        cdp__error(&why, CDP_ERR_TIMEOUT, 0,
            "after %llu ms still waiting for rank 0 to start again: in the store at %s is a job "
            "that has begun with another rank %u; end it, or give every process its own RANK",
            (unsigned long long)((cdp__mesh_now(m) - m->start_ns) / CDP__MS),
            cdp__addr_text(&a, at, sizeof at), r);
    else
        cdp__error(&why, CDP_ERR_TIMEOUT, 0,
            "after %llu ms still waiting for rank 0 to start again: in the store at %s is only a "
            "start that has failed",
            (unsigned long long)((cdp__mesh_now(m) - m->start_ns) / CDP__MS),
            cdp__addr_text(&a, at, sizeof at));
    return cdp__join_again(m, &why);
}

/* ---- a rank that a process may have already */

/* The config that rank 0 publishes. In an external store, its addresses follow as a text. */
#define CDP__CONFIG_BYTES (8u + 8u + 8u + CDP__JOB_BYTES + 4u)

/* The text in a value of the store, from byte `head` on. Returns `out`. */
CDP__PRIVATE const char *cdp__mesh_text(
    const void *value, uint64_t bytes, uint64_t head, char *out, uint64_t size) {
    head = cdp__min(head, bytes);
    cdp__text_foreign(out, size, (const uint8_t *)value + head, bytes - head);
    return out;
}

/* Another live process owns the key: compares its value with `mine` for the error. */
CDP__PRIVATE cdp_status cdp__mesh_claimed_twice(
    cdp__mesh *m, const void *value, uint64_t bytes, uint64_t head, const uint8_t *mine) {
    char text[160];
    return cdp__fail_peer(CDP_ERR_MISMATCH, m->desc.group.rank, 0,
        "two processes claim rank %u: one listens at %s, the other at %s; give every process its "
        "own RANK",
        m->desc.group.rank, cdp__mesh_text(value, bytes, head, text, sizeof text),
        (const char *)mine + head);
}

CDP__PRIVATE cdp_status cdp__join_taken(cdp__mesh *m);
CDP__PRIVATE cdp_status cdp__join_take(cdp__mesh *m);

/* Where rank 0 has taken over a start that had not begun, others may wait in that one. */
CDP__PRIVATE cdp_status cdp__join_notified_others(cdp__mesh *m) {
    cdp__mesh_round(m, m->job);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__join_notify_others(cdp__mesh *m) {
    cdp__join *s = m->join;
    cdp__mesh_round(m, (const uint8_t *)s->theirs + 24);
    cdp__mesh_key(m, s->key_text, "fail", UINT32_MAX);
    cdp__join_value(s, 0, NULL, 0);
    cdp__join_value(s, 1, CDP__MOVED_ON, sizeof CDP__MOVED_ON - 1);
    cdp__join_ask(m, m->store, CDP_STORE_COMPARE_SET, 0, cdp__join_notified_others);
    return CDP_OK;
}

/* The key that this rank takes: its claim, or the config of rank 0. */
CDP__PRIVATE void cdp__join_own_key(cdp__mesh *m) {
    cdp__join *s = m->join;
    cdp__mesh_round(m, m->job);
    if (s->config)
        cdp__mesh_common_key(m, s->key_text, "config");
    else
        cdp__mesh_key(m, s->key_text, "claim", m->desc.group.rank);
}

/* Replaces the value of another process, unless it has changed meanwhile. */
CDP__PRIVATE cdp_status cdp__join_replace(cdp__mesh *m) {
    cdp__join *s = m->join;
    cdp__join_value(s, 0, s->theirs, s->their_bytes);
    cdp__join_ask(m, m->store, CDP_STORE_COMPARE_SET, 0, cdp__join_taken);
    return CDP_OK;
}

/* It is known what became of the start in which another process has this rank. */
CDP__PRIVATE CDP__COLD cdp_status cdp__join_judged(cdp__mesh *m) {
    cdp__join *s = m->join;
    const uint64_t now = cdp__mesh_now(m);
    cdp__join_own_key(m);
    s->start.claimed = true; /* its config or its claim is there */
    s->start.lives = s->reached != 0;
    switch (cdp__start_judge(&s->start)) {
    case CDP__START_NEXT: return s->config ? cdp__join_replace(m) : cdp__join_next(m);
    case CDP__START_TWICE: break;
    default: return cdp__join_replace(m);
    }
    if (!s->claimed_until_ns) s->claimed_until_ns = now + CDP__TWICE_MS * CDP__MS;
    if (m->desc.external_store || now >= s->claimed_until_ns)
        return cdp__mesh_claimed_twice(m, s->theirs, s->their_bytes, s->own_head, s->own);
    /* it may have ended a moment ago: the store that rank 0 serves will say so */
    cdp__join_pause(s, now + 20 * CDP__MS, cdp__join_take);
    return CDP_OK;
}

/* Finds out whether the process that has this rank may live. */
CDP__PRIVATE cdp_status cdp__join_find(cdp__mesh *m) {
    cdp__join *s = m->join;
    const uint64_t head = cdp__min(s->own_head, s->their_bytes);
    const uint8_t *at = (const uint8_t *)s->theirs + head;
    const uint64_t bytes = s->their_bytes - head;
    s->reached = 1;
    if (s->start.begun || s->start.failed) return cdp__join_judged(m);
    /* this process has its port now */
    if (bytes == s->own_bytes - s->own_head
        && memcmp(at, s->own + s->own_head, (size_t)bytes) == 0) {
        s->reached = 0;
        return cdp__join_judged(m);
    }
    cdp__join_reach(m, at, bytes, cdp__join_judged);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__join_taken(cdp__mesh *m) {
    cdp__join *s = m->join;
    cdp_bytes *v = s->rq.results;
    if (s->result != CDP_OK) return cdp__join_store_failed(m, &s->why);
    if (v->bytes == s->own_bytes && memcmp(v->data, s->own, (size_t)v->bytes) == 0)
        return s->config && s->their_bytes >= CDP__CONFIG_BYTES && !s->start.begun
                && !s->start.failed
            ? cdp__join_notify_others(m)
            : CDP_OK;
    cdp__free(m->os, s->theirs);
    memcpy(&s->theirs, &v->data, sizeof s->theirs);
    s->their_bytes = v->bytes;
    v->data = NULL;
    memset(&s->start, 0, sizeof s->start);
    if (s->config && s->their_bytes < CDP__CONFIG_BYTES) return cdp__join_find(m);
    if (s->config) cdp__mesh_round(m, (const uint8_t *)s->theirs + 24);
    return cdp__join_look(m, cdp__join_find);
}

/* Sets the key s->key_text, which one process of this rank may own, to s->own. The value ends
   with the addresses of that process, from byte own_head on. The value of a process that has
   ended is replaced. */
CDP__PRIVATE cdp_status cdp__join_take(cdp__mesh *m) {
    cdp__join *s = m->join;
    cdp__join_value(s, 0, NULL, 0);
    cdp__join_value(s, 1, s->own, s->own_bytes);
    cdp__join_ask(m, m->store, CDP_STORE_COMPARE_SET, 0, cdp__join_taken);
    return CDP_OK;
}

#endif /* CDP_SRC_TCP_RENDEZVOUS_AGAIN_H */
