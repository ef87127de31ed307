/* text/json_read.h - JSON, piece by piece (pure)

   Knows: the grammar of JSON, and the NaN and Infinity that Python writes. Promises: any bytes
   yield pieces or a reason; no recursion, no memory; at most 32 levels. */
#ifndef CDP_SRC_TEXT_JSON_READ_H
#define CDP_SRC_TEXT_JSON_READ_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "utf8.h"

#include <stdlib.h>
#include <string.h>

#define CDP__JSON_DEEP 32u   /* as many as cdp__json_reader.dicts has bits */
#define CDP__JSON_DIGITS 40u /* what further digits of a number say is lost */

typedef enum cdp__json_kind {
    CDP__JSON_BAD, /* this is no JSON: `why` says why, `at` says where */
    CDP__JSON_END, /* nothing follows the value */
    CDP__JSON_DICT,
    CDP__JSON_LIST,
    CDP__JSON_CLOSE, /* the end of the last dict or list that is open */
    CDP__JSON_KEY,   /* a text; a value follows */
    CDP__JSON_TEXT,
    CDP__JSON_WHOLE,
    CDP__JSON_REAL, /* also a whole number that has more than 63 bits */
    CDP__JSON_TRUE,
    CDP__JSON_FALSE,
    CDP__JSON_NULL
} cdp__json_kind;

typedef struct cdp__json_reader {
    const uint8_t *data;
    uint64_t bytes, at;
    const char *why;
    uint32_t depth, dicts; /* bit i of dicts: the i-th open container is a dict */
    bool value, first;     /* a value must follow, after a key or at the beginning; just opened */
    /* of the last piece */
    const uint8_t *text; /* KEY, TEXT: what stands between the quotes, not decoded */
    uint64_t length;     /* of that; the decoded text is not longer */
    bool escapes;        /* it has some, else it is as it stands */
    int64_t whole;
    double real;
} cdp__json_reader;

CDP__PRIVATE cdp__json_reader cdp__json_open(const void *data, uint64_t bytes) {
    cdp__json_reader r;
    memset(&r, 0, sizeof r);
    r.data = (const uint8_t *)data;
    r.bytes = bytes;
    r.value = true;
    return r;
}

CDP__PRIVATE cdp__json_kind cdp__json_bad(cdp__json_reader *r, const char *why) {
    r->why = why;
    return CDP__JSON_BAD;
}

/* The next byte that is no blank, which is not taken; 0: there is none. */
CDP__PRIVATE uint8_t cdp__json_look(cdp__json_reader *r) {
    for (; r->at < r->bytes; ++r->at) {
        const uint8_t c = r->data[r->at];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return c;
    }
    return 0;
}

CDP__PRIVATE bool cdp__json_word(cdp__json_reader *r, const char *word) {
    const uint64_t n = strlen(word);
    if (r->bytes - r->at < n || memcmp(r->data + r->at, word, (size_t)n) != 0) return false;
    r->at += n;
    return true;
}

CDP__PRIVATE int cdp__hex_digit(uint8_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The four digits of an escape; -1: they are not there. */
CDP__PRIVATE int32_t cdp__json_unit_at(const uint8_t *s, uint64_t bytes) {
    int32_t unit = 0;
    uint32_t i;
    for (i = 0; i < 4; ++i) {
        const int digit = i < bytes ? cdp__hex_digit(s[i]) : -1;
        if (digit < 0) return -1;
        unit = unit * 16 + digit;
    }
    return unit;
}

/* Takes a text, from its first quote on. */
CDP__PRIVATE cdp__json_kind cdp__json_take_text(cdp__json_reader *r, cdp__json_kind kind) {
    const uint64_t from = ++r->at;
    r->escapes = false;
    for (; r->at < r->bytes && r->data[r->at] != '"'; ++r->at) {
        const uint8_t c = r->data[r->at];
        if (c < 32) return cdp__json_bad(r, "a text has a control character");
        if (c != '\\') continue;
        r->escapes = true;
        if (++r->at == r->bytes) break;
        if (r->data[r->at] == 'u') {
            if (cdp__json_unit_at(r->data + r->at + 1, r->bytes - r->at - 1) < 0)
                return cdp__json_bad(r, "four hexadecimal digits are expected after \\u");
            r->at += 4;
        } else if (!r->data[r->at] || !strchr("\"\\/bfnrt", r->data[r->at]))
            return cdp__json_bad(r, "there is no such escape");
    }
    if (r->at >= r->bytes) return cdp__json_bad(r, "a text does not end");
    r->text = r->data + from;
    r->length = r->at++ - from;
    return kind;
}

/* Decodes one escape of a text that was taken, from the byte after the backslash on. */
CDP__PRIVATE uint32_t cdp__json_escape(const uint8_t **at, const uint8_t *end) {
    static const char from[] = "nrtbf", to[] = "\n\r\t\b\f";
    const uint8_t c = *(*at)++;
    const char *const known = strchr(from, c);
    uint32_t unit;
    int32_t low;
    if (c != 'u') return known ? (uint8_t)to[known - from] : c;
    unit = (uint32_t)cdp__json_unit_at(*at, 4);
    *at += 4;
    if (unit < 0xd800 || unit >= 0xdc00) return unit;
    if (end - *at < 6 || (*at)[0] != '\\' || (*at)[1] != 'u') return unit;
    low = cdp__json_unit_at(*at + 2, 4);
    if (low < 0xdc00 || low >= 0xe000) return unit;
    *at += 6;
    return 0x10000 + ((unit - 0xd800) << 10) + ((uint32_t)low - 0xdc00);
}

/* Writes the last key or text, decoded, to `out`, which has room for r->length bytes. Returns its
   length. What is no character, and a zero byte, become '?'. */
CDP__PRIVATE uint64_t cdp__json_decode(const cdp__json_reader *r, char *out) {
    const uint8_t *at = r->text, *const end = at + r->length;
    const char *const from = out;
    while (at < end) {
        uint32_t c = *at++;
        if (c != '\\') {
            *out++ = (char)c;
            continue;
        }
        c = cdp__json_escape(&at, end);
        out += cdp__utf8_put(c ? c : '?', out);
    }
    return (uint64_t)(out - from);
}

CDP__PRIVATE bool cdp__json_is_digit(const cdp__json_reader *r) {
    return r->at < r->bytes && r->data[r->at] >= '0' && r->data[r->at] <= '9';
}

/* Digits of a number without its point, as text for strtod(), which then needs no locale. */
typedef struct cdp__json_digits {
    char text[CDP__JSON_DIGITS + 32];
    uint32_t count;
    int64_t exponent;
} cdp__json_digits;

CDP__PRIVATE void cdp__json_take_digits(cdp__json_reader *r, cdp__json_digits *d, bool fraction) {
    for (; cdp__json_is_digit(r); ++r->at) {
        const bool kept = d->count < CDP__JSON_DIGITS;
        const char c = (char)r->data[r->at];
        if (kept && (d->count || c != '0')) d->text[d->count++] = c;
        d->exponent += (int64_t)!kept - fraction;
    }
}

CDP__PRIVATE double cdp__json_real_of(cdp__json_digits *d) {
    const bool below = d->exponent < 0;
    uint64_t e = below ? 0 - (uint64_t)d->exponent : (uint64_t)d->exponent;
    char *at = d->text + sizeof d->text;
    uint32_t n = d->count;
    if (!n) return 0;
    *--at = 0;
    do
        *--at = (char)('0' + e % 10);
    while (e /= 10);
    d->text[n++] = 'e';
    d->text[n++] = below ? '-' : '+';
    memmove(d->text + n, at, strlen(at) + 1);
    return strtod(d->text, NULL);
}

/* Takes what follows the digits of a real number: digits behind a point, an exponent. */
CDP__PRIVATE bool cdp__json_take_rest(cdp__json_reader *r, cdp__json_digits *d) {
    int64_t exponent = 0;
    bool below = false;
    if (r->at < r->bytes && r->data[r->at] == '.') {
        ++r->at;
        if (!cdp__json_is_digit(r)) return false;
        cdp__json_take_digits(r, d, true);
    }
    if (r->at < r->bytes && (r->data[r->at] | 32) == 'e') {
        ++r->at;
        if (r->at < r->bytes && (r->data[r->at] == '+' || r->data[r->at] == '-'))
            below = r->data[r->at++] == '-';
        if (!cdp__json_is_digit(r)) return false;
        for (; cdp__json_is_digit(r); ++r->at)
            if (exponent < 1000000) exponent = exponent * 10 + (r->data[r->at] - '0');
    }
    d->exponent += below ? -exponent : exponent;
    return true;
}

CDP__PRIVATE cdp__json_kind cdp__json_take_number(cdp__json_reader *r) {
    const uint64_t from = r->at;
    const bool minus = cdp__json_word(r, "-");
    cdp__json_digits d;
    uint64_t whole = 0, i;
    uint8_t next;
    d.count = 0;
    d.exponent = 0;
    if (!cdp__json_is_digit(r)) {
        const bool nan = !minus && cdp__json_word(r, "NaN");
        if (!nan && !cdp__json_word(r, "Infinity"))
            return cdp__json_bad(r, "a value is expected here");
        r->real = strtod(nan ? "nan" : "inf", NULL);
        if (minus) r->real = -r->real;
        return CDP__JSON_REAL;
    }
    cdp__json_take_digits(r, &d, false);
    if (r->data[from + minus] == '0' && r->at > from + minus + 1)
        return cdp__json_bad(r, "a number begins with a zero");
    for (i = 0; i < d.count && d.count < 20; ++i)
        whole = whole * 10 + (uint64_t)(d.text[i] - '0');
    next = r->at < r->bytes ? r->data[r->at] : 0;
    if (next != '.' && (next | 32) != 'e' && d.count < 20 && whole <= (uint64_t)INT64_MAX) {
        r->whole = minus ? -(int64_t)whole : (int64_t)whole;
        return CDP__JSON_WHOLE;
    }
    if (!cdp__json_take_rest(r, &d)) return cdp__json_bad(r, "a digit is expected here");
    r->real = cdp__json_real_of(&d);
    if (minus) r->real = -r->real;
    return CDP__JSON_REAL;
}

CDP__PRIVATE cdp__json_kind cdp__json_take_value(cdp__json_reader *r) {
    const uint8_t c = cdp__json_look(r);
    r->value = r->first = false;
    if (c == '"') return cdp__json_take_text(r, CDP__JSON_TEXT);
    if (c == '{' || c == '[') {
        if (r->depth == CDP__JSON_DEEP) return cdp__json_bad(r, "it is nested too deep");
        ++r->at;
        r->dicts &= ~(1u << r->depth);
        r->dicts |= (uint32_t)(c == '{') << r->depth++;
        r->first = true;
        return c == '{' ? CDP__JSON_DICT : CDP__JSON_LIST;
    }
    if (cdp__json_word(r, "true")) return CDP__JSON_TRUE;
    if (cdp__json_word(r, "false")) return CDP__JSON_FALSE;
    if (cdp__json_word(r, "null")) return CDP__JSON_NULL;
    return cdp__json_take_number(r);
}

/* Takes the next piece. After BAD or END it must not be called again. */
CDP__PRIVATE cdp__json_kind cdp__json_next(cdp__json_reader *r) {
    const bool dict = r->depth && r->dicts >> (r->depth - 1) & 1;
    uint8_t c;
    if (r->value) return cdp__json_take_value(r);
    c = cdp__json_look(r);
    if (!r->depth)
        return r->at < r->bytes ? cdp__json_bad(r, "its end is expected here") : CDP__JSON_END;
    if (c == (dict ? '}' : ']')) {
        ++r->at;
        --r->depth;
        r->first = false;
        return CDP__JSON_CLOSE;
    }
    if (!r->first && !cdp__json_word(r, ","))
        return cdp__json_bad(r, "a comma or the end of a list is expected here");
    if (!dict) return cdp__json_take_value(r);
    if (cdp__json_look(r) != '"') return cdp__json_bad(r, "a key is expected here");
    if (cdp__json_take_text(r, CDP__JSON_KEY) == CDP__JSON_BAD) return CDP__JSON_BAD;
    if (cdp__json_look(r) != ':') return cdp__json_bad(r, "a colon is expected here");
    ++r->at;
    r->value = true;
    return CDP__JSON_KEY;
}

#endif /* CDP_SRC_TEXT_JSON_READ_H */
