/* nccl/regroup.h - derives a communicator from that of another group

   Knows: the communicator of the other group, and which of its ranks are gone. Promises: dead ranks
   block no other rank. */
#ifndef CDP_SRC_NCCL_REGROUP_H
#define CDP_SRC_NCCL_REGROUP_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../group/backend_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "load.h"
#include "bootstrap.h"
#include "watchdog.h"

/* Derives a communicator for a part of the other group's ranks. */
CDP__PRIVATE cdp_status cdp__nccl_shrink(cdp__nccl *b, cdp__nccl *old, uint64_t deadline_ns) {
    cdp__nc_settings config = cdp__nccl_settings();
    const bool broken = cdp_group_status(old->group) != CDP_OK;
    int *lost = (int *)cdp__alloc(b->os, old->size * sizeof *lost), n = 0, r;
    cdp__nccl_cell *cell = (cdp__nccl_cell *)cdp__alloc_zero(old->os, sizeof *cell);
    cdp_status st;
    uint32_t i;
    if (!lost || !cell) {
        cdp__free(b->os, lost);
        cdp__free(old->os, cell);
        return cdp__fail_nomem("a list of ranks", old->size * sizeof *lost);
    }
    for (i = 0; i < old->size; ++i)
        if (cdp_rank_of_world(b->group, cdp_world_rank_of(old->group, i)) == UINT32_MAX)
            lost[n++] = (int)i;
    if (!n) { /* no rank is missing; NCCL refuses to shrink by none */
        cdp__free(b->os, lost);
        cdp__free(old->os, cell);
        return cdp__nccl_init(b, deadline_ns);
    }
    /* its own thread must abort it first; NCCL's errors about it no longer matter */
    if (broken) {
        cdp__nccl_by_hand(old);
        (void)cdp__nccl_await(old, &old->aborted, CDP__NCCL_LEAVE_MS);
    }
    r = (int)cdp__nc.ncclCommShrink(old->comm, lost, n, &cell->comm,
        (cdp__nc_config *)(void *)&config, broken ? CDP__NC_SHRINK_ABORT : 0);
    cdp__free(b->os, lost);
    st = cdp__nccl_made(b, old, cell, r, &b->comm, deadline_ns, "cdp_nccl_attach: ncclCommShrink");
    return st == CDP_OK
        ? cdp__nccl_settle(b, b->comm, deadline_ns, "cdp_nccl_attach: ncclCommShrink")
        : st;
}

CDP__PRIVATE cdp_status cdp__nccl_grow(cdp__nccl *b, cdp__nccl *old, uint64_t deadline_ns) {
    cdp__nc_settings config = cdp__nccl_settings();
    cdp__nccl_cell *cell = NULL;
    cdp__nc_id id;
    cdp_status st;
    int r = 0;
    memset(&id, 0, sizeof id);
    if (b->rank == 0) r = (int)cdp__nc.ncclCommGetUniqueId(old->comm, &id);
    if (r != 0) {
        (void)cdp__nccl_nccl_failed(r, "cdp_nccl_attach: ncclCommGetUniqueId");
        cdp_group_fail(b->group); /* other ranks wait for this broadcast */
        return cdp_group_status(b->group);
    }
    st = cdp_broadcast(b->group, &id, sizeof id, CDP_DTYPE_U8, 0);
    if (st != CDP_OK) return st;
    if (old && !(cell = (cdp__nccl_cell *)cdp__alloc_zero(old->os, sizeof *cell)))
        return cdp__fail_nomem("a communicator", sizeof *cell);
    r = (int)cdp__nc.ncclCommGrow(old ? old->comm : NULL, (int)b->size, old && b->rank ? NULL : &id,
        old ? -1 : (int)b->rank, old ? &cell->comm : &b->comm, (cdp__nc_config *)(void *)&config);
    if (!old && r != 0 && r != CDP__NC_IN_PROGRESS)
        return cdp__nccl_refused(r, "cdp_nccl_attach: ncclCommGrow");
    st = old
        ? cdp__nccl_made(b, old, cell, r, &b->comm, deadline_ns, "cdp_nccl_attach: ncclCommGrow")
        : CDP_OK;
    return st == CDP_OK ? cdp__nccl_settle(b, b->comm, deadline_ns, "cdp_nccl_attach: ncclCommGrow")
                        : st;
}

#endif /* CDP_SRC_NCCL_REGROUP_H */
