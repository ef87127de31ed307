/* text/json_write.h - texts as strings of JSON (pure)

   Knows: which characters a string of JSON must not have. Promises: pure ASCII, which readers of
   any locale accept; bytes that are not UTF-8 become question marks. */
#ifndef CDP_SRC_TEXT_JSON_WRITE_H
#define CDP_SRC_TEXT_JSON_WRITE_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "utf8.h"
#include "format.h"

/* Writes one unit of UTF-16 as an escape. */
CDP__PRIVATE void cdp__json_unit(cdp__text *t, uint32_t unit) {
    uint32_t shift;
    cdp__text_bytes(t, "\\u", 2);
    for (shift = 16; shift; shift -= 4)
        cdp__text_char(t, "0123456789abcdef"[unit >> (shift - 4) & 15]);
}

/* Writes a text as the inside of a string, without the quotes. */
CDP__PRIVATE CDP__COLD void cdp__json_inside(cdp__text *t, const char *text) {
    const uint8_t *p = (const uint8_t *)text, *const end = p + strlen(text);
    while (p < end) {
        const uint32_t c = cdp__utf8_next(&p, end);
        if (c >= 0x20 && c < 0x7f) {
            if (c == '"' || c == '\\') cdp__text_char(t, '\\');
            cdp__text_char(t, (char)c);
        } else if (c < 0x10000) {
            cdp__json_unit(t, c);
        } else {
            cdp__json_unit(t, 0xd7c0 + (c >> 10));
            cdp__json_unit(t, 0xdc00 + (c & 0x3ff));
        }
    }
    if (!t->flush) (void)cdp__text_end(t);
}

CDP__PRIVATE CDP__COLD void cdp__json_string(cdp__text *t, const char *text) {
    cdp__text_char(t, '"');
    cdp__json_inside(t, text);
    cdp__text_char(t, '"');
    if (!t->flush) (void)cdp__text_end(t);
}

#endif /* CDP_SRC_TEXT_JSON_WRITE_H */
