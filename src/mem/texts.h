/* mem/texts.h - strings of a shot, each once

   Knows: strings, numbered from 0 on. Promises: equal strings have one address, which never
   changes. */
#ifndef CDP_SRC_MEM_TEXTS_H
#define CDP_SRC_MEM_TEXTS_H

#include "../base/config.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "sizes.h"

#define CDP__MEM_CHUNK 16384u

typedef struct cdp__mem_chunk {
    struct cdp__mem_chunk *next;
    uint64_t room, used;
} cdp__mem_chunk;

typedef struct cdp__mem_texts {
    const cdp_os *os;
    cdp__mem_chunk *chunks;
    const char **slots; /* open addressing */
    uint64_t mask;
    uint32_t count;
} cdp__mem_texts;

/* Makes room for `need` items of `each` bytes in `at`, which may move. */
CDP__PRIVATE bool cdp__mem_room(
    const cdp_os *os, void **at, uint64_t *room, uint64_t need, uint64_t each) {
    uint64_t more = *room ? *room : 64;
    void *bigger;
    if (need <= *room) return true;
    while (more < need)
        more *= 2;
    bigger = cdp__alloc(os, more * each);
    if (!bigger) return false;
    if (*room) memcpy(bigger, *at, (size_t)(*room * each));
    cdp__free(os, *at);
    *at = bigger;
    *room = more;
    return true;
}

/* Allocates `bytes` bytes, aligned to 8, which live as long as the texts. */
CDP__PRIVATE void *cdp__mem_texts_room(cdp__mem_texts *t, uint64_t bytes) {
    cdp__mem_chunk *c = t->chunks;
    const uint64_t need = cdp__mem_up_to(bytes, 8);
    if (!c || c->room - c->used < need) {
        const uint64_t room = cdp__max(need, CDP__MEM_CHUNK);
        c = (cdp__mem_chunk *)cdp__alloc(t->os, sizeof *c + room);
        if (!c) return NULL;
        c->room = room;
        c->used = 0;
        c->next = t->chunks;
        t->chunks = c;
    }
    c->used += need;
    return (char *)(c + 1) + c->used - need;
}

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
    const char **const slots = (const char **)cdp__alloc_zero(t->os, count * sizeof *slots);
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
    cdp__free(t->os, (void *)t->slots);
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
    copy = (char *)cdp__mem_texts_room(t, bytes + 5);
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
    cdp__mem_chunk *c, *next;
    for (c = t->chunks; c; c = next) {
        next = c->next;
        cdp__free(t->os, c);
    }
    cdp__free(t->os, (void *)t->slots);
}

#endif /* CDP_SRC_MEM_TEXTS_H */
