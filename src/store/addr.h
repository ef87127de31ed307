/* store/addr.h - literal addresses (pure)

   Knows: the text forms of IP addresses. Promises: only canonical forms are accepted. */
#ifndef CDP_SRC_STORE_ADDR_H
#define CDP_SRC_STORE_ADDR_H

#include "../base/config.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"

/* Parsers return a pointer to the first character that they did not consume, or NULL. */

/* Refuses leading zeros: some programs read "010" as 8, others as 10. */
CDP__PRIVATE const char *cdp__addr_decimal(const char *p, uint32_t max, uint32_t *out) {
    const char *start = p;
    uint64_t v = 0;
    for (; *p >= '0' && *p <= '9'; ++p) {
        v = v * 10 + (uint64_t)(*p - '0');
        if (v > max) return NULL;
    }
    if (p == start || (*start == '0' && p > start + 1)) return NULL;
    *out = (uint32_t)v;
    return p;
}

CDP__PRIVATE const char *cdp__addr_ip4(const char *p, uint8_t *ip) {
    uint32_t i, v;
    for (i = 0; i < 4; ++i) {
        if (i && *p++ != '.') return NULL;
        p = cdp__addr_decimal(p, 255, &v);
        if (!p) return NULL;
        ip[i] = (uint8_t)v;
    }
    return p;
}

CDP__PRIVATE int32_t cdp__addr_hex(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* Parses one group of an IPv6 address, or a dotted IPv4 tail, which stands for two groups.
   *bytes: length of the result. */
CDP__PRIVATE const char *cdp__addr_ip6_group(
    const char *p, uint8_t *ip, uint32_t room, uint32_t *bytes) {
    uint32_t v = 0, digits = 0;
    if (room >= 4) {
        const char *q = cdp__addr_ip4(p, ip);
        if (q) {
            *bytes = 4;
            return q;
        }
    }
    for (; cdp__addr_hex(*p) >= 0; ++p) {
        v = v << 4 | (uint32_t)cdp__addr_hex(*p);
        if (++digits > 4) return NULL;
    }
    if (!digits || room < 2) return NULL;
    ip[0] = (uint8_t)(v >> 8);
    ip[1] = (uint8_t)v;
    *bytes = 2;
    return p;
}

CDP__PRIVATE const char *cdp__addr_ip6(const char *p, uint8_t *ip) {
    uint8_t got[16];
    uint32_t n = 0, gap = 99, bytes; /* gap: byte position of "::"; 99: there is none */
    if (p[0] == ':') {
        if (p[1] != ':') return NULL;
        p += 2;
        gap = 0;
    }
    while (n < 16 && cdp__addr_hex(*p) >= 0) {
        p = cdp__addr_ip6_group(p, got + n, 16 - n, &bytes);
        if (!p) return NULL;
        n += bytes;
        if (bytes == 4 || *p != ':' || n == 16) break;
        if (p[1] == ':') {
            if (gap != 99) return NULL;
            gap = n;
            p += 2;
        } else if (cdp__addr_hex(*++p) < 0) {
            return NULL;
        }
    }
    if (gap == 99 ? n != 16 : n > 14) return NULL;
    gap = gap == 99 ? 16 : gap;
    memset(ip, 0, 16);
    memcpy(ip, got, gap);
    memcpy(ip + 16 - (n - gap), got + gap, n - gap);
    return p;
}

/* True if `text` may name a host: not "http://node7", nor " node7", for which a resolver would be
   asked again and again. */
CDP__PRIVATE CDP__COLD bool cdp__host_plausible(const char *text) {
    const char *p;
    for (p = text; *p; ++p)
        if ((unsigned char)*p <= ' ' || strchr("/\\\"'@?#,;", *p)) return false;
    return p != text;
}

/* Parses "1.2.3.4", "1.2.3.4:80", "::1", "[::1]", "[::1]:80", "fe80::1%3". False for all other
   texts, including host names and interface names after %. Without a port in the text, out->port
   is 0. */
CDP__PRIVATE CDP__COLD bool cdp__addr_parse(const char *text, cdp_addr *out) {
    const bool bracket = *text == '[';
    uint32_t v = 0;
    const char *p;
    memset(out, 0, sizeof *out);
    p = bracket ? NULL : cdp__addr_ip4(text, out->ip);
    if (p) {
        out->family = 4;
    } else {
        p = cdp__addr_ip6(text + bracket, out->ip);
        if (p && *p == '%') {
            p = cdp__addr_decimal(p + 1, UINT32_MAX, &v);
            out->scope = v;
        }
        if (!p || (bracket && *p++ != ']')) return false;
        out->family = 6;
    }
    if (*p == ':' && (bracket || out->family == 4)) {
        p = cdp__addr_decimal(p + 1, 65535, &v);
        out->port = (uint16_t)v;
    }
    return p && !*p;
}

CDP__PRIVATE uint32_t cdp__addr_word(const cdp_addr *a, uint32_t i) {
    return (uint32_t)a->ip[2 * i] << 8 | a->ip[2 * i + 1];
}

/* Finds the longest run of two or more zero groups; the first of equal ones (RFC 5952). */
CDP__PRIVATE uint32_t cdp__addr_zeros(const cdp_addr *a, uint32_t *length) {
    uint32_t i, run = 0, best = 8;
    *length = 1;
    for (i = 0; i < 8; ++i) {
        run = cdp__addr_word(a, i) ? 0 : run + 1;
        if (run > *length) {
            *length = run;
            best = i + 1 - run;
        }
    }
    return best;
}

/* Formats as "1.2.3.4:80" or "[fe80::1%3]:80"; 64 bytes are enough for every address. Returns
   dst. */
CDP__PRIVATE const char *cdp__addr_text(const cdp_addr *a, char *dst, uint64_t size) {
    cdp__text t = cdp__text_of(dst, size);
    uint32_t i, run, zeros;
    if (a->family == 4) {
        cdp__text_add(&t, "%u.%u.%u.%u:%u", a->ip[0], a->ip[1], a->ip[2], a->ip[3], a->port);
        return dst;
    }
    if (a->family != 6) {
        cdp__text_add(&t, "(no address)");
        return dst;
    }
    zeros = cdp__addr_zeros(a, &run);
    cdp__text_add(&t, "[");
    for (i = 0; i < 8; ++i) {
        if (i == zeros) {
            cdp__text_add(&t, "::");
            i += run - 1;
        } else {
            cdp__text_add(&t, i && i != zeros + run ? ":%x" : "%x", cdp__addr_word(a, i));
        }
    }
    if (a->scope) cdp__text_add(&t, "%%%u", a->scope);
    cdp__text_add(&t, "]:%u", a->port);
    return dst;
}

/* True if a connection from `from` to this host's address `here` comes from this host: over
   loopback, or from the same address, which no other host can have. */
CDP__PRIVATE bool cdp__addr_is_here(const cdp_addr *from, const cdp_addr *here) {
    static const uint8_t mapped[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255},
                         loopback[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
    const bool v4_in_v6 = from->family == 6 && memcmp(from->ip, mapped, 12) == 0;
    if ((from->family == 4 || v4_in_v6) && from->ip[v4_in_v6 ? 12 : 0] == 127) return true;
    if (from->family == 6 && memcmp(from->ip, loopback, 16) == 0) return true;
    return from->family == here->family
        && memcmp(from->ip, here->ip, from->family == 4 ? 4 : 16) == 0;
}

#endif /* CDP_SRC_STORE_ADDR_H */
