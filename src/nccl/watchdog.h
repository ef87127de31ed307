/* nccl/watchdog.h - finds late operations and stops them

   Knows: operations that are late. Promises: a communicator whose peer is gone is aborted by the
   deadline of its operation. */
#ifndef CDP_SRC_NCCL_WATCHDOG_H
#define CDP_SRC_NCCL_WATCHDOG_H

#include "../base/config.h"
#include "../message/transport_api.h"
#include "../group/backend_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "load.h"
#include "bootstrap.h"
#include "stream.h"

/* Waits until a communicator is no longer in progress, for `ms` at most. */
CDP__PRIVATE void cdp__nccl_rest(const cdp__nccl *b, cdp__nc_comm comm, uint64_t ms) {
    const uint64_t until = cdp__nccl_now(b) + ms * CDP__MS;
    cdp__nc_result state = (cdp__nc_result)0;
    uint32_t naps = 0;
    while (cdp__nc.ncclCommGetAsyncError(comm, &state) == 0 && (int)state == CDP__NC_IN_PROGRESS
        && cdp__nccl_now(b) < until)
        cdp__nccl_nap(b, &naps);
}

/* The group has failed: ends its work on the GPU. Waits a second at most for a thread inside
   NCCL to leave, which it does at its next check. After that, the abort makes its call return. */
CDP__PRIVATE CDP__COLD void cdp__nccl_stop_gpu(cdp__nccl *b) {
    const uint64_t until = cdp__nccl_now(b) + 1000 * CDP__MS;
    cdp__nc_comm comm;
    cdp_lock_acquire(&b->lock);
    while (b->inside && b->cond && cdp__nccl_now(b) < until)
        b->os->threads.cond_wait(b->os->user, b->cond, b->lock.mutex, until);
    comm = b->abandoned ? NULL : b->comm;
    if (!b->desc.keep) {
        b->abandoned = true;
        if (!b->inside) b->comm = NULL; /* otherwise the thread inside still reads it */
    }
    cdp_lock_release(&b->lock);
    if (comm && !b->desc.keep)
        (void)cdp__nc.ncclCommAbort(comm);
    else if (comm && cdp__nc.ncclCommRevoke
        && (int)cdp__nc.ncclCommRevoke(comm, 0) == CDP__NC_IN_PROGRESS)
        cdp__nccl_rest(b, comm, CDP__NCCL_LEAVE_MS - 1000);
    cdp_lock_acquire(&b->lock);
    b->aborted = true;
    cdp_lock_release(&b->lock);
    cdp__nccl_wake(b);
}

/* With watchdog_ms: fails the group if an operation is late or NCCL reports an error. Reads only
   host memory that the stream writes, and never calls CUDA, so that it cannot disturb a capture. */
CDP__PRIVATE void cdp__nccl_watch(cdp__nccl *b) {
    cdp__nc_result state = (cdp__nc_result)0;
    cdp__nccl_op op;
    const uint64_t index = cdp__atomic_load_u64(&b->ended, CDP__ACQUIRE) + 1;
    bool late;
    cdp_lock_acquire(&b->lock);
    op = b->ring[index % CDP__NCCL_RING];
    late = op.index == index && index <= b->issued && cdp__nccl_now(b) >= op.deadline_ns;
    if (op.index != index) op = b->ring[b->issued % CDP__NCCL_RING]; /* no operation is in flight */
    if (b->comm && !b->inside && cdp__nc.ncclCommGetAsyncError(b->comm, &state) != 0)
        state = (cdp__nc_result)0;
    cdp_lock_release(&b->lock);
    if (late)
        (void)cdp__nccl_late(&op);
    else if ((int)state != 0 && (int)state != CDP__NC_IN_PROGRESS)
        (void)cdp__nccl_op_failed(&op, (cdp__cu_error)0, (int)state);
    else
        return;
    cdp_group_fail(b->group);
}

/* Finalizes and destroys the communicator; if that fails or takes too long, aborts it. A revoked
   communicator may be destroyed, but not finalized. */
CDP__PRIVATE CDP__COLD void cdp__nccl_close_comm(cdp__nccl *b) {
    const uint64_t until = cdp__nccl_now(b) + CDP__NCCL_FINAL_MS * CDP__MS;
    const bool failed = cdp__nccl_failed(b);
    cdp__nc_result state = (cdp__nc_result)0;
    uint32_t naps = 0;
    int r = 0;
    cdp__nccl_hold(b); /* keeps other threads from using it meanwhile */
    if (b->comm && !b->abandoned) {
        if (!failed) r = (int)cdp__nc.ncclCommFinalize(b->comm);
        while ((r == 0 || r == CDP__NC_IN_PROGRESS)
            && (r = (int)cdp__nc.ncclCommGetAsyncError(b->comm, &state)) == 0
            && (int)state == CDP__NC_IN_PROGRESS && cdp__nccl_now(b) < until)
            cdp__nccl_nap(b, &naps);
        if (r == 0 && (int)state == 0 && (!failed || b->aborted))
            (void)cdp__nc.ncclCommDestroy(b->comm);
        else
            (void)cdp__nc.ncclCommAbort(b->comm);
    }
    b->abandoned = true;
    cdp__nccl_leave(b);
}

/* The keeper thread: sleeps until the group fails, then aborts the communicator. With
   watchdog_ms it checks operations periodically. At the end it closes the communicator, which
   may wait for other ranks; the thread that destroys the group waits for this thread with a
   deadline. */
CDP__PRIVATE void cdp__nccl_keeper(void *arg) {
    cdp__nccl *b = (cdp__nccl *)arg;
    (void)cdp__nc.cudaSetDevice(b->device);
    cdp_lock_acquire(&b->lock);
    while (!b->stop && !cdp__nccl_failed(b)) {
        b->os->threads.cond_wait(b->os->user, b->cond, b->lock.mutex,
            b->desc.watchdog_ms ? cdp__nccl_now(b) + b->desc.watchdog_ms * CDP__MS : CDP__NEVER);
        if (b->stop || cdp__nccl_failed(b) || !b->desc.watchdog_ms) continue;
        cdp_lock_release(&b->lock);
        cdp__nccl_watch(b);
        cdp_lock_acquire(&b->lock);
    }
    cdp_lock_release(&b->lock);
    if (cdp__nccl_failed(b)) cdp__nccl_stop_gpu(b);
    cdp_lock_acquire(&b->lock);
    while (!b->stop)
        b->os->threads.cond_wait(b->os->user, b->cond, b->lock.mutex, CDP__NEVER);
    cdp_lock_release(&b->lock);
    if (b->installed) cdp__nccl_close_comm(b);
    cdp_lock_acquire(&b->lock);
    b->resting = true;
    cdp_lock_release(&b->lock);
    cdp__nccl_wake(b);
}

/* Without a keeper thread, the next caller aborts the communicator. */
CDP__PRIVATE void cdp__nccl_by_hand(cdp__nccl *b) {
    if (!b->thread && cdp__nccl_failed(b) && !b->aborted && !b->inside) cdp__nccl_stop_gpu(b);
}

/* Waits until `*flag` is set, for `ms` at most. */
CDP__PRIVATE bool cdp__nccl_await(cdp__nccl *b, const bool *flag, uint32_t ms) {
    const uint64_t until = cdp__nccl_now(b) + ms * CDP__MS;
    bool done;
    cdp_lock_acquire(&b->lock);
    while (!*flag && b->cond && cdp__nccl_now(b) < until)
        b->os->threads.cond_wait(b->os->user, b->cond, b->lock.mutex, until);
    done = *flag;
    cdp_lock_release(&b->lock);
    return done;
}

#endif /* CDP_SRC_NCCL_WATCHDOG_H */
