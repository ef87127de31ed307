/* text/utf8.h - characters of UTF-8 (pure)

   Knows: code points and their bytes. Promises: any bytes yield characters; reads and writes no
   byte outside what the caller gives. */
#ifndef CDP_SRC_TEXT_UTF8_H
#define CDP_SRC_TEXT_UTF8_H

#include "../base/config.h"
#include "../base/compiler.h"

#include <string.h>

/* Returns the next code point of a text that ends at `end`, '?' for each byte that is not valid
   UTF-8. */
CDP__PRIVATE uint32_t cdp__utf8_next(const uint8_t **at, const uint8_t *end) {
    /* by number of continuation bytes: the smallest code point that needs so many */
    static const uint32_t least[4] = {0, 0x80, 0x800, 0x10000};
    /* continuation bytes, by the upper five bits of the first byte; 4: not a first byte */
    static const uint8_t length[32] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4,
        4, 4, 4, 4, 1, 1, 1, 1, 2, 2, 3, 4};
    const uint8_t *p = *at;
    const uint32_t more = length[p[0] >> 3];
    uint32_t i, c = p[0] & (more ? 0x3fu >> more : 0x7fu);
    *at = p + 1;
    if (more == 4 || more >= (uint64_t)(end - p)) return '?';
    for (i = 1; i <= more; ++i) {
        if ((p[i] & 0xc0) != 0x80) return '?';
        c = c << 6 | (p[i] & 0x3fu);
    }
    if (c < least[more] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return '?';
    *at = p + more + 1;
    return c;
}

/* Writes a code point as 1 to 4 bytes, and returns how many; '?' for what is no character. */
CDP__PRIVATE uint32_t cdp__utf8_put(uint32_t c, char out[4]) {
    uint32_t more, i;
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) c = '?';
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    more = c < 0x800 ? 1u : 2u + (c >= 0x10000);
    for (i = more; i; --i, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)((0xf0u << (3 - more) & 0xff) | c); /* as many ones as bytes, then a zero */
    return more + 1;
}

/* Copies a text that another process has written. Control characters, which could upset a
   terminal, and what is not valid UTF-8 become '?'. Characters that do not fit are left out. */
CDP__PRIVATE void cdp__text_foreign(char *out, uint64_t size, const void *text, uint64_t bytes) {
    const uint8_t *at = (const uint8_t *)text, *end = bytes ? at + bytes : at;
    uint64_t used = 0;
    while (at != end) {
        const uint8_t *from = at;
        const uint32_t c = cdp__utf8_next(&at, end);
        const uint64_t n = (uint64_t)(at - from);
        const bool bad = c < 32 || (c >= 127 && c < 160) || c == '?';
        if (used + (bad ? 1 : n) >= size) break;
        if (bad)
            out[used++] = '?';
        else
            memcpy(out + used, from, (size_t)n);
        used += bad ? 0 : n;
    }
    out[used] = 0;
}

/* cdp__text_foreign() for an array of `most` bytes whose text may end before, with a zero. */
CDP__PRIVATE void cdp__text_foreign_in(char *out, uint64_t size, const char *text, uint64_t most) {
    uint64_t n = 0;
    while (n < most && text[n])
        ++n;
    cdp__text_foreign(out, size, text, n);
}

#endif /* CDP_SRC_TEXT_UTF8_H */
