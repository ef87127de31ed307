/* tcp/link_choosing.h - a connection becomes a link; how its end is noticed

   Knows: links and the handshake. Promises: a link is UP only when both sides have chosen the same
   connection. From then on its end is noticed: by the end of the stream, by the silence of the
   host, or by the end of the process. */
#ifndef CDP_SRC_TCP_LINK_CHOOSING_H
#define CDP_SRC_TCP_LINK_CHOOSING_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../os/loop.h"
#include "../base/bytes.h"
#include "handshake.h"
#include "memory.h"
#include "link.h"
#include "mesh.h"
#include "link_streams.h"

CDP__PRIVATE void cdp__link_choose_again(cdp__timer *t);

/* The answer to CHOSEN has arrived: it accepts the shared memory or not. False: call again
   later. If the peer has accepted but this process has no free descriptor, it retries until
   there is one. (Closing the memory's descriptor frees one, but another thread may take it.) */
CDP__PRIVATE bool cdp__link_taken(cdp__link *l) {
    const cdp_os *os = l->mesh->os;
    cdp__shared *s = l->shared;
    cdp__hello h;
    const bool ours = cdp__hello_decode(l->answer, &h) && h.type == CDP__TAKEN && h.from == l->peer;
    int32_t pid = 0;
    if (s->memory >= 0) os->net.close_fd(os->user, s->memory);
    s->memory = -1;
    if (ours && !h.refusal) pid = os->shared.pass(os->user, s->pass, &s->bell, 1, false);
    if (pid == -EMFILE) {
        cdp__loop_timer_set(&l->mesh->loop, &l->probe_timer, os->now_ns(os->user) + CDP__MS,
            cdp__link_choose_again, l);
        return false;
    }
    s->taken = true;
    if (ours && h.refusal) {
        cdp__shared_close(s);
        l->shared = NULL;
        cdp__mesh_no_memory(l->mesh, l->peer, 0);
    } else if (!ours || !s->pair->taken) {
        cdp__link_lose(l, CDP_ERR_MISMATCH, 0);
    } else if (pid < 0) {
        cdp__link_lose(l, CDP_ERR_PEER_LOST, -pid);
    } else if (l->mesh->desc.group.expose_bytes != UINT64_MAX) {
        cdp__shared_try(s, pid);
    }
    return true;
}

#ifndef CDP__UNANSWERED_MS
#define CDP__UNANSWERED_MS 5000u /* period of cdp__mesh_check_unanswered() */
#define CDP__SILENCE_MS 30000u   /* a host that acknowledges nothing for so long is lost */
#endif

/* Detects hosts that have disappeared, which send no end of stream. A link is lost only if two
   consecutive checks find it silent: data sent just before the first check has been acknowledged
   by the second. */
CDP__PRIVATE CDP__COLD void cdp__mesh_check_unanswered(cdp__timer *t) {
    cdp__mesh *m = (cdp__mesh *)t->user;
    const uint32_t count = m->desc.group.world_size * m->desc.connections;
    uint32_t i;
    cdp__loop_timer_set(&m->loop, t, m->os->now_ns(m->os->user) + CDP__UNANSWERED_MS * CDP__MS,
        cdp__mesh_check_unanswered, m);
    for (i = 0; i < count; ++i) {
        cdp__link *l = &m->links[i];
        if (l->state != CDP__LINK_UP || cdp__link_shared(l)) continue;
        if (m->os->net.unanswered_ns(m->os->user, l->io.fd) < CDP__SILENCE_MS * CDP__MS)
            l->silent = 0;
        else if (++l->silent == 2)
            cdp__link_lose(l, CDP_ERR_PEER_LOST, ETIMEDOUT);
    }
}

#define CDP__PROCESS_LOOK_MS 50u
#define CDP__PROCESS_LOOKS 12u /* checks without data; data in flight has shorter gaps */

/* Timer: the peer's process has ended. Its data is read first. If no more arrives but the
   connection stays open, a child process keeps it open, and the link is lost. */
CDP__PRIVATE void cdp__link_process_ended(cdp__timer *t) {
    cdp__link *l = (cdp__link *)t->user;
    if (l->state != CDP__LINK_UP) return;
    cdp__link_read_ahead(l);
    if (l->state != CDP__LINK_UP) return;
    if (cdp__link_shared(l) || (!(l->io.ready & CDP_IO_READ) && l->rx_at == l->rx_used)) {
        if (cdp__link_shared(l) || ++l->silent > CDP__PROCESS_LOOKS) {
            cdp__link_lose(l, CDP_ERR_PEER_LOST, 0);
            return;
        }
    } else {
        l->silent = 0;
    }
    cdp__loop_timer_set(&l->mesh->loop, t,
        l->mesh->os->now_ns(l->mesh->os->user) + CDP__PROCESS_LOOK_MS * CDP__MS,
        cdp__link_process_ended, l);
}

CDP__PRIVATE void cdp__link_process_event(cdp__io *io) {
    cdp__link *l = (cdp__link *)io->user;
    cdp__loop_remove(&l->mesh->loop, io);
    l->silent = 0;
    cdp__loop_timer_set(&l->mesh->loop, &l->process_timer,
        l->mesh->os->now_ns(l->mesh->os->user) + CDP__PROCESS_LOOK_MS * CDP__MS,
        cdp__link_process_ended, l);
}

/* The number of the peer's process if it is in the same place (see process_place); else 0. */
CDP__PRIVATE uint32_t cdp__link_process(const cdp__link *l) {
    const cdp__mesh *m = l->mesh;
    const cdp_bytes *v;
    if (l->index || !m->place || m->addrs.status != CDP_OK || !m->addrs.results) return 0;
    v = &m->addrs.results[l->peer];
    if (v->bytes < CDP__PLACE_BYTES || cdp__get_u64((const uint8_t *)v->data + 8) != m->place)
        return 0;
    return cdp__get_u32((const uint8_t *)v->data + 16);
}

CDP__PRIVATE void cdp__link_up(cdp__link *l) {
    cdp__mesh *m = l->mesh;
    const uint32_t number = cdp__link_process(l);
    int32_t fd;
    l->state = CDP__LINK_UP;
    if (m->os->net.unanswered_ns && !m->unanswered_timer.next)
        cdp__loop_timer_set(&m->loop, &m->unanswered_timer,
            m->os->now_ns(m->os->user) + CDP__UNANSWERED_MS * CDP__MS, cdp__mesh_check_unanswered,
            m);
    if (!number || !m->os->shared.process_open || m->frugal) return;
    fd = m->os->shared.process_open(m->os->user, number);
    if (fd >= 0) cdp__loop_add(&m->loop, &l->process, fd, cdp__link_process_event, l);
}

/* A link has just come up. If this rank is leaving because of a failure, sends the cause to the
   peer first. */
CDP__PRIVATE void cdp__link_send_cause_late(cdp__link *l) {
    if (l->mesh->leaving && !l->index && l->state == CDP__LINK_UP) cdp__link_send_cause(l);
}

/* Sends CHOSEN or TAKEN; after a CHOSEN that offers memory, waits for TAKEN. */
CDP__PRIVATE CDP__COLD void cdp__link_choosing(cdp__link *l) {
    cdp__mesh *m = l->mesh;
    const bool offers = cdp__link_shared(l) && !l->shared->taken;
    int32_t r = cdp__hello_send(m, &l->io, l->hello, &l->hello_sent);
    if (r > 0 && offers) r = cdp__hello_recv(m, &l->io, l->answer, &l->hello_got);
    if (r < 0)
        cdp__link_lose(l, CDP_ERR_PEER_LOST, r == CDP_IO_EOF ? 0 : -r);
    else if (r > 0 && offers)
        r = cdp__link_taken(l);
    if (r <= 0 || l->state == CDP__LINK_LOST) return;
    cdp__link_up(l);
    if (cdp__link_shared(l) && l->state == CDP__LINK_UP) {
        l->whole = true; /* with shared memory, the other connections are not needed */
        cdp__link_unguard(l);
        l->shared->next = m->sharing;
        m->sharing = l->shared;
    }
    cdp__link_send_cause_late(l);
}

CDP__PRIVATE void cdp__link_choose_again(cdp__timer *t) {
    cdp__link_choosing((cdp__link *)t->user);
}

CDP__PRIVATE void cdp__link_event(cdp__io *io) {
    cdp__link *l = (cdp__link *)io->user;
    if (l->state == CDP__LINK_CHOOSING) cdp__link_choosing(l);
    if (!l->wanted || cdp__link_shared(l)) cdp__link_read_ahead(l);
}

CDP__PRIVATE bool cdp__link_room(cdp__link *l) {
    if (!l->rx) l->rx = (uint8_t *)cdp__alloc(l->mesh->os, CDP__RX_BYTES);
    if (!l->rx) cdp__link_lose(l, CDP_ERR_NOMEM, 0);
    return l->rx != NULL;
}

/* The link takes ownership of the connection. */
CDP__PRIVATE void cdp__link_take(cdp__link *l, cdp__io *io, cdp__link_state state) {
    const int32_t fd = cdp__loop_detach(&l->mesh->loop, io);
    cdp__loop_timer_clear(&l->probe_timer);
    cdp__loop_remove(&l->mesh->loop, &l->probe);
    if (l->inviting) cdp__race_end(l);
    cdp__loop_add(&l->mesh->loop, &l->io, fd, cdp__link_event, l);
    l->io.ready = CDP_IO_READ | CDP_IO_WRITE;
    l->state = state;
}

#endif /* CDP_SRC_TCP_LINK_CHOOSING_H */
