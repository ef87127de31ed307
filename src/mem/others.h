/* mem/others.h - what a file says under keys that are not known here

   Knows: how such values are kept as tokens, so that they are written again. Promises: no more
   tokens than the file has bytes: a pickle that repeats a large value loses it. */
#ifndef CDP_SRC_MEM_OTHERS_H
#define CDP_SRC_MEM_OTHERS_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../text/format.h"
#include "../base/basics.h"
#include "../text/tree.h"
#include "texts.h"
#include "shot.h"
#include "value.h"

/* Adds a token. NULL: out of memory (r->no_memory), or there are as many as the file has bytes. */
CDP__PRIVATE cdp__mem_token *cdp__mem_token_add(
    cdp__tree_reader *r, cdp_mem_shot *s, cdp__tree_kind kind, uint64_t count) {
    cdp__mem_token *t;
    if (s->token_count > r->bytes) return NULL;
    if (!cdp__mem_add(s, token, 2)) {
        cdp__tree_nomem(r);
        return NULL;
    }
    if (!s->token_count) memset(&s->tokens[s->token_count++], 0, sizeof *t);
    t = &s->tokens[s->token_count++];
    memset(t, 0, sizeof *t);
    t->kind = kind;
    t->count = (uint32_t)count;
    return t;
}

CDP__PRIVATE const char *cdp__mem_token_text(
    cdp__tree_reader *r, cdp_mem_shot *s, const char *text, uint64_t bytes) {
    const char *const copy = cdp__mem_text_of(&s->texts, text, bytes);
    if (!copy) cdp__tree_nomem(r);
    return copy;
}

/* Adds the key of a dict: a text, or a number as text. */
CDP__PRIVATE bool cdp__mem_token_key(cdp__tree_reader *r, cdp_mem_shot *s, const cdp__tree *v) {
    cdp__mem_token *const t = cdp__mem_token_add(r, s, CDP__TREE_TEXT, 0);
    char number[24] = "?";
    if (!t) return false;
    if (v->kind == CDP__TREE_INT)
        (void)cdp__format(number, sizeof number, "%lld", (long long)v->as.whole);
    t->as.text = v->kind == CDP__TREE_TEXT ? cdp__mem_token_text(r, s, v->as.text, v->length)
                                           : cdp__mem_token_text(r, s, number, strlen(number));
    return t->as.text != NULL;
}

/* Adds a value without what it holds. */
CDP__PRIVATE bool cdp__mem_token_value(cdp__tree_reader *r, cdp_mem_shot *s, const cdp__tree *v) {
    const bool box = v->kind == CDP__TREE_LIST || v->kind == CDP__TREE_DICT;
    const uint64_t count = box ? v->as.box->count : 0;
    cdp__mem_token *const t =
        cdp__mem_token_add(r, s, v->kind, v->kind == CDP__TREE_DICT ? count / 2 : count);
    if (!t) return false;
    if (v->kind == CDP__TREE_REAL)
        t->as.real = v->as.real;
    else if (v->kind == CDP__TREE_TEXT)
        t->as.text = cdp__mem_token_text(r, s, v->as.text, v->length);
    else if (!box)
        t->as.whole = v->as.whole;
    return v->kind != CDP__TREE_TEXT || t->as.text;
}

/* Adds a value and everything that it holds. */
CDP__PRIVATE bool cdp__mem_token_tree(cdp__tree_reader *r, cdp_mem_shot *s, const cdp__tree *v) {
    struct {
        const cdp__tree *box;
        uint64_t at;
    } open[CDP__MEM_DEEP];
    uint32_t depth = 0;
    for (;;) {
        if (!cdp__mem_token_value(r, s, v)) return false;
        if (v->kind == CDP__TREE_LIST || v->kind == CDP__TREE_DICT) {
            if (depth == CDP__MEM_DEEP) return false;
            open[depth].box = v;
            open[depth++].at = 0;
        }
        while (depth && open[depth - 1].at == open[depth - 1].box->as.box->count)
            --depth;
        if (!depth) return true;
        v = &open[depth - 1].box->as.box->items[open[depth - 1].at++];
        if (open[depth - 1].box->kind != CDP__TREE_DICT) continue;
        if (!cdp__mem_token_key(r, s, v)) return false;
        v = &open[depth - 1].box->as.box->items[open[depth - 1].at++];
    }
}

/* Keeps the pairs of a dict whose keys are none of these words, which end with NULL. *out: the
   number of the token, a dict; 0: there are none. */
CDP__PRIVATE bool cdp__mem_import_others(cdp__tree_reader *r, cdp_mem_shot *s,
    const cdp__tree *dict, const char *const *words, uint32_t *out) {
    const cdp__tree_box *const b = dict->kind == CDP__TREE_DICT ? dict->as.box : NULL;
    uint64_t i, k, before;
    *out = 0;
    for (i = 0; b && i + 1 < b->count; i += 2) {
        for (k = 0; words[k] && !cdp__tree_is(&b->items[i], words[k]); ++k) {
        }
        if (words[k]) continue;
        if (!*out && !cdp__mem_token_add(r, s, CDP__TREE_DICT, 0)) return !r->no_memory;
        if (!*out) *out = (uint32_t)s->token_count - 1;
        before = s->token_count;
        if (cdp__mem_token_key(r, s, &b->items[i]) && cdp__mem_token_tree(r, s, &b->items[i + 1]))
            ++s->tokens[*out].count;
        else
            s->token_count = before;
    }
    return !r->no_memory;
}

/* Keeps a whole value, if it is of this kind. */
CDP__PRIVATE bool cdp__mem_import_whole(
    cdp__tree_reader *r, cdp_mem_shot *s, const cdp__tree *v, cdp__tree_kind kind, uint32_t *out) {
    *out = 0;
    if (!v || v->kind != kind) return true;
    *out = (uint32_t)(s->token_count ? s->token_count : 1);
    if (cdp__mem_token_tree(r, s, v)) return true;
    s->token_count = *out;
    *out = 0;
    return !r->no_memory;
}

#endif /* CDP_SRC_MEM_OTHERS_H */
