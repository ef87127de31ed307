/* text/tree.h - the content of a file, as a tree

   Knows: numbers, texts, lists and dicts of a file. Texts point into the file itself. Promises:
   memory is a chain of chunks, freed as a whole, and at most about 100 bytes for each byte of
   the file. */
#ifndef CDP_SRC_TEXT_TREE_H
#define CDP_SRC_TEXT_TREE_H

#include "../base/config.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"

/* ---- memory */

#define CDP__CHUNK 16384u

typedef struct cdp__chunk {
    struct cdp__chunk *next;
    uint64_t room, used;
} cdp__chunk;

typedef struct cdp__chunks {
    const cdp_os *os;
    cdp__chunk *first;
} cdp__chunks;

/* Allocates `bytes` bytes, aligned to 8, which live as long as the chunks. */
CDP__PRIVATE void *cdp__chunks_room(cdp__chunks *t, uint64_t bytes) {
    cdp__chunk *c = t->first;
    const uint64_t need = (bytes + 7) / 8 * 8;
    if (!c || c->room - c->used < need) {
        const uint64_t room = cdp__max(need, CDP__CHUNK);
        c = (cdp__chunk *)cdp__alloc(t->os, sizeof *c + room);
        if (!c) return NULL;
        c->room = room;
        c->used = 0;
        c->next = t->first;
        t->first = c;
    }
    c->used += need;
    return (char *)(c + 1) + c->used - need;
}

CDP__PRIVATE void cdp__chunks_close(cdp__chunks *t) {
    cdp__chunk *c, *next;
    for (c = t->first; c; c = next) {
        next = c->next;
        cdp__free(t->os, c);
    }
    t->first = NULL;
}

/* Makes room for `need` items of `each` bytes in `at`, which may move. */
CDP__PRIVATE bool cdp__more_room(
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

/* ---- values */

typedef enum cdp__tree_kind {
    CDP__TREE_NONE,
    CDP__TREE_BOOL,
    CDP__TREE_INT,
    CDP__TREE_REAL,
    CDP__TREE_TEXT,
    CDP__TREE_LIST,
    CDP__TREE_DICT,
    CDP__TREE_GLOBAL, /* of a pickle: two texts, a module and a name in it */
    CDP__TREE_RECORD, /* a global, its arguments, and its state, if it has one */
    CDP__TREE_OUTSIDE /* a value that says what lies elsewhere */
} cdp__tree_kind;

typedef struct cdp__tree cdp__tree;

typedef struct cdp__tree_box { /* a list, or a dict: key, value, key, value */
    cdp__tree *items;
    uint64_t count, room;
    uint32_t mark; /* of who uses the tree; 0 at first */
} cdp__tree_box;

struct cdp__tree {
    cdp__tree_kind kind;
    uint32_t length; /* of a text */
    union {
        int64_t whole;
        double real;
        const char *text;
        cdp__tree_box *box;
    } as;
};

#define CDP__TREE_LOOKS 256u /* keys of a dict that are compared */

typedef struct cdp__tree_reader {
    const uint8_t *data;
    uint64_t bytes, at;
    cdp__chunks memory;
    cdp__tree *stack, *memo;
    uint64_t *marks;
    uint64_t depth, stack_room, memo_count, memo_room, mark_count, mark_room;
    const char *why; /* why the file cannot be read */
    bool no_memory, unknown;
    bool records; /* a pickle may have globals, records, and values that say what lies elsewhere */
} cdp__tree_reader;

CDP__PRIVATE bool cdp__tree_bad(cdp__tree_reader *r, const char *why) {
    if (!r->why) r->why = why;
    return false;
}

CDP__PRIVATE bool cdp__tree_nomem(cdp__tree_reader *r) {
    r->no_memory = true;
    return cdp__tree_bad(r, "out of memory");
}

CDP__PRIVATE cdp__tree_box *cdp__tree_box_new(cdp__tree_reader *r) {
    cdp__tree_box *const b = (cdp__tree_box *)cdp__chunks_room(&r->memory, sizeof *b);
    if (b)
        memset(b, 0, sizeof *b);
    else
        cdp__tree_nomem(r);
    return b;
}

/* Append `count` values. */
CDP__PRIVATE bool cdp__tree_box_add(
    cdp__tree_reader *r, cdp__tree_box *b, const cdp__tree *v, uint64_t count) {
    if (b->count + count > b->room) {
        const uint64_t room = cdp__max(b->count + count, b->count * 2);
        cdp__tree *const more = (cdp__tree *)cdp__chunks_room(&r->memory, room * sizeof *v);
        if (!more) return cdp__tree_nomem(r);
        if (b->count) memcpy(more, b->items, (size_t)(b->count * sizeof *v));
        b->items = more;
        b->room = room;
    }
    if (count) memcpy(b->items + b->count, v, (size_t)(count * sizeof *v));
    b->count += count;
    return true;
}

CDP__PRIVATE bool cdp__tree_is(const cdp__tree *v, const char *text) {
    return v->kind == CDP__TREE_TEXT && v->length == strlen(text)
        && memcmp(v->as.text, text, v->length) == 0;
}

/* The value of a key in a dict; NULL: there is none. */
CDP__PRIVATE const cdp__tree *cdp__tree_get(const cdp__tree *v, const char *key) {
    uint64_t i, n;
    if (!v || v->kind != CDP__TREE_DICT) return NULL;
    n = cdp__min(v->as.box->count, 2 * CDP__TREE_LOOKS);
    for (i = 0; i + 1 < n; i += 2)
        if (cdp__tree_is(&v->as.box->items[i], key)) return &v->as.box->items[i + 1];
    return NULL;
}

CDP__PRIVATE const cdp__tree_box *cdp__tree_list(const cdp__tree *v) {
    return v && v->kind == CDP__TREE_LIST ? v->as.box : NULL;
}

CDP__PRIVATE void cdp__tree_close(cdp__tree_reader *r) {
    cdp__free(r->memory.os, r->stack);
    cdp__free(r->memory.os, r->memo);
    cdp__free(r->memory.os, r->marks);
    cdp__chunks_close(&r->memory);
}

#endif /* CDP_SRC_TEXT_TREE_H */
