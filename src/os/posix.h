/* os/posix.h - memory, clock, random numbers, sockets

   Knows: system calls that POSIX has. Promises: what cdp_os says of memory, time, sockets and
   addresses; errors are negative errno values. */
#ifndef CDP_SRC_OS_POSIX_H
#define CDP_SRC_OS_POSIX_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "addresses.h"

#ifndef CDP_NO_OS /* what the default cdp_os is made of, to the end of >>os-linux */

#ifndef _WIN32
#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* macOS: SO_NOSIGPIPE is set on the socket instead */
#endif

CDP__PRIVATE void *cdp__os_alloc(void *user, uint64_t bytes) {
    void *p = NULL;
    (void)user;
    if (bytes > SIZE_MAX) return NULL;
    return posix_memalign(&p, 64, (size_t)bytes) == 0 ? p : NULL;
}

CDP__PRIVATE void cdp__os_release(void *user, void *p) {
    (void)user;
    free(p);
}

CDP__PRIVATE uint64_t cdp__os_now(void *user) {
    struct timespec t;
    (void)user;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

#ifdef __linux__
#include <sys/syscall.h>
#endif

/* Random bytes from the kernel, without a descriptor. Returns how many; 0 if there is no such
   call. */
CDP__PRIVATE uint64_t cdp__os_getrandom(uint8_t *dst, uint64_t bytes) {
    uint64_t done = 0;
#ifdef SYS_getrandom
    while (done < bytes) {
        const long n = syscall(SYS_getrandom, dst + done, (size_t)(bytes - done), 0u);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        done += (uint64_t)n;
    }
#else
    (void)dst;
    (void)bytes;
#endif
    return done;
}

CDP__PRIVATE cdp_status cdp__os_random(void *user, void *dst, uint64_t bytes) {
    uint8_t *p = (uint8_t *)dst;
    uint64_t done = cdp__os_getrandom(p, bytes);
    const int fd = done < bytes ? open("/dev/urandom", O_RDONLY | O_CLOEXEC) : -1;
    (void)user;
    while (fd >= 0 && done < bytes) {
        const ssize_t n = read(fd, p + done, (size_t)(bytes - done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        done += (uint64_t)n;
    }
    if (fd >= 0) close(fd);
    if (done == bytes) return CDP_OK;
    return cdp__fail_peer(CDP_ERR_IO, -1, errno, "the system gives no random bytes");
}

/* Returns early when a signal arrives. */
CDP__PRIVATE void cdp__os_sleep_until(void *user, uint64_t deadline_ns) {
    const uint64_t now = cdp__os_now(user), left = deadline_ns > now ? deadline_ns - now : 0;
    const int kept = errno; /* of the program that a signal handler has interrupted */
    struct timespec t;
    if (!left) return;
    t.tv_sec = (time_t)(cdp__min(left, 1000000 * 1000000000ull) / 1000000000ull);
    t.tv_nsec = (long)(left % 1000000000ull);
    (void)nanosleep(&t, NULL);
    errno = kept;
}

CDP__PRIVATE CDP__COLD uint32_t cdp__os_addresses(
    void *user, const char *interfaces, cdp_addr *out, uint32_t max) {
    struct ifaddrs *list = NULL, *it;
    uint32_t n = 0;
    (void)user;
    if (getifaddrs(&list) != 0) return 0;
    for (it = list; it && n < max; it = it->ifa_next) {
        const int family = it->ifa_addr ? it->ifa_addr->sa_family : AF_UNSPEC;
        cdp__sockaddr s;
        if ((family != AF_INET && family != AF_INET6)
            || !cdp__interface_chosen(interfaces, it->ifa_name))
            continue;
        memcpy(&s, it->ifa_addr, family == AF_INET ? sizeof s.v4 : sizeof s.v6);
        cdp__os_from_native(&s, &out[n]);
        out[n++].port = 0;
    }
    freeifaddrs(list);
    return n;
}

/* Gives a socket the options that the library expects: non-blocking, not inherited, no SIGPIPE,
   no Nagle. The keepalive detects a host that disappears while the connection is idle;
   cdp__os_unanswered detects the others. (TCP_USER_TIMEOUT would also close connections to a
   program that does not read for that long although its host answers.) */
CDP__PRIVATE CDP__COLD int cdp__os_prepare_socket(int fd) {
    const int on = 1;
    int set = 0;
    socklen_t len = sizeof set;
#ifdef SO_NOSIGPIPE
    setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
    /* an accepted socket has inherited all options from its listener */
    if (getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &set, &len) == 0 && set) return fd;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
#if defined(__linux__) && defined(TCP_KEEPIDLE)
    {
        const int idle_s = 10, every_s = 5, probes = 4;
#ifdef TCP_RTO_MAX_MS
        const int rto_max = TCP_RTO_MAX_MS;
#else
        const int rto_max = 44; /* since Linux 6.15; older kernels refuse it */
#endif
        const int rto_max_ms = 5000;
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
        /* probe the closed window of a peer at least every 5 s; the default rises to 120 s */
        setsockopt(fd, IPPROTO_TCP, rto_max, &rto_max_ms, sizeof rto_max_ms);
    }
#endif
    /* set last: marks a socket that has all options, see above */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

/* For descriptors that could not get these flags at creation. A blocking descriptor could
   outlast any deadline. */
CDP__PRIVATE int cdp__os_set_flags(int fd) {
    const int now = fcntl(fd, F_GETFL);
    if (now < 0 || fcntl(fd, F_SETFL, now | O_NONBLOCK) != 0) return -errno;
    return fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 ? 0 : -errno;
}

/* Sets the flags on systems that cannot do it at creation. Returns the descriptor, or -errno
   after closing it. */
CDP__PRIVATE int cdp__os_protect(int fd) {
    const int err = fd < 0 ? -errno : cdp__os_set_flags(fd);
    if (fd >= 0 && err < 0) close(fd);
    return err < 0 ? err : fd;
}

CDP__PRIVATE int32_t cdp__os_adopt(void *user, int32_t fd) {
    const int32_t err = cdp__os_set_flags(fd);
    (void)user;
    if (err == 0) cdp__os_prepare_socket(fd);
    return err;
}

/* Sets close-on-exec at creation where the system can: another thread may fork and exec at any
   moment. */
CDP__PRIVATE int cdp__os_socket(int family) {
#ifdef SOCK_CLOEXEC
    const int made = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int fd = made < 0 ? -errno : made;
#else
    const int fd = cdp__os_protect(socket(family, SOCK_STREAM, 0));
#endif
    return fd < 0 ? fd : cdp__os_prepare_socket(fd);
}

/* The beginning of the kernel's struct tcp_info. Some C libraries declare it only for programs
   that ask for GNU extensions. */
typedef struct cdp__tcp_info {
    uint8_t state, congestion, retransmits, probes, more[4];
    uint32_t rto; /* us */
    uint32_t ato, mss[2], unacked, queues[4], last_data_sent, last_ack_sent, last_data_recv,
        last_ack_recv; /* ms */
} cdp__tcp_info;

/* Nanoseconds since the peer's host last acknowledged anything; 0 if no acknowledgement is due. A
   live host acknowledges retransmitted data and probes of a closed window, so the age counts
   only if two of these in a row were lost: data that was just sent after a long pause is not
   acknowledged yet. What the peer sends acknowledges old data again, so the age says nothing where
   a path drops large packets alone. But the timeout doubles with each retransmission that is lost:
   the timeouts before the present one are more than half as long as that (rto >> 11, in ms). */
CDP__PRIVATE uint64_t cdp__os_unacked_ns(const cdp__tcp_info *i) {
    if ((i->retransmits | i->probes) < 2) return 0;
#ifdef CDP_NO_TRAINING /* a small build */
    return i->last_ack_recv * CDP__MS;
#else
    return cdp__max(i->last_ack_recv, i->rto >> 11) * CDP__MS;
#endif
}

CDP__PRIVATE uint64_t cdp__os_unanswered(void *user, int32_t fd) {
#if defined(__linux__) && defined(TCP_INFO)
    cdp__tcp_info i;
    socklen_t len = sizeof i;
    (void)user;
    memset(&i, 0, sizeof i);
    (void)getsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, &len); /* if it fails, `i` is all zeros */
    return cdp__os_unacked_ns(&i);
#else
    (void)user;
    (void)fd;
    return 0;
#endif
}

CDP__PRIVATE uint64_t cdp__os_descriptor_limit(void *user) {
    struct rlimit most;
    (void)user;
    if (getrlimit(RLIMIT_NOFILE, &most) != 0 || most.rlim_cur == RLIM_INFINITY) return 0;
    return (uint64_t)most.rlim_cur;
}

CDP__PRIVATE int32_t cdp__os_local_addr(void *user, int32_t fd, cdp_addr *out) {
    cdp__sockaddr s;
    socklen_t len = sizeof s;
    (void)user;
    if (getsockname(fd, &s.any, &len) != 0) return -errno;
    cdp__os_from_native(&s, out);
    return 0;
}

CDP__PRIVATE CDP__COLD int32_t cdp__os_listen(void *user, const cdp_addr *at, cdp_addr *bound) {
    cdp__sockaddr s;
    const socklen_t len = cdp__os_to_native(at, &s);
    const int on = 1, off = 0, fd = cdp__os_socket(s.any.sa_family);
    if (fd < 0) return fd;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    /* let "::" accept IPv4, too */
    if (at->family == 6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, &s.any, len) != 0 || listen(fd, SOMAXCONN) != 0) {
        const int err = errno;
        close(fd);
        return -err;
    }
    cdp__os_local_addr(user, fd, bound);
    return fd;
}

/* Connections inside one host need no congestion control, and pacing (bbr) made 16 MiB take a
   sixth longer. */
CDP__PRIVATE CDP__COLD void cdp__os_tune(int fd, const cdp__sockaddr *peer) {
#if defined(__linux__) && defined(TCP_CONGESTION)
    cdp_addr a;
    cdp__os_from_native(peer, &a);
    if (a.family == 4 ? a.ip[0] == 127
                      : a.family == 6 && a.ip[15] == 1 && !memcmp(a.ip, a.ip + 1, 14))
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
#else
    (void)fd;
    (void)peer;
#endif
}

/* Accepts a connection, non-blocking and close-on-exec; returns the descriptor or -errno. */
CDP__PRIVATE int cdp__os_accept_one(int listener, cdp__sockaddr *from) {
    socklen_t len = sizeof *from;
#if defined(__linux__) && defined(SYS_accept4) && defined(SOCK_CLOEXEC)
    /* the C library declares accept4() only with _GNU_SOURCE */
    const int fd =
        (int)syscall(SYS_accept4, listener, &from->any, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
    return fd < 0 ? -errno : fd;
#elif !defined(__linux__) && defined(SOCK_CLOEXEC)
    const int fd = accept4(listener, &from->any, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
    return fd < 0 ? -errno : fd;
#else
    return cdp__os_protect(accept(listener, &from->any, &len));
#endif
}

CDP__PRIVATE int32_t cdp__os_accept(void *user, int32_t listener, cdp_addr *from) {
    cdp__sockaddr s;
    int fd;
    (void)user;
    do
        fd = cdp__os_accept_one(listener, &s);
    while (fd == -EINTR || fd == -ECONNABORTED);
    if (fd < 0) return fd == -EWOULDBLOCK ? -EAGAIN : fd;
    cdp__os_prepare_socket(fd);
    cdp__os_tune(fd, &s);
    cdp__os_from_native(&s, from);
    return fd;
}

CDP__PRIVATE CDP__COLD int32_t cdp__os_connect(void *user, const cdp_addr *to) {
    cdp__sockaddr s;
    const socklen_t len = cdp__os_to_native(to, &s);
    const int on = 1, fd = cdp__os_socket(s.any.sa_family);
    (void)user;
    if (fd < 0) return fd;
    /* the system may give it the port at which a job wants to listen: then that can, once this
       connection has ended (TIME_WAIT) */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    cdp__os_tune(fd, &s);
    if (connect(fd, &s.any, len) != 0 && errno != EINPROGRESS && errno != EINTR) {
        const int err = errno;
        close(fd);
        return -err;
    }
    return fd;
}

CDP__PRIVATE int32_t cdp__os_connect_result(void *user, int32_t fd) {
    int err = 0;
    socklen_t len = sizeof err;
    cdp__sockaddr s;
    socklen_t slen = sizeof s;
    cdp_addr here, there;
    (void)user;
    memset(&here, 0, sizeof here); /* for gcc -O3, which does not see that a success fills it */
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len) != 0) return -errno;
    if (err) return -err;
    if (getpeername(fd, &s.any, &slen) != 0) return -errno;
    cdp__os_from_native(&s, &there);
    /* nobody listened, and the system gave this connection the same port: it leads to itself */
    if (cdp__os_local_addr(user, fd, &here) == 0 && here.port == there.port
        && memcmp(here.ip, there.ip, sizeof here.ip) == 0)
        return -ECONNREFUSED;
    return 0;
}

CDP__PRIVATE uint32_t cdp__os_iov(const cdp_iov *v, uint32_t n, struct iovec *out) {
    uint32_t i;
    for (i = 0; i < n && i < CDP__IOV_MAX; ++i) {
        out[i].iov_base = v[i].data;
        out[i].iov_len = (size_t)v[i].bytes;
    }
    return i;
}

/* A msghdr for these pieces; `out` is its array. The type of msg_iovlen depends on the system: int,
   unsigned or size_t. */
CDP__PRIVATE struct msghdr cdp__os_message(const cdp_iov *v, uint32_t n, struct iovec *out) {
    struct msghdr m;
    uint32_t i = cdp__os_iov(v, n, out);
    memset(&m, 0, sizeof m);
    m.msg_iov = out;
    for (; i; --i)
        ++m.msg_iovlen;
    return m;
}

CDP__PRIVATE int64_t cdp__os_send(void *user, int32_t fd, const cdp_iov *v, uint32_t n) {
    struct iovec iov[CDP__IOV_MAX];
    struct msghdr m = cdp__os_message(v, n, iov);
    ssize_t r;
    (void)user;
    /* send() is cheaper than sendmsg() for a single piece */
    do
        r = n == 1 ? send(fd, v->data, (size_t)v->bytes, MSG_NOSIGNAL)
                   : sendmsg(fd, &m, MSG_NOSIGNAL);
    while (r < 0 && errno == EINTR);
    if (r >= 0) return r;
    return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
}

CDP__PRIVATE int64_t cdp__os_recv(void *user, int32_t fd, const cdp_iov *v, uint32_t n) {
    struct iovec iov[CDP__IOV_MAX];
    struct msghdr m = cdp__os_message(v, n, iov);
    ssize_t r;
    (void)user;
    do
        r = n == 1 ? recv(fd, v->data, (size_t)v->bytes, 0) : recvmsg(fd, &m, 0);
    while (r < 0 && errno == EINTR);
    if (r > 0) return r;
    if (r == 0) return CDP_IO_EOF;
    return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
}

CDP__PRIVATE void cdp__os_close(void *user, int32_t fd) {
    (void)user;
    close(fd);
}

CDP__PRIVATE void cdp__os_end_sending(void *user, int32_t fd) {
    (void)user;
    (void)shutdown(fd, SHUT_WR); /* fails on a broken connection, harmlessly */
}

#ifdef __linux__
#include <sys/eventfd.h>
CDP__PRIVATE int32_t cdp__os_wake_open(void *user, int32_t fd[2]) {
    (void)user;
    fd[0] = fd[1] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return fd[0] < 0 ? -errno : 0;
}
#else
/* A pipe: POSIX has no other way for one thread to wake another from poll(). */
CDP__PRIVATE int32_t cdp__os_wake_open(void *user, int32_t fd[2]) {
    int p[2];
    (void)user;
    if (pipe(p) != 0) return -errno;
    fd[0] = cdp__os_protect(p[0]);
    fd[1] = cdp__os_protect(p[1]);
    if (fd[0] >= 0 && fd[1] >= 0) return 0;
    if (fd[0] >= 0) close(fd[0]);
    if (fd[1] >= 0) close(fd[1]);
    return fd[0] < 0 ? fd[0] : fd[1];
}
#endif

CDP__PRIVATE void cdp__os_wake_set(void *user, int32_t fd) {
    const uint64_t one = 1;
    const int kept = errno; /* of the program that a signal handler has interrupted */
    (void)user;
    /* if the pipe is full, the reader wakes anyway */
    while (write(fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
    errno = kept;
}

CDP__PRIVATE void cdp__os_wake_clear(void *user, int32_t fd) {
    char sink[64];
    (void)user;
    /* one read() empties an eventfd; a pipe may need several */
    while (read(fd, sink, sizeof sink) == (ssize_t)sizeof sink) {
    }
}

#endif /* not Windows */

#endif /* CDP_NO_OS */

#endif /* CDP_SRC_OS_POSIX_H */
