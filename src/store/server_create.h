/* store/server_create.h - creating, running and destroying a server

   Knows: the desc of a server, its thread, and what cdp_tcp.h needs of it. Promises: a failed
   creation leaves nothing behind. */
#ifndef CDP_SRC_STORE_SERVER_CREATE_H
#define CDP_SRC_STORE_SERVER_CREATE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../base/log_api.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/ended.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../os/whole.h"
#include "../os/child.h"
#include "../os/loop.h"
#include "desc_api.h"
#include "cxx_api.h"
#include "addr.h"
#include "auth.h"
#include "kv.h"
#include "buffer.h"
#include "server.h"
#include "server_waits.h"
#include "server_commands.h"
#include "server_bytes.h"
#include "server_connections.h"

/* The error of a listener that cannot be opened. cdp_tcp.h uses it, too. */
CDP__PRIVATE cdp_status cdp__cannot_listen(const cdp_os *os, const cdp_addr *at, int32_t err) {
    char text[64], owner[128] = "?";
    const char *hint = "";
    cdp__addr_text(at, text, sizeof text);
    if (err == EADDRINUSE && os->net.port_owner
        && os->net.port_owner(os->user, at->port, owner, sizeof owner))
        return cdp__fail_peer(CDP_ERR_IO, -1, err,
            "cannot listen on %s; %s has this port: end it, or choose another port", text, owner);
    if (err == EADDRINUSE)
        hint = owner[0]
            ? "; another program has this port: end it, or choose another port"
            : "; no program listens there, but a socket has this port, or had it a "
              "moment ago: try again in a minute, or choose a port below those that the "
              "system gives to connections";
    if (err == EADDRNOTAVAIL) hint = "; that is no address of this machine";
    if (err == EACCES) hint = "; ports below 1024 are reserved";
    return cdp__fail_peer(CDP_ERR_IO, -1, err, "cannot listen on %s%s", text, hint);
}

#ifndef CDP_NO_STORE_SERVER

#define CDP__SERVER_POLL_NS 30000u

/* The server's thread. After an answer, the same client often sends its next request at once, so
   the thread polls for it before it sleeps, while that pays off: waking up takes longer than
   answering. */
CDP__PRIVATE void cdp__server_thread(void *arg) {
    cdp_store_server *s = (cdp_store_server *)arg;
    uint64_t poll_until = 0, again = 0;
    int gain = 0;
    while (!cdp__atomic_load_u32(&s->stop, CDP__ACQUIRE)) {
        const cdp_status st = cdp__loop_run(s->loop, NULL, poll_until ? 0 : CDP__NEVER);
        const uint64_t now = s->os->now_ns(s->os->user);
        if (s->loop->moved) {
            if (poll_until && gain < 8) gain += 2;
            /* only with a single active client: among many, the next request is there already */
            poll_until =
                s->loop->moved == 1 && (gain > -8 || now >= again) ? now + CDP__SERVER_POLL_NS : 0;
        } else if (poll_until && now >= poll_until) {
            poll_until = 0;
            if (gain > -8)
                --gain;
            else
                again = now + 10 * CDP__MS;
        } else if (poll_until && s->os->threads.yield) {
            s->os->threads.yield(s->os->user); /* the client may need this core */
        }
        if (st == CDP_OK) continue;
        cdp__log(&s->desc.logger, CDP_LOG_WARN, -1, "store server: %s", cdp_last_error()->text);
        /* out of memory: do not loop without a pause */
        cdp__sleep_until(s->os, s->os->now_ns(s->os->user) + 10 * CDP__MS);
    }
}

#define CDP__SERVER_LAST_MS \
    300u /* how long answers that clients have not read keep a server open */

/* Sends what sockets have not taken yet, and more of the lists of keys. False: all was sent. */
CDP__PRIVATE bool cdp__server_flush(cdp_store_server *s) {
    cdp__conn *c, *next;
    bool more = false;
    s->work_left = CDP__SERVER_TURN_WORK; /* as in each turn of the loop, which has ended */
    for (c = s->conns.next; c != &s->conns; c = next) {
        next = c->next;
        if (c->closing) continue;
        cdp__conn_flush(c);
        if (!c->closing && CDP__LISTING(c)) cdp__conn_list(c);
        more = more || (!c->closing && (CDP__LISTING(c) || cdp__fifo_left(&c->out)));
    }
    return more;
}

/* For a server without a thread, before it is destroyed: sends as many answers as the sockets
   accept now. True: some are left; call again, until *until_ns at most. */
CDP__PRIVATE bool cdp__store_server_parts(cdp_store_server *s, uint64_t *until_ns) {
    const uint64_t now = s->os->now_ns(s->os->user);
    if (!s->last_ns) s->last_ns = now + CDP__SERVER_LAST_MS * CDP__MS;
    *until_ns = s->last_ns;
    return cdp__server_flush(s) && now < s->last_ns;
}

CDP_API void cdp_store_server_destroy(cdp_store_server *s) {
    const cdp_os *os;
    uint64_t until;
    if (!s || cdp__ended(s) || cdp__is_child(s->forks)) return;
    cdp__ended_add(s);
    os = s->os;
    cdp__atomic_store_u32(&s->stop, 1, CDP__RELEASE);
    if (s->thread) {
        cdp__loop_wake(s->loop);
        os->threads.join(os, s->thread);
    }
    while (!cdp__chain_empty(&s->satisfied))
        cdp__waiter_satisfied((cdp__waiter *)s->satisfied.next);
    while (cdp__store_server_parts(s, &until))
        cdp__sleep_until(os, os->now_ns(os->user) + CDP__MS);
    while (s->fresh.next != &s->fresh)
        cdp__conn_dismiss(s->fresh.next);
    while (s->conns.next != &s->conns)
        cdp__conn_dismiss(s->conns.next);
    cdp__loop_timer_clear(&s->accept_timer);
    cdp__loop_timer_clear(&s->greet_timer);
    cdp__loop_timer_clear(&s->park_timer);
    cdp__loop_timer_clear(&s->turn_timer);
    if (s->parked) os->net.watch_close(os, s->parked);
    cdp__loop_remove(s->loop, &s->listener);
    cdp__kv_close(&s->kv);
    cdp__loop_close(&s->own_loop);
    cdp__free(os, s->scratch);
    cdp__wipe(s->key, sizeof s->key);
    cdp__wipe(s->nonce_seed, sizeof s->nonce_seed);
    cdp__free(os, s);
}

/* For cdp_tcp.h: true if a client's key has a value. */
CDP__PRIVATE bool cdp__store_server_has(const cdp_store_server *s, const char *key) {
    char text[128];
    cdp_bytes k;
    cdp__format(text, sizeof text, "/%s", key);
    k.data = text;
    k.bytes = strlen(text);
    return cdp__kv_get(&s->kv, k) != NULL;
}

/* For cdp_tcp.h, whose links share the port of the server: connections whose first bytes are those
   of a link are passed to `func` (NULL: they are closed). */
CDP__PRIVATE void cdp__store_server_share(
    cdp_store_server *s, cdp__server_link_func func, void *user) {
    s->link_func = func;
    s->link_user = user;
}

/* For cdp_tcp.h: the address at which it listens. */
CDP__PRIVATE cdp_addr cdp__store_server_addr(const cdp_store_server *s) {
    return s->at;
}

/* For cdp_tcp.h and cdp_elastic.h: the number of connections. Any thread may call it. */
CDP__PRIVATE uint32_t cdp__store_server_clients(const cdp_store_server *s) {
    return cdp__atomic_load_u32(&s->client_count, CDP__RELAXED);
}

/* For cdp_tcp.h: true if all answers have been handed to the system. */
CDP__PRIVATE bool cdp__store_server_sent(const cdp_store_server *s) {
    const cdp__conn *c;
    for (c = s->conns.next; c != &s->conns; c = c->next)
        if (cdp__fifo_left(&c->out)) return false;
    return true;
}

/* For cdp_tcp.h: true if all answers are sent, no client waits, and every client whose wait has
   ended has asked for the value. */
CDP__PRIVATE bool cdp__store_server_quiet(const cdp_store_server *s) {
    const cdp__conn *c;
    for (c = s->conns.next; c != &s->conns; c = c->next)
        if (cdp__fifo_left(&c->out) || c->wait_count || c->wait_answered) return false;
    return cdp__chain_empty(&s->satisfied);
}

CDP_API uint16_t cdp_store_server_port(const cdp_store_server *s) {
    return s && !cdp__ended(s) ? s->at.port : 0;
}

CDP_API cdp_status cdp_store_server_poll(cdp_store_server *s, uint64_t deadline_ns) {
    if (!s) return cdp__missing("cdp_store_server_poll", "server");
    if (cdp__ended(s))
        return cdp__fail(CDP_ERR_STATE, "cdp_store_server_poll: this server was destroyed");
    if (cdp__is_child(s->forks))
        return cdp__child_refuses(CDP_ERR_STATE, "cdp_store_server_poll", "store server");
    if (s->thread)
        return cdp__fail(CDP_ERR_STATE,
            "this store server has its own thread; cdp_store_server_poll() is for one made with "
            "no_thread");
    return cdp__loop_run(s->loop, NULL, deadline_ns);
}

CDP__PRIVATE void cdp__server_desc_defaults(cdp_store_server_desc *d) {
    d->os = d->os ? d->os : cdp_os_default();
    d->host = d->host ? d->host : "127.0.0.1";
    d->max_key_bytes = cdp__def(d->max_key_bytes, CDP_STORE_MAX_KEY_BYTES);
    d->max_value_bytes = cdp__def(d->max_value_bytes, CDP_STORE_MAX_VALUE_BYTES);
    d->max_list = cdp__def(d->max_list, CDP_STORE_MAX_LIST);
    d->max_total_bytes = cdp__def(d->max_total_bytes, 1ull << 30);
    d->max_reply_bytes = cdp__def(d->max_reply_bytes, 64ull << 20);
    d->max_clients = cdp__def(d->max_clients, 65536);
    d->handshake_timeout_ms = cdp__def(d->handshake_timeout_ms, 30000);
}

/* The addresses that a desc asks for, literal or by name, with the port filled in. Returns their
   number; 0 with the last error set. Blocks only to resolve names. */
CDP__PRIVATE uint32_t cdp__server_addresses(
    const cdp_store_server_desc *d, cdp_addr *out, uint32_t max) {
    int32_t n = 1;
    uint32_t i;
    if (d->addr.family)
        out[0] = d->addr;
    else if (strcmp(d->host, "*") == 0)
        n = (int32_t)(cdp__addr_parse("::", &out[0]) + cdp__addr_parse("0.0.0.0", &out[1]));
    else if (!cdp__addr_parse(d->host, &out[0]))
        n = d->os->net.resolve(
            d->os->user, d->host, d->port, out, max, cdp__deadline(d->os, 30000));
    if (n <= 0) {
        cdp__fail_peer(
            CDP_ERR_IO, -1, -n, "cannot listen: no address of the name \"%s\" was found", d->host);
        return 0;
    }
    for (i = 0; i < (uint32_t)n; ++i)
        if (d->port) out[i].port = d->port;
    return (uint32_t)n;
}

CDP__PRIVATE cdp_status cdp__server_listen(cdp_store_server *s) {
    cdp_addr at[8];
    const uint32_t n = s->desc.has_listen_fd ? 0 : cdp__server_addresses(&s->desc, at, 8);
    int32_t fd = -1, err = 0;
    uint32_t i;
    if (s->desc.has_listen_fd) {
        fd = s->desc.listen_fd;
        /* from here on the server closes it */
        cdp__loop_add(s->loop, &s->listener, fd, cdp__server_accept_some, s);
        if (s->os->net.adopt) err = s->os->net.adopt(s->os->user, fd);
        if (err >= 0) err = s->os->net.local_addr(s->os->user, fd, &s->at);
        if (err >= 0) return CDP_OK;
        return cdp__fail_peer(
            CDP_ERR_IO, -1, -err, "listen_fd %d is no listening socket", s->desc.listen_fd);
    }
    if (!n) return CDP_ERR_IO;
    for (i = 0; i < n && fd < 0 && fd != -EADDRINUSE; ++i) {
        s->at = at[i];
        fd = s->os->net.listen_at(s->os->user, &at[i], &s->at);
    }
    if (fd < 0) return cdp__cannot_listen(s->os, &at[i - 1], -fd);
    cdp__loop_add(s->loop, &s->listener, fd, cdp__server_accept_some, s);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__server_open(cdp_store_server *s) {
    const cdp_os *os = s->os;
    uint64_t seed = 0;
    cdp_status status = s->loop == &s->own_loop ? cdp__loop_open(&s->own_loop, os) : CDP_OK;
    if (status != CDP_OK) return status;
    s->scratch = (uint8_t *)cdp__alloc(os, CDP__SERVER_SCRATCH);
    if (!s->scratch) return cdp__fail_nomem("a store server", CDP__SERVER_SCRATCH);
    if (os->random(os->user, &seed, sizeof seed) != CDP_OK) seed = os->now_ns(os->user);
    cdp__kv_open(&s->kv, os, seed, s->desc.max_total_bytes);
    if (s->keyed) status = os->random(os->user, s->nonce_seed, sizeof s->nonce_seed);
    if (status != CDP_OK) return status;
    status = cdp__server_listen(s);
    if (status != CDP_OK || s->loop != &s->own_loop || s->desc.no_thread || !os->threads.start
        || !os->net.wake_open)
        return status;
    s->thread = os->threads.start(os, cdp__server_thread, s);
    return s->thread ? CDP_OK
                     : cdp__fail(CDP_ERR_IO, "cannot start the thread of the store server");
}

CDP_API cdp_status cdp_store_server_create(
    const cdp_store_server_desc *desc, cdp_store_server **out) {
    cdp_store_server_desc d;
    cdp_store_server *s;
    cdp_status status;
    if (!out) return cdp__missing("cdp_store_server_create", "out");
    *out = NULL;
    if (!desc) return cdp__missing("cdp_store_server_create", "desc");
    d = *desc;
    cdp__server_desc_defaults(&d);
    if (cdp__os_whole(d.os, "cdp_store_server_create") != CDP_OK) return CDP_ERR_INVALID;
    if (d.has_listen_fd && d.listen_fd < 0)
        return cdp__fail(CDP_ERR_INVALID, "cdp_store_server_desc.listen_fd is %d", d.listen_fd);
    s = (cdp_store_server *)cdp__alloc_zero(d.os, sizeof *s);
    if (!s) return cdp__fail_nomem("a store server", sizeof *s);
    cdp__ended_remove(s);
    s->desc = d;
    s->forks = cdp__forks_watch();
    s->os = s->kv.os = d.os; /* cdp__kv_close() needs the os also if the map was never opened */
    s->loop = d.loop ? d.loop : &s->own_loop;
    s->limits.key_bytes = d.max_key_bytes;
    s->limits.value_bytes = d.max_value_bytes;
    s->limits.list = d.max_list;
    status = cdp__auth_key_read(d.job_key, s->key, &s->keyed);
    if (s->keyed && strlen(d.job_key) < CDP__AUTH_SHORT_KEY)
        cdp__log(&s->desc.logger, CDP_LOG_WARN, -1,
            "the job key has %u characters; whoever reaches the port can guess a short one: use %u "
            "random characters or more",
            (uint32_t)strlen(d.job_key), CDP__AUTH_SHORT_KEY);
    cdp__chain_open(&s->deferred);
    cdp__chain_open(&s->satisfied);
    /* earlier sections set this timer without knowing the function */
    s->turn_timer.func = cdp__server_turn;
    s->fresh.next = s->fresh.prev = &s->fresh;
    s->conns.next = s->conns.prev = &s->conns;
    if (status == CDP_OK) status = cdp__server_open(s);
    s->desc.host = s->desc.job_key = NULL; /* memory of the caller */
    if (status != CDP_OK)
        cdp_store_server_destroy(s);
    else
        *out = s;
    return status;
}

#else

/* For cdp_tcp.h in builds without a server: it creates none, so it calls none of these. */
CDP__PRIVATE bool cdp__store_server_has(const cdp_store_server *s, const char *key) {
    (void)s;
    (void)key;
    return false;
}

CDP__PRIVATE void cdp__store_server_share(
    cdp_store_server *s, cdp__server_link_func func, void *user) {
    (void)s;
    (void)func;
    (void)user;
}

CDP__PRIVATE bool cdp__store_server_parts(cdp_store_server *s, uint64_t *until_ns) {
    (void)s;
    (void)until_ns;
    return false;
}

CDP__PRIVATE cdp_addr cdp__store_server_addr(const cdp_store_server *s) {
    cdp_addr none;
    (void)s;
    memset(&none, 0, sizeof none);
    return none;
}

CDP__PRIVATE uint32_t cdp__store_server_clients(const cdp_store_server *s) {
    (void)s;
    return 0;
}

CDP__PRIVATE bool cdp__store_server_sent(const cdp_store_server *s) {
    (void)s;
    return true;
}

CDP__PRIVATE bool cdp__store_server_quiet(const cdp_store_server *s) {
    (void)s;
    return true;
}

#endif /* CDP_NO_STORE_SERVER */

#endif /* CDP_SRC_STORE_SERVER_CREATE_H */
