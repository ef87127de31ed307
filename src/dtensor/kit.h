/* dtensor/kit.h - small helpers

   Knows: numbers, text and memory; nothing of tensors. Promises: texts never overflow their room;
   memory is zeroed. */
#ifndef CDP_SRC_DTENSOR_KIT_H
#define CDP_SRC_DTENSOR_KIT_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "mesh_api.h"

#include <stdarg.h>
#include <string.h>

#define CDP__DT CDP__PRIVATE

#ifndef CDP_ASSERT
#include <assert.h>
#define CDP_ASSERT(x) assert(x)
#endif

#define CDP__DT_NONE 0xffffffffu
#define CDP__DT_DIMS (CDP_TENSOR_DIMS + 1u) /* of a region: one more for kept PARTIAL */

CDP__DT uint64_t cdp__dt_min(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

CDP__DT uint64_t cdp__dt_max(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

CDP__DT double cdp__dt_or(double value, double fallback) {
    return value > 0 ? value : fallback;
}

/* a * b; or 0 with *ok = false if the product has more than 63 bits. */
CDP__DT uint64_t cdp__dt_times(uint64_t a, uint64_t b, bool *ok) {
    if (a && b > (UINT64_MAX >> 1) / a) {
        *ok = false;
        return 0;
    }
    return a * b;
}

/* FNV-1a over the bytes of 64-bit numbers, the same on machines of either byte order. */
CDP__DT uint64_t cdp__dt_hash(const uint64_t *words, uint64_t n) {
    uint64_t h = 0xcbf29ce484222325u;
    for (uint64_t i = 0; i < n; ++i)
        for (uint32_t byte = 0; byte < 8; ++byte)
            h = (h ^ (words[i] >> 8 * byte & 0xff)) * 0x100000001b3u;
    return h;
}

/* A text buffer; `used` counts the full length, including what did not fit. */
typedef struct cdp__dt_text {
    char *at;
    uint64_t room, used;
} cdp__dt_text;

CDP__DT void cdp__dt_char(cdp__dt_text *t, char c) {
    if (t->used + 1 < t->room) t->at[t->used] = c;
    ++t->used;
}

CDP__DT void cdp__dt_number(cdp__dt_text *t, uint64_t v) {
    char digits[24];
    uint32_t n = 0;
    do {
        digits[n++] = (char)('0' + v % 10);
        v /= 10;
    } while (v);
    while (n)
        cdp__dt_char(t, digits[--n]);
}

/* Formats text; supports %s, %c, %u and %llu. */
CDP__DT void cdp__dt_add(cdp__dt_text *t, const char *f, ...) {
    va_list ap;
    va_start(ap, f);
    for (; *f; ++f) {
        if (*f != '%') {
            cdp__dt_char(t, *f);
        } else if (*++f == 's') {
            for (const char *s = va_arg(ap, const char *); *s; ++s)
                cdp__dt_char(t, *s);
        } else if (*f == 'c') {
            cdp__dt_char(t, (char)va_arg(ap, int));
        } else if (*f == 'u') {
            cdp__dt_number(t, va_arg(ap, unsigned));
        } else if (*f == 'l') {
            f += 2;
            cdp__dt_number(t, va_arg(ap, unsigned long long));
        } else {
            cdp__dt_char(t, *f);
        }
    }
    va_end(ap);
}

/* Writes `v` >= 0 with one decimal. */
CDP__DT void cdp__dt_tenths(cdp__dt_text *t, double v) {
    const uint64_t tenths = (uint64_t)(v * 10 + 0.5);
    cdp__dt_add(
        t, "%llu.%llu", (unsigned long long)(tenths / 10), (unsigned long long)(tenths % 10));
}

/* Writes blanks up to column `column` of a line that began at `line`. */
CDP__DT void cdp__dt_pad(cdp__dt_text *t, uint64_t line, uint64_t column) {
    while (t->used - line < column)
        cdp__dt_char(t, ' ');
}

/* Ends the text; returns its whole length. */
CDP__DT uint64_t cdp__dt_end(cdp__dt_text *t) {
    if (t->room) t->at[cdp__dt_min(t->used, t->room - 1)] = 0;
    return t->used;
}

CDP__DT cdp__dt_text cdp__dt_text_of(char *text, uint64_t room) {
    cdp__dt_text t;
    t.at = text;
    t.room = text ? room : 0;
    t.used = 0;
    return t;
}

CDP__DT void *cdp__dt_alloc(const cdp_os *os, uint64_t bytes) {
    void *p = os->alloc(os->user, bytes ? bytes : 1);
    if (p) memset(p, 0, (size_t)bytes);
    return p;
}

CDP__DT void cdp__dt_free(const cdp_os *os, void *p) {
    if (p) os->release(os->user, p);
}

CDP__DT cdp_status cdp__dt_nomem(const char *what, uint64_t bytes) {
    return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "out of memory: %s needs %llu bytes", what,
        (unsigned long long)bytes);
}

#endif /* CDP_SRC_DTENSOR_KIT_H */
