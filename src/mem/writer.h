/* mem/writer.h - a file as a stream of bytes (pure)

   Knows: how bytes are collected and passed to a sink. Promises: after the sink returned false it
   is not called again; bytes that are not UTF-8 become question marks. */
#ifndef CDP_SRC_MEM_WRITER_H
#define CDP_SRC_MEM_WRITER_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "shots_api.h"

typedef struct cdp__mem_pen {
    cdp_mem_sink sink;
    void *user;
    uint32_t used;
    bool json, broken, fresh;         /* fresh: a dict in JSON has no key yet */
    uint32_t *text_memo, *stack_memo; /* number in the file + 1; 0: not written yet */
    uint32_t memos;
    uint8_t bytes[8192];
} cdp__mem_pen;

CDP__PRIVATE void cdp__mem_pen_flush(cdp__mem_pen *w) {
    if (w->used && !w->broken && !w->sink(w->user, w->bytes, w->used)) w->broken = true;
    w->used = 0;
}

CDP__PRIVATE void cdp__mem_put(cdp__mem_pen *w, uint32_t byte) {
    if (w->used == sizeof w->bytes) cdp__mem_pen_flush(w);
    w->bytes[w->used++] = (uint8_t)byte;
}

CDP__PRIVATE void cdp__mem_put_bytes(cdp__mem_pen *w, const void *data, uint64_t bytes) {
    const uint8_t *at = (const uint8_t *)data;
    if (bytes > sizeof w->bytes - w->used) cdp__mem_pen_flush(w);
    for (; bytes > sizeof w->bytes; bytes -= sizeof w->bytes, at += sizeof w->bytes) {
        memcpy(w->bytes, at, sizeof w->bytes);
        w->used = sizeof w->bytes;
        cdp__mem_pen_flush(w);
    }
    memcpy(w->bytes + w->used, at, (size_t)bytes);
    w->used += (uint32_t)bytes;
}

CDP__PRIVATE void cdp__mem_put_text(cdp__mem_pen *w, const char *text) {
    cdp__mem_put_bytes(w, text, strlen(text));
}

/* `bytes` of a number, the lowest first. */
CDP__PRIVATE void cdp__mem_put_number(cdp__mem_pen *w, uint64_t v, uint32_t bytes) {
    for (; bytes; --bytes, v >>= 8)
        cdp__mem_put(w, (uint32_t)(v & 0xff));
}

/* The length of the UTF-8 character at `s`, which has `left` bytes; 0: it is invalid. */
CDP__PRIVATE uint32_t cdp__mem_utf8(const uint8_t *s, uint64_t left) {
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t n, i, code;
    if (s[0] < 0x80) return 1;
    if (s[0] < 0xc2 || s[0] > 0xf4) return 0;
    n = s[0] < 0xe0 ? 2 : 3u + (s[0] >= 0xf0);
    if (n > left) return 0;
    code = s[0] & (0xffu >> (n + 1));
    for (i = 1; i < n; ++i) {
        if ((s[i] & 0xc0) != 0x80) return 0;
        code = code << 6 | (s[i] & 0x3fu);
    }
    if (code < least[n] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return 0;
    return n;
}

/* Bytes of a text as they are written: every byte that is no UTF-8 becomes '?'. */
CDP__PRIVATE void cdp__mem_put_utf8(cdp__mem_pen *w, const char *text, uint64_t bytes) {
    const uint8_t *s = (const uint8_t *)text;
    while (bytes) {
        const uint32_t n = cdp__mem_utf8(s, bytes);
        if (n)
            cdp__mem_put_bytes(w, s, n);
        else
            cdp__mem_put(w, '?');
        s += n ? n : 1;
        bytes -= n ? n : 1;
    }
}

#endif /* CDP_SRC_MEM_WRITER_H */
