/* text/format.h - text that is built in memory of a given size (pure)

   Knows: characters, numbers and formats, so that builds without stdio have every message.
   Promises: never writes beyond the memory; a text in memory ends with a zero; `used` counts the
   whole text, also what did not fit. */
#ifndef CDP_SRC_TEXT_FORMAT_H
#define CDP_SRC_TEXT_FORMAT_H

#include "../base/config.h"
#include "../base/compiler.h"

#include <stdarg.h>
#include <string.h>

typedef struct cdp__text {
    char *at;
    uint64_t room, used; /* room: in bytes, with the zero at the end; used: without it */
    /* NULL: what does not fit is counted and left out. Else it is called when the memory is full:
       takes all `used` bytes away and sets `used` to 0. */
    void (*flush)(struct cdp__text *t);
} cdp__text;

/* How many bytes of the text are in memory. */
CDP__PRIVATE uint64_t cdp__text_kept(const cdp__text *t) {
    if (t->used < t->room) return t->used;
    return t->room ? t->room - 1 : 0;
}

/* Ends the text with a zero; returns its whole length. */
CDP__PRIVATE uint64_t cdp__text_end(cdp__text *t) {
    if (t->room) t->at[cdp__text_kept(t)] = 0;
    return t->used;
}

/* A text for `room` bytes at `at`, where nothing is written yet. `at` may be NULL: then the text is
   only counted. */
CDP__PRIVATE cdp__text cdp__text_of(char *at, uint64_t room) {
    cdp__text t;
    t.at = at;
    t.room = at ? room : 0;
    t.used = 0;
    t.flush = NULL;
    return t;
}

CDP__PRIVATE void cdp__text_bytes(cdp__text *t, const void *data, uint64_t bytes) {
    const char *from = (const char *)data;
    while (bytes) {
        const uint64_t left = t->used + 1 < t->room ? t->room - 1 - t->used : 0;
        uint64_t n = left < bytes ? left : bytes;
        if (n) memcpy(t->at + t->used, from, (size_t)n);
        if (!t->flush) n = bytes;
        t->used += n;
        from += n;
        bytes -= n;
        if (bytes) t->flush(t);
    }
}

CDP__PRIVATE void cdp__text_char(cdp__text *t, char c) {
    cdp__text_bytes(t, &c, 1);
}

CDP__PRIVATE void cdp__text_number(cdp__text *t, uint64_t v, bool negative, uint32_t base) {
    char digits[24];
    uint32_t n = sizeof digits;
    do {
        digits[--n] = "0123456789abcdef"[v % base];
        v /= base;
    } while (v);
    if (negative) digits[--n] = '-';
    cdp__text_bytes(t, digits + n, sizeof digits - n);
}

/* Formats with %s, %c, %d, %u, %x and %%, and the lengths l, ll and z. From an unknown directive
   on, the format stands in the text as it is, because where later arguments begin is unknown. */
CDP__PRIVATE CDP__COLD void cdp__text_add_v(cdp__text *t, const char *f, va_list ap) {
    for (; *f; ++f) {
        if (*f != '%' || f[1] == '%') {
            if (*f == '%') ++f;
            cdp__text_char(t, *f);
            continue;
        }
        const char *directive = f, *s = NULL;
        uint64_t bytes = sizeof(int);
        for (++f; *f == 'l' || *f == 'z'; ++f) {
            bytes = bytes == sizeof(int) && f[1] != 'l' ? sizeof(long) : sizeof(long long);
            if (*f == 'z') bytes = sizeof(size_t);
        }
        if (*f == 's') {
            s = va_arg(ap, const char *);
            if (!s) s = "(null)";
        } else if (*f == 'c') {
            cdp__text_char(t, (char)va_arg(ap, int));
        } else if (*f == 'd') {
            const int64_t v =
                bytes == 8 ? (int64_t)va_arg(ap, long long) : (int64_t)va_arg(ap, int);
            cdp__text_number(t, v < 0 ? 0 - (uint64_t)v : (uint64_t)v, v < 0, 10);
        } else if (*f == 'u' || *f == 'x') {
            const uint64_t v = bytes == 8 ? (uint64_t)va_arg(ap, unsigned long long)
                                          : (uint64_t)va_arg(ap, unsigned);
            cdp__text_number(t, v, false, *f == 'u' ? 10 : 16);
        } else {
            s = directive;
        }
        if (s) cdp__text_bytes(t, s, strlen(s));
        if (s == directive) break;
    }
    (void)cdp__text_end(t);
}

CDP__PRIVATE CDP__COLD CDP__PRINTF(2, 3) void cdp__text_add(cdp__text *t, const char *f, ...) {
    va_list ap;
    va_start(ap, f);
    cdp__text_add_v(t, f, ap);
    va_end(ap);
}

/* Returns the length of the whole text; what does not fit is left out. */
CDP__PRIVATE CDP__COLD CDP__PRINTF(3, 4) uint64_t
    cdp__format(char *dst, uint64_t size, const char *f, ...) {
    cdp__text t = cdp__text_of(dst, size);
    va_list ap;
    va_start(ap, f);
    cdp__text_add_v(&t, f, ap);
    va_end(ap);
    return t.used;
}

/* Writes `v` >= 0 with one decimal. */
CDP__PRIVATE void cdp__text_tenths(cdp__text *t, double v) {
    const uint64_t tenths = v > 0 ? (uint64_t)(v * 10 + 0.5) : 0;
    cdp__text_add(
        t, "%llu.%llu", (unsigned long long)(tenths / 10), (unsigned long long)(tenths % 10));
}

/* Milliseconds as seconds, with one decimal and as many more as they need: "0.15". */
CDP__PRIVATE CDP__COLD const char *cdp__seconds(char out[24], uint64_t ms) {
    const uint32_t part = (uint32_t)(ms % 1000);
    cdp__text t = cdp__text_of(out, 24);
    cdp__text_add(&t, "%llu.%u", (unsigned long long)(ms / 1000), part / 100);
    if (part % 100) cdp__text_add(&t, "%u", part / 10 % 10);
    if (part % 10) cdp__text_add(&t, "%u", part % 10);
    return out;
}

/* Writes blanks up to column `column` of a line that began at `line`. */
CDP__PRIVATE void cdp__text_pad(cdp__text *t, uint64_t line, uint64_t column) {
    while (t->used - line < column)
        cdp__text_char(t, ' ');
}

#endif /* CDP_SRC_TEXT_FORMAT_H */
