/* checkpoint/verdict.h - one status for all ranks

   Knows: statuses of all ranks. Promises: after a verdict every rank returns the same status and
   text, and the group stays usable unless it failed itself. */
#ifndef CDP_SRC_CHECKPOINT_VERDICT_H
#define CDP_SRC_CHECKPOINT_VERDICT_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/bytes.h"
#include "../base/text.h"
#include "../text/format.h"

typedef struct cdp__ck_word {
    uint8_t status[4], sys_errno[4], peer[4];
    char text[CDP_ERROR_TEXT];
} cdp__ck_word;

/* Writes the error of this rank down for the others. `told`: all ranks have been told it already,
   so it says whose it is. */
CDP__PRIVATE void cdp__ck_word_fill(cdp__ck_word *w, cdp_group *g, const cdp_error *e, bool told) {
    cdp__text t = cdp__text_of(w->text, sizeof w->text);
    memset(w, 0, sizeof *w);
    cdp__put_u32(w->status, (uint32_t)(int32_t)e->status);
    cdp__put_u32(w->sys_errno, (uint32_t)e->sys_errno);
    cdp__put_u32(w->peer, told ? (uint32_t)e->peer : cdp_world_rank_of(g, cdp_rank(g)));
    if (cdp_size(g) > 1 && !told) cdp__text_add(&t, "rank %u: ", (unsigned)cdp_rank(g));
    cdp__text_add(&t, "%s", e->text);
    (void)cdp__text_end(&t);
}

/* Makes what a rank wrote down the error of this rank. */
CDP__PRIVATE cdp_status cdp__ck_word_take(cdp__ck_word *w) {
    int32_t status = (int32_t)cdp__get_u32(w->status);
    const int32_t err = (int32_t)cdp__get_u32(w->sys_errno);
    w->text[sizeof w->text - 1] = 0;
    if (status >= 0) status = CDP_ERR_INTERNAL;
    (void)cdp_error_set((cdp_status)status, (int32_t)cdp__get_u32(w->peer), 0, "%s", w->text);
    cdp__error_slot()->sys_errno = err;
    return (cdp_status)status;
}

/* Makes the error of rank `from` that of all ranks. */
CDP__PRIVATE cdp_status cdp__ck_take(cdp_group *g, uint32_t from, bool told) {
    cdp__ck_word w;
    cdp_status st;
    memset(&w, 0, sizeof w);
    if (cdp_rank(g) == from) cdp__ck_word_fill(&w, g, cdp_last_error(), told);
    st = cdp_size(g) > 1 ? cdp_broadcast(g, &w, sizeof w, CDP_DTYPE_U8, from) : CDP_OK;
    return st == CDP_OK ? cdp__ck_word_take(&w) : st;
}

/* Every rank brings its status, and if that is a failure, its last error. The failure of the
   lowest rank is that of all. */
CDP__PRIVATE cdp_status cdp__ck_verdict_of(cdp_group *g, cdp_status mine, bool told) {
    uint32_t failed = mine == CDP_OK ? UINT32_MAX : cdp_rank(g), first = UINT32_MAX;
    cdp_status st;
    if (cdp_group_status(g) != CDP_OK) return cdp_last_error()->status;
    if (cdp_size(g) == 1)
        first = failed;
    else {
        const cdp_error own = *cdp_last_error();
        st = cdp_allreduce(g, &failed, &first, 1, CDP_DTYPE_U32, CDP_REDUCE_MIN);
        if (st != CDP_OK) return st;
        *cdp__error_slot() = own;
    }
    return first == UINT32_MAX ? CDP_OK : cdp__ck_take(g, first, told);
}

CDP__PRIVATE cdp_status cdp__ck_verdict(cdp_group *g, cdp_status mine) {
    return cdp__ck_verdict_of(g, mine, false);
}

#endif /* CDP_SRC_CHECKPOINT_VERDICT_H */
