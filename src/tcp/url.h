/* tcp/url.h - the address of a job as a text (pure)

   Knows: the three forms of a job's URL. Promises: an invalid text is refused completely. */
#ifndef CDP_SRC_TCP_URL_H
#define CDP_SRC_TCP_URL_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../store/addr.h"

#ifndef CDP_NO_ENV

typedef enum cdp__url_kind {
    CDP__URL_ENV,
    CDP__URL_TCP,
    CDP__URL_FILE
} cdp__url_kind;

typedef struct cdp__url {
    cdp__url_kind kind;
    char host[1024]; /* or a path */
    uint16_t port;
    bool has_rank, has_size;
    uint32_t rank, world_size;
    char backend[32];
} cdp__url;

/* Parses a number of the query; NULL: it is none, or a second one. */
CDP__PRIVATE const char *cdp__url_number(const char *p, uint32_t *number, bool *has) {
    if (*has) return NULL;
    *has = true;
    return cdp__addr_decimal(p, 65535, number);
}

CDP__PRIVATE const char *cdp__url_name(const char *p, char *name, size_t room) {
    const size_t n = strcspn(p, "&");
    if (name[0] || !n || n >= room) return NULL;
    memcpy(name, p, n);
    return p + n;
}

/* Parses "rank=R&world_size=N&backend=NAME", in any order. */
CDP__PRIVATE bool cdp__url_query(const char *p, cdp__url *u) {
    while (*p) {
        if (strncmp(p, "rank=", 5) == 0)
            p = cdp__url_number(p + 5, &u->rank, &u->has_rank);
        else if (strncmp(p, "world_size=", 11) == 0)
            p = cdp__url_number(p + 11, &u->world_size, &u->has_size);
        else if (strncmp(p, "backend=", 8) == 0)
            p = cdp__url_name(p + 8, u->backend, sizeof u->backend);
        else
            return false;
        if (!p || (*p && *p != '&') || (*p && !*++p)) return false;
    }
    return true;
}

CDP__PRIVATE bool cdp__url_tcp(cdp__url *u) {
    const bool bracket = u->host[0] == '[';
    char *end = bracket ? strchr(u->host, ']') : strrchr(u->host, ':');
    const char *p = end && bracket ? end + 1 : end;
    uint32_t port = 0;
    if (!p || *p != ':' || !(p = cdp__addr_decimal(p + 1, 65535, &port)) || *p || !port)
        return false;
    *end = 0;
    if (bracket) memmove(u->host, u->host + 1, (size_t)(end - u->host));
    u->port = (uint16_t)port;
    return u->host[0] && strlen(u->host) < 256 && (bracket || !strchr(u->host, ':'))
        && !strpbrk(u->host, "/ []");
}

CDP__PRIVATE cdp_status cdp__url_parse(const char *url, cdp__url *u) {
    static const char *const schemes[] = {"env://", "tcp://", "file://"};
    uint32_t k = 0;
    const char *rest, *query;
    bool good;
    memset(u, 0, sizeof *u);
    while (k < 3 && strncmp(url, schemes[k], strlen(schemes[k])) != 0)
        ++k;
    if (k == 3)
        return cdp__fail(CDP_ERR_INVALID,
            "'%s' begins neither with env:// nor with tcp:// nor with file://", url);
    u->kind = (cdp__url_kind)k;
    rest = url + strlen(schemes[k]);
    query = strchr(rest, '?');
    if (!query) query = rest + strlen(rest);
    if ((uint64_t)(query - rest) >= sizeof u->host)
        return cdp__fail(
            CDP_ERR_INVALID, "a url is longer than %u characters", (unsigned)sizeof u->host);
    memcpy(u->host, rest, (size_t)(query - rest));
    if (u->kind == CDP__URL_ENV)
        good = !u->host[0];
    else if (u->kind == CDP__URL_TCP)
        good = cdp__url_tcp(u);
    else
        good = u->host[0] == '/';
    if (!good)
        return cdp__fail(CDP_ERR_INVALID,
            "'%s' is none of env://, tcp://HOST:PORT, tcp://[IPV6]:PORT, file:///PATH", url);
    if (*query && !cdp__url_query(query + 1, u))
        return cdp__fail(CDP_ERR_INVALID,
            "'%s': only rank=R, world_size=N and backend=NAME are allowed after the ?, joined by &",
            url);
    return CDP_OK;
}

#endif /* CDP_NO_ENV */

#endif /* CDP_SRC_TCP_URL_H */
