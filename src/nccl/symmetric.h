/* nccl/symmetric.h - memory that all ranks register together

   Knows: windows of NCCL, which all ranks open together, and whose location depends on the existing
   windows. Promises: no rank calls NCCL before all ranks have agreed to do so with the same size
   and the same existing windows; in the end all ranks have the memory, or none. */
#ifndef CDP_SRC_NCCL_SYMMETRIC_H
#define CDP_SRC_NCCL_SYMMETRIC_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../base/log_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/backend_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "load.h"
#include "bootstrap.h"
#include "stream.h"
#include "memory.h"

static const char cdp__nccl_symmetric_name[] = "cdp_nccl_alloc_symmetric";

CDP__PRIVATE bool cdp__nccl_has_windows(void) {
    return cdp__nc.ncclCommWindowRegister && cdp__nc.ncclCommWindowDeregister;
}

/* All ranks sent OK: compares their sizes and existing windows. */
CDP__PRIVATE cdp_status cdp__nccl_symmetric_compare(
    const cdp__nccl *b, const cdp__nccl_hello *all) {
    const uint32_t zero = cdp_world_rank_of(b->group, 0);
    uint32_t r;
    for (r = 1; r < b->size; ++r) {
        const uint32_t rank = cdp_world_rank_of(b->group, r);
        if (all[r].bytes != all[0].bytes)
            return cdp__fail_peer(CDP_ERR_MISMATCH, rank, 0,
                "%s: rank %u asks for %llu bytes, rank %u for %llu; give all ranks the same size",
                cdp__nccl_symmetric_name, zero, (unsigned long long)all[0].bytes, rank,
                (unsigned long long)all[r].bytes);
        if (all[r].hash != all[0].hash)
            return cdp__fail_peer(CDP_ERR_MISMATCH, rank, 0,
                "%s: rank %u has not freed the same symmetric memory as rank %u; free it alike on "
                "all ranks, and not inside a capture, before more is allocated",
                cdp__nccl_symmetric_name, rank, zero);
    }
    return CDP_OK;
}

/* The number of ranks that support windows, or have one, according to their messages. */
CDP__PRIVATE uint32_t cdp__nccl_symmetric_windows(const cdp__nccl *b, const cdp__nccl_hello *all) {
    uint32_t n = 0, r;
    for (r = 0; r < b->size; ++r)
        n += all[r].windows;
    return n;
}

/* Calls NCCL, which waits for all ranks. OK without a window: these GPUs do not support it. An
   error fails the group: other ranks are inside NCCL, and the communicator may stay in progress
   for ever. */
CDP__PRIVATE cdp_status cdp__nccl_symmetric_open(cdp__nccl *b, cdp__nccl_memory *m) {
    const uint64_t deadline_ns = cdp__deadline(b->os, b->timeout_ms);
    static const char what[] = "cdp_nccl_alloc_symmetric: ncclCommWindowRegister";
    cdp_status st = cdp__nccl_enter(b);
    int r;
    if (st == CDP_OK) {
        st = cdp__nccl_over(b, what);
        if (st == CDP_OK) {
            m->opening = true;
            r = (int)cdp__nc.ncclCommWindowRegister(
                b->comm, m->data, (size_t)m->bytes, &m->window, CDP__NC_WINDOW_SYMMETRIC);
            st = r == 0 || r == CDP__NC_IN_PROGRESS
                ? cdp__nccl_settle(b, b->comm, deadline_ns, what)
                : cdp__nccl_nccl_failed(r, what);
        }
        cdp__nccl_leave(b);
    }
    m->opening = m->opening && st != CDP_OK;
    return st == CDP_OK ? CDP_OK : cdp__nccl_break(b);
}

CDP__PRIVATE void cdp__nccl_symmetric_warn(cdp__nccl *b, const cdp__nccl_memory *m) {
    char why[96] = "NCCL gives no window, because GPUs cannot reach each other's memory";
    (void)m; /* unused without log texts */
    if (b->symmetric_warned || b->rank != 0) return;
    b->symmetric_warned = true;
    if (!cdp__nccl_has_windows())
        cdp__format(why, sizeof why, "NCCL %d.%d has no ncclCommWindowRegister", b->version / 10000,
            b->version / 100 % 100);
    cdp__log(&cdp_group_desc_of(b->group)->logger, CDP_LOG_WARN, (int32_t)b->rank,
        m->handle ? "%s: memory is registered with ncclCommRegister and not symmetric: %s"
                  : "%s: memory is neither symmetric nor registered: %s",
        cdp__nccl_symmetric_name, why);
}

/* Registers `m` on all ranks. If this rank has no memory, `st` is the reason. */
CDP__PRIVATE cdp_status cdp__nccl_symmetric_register(
    cdp__nccl *b, cdp__nccl_memory *m, cdp_status st, cdp__nccl_hello *all, uint64_t bytes) {
    /* longer than NCCL's call and settling its failure take, so that a rank on which NCCL hangs
       fails the group before other ranks time out here */
    const uint32_t longer = b->timeout_ms > CDP_NO_TIMEOUT / 4
        ? CDP_NO_TIMEOUT
        : 2 * b->timeout_ms + CDP__NCCL_LEAVE_MS;
    cdp__nccl_hello *const mine = &all[b->rank];
    mine->bytes = bytes;
    mine->windows = cdp__nccl_has_windows() ? 1 : 0;
    cdp_lock_acquire(&b->lock);
    mine->hash = b->symmetric_hash;
    cdp_lock_release(&b->lock);
    st = cdp__nccl_gather(b, st, all, cdp__nccl_symmetric_name, 0);
    if (st == CDP_OK) st = cdp__nccl_symmetric_compare(b, all);
    if (st != CDP_OK) return st;
    if (cdp__nccl_symmetric_windows(b, all) == b->size) {
        st = cdp__nccl_symmetric_open(b, m);
        if (st != CDP_OK) return st;
    }
    if (!m->window) st = cdp__nccl_memory_register(b, m, bytes);
    mine->windows = m->window ? 1 : 0;
    st = cdp__nccl_gather(b, st, all, cdp__nccl_symmetric_name, longer);
    if (st != CDP_OK) return st;
    if (cdp__nccl_symmetric_windows(b, all) % b->size)
        return cdp__fail(CDP_ERR_MISMATCH,
            "%s: NCCL gave a window to %u of %u ranks; the same settings of NCCL belong on all",
            cdp__nccl_symmetric_name, cdp__nccl_symmetric_windows(b, all), b->size);
    if (!m->window) cdp__nccl_symmetric_warn(b, m);
    return CDP_OK;
}

/* Releases memory that did not become symmetric. If NCCL may still know it, it is freed with the
   group. */
CDP__PRIVATE void cdp__nccl_symmetric_undo(cdp__nccl *b, cdp__nccl_memory *m) {
    const cdp_error e = *cdp_last_error();
    if (!m->opening && cdp__nccl_memory_deregister(b, m))
        cdp__nccl_memory_drop(b, m);
    else
        cdp__nccl_memory_keep(b, m);
    *cdp__error_slot() = e;
}

CDP__PRIVATE CDP__COLD cdp_status cdp__nccl_symmetric_alloc(
    cdp__nccl *b, uint64_t bytes, void **out) {
    cdp__nccl_hello *const all = (cdp__nccl_hello *)cdp__alloc_zero(b->os, b->size * sizeof *all);
    cdp__nccl_memory *m;
    cdp_status st;
    if (!all) {
        st = cdp__fail_nomem(cdp__nccl_symmetric_name, b->size * sizeof *all);
        cdp_group_fail(b->group); /* other ranks wait for this rank's message */
        return st;
    }
    m = cdp__nccl_memory_take(b, bytes);
    if (m) m->bytes = bytes;
    st = m ? CDP_OK : cdp_last_error()->status;
    st = cdp__nccl_symmetric_register(b, m, st, all, bytes);
    cdp__free(b->os, all);
    if (st != CDP_OK) {
        if (m) cdp__nccl_symmetric_undo(b, m);
        return st;
    }
    m->number = ++b->symmetric_count;
    cdp_lock_acquire(&b->lock);
    b->symmetric_hash += cdp__nccl_symmetric_part(m->number);
    cdp_lock_release(&b->lock);
    cdp__nccl_memory_keep(b, m);
    *out = m->data;
    return CDP_OK;
}

#endif /* CDP_SRC_NCCL_SYMMETRIC_H */
