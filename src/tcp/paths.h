/* tcp/paths.h - which addresses of a peer to try, and in what order (pure)

   Knows: addresses of this rank and of a peer. Promises: addresses on a shared network come
   first. */
#ifndef CDP_SRC_TCP_PATHS_H
#define CDP_SRC_TCP_PATHS_H

#include "../base/config.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../store/addr.h"

#define CDP__ADDRS 12u /* published by a rank, at most */
#define CDP__PATHS 16u /* tried for a peer, at most */

CDP__PRIVATE bool cdp__addr_loopback(const cdp_addr *a) {
    static const uint8_t one[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
    return a->family == 4 ? a->ip[0] == 127 : memcmp(a->ip, one, 16) == 0;
}

CDP__PRIVATE bool cdp__addr_link_local(const cdp_addr *a) {
    return a->family == 6 && a->ip[0] == 0xfe && (a->ip[1] & 0xc0) == 0x80;
}

/* True for the address that means all interfaces. */
CDP__PRIVATE bool cdp__addr_any(const cdp_addr *a) {
    static const uint8_t none[16] = {0};
    return memcmp(a->ip, none, a->family == 4 ? 4 : 16) == 0;
}

/* The number of leading bits that two addresses have in common. */
CDP__PRIVATE uint32_t cdp__addr_common(const cdp_addr *a, const cdp_addr *b) {
    const uint32_t bits = a->family == 4 ? 32 : 128;
    uint32_t i = 0;
    if (a->family != b->family) return 0;
    while (i < bits && !((a->ip[i / 8] ^ b->ip[i / 8]) >> (7 - i % 8) & 1))
        ++i;
    return i;
}

/* Parses a list like "10.0.0.1:4711,[fd00::1]:4711". Returns the number of addresses; 0 if it is
   invalid. */
CDP__PRIVATE uint32_t cdp__addrs_parse(
    const char *text, uint64_t bytes, cdp_addr *out, uint32_t max) {
    uint64_t at = 0;
    uint32_t n = 0;
    while (at < bytes && n < max) {
        char one[80];
        uint64_t end = at;
        while (end < bytes && text[end] != ',')
            ++end;
        if (end - at >= sizeof one) return 0;
        memcpy(one, text + at, (size_t)(end - at));
        one[end - at] = 0;
        if (!cdp__addr_parse(one, &out[n++])) return 0;
        at = end + 1;
    }
    return n;
}

CDP__PRIVATE void cdp__addrs_text(const cdp_addr *a, uint32_t n, char *dst, uint64_t size) {
    cdp__text t = cdp__text_of(dst, size);
    char one[80];
    uint32_t i;
    dst[0] = 0;
    for (i = 0; i < n; ++i) {
        cdp__addr_text(&a[i], one, sizeof one);
        if (t.used + strlen(one) + 2 < size) cdp__text_add(&t, i ? ",%s" : "%s", one);
    }
}

/* The cost of trying an address; lower is better. In order: the same network; other networks, by
   common leading bits; link-local addresses; addresses that most likely mean another host: one
   that this host has, too (every host has its own docker0), and loopback. */
CDP__PRIVATE uint32_t cdp__path_cost(
    const cdp_addr *mine, uint32_t n, const cdp_addr *a, bool same_machine) {
    uint32_t i, common = 0;
    for (i = 0; i < n; ++i)
        common = (uint32_t)cdp__max(common, cdp__addr_common(&mine[i], a));
    if (same_machine) return 0;
    if (cdp__addr_loopback(a)) return 2000;
    if (common == (a->family == 4 ? 32u : 128u)) return 1000;
    if (cdp__addr_link_local(a)) return 500;
    if (common >= (a->family == 4 ? 24u : 64u)) return 100;
    return 300 - common;
}

/* Selects the addresses of a peer to connect to, the most promising first. Zone numbers of
   link-local addresses differ from machine to machine, so such an address is tried in every zone of
   this machine. */
CDP__PRIVATE uint32_t cdp__paths(const cdp_addr *mine, uint32_t n, const cdp_addr *theirs,
    uint32_t k, cdp_addr out[CDP__PATHS]) {
    uint32_t cost[CDP__PATHS], i, j, count = 0;
    bool same = n > 0;
    for (i = 0; i < k && same; ++i) {
        for (j = 0; j < n && memcmp(mine[j].ip, theirs[i].ip, 16) != 0; ++j) {
        }
        same = j < n;
    }
    for (i = 0; i < k; ++i) {
        const bool zones = cdp__addr_link_local(&theirs[i]) && n && !same;
        for (j = 0; j < (zones ? n : 1) && count < CDP__PATHS; ++j) {
            uint32_t at = count, c = cdp__path_cost(mine, n, &theirs[i], same);
            if (zones && !cdp__addr_link_local(&mine[j])) continue;
            for (; at && cost[at - 1] > c; --at) {
                cost[at] = cost[at - 1];
                out[at] = out[at - 1];
            }
            cost[at] = c;
            out[at] = theirs[i];
            if (zones) out[at].scope = mine[j].scope;
            ++count;
        }
    }
    if (!count && k) out[count++] = theirs[0];
    return count;
}

/* The cost class of an address, without its common bits. */
CDP__PRIVATE uint32_t cdp__path_class(const cdp_addr *mine, uint32_t n, const cdp_addr *a) {
    const uint32_t cost = cdp__path_cost(mine, n, a, false);
    return cost > 100 && cost < 500 ? 300 : cost;
}

/* With several connections, rotates the equally good addresses at the front, so that the
   connections use different ones. Only addresses of one IP version rotate, because those of the
   other one are often of the same interfaces. */
CDP__PRIVATE void cdp__paths_turn(
    const cdp_addr *mine, uint32_t n, cdp_addr at[CDP__PATHS], uint32_t count, uint32_t times) {
    uint32_t same = 1;
    while (same < count && at[same].family == at[0].family
        && cdp__path_class(mine, n, &at[same]) == cdp__path_class(mine, n, &at[0]))
        ++same;
    for (times %= same; times; --times) {
        const cdp_addr first = at[0];
        memmove(at, at + 1, (same - 1) * sizeof *at);
        at[same - 1] = first;
    }
}

#if defined(CDP_NO_JOB_KEY) && !defined(CDP_NO_MAC)
#define CDP_NO_MAC
#endif

#endif /* CDP_SRC_TCP_PATHS_H */
