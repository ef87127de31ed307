/* os/windows.h - memory, clock, random numbers, sockets

   Knows: Win32 and Winsock. Promises: what cdp_os says of memory, time, sockets and addresses;
   errors are negative errno values. A socket fits an int32_t because Windows' handles are small
   numbers. */
#ifndef CDP_SRC_OS_WINDOWS_H
#define CDP_SRC_OS_WINDOWS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "words.h"
#include "../base/text.h"
#include "addresses.h"

#ifndef CDP_NO_OS /* what the default cdp_os is made of, to the end of >>os-linux */

#ifdef _WIN32
CDP__PRIVATE void *cdp__os_alloc(void *user, uint64_t bytes) {
    (void)user;
    return bytes > SIZE_MAX ? NULL : _aligned_malloc((size_t)bytes, 64);
}

CDP__PRIVATE void cdp__os_release(void *user, void *p) {
    (void)user;
    _aligned_free(p);
}

CDP__PRIVATE uint64_t cdp__os_now(void *user) {
    LARGE_INTEGER ticks, per_s;
    uint64_t t, f;
    (void)user;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&per_s);
    t = (uint64_t)ticks.QuadPart;
    f = (uint64_t)per_s.QuadPart;
    return t / f * 1000000000ull + t % f * 1000000000ull / f;
}

CDP__PRIVATE cdp_status cdp__os_random(void *user, void *dst, uint64_t bytes) {
    uint8_t *p = (uint8_t *)dst;
    (void)user;
    while (bytes) {
        const ULONG n = (ULONG)cdp__min(bytes, 1u << 20);
        if (BCryptGenRandom(NULL, p, n, BCRYPT_USE_SYSTEM_PREFERRED_RNG) != 0)
            return cdp__fail(CDP_ERR_IO, "the system gives no random bytes");
        p += n;
        bytes -= n;
    }
    return CDP_OK;
}

/* Waits below one millisecond are not slept, because Windows would sleep longer. */
CDP__PRIVATE void cdp__os_sleep_until(void *user, uint64_t deadline_ns) {
    const uint64_t now = cdp__os_now(user), left = deadline_ns > now ? deadline_ns - now : 0;
    if (left >= CDP__MS)
        Sleep((DWORD)cdp__min(left / CDP__MS, 1u << 30));
    else if (left)
        SwitchToThread();
}

/* The last Winsock error, as an errno value. */
CDP__PRIVATE int cdp__os_socket_error(void) {
    const int said = WSAGetLastError();
    const cdp__os_reason *r;
    uint32_t i;
    for (i = 0; (r = cdp__os_reason_at(i)) != NULL; ++i)
        if (r->said == said) return r->err;
    return EIO;
}

/* Winsock must be started before its first use. It is never stopped: it ends with the process. */
static BOOL CALLBACK cdp__os_start_winsock(PINIT_ONCE once, PVOID arg, PVOID *out) {
    WSADATA data;
    (void)once;
    (void)arg;
    (void)out;
    return WSAStartup(MAKEWORD(2, 2), &data) == 0;
}

CDP__PRIVATE bool cdp__os_winsock(void) {
    static INIT_ONCE once = INIT_ONCE_STATIC_INIT;
    return InitOnceExecuteOnce(&once, cdp__os_start_winsock, NULL, NULL) != 0;
}

/* Gives a socket the options that the library expects: non-blocking, not inherited, no Nagle,
   and a keepalive that detects a host that disappears. Returns 0 or a negative errno. */
CDP__PRIVATE CDP__COLD int cdp__os_prepare_socket(SOCKET s) {
    const DWORD on = 1, idle_s = 10, every_s = 5;
    u_long set = 1;
    if (ioctlsocket(s, (long)FIONBIO, &set) != 0) return -cdp__os_socket_error();
    SetHandleInformation((HANDLE)s, HANDLE_FLAG_INHERIT, 0);
    setsockopt(s, SOL_SOCKET, SO_KEEPALIVE, (const char *)&on, sizeof on);
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, (const char *)&on, sizeof on);
    setsockopt(s, IPPROTO_TCP, 3, (const char *)&idle_s, sizeof idle_s);    /* TCP_KEEPIDLE */
    setsockopt(s, IPPROTO_TCP, 17, (const char *)&every_s, sizeof every_s); /* TCP_KEEPINTVL */
    return 0;
}

/* Shared memory and pipes are handles, too, but are closed with another function than sockets. */
CDP__PRIVATE void cdp__os_close(void *user, int32_t fd) {
    (void)user;
    if (closesocket((SOCKET)fd) != 0 && WSAGetLastError() == WSAENOTSOCK)
        CloseHandle((HANDLE)(uintptr_t)fd);
}

/* Prepares a socket and returns it as a descriptor, or closes it and returns a negative errno. */
CDP__PRIVATE int32_t cdp__os_descriptor(SOCKET s) {
    int err;
    if (s == INVALID_SOCKET) return -cdp__os_socket_error();
    err = s <= INT32_MAX ? cdp__os_prepare_socket(s) : -EMFILE;
    if (err) closesocket(s);
    return err ? err : (int32_t)s;
}

CDP__PRIVATE int32_t cdp__os_socket(int family, int type) {
    if (!cdp__os_winsock()) return -ENETDOWN;
    return cdp__os_descriptor(
        WSASocketW(family, type, 0, NULL, 0, WSA_FLAG_OVERLAPPED | WSA_FLAG_NO_HANDLE_INHERIT));
}

CDP__PRIVATE int32_t cdp__os_adopt(void *user, int32_t fd) {
    (void)user;
    return cdp__os_prepare_socket((SOCKET)fd);
}

CDP__PRIVATE int32_t cdp__os_local_addr(void *user, int32_t fd, cdp_addr *out) {
    cdp__sockaddr s;
    socklen_t len = sizeof s;
    (void)user;
    if (getsockname((SOCKET)fd, &s.any, &len) != 0) return -cdp__os_socket_error();
    cdp__os_from_native(&s, out);
    return 0;
}

/* Closes a socket for which a call failed, and returns the reason as a negative errno. */
CDP__PRIVATE int32_t cdp__os_give_up(int32_t fd) {
    const int err = cdp__os_socket_error();
    closesocket((SOCKET)fd);
    return -err;
}

/* SO_REUSEADDR is not set: on Windows it would let two programs listen at one port. */
CDP__PRIVATE CDP__COLD int32_t cdp__os_listen(void *user, const cdp_addr *at, cdp_addr *bound) {
    cdp__sockaddr s;
    const socklen_t len = cdp__os_to_native(at, &s);
    const DWORD on = 1, off = 0;
    const int32_t fd = cdp__os_socket(s.any.sa_family, SOCK_STREAM);
    if (fd < 0) return fd;
    setsockopt((SOCKET)fd, SOL_SOCKET, SO_EXCLUSIVEADDRUSE, (const char *)&on, sizeof on);
    if (at->family == 6) /* let "::" accept IPv4, too */
        setsockopt((SOCKET)fd, IPPROTO_IPV6, IPV6_V6ONLY, (const char *)&off, sizeof off);
    if (bind((SOCKET)fd, &s.any, len) != 0 || listen((SOCKET)fd, SOMAXCONN) != 0)
        return cdp__os_give_up(fd);
    cdp__os_local_addr(user, fd, bound);
    return fd;
}

CDP__PRIVATE int32_t cdp__os_accept(void *user, int32_t listener, cdp_addr *from) {
    cdp__sockaddr s;
    socklen_t len;
    SOCKET made;
    (void)user;
    do {
        len = sizeof s;
        made = accept((SOCKET)listener, &s.any, &len);
    } while (made == INVALID_SOCKET && WSAGetLastError() == WSAECONNRESET);
    if (made != INVALID_SOCKET) cdp__os_from_native(&s, from);
    return cdp__os_descriptor(made);
}

CDP__PRIVATE CDP__COLD int32_t cdp__os_connect(void *user, const cdp_addr *to) {
    cdp__sockaddr s;
    const socklen_t len = cdp__os_to_native(to, &s);
    const int32_t fd = cdp__os_socket(s.any.sa_family, SOCK_STREAM);
    (void)user;
    if (fd < 0) return fd;
    if (connect((SOCKET)fd, &s.any, len) == 0 || WSAGetLastError() == WSAEWOULDBLOCK) return fd;
    return cdp__os_give_up(fd);
}

CDP__PRIVATE int32_t cdp__os_connect_result(void *user, int32_t fd) {
    int err = 0;
    cdp__sockaddr s;
    socklen_t len = sizeof err, slen = sizeof s;
    (void)user;
    if (getsockopt((SOCKET)fd, SOL_SOCKET, SO_ERROR, (char *)&err, &len) != 0)
        return -cdp__os_socket_error();
    WSASetLastError(err);
    if (err) return -cdp__os_socket_error();
    return getpeername((SOCKET)fd, &s.any, &slen) == 0 ? 0 : -cdp__os_socket_error();
}

CDP__PRIVATE DWORD cdp__os_buffers(const cdp_iov *v, uint32_t n, WSABUF *out) {
    DWORD i;
    for (i = 0; i < n && i < CDP__IOV_MAX; ++i) {
        out[i].buf = (char *)v[i].data;
        out[i].len = (ULONG)cdp__min(v[i].bytes, 1u << 30);
        if (out[i].len < v[i].bytes) return i + 1; /* the socket buffer is full */
    }
    return i;
}

CDP__PRIVATE int64_t cdp__os_send(void *user, int32_t fd, const cdp_iov *v, uint32_t n) {
    WSABUF b[CDP__IOV_MAX];
    DWORD moved = 0;
    (void)user;
    if (WSASend((SOCKET)fd, b, cdp__os_buffers(v, n, b), &moved, 0, NULL, NULL) == 0)
        return (int64_t)moved;
    return WSAGetLastError() == WSAEWOULDBLOCK ? 0 : -cdp__os_socket_error();
}

CDP__PRIVATE int64_t cdp__os_recv(void *user, int32_t fd, const cdp_iov *v, uint32_t n) {
    WSABUF b[CDP__IOV_MAX];
    DWORD moved = 0, flags = 0;
    (void)user;
    if (WSARecv((SOCKET)fd, b, cdp__os_buffers(v, n, b), &moved, &flags, NULL, NULL) == 0)
        return moved ? (int64_t)moved : CDP_IO_EOF;
    return WSAGetLastError() == WSAEWOULDBLOCK ? 0 : -cdp__os_socket_error();
}

CDP__PRIVATE void cdp__os_end_sending(void *user, int32_t fd) {
    (void)user;
    (void)shutdown((SOCKET)fd, SD_SEND); /* fails on a broken connection, harmlessly */
}

/* A datagram socket connected to itself: no other socket can send to it, and WSAPoll can wait
   for it together with other sockets. */
CDP__PRIVATE int32_t cdp__os_wake_open(void *user, int32_t fd[2]) {
    cdp__sockaddr s;
    socklen_t len = sizeof s.v4;
    const int32_t made = cdp__os_socket(AF_INET, SOCK_DGRAM);
    (void)user;
    if (made < 0) return made;
    memset(&s, 0, sizeof s);
    s.v4.sin_family = AF_INET;
    s.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind((SOCKET)made, &s.any, len) != 0 || getsockname((SOCKET)made, &s.any, &len) != 0
        || connect((SOCKET)made, &s.any, len) != 0)
        return cdp__os_give_up(made);
    fd[0] = fd[1] = made;
    return 0;
}

CDP__PRIVATE void cdp__os_wake_set(void *user, int32_t fd) {
    (void)user;
    (void)send((SOCKET)fd, "", 1, 0); /* if the queue is full, the reader wakes anyway */
}

CDP__PRIVATE void cdp__os_wake_clear(void *user, int32_t fd) {
    char sink[8];
    (void)user;
    while (recv((SOCKET)fd, sink, sizeof sink, 0) > 0) {
    }
}
#endif /* Windows */

#endif /* CDP_NO_OS */

#endif /* CDP_SRC_OS_WINDOWS_H */
