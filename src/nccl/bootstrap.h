/* nccl/bootstrap.h - creates a communicator of all ranks

   Knows: how a communicator is created. Promises: it exists on all ranks or on none, by a
   deadline. */
#ifndef CDP_SRC_NCCL_BOOTSTRAP_H
#define CDP_SRC_NCCL_BOOTSTRAP_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../group/backend_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/utf8.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../os/linux.h"
#include "../group/state.h"
#include "desc_api.h"
#include "load.h"
#include "map.h"

/* Operations with an event of their own; the event of a later operation covers those before it. */
#define CDP__NCCL_RING 64u
#define CDP__NCCL_LEAVE_MS 5000u /* time for this rank's own work when it leaves */
#define CDP__NCCL_FINAL_MS 300u  /* time for the other ranks' consent, which may never come */

/* Kernels that only hooks use. */
typedef enum cdp__nccl_hook_kernel {
    CDP__NK_FEED,
    CDP__NK_BEGIN,
    CDP__NK_COUNTS,
    CDP__NK_SUM,
    CDP__NK_PICK,
    CDP__NK_PARTS,
    CDP__NK_GROUPS,
    CDP__NK_WRITE,
    CDP__NK_ADD,
    CDP__NK_DIVIDE,
    CDP__NK_RANGE_PARTS,
    CDP__NK_RANGE,
    CDP__NK_QUANTIZE,
    CDP__NK_DEQUANTIZE,
    CDP__NK_COUNT
} cdp__nccl_hook_kernel;

/* An operation: the event behind it, and what an error says if it is late. */
typedef struct cdp__nccl_op {
    cdp__cu_event event;
    uint64_t index; /* from 1; captured operations have their own count */
    uint64_t deadline_ns, timeout_ms, count;
    cdp_coll_kind kind;
    cdp_dtype dtype;
    cdp_reduce_op op;
    uint32_t many; /* number of operations in one call */
} cdp__nccl_op;

/* Memory that the caller or a ddp has allocated. */
typedef struct cdp__nccl_memory {
    struct cdp__nccl_memory *next;
    void *data, *handle; /* handle: of its registration; NULL: none */
    cdp__nc_window window;
    uint64_t bytes;     /* symmetric memory: its length */
    uint64_t number;    /* symmetric memory: its number, from 1, equal on all ranks; else 0 */
    bool nccl;          /* from ncclMemAlloc */
    bool opening;       /* NCCL may still write `window` */
    cdp_allocator from; /* allocator of cdp_nccl_set_memory; alloc NULL: CUDA or NCCL */
} cdp__nccl_memory;

/* Where NCCL stores a communicator derived from another one. It may do so late, after the caller
   has given up waiting. */
typedef struct cdp__nccl_cell {
    struct cdp__nccl_cell *next;
    cdp__nc_comm comm;
} cdp__nccl_cell;

typedef struct cdp__nccl {
    cdp_group *group;
    /* while its communicator is derived from that of this group; else NULL */
    struct cdp__nccl *parent;
    const cdp_os *os;
    uint32_t rank, size, timeout_ms;
    int device, version;
    int capability; /* compute capability of the device (90 is 9.0), the lowest of all ranks */
    cdp__nc_comm comm;
    cdp__cu_stream caller, stream;
    cdp__cu_event begin, all;
    cdp__nccl_memory *memories;

    /* Guarded by `lock`. No thread holds it while it calls the group, or anything that may take
       long. */
    cdp_lock lock;
    void *cond, *thread;
    bool inside;     /* a thread is calling NCCL; `comm` must not change */
    bool abandoned;  /* `comm` was aborted under that thread, which clears it when it leaves */
    bool stop;       /* the keeper thread must end */
    bool resting;    /* the keeper thread has ended or does not exist */
    bool aborted;    /* aborted, or revoked to be kept: the communicator no longer blocks streams */
    uint32_t failed; /* the group has failed (atomic) */

    cdp_nccl_desc desc;
    bool installed; /* the group uses this backend */
    char name[48];
    uint64_t issued, captures; /* operations in both rings; written by the thread inside NCCL */
    /* operations completed, counted by the stream; only with a watchdog (atomic) */
    uint64_t ended;
    cdp_allocator from; /* source of memory; alloc NULL: CUDA or NCCL */
    /* symmetric allocations so far, and a hash of the numbers of the live ones (guarded by
       `lock`) */
    uint64_t symmetric_count, symmetric_hash;
    bool symmetric_warned; /* the warning that there are no windows was logged */
    /* for calls that did not complete: kept until the communicator ends */
    cdp__nccl_cell *cells;

    /* kernels, compiled on first use; cast: see cdp__nccl_kernels() */
    void *module[2], *cast[CDP__NCCL_FLOATS * (CDP__NCCL_FLOATS + 1)], *hooks[CDP__NK_COUNT];
    double *partial; /* device memory, for sums of squares */
    cdp__nccl_op ring[CDP__NCCL_RING], captured[CDP__NCCL_RING];
} cdp__nccl;

CDP__PRIVATE void cdp__nccl_wake(cdp__nccl *b) {
    if (b->cond) b->os->threads.cond_broadcast(b->os->user, b->cond);
}
CDP__PRIVATE bool cdp__nccl_failed(const cdp__nccl *b) {
    return cdp__atomic_load_u32(&b->failed, CDP__ACQUIRE) != 0;
}
CDP__PRIVATE uint64_t cdp__nccl_now(const cdp__nccl *b) {
    return b->os->now_ns(b->os->user);
}

/* Sleeps longer each time, so that a long wait costs little. */
CDP__PRIVATE void cdp__nccl_nap(const cdp__nccl *b, uint32_t *naps) {
    const uint64_t longer = *naps < 100 ? 100 : 1000, us = *naps < 20 ? 20 : longer;
    ++*naps;
    cdp__sleep_until(b->os, cdp__nccl_now(b) + us * 1000);
}

CDP__PRIVATE cdp_status cdp__nccl_cuda_failed(cdp__cu_error e, const char *what) {
    (void)cdp__nc.cudaGetLastError(); /* clears the error, which the next call would report again */
    return cdp__fail((int)e == CDP__CU_NOMEM ? CDP_ERR_NOMEM : CDP_ERR_IO, "%s: CUDA says: %s (%d)",
        what, cdp__nc.cudaGetErrorString(e), (int)e);
}

CDP__PRIVATE cdp_status cdp__nccl_fail_with(cdp_status st, int result, const char *what) {
    const char *more = cdp__nc.ncclGetLastError(NULL);
    return cdp__fail(st, "%s: NCCL says: %s (%d)%s%s", what,
        cdp__nc.ncclGetErrorString((cdp__nc_result)result), result, more && *more ? ": " : "",
        more ? more : "");
}
CDP__PRIVATE cdp_status cdp__nccl_nccl_failed(int result, const char *what) {
    return cdp__nccl_fail_with(cdp__nccl_status(result), result, what);
}

/* Maps errors while a communicator is created: wrong use in the sense of NCCL (two ranks on one
   GPU) is a mistake of the caller, and does not break the group. */
CDP__PRIVATE cdp_status cdp__nccl_refused(int result, const char *what) {
    return cdp__nccl_fail_with(result == CDP__NC_INVALID || result == CDP__NC_USAGE
            ? CDP_ERR_INVALID
            : cdp__nccl_status(result),
        result, what);
}

/* Returns an error if the group has failed, or the one that its communicator is derived from.
   Then NCCL must not be called, because the communicators may be gone. */
CDP__PRIVATE cdp_status cdp__nccl_over(const cdp__nccl *b, const char *what) {
    cdp_status st;
    if (!cdp__nccl_failed(b) && !(b->parent && cdp__nccl_failed(b->parent))) return CDP_OK;
    st = cdp_group_status(cdp__nccl_failed(b) ? b->group : b->parent->group);
    return st != CDP_OK ? st
                        : cdp__fail(CDP_ERR_ABORTED, "%s: the group has failed meanwhile", what);
}

/* A non-blocking communicator is "in progress" after many calls. Waits until it is not: before
   that, no other call is allowed. */
CDP__PRIVATE cdp_status cdp__nccl_settle(
    cdp__nccl *b, cdp__nc_comm comm, uint64_t deadline_ns, const char *what) {
    cdp__nc_result state = (cdp__nc_result)0;
    uint32_t naps = 0;
    for (;;) {
        cdp_status st = cdp__nccl_over(b, what);
        int r;
        if (st == CDP_OK && naps % 16 == 15) st = cdp_group_status(b->group);
        if (st != CDP_OK) return st;
        r = (int)cdp__nc.ncclCommGetAsyncError(comm, &state);
        if (r != 0) return cdp__nccl_nccl_failed(r, what);
        if ((int)state == 0) return CDP_OK;
        if ((int)state != CDP__NC_IN_PROGRESS)
            return b->installed ? cdp__nccl_nccl_failed((int)state, what)
                                : cdp__nccl_refused((int)state, what);
        if (cdp__nccl_now(b) >= deadline_ns)
            return cdp__fail(CDP_ERR_TIMEOUT,
                "%s: NCCL did not finish by the deadline; a rank does not take part, "
                "or cannot be reached (NCCL_DEBUG=INFO says more)",
                what);
        if (cdp_group_desc_of(b->group)->no_thread) (void)cdp_poll(b->group, 0);
        cdp__nccl_nap(b, &naps);
    }
}

CDP__PRIVATE cdp__nc_settings cdp__nccl_settings(void) {
    cdp__nc_settings c;
    memset(&c, 0, sizeof c);
    c.size = sizeof c;
    c.magic = 0xcafebeefu;
    c.version = 21800;
    c.blocking = 0;
    c.cga_cluster = c.min_ctas = c.max_ctas = c.split_share = INT_MIN; /* NCCL's "not set" */
    return c;
}

/* What ranks exchange before and after a collective step. */
typedef struct cdp__nccl_hello {
    int32_t status, nccl;
    uint32_t settings;
    uint32_t from; /* number of ranks of desc.from; 0: none */
    int32_t capability;
    uint32_t windows;     /* symmetric memory: this rank supports windows, or has one */
    uint64_t bytes, hash; /* symmetric memory: size, and hash of the live allocations */
    char text[240];
} cdp__nccl_hello;

/* Exchanges the statuses of all ranks; every rank returns the same one. The caller has filled in
   the other fields of all[rank]. `timeout_ms` 0: that of the group. */
CDP__PRIVATE cdp_status cdp__nccl_gather(
    cdp__nccl *b, cdp_status st, cdp__nccl_hello *all, const char *what, uint32_t timeout_ms) {
    cdp__nccl_hello *mine = &all[b->rank];
    const cdp_error own = *cdp_last_error();
    cdp_request rq;
    cdp_work work;
    uint32_t r;
    cdp_status together;
    memset(&rq, 0, sizeof rq);
    rq.kind = CDP_COLL_ALLGATHER;
    rq.out = all;
    rq.count = sizeof *all;
    rq.dtype = CDP_DTYPE_U8;
    rq.timeout_ms = timeout_ms;
    mine->status = (int32_t)st;
    if (st != CDP_OK) cdp__format(mine->text, sizeof mine->text, "%s", own.text);
    together = cdp_start(b->group, &rq, &work);
    if (together == CDP_OK) together = cdp_work_wait(work);
    if (together != CDP_OK) return together;
    for (r = 0; r < b->size; ++r)
        if (all[r].status != CDP_OK && all[r].status != CDP_ERR_ABORTED) break;
    /* an error other than ABORTED is the more useful cause; but ABORTED must be reported, too */
    if (r == b->size)
        for (r = 0; r < b->size && all[r].status == CDP_OK;)
            ++r;
    if (r < b->size) {
        char why[sizeof all[r].text];
        cdp__text_foreign_in(why, sizeof why, all[r].text, sizeof why);
        return cdp__fail_peer((cdp_status)all[r].status, cdp_world_rank_of(b->group, r), 0,
            r == b->rank ? "%s: rank %u cannot: %s"
                         : "%s: this rank does not do it, because rank %u cannot: %s",
            what, cdp_world_rank_of(b->group, r), why);
    }
    return CDP_OK;
}

/* Compares results and descs of all ranks, before and after a communicator is created. */
CDP__PRIVATE cdp_status cdp__nccl_agree(
    cdp__nccl *b, cdp_status st, cdp__nccl_hello *all, const char *what) {
    cdp__nccl_hello *mine = &all[b->rank];
    uint32_t r;
    memset(mine, 0, sizeof *mine);
    mine->nccl = cdp__nccl_lib()->nccl;
    mine->settings = (b->desc.no_check ? 1u : 0u) | (b->desc.check_first ? 2u : 0u)
        | (b->desc.no_peer_watch ? 4u : 0u) | (b->desc.keep ? 8u : 0u) | (b->desc.grow ? 16u : 0u)
        | (b->desc.no_register ? 32u : 0u);
    mine->capability = (int32_t)b->capability;
    mine->from = b->desc.from ? cdp_size(b->desc.from) : 0;
    st = cdp__nccl_gather(b, st, all, what, 0);
    if (st != CDP_OK) return st;
    for (r = 0; r < b->size; ++r)
        if (all[r].capability < b->capability) b->capability = (int)all[r].capability;
    for (r = 1; r < b->size; ++r) {
        if (all[r].nccl / 100 != all[0].nccl / 100)
            return cdp__fail_peer(CDP_ERR_MISMATCH, cdp_world_rank_of(b->group, r), 0,
                "%s: rank %u has NCCL %d.%d, rank %u has %d.%d; install the same everywhere", what,
                cdp_world_rank_of(b->group, 0), all[0].nccl / 10000, all[0].nccl / 100 % 100,
                cdp_world_rank_of(b->group, r), all[r].nccl / 10000, all[r].nccl / 100 % 100);
        if (all[r].settings != all[0].settings || (!b->desc.grow && all[r].from != all[0].from))
            return cdp__fail_peer(CDP_ERR_MISMATCH, cdp_world_rank_of(b->group, r), 0,
                "%s: the descs of rank %u and rank %u differ (no_check, check_first, "
                "no_peer_watch, "
                "no_register, keep, grow or from); give all ranks the same",
                what, cdp_world_rank_of(b->group, 0), cdp_world_rank_of(b->group, r));
    }
    for (r = 0; r < b->size && b->desc.grow; ++r)
        if (all[r].from != (r < all[0].from ? all[0].from : 0) || all[0].from == 0
            || all[0].from == b->size)
            return cdp__fail_peer(CDP_ERR_INVALID, cdp_world_rank_of(b->group, r), 0,
                "%s: with grow the ranks of `from` are the first of this group, in their order, "
                "and new ranks without `from` follow; rank %u does not fit",
                what, cdp_world_rank_of(b->group, r));
    return CDP_OK;
}

/* Creates a new communicator. Rank 0 broadcasts NCCL's unique id over the links. */
CDP__PRIVATE cdp_status cdp__nccl_init(cdp__nccl *b, uint64_t deadline_ns) {
    cdp__nc_settings config = cdp__nccl_settings();
    struct {
        cdp__nc_id id;
        int32_t status;
        char text[240];
    } word;
    char why[sizeof word.text];
    cdp_status st;
    int r;
    memset(&word, 0, sizeof word);
    if (b->rank == 0 && (r = (int)cdp__nc.ncclGetUniqueId(&word.id)) != 0) {
        word.status = (int32_t)cdp__nccl_nccl_failed(r, "cdp_nccl_attach");
        cdp__format(word.text, sizeof word.text, "%s", cdp_last_error()->text);
    }
    st = cdp_broadcast(b->group, &word, sizeof word, CDP_DTYPE_U8, 0);
    if (st != CDP_OK) return st;
    cdp__text_foreign_in(why, sizeof why, word.text, sizeof word.text);
    if (word.status != 0) return cdp__fail((cdp_status)word.status, "%s", why);
    r = (int)cdp__nc.ncclCommInitRankConfig(
        &b->comm, (int)b->size, word.id, (int)b->rank, (cdp__nc_config *)(void *)&config);
    if (r != 0 && r != CDP__NC_IN_PROGRESS) return cdp__nccl_refused(r, "cdp_nccl_attach");
    return cdp__nccl_settle(b, b->comm, deadline_ns, "cdp_nccl_attach");
}

/* Waits until the communicator that ncclCommSplit or a similar call (result `r`) derives from
   that of `old` is complete; *out is the new one. If it does not complete, `old` keeps the cell,
   because NCCL may still write into it. */
CDP__PRIVATE cdp_status cdp__nccl_made(cdp__nccl *b, cdp__nccl *old, cdp__nccl_cell *cell, int r,
    cdp__nc_comm *out, uint64_t deadline_ns, const char *what) {
    cdp_status st;
    if (r != 0 && r != CDP__NC_IN_PROGRESS) {
        cdp__free(old->os, cell);
        return b->installed ? cdp__nccl_nccl_failed(r, what) : cdp__nccl_refused(r, what);
    }
    st = cdp__nccl_settle(b, old->comm, deadline_ns, what);
    if (st == CDP_OK) {
        *out = cell->comm;
        cdp__free(old->os, cell);
        return CDP_OK;
    }
    cdp_lock_acquire(&old->lock);
    cell->next = old->cells;
    old->cells = cell;
    cdp_lock_release(&old->lock);
    if (b != old) cdp_group_fail(old->group); /* its communicator may stay in progress for ever */
    return st;
}

#endif /* CDP_SRC_NCCL_BOOTSTRAP_H */
