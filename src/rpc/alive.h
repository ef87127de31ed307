/* rpc/alive.h - which rpcs of this process exist, and which contexts are gone with theirs

   Knows: addresses. Promises: a call, a reference or a context that the program still holds after
   cdp_rpc_destroy() is recognized without touching freed memory, from any thread, without a lock
   that a child of fork() could find taken. */
#ifndef CDP_SRC_RPC_ALIVE_H
#define CDP_SRC_RPC_ALIVE_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "worker_api.h"

#define CDP__RPCS_MAX 1024u /* in one process at once: a power of two */

typedef struct cdp__rpcs {
    cdp_rpc *at[CDP__RPCS_MAX]; /* NULL: none */
    uint32_t created;           /* in this process so far */
} cdp__rpcs;

CDP__PRIVATE cdp__rpcs *cdp__rpcs_of_process(void) {
    static cdp__rpcs rpcs;
    return &rpcs;
}

/* Replaces `from` by `to` in the table. It is stored near the place that its address gives, so that
   most searches look at one entry. False: `from` is not there. */
CDP__PRIVATE bool cdp__rpcs_replace(const cdp_rpc *of, cdp_rpc *from, cdp_rpc *to) {
    cdp__rpcs *t = cdp__rpcs_of_process();
    const uint32_t first = (uint32_t)((uintptr_t)of >> 6);
    uint32_t i;
    for (i = 0; i < CDP__RPCS_MAX; ++i) {
        cdp_rpc **at = &t->at[(first + i) % CDP__RPCS_MAX];
        cdp_rpc *expected = from;
        if (cdp__atomic_load_ptr(at, CDP__ACQUIRE) != from) continue;
        if (cdp__atomic_cas_ptr(at, &expected, to, CDP__ACQ_REL, CDP__ACQUIRE)) return true;
    }
    return false;
}

/* False: there are too many. */
CDP__PRIVATE bool cdp__rpc_enlist(cdp_rpc *rpc) {
    return cdp__rpcs_replace(rpc, NULL, rpc);
}

CDP__PRIVATE void cdp__rpc_delist(cdp_rpc *rpc) {
    (void)cdp__rpcs_replace(rpc, rpc, NULL);
}

/* False: it was destroyed. */
CDP__PRIVATE bool cdp__rpc_exists(const cdp_rpc *rpc) {
    cdp__rpcs *t = cdp__rpcs_of_process();
    const uint32_t first = (uint32_t)((uintptr_t)rpc >> 6);
    uint32_t i;
    for (i = 0; i < CDP__RPCS_MAX; ++i)
        if (cdp__atomic_load_ptr(&t->at[(first + i) % CDP__RPCS_MAX], CDP__ACQUIRE) == rpc)
            return true;
    return false;
}

/* Where a table of references begins to count the uses of its slots: references of an rpc that was
   at the same address before do not fit its slots. */
CDP__PRIVATE uint32_t cdp__rpc_first_use(void) {
    return cdp__atomic_add_u32(&cdp__rpcs_of_process()->created, 1, CDP__RELAXED) * 0x9e3779b1u;
}

/* Contexts that the program had not ended when their rpc was destroyed: the last ones. */
#define CDP__CTX_ORPHANS 256u

typedef struct cdp__ctx_orphans {
    cdp_ctx *at[CDP__CTX_ORPHANS]; /* NULL: none */
    uint32_t count;                /* so many so far; each replaces the oldest one */
} cdp__ctx_orphans;

CDP__PRIVATE cdp__ctx_orphans *cdp__ctx_orphans_of_process(void) {
    static cdp__ctx_orphans orphans;
    return &orphans;
}

/* The rpc of a context is destroyed: its memory will be freed. */
CDP__PRIVATE void cdp__ctx_orphan(cdp_ctx *ctx) {
    cdp__ctx_orphans *t = cdp__ctx_orphans_of_process();
    const uint32_t count = cdp__atomic_add_u32(&t->count, 1, CDP__ACQ_REL);
    cdp_ctx **at = &t->at[count % CDP__CTX_ORPHANS];
    cdp_ctx *oldest = cdp__atomic_load_ptr(at, CDP__ACQUIRE);
    while (!cdp__atomic_cas_ptr(at, &oldest, ctx, CDP__ACQ_REL, CDP__ACQUIRE)) {
    }
}

/* True if this context is gone with its rpc. */
CDP__PRIVATE bool cdp__ctx_is_orphan(const cdp_ctx *ctx) {
    cdp__ctx_orphans *t = cdp__ctx_orphans_of_process();
    uint32_t i;
    if (!ctx || !cdp__atomic_load_u32(&t->count, CDP__ACQUIRE)) return false;
    for (i = 0; i < CDP__CTX_ORPHANS; ++i)
        if (cdp__atomic_load_ptr(&t->at[i], CDP__ACQUIRE) == ctx) return true;
    return false;
}

/* The memory at this address is that of a new context now. */
CDP__PRIVATE void cdp__ctx_adopt(cdp_ctx *ctx) {
    cdp__ctx_orphans *t = cdp__ctx_orphans_of_process();
    uint32_t i;
    if (!cdp__atomic_load_u32(&t->count, CDP__ACQUIRE)) return;
    for (i = 0; i < CDP__CTX_ORPHANS; ++i) {
        cdp_ctx *expected = ctx;
        (void)cdp__atomic_cas_ptr(&t->at[i], &expected, NULL, CDP__ACQ_REL, CDP__ACQUIRE);
    }
}

#endif /* CDP_SRC_RPC_ALIVE_H */
