/* store/number.h - decimal text (pure)

   Knows: decimal text. Promises: no overflow. */
#ifndef CDP_SRC_STORE_NUMBER_H
#define CDP_SRC_STORE_NUMBER_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/utf8.h"
#include "../text/format.h"
#include "../base/text.h"

/* Accepts what C++'s stoll accepts: leading blanks, a sign, digits; ignores anything after that. */
CDP__PRIVATE bool cdp__number_parse(const uint8_t *p, uint64_t n, int64_t *out) {
    const uint64_t limit = (uint64_t)INT64_MAX;
    uint64_t v = 0, i = 0, start;
    bool negative = false;
    while (i < n && (p[i] == ' ' || (p[i] >= 9 && p[i] <= 13)))
        ++i;
    if (i < n && (p[i] == '-' || p[i] == '+')) negative = p[i++] == '-';
    for (start = i; i < n && p[i] >= '0' && p[i] <= '9'; ++i) {
        const uint64_t digit = (uint64_t)(p[i] - '0');
        if (v > (limit + negative - digit) / 10) return false;
        v = v * 10 + digit;
    }
    if (i == start) return false;
    *out = (int64_t)(negative ? 0 - v : v); /* two's complement, on all supported platforms */
    return true;
}

/* Formats a number; `dst` has room for 24 bytes. Returns the length. */
CDP__PRIVATE uint64_t cdp__number_text(int64_t v, char *dst) {
    cdp__text t = cdp__text_of(dst, 24);
    cdp__text_number(&t, v < 0 ? 0 - (uint64_t)v : (uint64_t)v, v < 0, 10);
    return cdp__text_end(&t);
}

/* A key as printed in errors: printable and truncated. */
typedef struct cdp__key_text {
    char at[84];
} cdp__key_text;

CDP__PRIVATE const char *cdp__key_print(cdp__key_text *t, cdp_bytes key) {
    cdp__text_foreign(t->at, 81, key.data, key.bytes);
    if (key.bytes > 80) memcpy(t->at + strlen(t->at), "...", 4);
    return t->at;
}

/* The error for a value that is no number; the same in every store. */
CDP__PRIVATE cdp_status cdp__store_no_number(cdp_bytes key) {
    cdp__key_text t;
    return cdp__fail(
        CDP_ERR_INVALID, "the key \"%s\" holds no number to add to", cdp__key_print(&t, key));
}

#endif /* CDP_SRC_STORE_NUMBER_H */
