/* mem/texts.h - strings of a shot, each once

   Knows: strings, numbered from 0 on. Promises: equal strings have one address, which never
   changes. */
#ifndef CDP_SRC_MEM_TEXTS_H
#define CDP_SRC_MEM_TEXTS_H

#include "../base/config.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/tree.h"
#include "sizes.h"

typedef struct cdp__mem_texts {
    cdp__chunks memory;
    const char **slots; /* open addressing */
    uint64_t mask;
    uint32_t count;
} cdp__mem_texts;

/* The number of a text that is in `texts`. */
CDP__PRIVATE uint32_t cdp__mem_text_number(const char *text) {
    uint32_t n;
    memcpy(&n, text - sizeof n, sizeof n);
    return n;
}

CDP__PRIVATE uint64_t cdp__mem_bytes_hash(const char *text, uint64_t bytes) {
    uint64_t h = bytes, word;
    for (; bytes >= 8; bytes -= 8, text += 8) {
        memcpy(&word, text, 8);
        h = cdp__mem_mix(h, word);
    }
    word = 0;
    memcpy(&word, text, (size_t)bytes);
    return cdp__mem_mix(h, word);
}

CDP__PRIVATE bool cdp__mem_texts_grow(cdp__mem_texts *t) {
    const uint64_t count = t->slots ? 2 * (t->mask + 1) : 256;
    const char **const slots = (const char **)cdp__alloc_zero(t->memory.os, count * sizeof *slots);
    uint64_t i;
    if (!slots) return false;
    for (i = 0; t->slots && i <= t->mask; ++i) {
        const char *const text = t->slots[i];
        uint64_t at;
        if (!text) continue;
        at = cdp__mem_bytes_hash(text, strlen(text)) & (count - 1);
        while (slots[at])
            at = (at + 1) & (count - 1);
        slots[at] = text;
    }
    cdp__free(t->memory.os, (void *)t->slots);
    t->slots = slots;
    t->mask = count - 1;
    return true;
}

/* The stored copy of a text, which ends at a zero byte; NULL: out of memory. */
CDP__PRIVATE const char *cdp__mem_text_of(cdp__mem_texts *t, const char *text, uint64_t bytes) {
    const char *const zero = bytes ? (const char *)memchr(text, 0, (size_t)bytes) : NULL;
    uint64_t i;
    char *copy;
    if (zero) bytes = (uint64_t)(zero - text);
    if ((!t->slots || t->count * 2ull >= t->mask) && !cdp__mem_texts_grow(t)) return NULL;
    for (i = cdp__mem_bytes_hash(text, bytes) & t->mask; t->slots[i]; i = (i + 1) & t->mask) {
        const char *const s = t->slots[i];
        if (strncmp(s, text, (size_t)bytes) == 0 && !s[bytes]) return s;
    }
    copy = (char *)cdp__chunks_room(&t->memory, bytes + 5);
    if (!copy) return NULL;
    memcpy(copy, &t->count, sizeof t->count);
    copy += sizeof t->count;
    memcpy(copy, text, (size_t)bytes);
    copy[bytes] = 0;
    t->slots[i] = copy;
    ++t->count;
    return copy;
}

CDP__PRIVATE void cdp__mem_texts_close(cdp__mem_texts *t) {
    cdp__free(t->memory.os, (void *)t->slots);
    cdp__chunks_close(&t->memory);
}

#endif /* CDP_SRC_MEM_TEXTS_H */
