/* nccl/calls.h - the public functions

   Knows: all of a backend. Promises: attach and split succeed on all ranks, or change nothing on
   any. */
#ifndef CDP_SRC_NCCL_CALLS_H
#define CDP_SRC_NCCL_CALLS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../base/log_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/backend_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../os/linux.h"
#include "../group/state.h"
#include "desc_api.h"
#include "create_api.h"
#include "load.h"
#include "bootstrap.h"
#include "stream.h"
#include "watchdog.h"
#include "regroup.h"
#include "backend.h"
#include "memory.h"
#include "symmetric.h"

CDP__PRIVATE void cdp__nccl_destroy(void *self);
CDP__PRIVATE cdp_status cdp__nccl_split(void *self, uint32_t color, uint32_t key, cdp_group *part);

CDP__PRIVATE cdp_backend cdp__nccl_backend(cdp__nccl *b) {
    cdp_backend k;
    memset(&k, 0, sizeof k);
    k.self = b;
    cdp__format(b->name, sizeof b->name, "NCCL %d.%d.%d on device %d", b->version / 10000,
        b->version / 100 % 100, b->version % 100, b->device);
    k.name = b->name;
    k.owns = cdp__nccl_owns;
    k.start = cdp__nccl_start;
    k.transfer = cdp__nccl_transfer;
    k.wait = cdp__nccl_wait;
    k.failed = cdp__nccl_group_failed;
    k.split = cdp__nccl_split;
    k.destroy = cdp__nccl_destroy;
    k.alloc = cdp__nccl_memory_alloc;
    k.release = cdp__nccl_memory_free;
    k.copy = cdp__nccl_copy;
    k.zero = cdp__nccl_zero;
    k.scale = cdp__nccl_scale;
    k.sum_squares = cdp__nccl_sum_squares;
    return k;
}

/* The group's NCCL backend, or NULL. */
CDP__PRIVATE cdp__nccl *cdp__nccl_of(const cdp_group *g) {
    const cdp_backend *k = cdp_group_backend(g);
    return k && k->start == cdp__nccl_start ? (cdp__nccl *)k->self : NULL;
}

/* Releases a backend, also one that was only partly created. Its streams must be empty or
   abandoned. */
CDP__PRIVATE void cdp__nccl_free(cdp__nccl *b) {
    const cdp_os *os = b->os;
    b->installed = false; /* the caller's stream may no longer exist */
    while (b->memories)
        cdp__nccl_memory_free(b, b->memories->data);
    while (b->cells) { /* communicators created after their callers gave up */
        cdp__nccl_cell *cell = b->cells;
        cdp__nc_comm made = (cdp__nc_comm)cdp__atomic_load_ptr(&cell->comm, CDP__ACQUIRE);
        if (made) (void)cdp__nc.ncclCommAbort(made);
        b->cells = cell->next;
        cdp__free(os, cell);
    }
    if (b->module[0]) (void)cdp__nc.cuModuleUnload(b->module[0]);
    if (b->module[1]) (void)cdp__nc.cuModuleUnload(b->module[1]);
    cdp__nccl_close_streams(b);
    if (b->cond) os->threads.cond_destroy(os, b->cond);
    cdp__lock_close(&b->lock);
    cdp__free(os, b);
}

/* The group is being destroyed. Not collective: waits until the deadlines of queued operations,
   and CDP__NCCL_LEAVE_MS for the rest. */
CDP__PRIVATE CDP__COLD void cdp__nccl_destroy(void *self) {
    cdp__nccl *b = (cdp__nccl *)self;
    int device = b->device;
    bool empty;
    (void)cdp__nc.cudaGetDevice(&device);
    (void)cdp__nc.cudaSetDevice(b->device);
    empty = cdp__nccl_failed(b)
        || cdp__nccl_drain(b, b->all, b->stream, cdp__min(b->timeout_ms, CDP__NCCL_LEAVE_MS));
    cdp_lock_acquire(&b->lock);
    b->stop = true;
    /* makes the keeper thread abort what hangs */
    if (!empty) cdp__atomic_store_u32(&b->failed, 1, CDP__RELEASE);
    cdp_lock_release(&b->lock);
    cdp__nccl_wake(b);
    cdp__nccl_by_hand(b);
    if (b->thread && !cdp__nccl_await(b, &b->resting, 2 * CDP__NCCL_LEAVE_MS)) {
        cdp__log(&cdp_group_desc_of(b->group)->logger, CDP_LOG_ERROR, (int32_t)b->rank,
            "NCCL does not come back from ending a communicator; its memory and a thread stay "
            "behind");
        return;
    }
    if (b->thread) b->os->threads.join(b->os, b->thread);
    b->thread = NULL;
    if (!b->lock.mutex && cdp__nccl_failed(b) && b->comm && !b->desc.keep) cdp__nccl_stop_gpu(b);
    if (b->comm) cdp__nccl_close_comm(b);
    if (cdp__nccl_failed(b) && !cdp__nccl_drain(b, b->all, b->stream, 2000)) {
        cdp__log(&cdp_group_desc_of(b->group)->logger, CDP_LOG_ERROR, (int32_t)b->rank,
            "the GPU has not finished the work of this group; its stream and memory are not "
            "released");
        return;
    }
    cdp_group_clear_backend(b->group);
    cdp__nccl_free(b);
    (void)cdp__nc.cudaSetDevice(device);
}

/* The communicator; NULL if it is about to be aborted. */
CDP__PRIVATE cdp__nc_comm cdp__nccl_comm(cdp__nccl *b) {
    cdp__nc_comm comm;
    cdp_lock_acquire(&b->lock);
    comm = b->desc.keep || !cdp__nccl_failed(b) ? b->comm : NULL;
    cdp_lock_release(&b->lock);
    return comm;
}

/* Waits until all operations of the old group are done: otherwise NCCL may wait for ever when a
   communicator is derived. */
CDP__PRIVATE cdp_status cdp__nccl_quiet(cdp__nccl *old) {
    if (cdp__nccl_failed(old)) return CDP_OK; /* aborted: nothing runs */
    if (cdp__nccl_capturing(old->caller))
        return cdp__fail(
            CDP_ERR_STATE, "a communicator cannot be made from another one inside a capture");
    return cdp__nccl_sync(old, old->all, old->stream);
}

/* Checks whether a communicator can be derived from that of desc.from. */
CDP__PRIVATE cdp_status cdp__nccl_check_from(const cdp__nccl *b) {
    const cdp_group *from = b->desc.from;
    cdp__nccl *old = from ? cdp__nccl_of(from) : NULL;
    uint32_t i, next = 0;
    if (b->desc.keep && !cdp__nc.ncclCommRevoke)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "NCCL %d.%d has no ncclCommRevoke, so a communicator whose group failed cannot be "
            "kept; leave keep",
            b->version / 10000, b->version / 100 % 100);
    if (b->desc.grow && !cdp__nc.ncclCommGrow)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "NCCL %d.%d has no ncclCommGrow; leave grow and from, and a new communicator is made",
            b->version / 10000, b->version / 100 % 100);
    if (from && !b->desc.grow && !cdp__nc.ncclCommShrink)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "NCCL %d.%d has no ncclCommShrink; leave from, and a new communicator is made",
            b->version / 10000, b->version / 100 % 100);
    if (!from) return CDP_OK;
    if (!old || !cdp__nccl_comm(old))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_nccl_attach: the group `from` has no communicator any more; set keep when it is "
            "attached");
    if (b->desc.grow)
        return cdp_rank(from) == b->rank
            ? cdp__nccl_quiet(old)
            : cdp__fail(CDP_ERR_INVALID,
                "cdp_nccl_attach: with grow the ranks of `from` keep their numbers, but this one "
                "was %u there and is %u here",
                cdp_rank(from), b->rank);
    for (i = 0; i < old->size; ++i)
        if (cdp_rank_of_world(b->group, cdp_world_rank_of(from, i)) == next) ++next;
    return next == b->size
        ? cdp__nccl_quiet(old)
        : cdp__fail(CDP_ERR_INVALID,
            "cdp_nccl_attach: the ranks of this group are not ranks of `from` in the same order, "
            "which NCCL keeps; make the group with its ranks in that order");
}

/* Checks the device, and creates what this rank needs locally: a lock, streams, events. */
CDP__PRIVATE CDP__COLD cdp_status cdp__nccl_open(cdp__nccl *b) {
    const bool threads = b->os->threads.start && b->os->threads.mutex_create;
    int count = 0;
    int major = 0, minor = 0;
    cdp__cu_error e;
    cdp_status st = cdp__nccl_load(b->os, &b->desc, false);
    if (st != CDP_OK) return st;
    b->version = cdp__nccl_lib()->nccl;
    e = cdp__nc.cudaGetDeviceCount(&count);
    if ((int)e == CDP__CU_NO_DEVICE || (int)e == CDP__CU_NO_DRIVER || (e == 0 && !count)) {
        (void)cdp__nc.cudaGetLastError();
        return cdp__fail(CDP_ERR_INVALID,
            (int)e == CDP__CU_NO_DRIVER
                ? "there is no CUDA device here: there is no driver, or it is older than the CUDA "
                  "runtime; host memory works without one"
                : "there is no CUDA device here; host memory works without one");
    }
    if (e == 0) e = cdp__nc.cudaGetDevice(&b->device);
    if (e == 0) e = cdp__nc.cudaDeviceGetAttribute(&major, (cdp__cu_attr)CDP__CU_MAJOR, b->device);
    if (e == 0) e = cdp__nc.cudaDeviceGetAttribute(&minor, (cdp__cu_attr)CDP__CU_MINOR, b->device);
    b->capability = major * 10 + minor;
    if (e != 0) return cdp__nccl_cuda_failed(e, "cdp_nccl_attach");
    if ((st = cdp__nccl_check_from(b)) != CDP_OK) return st;
    b->cond = threads ? b->os->threads.cond_create(b->os) : NULL;
    if (!cdp__lock_open(&b->lock, b->os, threads) || (threads && !b->cond))
        return cdp__fail_nomem("a lock", 64);
    return cdp__nccl_open_streams(b);
}

CDP__PRIVATE cdp__nccl *cdp__nccl_new(cdp_group *group, const cdp_nccl_desc *desc) {
    const cdp_os *os = cdp_group_desc_of(group)->os;
    cdp__nccl *b = (cdp__nccl *)cdp__alloc_zero(os, sizeof *b);
    if (!b) {
        (void)cdp__fail_nomem("a communicator", sizeof *b);
        return NULL;
    }
    b->os = os;
    b->group = group;
    if (desc) b->desc = *desc;
    b->rank = cdp_rank(group);
    b->size = cdp_size(group);
    b->timeout_ms = cdp_group_desc_of(group)->timeout_ms;
    b->caller = (cdp__cu_stream)b->desc.stream;
    return b;
}

/* Frees a backend that could not be created; the last error stays. */
CDP__PRIVATE void cdp__nccl_undo(cdp__nccl *b) {
    const cdp_error e = *cdp_last_error();
    if (b->comm) (void)cdp__nc.ncclCommAbort(b->comm);
    b->comm = NULL;
    cdp__nccl_free(b);
    *cdp__error_slot() = e;
}

/* The communicator exists on all ranks: the group uses it from now on. A local failure fails the
   group, because the other ranks use it already. */
CDP__PRIVATE cdp_status cdp__nccl_install(cdp__nccl *b) {
    const cdp_backend k = cdp__nccl_backend(b);
    cdp_status st = CDP_OK;
    b->resting = true;
    if (b->cond) {
        b->resting = false;
        b->thread = b->os->threads.start(b->os, cdp__nccl_keeper, b);
        if (!b->thread)
            st = cdp__fail(
                CDP_ERR_IO, "cannot start the thread that stops the GPU when the group fails");
    }
    if (st == CDP_OK) st = cdp_group_set_backend(b->group, &k);
    if (st != CDP_OK) {
        cdp_group_fail(b->group);
        cdp_lock_acquire(&b->lock);
        b->stop = true;
        cdp_lock_release(&b->lock);
        cdp__nccl_wake(b);
        if (b->thread) b->os->threads.join(b->os, b->thread);
        cdp__nccl_undo(b);
        return st;
    }
    b->installed = true;
    if (!b->desc.no_peer_watch && b->size > 1)
        st = cdp_group_watch(b->group, (b->rank + b->size - 1) % b->size);
    if (st != CDP_OK) cdp_group_fail(b->group);
    return st;
}

/* This rank is done, successfully or not: all ranks agree, and then all groups get the backend,
   or none. */
CDP__PRIVATE cdp_status cdp__nccl_conclude(
    cdp__nccl *b, cdp_status st, cdp__nccl_hello *all, const char *what) {
    st = cdp__nccl_agree(b, st, all, what);
    if (st != CDP_OK) {
        cdp__nccl_undo(b);
        return st;
    }
    return cdp__nccl_install(b);
}

CDP_API cdp_status cdp_nccl_attach(cdp_group *group, const cdp_nccl_desc *desc) {
    const cdp_group_desc *g = cdp_group_desc_of(group);
    cdp__nccl_hello *all;
    cdp__nccl *b, *from;
    uint64_t deadline_ns;
    cdp_status st = cdp_group_status(group);
    if (st != CDP_OK) return st;
    if (cdp_group_backend(group))
        return cdp__fail(CDP_ERR_STATE, "cdp_nccl_attach: this group has a backend already");
    deadline_ns = cdp__deadline(g->os, cdp__def(desc ? desc->init_timeout_ms : 0, g->timeout_ms));
    b = cdp__nccl_new(group, desc);
    all = (cdp__nccl_hello *)cdp__alloc_zero(g->os, g->world_size * sizeof *all);
    if (!b || !all) {
        if (!b)
            st = cdp_last_error()->status;
        else
            st = cdp__fail_nomem("a communicator", g->world_size * sizeof *all);
        cdp_group_fail(group); /* other ranks wait for this rank's message */
        if (b) cdp__free(g->os, b);
        cdp__free(g->os, all);
        return st;
    }
    st = cdp__nccl_agree(b, cdp__nccl_open(b), all, "cdp_nccl_attach");
    if (st != CDP_OK) {
        cdp__nccl_undo(b);
        cdp__free(g->os, all);
        return st;
    }
    from = b->desc.from ? cdp__nccl_of(b->desc.from) : NULL;
    /* no other thread uses that communicator meanwhile, and an abort waits for this one */
    if (from && !cdp__nccl_failed(from)) {
        cdp__nccl_hold(from);
        b->parent = from;
    }
    if (b->desc.grow)
        st = cdp__nccl_grow(b, from, deadline_ns);
    else if (from)
        st = cdp__nccl_shrink(b, from, deadline_ns);
    else
        st = cdp__nccl_init(b, deadline_ns);
    if (b->parent) cdp__nccl_leave(from);
    b->parent = NULL;
    st = cdp__nccl_conclude(b, st, all, "cdp_nccl_attach");
    cdp__free(g->os, all);
    return st;
}

/* Collective over the old group: derives communicators for its parts. */
CDP__PRIVATE CDP__COLD cdp_status cdp__nccl_split(
    void *self, uint32_t color, uint32_t key, cdp_group *part) {
    cdp__nccl *old = (cdp__nccl *)self, *b = part ? cdp__nccl_new(part, &old->desc) : NULL;
    const uint64_t deadline_ns =
        cdp__deadline(old->os, cdp__def(old->desc.init_timeout_ms, old->timeout_ms));
    cdp__nc_settings config = cdp__nccl_settings();
    cdp__nccl_hello *all =
        b ? (cdp__nccl_hello *)cdp__alloc_zero(b->os, b->size * sizeof *all) : NULL;
    cdp__nccl_cell *cell = (cdp__nccl_cell *)cdp__alloc_zero(old->os, sizeof *cell);
    cdp__nc_comm none = NULL;
    cdp_status st =
        !cell || (part && !(b && all)) ? cdp__fail_nomem("a communicator", sizeof *b) : CDP_OK;
    int r;
    (void)color;
    (void)key; /* `part` contains both: its first rank is the color, the rank in it the key */
    if (b) {
        b->desc.from = NULL;
        b->desc.grow = false;
        b->caller = old->caller;
        b->parent = old;
    }
    if (st == CDP_OK) st = cdp__nccl_quiet(old);
    if (b && st == CDP_OK) st = cdp__nccl_open(b);
    if (st == CDP_OK) st = cdp__nccl_enter(old);
    if (st != CDP_OK) {
        cdp_group_fail(old->group); /* other ranks wait for this one in ncclCommSplit */
        if (b) cdp__nccl_undo(b);
        cdp__free(old->os, cell);
        cdp__free(old->os, all);
        return st;
    }
    r = (int)cdp__nc.ncclCommSplit(old->comm, part ? (int)cdp_world_rank_of(part, 0) : -1,
        part ? (int)cdp_rank(part) : 0, &cell->comm, (cdp__nc_config *)(void *)&config);
    st = cdp__nccl_made(
        old, old, cell, r, b ? &b->comm : &none, deadline_ns, "cdp_group_split: ncclCommSplit");
    if (st == CDP_OK && b)
        st = cdp__nccl_settle(b, b->comm, deadline_ns, "cdp_group_split: ncclCommSplit");
    if (b) b->parent = NULL;
    cdp__nccl_leave(old);
    /* the other parts may have failed */
    if (st != CDP_OK) cdp_group_fail(old->group);
    if (b) st = cdp__nccl_conclude(b, st, all, "cdp_group_split");
    cdp__free(old->os, all);
    return st;
}

CDP_API void cdp_nccl_set_stream(cdp_group *group, void *stream) {
    cdp__nccl *b = cdp__nccl_of(group);
    if (b) b->caller = (cdp__cu_stream)stream;
}

CDP_API void *cdp_nccl_stream(const cdp_group *group) {
    const cdp__nccl *b = cdp__nccl_of(group);
    return b ? (void *)b->stream : NULL;
}

CDP_API void *cdp_nccl_comm(const cdp_group *group) {
    cdp__nccl *b = cdp__nccl_of(group);
    return b ? (void *)cdp__nccl_comm(b) : NULL;
}

CDP_API uint32_t cdp_nccl_version(const cdp_group *group) {
    const cdp__nccl *b = cdp__nccl_of(group);
    return b ? (uint32_t)b->version : 0;
}

CDP_API cdp_status cdp_nccl_alloc(cdp_group *group, uint64_t bytes, void **out) {
    cdp__nccl *b = cdp__nccl_of(group);
    if (!out) return cdp__missing("cdp_nccl_alloc", "out");
    *out = NULL;
    if (!b)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_nccl_alloc: this group has no communicator; call cdp_nccl_attach first");
    *out = cdp__nccl_memory_alloc(b, bytes ? bytes : 1);
    return *out ? CDP_OK : cdp_last_error()->status;
}

CDP_API void cdp_nccl_free(cdp_group *group, void *data) {
    cdp__nccl *b = cdp__nccl_of(group);
    if (b) cdp__nccl_memory_free(b, data);
}

CDP_API cdp_status cdp_nccl_set_memory(cdp_group *group, const cdp_allocator *memory) {
    cdp__nccl *b = cdp__nccl_of(group);
    if (!b)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_nccl_set_memory: this group has no communicator; call cdp_nccl_attach first");
    if (memory && (!memory->alloc || !memory->release))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_nccl_set_memory: set both functions, alloc and release, or pass NULL");
    if (memory)
        b->from = *memory;
    else
        memset(&b->from, 0, sizeof b->from);
    return CDP_OK;
}

CDP__PRIVATE void *cdp__nccl_callback_alloc(
    void *user, uint64_t bytes, void *stream, const char *label) {
    cdp__nccl *const b = cdp__nccl_of((cdp_group *)user);
    (void)stream;
    (void)label;
    if (b) return cdp__nccl_memory_own(b, bytes);
    (void)cdp__fail(CDP_ERR_INVALID, "cdp_nccl_allocator: this group has no communicator");
    return NULL;
}

CDP__PRIVATE void cdp__nccl_callback_free(void *user, void *data) {
    cdp_nccl_free((cdp_group *)user, data);
}

CDP_API cdp_allocator cdp_nccl_allocator(cdp_group *group) {
    cdp_allocator a;
    a.user = group;
    a.alloc = cdp__nccl_callback_alloc;
    a.release = cdp__nccl_callback_free;
    return a;
}

CDP_API cdp_status cdp_nccl_alloc_symmetric(cdp_group *group, uint64_t bytes, void **out) {
    cdp__nccl *const b = cdp__nccl_of(group);
    if (!out) return cdp__missing("cdp_nccl_alloc_symmetric", "out");
    *out = NULL;
    if (!b)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_nccl_alloc_symmetric: this group has no communicator; call cdp_nccl_attach first");
    if (b->desc.no_register)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_nccl_alloc_symmetric: the group was attached with no_register; leave that out");
    return cdp__nccl_symmetric_alloc(b, bytes ? bytes : 1, out);
}

CDP__PRIVATE void *cdp__nccl_callback_symmetric(
    void *user, uint64_t bytes, void *stream, const char *label) {
    void *data = NULL;
    (void)stream;
    (void)label;
    return cdp_nccl_alloc_symmetric((cdp_group *)user, bytes, &data) == CDP_OK ? data : NULL;
}

CDP_API cdp_allocator cdp_nccl_symmetric_allocator(cdp_group *group) {
    cdp_allocator a;
    a.user = group;
    a.alloc = cdp__nccl_callback_symmetric;
    a.release = cdp__nccl_callback_free;
    return a;
}

CDP_API void *cdp_nccl_window(const cdp_group *group, const void *data) {
    cdp__nccl *const b = cdp__nccl_of(group);
    const uintptr_t at = (uintptr_t)data;
    const cdp__nccl_memory *m;
    void *window = NULL;
    if (!b) return NULL;
    cdp_lock_acquire(&b->lock);
    for (m = b->memories; m && !window; m = m->next)
        if (m->number && at >= (uintptr_t)m->data && at - (uintptr_t)m->data < m->bytes)
            window = (void *)m->window;
    cdp_lock_release(&b->lock);
    return window;
}

#endif /* CDP_SRC_NCCL_CALLS_H */
