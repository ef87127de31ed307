/* tcp/rendezvous_steps.h - listen, compare, claim, exchange

   Knows: the deadline of cdp_init(), the store, results of earlier steps. Promises: a step that
   fails reports which rank is missing or differs. */
#ifndef CDP_SRC_TCP_RENDEZVOUS_STEPS_H
#define CDP_SRC_TCP_RENDEZVOUS_STEPS_H

#include "../base/version.h"
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
#include "../base/text.h"
#include "../os/loop.h"
#include "../base/bytes.h"
#include "../message/header.h"
#include "../failure/chains.h"
#include "../group/world.h"
#include "../collective/select.h"
#include "../store/desc_api.h"
#include "../store/store_api.h"
#include "../store/addr.h"
#include "../store/server_create.h"
#include "../store/client_calls.h"
#include "handshake.h"
#include "paths.h"
#include "mesh.h"
#include "link_streams.h"
#include "link_connecting.h"
#include "incoming.h"
#include "first_cause.h"
#include "rendezvous.h"
#include "rendezvous_missing.h"
#include "rendezvous_again.h"

/* True if the desc restricts the job to one host. (A host often resolves its own name to
   127.0.1.1, so a name proves nothing.) */
CDP__PRIVATE bool cdp__mesh_local_only(const cdp__mesh *m) {
    cdp_addr a;
    return cdp__addr_parse(m->desc.master_addr, &a) ? cdp__addr_loopback(&a)
                                                    : strcmp(m->desc.master_addr, "localhost") == 0;
}

/* Binds the listener to one of the ports that this rank may use. Returns the descriptor, or a
   negative errno; `at` is the last address tried. */
CDP__PRIVATE int32_t cdp__mesh_bind(cdp__mesh *m, cdp_addr *at) {
    const uint32_t first = m->desc.first_port,
                   last = m->desc.last_port > first ? m->desc.last_port : first;
    uint32_t port;
    int32_t fd = -EADDRINUSE;
    for (port = first; port <= last && fd == -EADDRINUSE; ++port) {
        at->port = (uint16_t)port;
        fd = m->os->net.listen_at(m->os->user, at, &m->at);
    }
    return fd;
}

/* An address of this host at which others may reach this rank: that from which it reaches the
   store. */
CDP__PRIVATE bool cdp__mesh_local_addr(const cdp__mesh *m, cdp_addr *out) {
    if (cdp__mesh_alone(m)) return cdp__mesh_home(m, out);
    return cdp__tcp_store_local_addr(m->store, out);
}

/* Opens this rank's listener. Rank 0 shares the port of the store. Other ranks listen at the
   address from which they reach rank 0 if the job is on one machine or no other address is known,
   else at all addresses: each peer finds out which of them it can reach. */
CDP__PRIVATE CDP__COLD cdp_status cdp__mesh_listen(cdp__mesh *m) {
    cdp_error why;
    cdp_addr at;
    int32_t fd;
    if (m->listener.func) return CDP_OK; /* this rank waits for the next start */
    if (cdp__mesh_serves(m)) {
        cdp__store_server_share(m->server, cdp__mesh_incoming, m);
        return CDP_OK;
    }
    if (!cdp__mesh_local_addr(m, &at)) {
        cdp__error(&why, CDP_ERR_STORE, -1, "the connection to the store broke at once");
        return cdp__join_store_failed(m, &why);
    }
    if (m->desc.listen_addr)
        (void)cdp__addr_parse(m->desc.listen_addr, &at);
    else if (m->mine_count && (m->keyed || m->desc.trust_network) && !cdp__mesh_local_only(m))
        (void)cdp__addr_parse("::", &at);
    fd = cdp__mesh_bind(m, &at);
    /* this host has no IPv6 */
    if (fd < 0 && fd != -EADDRINUSE && cdp__addr_any(&at) && !m->desc.listen_addr) {
        (void)cdp__addr_parse("0.0.0.0", &at);
        fd = cdp__mesh_bind(m, &at);
    }
    if (fd < 0) return cdp__cannot_listen(m->os, &at, -fd);
    cdp__loop_add(&m->loop, &m->listener, fd, cdp__mesh_accept, m);
    return CDP_OK;
}

/* The config of rank 0 has the address of its listener. The others need its config first: only who
   knows the name of the start can tell others that it has no port. */
CDP__PRIVATE cdp_status cdp__mesh_listen_first(cdp__mesh *m) {
    return m->desc.group.rank == 0 ? cdp__mesh_listen(m) : CDP_OK;
}

CDP__PRIVATE uint32_t cdp__mesh_own_addrs(cdp__mesh *m, cdp_addr out[CDP__ADDRS]);

/* Ends a step that sets a key: whether the request succeeded is all that counts. */
CDP__PRIVATE cdp_status cdp__join_set(cdp__mesh *m) {
    return cdp__join_outcome(m->join);
}

/* Encodes the settings of this rank, which must equal those of rank 0. */
CDP__PRIVATE void cdp__mesh_own_config(const cdp__mesh *m, uint8_t out[CDP__CONFIG_BYTES]) {
    cdp_group_desc g = m->desc.group;
    cdp__group_desc_defaults(&g);
    memset(out, 0, CDP__CONFIG_BYTES);
    cdp__put_u32(out, CDP_WIRE_VERSION | cdp__byte_order() << 24);
    cdp__put_u32(out + 4, m->desc.group.world_size);
    cdp__put_u64(out + 8, g.small_bytes);
    cdp__put_u64(out + 16, g.piece_bytes);
    memcpy(out + 24, m->job, CDP__JOB_BYTES);
    cdp__put_u32(
        out + 40, m->desc.connections | (uint32_t)m->keyed << 16 | (uint32_t)m->desc.mac << 24);
}

/* Rank 0 publishes the settings of the job. */
CDP__PRIVATE cdp_status cdp__mesh_publish_config(cdp__mesh *m) {
    cdp__join *s = m->join;
    char *at = (char *)s->own + CDP__CONFIG_BYTES;
    cdp_addr own[CDP__ADDRS];
    cdp__mesh_own_config(m, s->own);
    cdp__mesh_round(m, m->job);
    s->config = true;
    s->their_bytes = 0;
    s->claimed_until_ns = 0;
    s->own_head = s->own_bytes = CDP__CONFIG_BYTES;
    if (!m->desc.external_store) {
        cdp__join_value(s, 0, s->own, s->own_bytes);
        cdp__join_ask(m, m->store, CDP_STORE_SET, 0, cdp__join_set);
        return CDP_OK;
    }
    cdp__addrs_text(own, cdp__mesh_own_addrs(m, own), at, sizeof s->own - CDP__CONFIG_BYTES);
    s->own_bytes += strlen(at);
    return cdp__join_take(m);
}

/* Rank 0 has another job key, or another setting of `mac`. */
CDP__PRIVATE void cdp__mesh_guarded_otherwise(const cdp__mesh *m, bool key, cdp_error *why) {
    if (key)
        cdp__error(why, CDP_ERR_MISMATCH, 0,
            "rank 0 has %s job key, but this rank has %s: set CDP_JOB_KEY, or job_key, to the same "
            "secret for all ranks, or for none",
            m->keyed ? "no" : "a", m->keyed ? "one" : "none");
    else
        cdp__error(why, CDP_ERR_MISMATCH, 0,
            "mac is %s here but %s on rank 0: set it, or CDP_MAC, alike on all ranks",
            m->desc.mac ? "on" : "off", m->desc.mac ? "off" : "on");
}

/* Compares the settings of rank 0 with those of this rank. why->status is OK if they are equal. */
CDP__PRIVATE void cdp__mesh_compare(
    cdp__mesh *m, const uint8_t *value, uint64_t bytes, cdp_error *why) {
    uint8_t mine[CDP__CONFIG_BYTES];
    cdp__mesh_own_config(m, mine);
    cdp__error_clear(why, CDP_OK);
    if (bytes < sizeof mine || (cdp__get_u32(value) & 0xffffff) != CDP_WIRE_VERSION)
        cdp__error(why, CDP_ERR_MISMATCH, 0,
            "rank 0 runs another version of cdp: this one speaks version %u; build all ranks from "
            "the same headers",
            (unsigned)CDP_WIRE_VERSION);
    else if (value[3] != cdp__byte_order())
        cdp__error(why, CDP_ERR_MISMATCH, 0,
            "byte order: rank 0 is %s-endian and this rank %s-endian; they must be the same",
            value[3] == CDP__HEAD_LITTLE_ENDIAN ? "little" : "big",
            cdp__byte_order() == CDP__HEAD_LITTLE_ENDIAN ? "little" : "big");
    else if (cdp__get_u32(value + 4) != m->desc.group.world_size)
        cdp__error(why, CDP_ERR_MISMATCH, 0,
            "WORLD_SIZE is %u here but %u on rank 0; make them equal", m->desc.group.world_size,
            cdp__get_u32(value + 4));
    else if (memcmp(value + 8, mine + 8, 16) != 0)
        cdp__error(why, CDP_ERR_MISMATCH, 0,
            "small_bytes or piece_bytes differ from those of rank 0 (%llu, %llu); make them equal",
            (unsigned long long)cdp__get_u64(value + 8),
            (unsigned long long)cdp__get_u64(value + 16));
    else if (memcmp(value + 42, mine + 42, 2) != 0)
        cdp__mesh_guarded_otherwise(m, value[42] != mine[42], why);
    else if (memcmp(value + 40, mine + 40, 4) != 0)
        cdp__error(why, CDP_ERR_MISMATCH, 0,
            "connections is %u here but %u on rank 0; make them equal", m->desc.connections,
            cdp__get_u32(value + 40) & 0xffff);
    else if (m->job_known && memcmp(m->job, value + 24, CDP__JOB_BYTES) != 0)
        cdp__error(why, CDP_ERR_MISMATCH, 0,
            "the published address of rank 0 leads to another job: it is that of an earlier run; "
            "remove the meeting file or key");
}

CDP__PRIVATE cdp_status cdp__join_config_got(cdp__mesh *m);

CDP__PRIVATE cdp_status cdp__join_config_ask(cdp__mesh *m) {
    cdp__join *s = m->join;
    cdp__mesh_common_key(m, s->key_text, "config");
    cdp__join_ask(m, m->store, CDP_STORE_GET,
        (uint32_t)cdp__min(s->pause_ns / CDP__MS, 1 + (uint64_t)cdp__join_ms_left(m)),
        cdp__join_config_got);
    return CDP_OK;
}

/* Rank 0 is missing, as `why` says: gives up, or logs it and waits on. */
CDP__PRIVATE cdp_status cdp__join_config_missed(cdp__mesh *m) {
    cdp__join *s = m->join;
    const bool late = cdp__mesh_now(m) >= s->deadline_ns;
    if (late && m->foreign) return cdp__error_record(&s->why);
    if (late)
        return cdp__fail_peer(
            CDP_ERR_TIMEOUT, 0, 0, "rank 0 did not come within %u ms", m->desc.init_timeout_ms);
    cdp__join_log_missed(m);
    return cdp__join_config_ask(m);
}

/* Waits for the config. From time to time this logs that rank 0 is missing. */
CDP__PRIVATE cdp_status cdp__join_config_get(cdp__mesh *m) {
    m->join->looks = 0;
    m->join->pause_ns = cdp__join_pause_ns(m);
    return cdp__join_config_ask(m);
}

/* The store only contained the config of an earlier start; the address in it is in s->own. */
CDP__PRIVATE cdp_status cdp__join_config_stale(cdp__mesh *m) {
    return cdp__fail_peer(CDP_ERR_TIMEOUT, 0, 0,
        "rank 0 did not come within %u ms: the store still names that of an earlier start, "
        "and no process listens at its address %s any more",
        m->desc.init_timeout_ms, (const char *)m->join->own);
}

/* The settings differ from those in the config, and what is said of that start is in s->start. */
CDP__PRIVATE CDP__COLD cdp_status cdp__join_differs(cdp__mesh *m) {
    cdp__join *s = m->join;
    s->start.differs = true;
    if (cdp__start_judge(&s->start) == CDP__START_NEXT) return cdp__join_next(m);
    return cdp__error_record(&s->error);
}

/* Compares the config. In an address that was published the job has its name: another one was
   read too early, or too late. */
CDP__PRIVATE CDP__COLD cdp_status cdp__join_config_compare(
    cdp__mesh *m, const uint8_t *value, uint64_t bytes) {
    cdp__join *s = m->join;
    cdp_error why;
    cdp__mesh_compare(m, value, bytes, &why);
    if (bytes < CDP__CONFIG_BYTES) return cdp__error_record(&why);
    if (m->job_known && memcmp(m->job, value + 24, CDP__JOB_BYTES) != 0)
        return m->meeting ? cdp__join_again(m, &why) : cdp__error_record(&why);
    memcpy(m->job, value + 24, CDP__JOB_BYTES);
    cdp__mesh_round(m, m->job);
    if (why.status == CDP_OK) return CDP_OK;
    s->error = why;
    memset(&s->start, 0, sizeof s->start);
    return cdp__join_look(m, cdp__join_differs);
}

/* Compares the config. One in an external store may be of an earlier start whose rank 0 has
   ended; then it is read again until the new rank 0 has replaced it. */
CDP__PRIVATE CDP__COLD cdp_status cdp__join_config_reached(cdp__mesh *m) {
    cdp__join *s = m->join;
    const cdp_bytes *v = s->rq.results;
    const uint8_t *value = (const uint8_t *)v->data;
    const uint64_t now = cdp__mesh_now(m);
    if (s->reached) return cdp__join_config_compare(m, value, v->bytes);
    cdp__mesh_text(value, v->bytes, CDP__CONFIG_BYTES, (char *)s->own, 128);
    s->own_bytes = strlen((const char *)s->own);
    if (now >= s->deadline_ns) return cdp__join_config_stale(m);
    cdp__join_pause(
        s, cdp__min(now + s->patience_ms * CDP__MS, s->deadline_ns), cdp__join_config_get);
    s->patience_ms = cdp__min(2 * s->patience_ms, 500);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__join_config_got(cdp__mesh *m) {
    cdp__join *s = m->join;
    const cdp_bytes *v = s->rq.results;
    if (s->result == CDP_ERR_TIMEOUT) {
        if (s->own_bytes && cdp__mesh_now(m) >= s->deadline_ns) return cdp__join_config_stale(m);
        cdp__format(s->names, sizeof s->names, "0");
        return cdp__join_complain(m, 0, cdp__join_config_missed);
    }
    if (s->result != CDP_OK) return cdp__join_store_failed(m, &s->why);
    s->reached = 1;
    if (!m->desc.external_store || v->bytes <= CDP__CONFIG_BYTES)
        return cdp__join_config_reached(m);
    cdp__join_reach(m, (const uint8_t *)v->data + CDP__CONFIG_BYTES, v->bytes - CDP__CONFIG_BYTES,
        cdp__join_config_reached);
    return CDP_OK;
}

/* Rank 0 publishes the config; the other ranks compare it. */
CDP__PRIVATE cdp_status cdp__mesh_config(cdp__mesh *m) {
    cdp__join *s = m->join;
    s->patience_ms = 20;
    cdp__mesh_common_key(m, s->key_text, "config");
    return m->desc.group.rank == 0 ? cdp__mesh_publish_config(m) : cdp__join_config_get(m);
}

/* Makes sure that no other process has this rank. */
CDP__PRIVATE cdp_status cdp__mesh_claim(cdp__mesh *m) {
    cdp__join *s = m->join;
    char *mine = (char *)s->own;
    uint64_t random = 0;
    cdp_addr own[CDP__ADDRS];
    cdp__text t = cdp__text_of(mine, sizeof s->own);
    cdp_status st = m->os->random(m->os->user, &random, sizeof random);
    if (st != CDP_OK) return st;
    cdp__mesh_key(m, s->key_text, "claim", m->desc.group.rank);
    s->config = false;
    s->claimed_until_ns = 0;
    cdp__text_add(&t, "%llx ", (unsigned long long)(random | 1ull << 63)); /* 16 digits */
    s->own_head = t.used;
    cdp__addrs_text(
        own, cdp__mesh_own_addrs(m, own), mine + s->own_head, sizeof s->own - s->own_head);
    s->own_bytes = strlen(mine);
    return cdp__join_take(m);
}

/* The addresses under which other ranks may try this one: first the one from which it reaches
   the store. */
CDP__PRIVATE CDP__COLD uint32_t cdp__mesh_own_addrs(cdp__mesh *m, cdp_addr out[CDP__ADDRS]) {
    const bool all = cdp__addr_any(&m->at);
    uint32_t i, n = 0;
    out[0] = m->at;
    if (all && m->desc.interfaces && m->os->net.addresses) {
        const uint32_t chosen =
            m->os->net.addresses(m->os->user, m->desc.interfaces, out, CDP__ADDRS);
        for (i = 0; i < chosen; ++i)
            if (m->at.family == 6 || out[i].family == 4) {
                out[n] = out[i];
                out[n++].port = m->at.port;
            }
        return n;
    }
    if (!all || cdp__mesh_local_addr(m, &out[0])) n = !all || !cdp__addr_loopback(&out[0]);
    for (i = 0; all && i < m->mine_count && n < CDP__ADDRS; ++i) {
        if ((n && memcmp(m->mine[i].ip, out[0].ip, 16) == 0) || cdp__addr_loopback(&m->mine[i]))
            continue;
        if (m->at.family == 6 || m->mine[i].family == 4) out[n++] = m->mine[i];
    }
    n = n ? n : 1; /* the host has no address but loopback */
    for (i = 0; i < n; ++i)
        out[i].port = m->at.port;
    return n;
}

/* Decides whether this rank may connect to rank `r`, before any link is opened, so that the error
   is reported once. */
CDP__PRIVATE cdp_status cdp__mesh_admissible(const cdp__mesh *m, uint32_t r, const cdp_addr *theirs,
    uint32_t n, const cdp_addr *own, uint32_t count) {
    uint32_t i, k;
    char at[80];
    for (i = 0; i < n && !m->keyed && !m->desc.trust_network; ++i) {
        for (k = 0; k < count && !cdp__addr_is_here(&theirs[i], &own[k]); ++k) {
        }
        if (k < count) continue;
        for (k = 0; k < m->mine_count && !cdp__addr_is_here(&theirs[i], &m->mine[k]); ++k) {
        }
        if (k < m->mine_count) continue;
        return cdp__fail_peer(CDP_ERR_INVALID, r, 0,
            "rank %u is on another machine (%s) and this job has no key: set CDP_JOB_KEY, or "
            "job_key, to the same secret for all ranks (or trust_network, "
            "if every program in that network may read and change everything)",
            r, cdp__addr_text(&theirs[i], at, sizeof at));
    }
    return CDP_OK;
}

/* A number for rank r's host: that of an earlier rank with the same host id, or a new one. Id 0:
   the rank shares its host with no other rank. */
CDP__PRIVATE uint32_t cdp__mesh_host_before(const cdp__mesh *m, uint32_t r, uint32_t *hosts) {
    const uint64_t id = cdp__get_u64((const uint8_t *)m->addrs.results[r].data);
    uint32_t q;
    for (q = 0; id && q < r; ++q)
        if (cdp__get_u64((const uint8_t *)m->addrs.results[q].data) == id) return m->hosts[q];
    return (*hosts)++;
}

/* Makes a record of this rank's host id and addresses, s->values[0], and publishes it, if it asks a
   store. */
CDP__PRIVATE cdp_status cdp__mesh_exchange(cdp__mesh *m) {
    cdp__join *s = m->join;
    char *text = (char *)s->own;
    cdp_addr own[CDP__ADDRS];
    const uint32_t count = cdp__mesh_own_addrs(m, own);
    uint32_t number = 0;
    m->hosts = (uint32_t *)cdp__alloc_zero(m->os, m->desc.group.world_size * sizeof *m->hosts);
    if (!m->hosts)
        return cdp__fail_nomem(
            "the hosts of all ranks", m->desc.group.world_size * sizeof *m->hosts);
    if (!count)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_init: interfaces '%s': this machine has no address on any of these; name others, "
            "or none for all",
            m->desc.interfaces);
    cdp__mesh_key(m, s->key_text, "addr", m->desc.group.rank);
    cdp__put_u64((uint8_t *)text,
        cdp__mesh_shares(m) && m->os->shared.host_id ? m->os->shared.host_id(m->os->user) : 0);
    if (m->os->shared.process_place) m->place = m->os->shared.process_place(m->os->user, &number);
    cdp__put_u64((uint8_t *)text + 8, m->place);
    cdp__put_u32((uint8_t *)text + 16, number);
    cdp__addrs_text(own, count, text + CDP__PLACE_BYTES, sizeof s->own - CDP__PLACE_BYTES);
    cdp__join_value(s, 0, text, CDP__PLACE_BYTES + strlen(text + CDP__PLACE_BYTES));
    if (cdp__mesh_alone(m)) return CDP_OK;
    cdp__join_ask(m, m->store, CDP_STORE_SET, 0, cdp__join_set);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__mesh_await_addrs(cdp__mesh *m) {
    cdp_store_request_free(m->store, &m->addrs);
    return cdp__join_await_all(m, "addr", true);
}

#define CDP__OWN_DESCRIPTORS 16u /* standard streams, listener, watch, wake-up, store, ... */
/* beside those of its connections: to see the end of a process; and to share memory with it */
#define CDP__WATCH_DESCRIPTORS 1u
#define CDP__MEMORY_DESCRIPTORS 3u

/* UINT64_MAX: not known. */
CDP__PRIVATE uint64_t cdp__mesh_descriptor_limit(const cdp__mesh *m) {
    const uint64_t limit =
        m->os->net.descriptor_limit ? m->os->net.descriptor_limit(m->os->user) : 0;
    return limit ? limit : UINT64_MAX;
}

/* How many descriptors this rank needs with links to `links` ranks, over memory to `shared` of
   them. On rank 0 every rank has two connections to the store. */
CDP__PRIVATE uint64_t cdp__mesh_descriptors(const cdp__mesh *m, uint64_t links, uint64_t shared) {
    const bool serves = m->desc.group.rank == 0 && !m->desc.external_store;
    return CDP__OWN_DESCRIPTORS + (serves ? 2ull * m->desc.group.world_size : 0)
        + links * m->desc.connections + shared * CDP__MEMORY_DESCRIPTORS;
}

/* It is known now which ranks are on this machine. Where memory shared with them would take more
   descriptors than this process may have, this rank uses TCP alone: better slow than out of
   descriptors. */
CDP__PRIVATE void cdp__mesh_count_descriptors(cdp__mesh *m) {
    const uint64_t limit = cdp__mesh_descriptor_limit(m);
    const uint32_t n = m->desc.group.world_size;
    const uint64_t least = cdp__mesh_descriptors(m, n, 0);
    uint64_t all = least;
#ifndef CDP_NO_SHARED_MEMORY
    const uint32_t each = cdp__mesh_shares(m) ? CDP__MEMORY_DESCRIPTORS : CDP__WATCH_DESCRIPTORS;
    uint32_t r;
    for (r = 0; r < n; ++r) {
        const uint8_t *at = (const uint8_t *)m->addrs.results[r].data;
        if (r != m->desc.group.rank && m->place && cdp__get_u64(at + 8) == m->place) all += each;
    }
#endif
    if (limit >= all || m->frugal) return; /* the addresses may be read twice */
    m->frugal = m->desc.no_shared_memory = true;
    cdp__log(&m->desc.group.logger, CDP_LOG_WARN, m->desc.group.rank,
        "with a link to every other rank %llu descriptors are needed (%llu without shared memory), "
        "but this process may have %llu, so it shares no memory: raise the limit (ulimit -n)",
        (unsigned long long)all, (unsigned long long)least, (unsigned long long)limit);
}

CDP__PRIVATE void cdp__mesh_need_all(cdp__mesh *m) {
    uint32_t r, i;
    for (r = 0; r < m->desc.group.world_size; ++r)
        for (i = 0; i < m->desc.connections && r != m->desc.group.rank; ++i)
            cdp__link_need(cdp__bundle_at(&m->links[r], i));
}

/* The addresses of all ranks have arrived: checks them, and numbers the hosts. */
CDP__PRIVATE cdp_status cdp__mesh_read_addrs(cdp__mesh *m) {
    cdp_addr at[CDP__ADDRS], own[CDP__ADDRS];
    const uint32_t count = cdp__mesh_own_addrs(m, own);
    cdp_status st = CDP_OK;
    uint32_t r, n, hosts = 0;
    char text[160];
    for (r = 0; st == CDP_OK && r < m->desc.group.world_size; ++r) {
        const cdp_bytes *v = &m->addrs.results[r];
        n = v->bytes < CDP__PLACE_BYTES ? 0
                                        : cdp__addrs_parse((const char *)v->data + CDP__PLACE_BYTES,
                                            v->bytes - CDP__PLACE_BYTES, at, CDP__ADDRS);
        if (n)
            st = cdp__mesh_admissible(m, r, at, n, own, count);
        else
            st = cdp__fail_peer(CDP_ERR_MISMATCH, r, 0,
                "rank %u published addresses that cannot be read: '%s'", r,
                cdp__mesh_text(v->data, v->bytes, CDP__PLACE_BYTES, text, sizeof text));
        if (n && CDP__BY_HOST) m->hosts[r] = cdp__mesh_host_before(m, r, &hosts);
    }
    if (st == CDP_OK) cdp__mesh_count_descriptors(m);
    cdp__join_complete(m);
    if (m->desc.external_store || m->frugal) return st; /* links are opened when they are used */
    if (st == CDP_OK && m->desc.connect_all) cdp__mesh_need_all(m);
    return st;
}

CDP__PRIVATE cdp_status cdp__mesh_done(cdp__mesh *m) {
    cdp__mesh_key(m, m->join->key_text, "done", m->desc.group.rank);
    /* ADD, because a SET is not acknowledged */
    cdp__join_ask(m, m->store, CDP_STORE_ADD, 0, cdp__join_set);
    return CDP_OK;
}

/* Rank 0 serves the store, so it must not leave before all ranks have read it. An external store
   does not report that a rank has ended, so there every rank waits for all others and then reads
   the addresses again: another process may have taken over a rank meanwhile. */
CDP__PRIVATE cdp_status cdp__mesh_all_done(cdp__mesh *m) {
    if (!cdp__mesh_serves(m) && !m->desc.external_store) return CDP_OK;
    return cdp__join_await_all(m, "done", false);
}

CDP__PRIVATE cdp_status cdp__join_answered(cdp__mesh *m) {
    cdp__join *s = m->join;
    const uint64_t now = cdp__mesh_now(m);
    if (!cdp__store_server_sent(m->server) && now < s->give_up_ns)
        cdp__join_pause(s, cdp__min(s->give_up_ns, now + CDP__MS), cdp__join_answered);
    return CDP_OK;
}

/* A rank's key may be set before that rank has received the answer. If rank 0 left now, answers
   that are not sent yet would be lost. But a rank that has just been cut off does not hold rank 0
   up: others that have started would blame rank 0 for that. The server goes on to send. */
CDP__PRIVATE cdp_status cdp__mesh_all_answered(cdp__mesh *m) {
    const uint64_t now = cdp__mesh_now(m);
    if (!cdp__mesh_serves(m)) return CDP_OK;
    m->join->give_up_ns = cdp__min(m->join->deadline_ns, now + cdp__join_unsaid_ns(m));
    return cdp__join_answered(m);
}

CDP__PRIVATE cdp_status cdp__mesh_await_addrs_again(cdp__mesh *m) {
    return m->desc.external_store ? cdp__mesh_await_addrs(m) : CDP_OK;
}

CDP__PRIVATE cdp_tcp_store_desc cdp__mesh_store_desc(cdp__mesh *m) {
    cdp_tcp_store_desc d;
    memset(&d, 0, sizeof d);
    d.host = m->desc.master_addr;
    d.port = m->desc.master_port;
    d.timeout_ms = m->desc.init_timeout_ms;
    d.job_key = m->desc.external_store ? NULL : m->desc.job_key; /* PyTorch's stores have no keys */
    d.os = m->os;
    d.logger = m->desc.group.logger;
    d.loop = &m->loop;
    return d;
}

/* True if the ranks find rank 0 by other means than its address. */
CDP__PRIVATE bool cdp__mesh_meets(const cdp__mesh *m) {
#ifdef CDP_NO_MEETING
    (void)m;
    return false;
#else
    return m->desc.file || m->desc.store || m->desc.exchange;
#endif
}

/* True if that is a store. (Valid after cdp__mesh_meet.) */
CDP__PRIVATE bool cdp__mesh_meets_in_store(const cdp__mesh *m) {
    return cdp__mesh_meets(m) && m->meeting;
}

#endif /* CDP_SRC_TCP_RENDEZVOUS_STEPS_H */
