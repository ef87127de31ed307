/* tcp/incoming.h - accepted connections that are not authenticated

   Knows: connections that are not authenticated. Promises: they are bounded in number, in time and
   in work per turn; only the handshake is read from them. */
#ifndef CDP_SRC_TCP_INCOMING_H
#define CDP_SRC_TCP_INCOMING_H

#include "../base/version.h"
#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/log_api.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../os/loop.h"
#include "../base/bytes.h"
#include "../store/addr.h"
#include "../store/auth.h"
#include "../store/auth_exchange.h"
#include "handshake.h"
#include "paths.h"
#include "memory.h"
#include "link.h"
#include "mesh.h"
#include "link_streams.h"
#include "link_choosing.h"
#include "link_connecting.h"

CDP__PRIVATE void cdp__incoming_close(cdp__incoming *g) {
    cdp__incoming **at = &g->mesh->incoming;
    while (*at != g)
        at = &(*at)->next;
    *at = g->next;
    --g->mesh->incoming_count;
    cdp__loop_timer_clear(&g->timer);
    cdp__loop_remove(&g->mesh->loop, &g->io);
    if (g->offers) g->mesh->os->net.close_fd(g->mesh->os->user, g->pass);
    cdp__free(g->mesh->os, g);
}

CDP__PRIVATE void cdp__incoming_late(cdp__timer *t) {
    cdp__incoming_close((cdp__incoming *)t->user);
}

/* If the connecting rank is on this host: waits for shared memory from it, under a name that
   WELCOME contains. */
CDP__PRIVATE void cdp__incoming_offer(
    cdp__incoming *g, uint32_t peer, uint8_t name[CDP__NAME_BYTES]) {
    const cdp_os *os = g->mesh->os;
    cdp_addr here;
    uint32_t i;
    memset(&here, 0, sizeof here);
    if (os->net.local_addr(os->user, g->io.fd, &here) < 0 || !cdp__addr_is_here(&g->from, &here)
        || os->random(os->user, name, CDP__NAME_BYTES) != CDP_OK)
        return;
    for (i = 0; i < CDP__NAME_BYTES; ++i)
        name[i] = (uint8_t)('a' + (name[i] & 15));
    g->pass = os->shared.pass_open(os->user, name, true);
    g->offers = g->pass >= 0;
    if (g->offers) return;
    memset(name, 0, CDP__NAME_BYTES);
    cdp__mesh_no_memory(g->mesh, peer, -g->pass);
}

/* Takes the shared memory that the client has passed, if it contains the proof of CHOSEN. Other
   processes may have passed memory there, too, but they do not know the proof. */
CDP__PRIVATE cdp__shared *cdp__incoming_share(
    cdp__incoming *g, cdp__link *l, const cdp__hello *chosen) {
    cdp__mesh *m = g->mesh;
    const cdp_os *os = m->os;
    int32_t fds[2], at, err = -ENOENT, bell = m->loop.wake_fd[1];
    uint32_t tries;
    cdp_addr from;
    for (tries = 0; tries < 8 && (at = os->net.accept_next(os->user, g->pass, &from)) >= 0;
         ++tries) {
        cdp__shared *s = NULL;
        err = os->shared.pass(os->user, at, fds, 2, false);
        if (err >= 0 && !(s = cdp__shared_open(os, fds[0], false))) {
            os->net.close_fd(os->user, fds[1]);
            err = -ENOMEM;
        }
        if (s) {
            s->bell = fds[1];
            s->pass = at;
            err = memcmp(s->pair->proof, chosen->memory, CDP__NAME_BYTES) != 0
                    || s->pair->layout != CDP__LAYOUT
                ? -EPROTO
                : os->shared.pass(os->user, at, &bell, 1, true);
        } else {
            os->net.close_fd(os->user, at);
        }
        if (s && err >= 0) {
            cdp__shared_prove(s, chosen->memory);
            if (m->desc.group.expose_bytes != UINT64_MAX) cdp__shared_try(s, err);
            s->pair->taken = 1;
            s->taken = true;
            os->net.close_fd(os->user, s->memory);
            s->memory = -1;
            return s;
        }
        cdp__shared_close(s);
    }
    if (tries == 0 && at != -EAGAIN) err = at;
    l->apart = -err;
    return NULL;
}

/* The connecting rank has authenticated itself and has chosen this connection, which becomes the
   link to it. */
CDP__PRIVATE void cdp__incoming_adopt(cdp__incoming *g, cdp__link *l, const cdp__hello *chosen) {
    const bool asks = cdp__mesh_shares(l->mesh) && g->offers && chosen->memory[0];
    cdp_addr at[CDP__PATHS];
    if (!cdp__link_room(l) || !cdp__link_guard(l, g->auth.nonce, g->hello, true)) return;
    if (!l->addr.family && l->mesh->addrs.status == CDP_OK && l->mesh->addrs.results
        && cdp__link_paths(l, at))
        l->addr.port = at[0].port;
    g->from.port = l->addr.port;
    l->addr = g->from;
    cdp__link_take(l, &g->io, asks ? CDP__LINK_CHOOSING : CDP__LINK_UP);
    if (asks) {
        l->shared = cdp__incoming_share(g, l, chosen);
        cdp__hello_fill(l->mesh, l->hello, CDP__TAKEN, l);
        l->hello[28] = !l->shared;
        cdp__link_choosing(l);
    }
    if (!asks) cdp__link_up(l);
    if (!asks) cdp__link_send_cause_late(l);
    cdp__link_event(&l->io);
}

/* A lower rank waits for a connection from this rank: connects. */
CDP__PRIVATE void cdp__mesh_invited(cdp__mesh *m, const cdp__hello *theirs) {
    uint32_t i;
    if (theirs->version != CDP_WIRE_VERSION || theirs->world_size != m->desc.group.world_size
        || theirs->to != m->desc.group.rank || theirs->from >= m->desc.group.rank
        || memcmp(theirs->job, m->job, CDP__JOB_BYTES) != 0)
        return;
    for (i = 0; i < m->desc.connections && m->started; ++i)
        cdp__link_need(cdp__bundle_at(&m->links[theirs->from], i));
}

/* Handles a complete HELLO, CHOSEN or INVITE. False: the connection must be closed, or belongs
   to the link now. */
CDP__PRIVATE bool cdp__incoming_judge(cdp__incoming *g) {
    cdp__mesh *m = g->mesh;
    cdp__hello mine, theirs;
    const bool ours = cdp__hello_decode(g->hello, &theirs);
    cdp__link *l;
    bool chosen;
    uint32_t refusal;
    if (!ours) return false;
    if (theirs.type == CDP__INVITE) {
        cdp__mesh_invited(m, &theirs);
        return false;
    }
    memset(&mine, 0, sizeof mine);
    mine.version = CDP_WIRE_VERSION;
    mine.order = (uint8_t)cdp__byte_order();
    mine.mac = m->desc.mac;
    mine.world_size = m->desc.group.world_size;
    mine.from = m->desc.group.rank;
    mine.index = m->desc.connections;
    memcpy(mine.job, m->job, CDP__JOB_BYTES);
    chosen = g->welcome && theirs.type == CDP__CHOSEN;
    if (chosen) theirs.type = CDP__HELLO; /* they have the same fields */
    refusal = (uint32_t)cdp__hello_judge(&mine, &theirs);
    l = refusal ? NULL : cdp__bundle_at(&m->links[theirs.from], theirs.index);
    if (l && l->state > CDP__LINK_AWAITED) refusal = CDP__REFUSE_TWICE;
    if (chosen && !refusal) cdp__incoming_adopt(g, l, &theirs);
    if (g->welcome) return false;
    mine.type = refusal ? CDP__REFUSED : CDP__WELCOME;
    mine.to = theirs.from;
    mine.refusal = refusal;
    if (refusal) memset(mine.job, 0, CDP__JOB_BYTES); /* a stranger must not learn the job's name */
    if (!refusal && theirs.memory[0] && !theirs.index && cdp__mesh_shares(m))
        cdp__incoming_offer(g, theirs.from, mine.memory);
    if (refusal)
        cdp__log(&m->desc.group.logger, CDP_LOG_INFO, m->desc.group.rank,
            "refused a connection: %s", cdp__refusal_text(refusal));
    cdp__hello_encode(&mine, g->hello);
    g->welcome = !refusal;
    if (g->welcome) cdp__loop_timer_clear(&g->timer); /* it may choose at any time */
    /* a refusal that the socket has no room for is dropped */
    else
        (void)cdp__hello_send(m, &g->io, g->hello, &g->sent);
    return g->welcome;
}

/* Logs a refused connection. The first one is a warning, because it may be a rank of this job. */
CDP__PRIVATE void cdp__incoming_refused(cdp__incoming *g, uint32_t refusal) {
    cdp__mesh *m = g->mesh;
    (void)refusal; /* unused without log texts */
    cdp__log(&m->desc.group.logger, m->refusal_warned ? CDP_LOG_INFO : CDP_LOG_WARN,
        m->desc.group.rank, "refused a connection: %s", cdp__auth_text(refusal));
    m->refusal_warned = true;
    cdp__auth_drain(&m->loop, &g->io);
    cdp__incoming_close(g);
}

/* True if the client may send HELLO; false if authentication is in progress, or the connection
   was closed. A build without job keys refuses every guarded connection. */
CDP__PRIVATE bool cdp__incoming_prove(cdp__incoming *g) {
#ifdef CDP_NO_JOB_KEY
    const bool guarded = g->guarded;
    if (guarded) cdp__incoming_refused(g, CDP__AUTH_REMOTE);
    return !guarded;
#else
    int64_t result;
    const cdp_status st =
        g->guarded ? cdp__auth_pump(&g->auth, &g->mesh->loop, &g->io, &result) : CDP_OK;
    if (st == CDP_ERR_MISMATCH)
        cdp__incoming_refused(g, g->auth.refusal);
    else if (st < 0)
        cdp__incoming_close(g); /* most likely a probe */
    else if (st == CDP_OK)
        g->guarded = false;
    return st == CDP_OK;
#endif
}

/* The client has sent no HELLO. One that tries to authenticate is told that this job has no key;
   others are no cdp processes, and are closed. */
CDP__PRIVATE void cdp__incoming_strange(cdp__incoming *g) {
#ifndef CDP_NO_JOB_KEY
    if (g->got >= 8 && memcmp(g->hello, "cdp-key1", 8) == 0) {
        int64_t result;
        (void)cdp__auth_open(
            &g->auth, g->mesh->os, NULL, true, CDP__AUTH_LINK, CDP__AUTH_NOT_NEEDED);
        g->auth.in[0] = 'c';
        (void)cdp__auth_refuse(&g->auth, CDP__AUTH_NOT_NEEDED);
        (void)cdp__auth_pump(&g->auth, &g->mesh->loop, &g->io, &result);
        cdp__incoming_refused(g, CDP__AUTH_NOT_NEEDED);
        return;
    }
#endif
    cdp__incoming_close(g);
}

CDP__PRIVATE CDP__COLD void cdp__incoming_event(cdp__io *io) {
    cdp__incoming *g = (cdp__incoming *)io->user;
    int32_t r = 1;
    if (!cdp__incoming_prove(g)) return;
    if (g->welcome && g->sent < CDP__HELLO_BYTES) { /* WELCOME is being sent */
        r = cdp__hello_send(g->mesh, io, g->hello, &g->sent);
        if (r < 0) cdp__incoming_close(g);
        if (r <= 0) return;
        g->got = 0;
    }
    if (!(io->ready & CDP_IO_READ)) return;
    r = cdp__hello_recv(g->mesh, io, g->hello, &g->got);
    if (memcmp(g->hello, "cdp-link", (size_t)cdp__min(g->got, 8)) != 0
        && (g->got >= 8 || memcmp(g->hello, "cdp-key1", (size_t)g->got) != 0)) {
        cdp__incoming_strange(g);
        /* r < 0: the connection ended. It was a probe, or the peer chose another connection. */
    } else if (r < 0 || (r > 0 && !cdp__incoming_judge(g))) {
        cdp__incoming_close(g);
    } else if (r > 0) {
        cdp__incoming_event(io); /* send WELCOME */
    }
}

/* Limit of unauthenticated connections, beyond one per connection of the job. High enough that a
   rank whose authentication takes some round trips is not closed in favour of others. */
#define CDP__STRANGERS 1024u

/* Strangers may open any number of connections and keep them open. Closes the oldest one that
   has sent nothing, or else the oldest that has not proved to know the key. True if one was
   closed. */
CDP__PRIVATE bool cdp__mesh_make_room(cdp__mesh *m, uint32_t most) {
    cdp__incoming *oldest = NULL, *g;
    bool mute = false;
    for (g = m->incoming; g && m->incoming_count >= most; g = g->next) {
        const bool said_nothing = !g->got && !g->auth.got && !g->auth.step;
        if (g->welcome || g->auth.done || (mute && !said_nothing)) continue;
        oldest = g;
        mute = said_nothing;
    }
    if (oldest) cdp__incoming_close(oldest);
    return oldest != NULL;
}

#define CDP__ACCEPTS 16u /* connections accepted in one turn */

CDP__PRIVATE void cdp__mesh_accept_again(cdp__timer *t) {
    cdp__mesh *m = (cdp__mesh *)t->user;
    cdp__loop_again(&m->loop, &m->listener);
}

/* Out of descriptors: closes a stranger's connection. If there is none, stops accepting for a
   while (the listener stays `ready`, so the system is not polled for it). True: try again now. */
CDP__PRIVATE bool cdp__mesh_accept_later(cdp__mesh *m) {
    if (cdp__mesh_make_room(m, 1)) return true;
    if (!m->clients_warned)
        cdp__log(&m->desc.group.logger, CDP_LOG_WARN, m->desc.group.rank,
            "cannot accept a connection: too many open descriptors, or no memory; raise the limit "
            "(ulimit -n)");
    m->clients_warned = true;
    cdp__loop_timer_set(&m->loop, &m->accept_timer,
        m->os->now_ns(m->os->user) + CDP__PROBE_FIRST_MS * CDP__MS, cdp__mesh_accept_again, m);
    return false;
}

/* Decides whether the client must authenticate itself or is refused: without a key, clients from
   other hosts are. False: no random bytes. */
CDP__PRIVATE bool cdp__incoming_guard(cdp__incoming *g, int32_t fd, const cdp_addr *from) {
    cdp__mesh *m = g->mesh;
    cdp_addr here;
    memset(&here, 0, sizeof here);
    if (!m->keyed && !m->desc.trust_network) (void)m->os->net.local_addr(m->os->user, fd, &here);
    g->guarded = m->keyed || (!m->desc.trust_network && !cdp__addr_is_here(from, &here));
#ifdef CDP_NO_JOB_KEY
    return true;
#else
    return !g->guarded
        || cdp__auth_open(
               &g->auth, m->os, m->keyed ? m->key : NULL, true, CDP__AUTH_LINK, CDP__AUTH_REMOTE)
        == CDP_OK;
#endif
}

/* A new connection. If the store server passes it on (bytes > 0), it has authenticated itself
   with these nonces, and `said` is the beginning of its HELLO. */
CDP__PRIVATE CDP__COLD void cdp__mesh_incoming(void *user, int32_t fd, const cdp_addr *from,
    const uint8_t *said, uint64_t bytes, uint8_t nonce[2][16]) {
    cdp__mesh *m = (cdp__mesh *)user;
    cdp__incoming *g;
    cdp__mesh_make_room(m, m->desc.group.world_size * m->desc.connections + CDP__STRANGERS);
    g = bytes > CDP__HELLO_BYTES ? NULL : (cdp__incoming *)cdp__alloc_zero(m->os, sizeof *g);
    if (g) g->mesh = m;
    if (!g || (!bytes && !cdp__incoming_guard(g, fd, from))) {
        m->os->net.close_fd(m->os->user, fd);
        cdp__free(m->os, g);
        return;
    }
    g->from = *from;
    if (bytes) {
        memcpy(g->hello, said, (size_t)bytes);
        memcpy(g->auth.nonce, nonce, sizeof g->auth.nonce);
    }
    g->got = (uint32_t)bytes;
    g->next = m->incoming;
    m->incoming = g;
    ++m->incoming_count;
    cdp__loop_add(&m->loop, &g->io, fd, cdp__incoming_event, g);
    cdp__loop_timer_set(&m->loop, &g->timer, m->os->now_ns(m->os->user) + CDP__HELLO_MS * CDP__MS,
        cdp__incoming_late, g);
    g->io.ready = CDP_IO_READ; /* its HELLO may have arrived already */
    cdp__incoming_event(&g->io);
}

/* Accepts a limited number of connections per turn, so that many clients do not keep this thread
   from its own operations and deadlines. */
CDP__PRIVATE CDP__COLD void cdp__mesh_accept(cdp__io *io) {
    cdp__mesh *m = (cdp__mesh *)io->user;
    uint32_t i;
    io->broken = false; /* an error of a listening socket is not final */
    for (i = 0; i < CDP__ACCEPTS; ++i) {
        cdp_addr from;
        const int32_t fd = m->os->net.accept_next(m->os->user, io->fd, &from);
        if (fd == -EMFILE || fd == -ENFILE || fd == -ENOBUFS || fd == -ENOMEM) {
            if (cdp__mesh_accept_later(m)) continue;
            return;
        }
        if (fd < 0) {
            cdp__loop_used_up(&m->loop, io, CDP_IO_READ);
            return;
        }
        cdp__mesh_incoming(m, fd, &from, NULL, 0, NULL);
    }
    cdp__loop_again(&m->loop, io);
}

#endif /* CDP_SRC_TCP_INCOMING_H */
