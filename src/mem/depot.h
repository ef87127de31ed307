/* mem/depot.h - different stacks and sites, each once (pure)

   Knows: stacks (rows of words) and sites by number, from 1 on; 0 means none. A word is an address
   or, with a tag in its upper bits, the number of a site. Promises: equal stacks and sites are
   stored once, in tables of fixed size. When a table is full, new ones get a number that says so,
   and a counter grows. */
#ifndef CDP_SRC_MEM_DEPOT_H
#define CDP_SRC_MEM_DEPOT_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "sizes.h"

#define CDP__MEM_FRAMES 64u
#define CDP__MEM_WORDS (CDP__MEM_FRAMES + 1u)
#define CDP__MEM_TAG_SITE (0xfffeull << 48)
#define CDP__MEM_TAG_FULL (0xfffcull << 48)
#define CDP__MEM_TAG (0xffffull << 48)
#define CDP__MEM_SITES 4096u
#define CDP__MEM_LABEL_BYTES 128u

typedef struct cdp__mem_row { /* one stack */
    uint64_t hash;
    uint32_t first, count; /* of its words */
} cdp__mem_row;

typedef struct cdp__mem_depot {
    cdp__mem_row *rows; /* rows[0]: "table full"; row i is the stack of number i + 1 */
    uint64_t *words;
    uint32_t *slots; /* open addressing: numbers of stacks, twice as many as rows */
    uint32_t rows_used, rows_room;
    uint32_t words_used, words_room;
    uint32_t slot_mask;
    uint64_t lost;
} cdp__mem_depot;

typedef struct cdp__mem_trace {     /* a stack that was just collected */
    uint64_t words[CDP__MEM_WORDS]; /* a word for the site, the frames */
    uint32_t count;                 /* frames */
} cdp__mem_trace;

CDP__PRIVATE uint64_t cdp__mem_words_hash(const uint64_t *words, uint32_t count) {
    uint64_t h = count;
    uint32_t i;
    for (i = 0; i < count; ++i)
        h = cdp__mem_mix(h, words[i]);
    return h;
}

CDP__PRIVATE bool cdp__mem_row_is(const cdp__mem_depot *d, const cdp__mem_row *r, uint64_t hash,
    const uint64_t *words, uint32_t count) {
    if (r->hash != hash || r->count != count) return false;
    return memcmp(d->words + r->first, words, count * sizeof *words) == 0;
}

/* Clears the table. Number 1 stands for all stacks that find no room. */
CDP__PRIVATE void cdp__mem_depot_clear(cdp__mem_depot *d) {
    memset(d->slots, 0, (size_t)((d->slot_mask + 1ull) * sizeof *d->slots));
    d->words[0] = CDP__MEM_TAG_FULL;
    d->rows[0].hash = 0;
    d->rows[0].first = 0;
    d->rows[0].count = 1;
    d->rows_used = d->words_used = 1;
    d->lost = 0;
}

CDP__PRIVATE uint32_t cdp__mem_depot_add(
    cdp__mem_depot *d, uint64_t hash, const uint64_t *words, uint32_t count, uint32_t slot) {
    cdp__mem_row *r;
    if (d->rows_used == d->rows_room || d->words_room - d->words_used < count) {
        ++d->lost;
        return 1;
    }
    r = &d->rows[d->rows_used++];
    r->hash = hash;
    r->first = d->words_used;
    r->count = count;
    memcpy(d->words + r->first, words, count * sizeof *words);
    d->words_used += count;
    d->slots[slot] = d->rows_used;
    return d->rows_used;
}

/* The number of a stack, which is stored if it is new; 0 for an empty one. */
CDP__PRIVATE uint32_t cdp__mem_depot_number(
    cdp__mem_depot *d, const uint64_t *words, uint32_t count) {
    uint64_t hash;
    uint32_t i;
    if (!count) return 0;
    hash = cdp__mem_words_hash(words, count);
    for (i = (uint32_t)hash & d->slot_mask; d->slots[i]; i = (i + 1) & d->slot_mask)
        if (cdp__mem_row_is(d, &d->rows[d->slots[i] - 1], hash, words, count)) return d->slots[i];
    return cdp__mem_depot_add(d, hash, words, count, i);
}

typedef struct cdp__mem_sites { /* "file\nline\nfunction", by the addresses of the two texts */
    char (*text)[CDP__MEM_LABEL_BYTES]; /* text[i]: of number i + 1 */
    uint64_t *hash;
    uint32_t *stack; /* the number of the stack that has this site alone; 0: not looked up yet */
    uint16_t *slots; /* open addressing, 2 * CDP__MEM_SITES of them */
    uint32_t used;
    uint64_t lost;
} cdp__mem_sites;

CDP__PRIVATE uint64_t cdp__mem_text_hash(const char *text) {
    uint64_t h = 0xcbf29ce484222325ull;
    for (; *text; ++text)
        h = (h ^ (uint8_t)*text) * 0x100000001b3ull;
    return h ^ h >> 32;
}

CDP__PRIVATE void cdp__mem_text_copy(char *to, const char *text, uint64_t room) {
    uint64_t n = strlen(text);
    if (n > room - 1) n = room - 1;
    memcpy(to, text, (size_t)n);
    to[n] = 0;
}

/* The slot of the site with this hash, or the empty one where it would be. */
CDP__MEM_HOT uint32_t cdp__mem_sites_slot(const cdp__mem_sites *l, uint64_t hash) {
    const uint32_t mask = 2 * CDP__MEM_SITES - 1;
    uint32_t i = (uint32_t)hash & mask;
    while (l->slots[i] && l->hash[l->slots[i] - 1] != hash)
        i = (i + 1) & mask;
    return i;
}

/* Stores a site in an empty slot. The last number stands for all further ones. */
CDP__PRIVATE uint32_t cdp__mem_sites_add(
    cdp__mem_sites *l, uint64_t hash, const char *text, uint32_t slot) {
    if (l->used + 1 == CDP__MEM_SITES) {
        ++l->lost;
        cdp__mem_text_copy(l->text[l->used], "\n0\n(too many places)", CDP__MEM_LABEL_BYTES);
        return CDP__MEM_SITES;
    }
    cdp__mem_text_copy(l->text[l->used], text, CDP__MEM_LABEL_BYTES);
    l->hash[l->used] = hash;
    l->slots[slot] = (uint16_t)++l->used;
    return l->used;
}

/* Bytes of texts and tables in one piece of memory; see cdp__mem_sites_at. */
#define CDP__MEM_SITES_ALL                                                         \
    (CDP__MEM_SITES * (CDP__MEM_LABEL_BYTES + sizeof(uint64_t) + sizeof(uint32_t)) \
        + 2 * CDP__MEM_SITES * sizeof(uint16_t))

/* Places the tables in `memory`: CDP__MEM_SITES_ALL zeroed bytes. */
CDP__PRIVATE void cdp__mem_sites_at(cdp__mem_sites *l, void *memory) {
    char *at = (char *)memory;
    l->hash = (uint64_t *)(void *)at;
    at += CDP__MEM_SITES * sizeof(uint64_t);
    l->stack = (uint32_t *)(void *)at;
    at += CDP__MEM_SITES * sizeof(uint32_t);
    l->slots = (uint16_t *)(void *)at;
    at += 2 * CDP__MEM_SITES * sizeof(uint16_t);
    l->text = (char(*)[CDP__MEM_LABEL_BYTES])(void *)at;
    l->used = 0;
    l->lost = 0;
}

#endif /* CDP_SRC_MEM_DEPOT_H */
