/* tcp/rendezvous.h - how the ranks of a job find each other

   Knows: the keys of the job in the store. Promises: every wait ends by the deadline of cdp_init();
   no step waits except cdp__mesh_rendezvous(). */
#ifndef CDP_SRC_TCP_RENDEZVOUS_H
#define CDP_SRC_TCP_RENDEZVOUS_H

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
#include "../os/loop.h"
#include "../base/bytes.h"
#include "../failure/records.h"
#include "../failure/chains.h"
#include "../group/state.h"
#include "../store/store_api.h"
#include "../store/addr.h"
#include "../store/file.h"
#include "../store/client_calls.h"
#include "../store/calls.h"
#include "paths.h"
#include "link.h"
#include "mesh.h"
#include "link_streams.h"
#include "first_cause.h"

/* Keys of a job: <job>/config (rank 0: version, world size, settings, the random name of this
   start); and, under <job>/<part of that name>/, claim/<rank> (the process that owns the rank),
   addr/<rank> (its addresses), done/<rank> (it has read everything), fail (the record of the first
   failure), wait/<rank> (for whom it waits while starting, if that takes long). From its claim
   until it has started, each rank has a last will: if it dies, the store sets "fail". So the death
   of a process ends the wait of all ranks, even if none of them is connected to it.

   Programs leave and start again at the same address, and a rank may come before others have left.
   So it may find an earlier start: in the store of a rank 0 that has not left yet, or in one that
   others serve. cdp__start_judge() says what is to be done then. What ranks of an earlier start
   still write has the name of that start, so it does not disturb the next one.

   A store that others serve may have no last wills. There, config also contains the addresses of
   rank 0. A rank 0 replaces the config of an earlier start that is over, or whose rank 0 does not
   listen any more; the other ranks wait for that. In the same way, a rank takes over the claim of a
   process that has ended. So no process needs to know how often the job was started: torchrun's
   TORCHELASTIC_RESTART_COUNT differs between the hosts of one start. */

/* Rendezvous is a state machine whose states never wait. A state (`next`) is a function that
   does what is possible now, and names the next state. It may name an event that must happen
   before (`waits`), with the deadline until_ns; the next state finds the outcome in `result`, and
   the reason of a failure in `why`. A state that fails sets the last error, as all functions do.
   Without a next state the step is complete, and the next of cdp__join_steps begins. */

/* Milliseconds left for finding the other ranks. */
CDP__PRIVATE uint32_t cdp__join_ms_left(const cdp__mesh *m) {
    const uint64_t now = cdp__mesh_now(m), end = m->join->deadline_ns;
    if (end == CDP__NEVER) return CDP_NO_TIMEOUT;
    return (uint32_t)cdp__min(cdp__max(1, (end - cdp__min(now, end)) / CDP__MS), 1u << 31);
}

/* A store, or the loop, has just returned `st`: the outcome of what is waited for. */
CDP__PRIVATE void cdp__join_set_outcome(cdp__join *s, cdp_status st) {
    s->result = st;
    if (st >= 0) return;
    s->why = *cdp_last_error();
    if (s->why.status != st)
        cdp__error(&s->why, st, -1, "the store returned %s", cdp_status_name(st));
}

/* A state returns this if the outcome is all that counts. */
CDP__PRIVATE cdp_status cdp__join_outcome(const cdp__join *s) {
    return s->result < 0 ? cdp__error_record(&s->why) : s->result;
}

/* Cancels or frees the previous request. */
CDP__PRIVATE void cdp__join_forget(cdp__join *s) {
    if (!s->asked) return;
    if (s->rq.status == CDP_PENDING) s->asked->cancel(s->asked->self, &s->rq);
    cdp_store_request_free(s->asked, &s->rq);
    s->asked = NULL;
}

/* Sends the request `op` with `count` keys to a store. timeout_ms 0: all the time left. */
CDP__PRIVATE CDP__COLD void cdp__join_send(cdp__mesh *m, cdp_store *store, cdp_store_op op,
    const cdp_bytes *keys, uint32_t count, uint32_t timeout_ms) {
    cdp__join *s = m->join;
    s->timeout_ms = timeout_ms ? timeout_ms : cdp__join_ms_left(m);
    s->until_ns = cdp__deadline(m->os, s->timeout_ms);
    cdp__join_forget(s);
    memset(&s->rq, 0, sizeof s->rq);
    s->rq.op = op;
    s->rq.keys = keys;
    s->rq.key_count = count;
    s->rq.values = s->values;
    s->rq.delta = 1;
    s->asked = store;
    s->polls = 0;
    s->waits = CDP__WAITS_REQUEST;
    cdp__join_set_outcome(s, cdp__store_begin(store, &s->rq));
    if (s->result >= 0) s->result = CDP_PENDING; /* the request's status tells the rest */
}

/* cdp__join_send() for the single key s->key_text; `next` is the next state. */
CDP__PRIVATE void cdp__join_ask(
    cdp__mesh *m, cdp_store *store, cdp_store_op op, uint32_t timeout_ms, cdp__join_func *next) {
    cdp__join *s = m->join;
    s->key.data = s->key_text;
    s->key.bytes = strlen(s->key_text);
    s->next = next;
    cdp__join_send(m, store, op, &s->key, 1, timeout_ms);
}

CDP__PRIVATE void cdp__join_value(cdp__join *s, uint32_t i, const void *data, uint64_t bytes) {
    s->values[i].data = data;
    s->values[i].bytes = bytes;
}

CDP__PRIVATE void cdp__join_pause(cdp__join *s, uint64_t until_ns, cdp__join_func *next) {
    s->until_ns = until_ns;
    s->waits = CDP__WAITS_TIME;
    s->next = next;
}

#define CDP__AGAIN_FIRST_MS 5u /* pauses before the next attempt: the first one, and the longest */
#define CDP__AGAIN_MOST_MS 250u

/* From here on, keys are those of the start of this name. NULL: of no start yet. */
CDP__PRIVATE void cdp__mesh_round(cdp__mesh *m, const uint8_t *job) {
    m->round[0] = 0;
    if (job) cdp__format(m->round, sizeof m->round, "/%llx", (unsigned long long)cdp__get_u64(job));
    cdp__mesh_key(m, m->fail_key, "fail", UINT32_MAX);
}

/* This rank has no part in the start that it has found, or found over. */
CDP__PRIVATE void cdp__join_leave_start(cdp__mesh *m) {
    cdp__join_forget(m->join);
    if (m->watch) {
        if (m->watching && m->watch_rq.status == CDP_PENDING)
            m->watch->cancel(m->watch->self, &m->watch_rq);
        cdp_store_request_free(m->watch, &m->watch_rq);
        cdp_store_destroy(m->watch); /* withdraws the last will */
    }
    m->watch = NULL;
    cdp_store_destroy(m->join->second);
    m->join->second = NULL;
    if (m->store) cdp_store_request_free(m->store, &m->addrs);
    if (m->store && !m->desc.external_store) {
        cdp_store_destroy(m->store);
        m->store = NULL;
    }
    cdp__free(m->os, m->hosts);
    m->hosts = NULL;
    m->watching = m->claimed = m->job_known = m->wait_recorded = m->join->complete = false;
    m->join->counted = m->join->quiet = false;
    m->join->cause_grace_ns = 0;
    cdp__mesh_round(m, NULL);
}

/* `why` says why this rank waits for another start: logs it from time to time, and tries again. At
   the deadline it is the error of this rank. */
CDP__PRIVATE CDP__COLD cdp_status cdp__join_again(cdp__mesh *m, const cdp_error *why) {
    cdp__join *s = m->join;
    const uint64_t now = cdp__mesh_now(m),
                   patient = cdp__min(CDP__FAILURE_WAIT_MS, m->desc.init_timeout_ms / 4) * CDP__MS;
    if (now >= s->deadline_ns) return cdp__error_record(why);
    if (!s->log_ns) s->log_ns = m->start_ns + patient;
    if (now >= s->log_ns) {
        cdp__log(&m->desc.group.logger, CDP_LOG_WARN, m->desc.group.rank, "%s", why->text);
        s->log_ns = now + cdp__max(10000 * CDP__MS, now - m->start_ns);
    }
    cdp__join_leave_start(m);
    s->retry_ms = cdp__min(cdp__max(2 * s->retry_ms, CDP__AGAIN_FIRST_MS), CDP__AGAIN_MOST_MS);
    s->step = 2; /* cdp__mesh_listen_first */
    cdp__join_pause(s, cdp__min(now + s->retry_ms * CDP__MS, s->deadline_ns), s->reopen);
    return CDP_OK;
}

/* A rank 0 that takes over a start of an external store puts this under its "fail": whoever waits
   in that start waits for the new one. */
#define CDP__MOVED_ON "a new start"

/* Adopts the cause stored under "fail" as this rank's error. */
CDP__PRIVATE cdp_status cdp__join_adopted(cdp__mesh *m) {
    const cdp_bytes *v = m->join->rq.results;
    cdp__failure_record r;
    cdp_error cause;
    cdp_status st;
    if (m->join->result != CDP_OK) return cdp__join_outcome(m->join);
    if (v->bytes == sizeof CDP__MOVED_ON - 1
        && memcmp(v->data, CDP__MOVED_ON, (size_t)v->bytes) == 0) {
        cdp__error(&cause, CDP_ERR_TIMEOUT, 0, "rank 0 has started again");
        return cdp__join_again(m, &cause);
    }
    if (!cdp__failure_decode((const uint8_t *)v->data, v->bytes, m->desc.group.world_size, &r))
        return cdp__fail(CDP_ERR_MISMATCH,
            "the store holds no cause under %s that this version understands", m->fail_key);
    cdp__failure_text(&r, (uint32_t)r.observer, m->desc.group.world_size, &cause);
    /* of another process that claims the same rank */
    if (cause.origin == (int32_t)m->desc.group.rank)
        st = cdp__fail_peer(cause.status, cause.peer, 0, "%s", cause.text);
    else
        st = cdp__fail_peer(cause.status, cause.peer, 0, "rank %u/%u: told while starting: %s",
            m->desc.group.rank, m->desc.group.world_size, cause.text);
    cdp__error_slot()->rank = (int32_t)m->desc.group.rank;
    cdp__error_slot()->origin = cause.origin;
    return st;
}

/* True while the keys of all ranks are awaited. */
CDP__PRIVATE bool cdp__join_awaits(const cdp__mesh *m) {
    const cdp__join *s = m->join;
    return s->rq.keys == s->keys && s->rq.op != CDP_STORE_CHECK && m->watching;
}

/* A rank whose start is complete may fail while keys that other ranks have set are still on their
   way to this one. They get this much time before that failure ends this rank's start. */
#define CDP__CAUSE_GRACE_MS 50u

CDP__PRIVATE bool cdp__join_must_end(cdp__mesh *m, uint64_t now) {
    cdp__join *s = m->join;
    if (!cdp__join_awaits(m) || m->watch_rq.status != CDP_OK) return false;
    if (!s->cause_grace_ns) s->cause_grace_ns = now + CDP__CAUSE_GRACE_MS * CDP__MS;
    return now >= s->cause_grace_ns && cdp__mesh_cause_status(m) != CDP_OK;
}

/* True while the request is in progress. A store of the caller is not on this rank's loop, so it
   is polled, at growing intervals. */
CDP__PRIVATE bool cdp__join_request_waits(cdp__mesh *m, uint64_t now) {
    cdp__join *s = m->join;
    if (s->result != CDP_PENDING) return false;
    s->result = s->rq.status;
    if (s->result != CDP_PENDING || s->asked != m->store) {
        /* with an error this only sets the last error */
        cdp__join_set_outcome(s, s->asked->wait(s->asked->self, &s->rq, 0));
        ++s->polls;
    }
    if (s->result != CDP_PENDING) return false;
    if (cdp__join_must_end(m, now)) {
        cdp__format(s->key_text, sizeof s->key_text, "%s", m->fail_key);
        cdp__join_ask(m, m->store, CDP_STORE_GET, 1000, cdp__join_adopted);
        return cdp__join_request_waits(m, now);
    }
    if (now < s->until_ns) return true;
    cdp__join_set_outcome(s, cdp__store_end(s->asked, &s->rq, CDP_PENDING, s->timeout_ms));
    return false;
}

CDP__PRIVATE void cdp__reach_event(cdp__io *io) {
    cdp__mesh *m = (cdp__mesh *)io->user;
    const int32_t err =
        io->ready & CDP_IO_WRITE ? m->os->net.connect_result(m->os->user, io->fd) : -EINPROGRESS;
    if (err == -EINPROGRESS || err == -ENOTCONN) return;
    cdp__loop_remove(&m->loop, io);
    --m->join->reaching;
    if (err >= 0) ++m->join->reached;
}

CDP__PRIVATE void cdp__join_reach_end(cdp__mesh *m) {
    uint32_t i;
    for (i = 0; i < CDP__PATHS; ++i)
        cdp__loop_remove(&m->loop, &m->join->reach[i]);
}

#define CDP__REACH_MS 2000u /* time for an address to answer */

/* Finds out whether a process listens at one of these addresses (text as in cdp__addrs_text). If
   so, `reached` is not 0 in the state `next`. */
CDP__PRIVATE void cdp__join_reach(
    cdp__mesh *m, const void *text, uint64_t bytes, cdp__join_func *next) {
    cdp__join *s = m->join;
    cdp_addr theirs[CDP__ADDRS];
    uint32_t i, n = cdp__addrs_parse((const char *)text, bytes, theirs, CDP__ADDRS);
    n = cdp__paths(m->mine, m->mine_count, theirs, n, s->at);
    s->reached = s->reaching = 0;
    for (i = 0; i < n; ++i) {
        const int32_t fd = m->os->net.connect_to(m->os->user, &s->at[i]);
        if (fd < 0) continue;
        ++s->reaching;
        cdp__loop_add(&m->loop, &s->reach[i], fd, cdp__reach_event, m);
        cdp__loop_want_write(&m->loop, &s->reach[i]);
    }
    s->until_ns = cdp__deadline(m->os, CDP__REACH_MS);
    s->waits = CDP__WAITS_LISTENER;
    s->next = next;
}

#ifndef CDP_NO_FRAMES
/* Some link is being made, and none is lost. */
CDP__PRIVATE bool cdp__mesh_links_wait(const cdp__mesh *m) {
    const uint32_t n = m->desc.group.world_size * m->desc.connections;
    bool made = true;
    uint32_t i;
    for (i = 0; i < n; ++i) {
        const cdp__link_state state = m->links[i].state;
        if (m->links[i].peer == m->desc.group.rank) continue;
        if (state == CDP__LINK_LOST) return false;
        made = made && (state == CDP__LINK_UP || state == CDP__LINK_NONE);
    }
    return !made;
}
#endif

/* True while the event that the current state waits for has not happened. */
CDP__PRIVATE bool cdp__join_waiting(cdp__mesh *m) {
    cdp__join *s = m->join;
    const uint64_t now = cdp__mesh_now(m);
    switch (s->waits) {
    case CDP__WAITS_REQUEST: return cdp__join_request_waits(m, now);
    case CDP__WAITS_CONNECTION:
        cdp__join_set_outcome(s, cdp__tcp_store_connected(s->made));
        return s->result == CDP_PENDING && (!s->reread_ns || now < s->reread_ns);
    case CDP__WAITS_LISTENER:
        if (s->reaching && !s->reached && now < s->until_ns) return true;
        cdp__join_reach_end(m);
        return false;
#ifndef CDP_NO_FRAMES
    case CDP__WAITS_LINKS: return now < s->until_ns && cdp__mesh_links_wait(m);
#endif
    case CDP__WAITS_TIME: return now < s->until_ns;
    default: return false;
    }
}

/* Until when to run the loop. */
CDP__PRIVATE uint64_t cdp__join_until(const cdp__mesh *m) {
    const cdp__join *s = m->join;
    uint64_t until = s->until_ns;
    if (s->waits != CDP__WAITS_REQUEST) return until;
    if (s->cause_grace_ns && cdp__join_awaits(m)) until = cdp__min(until, s->cause_grace_ns);
    if (s->asked == m->store) return until;
    return cdp__min(
        until, cdp__mesh_now(m) + cdp__min(10 * CDP__MS, (CDP__MS / 4) << cdp__min(s->polls, 6)));
}

CDP__PRIVATE void cdp__join_free(cdp__mesh *m) {
    cdp__join *s = m->join;
    const cdp_os *os = m->os;
    if (!s) return;
    cdp__join_forget(s);
    cdp__join_reach_end(m);
    if (s->made) cdp_store_destroy(s->made);
    cdp_store_destroy(s->second);
#ifndef CDP_NO_FILE_STORE
    if (s->file && m->meeting)
        cdp_store_destroy(m->meeting);
    else if (s->file)
        cdp__file_free((cdp__file_store *)s->file);
#endif
    cdp__free(os, s->theirs);
    cdp__free(os, s->texts);
    cdp__free(os, s->keys);
    m->join = NULL;
    cdp__free(os, s);
}

/* Sends the cause to ranks that are already connected. Reads their data, because unread data
   would reset the connection and the cause would be lost. */
CDP__PRIVATE void cdp__mesh_send_cause(cdp__mesh *m) {
    uint32_t r;
    for (r = 0; r < m->desc.group.world_size; ++r) {
        if (m->links[r].state != CDP__LINK_UP) continue;
        cdp__link_send_cause(&m->links[r]);
        cdp__link_read_ahead(&m->links[r]);
    }
}

CDP__PRIVATE cdp_status cdp__join_end(cdp__mesh *m) {
    m->join->over = true;
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__join_published(cdp__mesh *m) {
    const bool told = m->join->result == CDP_OK;
    cdp__mesh_send_cause(m);
    /* if the store did not take the cause, the last will tells the other ranks */
    if (!told && m->watch) cdp__tcp_store_abandon(m->watch);
    return cdp__join_end(m);
}

CDP__PRIVATE cdp_status cdp__join_publish(cdp__mesh *m) {
    cdp__join *s = m->join;
    cdp__format(s->key_text, sizeof s->key_text, "%s", m->fail_key);
    cdp__join_value(s, 0, NULL, 0);
    cdp__join_value(s, 1, m->cause, m->cause_bytes);
    cdp__join_ask(m, m->store, CDP_STORE_COMPARE_SET, CDP__SETTLE_MS, cdp__join_published);
    return CDP_OK;
}

/* The rank is claimed, so that this process knows this start again: see cdp__start_judge(). */
CDP__PRIVATE cdp_status cdp__join_marked(cdp__mesh *m) {
    return cdp__join_publish(m);
}

/* If rank 0 has finished starting, this process is a stranger without a rank: its failure must
   not end the job. */
CDP__PRIVATE cdp_status cdp__join_belongs(cdp__mesh *m) {
    cdp__join *s = m->join;
    if (s->result == CDP_OK && !s->rq.number) {
        cdp__mesh_key(m, s->key_text, "claim", m->desc.group.rank);
        cdp__join_value(s, 0, NULL, 0);
        cdp__join_value(s, 1, "failed", 6);
        cdp__join_ask(m, m->store, CDP_STORE_COMPARE_SET, CDP__SETTLE_MS, cdp__join_marked);
        return CDP_OK;
    }
    s->result = CDP_ERR_STATE;
    return cdp__join_published(m);
}

/* This rank's start has failed: adds the rank to the error, and reports it to the other ranks. */
CDP__PRIVATE cdp_status cdp__join_failed(cdp__mesh *m) {
    cdp__join *s = m->join;
    const cdp_error own = s->error;
    cdp_error *e = &s->error;
    const bool store =
        own.status == CDP_ERR_STORE || own.status == CDP_ERR_STATE || own.status == CDP_ERR_TIMEOUT;
    cdp__text t = cdp__text_of(e->text, sizeof e->text);
    cdp__failure_record r;
    uint64_t said;
    if (own.origin >= 0) return cdp__join_end(m);
    e->rank = e->origin = (int32_t)m->desc.group.rank;
    cdp__text_add(&t, "rank %u/%u: ", m->desc.group.rank, m->desc.group.world_size);
    said = t.used;
    cdp__text_add(&t, "%s", own.text);
    if (store && e->peer < 0 && m->desc.group.rank != 0 && !m->desc.external_store
        && !s->blameless) {
        e->peer = 0;
        cdp__text_add(&t, "; rank 0 serves the store");
    }
    cdp__failure_plain(&r, e->status, e->origin, e->peer, e->text + said);
    r.sys_errno = e->sys_errno;
    m->cause_bytes = cdp__failure_encode(&r, m->cause);
    s->result = CDP_ERR_STATE;
    if (!m->store) return cdp__join_published(m);
    if (m->claimed) return cdp__join_publish(m);
    cdp__mesh_key(m, s->key_text, "done", 0);
    cdp__join_ask(m, m->store, CDP_STORE_CHECK, CDP__SETTLE_MS, cdp__join_belongs);
    return CDP_OK;
}

#endif /* CDP_SRC_TCP_RENDEZVOUS_H */
