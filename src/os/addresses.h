/* os/addresses.h - socket addresses on POSIX and Windows

   Knows: socket address structures of POSIX and Winsock, and getaddrinfo(). Promises: the same
   addresses on all systems. */
#ifndef CDP_SRC_OS_ADDRESSES_H
#define CDP_SRC_OS_ADDRESSES_H

#include "../base/config.h"
#include "os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"

#ifndef CDP_NO_OS /* what the default cdp_os is made of, to the end of >>os/linux */
typedef union cdp__sockaddr {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_storage room;
} cdp__sockaddr;

CDP__PRIVATE socklen_t cdp__os_to_native(const cdp_addr *a, cdp__sockaddr *out) {
    memset(out, 0, sizeof *out);
    if (a->family == 6) {
        out->v6.sin6_family = AF_INET6;
        out->v6.sin6_port = htons(a->port);
        out->v6.sin6_scope_id = a->scope;
        memcpy(&out->v6.sin6_addr, a->ip, 16);
        return sizeof out->v6;
    }
    out->v4.sin_family = AF_INET;
    out->v4.sin_port = htons(a->port);
    memcpy(&out->v4.sin_addr, a->ip, 4);
    return sizeof out->v4;
}

CDP__PRIVATE void cdp__os_from_native(const cdp__sockaddr *s, cdp_addr *out) {
    memset(out, 0, sizeof *out);
    /* an IPv4 address, as a dual-stack socket reports it */
    if (s->any.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&s->v6.sin6_addr)) {
        out->family = 4;
        out->port = ntohs(s->v6.sin6_port);
        memcpy(out->ip, (const uint8_t *)&s->v6.sin6_addr + 12, 4);
    } else if (s->any.sa_family == AF_INET6) {
        out->family = 6;
        out->port = ntohs(s->v6.sin6_port);
        out->scope = s->v6.sin6_scope_id;
        memcpy(out->ip, &s->v6.sin6_addr, 16);
    } else if (s->any.sa_family == AF_INET) {
        out->family = 4;
        out->port = ntohs(s->v4.sin_port);
        memcpy(out->ip, &s->v4.sin_addr, 4);
    }
}

/* An address with a zone ("fe80::1%eth0") is resolved without asking a name server. */
CDP__PRIVATE CDP__COLD int32_t cdp__os_getaddrinfo(const char *host, cdp_addr *out, uint32_t max) {
    struct addrinfo hints, *list = NULL, *it;
    uint32_t n = 0;
    int rc;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = strchr(host, ':') ? AI_NUMERICHOST : 0;
    rc = getaddrinfo(host, NULL, &hints, &list);
    /* EAI_AGAIN: no name server answered, so the name may still exist */
    if (rc != 0) return rc == EAI_AGAIN ? -EAGAIN : -ENOENT;
    for (it = list; it && n < max; it = it->ai_next) {
        cdp__sockaddr s;
        if ((it->ai_family != AF_INET && it->ai_family != AF_INET6) || it->ai_addrlen > sizeof s)
            continue;
        memcpy(&s, it->ai_addr, it->ai_addrlen);
        cdp__os_from_native(&s, &out[n++]);
    }
    freeaddrinfo(list);
    return n ? (int32_t)n : -ENOENT;
}

/* True if `name` begins with one of the comma-separated words of `list`. A leading ^ inverts the
   result. */
CDP__PRIVATE bool cdp__interface_chosen(const char *list, const char *name) {
    const bool others = list && *list == '^';
    const char *word = list && others ? list + 1 : list, *end;
    for (; word && *word; word = *end ? end + 1 : end) {
        for (end = word; *end && *end != ','; ++end) {
        }
        if (end > word && strncmp(name, word, (size_t)(end - word)) == 0) return !others;
    }
    return !list || others;
}

#endif /* CDP_NO_OS */

#endif /* CDP_SRC_OS_ADDRESSES_H */
