/* mem/value.h - numbers of a snapshot

   Knows: values of a tree. Promises: any value is a number that the writers can write. */
#ifndef CDP_SRC_MEM_VALUE_H
#define CDP_SRC_MEM_VALUE_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/tree.h"
#include "pickle.h"

#define CDP__MEM_TEXT_MAX 4096u /* longer texts are truncated */

/* A number from 0 to 2^53; `other` if there is none. */
CDP__PRIVATE uint64_t cdp__mem_number_of(const cdp__tree *v, uint64_t other) {
    if (v && v->kind == CDP__TREE_REAL && v->as.real >= 0)
        return v->as.real < 9007199254740992.0 ? (uint64_t)v->as.real : CDP__MEM_NUMBER_MAX;
    if (!v || (v->kind != CDP__TREE_INT && v->kind != CDP__TREE_BOOL) || v->as.whole < 0)
        return other;
    return cdp__min((uint64_t)v->as.whole, CDP__MEM_NUMBER_MAX);
}

#endif /* CDP_SRC_MEM_VALUE_H */
