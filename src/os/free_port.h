/* os/free_port.h - a port of this machine that nobody has

   Knows: sockets, and Linux's abstract names. Promises: the port was free a moment ago; on Linux no
   other caller of this gets it while the claim is held. For cdp_launch.h. */
#ifndef CDP_SRC_OS_FREE_PORT_H
#define CDP_SRC_OS_FREE_PORT_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"

#include <stddef.h>
#include <string.h>

/* The socket is closed before rank 0 starts: one that stays bound would stop every server that does
   not set SO_REUSEADDR. What then keeps others off the port until rank 0 listens:
   * other launchers: a name in Linux's abstract socket namespace, one per port, which is held for
     the whole job. It belongs to the same network namespace as the port, is seen by all users,
     needs no file, and goes when its holder dies.
   * outgoing connections: Linux gives even ports to connect() and odd ones to bind() until one half
     is used up.
   * other servers that ask for any free port: nothing but luck; the choice of the kernel is random
     in some 14,000 ports. */

#if defined(CDP_NO_OS) || defined(_WIN32)
CDP__PRIVATE int32_t cdp__port_any(const cdp_os *os) {
    cdp_addr at, bound;
    int32_t fd = -ENOSYS;
    memset(&at, 0, sizeof at);
    memset(&bound, 0, sizeof bound);
    at.family = 4;
    at.ip[0] = 127;
    at.ip[3] = 1;
    if (os->net.listen_at) fd = os->net.listen_at(os->user, &at, &bound);
    if (fd < 0) return fd;
    os->net.close_fd(os->user, fd);
    return bound.port;
}
#else
/* The kernel chooses, on the wildcard address, because rank 0 may listen on any address of this
   machine; with IPv6 on both families at once. */
CDP__PRIVATE int32_t cdp__port_any(const cdp_os *os) {
    union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
    } at;
    const int off = 0;
    int32_t port = 0;
    int family = AF_INET6;
    (void)os;
    for (; port <= 0; family = AF_INET) {
        socklen_t length = family == AF_INET6 ? sizeof at.six : sizeof at.four;
        const int fd = socket(family, SOCK_STREAM, 0);
        memset(&at, 0, sizeof at);
        at.any.sa_family = (sa_family_t)family;
        if (fd >= 0
            && (family == AF_INET
                || setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0)
            && bind(fd, &at.any, length) == 0 && getsockname(fd, &at.any, &length) == 0)
            port = ntohs(family == AF_INET6 ? at.six.sin6_port : at.four.sin_port);
        else
            port = -errno;
        if (fd >= 0) close(fd);
        if (family == AF_INET) break; /* a machine without IPv6 has been tried, too */
    }
    return port;
}
#endif

#if defined(__linux__) && !defined(CDP_NO_OS)
#include <sys/un.h>

/* False only if another launcher has this port. *held is the socket that holds it, in place of the
   one before. */
CDP__PRIVATE bool cdp__port_claim(int32_t port, int32_t *held) {
    static const char name[] = "cdprun/port/";
    struct sockaddr_un at;
    size_t n = sizeof name - 1;
    int32_t rest = 10000;
    const int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    int reason;
    if (fd < 0) return true;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    memset(&at, 0, sizeof at);
    at.sun_family = AF_UNIX;
    memcpy(at.sun_path + 1, name, n); /* a zero before it: an abstract name */
    for (; rest > 0; rest /= 10)
        if (port >= rest) at.sun_path[1 + n++] = (char)('0' + port / rest % 10);
    n += offsetof(struct sockaddr_un, sun_path) + 1;
    reason = bind(fd, (const struct sockaddr *)&at, (socklen_t)n) == 0 ? 0 : errno;
    if (reason) {
        close(fd);
        return reason != EADDRINUSE;
    }
    if (*held >= 0) close(*held);
    *held = fd;
    return true;
}
#else
CDP__PRIVATE bool cdp__port_claim(int32_t port, int32_t *held) {
    (void)port;
    (void)held;
    return true;
}
#endif

/* Returns a port, or -errno. *held: a descriptor to close in the end, or -1, as before the first
   call. */
CDP__PRIVATE int32_t cdp__free_port(const cdp_os *os, int32_t *held) {
    int tries = 0;
    for (; tries < 100; ++tries) {
        const int32_t port = cdp__port_any(os);
        if (port < 0 || cdp__port_claim(port, held)) return port;
    }
    return -EADDRINUSE;
}

#endif /* CDP_SRC_OS_FREE_PORT_H */
