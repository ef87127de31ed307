/* mem/writer.h - a file as a stream of bytes (pure)

   Knows: how bytes are collected and passed to a sink. Promises: after the sink returned false it
   is not called again; bytes that are not UTF-8 become question marks. */
#ifndef CDP_SRC_MEM_WRITER_H
#define CDP_SRC_MEM_WRITER_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/utf8.h"
#include "../text/format.h"
#include "shots_api.h"

typedef struct cdp__mem_output {
    cdp__text text; /* the first member: the flush of a text gets its address */
    cdp_mem_sink sink;
    void *user;
    bool json, broken, fresh;         /* fresh: a dict in JSON has no key yet */
    uint32_t *text_memo, *stack_memo; /* number in the file + 1; 0: not written yet */
    uint32_t memos;
    char bytes[8192];
} cdp__mem_output;

CDP__PRIVATE void cdp__mem_output_flush(cdp__text *t) {
    cdp__mem_output *const w = (cdp__mem_output *)(void *)t;
    if (t->used && !w->broken && !w->sink(w->user, t->at, t->used)) w->broken = true;
    t->used = 0;
}

CDP__PRIVATE void cdp__mem_output_open(cdp__mem_output *w, cdp_mem_sink sink, void *user) {
    w->text = cdp__text_of(w->bytes, sizeof w->bytes);
    w->text.flush = cdp__mem_output_flush;
    w->sink = sink;
    w->user = user;
}

/* Most of a pickle is single bytes: one that fits costs a store, not a call. */
CDP__PRIVATE void cdp__mem_put(cdp__mem_output *w, uint32_t byte) {
    cdp__text *const t = &w->text;
    if (t->used + 1 < t->room)
        t->at[t->used++] = (char)byte;
    else
        cdp__text_char(t, (char)byte);
}

CDP__PRIVATE void cdp__mem_put_text(cdp__mem_output *w, const char *text) {
    cdp__text_bytes(&w->text, text, strlen(text));
}

/* `bytes` of a number, the lowest first. */
CDP__PRIVATE void cdp__mem_put_number(cdp__mem_output *w, uint64_t v, uint32_t bytes) {
    char all[8];
    for (uint32_t i = 0; i < bytes; ++i)
        all[i] = (char)(v >> 8 * i & 0xff);
    cdp__text_bytes(&w->text, all, bytes);
}

/* Bytes of a text as they are written: every byte that is no UTF-8 becomes '?'. */
CDP__PRIVATE void cdp__mem_put_utf8(cdp__mem_output *w, const char *text, uint64_t bytes) {
    const uint8_t *at = (const uint8_t *)text, *const end = at + bytes;
    while (at < end) {
        const uint8_t *const from = at;
        if (cdp__utf8_next(&at, end) == '?')
            cdp__mem_put(w, '?');
        else
            cdp__text_bytes(&w->text, from, (uint64_t)(at - from));
    }
}

#endif /* CDP_SRC_MEM_WRITER_H */
