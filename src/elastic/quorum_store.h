/* elastic/quorum_store.h - a store that lives on several servers

   Knows: who the servers are. Promises: a server that came back without what it had is never used;
   nothing is left behind where creation fails. */
#ifndef CDP_SRC_ELASTIC_QUORUM_STORE_H
#define CDP_SRC_ELASTIC_QUORUM_STORE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../base/log_api.h"
#include "../os/os_api.h"
#include "../os/whole.h"
#include "../store/interface_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../base/bytes.h"
#include "../store/desc_api.h"
#include "../store/store_api.h"
#include "../store/addr.h"
#include "../store/calls.h"
#include "../store/server_create.h"
#include "quorum_api.h"
#include "store.h"
#include "quorum.h"
#include "quorum_servers.h"

#ifndef CDP_NO_CUSTOM_STORE

CDP__PRIVATE void cdp__quorum_destroy(void *user) {
    cdp__quorum_store *s = (cdp__quorum_store *)user;
    const cdp_os *os = s->os;
    uint32_t i;
    cdp__quorum_forget(s);
    for (i = 0; i < s->q.count; ++i) {
        cdp_store_destroy(s->peer[i].store);
        cdp__free(os, s->peer[i].wanted);
    }
    if (s->own) {
        const uint64_t end = cdp__deadline(os, CDP__QUORUM_LINGER_MS);
        while (cdp__store_server_clients(s->own) && cdp__quorum_now(s) < end)
            cdp__sleep_until(os, cdp__quorum_now(s) + CDP__MS);
        cdp_store_server_destroy(s->own);
    }
    cdp__free(os, s->key);
    cdp__free(os, s->kept);
    cdp__free(os, s->will_folder);
    cdp__free(os, s);
}

/* Takes apart the list of servers: s->name and s->q.count. */
CDP__PRIVATE bool cdp__quorum_names(cdp__quorum_store *s, const char *list) {
    uint32_t n = 0;
    for (;;) {
        const char *const end = strchr(list, ',');
        const uint64_t bytes = end ? (uint64_t)(end - list) : strlen(list);
        if (!bytes || bytes >= sizeof s->name[0] || n == CDP__QUORUM_SERVERS) return false;
        memcpy(s->name[n++], list, (size_t)bytes);
        if (!end) break;
        list = end + 1;
    }
    s->q.count = n;
    return true;
}

/* host: room for a name. */
CDP__PRIVATE bool cdp__quorum_split(const char *name, char *host, uint16_t *port) {
    const char *const colon = strrchr(name, ':');
    const char *end = NULL;
    uint32_t number = 0;
    if (colon) end = cdp__addr_decimal(colon + 1, 65535, &number);
    if (!end || *end || !number || colon == name) return false;
    memcpy(host, name, (size_t)(colon - name));
    host[colon - name] = 0;
    *port = (uint16_t)number;
    return true;
}

CDP__PRIVATE cdp_status cdp__quorum_serve(cdp__quorum_store *s, const cdp_quorum_store_desc *d) {
    cdp_store_server_desc server;
    char host[80];
    if (!d->serve) return CDP_OK;
    memset(&server, 0, sizeof server);
    (void)cdp__quorum_split(s->name[d->serve - 1], host, &server.port);
    server.host = host;
    server.job_key = d->job_key;
    server.trust_network = d->trust_network;
    server.os = d->os;
    server.logger = d->logger;
    return cdp_store_server_create(&server, &s->own);
}

/* One attempt to connect to server i. */
CDP__PRIVATE cdp_status cdp__quorum_connect(
    cdp__quorum_store *s, const cdp_quorum_store_desc *d, uint32_t i, uint64_t ms) {
    cdp_tcp_store_desc c;
    char host[80], will[300];
    memset(&c, 0, sizeof c);
    (void)cdp__quorum_split(s->name[i], host, &c.port);
    c.host = host;
    c.job_key = d->job_key;
    c.os = d->os;
    c.logger = d->logger;
    c.timeout_ms = s->answer_ms;
    c.connect_timeout_ms = (uint32_t)ms;
    /* with the head of a record */
    c.max_value_bytes = CDP_STORE_MAX_VALUE_BYTES;
    if (d->will_key) {
        cdp__format(will, sizeof will, "w/%s", d->will_key);
        c.will_key = will;
        c.will_value = d->will_value;
    }
    return cdp_tcp_store_create(&c, &s->peer[i].store);
}

/* compare_set(key, "" -> value) on server i; out: room for what it holds then. */
CDP__PRIVATE cdp_status cdp__quorum_claim(
    cdp__quorum_store *s, uint32_t i, const char *key, const char *value, char out[200]) {
    void *data;
    uint64_t bytes;
    const char *const expected = *value ? "" : "?";
    const cdp_status st = cdp_store_compare_set(s->peer[i].store, key, expected, strlen(expected),
        *value ? value : "?", *value ? strlen(value) : 1, &data, &bytes);
    if (st != CDP_OK) return st;
    bytes = cdp__min(bytes, 199);
    memcpy(out, data, (size_t)bytes);
    out[bytes] = 0;
    if (strcmp(out, "?") == 0) out[0] = 0;
    cdp_store_free(s->peer[i].store, data);
    return CDP_OK;
}

/* Server i did not answer while the servers were sought: it is tried again. */
CDP__PRIVATE void cdp__quorum_part(cdp__quorum_store *s, uint32_t i) {
    cdp_store_destroy(s->peer[i].store);
    s->peer[i].store = NULL;
}

/* The servers are those of one store if a majority of them holds the same list of all their ids.
   The id of a server is lost when it ends, so one that comes back is not in the list. `made`: the
   list to write where a server has none yet; *known: how many hold *list. */
CDP__PRIVATE cdp_status cdp__quorum_members(
    cdp__quorum_store *s, const char *made, char list[200], uint32_t *known) {
    uint32_t i;
    *known = 0;
    for (i = 0; i < s->q.count; ++i) {
        char held[200];
        if (!s->peer[i].store) continue;
        if (cdp__quorum_claim(s, i, "q:members", made, held) != CDP_OK)
            cdp__quorum_part(s, i);
        else if (held[0] && !list[0])
            memcpy(list, held, sizeof held);
        if (s->peer[i].store && held[0] && strcmp(held, list) != 0)
            return cdp__fail(CDP_ERR_MISMATCH,
                "quorum store: server %s belongs to another store than a server before it: start "
                "all of them again",
                s->name[i]);
        *known += s->peer[i].store && held[0];
    }
    return CDP_OK;
}

/* Servers whose id is not in the list have lost what they had: they are not used. */
CDP__PRIVATE cdp_status cdp__quorum_found(cdp__quorum_store *s, bool *founded) {
    char id[CDP__QUORUM_SERVERS][200], all[200], list[200] = "";
    cdp__text t = cdp__text_of(all, sizeof all);
    uint32_t i, known, here = 0;
    cdp_status st;
    for (i = 0; i < s->q.count; ++i) {
        uint8_t random[CDP__QUORUM_ID];
        char mine[2 * CDP__QUORUM_ID + 1];
        if (!s->peer[i].store) continue;
        st = s->os->random(s->os->user, random, sizeof random);
        if (st != CDP_OK) return st;
        cdp__elastic_hex(random, mine);
        if (cdp__quorum_claim(s, i, "q:id", mine, id[i]) != CDP_OK) {
            cdp__quorum_part(s, i);
            continue;
        }
        cdp__text_add(&t, "%s%s", here++ ? "," : "", id[i]);
    }
    (void)cdp__text_end(&t);
    st = cdp__quorum_members(s, "", list, &known);
    if (st != CDP_OK || (!known && here < s->q.count)) return st;
    if (!known) memcpy(list, all, sizeof all);
    for (i = 0; i < s->q.count; ++i)
        if (s->peer[i].store
            && strncmp(list + (2 * CDP__QUORUM_ID + 1) * i, id[i], 2 * CDP__QUORUM_ID) != 0) {
            (void)cdp__fail(CDP_ERR_STORE, "it ended, and another one took its place");
            cdp__quorum_lose(s, i);
        }
    memcpy(all, list, sizeof all);
    st = cdp__quorum_members(s, all, list, &known);
    *founded = st == CDP_OK && known >= cdp__quorum_majority(s->q.count);
    return st;
}

/* Connects to all servers, or, where the store has begun, to a majority. */
CDP__PRIVATE cdp_status cdp__quorum_join(cdp__quorum_store *s, const cdp_quorum_store_desc *d) {
    const uint32_t limit = cdp__def(d->connect_timeout_ms, cdp__def(d->timeout_ms, 300000));
    const uint64_t end = cdp__deadline(s->os, limit);
    uint64_t attempt_ms = 1000;
    bool founded = false;
    cdp_status st = CDP_OK;
    for (;; attempt_ms = cdp__min(2 * attempt_ms, 8000)) {
        uint32_t i, here = 0, lost = 0;
        for (i = 0; i < s->q.count; ++i) {
            const uint64_t now = cdp__quorum_now(s);
            const uint64_t left_ms = end > now ? (end - now) / CDP__MS : 0;
            if (!s->peer[i].store && !s->q.at[i].lost) {
                st = cdp__quorum_connect(s, d, i, cdp__min(attempt_ms, left_ms + 1));
                if (st == CDP_ERR_MISMATCH || st == CDP_ERR_INVALID || st == CDP_ERR_NOMEM)
                    return st;
            }
            here += s->peer[i].store != NULL;
        }
        if (here >= cdp__quorum_majority(s->q.count)) {
            st = cdp__quorum_found(s, &founded);
            if (st != CDP_OK) return st;
        }
        if (founded) break;
        for (i = 0; i < s->q.count; ++i)
            lost += s->q.at[i].lost;
        if (s->q.count - lost < cdp__quorum_majority(s->q.count))
            return cdp__fail(CDP_ERR_MISMATCH,
                "quorum store: %u of the %u servers ended and came back without what they had: "
                "start all of them again",
                lost, s->q.count);
        cdp__sleep_until(s->os, cdp__quorum_now(s) + CDP__QUORUM_REST_NS);
        if (cdp__quorum_now(s) >= end)
            return cdp__fail(CDP_ERR_TIMEOUT,
                "cdp_quorum_store_create: %u of the %u servers answered within %u ms; the first "
                "time all must be there, later a majority. The last error: %s",
                here, s->q.count, limit, cdp_last_error()->text);
    }
    for (uint32_t i = 0; i < s->q.count; ++i)
        if (!s->peer[i].store) s->q.at[i].lost = true;
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__quorum_check(cdp__quorum_store *s, const cdp_quorum_store_desc *d) {
    const char *const slash = d->will_key ? strrchr(d->will_key, '/') : NULL;
    char host[80];
    uint16_t port;
    uint32_t i;
    bool good = cdp__quorum_names(s, d->servers);
    for (i = 0; good && i < s->q.count; ++i)
        good = cdp__quorum_split(s->name[i], host, &port);
    if (!good)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_quorum_store_desc.servers is \"%s\"; it should be HOST:PORT,HOST:PORT,HOST:PORT "
            "(1 to %u servers)",
            d->servers, CDP__QUORUM_SERVERS);
    if (d->serve > s->q.count)
        return cdp__fail(CDP_ERR_INVALID, "cdp_quorum_store_desc.serve is %u of %u servers",
            d->serve, s->q.count);
    if (d->will_key && strlen(d->will_key) > 290)
        return cdp__fail(CDP_ERR_INVALID, "cdp_quorum_store_desc.will_key is too long");
    if (!slash) return CDP_OK;
    s->will_folder = (char *)cdp__alloc_zero(s->os, (uint64_t)(slash - d->will_key) + 2);
    if (!s->will_folder) return cdp__fail_nomem("a key", 0);
    memcpy(s->will_folder, d->will_key, (size_t)(slash - d->will_key) + 1);
    return CDP_OK;
}

CDP_API cdp_status cdp_quorum_store_create(const cdp_quorum_store_desc *desc, cdp_store **out) {
    cdp_custom_store_desc custom;
    cdp__quorum_store *s;
    const cdp_os *os;
    cdp_status st;
    if (!out) return cdp__missing("cdp_quorum_store_create", "out");
    *out = NULL;
    if (!desc) return cdp__missing("cdp_quorum_store_create", "desc");
    if (!desc->servers) return cdp__missing("cdp_quorum_store_create", "desc.servers");
    if (cdp__os_whole(desc->os, "cdp_quorum_store_create") != CDP_OK) return CDP_ERR_INVALID;
    os = desc->os ? desc->os : cdp_os_default();
    s = (cdp__quorum_store *)cdp__alloc_zero(os, sizeof *s);
    if (!s) return cdp__fail_nomem("a quorum store", sizeof *s);
    s->os = os;
    s->logger = desc->logger;
    s->answer_ms = cdp__def(desc->answer_ms, CDP__QUORUM_ANSWER_MS);
    st = cdp__quorum_check(s, desc);
    if (st == CDP_OK) st = os->random(os->user, &s->q.proposer, sizeof s->q.proposer);
    if (st == CDP_OK) st = os->random(os->user, &s->tags, sizeof s->tags);
    s->dice = s->tags;
    if (st == CDP_OK) st = cdp__quorum_serve(s, desc);
    if (st == CDP_OK) st = cdp__quorum_join(s, desc);
    memset(&custom, 0, sizeof custom);
    custom.get = cdp__quorum_get;
    custom.swap = cdp__quorum_swap;
    custom.destroy = cdp__quorum_destroy;
    custom.user = s;
    custom.timeout_ms = desc->timeout_ms;
    custom.os = os;
    if (st == CDP_OK) st = cdp_custom_store_create(&custom, out);
    if (st == CDP_OK) return CDP_OK;
    const cdp_error why = *cdp_last_error();
    cdp__quorum_destroy(s);
    *cdp__error_slot() = why;
    return st;
}

#endif /* CDP_NO_CUSTOM_STORE */

#endif /* CDP_SRC_ELASTIC_QUORUM_STORE_H */
