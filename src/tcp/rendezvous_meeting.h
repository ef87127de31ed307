/* tcp/rendezvous_meeting.h - how the other ranks find rank 0

   Knows: how rank 0 publishes its address: directly, in a file, in a store, or through an exchange
   function. Promises: an address of an earlier run is not mistaken for this one's. */
#ifndef CDP_SRC_TCP_RENDEZVOUS_MEETING_H
#define CDP_SRC_TCP_RENDEZVOUS_MEETING_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../store/interface_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../os/loop.h"
#include "../base/hash.h"
#include "../message/header.h"
#include "../failure/records.h"
#include "../group/state.h"
#include "../store/desc_api.h"
#include "../store/store_api.h"
#include "../store/cxx_api.h"
#include "../store/addr.h"
#include "../store/file.h"
#include "../store/server_create.h"
#include "../store/client_calls.h"
#include "handshake.h"
#include "paths.h"
#include "link.h"
#include "mesh.h"
#include "first_cause.h"
#include "rendezvous.h"
#include "rendezvous_missing.h"
#include "rendezvous_again.h"
#include "rendezvous_steps.h"

#ifndef CDP_NO_MEETING
/* The text that rank 0 publishes: "JOB ADDRESSES", where JOB is the job's random name as 32
   hexadecimal digits. */
CDP__PRIVATE void cdp__mesh_endpoint(cdp__mesh *m, char out[CDP__ENDPOINT_BYTES]) {
    cdp__text t = cdp__text_of(out, CDP__ENDPOINT_BYTES);
    cdp_addr at[CDP__ADDRS];
    uint32_t i;
    memset(out, 0, CDP__ENDPOINT_BYTES);
    for (i = 0; i < CDP__JOB_BYTES; ++i)
        cdp__text_add(&t, "%x%x", m->job[i] >> 4, m->job[i] & 15);
    cdp__text_add(&t, " ");
    cdp__addrs_text(at, cdp__mesh_own_addrs(m, at), out + t.used, CDP__ENDPOINT_BYTES - t.used);
}

/* False: this is no published address. */
CDP__PRIVATE bool cdp__mesh_parse_endpoint(
    cdp__mesh *m, const char *word, uint64_t bytes, cdp_addr *out, uint32_t *count) {
    const uint64_t head = 2 * CDP__JOB_BYTES;
    cdp_addr at[CDP__ADDRS];
    uint32_t i, n;
    if (bytes <= head || word[head] != ' ') return false;
    for (i = 0; i < head; ++i) {
        if (cdp__addr_hex(word[i]) < 0) return false;
        m->job[i / 2] = (uint8_t)(m->job[i / 2] << 4 | cdp__addr_hex(word[i]));
    }
    n = cdp__addrs_parse(word + head + 1, bytes - head - 1, at, CDP__ADDRS);
    *count = cdp__paths(m->mine, m->mine_count, at, n, out);
    m->job_known = true;
    return n > 0;
}
#endif /* CDP_NO_MEETING */

CDP__PRIVATE cdp_status cdp__join_open_store(cdp__mesh *m);

#ifndef CDP_NO_FILE_STORE
/* Registers with the file. It retries, because another process may have the file locked. */
CDP__PRIVATE cdp_status cdp__join_file(cdp__mesh *m) {
    cdp__join *s = m->join;
    cdp__file_store *f = (cdp__file_store *)s->file;
    const uint64_t now = cdp__mesh_now(m);
    const cdp_status st = cdp__file_register(f, false);
    if (st == CDP_PENDING && now >= s->deadline_ns) return cdp__file_locked(f);
    if (st == CDP_PENDING)
        cdp__join_pause(s, cdp__min(s->deadline_ns, now + CDP__MS), cdp__join_file);
    if (st != CDP_OK) return st < 0 ? st : CDP_OK;
    m->meeting = &f->polling.store;
    return cdp__join_open_store(m);
}
#endif

/* Opens the store in which rank 0 publishes its address, if the desc asks for one. */
CDP__PRIVATE cdp_status cdp__mesh_meet(cdp__mesh *m) {
#ifdef CDP_NO_MEETING
    if (m->desc.file || m->desc.store || m->desc.exchange)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_init: file, store or exchange is set, but this program was built with "
            "CDP_NO_MEETING: set master_addr and master_port");
#elif defined(CDP_NO_FILE_STORE)
    m->meeting = m->desc.store;
    if (m->desc.file)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_init: file %s: CDP_NO_FILE_STORE is defined; meet in another store", m->desc.file);
#else
    cdp_file_store_desc d;
    cdp__file_store *f = NULL;
    cdp_status st;
    m->meeting = m->desc.store;
    memset(&d, 0, sizeof d);
    d.path = m->desc.file;
    d.world_size = m->desc.group.world_size;
    d.os = m->os;
    d.private_file = true; /* its default folder may be writable by every user */
    if (d.path) {
        st = cdp__file_make(&d, &f);
        m->join->file = f;
        return st == CDP_OK ? cdp__join_file(m) : st;
    }
#endif
    return cdp__join_open_store(m);
}

#ifndef CDP_NO_MEETING
/* Rank 0 publishes its address, and replaces that of an earlier run. */
CDP__PRIVATE cdp_status cdp__mesh_publish_endpoint(cdp__mesh *m) {
    cdp__join *s = m->join;
    char *word = (char *)s->own;
    cdp__mesh_endpoint(m, word);
    if (!m->meeting)
        return m->desc.exchange(m->desc.exchange_user, word, CDP__ENDPOINT_BYTES) == 0
            ? CDP_OK
            : cdp__fail(CDP_ERR_STORE, "the exchange function failed");
    cdp__mesh_common_key(m, s->key_text, "meet");
    cdp__join_value(s, 0, word, strlen(word));
    cdp__join_ask(m, m->meeting, CDP_STORE_SET, 0, cdp__join_set);
    return CDP_OK;
}
#endif

/* Connects to the store. In the state `next`, s->result is the outcome, and s->made the store. */
CDP__PRIVATE cdp_status cdp__join_connect(
    cdp__mesh *m, const cdp_tcp_store_desc *d, cdp__join_func *next) {
    cdp__join *s = m->join;
    const cdp_status st = cdp__tcp_store_start(d, &s->made);
    s->until_ns = cdp__deadline(m->os, cdp__def(d->connect_timeout_ms, d->timeout_ms));
    s->waits = CDP__WAITS_CONNECTION;
    s->next = next;
    return st;
}

CDP__PRIVATE void cdp__join_disconnect(cdp__join *s) {
    cdp_store_destroy(s->made);
    s->made = NULL;
    s->reread_ns = 0;
}

CDP__PRIVATE cdp_status cdp__join_follow(cdp__mesh *m);

/* The connection to the store is up: begins the second one, which becomes `watch` when this process
   owns its rank, and is ready then. */
CDP__PRIVATE cdp_status cdp__join_second(cdp__mesh *m) {
    cdp_tcp_store_desc d = cdp__mesh_store_desc(m);
    const cdp_addr at = cdp__tcp_store_peer_addr(m->store);
    d.connect_timeout_ms = cdp__join_ms_left(m);
    /* its name need not be resolved again */
    d.addrs = &at;
    d.addr_count = 1;
    return cdp__tcp_store_start(&d, &m->join->second);
}

/* The connection has succeeded or failed, or takes long. An address in a meeting store may be of an
   earlier run, so then it is read again; an attempt at an address that is still there goes on, for
   rank 0 may be far away. */
CDP__PRIVATE CDP__COLD cdp_status cdp__join_store_up(cdp__mesh *m) {
    cdp__join *s = m->join;
    cdp_status st;
    if (s->result == CDP_PENDING) {
        s->patience_ms = cdp__min(2 * s->patience_ms, 8000);
        return cdp__join_follow(m);
    }
    if (s->result == CDP_OK) {
        m->store = s->made;
        s->made = NULL;
        s->reread_ns = 0;
        st = cdp__join_second(m);
        if (st != CDP_OK) return st;
#ifndef CDP_NO_MEETING
        if (cdp__mesh_serves(m) && cdp__mesh_meets(m)) return cdp__mesh_publish_endpoint(m);
#endif
        return CDP_OK;
    }
    if (cdp__mesh_serves(m) || !cdp__mesh_meets_in_store(m) || cdp__mesh_now(m) >= s->deadline_ns)
        return cdp__join_outcome(s);
    cdp__join_disconnect(s);
    s->patience_ms = cdp__min(2 * s->patience_ms, 8000);
    return cdp__join_follow(m);
}

#ifdef CDP_NO_MEETING
CDP__PRIVATE cdp_status cdp__join_follow(cdp__mesh *m) {
    return cdp__join_outcome(m->join);
}
#else
/* Waits for the connection until the address is to be read again. */
CDP__PRIVATE cdp_status cdp__join_follow_on(cdp__mesh *m) {
    cdp__join *s = m->join;
    s->reread_ns = cdp__min(s->deadline_ns, cdp__mesh_now(m) + s->patience_ms * CDP__MS);
    s->until_ns = s->reread_ns;
    s->waits = CDP__WAITS_CONNECTION;
    s->next = cdp__join_store_up;
    return CDP_OK;
}

CDP__PRIVATE CDP__COLD cdp_status cdp__join_follow_to(
    cdp__mesh *m, const char *word, uint64_t bytes) {
    cdp__join *s = m->join;
    cdp_tcp_store_desc d = cdp__mesh_store_desc(m);
    const uint64_t followed = cdp__hash(CDP__HASH_START, word, bytes);
    if (s->made && followed == s->followed) return cdp__join_follow_on(m);
    if (s->made) cdp__join_disconnect(s);
    s->followed = followed;
    if (!cdp__mesh_parse_endpoint(m, word, bytes, s->at, &d.addr_count))
        return cdp__fail(CDP_ERR_MISMATCH, "the published address of rank 0 cannot be read");
    d.addrs = s->at;
    d.connect_timeout_ms = cdp__join_ms_left(m);
    cdp__join_set_outcome(s, cdp__join_connect(m, &d, cdp__join_store_up));
    if (s->result != CDP_OK) return cdp__join_store_up(m);
    return cdp__mesh_meets_in_store(m) ? cdp__join_follow_on(m) : CDP_OK;
}

CDP__PRIVATE cdp_status cdp__join_followed(cdp__mesh *m) {
    const cdp__join *s = m->join;
    const cdp_bytes *v = s->rq.results;
    if (s->result == CDP_ERR_TIMEOUT && s->made) return cdp__join_follow_on(m);
    if (s->result == CDP_ERR_TIMEOUT)
        return cdp__fail_peer(CDP_ERR_TIMEOUT, 0, 0,
            "rank 0 did not publish its address within %u ms", m->desc.init_timeout_ms);
    if (s->result != CDP_OK) return cdp__join_outcome(s);
    return cdp__join_follow_to(m, (const char *)v->data, v->bytes);
}

/* A rank other than 0 reads the address, then connects. */
CDP__PRIVATE cdp_status cdp__join_follow(cdp__mesh *m) {
    char word[CDP__ENDPOINT_BYTES];
    if (!m->meeting) {
        memset(word, 0, sizeof word);
        if (m->desc.exchange(m->desc.exchange_user, word, sizeof word) != 0)
            return cdp__fail(CDP_ERR_STORE, "the exchange function failed");
        return cdp__join_follow_to(m, word, strnlen(word, sizeof word));
    }
    cdp__mesh_common_key(m, m->join->key_text, "meet");
    cdp__join_ask(m, m->meeting, CDP_STORE_GET, m->join->made ? (uint32_t)m->join->patience_ms : 0,
        cdp__join_followed);
    return CDP_OK;
}
#endif /* CDP_NO_MEETING */

/* Rank 0 starts the store server. A host name may resolve differently on each host, so then the
   server listens at all addresses. */
CDP__PRIVATE cdp_status cdp__mesh_serve(cdp__mesh *m) {
#ifdef CDP_NO_STORE_SERVER
    (void)m;
    return cdp__fail(CDP_ERR_UNSUPPORTED,
        "rank 0 serves the store, but this program was built with CDP_NO_STORE_SERVER: set "
        "external_store, or let another program be rank 0");
#else
    cdp_store_server_desc s;
    cdp_addr self;
    memset(&s, 0, sizeof s);
    s.host = m->desc.master_addr;
    if (m->os->net.addresses && (cdp__mesh_meets(m) || (m->spread && !cdp__mesh_local_only(m))))
        s.host = "*";
    if (m->desc.listen_addr) s.host = m->desc.listen_addr;
    if (m->os->net.addresses && !cdp__addr_parse(s.host, &self) && s.host == m->desc.master_addr
        && !cdp__mesh_local_only(m)) {
        /* ranks that need a slow resolver wait for it themselves */
        const int32_t n = m->os->net.resolve(m->os->user, s.host, 0, &self, 1,
            cdp__min(m->join->deadline_ns, cdp__deadline(m->os, 2000)));
        if (n == -ENOENT)
            return cdp__fail_peer(
                CDP_ERR_IO, -1, 0, "master_addr: the name \"%s\" has no address", s.host);
        s.host = "*";
    }
    s.port = m->desc.master_port;
    s.job_key = m->desc.job_key;
    s.trust_network = m->desc.trust_network;
    s.has_listen_fd = m->desc.has_listen_fd;
    s.listen_fd = m->desc.listen_fd;
    s.os = m->os;
    s.logger = m->desc.group.logger;
    s.loop = &m->loop;
    return cdp_store_server_create(&s, &m->server);
#endif
}

/* Rank 0 serves the store unless another process does; every rank connects. Rank 0 connects to
   itself without resolving a name. */
CDP__PRIVATE CDP__COLD cdp_status cdp__join_open_store(cdp__mesh *m) {
    cdp_tcp_store_desc d = cdp__mesh_store_desc(m);
    cdp_addr self;
    cdp_status st;
    m->join->patience_ms = 250;
    if (m->desc.group.rank != 0 || m->desc.external_store)
        return cdp__mesh_meets(m) ? cdp__join_follow(m)
                                  : cdp__join_connect(m, &d, cdp__join_store_up);
    st = cdp__mesh_serve(m);
    if (st != CDP_OK) return st;
    m->at = self = cdp__store_server_addr(m->server);
    if (cdp__addr_any(&self)) {
        (void)cdp__addr_parse("127.0.0.1", &self);
        self.port = m->at.port;
    }
    d.addrs = &self;
    d.addr_count = 1;
    return cdp__join_connect(m, &d, cdp__join_store_up);
}

/* Connects to the store again: the start that was there is over. */
CDP__PRIVATE CDP__COLD cdp_status cdp__join_reopen(cdp__mesh *m) {
    cdp_tcp_store_desc d = cdp__mesh_store_desc(m);
    if (m->store) return CDP_OK; /* one that others serve */
    m->join->patience_ms = 250;
    if (cdp__mesh_meets_in_store(m)) return cdp__join_follow(m);
    if (cdp__mesh_meets(m))
        return cdp__fail_peer(CDP_ERR_MISMATCH, 0, 0,
            "the exchange function gave the address of a start of rank 0 that is over");
    d.connect_timeout_ms = cdp__join_ms_left(m);
    return cdp__join_connect(m, &d, cdp__join_store_up);
}

CDP__PRIVATE cdp_status cdp__join_watching(cdp__mesh *m) {
    cdp__join *s = m->join;
    cdp_status st = cdp__join_outcome(s);
    if (st != CDP_OK) return st;
    m->watch = s->made;
    s->made = NULL;
    m->watch_key.data = m->fail_key;
    m->watch_key.bytes = strlen(m->fail_key);
    st = cdp__mesh_start(m->watch, &m->watch_rq, CDP_STORE_GET, &m->watch_key, 1, NULL);
    m->watching = st >= CDP_OK;
    return m->watching ? CDP_OK : st;
}

/* Uses the second connection to the store. From here on this rank notices a failure of any rank
   while it waits, and the last will reports its own death. Not before it owns its rank: a stray
   process that tries to join a running job must not end it. */
CDP__PRIVATE CDP__COLD cdp_status cdp__mesh_start_watch(cdp__mesh *m) {
    cdp__join *s = m->join;
    uint8_t will[CDP__FAILURE_MAX];
    cdp__failure_record r;
    cdp_bytes value;
    char text[64];
    cdp_status st = CDP_OK;
    m->claimed = true; /* the previous step has made sure of that */
    cdp__format(text, sizeof text, "rank %u ended while the job was starting", m->desc.group.rank);
    cdp__failure_plain(&r, CDP_ERR_PEER_LOST, 0, (int32_t)m->desc.group.rank, text);
    value.data = will;
    value.bytes = cdp__failure_encode(&r, will);
    if (!s->second) st = cdp__join_second(m);
    if (st == CDP_OK) st = cdp__tcp_store_set_last_will(s->second, m->fail_key, value);
    if (st != CDP_OK) return st;
    s->made = s->second;
    s->second = NULL;
    s->until_ns = s->deadline_ns;
    s->waits = CDP__WAITS_CONNECTION;
    s->next = cdp__join_watching;
    return CDP_OK;
}

/* The deadline for finding all ranks. The rest of init_timeout_ms, at most an eighth, is kept
   for finding out which ranks are missing and for telling the others. */
CDP__PRIVATE uint64_t cdp__mesh_init_deadline(cdp__mesh *m) {
    const uint64_t ms = m->desc.init_timeout_ms, farewell = cdp__min(4 * CDP__SETTLE_MS, ms / 8);
    m->init_deadline_ns = cdp__deadline(m->os, m->desc.init_timeout_ms);
    if (m->init_deadline_ns == CDP__NEVER) return CDP__NEVER;
    return m->init_deadline_ns - farewell * CDP__MS;
}

/* Without room for two connections of every rank to the store the job cannot start. Links are made
   when they are needed: see cdp__mesh_count_descriptors(). */
CDP__PRIVATE cdp_status cdp__mesh_check_descriptors(const cdp__mesh *m) {
    const uint64_t limit = cdp__mesh_descriptor_limit(m), start = cdp__mesh_descriptors(m, 0, 0);
    const uint32_t ranks = m->desc.group.world_size;
    if (limit >= start) return CDP_OK;
    return cdp__fail_peer(CDP_ERR_IO, -1, EMFILE,
        "rank %u of %u needs %llu descriptors to start the job, %llu with a link to every other "
        "rank and %llu if they share memory, but this process may have %llu: raise the limit "
        "(ulimit -n)",
        m->desc.group.rank, ranks, (unsigned long long)start,
        (unsigned long long)cdp__mesh_descriptors(m, ranks, 0),
        (unsigned long long)cdp__mesh_descriptors(m, ranks, ranks), (unsigned long long)limit);
}

CDP__PRIVATE cdp_status cdp__mesh_prepare(cdp__mesh *m) {
    const cdp_status st = cdp__mesh_check_descriptors(m);
    return st == CDP_OK && m->desc.group.rank == 0
        ? m->os->random(m->os->user, m->job, CDP__JOB_BYTES)
        : st;
}

#define CDP__LEAVE_MS 100u /* time to unregister from a file that another process has locked */

/* The start has succeeded: if this rank has written a wait record, replaces it by one that names no
   rank. */
CDP__PRIVATE cdp_status cdp__join_good(cdp__mesh *m) {
    m->started = true;
    if (!m->wait_recorded) return cdp__join_end(m);
    cdp__join_write_wait(m, -1, cdp__join_end);
    return CDP_OK;
}

/* Unregisters from the file. It retries, because another process may have the file locked. */
CDP__PRIVATE cdp_status cdp__join_leave(cdp__mesh *m) {
    cdp__join *s = m->join;
#ifndef CDP_NO_FILE_STORE
    cdp__file_store *f = (cdp__file_store *)s->file;
    const uint64_t now = cdp__mesh_now(m);
    cdp__join_forget(s);
    if (f && m->meeting && cdp__file_register(f, true) == CDP_PENDING && now < s->give_up_ns) {
        cdp__join_pause(s, now + CDP__MS, cdp__join_leave);
        return CDP_OK;
    }
    if (f) cdp__file_free(f);
    s->file = NULL;
#endif
    cdp__join_forget(s);
    m->meeting = NULL;
    return s->status == CDP_OK ? cdp__join_good(m) : cdp__join_failed(m);
}

/* Rendezvous is over: rank 0 deletes its address from the meeting store. */
CDP__PRIVATE cdp_status cdp__join_withdraw(cdp__mesh *m) {
    cdp__join *s = m->join;
    s->give_up_ns = cdp__deadline(m->os, CDP__SETTLE_MS + CDP__LEAVE_MS);
    if (!cdp__mesh_meets_in_store(m) || m->desc.group.rank != 0) return cdp__join_leave(m);
    cdp__mesh_common_key(m, s->key_text, "meet");
    cdp__join_ask(m, m->meeting, CDP_STORE_DELETE, CDP__SETTLE_MS, cdp__join_leave);
    if (s->status != CDP_OK || s->rq.status != CDP_PENDING) return CDP_OK;
    /* it was sent, so the answer need not be awaited: the store may be far away */
    m->meeting->cancel(m->meeting->self, &s->rq);
    if (s->rq.number != CDP__STORE_NO_ANSWER)
        cdp__join_ask(m, m->meeting, CDP_STORE_DELETE, CDP__SETTLE_MS, cdp__join_leave);
    return CDP_OK;
}

/* The steps of a start, in order, with one common deadline. */
static cdp__join_func *const cdp__join_steps[] = {cdp__mesh_prepare, cdp__mesh_meet,
    cdp__mesh_listen_first, cdp__mesh_config, cdp__mesh_listen, cdp__mesh_claim,
    cdp__mesh_start_watch, cdp__mesh_exchange, cdp__mesh_await_addrs, cdp__mesh_read_addrs,
    cdp__mesh_done, cdp__mesh_all_done, cdp__mesh_all_answered, cdp__mesh_await_addrs_again,
    cdp__mesh_read_addrs};

/* The first step of rank 0 for which it needs others; before, it has published where it listens. */
#define CDP__JOIN_OTHERS 8u
#define CDP__JOIN_STEPS ((uint32_t)(sizeof cdp__join_steps / sizeof *cdp__join_steps))

/* Ends the start with this error. */
CDP__PRIVATE void cdp__join_fail(cdp__mesh *m, const cdp_error *why) {
    cdp__join *s = m->join;
    s->error = *why;
    /* of a store that was closed by its host */
    if (s->error.status == CDP_ERR_STATE) s->error.status = CDP_ERR_STORE;
    s->status = s->error.status;
    s->waits = CDP__WAITS_NOT;
    if (s->made) cdp__join_disconnect(s);
    s->next = cdp__join_withdraw;
}

/* It pauses, and waits for nothing. */
CDP__PRIVATE bool cdp__join_held(const cdp__join *s) {
#ifdef CDP_NO_FRAMES
    (void)s; /* nothing else could go on meanwhile */
    return false;
#else
    return s->hold && s->step == s->hold && !s->next;
#endif
}

/* Continues the start as far as possible without waiting. PENDING: it is held, or waits for an
   event on the loop, until cdp__join_until() at the latest. Otherwise it is over; returns its
   result. The reason of a failure is join->error. */
CDP__PRIVATE cdp_status cdp__join_go_on(cdp__mesh *m) {
    cdp__join *s = m->join;
    while (!s->over) {
        cdp__join_func *func;
        if (cdp__join_waiting(m)) return CDP_PENDING;
        if (cdp__join_held(s)) return CDP_PENDING;
        func = s->next;
        if (!func && s->step < CDP__JOIN_STEPS) func = cdp__join_steps[s->step++];
        if (!func) func = cdp__join_withdraw;
        s->next = NULL;
        s->waits = CDP__WAITS_NOT;
        if (func(m) != CDP_OK) cdp__join_fail(m, cdp_last_error());
    }
    if (s->status == CDP_OK && !cdp__mesh_alone(m)) cdp__tcp_store_withdraw_last_will(m->watch);
    return s->status;
}

/* Runs the loop until something happens that the current state may wait for. A loop that fails is
   the outcome: then this cancels what was waited for. */
CDP__PRIVATE void cdp__join_run(cdp__mesh *m, uint64_t until_ns) {
    cdp__join *s = m->join;
    const cdp_status st = cdp__loop_run(&m->loop, NULL, cdp__min(cdp__join_until(m), until_ns));
    if (st == CDP_OK) return;
    cdp__join_set_outcome(s, st);
    if (s->waits == CDP__WAITS_REQUEST) s->asked->cancel(s->asked->self, &s->rq);
    if (s->waits == CDP__WAITS_LISTENER) cdp__join_reach_end(m);
    s->waits = CDP__WAITS_NOT;
}

/* Runs a start. The only function of a start that waits. `why`: the reason of a failure. */
CDP__PRIVATE cdp_status cdp__mesh_rendezvous(cdp__mesh *m, cdp_error *why) {
    cdp_status st;
    while ((st = cdp__join_go_on(m)) == CDP_PENDING)
        cdp__join_run(m, CDP__NEVER);
    *why = m->join->error;
    cdp__join_free(m);
    return st;
}

CDP__PRIVATE cdp_status cdp__mesh_open(cdp__mesh *m) {
    const uint32_t n = m->desc.group.world_size * m->desc.connections;
    cdp_status st = cdp__loop_open(&m->loop, m->os);
    uint32_t i;
    if (st != CDP_OK) return st;
    m->links = (cdp__link *)cdp__alloc_zero(m->os, n * (uint64_t)sizeof *m->links);
    if (!m->links) return cdp__fail_nomem("the links", n * (uint64_t)sizeof *m->links);
    for (i = 0; i < n; ++i) {
        m->links[i].mesh = m;
        m->links[i].peer = i % m->desc.group.world_size;
        m->links[i].index = i / m->desc.group.world_size;
    }
    if (m->os->net.addresses)
        m->mine_count = m->os->net.addresses(m->os->user, NULL, m->mine, CDP__ADDRS);
    cdp__mesh_key(m, m->fail_key, "fail", UINT32_MAX);
    m->join = (cdp__join *)cdp__alloc_zero(m->os, sizeof *m->join);
    if (!m->join) return cdp__fail_nomem("what starting needs", sizeof *m->join);
    m->join->reopen = cdp__join_reopen;
    m->start_ns = cdp__mesh_now(m);
    m->join->deadline_ns = cdp__mesh_init_deadline(m);
    return CDP_OK;
}

#endif /* CDP_SRC_TCP_RENDEZVOUS_MEETING_H */
