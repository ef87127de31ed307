/* mem/scopes.h - peaks of a stretch of a program

   Knows: the scopes that are open. While some are, the peaks of the tallies are those since the
   newest began, or since peaks were reset; `whole` has those before. Promises: whenever a scope
   begins or ends, or peaks are reset, each open one gets the peaks until then, so that requests
   know nothing of scopes. */
#ifndef CDP_SRC_MEM_SCOPES_H
#define CDP_SRC_MEM_SCOPES_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "allocator_api.h"
#include "statistics_api.h"
#include "live_api.h"
#include "blocks.h"

#define CDP__MEM_SCOPED 3u /* statistics in front of a scope */

CDP__PRIVATE cdp_mem_stat *cdp__mem_scope_stats(cdp_mem_scope *s) {
    return (cdp_mem_stat *)(void *)s;
}

/* The sums now, in the order of a scope; `freed` is not set. */
CDP__PRIVATE void cdp__mem_scope_now(const cdp_mem *m, cdp_mem_stat out[CDP__MEM_SCOPED]) {
    const cdp__mem_tally *const held = &m->tally.allocated_bytes;
    const cdp__mem_tally *const reserved = &m->tally.reserved_bytes;
    out[0].current = cdp__mem_now(held);
    out[0].peak = held->peak_all;
    out[0].allocated = held->allocated[0] + held->allocated[1];
    out[1] = out[0];
    out[1].current = cdp__mem_active_bytes(m);
    out[1].peak = cdp__max(held->peak_all, m->tally.active_bytes.peak_all);
    out[2].current = cdp__mem_now(reserved);
    out[2].peak = reserved->peak_all;
    out[2].allocated = reserved->allocated[0] + reserved->allocated[1];
}

/* Passes the peaks until now on to all open scopes, and keeps them for the statistics. */
CDP__PRIVATE void cdp__mem_scopes_fold(cdp_mem *m) {
    cdp_mem_stat now[CDP__MEM_SCOPED];
    cdp_mem_scope *s;
    uint32_t i;
    memset(now, 0, sizeof now);
    cdp__mem_scope_now(m, now);
    for (i = 0; i < CDP__MEM_SCOPED; ++i)
        m->whole[i] = cdp__max(m->whole[i], now[i].peak);
    for (s = m->scopes; s; s = s->next)
        for (i = 0; i < CDP__MEM_SCOPED; ++i)
            cdp__mem_scope_stats(s)[i].peak =
                cdp__max(cdp__mem_scope_stats(s)[i].peak, now[i].peak);
}

CDP__PRIVATE void cdp__mem_scopes_peaks_set(cdp_mem *m, const uint64_t peaks[CDP__MEM_SCOPED]) {
    m->tally.allocated_bytes.peak_all = peaks[0];
    m->tally.active_bytes.peak_all = peaks[1];
    m->tally.reserved_bytes.peak_all = peaks[2];
}

/* Puts the peaks before the newest scope into a copy of the tallies for statistics. */
CDP__PRIVATE void cdp__mem_scopes_whole(const cdp_mem *m, cdp__mem_tallies *t) {
    t->allocated_bytes.peak_all = cdp__max(t->allocated_bytes.peak_all, m->whole[0]);
    t->active_bytes.peak_all = cdp__max(t->active_bytes.peak_all, m->whole[1]);
    t->reserved_bytes.peak_all = cdp__max(t->reserved_bytes.peak_all, m->whole[2]);
}

/* Call before the tallies are reset: open scopes go on as if nothing were. */
CDP__PRIVATE void cdp__mem_scopes_before_reset(cdp_mem *m, bool peak, bool accumulated) {
    cdp_mem_stat now[CDP__MEM_SCOPED];
    cdp_mem_scope *s;
    uint32_t i;
    if (peak) cdp__mem_scopes_fold(m);
    if (peak) memset(m->whole, 0, sizeof m->whole);
    memset(now, 0, sizeof now);
    cdp__mem_scope_now(m, now);
    for (s = accumulated ? m->scopes : NULL; s; s = s->next)
        for (i = 0; i < CDP__MEM_SCOPED; ++i)
            cdp__mem_scope_stats(s)[i].allocated -= now[i].allocated;
}

/* The place that points to an open scope, or the end of the list. */
CDP__PRIVATE cdp_mem_scope **cdp__mem_scope_find(cdp_mem *m, const cdp_mem_scope *scope) {
    cdp_mem_scope **at = &m->scopes;
    while (*at && *at != scope)
        at = &(*at)->next;
    return at;
}

CDP_API cdp_status cdp_mem_scope_begin(cdp_mem *mem, cdp_mem_scope *scope) {
    uint64_t peaks[CDP__MEM_SCOPED];
    bool open;
    uint32_t i;
    if (cdp__mem_here(mem, "cdp_mem_scope_begin") != CDP_OK) return cdp_last_error()->status;
    if (!scope) return cdp__missing("cdp_mem_scope_begin", "scope");
    cdp__mem_lock(mem);
    open = *cdp__mem_scope_find(mem, scope) != NULL;
    if (!open) {
        cdp_mem_stat *const s = cdp__mem_scope_stats(scope);
        cdp__mem_scopes_fold(mem);
        memset(scope, 0, sizeof *scope);
        cdp__mem_scope_now(mem, s); /* until the end, `freed` is what was current */
        for (i = 0; i < CDP__MEM_SCOPED; ++i)
            peaks[i] = s[i].peak = s[i].freed = s[i].current;
        cdp__mem_scopes_peaks_set(mem, peaks);
        scope->next = mem->scopes;
        mem->scopes = scope;
    }
    cdp__mem_unlock(mem);
    if (!open) return CDP_OK;
    return cdp__fail(CDP_ERR_INVALID,
        "cdp_mem_scope_begin: this scope is open already; end it "
        "first, or use another cdp_mem_scope");
}

CDP_API cdp_status cdp_mem_scope_end(cdp_mem *mem, cdp_mem_scope *scope) {
    cdp_mem_stat now[CDP__MEM_SCOPED];
    cdp_mem_scope **at;
    bool open;
    uint32_t i;
    if (cdp__mem_here(mem, "cdp_mem_scope_end") != CDP_OK) return cdp_last_error()->status;
    if (!scope) return cdp__missing("cdp_mem_scope_end", "scope");
    memset(now, 0, sizeof now);
    cdp__mem_lock(mem);
    at = cdp__mem_scope_find(mem, scope);
    open = *at != NULL;
    if (open) {
        cdp_mem_stat *const s = cdp__mem_scope_stats(scope);
        cdp__mem_scopes_fold(mem);
        *at = scope->next;
        scope->next = NULL;
        cdp__mem_scope_now(mem, now);
        for (i = 0; i < CDP__MEM_SCOPED; ++i) {
            s[i].allocated = now[i].allocated - s[i].allocated;
            s[i].freed = s[i].freed + s[i].allocated - now[i].current;
            s[i].current = now[i].current;
        }
        if (!mem->scopes) cdp__mem_scopes_peaks_set(mem, mem->whole);
        if (!mem->scopes) memset(mem->whole, 0, sizeof mem->whole);
    }
    cdp__mem_unlock(mem);
    if (open) return CDP_OK;
    return cdp__fail(CDP_ERR_INVALID,
        "cdp_mem_scope_end: this scope is not open: it was not begun with this allocator, or it "
        "ended already");
}

#endif /* CDP_SRC_MEM_SCOPES_H */
