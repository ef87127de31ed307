/* mem/budgets.h - what blocks with a label may hold

   Knows: budgets of labels, and which labels lie inside others. Promises: a request above a budget
   changes nothing. */
#ifndef CDP_SRC_MEM_BUDGETS_H
#define CDP_SRC_MEM_BUDGETS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "allocator_api.h"
#include "live_api.h"
#include "sizes.h"
#include "depot.h"
#include "labels.h"
#include "blocks.h"
#include "history.h"
#include "out_of_memory.h"
#include "lifetime.h"

/* True if `text` is the label of a budget, or lies inside it. */
CDP__PRIVATE bool cdp__mem_budget_covers(const cdp__mem_budget *b, const char *text) {
    const size_t length = strlen(b->text);
    return strncmp(b->text, text, length) == 0 && (!text[length] || text[length] == '/');
}

/* What its label and those inside it hold. */
CDP__PRIVATE uint64_t cdp__mem_budget_held(const cdp_mem *m, const cdp__mem_budget *b) {
    const cdp__mem_labels *const l = &m->log.labels;
    uint64_t held = 0;
    uint32_t i;
    for (i = 0; i < l->used; ++i)
        if (l->at[i].bytes && cdp__mem_budget_covers(b, l->at[i].text)) held += l->at[i].bytes;
    return held;
}

/* Looks whether a request fits into the budgets of this thread's label. The caller holds the
   lock. */
CDP__PRIVATE CDP__COLD cdp_status cdp__mem_budget_check(const cdp_mem *m, uint64_t bytes) {
    const uint64_t size = cdp__mem_round(&m->sizes, bytes);
    const cdp__mem_thread *const t = cdp__mem_thread_own();
    char asked[32], most[32], has[32];
    uint32_t i;
    for (i = 0; i < CDP__MEM_WATCHERS && t->depth; ++i) {
        const cdp__mem_budget *const b = &m->budgets[i];
        uint64_t held;
        if (!b->bytes || !cdp__mem_budget_covers(b, t->text)) continue;
        held = cdp__mem_budget_held(m, b);
        if (size <= b->bytes && held <= b->bytes - size) continue;
        return cdp__fail(CDP_ERR_NOMEM,
            "cdp_mem_alloc: no %s for \"%s\": the budget of \"%s\" is %s, of which %s are held; "
            "raise it with cdp_mem_set_budget, or free blocks with this label",
            cdp__mem_size_text(asked, bytes), t->text, b->text, cdp__mem_size_text(most, b->bytes),
            cdp__mem_size_text(has, held));
    }
    return CDP_OK;
}

CDP_API cdp_status cdp_mem_set_budget(cdp_mem *mem, const char *label, uint64_t bytes) {
    cdp__mem_budget *b = NULL, *vacant = NULL;
    cdp_status st = CDP_OK;
    uint32_t i;
    if (cdp__mem_here(mem, "cdp_mem_set_budget") != CDP_OK) return cdp_last_error()->status;
    if (!label || !label[0]) return cdp__missing("cdp_mem_set_budget", "label");
    if (strlen(label) >= CDP__MEM_LABEL_BYTES)
        return cdp__fail(CDP_ERR_INVALID, "cdp_mem_set_budget: the label has more than %u bytes",
            CDP__MEM_LABEL_BYTES - 1);
    cdp__mem_lock(mem);
    for (i = 0; i < CDP__MEM_WATCHERS; ++i) {
        if (!mem->budgets[i].bytes)
            vacant = &mem->budgets[i];
        else if (strcmp(mem->budgets[i].text, label) == 0)
            b = &mem->budgets[i];
    }
    if (!b) b = vacant;
    if (bytes && !mem->log.labels.os)
        st = cdp__fail(CDP_ERR_STATE,
            "cdp_mem_set_budget: nothing is recorded, so no label holds bytes; record with history "
            "STATE first");
    else if (bytes && !b)
        st = cdp__fail(CDP_ERR_INVALID,
            "cdp_mem_set_budget: %u labels have a budget already; set one of them to 0 first",
            CDP__MEM_WATCHERS);
    if (st == CDP_OK && b && (bytes || b != vacant)) {
        b->bytes = bytes;
        cdp__mem_text_copy(b->text, label, sizeof b->text);
    }
    mem->has_budgets = false;
    for (i = 0; i < CDP__MEM_WATCHERS; ++i)
        mem->has_budgets = mem->has_budgets || mem->budgets[i].bytes;
    cdp__mem_unlock(mem);
    return st;
}

#endif /* CDP_SRC_MEM_BUDGETS_H */
