/* nccl/memory.h - device memory for operations

   Knows: allocators of CUDA, of NCCL and of the caller. Promises: memory is released to its source
   once no queued work uses it. */
#ifndef CDP_SRC_NCCL_MEMORY_H
#define CDP_SRC_NCCL_MEMORY_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../base/hash.h"
#include "load.h"
#include "map.h"
#include "bootstrap.h"
#include "stream.h"
#include "watchdog.h"
#include "kernels.h"
#include "backend.h"

/* Adds memory to the list of the group's memory. */
CDP__PRIVATE void cdp__nccl_memory_keep(cdp__nccl *b, cdp__nccl_memory *m) {
    cdp_lock_acquire(&b->lock);
    m->next = b->memories;
    b->memories = m;
    cdp_lock_release(&b->lock);
}

/* Allocates from NCCL or CUDA, without registering or listing the memory. NULL: see the last
   error. */
CDP__PRIVATE cdp__nccl_memory *cdp__nccl_memory_take(cdp__nccl *b, uint64_t bytes) {
    cdp__nccl_memory *m;
    cdp__cu_error e = (cdp__cu_error)0;
    char what[64];
    int r = 0;
    if (cdp__nccl_right_device(b) != CDP_OK) return NULL;
    if (cdp__nccl_capturing(b->caller)) {
        (void)cdp__fail(CDP_ERR_STATE,
            "device memory cannot be allocated inside a capture; allocate it, or run the first "
            "steps, before the capture");
        return NULL;
    }
    m = (cdp__nccl_memory *)cdp__alloc_zero(b->os, sizeof *m);
    if (!m) {
        (void)cdp__fail_nomem("device memory", bytes);
        return NULL;
    }
    cdp__format(what, sizeof what, "%llu bytes of device memory", (unsigned long long)bytes);
    m->nccl = cdp__nc.ncclMemAlloc && cdp__nc.ncclMemFree;
    if (m->nccl)
        r = (int)cdp__nc.ncclMemAlloc(&m->data, (size_t)bytes);
    else
        e = cdp__nc.cudaMalloc(&m->data, (size_t)bytes);
    if (e == 0 && r == 0) return m;
    if (e != 0) (void)cdp__nccl_cuda_failed(e, what);
    /* NCCL reports any CUDA error here; the only likely one is lack of memory */
    else
        (void)cdp__nccl_fail_with(r == CDP__NC_CUDA ? CDP_ERR_NOMEM : cdp__nccl_status(r), r, what);
    (void)cdp__nc.cudaGetLastError();
    cdp__free(b->os, m);
    return NULL;
}

/* Frees memory that is neither listed nor registered. */
CDP__PRIVATE void cdp__nccl_memory_drop(cdp__nccl *b, cdp__nccl_memory *m) {
    if (m->nccl)
        (void)cdp__nc.ncclMemFree(m->data);
    else
        (void)cdp__nc.cudaFree(m->data);
    (void)cdp__nc.cudaGetLastError();
    cdp__free(b->os, m);
}

/* Registers memory with the communicator on this rank, if this version of NCCL can. A failure is
   an error: NCCL requires the memory of an operation to be registered on all ranks or on none. */
CDP__PRIVATE CDP__COLD cdp_status cdp__nccl_memory_register(
    cdp__nccl *b, cdp__nccl_memory *m, uint64_t bytes) {
    int r = 0;
    if (!m->nccl || !cdp__nc.ncclCommRegister || cdp__nccl_enter(b) != CDP_OK) return CDP_OK;
    if (b->comm && !cdp__nccl_failed(b))
        r = (int)cdp__nc.ncclCommRegister(b->comm, m->data, (size_t)bytes, &m->handle);
    cdp__nccl_leave(b);
    return r ? cdp__nccl_fail_with(cdp__nccl_status(r), r, "ncclCommRegister") : CDP_OK;
}

/* Allocates from NCCL or CUDA, and registers the memory. */
CDP__PRIVATE void *cdp__nccl_memory_own(cdp__nccl *b, uint64_t bytes) {
    cdp__nccl_memory *const m = cdp__nccl_memory_take(b, bytes);
    if (!m) return NULL;
    if (!b->desc.no_register && cdp__nccl_memory_register(b, m, bytes) != CDP_OK) {
        cdp__nccl_memory_drop(b, m);
        return NULL;
    }
    cdp__nccl_memory_keep(b, m);
    return m->data;
}

/* Allocates from the caller's allocator. Not registered, because a pool registers its whole
   segment. */
CDP__PRIVATE void *cdp__nccl_memory_given(cdp__nccl *b, uint64_t bytes, const char *purpose) {
    cdp__nccl_memory *const m = (cdp__nccl_memory *)cdp__alloc_zero(b->os, sizeof *m);
    if (!m) {
        (void)cdp__fail_nomem("device memory", bytes);
        return NULL;
    }
    m->from = b->from;
    m->data = m->from.alloc(m->from.user, bytes, (void *)b->caller, purpose ? purpose : "nccl");
    if (!m->data) {
        cdp__free(b->os, m);
        return NULL;
    }
    cdp__nccl_memory_keep(b, m);
    return m->data;
}

CDP__PRIVATE CDP__COLD void *cdp__nccl_memory_alloc(void *self, uint64_t bytes) {
    cdp__nccl *const b = (cdp__nccl *)self;
    if (!b->from.alloc) return cdp__nccl_memory_own(b, bytes);
    return cdp__nccl_memory_given(b, bytes, *cdp__purpose());
}

/* Waits until both streams are empty: queued work may still use the memory, and not every call
   waits for that (ncclMemFree unmaps at once). False: they do not become empty in time. */
CDP__PRIVATE bool cdp__nccl_unused(cdp__nccl *b) {
    cdp_status st = CDP_OK;
    if (!b->installed) return true;
    if (!cdp__nccl_failed(b) && (st = cdp__nccl_sync_caller(b)) == CDP_OK
        && (st = cdp__nccl_sync(b, b->all, b->stream)) == CDP_OK)
        return true;
    /* a stream with an error has no work left */
    if (!cdp__nccl_failed(b) && cdp_group_status(b->group) == CDP_OK) return st != CDP_ERR_TIMEOUT;
    cdp__nccl_by_hand(b);
    return cdp__nccl_await(b, &b->aborted, CDP__NCCL_LEAVE_MS)
        && cdp__nccl_drain(b, b->begin, b->caller, 2000)
        && cdp__nccl_drain(b, b->all, b->stream, 2000);
}

/* Contribution of one symmetric allocation to the hash of the live ones. */
CDP__PRIVATE uint64_t cdp__nccl_symmetric_part(uint64_t number) {
    return number ? cdp__hash(CDP__HASH_START, &number, sizeof number) : 0;
}

/* The communicator has forgotten this memory. While it knows an allocation, that stays in the
   hash, because the location of later windows depends on it, too. */
CDP__PRIVATE void cdp__nccl_symmetric_forget(cdp__nccl *b, cdp__nccl_memory *m) {
    cdp_lock_acquire(&b->lock);
    b->symmetric_hash -= cdp__nccl_symmetric_part(m->number);
    m->number = 0;
    cdp_lock_release(&b->lock);
}

/* Deregisters unused memory. The calls are local to this rank. False: the communicator may still
   know the memory, because it refused or has failed; it forgets the memory when it ends. */
CDP__PRIVATE bool cdp__nccl_memory_deregister(cdp__nccl *b, const cdp__nccl_memory *m) {
    int r = 0;
    bool known;
    if (!m->handle && !m->window) return true;
    cdp__nccl_hold(b);
    cdp_lock_acquire(&b->lock);
    known = b->comm || (cdp__nccl_failed(b) && !b->aborted); /* being aborted */
    cdp_lock_release(&b->lock);
    if (b->comm && !cdp__nccl_failed(b)) {
        if (m->handle && cdp__nc.ncclCommDeregister)
            r = (int)cdp__nc.ncclCommDeregister(b->comm, m->handle);
        if (m->window && cdp__nc.ncclCommWindowDeregister)
            r = (int)cdp__nc.ncclCommWindowDeregister(b->comm, m->window);
        if (r == CDP__NC_IN_PROGRESS) cdp__nccl_rest(b, b->comm, CDP__NCCL_LEAVE_MS);
        known = r != 0;
    }
    cdp__nccl_leave(b);
    return !known;
}

CDP__PRIVATE CDP__COLD void cdp__nccl_memory_free(void *self, void *data) {
    cdp__nccl *b = (cdp__nccl *)self;
    /* restored: if the group fails meanwhile, its next call reports that */
    const cdp_error e = *cdp_last_error();
    cdp__nccl_memory **at, *m;
    if (!data) return;
    /* freed with the group */
    if (b->installed && (cdp__nccl_capturing(b->caller) || cdp__nccl_capturing(b->stream))) return;
    cdp_lock_acquire(&b->lock);
    for (at = &b->memories; *at && (*at)->data != data; at = &(*at)->next) {
    }
    m = *at;
    if (m) *at = m->next;
    cdp_lock_release(&b->lock);
    if (!m) return;
    if (cdp__nccl_unused(b)) { /* else leaking the memory is better than blocking this thread */
        if (!cdp__nccl_memory_deregister(b, m) && b->installed) {
            cdp__nccl_memory_keep(b, m); /* freed with the group */
            *cdp__error_slot() = e;
            return;
        }
        cdp__nccl_symmetric_forget(b, m);
        if (m->from.alloc)
            m->from.release(m->from.user, m->data);
        else if (m->nccl)
            (void)cdp__nc.ncclMemFree(m->data);
        else
            (void)cdp__nc.cudaFree(m->data);
    }
    cdp__free(b->os, m);
    *cdp__error_slot() = e;
}

CDP__PRIVATE cdp_status cdp__nccl_copy(void *self, void *dst, const void *src, uint64_t bytes) {
    cdp__nccl *b = (cdp__nccl *)self;
    const bool host = cdp__nccl_owns(b, dst) == 0, from_host = !host && cdp__nccl_owns(b, src) == 0;
    cdp_status st = CDP_OK;
    cdp__cu_error e;
    if (host && cdp__nccl_capturing(b->caller))
        return cdp__fail(CDP_ERR_STATE,
            "the host has to read from the device here (find_unused, static_graph, join, clip, "
            "verify), which is not possible inside a capture");
    if (from_host && cdp__nccl_capturing(b->caller))
        return cdp__fail(CDP_ERR_STATE,
            "the host has to write to the device here (find_unused, static_graph, join), which is "
            "not possible inside a capture");
    /* waits with a deadline; a copy to or from pageable memory would wait inside CUDA without
       one, behind work that hangs */
    if (host || from_host) st = cdp__nccl_sync_caller(b);
    if (st != CDP_OK) return st;
    e = cdp__nc.cudaMemcpyAsync(dst, src, (size_t)bytes, (cdp__cu_copy)CDP__CU_COPY_ANY, b->caller);
    if (e != 0) return cdp__nccl_cuda_failed(e, "copying device memory");
    return host || from_host ? cdp__nccl_sync_caller(b) : CDP_OK; /* pinned memory is read later */
}

CDP__PRIVATE cdp_status cdp__nccl_zero(void *self, void *dst, uint64_t bytes) {
    const cdp__cu_error e =
        cdp__nc.cudaMemsetAsync(dst, 0, (size_t)bytes, ((cdp__nccl *)self)->caller);
    return e == 0 ? CDP_OK : cdp__nccl_cuda_failed(e, "zeroing device memory");
}

CDP__PRIVATE cdp_status cdp__nccl_scale(
    void *self, cdp_dtype dtype, void *data, uint64_t count, double factor) {
    cdp__nccl *b = (cdp__nccl *)self;
    return cdp__nccl_cast(b, dtype, data, dtype, data, count, factor, b->caller);
}

CDP__PRIVATE cdp_status cdp__nccl_sum_squares(
    void *self, cdp_dtype dtype, const void *data, uint64_t count, double *sum) {
    static const uint32_t parts = CDP__NCCL_SUM_BLOCKS * CDP__NCCL_THREADS;
    cdp__nccl *b = (cdp__nccl *)self;
    unsigned long long n = count;
    double *host;
    void *arguments[3];
    uint32_t i;
    cdp_status st = cdp__nccl_kernel_check(dtype);
    if (st == CDP_OK) st = cdp__nccl_kernels(b);
    if (st != CDP_OK) return st;
    if (!b->partial) b->partial = (double *)cdp__nccl_memory_own(b, parts * sizeof *host);
    if (!b->partial) return cdp_last_error()->status;
    host = (double *)cdp__alloc(b->os, parts * sizeof *host);
    if (!host) return cdp__fail_nomem("a norm", parts * sizeof *host);
    arguments[0] = (void *)&data;
    arguments[1] = (void *)&b->partial;
    arguments[2] = (void *)&n;
    cdp__nccl_run(&st, b->cast[CDP__NCCL_FLOATS * CDP__NCCL_FLOATS + cdp__nccl_float_index(dtype)],
        parts, b->caller, arguments);
    if (st == CDP_OK) st = cdp__nccl_copy(b, host, b->partial, parts * sizeof *host);
    for (*sum = 0, i = 0; i < parts && st == CDP_OK; ++i)
        *sum += host[i];
    cdp__free(b->os, host);
    return st;
}

#endif /* CDP_SRC_NCCL_MEMORY_H */
