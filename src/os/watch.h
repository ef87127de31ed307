/* os/watch.h - watches over epoll, or over any poll function

   Knows: cdp_os and the two system calls. Promises: what cdp_os_net says of watches. */
#ifndef CDP_SRC_OS_WATCH_H
#define CDP_SRC_OS_WATCH_H

#include "../base/config.h"
#include "os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "posix.h"
#include "windows.h"

#ifndef CDP_NO_OS /* what the default cdp_os is made of, to the end of >>os-linux */

/* A deadline as milliseconds from now, for poll() and epoll_wait(). Rounded up: rounded down,
   the last millisecond would be a busy loop. */
CDP__PRIVATE int cdp__os_poll_ms(uint64_t deadline_ns) {
    uint64_t now, ms;
    if (deadline_ns == CDP__NEVER) return -1;
    if (deadline_ns == 0) return 0;
    now = cdp__os_now(NULL);
    ms = deadline_ns > now ? (deadline_ns - now + CDP__MS - 1) / CDP__MS : 0;
    return (int)cdp__min(ms, 1u << 30);
}

/* As struct pollfd, with cdp's bits; the poll function fills in `got`. */
typedef struct cdp__pollfd {
    int32_t fd;
    uint32_t want; /* CDP_IO_READ | CDP_IO_WRITE */
    uint32_t got;
} cdp__pollfd;

/* Returns how many descriptors have events, or a negative errno; 0 also after a signal. */
typedef int32_t (*cdp__poll_func)(
    void *user, cdp__pollfd *fds, uint32_t n, uint64_t deadline_ns, void *room);

typedef struct cdp__pollwatch_entry {
    int32_t fd;
    uint32_t bits, armed; /* events wanted; of these, the ones not reported yet */
    bool broken;          /* failed: nothing is reported any more */
    void *owner;
} cdp__pollwatch_entry;

/* A watch for systems without epoll. poll() runs without the lock, on a copy of the list. */
typedef struct cdp__pollwatch {
    const cdp_os *os;
    cdp__poll_func poll;
    uint64_t room_bytes; /* scratch memory of the poll function, bytes per descriptor */
    void *mutex;
    cdp__pollwatch_entry *entries;
    /* begin: the entry reported first; it rotates, so that none starves */
    uint32_t count, room, begin;
    cdp__pollfd *fds;
    void *scratch;
    uint32_t fds_room;
} cdp__pollwatch;

CDP__PRIVATE void cdp__pollwatch_lock(cdp__pollwatch *p) {
    if (p->mutex) p->os->threads.mutex_lock(p->os->user, p->mutex);
}

CDP__PRIVATE void cdp__pollwatch_unlock(cdp__pollwatch *p) {
    if (p->mutex) p->os->threads.mutex_unlock(p->os->user, p->mutex);
}

CDP__PRIVATE int32_t cdp__pollwatch_open(
    const cdp_os *os, cdp__poll_func poll, uint64_t room_bytes, void **watch) {
    cdp__pollwatch *p = (cdp__pollwatch *)cdp__alloc_zero(os, sizeof *p);
    if (!p) return -ENOMEM;
    p->os = os;
    p->poll = poll;
    p->room_bytes = room_bytes;
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

/* Fills the list for poll(). Entries without wanted events stay in it, so that broken
   connections are noticed. Returns the number of entries or a negative errno. */
CDP__PRIVATE int32_t cdp__pollwatch_fill(cdp__pollwatch *p) {
    uint32_t i, n = 0;
    if (p->fds_room < p->count) {
        cdp__free(p->os, p->fds);
        cdp__free(p->os, p->scratch);
        p->fds = (cdp__pollfd *)cdp__alloc(p->os, p->room * sizeof *p->fds);
        p->scratch = cdp__alloc(p->os, p->room * p->room_bytes);
        p->fds_room = p->fds && p->scratch ? p->room : 0;
        if (!p->fds_room) return -ENOMEM;
    }
    for (i = 0; i < p->count; ++i) {
        const cdp__pollwatch_entry *e = &p->entries[(p->begin + i) % p->count];
        if (e->broken) continue;
        p->fds[n].fd = e->fd;
        p->fds[n].want = e->armed;
        p->fds[n++].got = 0;
    }
    return (int32_t)n;
}

/* Reports the events that poll() found among the first `n` entries, at most `max_count` of them. */
CDP__PRIVATE int32_t cdp__pollwatch_report(
    cdp__pollwatch *p, uint32_t n, cdp_ready *out, uint32_t max_count) {
    uint32_t i, reported = 0;
    for (i = 0; i < n && reported < max_count; ++i) {
        cdp__pollwatch_entry *e = p->fds[i].got ? cdp__pollwatch_find(p, p->fds[i].fd) : NULL;
        if (!e) continue;
        e->broken = (p->fds[i].got & CDP_IO_ERROR) != 0;
        e->armed &= ~p->fds[i].got;
        out[reported].owner = e->owner;
        out[reported++].got = p->fds[i].got;
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
    r = p->poll(user, p->fds, (uint32_t)n, deadline_ns, p->scratch);
    if (r <= 0) return r;
    cdp__pollwatch_lock(p);
    r = cdp__pollwatch_report(p, (uint32_t)n, out, max_count);
    cdp__pollwatch_unlock(p);
    return r;
}

#ifndef _WIN32
CDP__PRIVATE int32_t cdp__os_poll(
    void *user, cdp__pollfd *fds, uint32_t n, uint64_t deadline_ns, void *room) {
    struct pollfd *p = (struct pollfd *)room;
    int r;
    uint32_t i;
    (void)user;
    for (i = 0; i < n; ++i) {
        p[i].fd = fds[i].fd;
        p[i].events = (short)((fds[i].want & CDP_IO_READ ? POLLIN : 0)
            | (fds[i].want & CDP_IO_WRITE ? POLLOUT : 0));
        p[i].revents = 0;
    }
    r = poll(p, n, cdp__os_poll_ms(deadline_ns));
    if (r < 0) return errno == EINTR ? 0 : -errno;
    for (i = 0; i < n; ++i) {
        const short e = p[i].revents;
        fds[i].got = (e & POLLIN ? CDP_IO_READ : 0) | (e & POLLOUT ? CDP_IO_WRITE : 0)
            | (e & (POLLERR | POLLHUP | POLLNVAL) ? CDP_IO_ERROR : 0);
    }
    return r;
}

/* A watch over poll(2): the default where there is no epoll. */
CDP__PRIVATE int32_t cdp__os_polled_open(const cdp_os *os, void **watch) {
    return cdp__pollwatch_open(os, cdp__os_poll, sizeof(struct pollfd), watch);
}
#endif

#ifdef CDP__EPOLL
#include <sys/epoll.h>

/* The watch is the epoll descriptor itself. Edge-triggered: the kernel reports each change once. */
CDP__PRIVATE int32_t cdp__os_epoll_fd(const void *watch) {
    return (int32_t)((uintptr_t)watch - 1);
}

CDP__PRIVATE int32_t cdp__os_watch_open(const cdp_os *os, void **watch) {
    const int fd = epoll_create1(EPOLL_CLOEXEC);
    (void)os;
    if (fd < 0) return -errno;
    *watch = (void *)((uintptr_t)fd + 1);
    return 0;
}

CDP__PRIVATE void cdp__os_watch_close(const cdp_os *os, void *watch) {
    (void)os;
    close(cdp__os_epoll_fd(watch));
}

CDP__PRIVATE int32_t cdp__os_watch_set(
    void *watch, int32_t fd, uint32_t bits, void *owner, int how) {
    struct epoll_event e;
    memset(&e, 0, sizeof e);
    e.events = (uint32_t)EPOLLRDHUP | (uint32_t)EPOLLET;
    if (bits & CDP_IO_READ) e.events |= (uint32_t)EPOLLIN;
    if (bits & CDP_IO_WRITE) e.events |= (uint32_t)EPOLLOUT;
    e.data.ptr = owner;
    return epoll_ctl(cdp__os_epoll_fd(watch), how, fd, &e) == 0 ? 0 : -errno;
}

CDP__PRIVATE int32_t cdp__os_watch_add(
    const cdp_os *os, void *watch, int32_t fd, uint32_t bits, void *owner) {
    (void)os;
    return cdp__os_watch_set(watch, fd, bits, owner, EPOLL_CTL_ADD);
}

CDP__PRIVATE void cdp__os_watch_change(
    void *user, void *watch, int32_t fd, uint32_t bits, void *owner) {
    (void)user;
    (void)cdp__os_watch_set(watch, fd, bits, owner, EPOLL_CTL_MOD);
}

CDP__PRIVATE void cdp__os_watch_remove(void *user, void *watch, int32_t fd) {
    (void)user;
    (void)cdp__os_watch_set(watch, fd, 0, NULL, EPOLL_CTL_DEL);
}

CDP__PRIVATE int32_t cdp__os_watch_wait(
    void *user, void *watch, cdp_ready *out, uint32_t max_count, uint64_t deadline_ns) {
    struct epoll_event e[CDP__MANY];
    const int n = (int)cdp__min(max_count, CDP__MANY);
    const int r = epoll_wait(cdp__os_epoll_fd(watch), e, n, cdp__os_poll_ms(deadline_ns));
    int i;
    (void)user;
    for (i = 0; i < r; ++i) {
        out[i].owner = e[i].data.ptr;
        out[i].got = (e[i].events & (uint32_t)EPOLLIN ? CDP_IO_READ : 0)
            | (e[i].events & (uint32_t)EPOLLOUT ? CDP_IO_WRITE : 0)
            | (e[i].events & (uint32_t)EPOLLRDHUP ? CDP_IO_READ | CDP_IO_END : 0)
            | (e[i].events & ((uint32_t)EPOLLERR | (uint32_t)EPOLLHUP) ? CDP_IO_ERROR : 0);
    }
    if (r < 0) return errno == EINTR ? 0 : -errno;
    return r;
}
#endif

#endif /* CDP_NO_OS */

#endif /* CDP_SRC_OS_WATCH_H */
