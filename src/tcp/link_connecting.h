/* tcp/link_connecting.h - connects to several addresses of a peer at once

   Knows: the addresses of a peer and the attempts in progress. Promises: the first address whose
   handshake succeeds becomes the link; of several failures, the most informative is kept. */
#ifndef CDP_SRC_TCP_LINK_CONNECTING_H
#define CDP_SRC_TCP_LINK_CONNECTING_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../os/loop.h"
#include "../store/auth.h"
#include "../store/auth_exchange.h"
#include "../store/client_calls.h"
#include "handshake.h"
#include "paths.h"
#include "link.h"
#include "mesh.h"
#include "link_streams.h"
#include "link_choosing.h"

CDP__PRIVATE void cdp__race_next(cdp__timer *t);

/* An attempt has failed: begins the next one at once. When all have failed, the link keeps the
   most informative error (`worth`): a refusal by the peer, or a port without a listener, says
   more than an address that does not answer. */
CDP__PRIVATE void cdp__path_over(
    cdp__path *p, cdp_status status, int32_t err, uint32_t refusal, uint32_t worth) {
    cdp__link *l = p->link;
    cdp__race *race = l->race;
    cdp__loop_remove(&l->mesh->loop, &p->io);
    if (worth >= race->worth) {
        race->worth = worth;
        l->addr = p->at;
        l->status = status;
        l->lost_errno = err;
        l->refusal = refusal;
    }
    if (++race->over == race->count && l->inviting)
        cdp__race_end(l);
    else if (race->over == race->count)
        cdp__link_lose(l, l->status, l->lost_errno);
    else if (race->begun < race->count)
        cdp__race_next(&race->timer);
}

CDP__PRIVATE void cdp__path_failed(cdp__path *p, int32_t err) {
    uint32_t worth = err ? 2 : 3;
    if (err == ECONNREFUSED) worth = 4;
    cdp__path_over(p, CDP_ERR_PEER_LOST, err, 0, worth);
}

/* Receives the answer to this rank's HELLO, into the buffer that held the HELLO. */
CDP__PRIVATE void cdp__path_answered(cdp__path *p) {
    cdp__link *l = p->link;
    cdp__hello h;
    const bool ours = cdp__hello_decode(p->hello, &h);
    uint8_t nonce[2][16];
    memcpy(nonce, p->auth.nonce, sizeof nonce);
    if (ours && h.type == CDP__WELCOME && h.from == l->peer
        && memcmp(h.job, l->mesh->job, CDP__JOB_BYTES) == 0) {
        l->addr = p->at;
        cdp__link_take(l, &p->io, CDP__LINK_CHOOSING);
        cdp__race_end(l);
        cdp__hello_fill(l->mesh, l->hello, CDP__CHOSEN, l);
        if (h.memory[0] && !l->index && cdp__mesh_shares(l->mesh))
            cdp__link_offer(l, h.memory, l->hello + 52);
        l->hello_sent = 0;
        if (cdp__link_guard(l, nonce, l->hello, false)) cdp__link_event(&l->io);
    } else if (ours && h.type == CDP__REFUSED) {
        cdp__path_over(p, CDP_ERR_MISMATCH, 0,
            h.refusal < (uint32_t)CDP__REFUSE_COUNT ? h.refusal : 0, h.from == l->peer ? 5 : 1);
    } else {
        cdp__path_over(p, CDP_ERR_MISMATCH, 0, 0, 1);
    }
}

#ifndef CDP_NO_JOB_KEY
/* Advances the authentication exchange. True: HELLO may follow. It does when this rank has sent its
   proof, for the peer reads nothing before that is found right; so it takes a round trip less. The
   peer's own proof is the next that is read, before its WELCOME. */
CDP__PRIVATE CDP__COLD bool cdp__path_prove(cdp__path *p) {
    cdp__mesh *m = p->link->mesh;
    int64_t result = 1;
    const cdp_status st = cdp__auth_pump(&p->auth, &m->loop, &p->io, &result);
    if (st == CDP_ERR_MISMATCH)
        cdp__path_over(p, st, 0, CDP__REFUSE_KEY + p->auth.refusal, 3);
    else if (st < 0)
        cdp__path_failed(p, result == CDP_IO_EOF ? 0 : (int32_t)-result);
    return st >= 0 && cdp__auth_said(&p->auth);
}
#endif

CDP__PRIVATE CDP__COLD void cdp__path_event(cdp__io *io) {
    cdp__path *p = (cdp__path *)io->user;
    cdp__mesh *m = p->link->mesh;
    int32_t r = 1;
    if (!p->greeting && !p->proving) {
        r = io->ready & CDP_IO_WRITE ? m->os->net.connect_result(m->os->user, io->fd)
                                     : -EINPROGRESS;
        if (r == -EINPROGRESS || r == -ENOTCONN) return;
#ifndef CDP_NO_JOB_KEY
        if (r >= 0 && m->keyed
            && cdp__auth_open(&p->auth, m->os, m->key, false, CDP__AUTH_LINK, CDP__AUTH_NO_ANSWER)
                != CDP_OK)
            r = -EIO;
#endif
        if (r < 0) {
            cdp__path_failed(p, -r);
            return;
        }
        p->proving = true;
    }
#ifndef CDP_NO_JOB_KEY
    if (m->keyed && !p->auth.done && !cdp__path_prove(p)) return;
#endif
    if (!p->greeting) {
        p->greeting = true;
        cdp__hello_fill(m, p->hello, p->link->inviting ? CDP__INVITE : CDP__HELLO, p->link);
    }
    r = cdp__hello_send(m, io, p->hello, &p->sent);
#ifndef CDP_NO_JOB_KEY
    if (r > 0 && m->keyed && !p->auth.done) return; /* it reads the rest of the exchange first */
#endif
    if (r > 0) r = cdp__hello_recv(m, io, p->hello, &p->got);
    if (p->got > 8 && memcmp(p->hello, "cdp-no: ", 8) == 0)
        cdp__path_over(p, CDP_ERR_MISMATCH, 0, CDP__REFUSE_KEY + p->hello[8], 3);
    else if (r > 0)
        cdp__path_answered(p);
    else if (r < 0)
        cdp__path_failed(p, r == CDP_IO_EOF ? 0 : -r);
}

/* Tries the next address. The one after it follows when this one fails, or after
   CDP__STAGGER_MS. */
CDP__PRIVATE CDP__COLD void cdp__race_next(cdp__timer *t) {
    cdp__link *l = (cdp__link *)t->user;
    cdp__mesh *m = l->mesh;
    cdp__path *p = &l->race->paths[l->race->begun++];
    const int32_t fd = m->os->net.connect_to(m->os->user, &p->at);
    cdp__loop_timer_clear(t);
    if (fd < 0) {
        cdp__path_failed(p, -fd);
        return;
    }
    cdp__loop_add(&m->loop, &p->io, fd, cdp__path_event, p);
    cdp__loop_want_write(&m->loop, &p->io);
    if (l->race->begun < l->race->count)
        cdp__loop_timer_set(
            &m->loop, t, m->os->now_ns(m->os->user) + CDP__STAGGER_MS * CDP__MS, cdp__race_next, l);
}

/* The addresses of the peer to try, best first. */
CDP__PRIVATE uint32_t cdp__link_paths(const cdp__link *l, cdp_addr out[CDP__PATHS]) {
    const cdp__mesh *m = l->mesh;
    const cdp_bytes *text = &m->addrs.results[l->peer];
    /* a record that is too short ends the start; connections may still arrive meanwhile */
    const uint64_t bytes = text->bytes - cdp__min(text->bytes, CDP__PLACE_BYTES);
    const char *addrs = bytes ? (const char *)text->data + CDP__PLACE_BYTES : "";
    cdp_addr theirs[CDP__ADDRS];
    uint32_t n = 0;
    memset(theirs, 0, sizeof theirs); /* gcc -O3 does not see that only the first n are read */
    /* the store connection has shown that this address works */
    if (l->peer == 0 && !m->desc.external_store && !m->spread)
        theirs[n++] = cdp__tcp_store_peer_addr(m->store);
    n += cdp__addrs_parse(addrs, bytes, theirs + n, CDP__ADDRS - n);
    n = cdp__paths(m->mine, m->mine_count, theirs, n, out);
    if (m->spread) cdp__paths_turn(m->mine, m->mine_count, out, n, l->index);
    return n;
}

CDP__PRIVATE void cdp__link_connect(cdp__link *l) {
    cdp_addr at[CDP__PATHS];
    uint32_t i, n = cdp__link_paths(l, at);
    if (!cdp__link_room(l)) return;
    l->race = (cdp__race *)cdp__alloc_zero(l->mesh->os, sizeof *l->race);
    if (!l->race) {
        cdp__link_lose(l, CDP_ERR_NOMEM, 0);
        return;
    }
    if (!l->inviting) l->state = CDP__LINK_CONNECTING;
    l->race->count = n;
    l->race->timer.user = l;
    for (i = 0; i < n; ++i) {
        l->race->paths[i].link = l;
        l->race->paths[i].at = at[i];
    }
    cdp__race_next(&l->race->timer);
}

/* A connection attempt only tests whether the peer's process is alive: its listening port
   refuses if it is not. But the peer may also have connected, sent all its data and ended, while
   this rank still handles its handshake. So refusals are ignored while a handshake is in
   progress, and the test is repeated. */
CDP__PRIVATE void cdp__link_probed(cdp__link *l, int32_t err) {
    const cdp__incoming *g = l->mesh->incoming;
    while (g && !g->welcome)
        g = g->next;
    if (err && !g) cdp__link_lose(l, CDP_ERR_PEER_LOST, err);
}

CDP__PRIVATE void cdp__link_probe_event(cdp__io *io) {
    cdp__link *l = (cdp__link *)io->user;
    const int32_t err = io->ready & CDP_IO_WRITE
        ? l->mesh->os->net.connect_result(l->mesh->os->user, io->fd)
        : -EINPROGRESS;
    if (err == -EINPROGRESS || err == -ENOTCONN) return;
    cdp__loop_remove(&l->mesh->loop, io);
    cdp__link_probed(l, -err);
}

/* Asks the higher rank to connect. It may not need the link yet, but this rank must send it
   questions about a wait. A rank that still starts does not hear it, so it is asked again. */
CDP__PRIVATE void cdp__link_invite(cdp__link *l) {
    l->inviting = true;
    cdp__link_connect(l);
}

CDP__PRIVATE CDP__COLD void cdp__link_probe(cdp__timer *t) {
    cdp__link *l = (cdp__link *)t->user;
    cdp__mesh *m = l->mesh;
    if (l->state != CDP__LINK_AWAITED) return;
    ++l->probes;
    if (l->probes > 1 && !(l->probes & (l->probes - 1)) && !l->race) cdp__link_invite(l);
    if (l->state != CDP__LINK_AWAITED) return;
    if (!l->probe.next) {
        const int32_t fd = m->os->net.connect_to(m->os->user, &l->addr);
        if (fd == -ECONNREFUSED) cdp__link_probed(l, ECONNREFUSED);
        if (l->state != CDP__LINK_AWAITED) return;
        if (fd >= 0) {
            cdp__loop_add(&m->loop, &l->probe, fd, cdp__link_probe_event, l);
            cdp__loop_want_write(&m->loop, &l->probe);
        }
    }
    cdp__loop_timer_set(&m->loop, t, m->os->now_ns(m->os->user) + CDP__PROBE_EVERY_MS * CDP__MS,
        cdp__link_probe, l);
}

/* First use of a link. The higher rank connects and the lower one waits, so two ranks never
   connect to each other at once. */
CDP__PRIVATE void cdp__link_need(cdp__link *l) {
    cdp__mesh *m = l->mesh;
    cdp_addr at[CDP__PATHS];
    if (l->state != CDP__LINK_NONE) return;
    if (m->desc.group.rank > l->peer) {
        cdp__link_connect(l);
        return;
    }
    (void)cdp__link_paths(l, at);
    l->addr = at[0];
    l->state = CDP__LINK_AWAITED;
    if (!l->index)
        cdp__loop_timer_set(&m->loop, &l->probe_timer,
            m->os->now_ns(m->os->user) + CDP__PROBE_FIRST_MS * CDP__MS, cdp__link_probe, l);
}

#endif /* CDP_SRC_TCP_LINK_CONNECTING_H */
