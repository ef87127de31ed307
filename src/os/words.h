/* os/words.h - error texts of the system, and the date

   Knows: errors of the C library and of Winsock, the system's calendar. Promises: a text for every
   errno. */
#ifndef CDP_SRC_OS_WORDS_H
#define CDP_SRC_OS_WORDS_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"

#ifdef CDP_NO_OS
CDP__PRIVATE const char *cdp__os_error_text(int err) {
    (void)err;
    return "error of the system";
}

/* There is no calendar. */
CDP__PRIVATE uint64_t cdp__os_date_us(void) {
    return 0;
}

CDP__PRIVATE uint32_t cdp__os_user_number(void) {
    return 0;
}

CDP__PRIVATE uint32_t cdp__os_parent_number(void) {
    return 0;
}

CDP__PRIVATE const char *cdp__os_temporary(void) {
    return ".";
}
#elif defined(_WIN32)
/* A Winsock error as an errno value, with a text: some C libraries have none for these errors. */
typedef struct cdp__os_reason {
    int said, err;
    const char *text;
} cdp__os_reason;

CDP__PRIVATE const cdp__os_reason *cdp__os_reason_at(uint32_t i) {
    static const cdp__os_reason known[] = {
        {WSAEACCES, EACCES, "permission denied"},
        {WSAEADDRINUSE, EADDRINUSE, "address in use"},
        {WSAEADDRNOTAVAIL, EADDRNOTAVAIL, "no such address on this machine"},
        {WSAEAFNOSUPPORT, EAFNOSUPPORT, "this kind of address is not supported"},
        {WSAECONNABORTED, ECONNABORTED, "connection ended by this machine"},
        {WSAECONNREFUSED, ECONNREFUSED, "connection refused"},
        {WSAECONNRESET, ECONNRESET, "connection reset by the other end"},
        {WSAEHOSTUNREACH, EHOSTUNREACH, "no route to that machine"},
        {WSAEINTR, EINTR, "interrupted"},
        {WSAEINVAL, EINVAL, "invalid argument"},
        {WSAEMFILE, EMFILE, "too many sockets"},
        {WSAENETDOWN, ENETDOWN, "the network is down"},
        {WSAENETRESET, ENETRESET, "connection lost"},
        {WSAENETUNREACH, ENETUNREACH, "network unreachable"},
        {WSAENOBUFS, ENOBUFS, "no room for more in the system"},
        {WSAENOTCONN, ENOTCONN, "not connected"},
        {WSAENOTSOCK, ENOTSOCK, "not a socket"},
        {WSAESHUTDOWN, EPIPE, "connection was ended here"},
        {WSAETIMEDOUT, ETIMEDOUT, "timed out"},
        {WSAEWOULDBLOCK, EAGAIN, "not now"},
    };
    return i < sizeof known / sizeof known[0] ? &known[i] : NULL;
}

CDP__PRIVATE const char *cdp__os_error_text(int err) {
    const cdp__os_reason *r;
    uint32_t i;
    for (i = 0; (r = cdp__os_reason_at(i)) != NULL; ++i)
        if (r->err == err) return r->text;
    return strerror(err);
}

/* Windows counts units of 100 ns since 1601. */
CDP__PRIVATE uint64_t cdp__os_date_us(void) {
    FILETIME t;
    GetSystemTimeAsFileTime(&t);
    return ((uint64_t)t.dwHighDateTime << 32 | t.dwLowDateTime) / 10 - 11644473600000000ull;
}

/* Not needed: on Windows every user has a temporary folder of their own. */
CDP__PRIVATE uint32_t cdp__os_user_number(void) {
    return 0;
}

CDP__PRIVATE uint32_t cdp__os_parent_number(void) {
    return 0;
}

CDP__PRIVATE const char *cdp__os_temporary(void) {
    const char *dir = getenv("TEMP");
    return dir && *dir ? dir : ".";
}
#else
CDP__PRIVATE const char *cdp__os_error_text(int err) {
    return strerror(err);
}

CDP__PRIVATE uint32_t cdp__os_user_number(void) {
    return (uint32_t)getuid();
}

CDP__PRIVATE uint32_t cdp__os_parent_number(void) {
    return (uint32_t)getppid();
}

CDP__PRIVATE const char *cdp__os_temporary(void) {
    const char *dir = getenv("TMPDIR");
    return dir && *dir ? dir : "/tmp";
}

CDP__PRIVATE uint64_t cdp__os_date_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}
#endif

#endif /* CDP_SRC_OS_WORDS_H */
