/* os/poll.h - watches over a function that waits for descriptors

   Knows: cdp_os alone. Promises: what cdp_os_net says of watches, from its poll_fds. */
#ifndef CDP_SRC_OS_POLL_H
#define CDP_SRC_OS_POLL_H

#include "../base/config.h"
#include "os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"

#if !defined(CDP_NO_OS) || defined(CDP_OS_POLL) /* with epoll no code is made of it */

typedef struct cdp__pollwatch_entry {
    int32_t fd;
    uint32_t bits, armed; /* events wanted; of these, the ones not reported yet */
    bool broken;          /* failed: nothing is reported any more */
    void *owner;
} cdp__pollwatch_entry;

/* A watch over poll_fds, which runs without the lock, on a copy of the list. */
typedef struct cdp__pollwatch {
    const cdp_os *os;
    void *mutex;
    cdp__pollwatch_entry *entries;
    /* begin: the entry reported first; it rotates, so that none starves */
    uint32_t count, room, begin;
    cdp_poll_fd *fds;
    void *scratch;
    uint32_t fds_room;
} cdp__pollwatch;

CDP__PRIVATE void cdp__pollwatch_lock(cdp__pollwatch *p) {
    if (p->mutex) p->os->threads.mutex_lock(p->os->user, p->mutex);
}

CDP__PRIVATE void cdp__pollwatch_unlock(cdp__pollwatch *p) {
    if (p->mutex) p->os->threads.mutex_unlock(p->os->user, p->mutex);
}

CDP__PRIVATE int32_t cdp__pollwatch_open(const cdp_os *os, void **watch) {
    cdp__pollwatch *p = (cdp__pollwatch *)cdp__alloc_zero(os, sizeof *p);
    if (!p) return -ENOMEM;
    p->os = os;
    p->mutex = os->threads.mutex_create ? os->threads.mutex_create(os) : NULL;
    if (os->threads.mutex_create && !p->mutex) {
        cdp__free(os, p);
        return -ENOMEM;
    }
    *watch = p;
    return 0;
}

CDP__PRIVATE void cdp__pollwatch_close(const cdp_os *os, void *watch) {
    cdp__pollwatch *p = (cdp__pollwatch *)watch;
    if (p->mutex) os->threads.mutex_destroy(os, p->mutex);
    cdp__free(os, p->entries);
    cdp__free(os, p->fds);
    cdp__free(os, p->scratch);
    cdp__free(os, p);
}

/* The caller holds the lock. */
CDP__PRIVATE cdp__pollwatch_entry *cdp__pollwatch_find(cdp__pollwatch *p, int32_t fd) {
    uint32_t i;
    for (i = 0; i < p->count; ++i)
        if (p->entries[i].fd == fd) return &p->entries[i];
    return NULL;
}

/* The caller holds the lock. */
CDP__PRIVATE bool cdp__pollwatch_reserve(cdp__pollwatch *p) {
    const uint32_t room = p->room ? 2 * p->room : 16;
    cdp__pollwatch_entry *e;
    if (p->count < p->room) return true;
    e = (cdp__pollwatch_entry *)cdp__alloc(p->os, room * sizeof *e);
    if (!e) return false;
    if (p->count) memcpy(e, p->entries, p->count * sizeof *e);
    cdp__free(p->os, p->entries);
    p->entries = e;
    p->room = room;
    return true;
}

CDP__PRIVATE int32_t cdp__pollwatch_add(
    const cdp_os *os, void *watch, int32_t fd, uint32_t bits, void *owner) {
    cdp__pollwatch *p = (cdp__pollwatch *)watch;
    cdp__pollwatch_entry *e;
    (void)os;
    cdp__pollwatch_lock(p);
    if (!cdp__pollwatch_reserve(p)) {
        cdp__pollwatch_unlock(p);
        return -ENOMEM;
    }
    e = &p->entries[p->count++];
    e->fd = fd;
    e->bits = e->armed = bits;
    e->broken = false;
    e->owner = owner;
    cdp__pollwatch_unlock(p);
    return 0;
}

CDP__PRIVATE void cdp__pollwatch_change(
    void *user, void *watch, int32_t fd, uint32_t bits, void *owner) {
    cdp__pollwatch *p = (cdp__pollwatch *)watch;
    cdp__pollwatch_entry *e;
    (void)user;
    cdp__pollwatch_lock(p);
    e = cdp__pollwatch_find(p, fd);
    if (e) {
        e->bits = e->armed = bits;
        e->owner = owner;
    }
    cdp__pollwatch_unlock(p);
}

CDP__PRIVATE void cdp__pollwatch_used_up(void *user, void *watch, int32_t fd, uint32_t bits) {
    cdp__pollwatch *p = (cdp__pollwatch *)watch;
    cdp__pollwatch_entry *e;
    (void)user;
    cdp__pollwatch_lock(p);
    e = cdp__pollwatch_find(p, fd);
    if (e) e->armed |= bits & e->bits;
    cdp__pollwatch_unlock(p);
}

CDP__PRIVATE void cdp__pollwatch_remove(void *user, void *watch, int32_t fd) {
    cdp__pollwatch *p = (cdp__pollwatch *)watch;
    cdp__pollwatch_entry *e;
    (void)user;
    cdp__pollwatch_lock(p);
    e = cdp__pollwatch_find(p, fd);
    if (e) {
        --p->count;
        memmove(e, e + 1, (size_t)(p->entries + p->count - e) * sizeof *e);
    }
    cdp__pollwatch_unlock(p);
}

/* Fills the list for poll_fds. Entries without wanted events stay in it, so that broken
   connections are noticed. Returns the number of entries or a negative errno. */
CDP__PRIVATE int32_t cdp__pollwatch_fill(cdp__pollwatch *p) {
    uint32_t i, n = 0;
    if (p->fds_room < p->count) {
        cdp__free(p->os, p->fds);
        cdp__free(p->os, p->scratch);
        p->fds = (cdp_poll_fd *)cdp__alloc(p->os, p->room * sizeof *p->fds);
        p->scratch = cdp__alloc(p->os, p->room * (uint64_t)CDP_POLL_ROOM);
        p->fds_room = p->fds && p->scratch ? p->room : 0;
        if (!p->fds_room) return -ENOMEM;
    }
    for (i = 0; i < p->count; ++i) {
        const cdp__pollwatch_entry *e = &p->entries[(p->begin + i) % p->count];
        if (e->broken) continue;
        p->fds[n].fd = e->fd;
        p->fds[n].wanted = e->armed;
        p->fds[n++].ready = 0;
    }
    return (int32_t)n;
}

/* Reports what poll_fds found among the first `n` entries, at most `max_count` of them. */
CDP__PRIVATE int32_t cdp__pollwatch_report(
    cdp__pollwatch *p, uint32_t n, cdp_ready *out, uint32_t max_count) {
    uint32_t i, reported = 0;
    for (i = 0; i < n && reported < max_count; ++i) {
        const uint32_t got = p->fds[i].ready & (p->fds[i].wanted | CDP_IO_ERROR);
        cdp__pollwatch_entry *e = got ? cdp__pollwatch_find(p, p->fds[i].fd) : NULL;
        if (!e) continue;
        e->broken = (got & CDP_IO_ERROR) != 0;
        e->armed &= ~got;
        out[reported].owner = e->owner;
        out[reported++].got = got;
        if (reported == max_count) p->begin = (uint32_t)(e - p->entries) + 1;
    }
    return (int32_t)reported;
}

CDP__PRIVATE int32_t cdp__pollwatch_wait(
    void *user, void *watch, cdp_ready *out, uint32_t max_count, uint64_t deadline_ns) {
    cdp__pollwatch *p = (cdp__pollwatch *)watch;
    int32_t n, r;
    cdp__pollwatch_lock(p);
    n = cdp__pollwatch_fill(p);
    cdp__pollwatch_unlock(p);
    if (n < 0) return n;
    r = p->os->net.poll_fds(user, p->fds, (uint32_t)n, deadline_ns, p->scratch);
    if (r <= 0) return r;
    cdp__pollwatch_lock(p);
    r = cdp__pollwatch_report(p, (uint32_t)n, out, max_count);
    cdp__pollwatch_unlock(p);
    return r;
}

/* Sets all that a cdp_os_net has of watches. */
CDP__PRIVATE void cdp__pollwatch_use(cdp_os_net *net, cdp_poll_func *poll_fds) {
    net->poll_fds = poll_fds;
    net->watch_open = cdp__pollwatch_open;
    net->watch_close = cdp__pollwatch_close;
    net->watch_add = cdp__pollwatch_add;
    net->watch_change = cdp__pollwatch_change;
    net->watch_used_up = cdp__pollwatch_used_up;
    net->watch_remove = cdp__pollwatch_remove;
    net->watch_wait = cdp__pollwatch_wait;
    net->late_us = 0;
}

#endif

#ifdef CDP_OS_POLL
CDP_API void cdp_os_use_poll(cdp_os *os, cdp_poll_func *poll_fds) {
    if (!os) return;
    cdp__pollwatch_use(&os->net, poll_fds);
    if (!poll_fds) os->net.watch_wait = NULL; /* os/whole.h tells whoever uses this os */
}
#endif

#endif /* CDP_SRC_OS_POLL_H */
