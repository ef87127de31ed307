/* mem/value.h - the content of a file, as a tree

   Knows: numbers, texts, lists and dicts of a file. Texts point into the file itself. Promises:
   memory is a chain of chunks, freed as a whole, and at most about 100 bytes for each byte of
   the file. */
#ifndef CDP_SRC_MEM_VALUE_H
#define CDP_SRC_MEM_VALUE_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "texts.h"
#include "shot.h"
#include "pickle.h"

typedef struct cdp__mem_value cdp__mem_value;

typedef struct cdp__mem_box { /* a list, or a dict: key, value, key, value */
    cdp__mem_value *items;
    uint64_t count, room;
    uint32_t stack; /* number of this list of frames in the shot + 1; 0: none yet */
} cdp__mem_box;

struct cdp__mem_value {
    cdp__mem_kind kind;
    uint32_t length; /* of a text */
    union {
        int64_t whole;
        double real;
        const char *text;
        cdp__mem_box *box;
    } as;
};

#define CDP__MEM_TEXT_MAX 4096u /* longer texts are truncated */
#define CDP__MEM_DICT_LOOKS 256u

typedef struct cdp__mem_reader {
    const uint8_t *data;
    uint64_t bytes, at;
    cdp__mem_texts memory;
    cdp__mem_value *stack, *memo;
    uint64_t *marks;
    uint64_t depth, stack_room, memo_count, memo_room, mark_count, mark_room;
    const char *why; /* why the file cannot be read */
    bool no_memory, unknown;
} cdp__mem_reader;

CDP__PRIVATE bool cdp__mem_bad(cdp__mem_reader *r, const char *why) {
    if (!r->why) r->why = why;
    return false;
}

CDP__PRIVATE bool cdp__mem_read_nomem(cdp__mem_reader *r) {
    r->no_memory = true;
    return cdp__mem_bad(r, "out of memory");
}

CDP__PRIVATE cdp__mem_box *cdp__mem_box_new(cdp__mem_reader *r) {
    cdp__mem_box *const b = (cdp__mem_box *)cdp__mem_texts_room(&r->memory, sizeof *b);
    if (b)
        memset(b, 0, sizeof *b);
    else
        cdp__mem_read_nomem(r);
    return b;
}

/* Append `count` values. */
CDP__PRIVATE bool cdp__mem_box_add(
    cdp__mem_reader *r, cdp__mem_box *b, const cdp__mem_value *v, uint64_t count) {
    if (b->count + count > b->room) {
        const uint64_t room = cdp__max(b->count + count, b->count * 2);
        cdp__mem_value *const more =
            (cdp__mem_value *)cdp__mem_texts_room(&r->memory, room * sizeof *v);
        if (!more) return cdp__mem_read_nomem(r);
        if (b->count) memcpy(more, b->items, (size_t)(b->count * sizeof *v));
        b->items = more;
        b->room = room;
    }
    if (count) memcpy(b->items + b->count, v, (size_t)(count * sizeof *v));
    b->count += count;
    return true;
}

CDP__PRIVATE bool cdp__mem_value_is(const cdp__mem_value *v, const char *text) {
    return v->kind == CDP__MEM_TEXT && v->length == strlen(text)
        && memcmp(v->as.text, text, v->length) == 0;
}

/* The value of a key in a dict; NULL: there is none. */
CDP__PRIVATE const cdp__mem_value *cdp__mem_value_get(const cdp__mem_value *v, const char *key) {
    uint64_t i, n;
    if (!v || v->kind != CDP__MEM_DICT) return NULL;
    n = cdp__min(v->as.box->count, 2 * CDP__MEM_DICT_LOOKS);
    for (i = 0; i + 1 < n; i += 2)
        if (cdp__mem_value_is(&v->as.box->items[i], key)) return &v->as.box->items[i + 1];
    return NULL;
}

/* A number from 0 to 2^53; `other` if there is none. */
CDP__PRIVATE uint64_t cdp__mem_value_count(const cdp__mem_value *v, uint64_t other) {
    if (v && v->kind == CDP__MEM_REAL && v->as.real >= 0)
        return v->as.real < 9007199254740992.0 ? (uint64_t)v->as.real : CDP__MEM_NUMBER_MAX;
    if (!v || (v->kind != CDP__MEM_INT && v->kind != CDP__MEM_BOOL) || v->as.whole < 0)
        return other;
    return cdp__min((uint64_t)v->as.whole, CDP__MEM_NUMBER_MAX);
}

CDP__PRIVATE const cdp__mem_box *cdp__mem_value_list(const cdp__mem_value *v) {
    return v && v->kind == CDP__MEM_LIST ? v->as.box : NULL;
}

CDP__PRIVATE void cdp__mem_reader_close(cdp__mem_reader *r) {
    cdp__free(r->memory.os, r->stack);
    cdp__free(r->memory.os, r->memo);
    cdp__free(r->memory.os, r->marks);
    cdp__mem_texts_close(&r->memory);
}

#endif /* CDP_SRC_MEM_VALUE_H */
