/* store/server_connections.h - accepting, authenticating, parking, closing

   Knows: the life of a connection. Promises: clients that stay silent, or flood the port, use a
   bounded share of memory, descriptors and time. */
#ifndef CDP_SRC_STORE_SERVER_CONNECTIONS_H
#define CDP_SRC_STORE_SERVER_CONNECTIONS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../base/log_api.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../os/words.h"
#include "../base/text.h"
#include "../os/loop.h"
#include "../base/bytes.h"
#include "desc_api.h"
#include "addr.h"
#include "wire.h"
#include "auth.h"
#include "kv.h"
#include "auth_exchange.h"
#include "server.h"
#include "server_waits.h"
#include "server_commands.h"
#include "server_bytes.h"

#ifndef CDP_NO_STORE_SERVER

/* A last will is a compare_set of an absent key. */
CDP__PRIVATE void cdp__conn_execute_last_will(cdp__conn *c) {
    cdp_store_server *s = c->server;
    cdp__kv_entry *e = NULL;
    cdp_bytes nothing, answer;
    if (!c->last_will) return;
    nothing.data = NULL;
    nothing.bytes = 0;
    if (cdp__kv_compare_set(&s->kv, c->last_will->key, nothing, c->last_will->value, &answer, &e)
        == CDP_OK)
        cdp__server_key_set(s, e);
    else
        cdp__log(&s->desc.logger, CDP_LOG_WARN, -1, "store server: a last will was lost: %s",
            cdp_last_error()->text);
    s->kv.bytes -= cdp__last_will_cost(c->last_will);
    cdp__free(s->os, c->last_will);
    c->last_will = NULL;
}

CDP__PRIVATE CDP__COLD void cdp__conn_free(cdp__conn *c) {
    cdp_store_server *s = c->server;
    cdp__conn_forget_waits(c, true);
    cdp__free(s->os, c->auth);
    cdp__conn_release(c, &c->in);
    cdp__conn_release(c, &c->out);
    s->kv.bytes -= cdp__last_will_cost(c->last_will);
    cdp__free(s->os, c->last_will);
    cdp__conn_unlink(c);
    if (c->deferred.next) (void)cdp__chain_remove(&c->deferred);
    if (c->parked && c->io.fd >= 0) {
        s->os->net.watch_remove(s->os->user, s->parked, c->io.fd);
        s->os->net.close_fd(s->os->user, c->io.fd);
    }
    cdp__loop_remove(s->loop, &c->io);
    cdp__atomic_store_u32(&s->client_count, s->client_count - 1, CDP__RELAXED);
    cdp__free(s->os, c);
}

/* There is room for connections, or there are descriptors, again. */
CDP__PRIVATE void cdp__server_accept_again(cdp_store_server *s) {
    cdp__loop_timer_clear(&s->accept_timer);
    s->fresh_full = s->out_of_fds = false;
    cdp__loop_again(s->loop, &s->listener);
}

/* Carries out what handlers have deferred. Every callback of the loop ends with it. */
CDP__PRIVATE void cdp__server_settle(cdp_store_server *s) {
    while (s->dirty) {
        cdp__conn *c = s->dirty;
        s->dirty = c->next_dirty;
        c->dirty = false;
        if (!c->closing) {
            const bool stopped = cdp__conn_is_behind(c) || CDP__LISTING(c);
            cdp__conn_flush(c);
            if (stopped && !c->closing && !c->deferred.next) cdp__conn_resume(c);
        }
        if (!c->closing || c->dirty) continue; /* marked again just now: it is back in the list */
        cdp__conn_execute_last_will(c);
        if (!cdp__conn_forget_some_waits(c)) {
            cdp__conn_defer(c);
            continue;
        }
        cdp__conn_send_rest(c);
        if (!c->greeted) cdp__auth_drain(s->loop, &c->io);
        cdp__conn_free(c);
    }
    if (s->fresh_full && s->fresh_count < CDP__SERVER_MAX_FRESH) cdp__server_accept_again(s);
}

/* Advances the authentication exchange; until it is over, nothing else is read. A build without
   job keys refuses every connection that needs one, without an answer. */
CDP__PRIVATE void cdp__conn_authenticate(cdp__conn *c) {
#ifdef CDP_NO_JOB_KEY
    cdp__conn_refused(c, c->auth->refusal);
#else
    cdp_store_server *s = c->server;
    int64_t result;
    const cdp_status st = cdp__auth_pump(c->auth, s->loop, &c->io, &result);
    if (st == CDP_ERR_MISMATCH)
        cdp__conn_refused(c, c->auth->refusal);
    else if (st < 0)
        cdp__conn_close(c, NULL);
    if (st != CDP_OK) return;
    c->purpose = c->auth->purpose;
    memcpy(c->nonce, c->auth->nonce, sizeof c->nonce);
    cdp__free(s->os, c->auth);
    c->auth = NULL;
#endif
}

CDP__PRIVATE void cdp__conn_advance(cdp__conn *c) {
    if (c->auth && !c->closing) cdp__conn_authenticate(c);
    if (c->closing || c->auth) return;
    if (c->io.ready & CDP_IO_WRITE) cdp__conn_flush(c);
    if (!c->closing) cdp__conn_resume(c);
}

/* Handles a ready connection. If others are deferred, it is deferred, too, so that none of them
   waits for ever. */
CDP__PRIVATE void cdp__conn_ready(cdp__io *io) {
    cdp__conn *c = (cdp__conn *)io->user;
    cdp_store_server *s = c->server;
    if (!c->greeted) c->active_ns = s->os->now_ns(s->os->user);
    if (cdp__chain_empty(&s->deferred) && cdp__server_spend(s, 2))
        cdp__conn_advance(c);
    else
        cdp__conn_defer(c);
    cdp__server_settle(s);
}

/* Runs deferred work in the next run of the loop. */
CDP__PRIVATE void cdp__server_turn(cdp__timer *t) {
    cdp_store_server *s = (cdp_store_server *)t->user;
    cdp__chain now;
    cdp__chain_open(&now);
    /* connections that defer again wait for the run after this one */
    cdp__chain_move(&s->deferred, &now);
    cdp__server_wake(s);
    while (!cdp__chain_empty(&now)) {
        cdp__chain *link = now.next;
        cdp__conn *c = (cdp__conn *)(void *)((uint8_t *)link - offsetof(cdp__conn, deferred));
        (void)cdp__chain_remove(link);
        if (c->closing)
            cdp__conn_mark(c);
        else if (cdp__server_spend(s, 2))
            cdp__conn_advance(c);
        else
            cdp__conn_defer(c);
    }
    cdp__server_settle(s);
}

CDP__PRIVATE void cdp__server_greet_due(cdp__timer *t) {
    cdp_store_server *s = (cdp_store_server *)t->user;
    const uint64_t limit = s->desc.handshake_timeout_ms * CDP__MS, now = s->os->now_ns(s->os->user);
    cdp__conn *c;
    for (c = s->fresh.next; c != &s->fresh && c->born_ns + limit <= now; c = c->next)
        cdp__conn_close(c, "it has not greeted in time");
    cdp__server_settle(s);
    if (s->fresh.next != &s->fresh)
        cdp__loop_timer_set(s->loop, t, s->fresh.next->born_ns + limit, cdp__server_greet_due, s);
}

/* Parking: silent connections are moved from the loop to a watch of their own, which is polled
   at intervals, so that many of them do not slow down the others. */

CDP__PRIVATE void cdp__conn_park(cdp__conn *c) {
    cdp_store_server *s = c->server;
    const cdp_os *os = s->os;
    int32_t fd;
    CDP_ASSERT(!c->parked && c->io.fd >= 0);
    if (!s->parked && os->net.watch_open(os, &s->parked) < 0) return;
    fd = cdp__loop_detach(s->loop, &c->io);
    c->io.fd = fd;
    c->parked = true;
    if (os->net.watch_add(os, s->parked, fd, CDP_IO_READ, c) < 0)
        cdp__conn_close(c, "it cannot be watched");
}

/* Removes the descriptor from the watch of parked connections. It stays open. */
CDP__PRIVATE void cdp__conn_unwatch(cdp__conn *c) {
    c->server->os->net.watch_remove(c->server->os->user, c->server->parked, c->io.fd);
    c->parked = false;
}

CDP__PRIVATE void cdp__conn_unpark(cdp__conn *c, uint32_t got) {
    cdp_store_server *s = c->server;
    CDP_ASSERT(c->parked && c->io.fd >= 0);
    cdp__conn_unwatch(c);
    c->active_ns = s->os->now_ns(s->os->user);
    cdp__loop_add(s->loop, &c->io, c->io.fd, cdp__conn_ready, c);
    c->io.broken = (got & CDP_IO_ERROR) != 0;
    c->io.ready = (uint16_t)(c->io.broken ? CDP_IO_READ | CDP_IO_WRITE : got);
    cdp__conn_defer(c);
}

/* Moves parked connections that have sent something back to the loop. */
CDP__PRIVATE void cdp__server_look_at_parked(cdp_store_server *s) {
    cdp_ready ready[64];
    int32_t n = 64, i;
    while (s->parked && n == 64) {
        n = s->os->net.watch_wait(s->os->user, s->parked, ready, 64, 0);
        for (i = 0; i < n; ++i)
            cdp__conn_unpark((cdp__conn *)ready[i].owner, ready[i].got);
    }
}

CDP__PRIVATE void cdp__server_park_due(cdp__timer *t) {
    cdp_store_server *s = (cdp_store_server *)t->user;
    const uint64_t now = s->os->now_ns(s->os->user);
    cdp__conn *c;
    cdp__server_look_at_parked(s);
    for (c = s->fresh.next; c != &s->fresh; c = c->next) {
        const bool busy = c->closing || c->deferred.next || c->io.want_write || c->io.ready;
        if (c->parked || busy || c->io.fd < 0) continue;
        if (now - c->active_ns >= CDP__SERVER_PARK_NS) cdp__conn_park(c);
    }
    cdp__server_settle(s);
    if (s->fresh.next != &s->fresh)
        cdp__loop_timer_set(s->loop, t, now + CDP__SERVER_PARK_NS, cdp__server_park_due, s);
}

/* Accepting */

CDP__PRIVATE void cdp__conn_auth_open(cdp__conn *c) {
#ifdef CDP_NO_JOB_KEY
    c->auth->refusal = CDP__AUTH_REMOTE;
#else
    cdp_store_server *s = c->server;
    uint8_t nonce[16], count[8];
    if (s->keyed && s->os->random(s->os->user, nonce, sizeof nonce) != CDP_OK) {
        /* the os may need a descriptor for random bytes, and have none left: a keyed hash of a
           counter is as unpredictable, and never repeats */
        cdp__put_u64(count, ++s->nonce_count);
        cdp__blake2s(s->nonce_seed, sizeof s->nonce_seed, count, sizeof count, nonce, sizeof nonce);
    }
    cdp__auth_open_with(c->auth, s->keyed ? nonce : NULL, s->keyed ? s->key : NULL, true,
        CDP__AUTH_STORE, CDP__AUTH_REMOTE);
    c->auth->also = CDP__AUTH_LINK;
#endif
}

/* If there is a key, the client must authenticate itself. Without one, only this host is served,
   unless the desc trusts the network. False: out of memory. */
CDP__PRIVATE bool cdp__conn_restrict(cdp__conn *c, int32_t fd, const cdp_addr *from) {
    cdp_store_server *s = c->server;
    cdp_addr here;
    memset(&here, 0, sizeof here);
    if (!s->keyed && (s->desc.trust_network || cdp__addr_is_here(from, &here))) return true;
    if (!s->keyed) s->os->net.local_addr(s->os->user, fd, &here);
    if (!s->keyed && cdp__addr_is_here(from, &here)) return true;
    c->auth = (cdp__auth *)cdp__alloc_zero(s->os, sizeof *c->auth);
    if (!c->auth) return false;
    cdp__conn_auth_open(c);
    return true;
}

/* The oldest connection without a greeting, which may be closed for a new one. NULL: there is
   none. */
CDP__PRIVATE cdp__conn *cdp__server_oldest_fresh(cdp_store_server *s) {
    cdp__conn *c = s->fresh.next;
    while (c != &s->fresh && c->closing)
        c = c->next;
    return c == &s->fresh ? NULL : c;
}

CDP__PRIVATE void cdp__server_add(
    cdp_store_server *s, cdp__conn *c, int32_t fd, const cdp_addr *from) {
    c->from = *from;
    c->need = 1;
    c->wire.table = cdp__wire_greeting;
    c->born_ns = c->active_ns = s->os->now_ns(s->os->user);
    cdp__conn_link(&s->fresh, c);
    ++s->fresh_count;
    cdp__loop_add(s->loop, &c->io, fd, cdp__conn_ready, c);
    cdp__atomic_store_u32(&s->client_count, s->client_count + 1, CDP__RELAXED);
    if (s->desc.handshake_timeout_ms != CDP_NO_TIMEOUT && !s->greet_timer.next)
        cdp__loop_timer_set(s->loop, &s->greet_timer,
            c->born_ns + s->desc.handshake_timeout_ms * CDP__MS, cdp__server_greet_due, s);
    if (!s->park_timer.next)
        cdp__loop_timer_set(
            s->loop, &s->park_timer, c->born_ns + CDP__SERVER_PARK_NS, cdp__server_park_due, s);
}

CDP__PRIVATE void cdp__server_admit(cdp_store_server *s, int32_t fd, const cdp_addr *from) {
    const bool full = s->client_count >= s->desc.max_clients;
    cdp__conn *oldest = full ? cdp__server_oldest_fresh(s) : NULL;
    cdp__conn *c = NULL;
    if (oldest) cdp__conn_close(oldest, "another client takes its place (max_clients)");
    if (!full || oldest) c = (cdp__conn *)cdp__alloc_zero(s->os, sizeof *c);
    if (c) {
        c->server = s;
        cdp__chain_open(&c->waiters);
    }
    if (c && !cdp__conn_restrict(c, fd, from)) {
        cdp__free(s->os, c->auth);
        cdp__free(s->os, c);
        c = NULL;
    }
    if (c) {
        cdp__server_add(s, c, fd, from);
        return;
    }
    s->os->net.close_fd(s->os->user, fd);
    if (!s->full_logged)
        cdp__log(&s->desc.logger, CDP_LOG_WARN, -1, "store server: refusing connections: %s",
            full ? "max_clients are connected" : "out of memory");
    s->full_logged = true;
}

/* True if there is room for one more connection without a greeting. If not, the next one is
   accepted when one of them ends, or when the oldest has had its time. */
CDP__PRIVATE bool cdp__server_has_place(cdp_store_server *s) {
    cdp__conn *oldest;
    if (s->fresh_count < CDP__SERVER_MAX_FRESH) return true;
    oldest = cdp__server_oldest_fresh(s);
    if (!oldest || s->os->now_ns(s->os->user) - oldest->born_ns < CDP__SERVER_GRACE_NS)
        return false;
    cdp__conn_close(oldest, "too many connections have not greeted");
    return true;
}

CDP__PRIVATE void cdp__server_accept_due(cdp__timer *t) {
    cdp__server_accept_again((cdp_store_server *)t->user);
}

/* Stops accepting for a while. The listener stays marked as ready, so that the loop does not
   spin. */
CDP__PRIVATE void cdp__server_pause(cdp_store_server *s, uint64_t until_ns) {
    cdp__loop_timer_set(s->loop, &s->accept_timer, until_ns, cdp__server_accept_due, s);
}

/* Out of descriptors: closes the older half of the connections without a greeting, so that they
   do not block real clients, and stops accepting for a while. */
CDP__PRIVATE void cdp__server_drop_silent(cdp_store_server *s, int32_t err) {
    const uint32_t half = (s->fresh_count + 1) / 2;
    uint32_t i;
    cdp__conn *c;
    (void)err; /* unused without log texts */
    if (!s->accept_logged)
        cdp__log(&s->desc.logger, CDP_LOG_WARN, -1,
            "store server: cannot accept a connection: %s (errno %d)", cdp__os_error_text(err),
            err);
    s->accept_logged = true;
    for (c = s->fresh.next, i = 0; i < half && c != &s->fresh; c = c->next, ++i)
        cdp__conn_close(c, "too many connections have not greeted");
    s->out_of_fds = true;
    cdp__server_pause(s, s->os->now_ns(s->os->user) + CDP__SERVER_ACCEPT_RETRY_NS);
}

CDP__PRIVATE CDP__COLD void cdp__server_accept_some(cdp__io *io) {
    cdp_store_server *s = (cdp_store_server *)io->user;
    cdp_addr from;
    int32_t fd = 0;
    while (fd >= 0 && cdp__server_spend(s, CDP__SERVER_ACCEPT_WORK)) {
        s->fresh_full = !cdp__server_has_place(s);
        if (s->fresh_full) break;
        fd = s->os->net.accept_next(s->os->user, io->fd, &from);
        if (fd >= 0) cdp__server_admit(s, fd, &from);
    }
    if (s->fresh_full)
        cdp__server_pause(s, s->fresh.next->born_ns + CDP__SERVER_GRACE_NS);
    else if (fd == -EAGAIN)
        cdp__loop_used_up(s->loop, io, CDP_IO_READ);
    else if (fd >= 0)
        cdp__loop_again(s->loop, io); /* this run has done its share */
    else
        cdp__server_drop_silent(s, -fd); /* most likely out of descriptors */
    io->broken = false;                  /* an error of a listening socket is not final */
    cdp__server_settle(s);
}

/* Tells clients of this library, and all waiting clients, that the server is being closed, if
   their sockets have room. Reads unread input first: closing a socket with unread input would
   make the system drop the bytes just sent. */
CDP__PRIVATE void cdp__conn_dismiss(cdp__conn *c) {
    cdp_store_server *s = c->server;
    uint32_t i;
    cdp_iov iov;
    if (c->awaited || c->is_cdp) cdp__conn_reply_byte(c, CDP__WIRE_CLOSING);
    cdp__conn_flush(c);
    iov.data = s->scratch;
    iov.bytes = CDP__SERVER_SCRATCH;
    for (i = 0; i < 16 && s->os->net.recv_iov(s->os->user, c->io.fd, &iov, 1) > 0; ++i) {
    }
    cdp__conn_free(c);
}

#endif /* CDP_NO_STORE_SERVER */

#endif /* CDP_SRC_STORE_SERVER_CONNECTIONS_H */
