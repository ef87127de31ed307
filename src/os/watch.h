/* os/watch.h - waiting with poll(2), and watches over epoll

   Knows: cdp_os and the two system calls. Promises: what cdp_os_net says of poll_fds and of
   watches. */
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

#ifndef _WIN32
CDP__PRIVATE int32_t cdp__os_poll(
    void *user, cdp_poll_fd *fds, uint32_t n, uint64_t deadline_ns, void *room) {
    struct pollfd *p = (struct pollfd *)room;
    int r;
    uint32_t i;
    (void)user;
    for (i = 0; i < n; ++i) {
        p[i].fd = fds[i].fd;
        p[i].events = (short)((fds[i].wanted & CDP_IO_READ ? POLLIN : 0)
            | (fds[i].wanted & CDP_IO_WRITE ? POLLOUT : 0));
        p[i].revents = 0;
    }
    r = poll(p, n, cdp__os_poll_ms(deadline_ns));
    if (r < 0) return errno == EINTR ? 0 : -errno;
    for (i = 0; i < n; ++i) {
        const short e = p[i].revents;
        fds[i].ready = (e & POLLIN ? CDP_IO_READ : 0) | (e & POLLOUT ? CDP_IO_WRITE : 0)
            | (e & (POLLERR | POLLHUP | POLLNVAL) ? CDP_IO_ERROR : 0);
    }
    return r;
}
#endif

/* How late a wait wakes, mostly, after cdp__os_watch_fine(). */
#if defined(CDP__EPOLL) && !defined(CDP_NO_FRAMES) && defined(SYS_ppoll)
#define CDP__OS_LATE_US 100u
#else
#define CDP__OS_LATE_US 0u
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

#if CDP__OS_LATE_US
/* epoll_wait() counts milliseconds: a deadline that is near is slept for on a finer clock first. */
CDP__PRIVATE void cdp__os_watch_fine(void *watch, uint64_t deadline_ns) {
    struct pollfd p;
    struct {
        long s, ns;
    } left;
    uint64_t now;
    if (deadline_ns == 0 || deadline_ns == CDP__NEVER) return;
    now = cdp__os_now(NULL);
    if (now >= deadline_ns || deadline_ns - now > 50 * CDP__MS) return;
    left.s = 0;
    left.ns = (long)(deadline_ns - now);
    p.fd = cdp__os_epoll_fd(watch);
    p.events = POLLIN;
    p.revents = 0;
    (void)syscall(SYS_ppoll, &p, 1ul, &left, NULL, 0ul);
}
#else
#define cdp__os_watch_fine(watch, deadline_ns) ((void)0)
#endif

CDP__PRIVATE int32_t cdp__os_watch_wait(
    void *user, void *watch, cdp_ready *out, uint32_t max_count, uint64_t deadline_ns) {
    struct epoll_event e[CDP__MANY];
    const int n = (int)cdp__min(max_count, CDP__MANY);
    cdp__os_watch_fine(watch, deadline_ns);
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
