/* mem/unjson.h - JSON as a tree

   Knows: which piece of JSON is which value. Promises: no recursion; texts with escapes are
   copied. */
#ifndef CDP_SRC_MEM_UNJSON_H
#define CDP_SRC_MEM_UNJSON_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../text/json_read.h"
#include "../base/basics.h"
#include "../text/tree.h"
#include "../text/unpickle.h"

CDP__PRIVATE bool cdp__mem_json_text(
    cdp__tree_reader *r, const cdp__json_reader *j, cdp__tree *out) {
    char *copy;
    *out = cdp__pk_whole(CDP__TREE_TEXT, 0);
    out->as.text = (const char *)j->text;
    out->length = (uint32_t)cdp__min(j->length, UINT32_MAX);
    if (!j->escapes) return true;
    copy = (char *)cdp__chunks_room(&r->memory, j->length + 1);
    if (!copy) return cdp__tree_nomem(r);
    out->length = (uint32_t)cdp__min(cdp__json_decode(j, copy), UINT32_MAX);
    out->as.text = copy;
    return true;
}

/* Makes a value of a piece. A container is pushed on the stack of those that are open. */
CDP__PRIVATE bool cdp__mem_json_value(
    cdp__tree_reader *r, const cdp__json_reader *j, cdp__json_kind kind, cdp__tree *out) {
    switch (kind) {
    case CDP__JSON_KEY:
    case CDP__JSON_TEXT: return cdp__mem_json_text(r, j, out);
    case CDP__JSON_WHOLE: *out = cdp__pk_whole(CDP__TREE_INT, j->whole); break;
    case CDP__JSON_REAL:
        *out = cdp__pk_whole(CDP__TREE_REAL, 0);
        out->as.real = j->real;
        break;
    case CDP__JSON_TRUE:
    case CDP__JSON_FALSE: *out = cdp__pk_whole(CDP__TREE_BOOL, kind == CDP__JSON_TRUE); break;
    case CDP__JSON_DICT:
    case CDP__JSON_LIST:
        if (!cdp__pk_push_box(r, kind == CDP__JSON_DICT ? CDP__TREE_DICT : CDP__TREE_LIST))
            return false;
        *out = r->stack[r->depth - 1];
        break;
    default: *out = cdp__pk_whole(CDP__TREE_NONE, 0); break;
    }
    return true;
}

CDP__PRIVATE bool cdp__mem_unjson(cdp__tree_reader *r, cdp__tree *out) {
    cdp__json_reader j = cdp__json_open(r->data, r->bytes);
    cdp__json_kind kind;
    for (; (kind = cdp__json_next(&j)) != CDP__JSON_END; r->at = j.at) {
        cdp__tree_box *const in = r->depth ? r->stack[r->depth - 1].as.box : NULL;
        cdp__tree v;
        if (kind == CDP__JSON_CLOSE) {
            --r->depth;
            continue;
        }
        r->at = j.at;
        if (kind == CDP__JSON_BAD) return cdp__tree_bad(r, j.why);
        if (!cdp__mem_json_value(r, &j, kind, &v)) return false;
        if (!in)
            *out = v;
        else if (!cdp__tree_box_add(r, in, &v, 1))
            return false;
    }
    return true;
}

#endif /* CDP_SRC_MEM_UNJSON_H */
