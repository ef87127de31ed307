/* tcp/rendezvous_missing.h - waits for all ranks, and says which are missing

   Knows: the keys of all ranks, wait records, the log. Promises: one rank of a host warns, and more
   and more rarely. */
#ifndef CDP_SRC_TCP_RENDEZVOUS_MISSING_H
#define CDP_SRC_TCP_RENDEZVOUS_MISSING_H

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
#include "../base/text.h"
#include "../base/bytes.h"
#include "../base/hash.h"
#include "../failure/chains.h"
#include "../group/state.h"
#include "../store/store_api.h"
#include "../store/addr.h"
#include "../store/client_calls.h"
#include "../store/calls.h"
#include "link.h"
#include "mesh.h"
#include "first_cause.h"
#include "rendezvous.h"

/* What reports say: this rank waits for rank `absent` and maybe others. */
CDP__PRIVATE void cdp__mesh_waits_for(cdp__mesh *m) {
    cdp_error *why = &m->join->why;
    const unsigned long long ms = (unsigned long long)((cdp__mesh_now(m) - m->start_ns) / CDP__MS);
    const uint32_t r = (uint32_t)m->join->absent;
    if (m->foreign && m->join->absent >= 0)
        cdp__error(why, CDP_ERR_TIMEOUT, r,
            "after %llu ms still waiting for rank %s; rank %u is a process of PyTorch, which "
            "waits for the others with Gloo: ranks of cdp and of Gloo cannot be in one job",
            ms, m->join->names, r);
    else
        cdp__error(why, CDP_ERR_TIMEOUT, r,
            "after %llu ms still waiting for rank %s; start it, or look at why it ended", ms,
            m->join->names);
}

/* Checks whether the missing process has created a Gloo group of PyTorch in this store; then it
   waits for other processes of PyTorch there. PyTorch has used two names for that key. */
CDP__PRIVATE cdp_status cdp__join_gloo(cdp__mesh *m) {
    static const char *const names[] = {"default_pg/0//cpu//0/rank_%u", "default_pg/0/0/rank_%u"};
    cdp__join *s = m->join;
    m->foreign = s->gloo && s->result == CDP_OK && s->rq.number;
    if (!CDP__TEXTS || (s->gloo && (s->result != CDP_OK || m->foreign || s->gloo == 2))) {
        cdp__mesh_waits_for(m);
        return s->back(m);
    }
    cdp__format(s->key_text, sizeof s->key_text, names[s->gloo++], (uint32_t)s->absent);
    cdp__join_ask(m, m->store, CDP_STORE_CHECK, CDP__SETTLE_MS / 2, cdp__join_gloo);
    return CDP_OK;
}

/* Rank r is missing, and maybe others (s->names): `why` says so in the state `back`. */
CDP__PRIVATE cdp_status cdp__join_complain(cdp__mesh *m, uint32_t r, cdp__join_func *back) {
    m->join->absent = (int32_t)r;
    m->join->back = back;
    m->join->gloo = 0;
    return cdp__join_gloo(m);
}

CDP__PRIVATE cdp_status cdp__join_await(cdp__mesh *m);

CDP__PRIVATE cdp_status cdp__join_wait_written(cdp__mesh *m) {
    m->wait_recorded = m->join->result == CDP_OK || m->wait_recorded;
    return cdp__join_await(m);
}

/* Writes this rank's wait record into the store: the rank that it waits for while it starts (-1:
   none). Ranks that have started and wait for this one read it. */
CDP__PRIVATE void cdp__join_write_wait(cdp__mesh *m, int32_t named, cdp__join_func *next) {
    cdp__join *s = m->join;
    cdp__put_u32(s->own, (uint32_t)named);
    cdp__join_value(s, 0, s->own, 4);
    cdp__mesh_key(m, s->key_text, "wait", m->desc.group.rank);
    cdp__join_ask(m, m->store, CDP_STORE_SET, CDP__SETTLE_MS, next);
}

/* Time to wait before it is worth a word that ranks are missing. */
CDP__PRIVATE uint64_t cdp__join_pause_ns(const cdp__mesh *m) {
    return cdp__max(1, cdp__min(CDP__FAILURE_WAIT_MS, m->desc.init_timeout_ms / 4)) * CDP__MS;
}

/* The same, where other ranks may have started. They give up after timeout_ms: by then this rank
   has recorded for whom it waits, or has started, too, else they blame it. */
CDP__PRIVATE uint64_t cdp__join_unsaid_ns(const cdp__mesh *m) {
    const uint32_t ms = m->desc.group.timeout_ms;
    const uint64_t pause = cdp__join_pause_ns(m);
    return ms ? cdp__min(pause, cdp__failure_period_ns(ms)) : pause;
}

/* Logs `why`, which names the missing ranks: a warning after 2, 12, 32, 72 seconds and so on,
   unless another rank of this host says the same. */
CDP__PRIVATE void cdp__join_log_missed(cdp__mesh *m) {
    cdp__join *s = m->join;
    const bool due = s->looks && !(s->looks & (s->looks - 1)) && !s->quiet;
    (void)due; /* builds without log strings */
    cdp__log(&m->desc.group.logger, due || m->foreign ? CDP_LOG_WARN : CDP_LOG_INFO,
        m->desc.group.rank, "%s", s->why.text);
    s->pause_ns = s->looks++ ? 10000 * CDP__MS : cdp__join_pause_ns(m);
}

/* Goes on to wait for all ranks, after a report to ranks that wait for this one. */
CDP__PRIVATE cdp_status cdp__join_await_on(cdp__mesh *m) {
    cdp__join *s = m->join;
    /* while addresses are missing, no rank has started */
    if (s->named < 0 || s->with_values) return cdp__join_await(m);
    cdp__join_write_wait(m, s->named, cdp__join_wait_written);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__join_counted(cdp__mesh *m) {
    m->join->counted = true;
    m->join->quiet = m->join->result == CDP_OK && m->join->rq.number > 1;
    return cdp__join_await_on(m);
}

/* Counts the ranks of this host that miss others: the first one warns. */
CDP__PRIVATE cdp_status cdp__join_count(cdp__mesh *m) {
    cdp__join *s = m->join;
    uint64_t host = cdp__hash(CDP__HASH_START, &m->place, sizeof m->place), used;
    if (m->mine_count) host = cdp__hash(host, m->mine[0].ip, sizeof m->mine[0].ip);
    cdp__mesh_key(m, s->key_text, "missed", UINT32_MAX);
    used = strlen(s->key_text);
    cdp__format(s->key_text + used, sizeof s->key_text - used, "/%llx", (unsigned long long)host);
    cdp__join_ask(m, m->store, CDP_STORE_ADD, CDP__SETTLE_MS, cdp__join_counted);
    return CDP_OK;
}

/* Reports missing ranks to the log, and to ranks that wait for this one. */
CDP__PRIVATE cdp_status cdp__join_missed(cdp__mesh *m) {
    cdp__join *s = m->join;
    if (cdp__mesh_now(m) >= s->deadline_ns) return cdp__error_record(&s->why);
    s->named = s->why.peer;
    /* the store has just not answered: every rank says so */
    if (s->absent < 0) s->quiet = false;
    cdp__join_log_missed(m);
    return !CDP__TEXTS || s->counted || s->absent < 0 ? cdp__join_await_on(m) : cdp__join_count(m);
}

/* All ranks have come. What is left takes a few messages: they may take half of the time that was
   kept for finding out which ranks are missing. */
CDP__PRIVATE void cdp__join_complete(cdp__mesh *m) {
    cdp__join *s = m->join;
    if (!s->complete) s->deadline_ns += (m->init_deadline_ns - s->deadline_ns) / 2;
    s->complete = true;
}

/* The store did not answer the question who is missing. */
CDP__PRIVATE cdp_status cdp__join_store_silent(cdp__mesh *m) {
    const cdp_addr a = cdp__tcp_store_peer_addr(m->store);
    char at[80];
    cdp__error(&m->join->why, CDP_ERR_TIMEOUT, m->desc.external_store ? -1 : 0,
        m->desc.external_store
            ? "the store at %s does not answer any more, but has not closed the connection: its "
              "server has become unreachable, or is stopped"
            : "the store at %s does not answer any more, but has not closed the connection: rank "
              "0, which serves it, has become unreachable, or is stopped",
        cdp__addr_text(&a, at, sizeof at));
    return cdp__join_missed(m);
}

CDP__PRIVATE cdp_status cdp__join_missing_found(cdp__mesh *m) {
    cdp__join *s = m->join;
    if (s->found > 8 && CDP__TEXTS) cdp__text_add(&s->list, " and %u more", s->found - 8);
    if (s->found) return cdp__join_complain(m, (uint32_t)s->absent, cdp__join_missed);
    if (s->rank == m->desc.group.world_size) {
        /* the last one has come since the wait for it ended */
        s->blameless = true;
        if (cdp__mesh_now(m) >= m->init_deadline_ns)
            return cdp__fail(CDP_ERR_TIMEOUT,
                "all ranks have come, but after init_timeout_ms, %u ms", m->desc.init_timeout_ms);
        cdp__join_complete(m);
        return cdp__join_await(m);
    }
    /* there was no time to find out which rank it is */
    s->blameless = true;
    cdp__text_add(&s->list, "%u to %u (at least one of them)", s->rank, s->end - 1);
    cdp__mesh_waits_for(m);
    return cdp__join_missed(m);
}

/* The store says whether ranks s->rank to s->middle - 1 have all come. */
CDP__PRIVATE void cdp__join_narrow(cdp__mesh *m) {
    cdp__join *s = m->join;
    if (s->rq.number) {
        s->rank = s->middle;
    } else {
        s->end = s->middle;
        s->narrow = true;
    }
    if (!s->narrow || s->end - s->rank > 1) return;
    if (s->absent < 0) s->absent = (int32_t)s->rank;
    if (s->found++ < 8 && CDP__TEXTS)
        cdp__text_add(&s->list, "%s%u", s->found > 1 ? ", " : "", s->rank);
    ++s->rank;
    s->end = m->desc.group.world_size;
    s->narrow = false;
}

/* Finds out which ranks have not set their key, as a text like "2, 5 and 7 more". Asks whether all
   have, then whether the first half has, and so on, because the store may be far away and the ranks
   many. If the store does not answer soon, rank 0 is missing, which serves it. */
CDP__PRIVATE CDP__COLD cdp_status cdp__join_missing(cdp__mesh *m) {
    cdp__join *s = m->join;
    uint64_t now;
    if (s->middle) { /* the answer has come */
        if (s->result == CDP_ERR_TIMEOUT && !s->found) return cdp__join_store_silent(m);
        if (s->result != CDP_OK)
            return s->found ? cdp__join_missing_found(m) : cdp__join_outcome(s);
        cdp__join_narrow(m);
    }
    now = cdp__mesh_now(m);
    if (s->rank == m->desc.group.world_size
        || now >= (s->narrow && !s->found ? s->last_ns : s->give_up_ns))
        return cdp__join_missing_found(m);
    s->middle = s->narrow ? s->rank + (s->end - s->rank) / 2 : s->end;
    s->next = cdp__join_missing;
    cdp__join_send(
        m, m->store, CDP_STORE_CHECK, s->keys + s->rank, s->middle - s->rank, CDP__SETTLE_MS / 2);
    return CDP_OK;
}

/* The wait for all ranks has ended: with success, an error, or a pause to report missing ranks. */
CDP__PRIVATE cdp_status cdp__join_awaited(cdp__mesh *m) {
    cdp__join *s = m->join;
    const cdp__text none = cdp__text_of(s->names, sizeof s->names);
    const uint64_t now = cdp__mesh_now(m), left = cdp__max(m->init_deadline_ns, now) - now;
    /* a process that was stopped until after the deadline still gets this time to ask */
    const uint64_t least = cdp__min(CDP__SETTLE_MS, m->desc.init_timeout_ms / 20) * CDP__MS;
    if (s->result == CDP_OK && s->with_values) {
        m->addrs = s->rq;
        s->asked = NULL;
    }
    if (s->result != CDP_ERR_TIMEOUT) return cdp__join_outcome(s);
    s->names[0] = 0;
    s->list = none;
    s->absent = -1;
    s->rank = s->middle = s->found = 0;
    s->narrow = false;
    s->end = m->desc.group.world_size;
    s->give_up_ns = now + cdp__min(CDP__SETTLE_MS * CDP__MS, cdp__max(left / 4, least));
    s->last_ns = now + cdp__min(2000 * CDP__MS, cdp__max(left / 2, least));
    return cdp__join_missing(m);
}

/* Waits for the keys of all ranks. The wait is interrupted from time to time to report missing
   ranks. */
CDP__PRIVATE cdp_status cdp__join_await(cdp__mesh *m) {
    cdp__join *s = m->join;
    const uint64_t left = s->deadline_ns - cdp__min(cdp__mesh_now(m), s->deadline_ns);
    s->blameless = false;
    s->next = cdp__join_awaited;
    cdp__join_send(m, m->store, s->with_values ? CDP_STORE_MULTI_GET : CDP_STORE_WAIT, s->keys,
        m->desc.group.world_size,
        (uint32_t)cdp__max(1, (cdp__min(left, s->pause_ns) + CDP__MS - 1) / CDP__MS));
    return CDP_OK;
}

/* Waits until every rank has set its key "<what>/<rank>"; with_values: also stores the values in
   m->addrs. Then the step is complete. */
CDP__PRIVATE CDP__COLD cdp_status cdp__join_await_all(
    cdp__mesh *m, const char *what, bool with_values) {
    cdp__join *s = m->join;
    const uint32_t n = m->desc.group.world_size;
    uint32_t r;
    if (!s->texts) s->texts = (char(*)[96])cdp__alloc(m->os, n * (uint64_t)sizeof *s->texts);
    if (!s->keys) s->keys = (cdp_bytes *)cdp__alloc(m->os, n * sizeof *s->keys);
    if (!s->texts || !s->keys) return cdp__fail_nomem("the list of ranks", n * sizeof *s->keys);
    for (r = 0; r < n; ++r) {
        cdp__mesh_key(m, s->texts[r], what, r);
        s->keys[r].data = s->texts[r];
        s->keys[r].bytes = strlen(s->texts[r]);
    }
    s->with_values = with_values;
    s->looks = 0;
    s->pause_ns = cdp__join_unsaid_ns(m);
    return cdp__join_await(m);
}

#endif /* CDP_SRC_TCP_RENDEZVOUS_MISSING_H */
