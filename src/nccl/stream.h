/* nccl/stream.h - the order of work in streams

   Knows: events and streams. Promises: later work of a stream runs after what it depends on, and
   nothing blocks the host. */
#ifndef CDP_SRC_NCCL_STREAM_H
#define CDP_SRC_NCCL_STREAM_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/backend_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../collective/kinds.h"
#include "load.h"
#include "map.h"
#include "bootstrap.h"

#define CDP__NCCL_CAPTURED 1ull /* bit in the number of a work, beside its index */

CDP__PRIVATE cdp_status cdp__nccl_open_streams(cdp__nccl *b) {
    cdp__cu_error e = cdp__nc.cudaStreamCreateWithPriority(&b->stream, CDP__CU_NON_BLOCKING, 0);
    uint32_t i;
    if (e == 0) e = cdp__nc.cudaEventCreateWithFlags(&b->begin, CDP__CU_NO_TIMING);
    if (e == 0) e = cdp__nc.cudaEventCreateWithFlags(&b->all, CDP__CU_NO_TIMING);
    for (i = 0; i < CDP__NCCL_RING && e == 0; ++i) {
        e = cdp__nc.cudaEventCreateWithFlags(&b->ring[i].event, CDP__CU_NO_TIMING);
        if (e == 0) e = cdp__nc.cudaEventCreateWithFlags(&b->captured[i].event, CDP__CU_NO_TIMING);
    }
    return e == 0 ? CDP_OK
                  : cdp__nccl_cuda_failed(e, "cdp_nccl_attach: the group's stream and events");
}

CDP__PRIVATE void cdp__nccl_close_streams(cdp__nccl *b) {
    uint32_t i;
    for (i = 0; i < CDP__NCCL_RING; ++i) {
        if (b->ring[i].event) (void)cdp__nc.cudaEventDestroy(b->ring[i].event);
        if (b->captured[i].event) (void)cdp__nc.cudaEventDestroy(b->captured[i].event);
    }
    if (b->begin) (void)cdp__nc.cudaEventDestroy(b->begin);
    if (b->all) (void)cdp__nc.cudaEventDestroy(b->all);
    if (b->stream) (void)cdp__nc.cudaStreamDestroy(b->stream);
}

CDP__PRIVATE CDP__ONE_COPY bool cdp__nccl_capturing(cdp__cu_stream stream) {
    cdp__cu_capture state = (cdp__cu_capture)0;
    return cdp__nc.cudaStreamIsCapturing(stream, &state) == 0 && (int)state != 0;
}

CDP__PRIVATE cdp_status cdp__nccl_right_device(const cdp__nccl *b) {
    int device = -1;
    const cdp__cu_error e = cdp__nc.cudaGetDevice(&device);
    if (e != 0) return cdp__nccl_cuda_failed(e, "device memory");
    return device == b->device ? CDP_OK
                               : cdp__fail(CDP_ERR_INVALID,
                                   "device %d is current on this thread, but the group is on "
                                   "device %d; call cudaSetDevice(%d) first",
                                   device, b->device, b->device);
}

/* Waits until no other thread calls NCCL. Until cdp__nccl_leave() the communicator stays valid. */
CDP__PRIVATE void cdp__nccl_hold(cdp__nccl *b) {
    cdp_lock_acquire(&b->lock);
    while (b->inside && b->cond)
        b->os->threads.cond_wait(
            b->os->user, b->cond, b->lock.mutex, cdp__nccl_now(b) + 10 * CDP__MS);
    b->inside = true;
    cdp_lock_release(&b->lock);
}

CDP__PRIVATE cdp_status cdp__nccl_enter(cdp__nccl *b) {
    const cdp_status st = cdp__nccl_right_device(b);
    if (st == CDP_OK) cdp__nccl_hold(b);
    return st;
}

CDP__PRIVATE void cdp__nccl_leave(cdp__nccl *b) {
    cdp_lock_acquire(&b->lock);
    b->inside = false;
    if (b->abandoned) b->comm = NULL;
    cdp_lock_release(&b->lock);
    cdp__nccl_wake(b);
}

/* Makes the group's stream wait for all work that is now in the caller's stream. */
CDP__PRIVATE cdp_status cdp__nccl_after_caller(cdp__nccl *b) {
    cdp__cu_error e = cdp__nc.cudaEventRecord(b->begin, b->caller);
    if (e == 0) e = cdp__nc.cudaStreamWaitEvent(b->stream, b->begin, 0);
    return e == 0 ? CDP_OK
                  : cdp__nccl_cuda_failed(e, "ordering the group's stream behind the caller's");
}

/* Called by CUDA, in a thread of its own, when the stream has reached this point. */
CDP__PRIVATE void cdp__nccl_ended(void *user) {
    (void)cdp__atomic_add_u64(&((cdp__nccl *)user)->ended, 1, CDP__RELEASE);
}

/* Records an event in the stream after the operation that was just enqueued. */
CDP__PRIVATE cdp_status cdp__nccl_mark(cdp__nccl *b, cdp__nccl_op *op, bool capture) {
    cdp__cu_error e = cdp__nc.cudaEventRecord(op->event, b->stream);
    if (e == 0 && !capture && b->desc.watchdog_ms)
        e = cdp__nc.cudaLaunchHostFunc(b->stream, cdp__nccl_ended, b);
    return e == 0 ? CDP_OK : cdp__nccl_cuda_failed(e, "the event behind an operation");
}

CDP__PRIVATE CDP__COLD void cdp__nccl_op_text(const cdp__nccl_op *op, char *out, uint64_t size) {
    cdp__text t = cdp__text_of(out, size);
    cdp__text_add(
        &t, "device operation #%llu (%s", (unsigned long long)op->index, cdp_coll_name(op->kind));
    if (op->kind != CDP_COLL_SEND)
        cdp__text_add(
            &t, " of %llu x %s", (unsigned long long)op->count, cdp_dtype_name(op->dtype));
    if (cdp__kind_reduces(op->kind)) cdp__text_add(&t, " %s", cdp_reduce_name(op->op));
    if (op->many > 1) cdp__text_add(&t, ", the first of %u", op->many);
    cdp__text_add(&t, ")");
}

/* The entry of a work with its event. NULL: the work is of a capture and `capture` is false, or
   the reverse; or there is no such work. */
CDP__PRIVATE cdp__nccl_op *cdp__nccl_find(cdp__nccl *b, uint64_t number, bool capture) {
    const uint64_t index = number >> 1;
    if (((number & CDP__NCCL_CAPTURED) != 0) != capture) {
        (void)cdp__fail(CDP_ERR_STATE,
            capture ? "device operation #%llu was started before this capture; wait for it before "
                      "cudaStreamBeginCapture"
                    : "device operation #%llu belongs to a captured graph; wait for it inside the "
                      "capture, and for the graph by its stream",
            (unsigned long long)index);
        return NULL;
    }
    if (index <= (capture ? b->captures : b->issued))
        return (capture ? b->captured : b->ring) + index % CDP__NCCL_RING;
    (void)cdp__fail(
        CDP_ERR_INVALID, "there was no device operation #%llu", (unsigned long long)index);
    return NULL;
}

/* Makes the caller's stream wait for operation `number`; 0: for the whole group's stream. */
CDP__PRIVATE cdp_status cdp__nccl_order(cdp__nccl *b, uint64_t number) {
    const bool capture = cdp__nccl_capturing(b->caller);
    cdp__cu_event event = b->all;
    cdp__cu_error e = (cdp__cu_error)0;
    if (number) {
        const cdp__nccl_op *op;
        cdp_lock_acquire(&b->lock);
        op = cdp__nccl_find(b, number, capture);
        cdp_lock_release(&b->lock);
        if (!op) return cdp_last_error()->status;
        event = op->event;
    } else {
        /* this capture contains no work of the group */
        if (capture && !cdp__nccl_capturing(b->stream)) return CDP_OK;
        e = cdp__nc.cudaEventRecord(event, b->stream);
    }
    if (e == 0) e = cdp__nc.cudaStreamWaitEvent(b->caller, event, 0);
    return e == 0 ? CDP_OK
                  : cdp__nccl_cuda_failed(e, "ordering the caller's stream behind an operation");
}

/* Calls cudaEventQuery even if another thread captures. A query does not disturb the capture,
   but CUDA forbids it unless the thread's capture mode is relaxed. */
CDP__PRIVATE cdp__cu_error cdp__nccl_query(cdp__cu_event event) {
    cdp__cu_mode mode = (cdp__cu_mode)CDP__CU_RELAXED;
    cdp__cu_error e;
    (void)cdp__nc.cudaThreadExchangeStreamCaptureMode(&mode);
    e = cdp__nc.cudaEventQuery(event);
    (void)cdp__nc.cudaThreadExchangeStreamCaptureMode(&mode);
    return e;
}

CDP__PRIVATE cdp_status cdp__nccl_late(const cdp__nccl_op *op) {
    char text[160];
    cdp__nccl_op_text(op, text, sizeof text);
    return cdp__fail(CDP_ERR_TIMEOUT,
        "%s has not ended within %llu ms on the GPU; a rank has died, is late with its own work "
        "before it, or calls something else",
        text, (unsigned long long)op->timeout_ms);
}

/* Makes the error of a library call about `op`. */
CDP__PRIVATE cdp_status cdp__nccl_op_failed(const cdp__nccl_op *op, cdp__cu_error e, int result) {
    char text[160];
    if (op->index)
        cdp__nccl_op_text(op, text, sizeof text);
    else
        cdp__format(text, sizeof text, "the communicator, before its first operation");
    return e != 0 ? cdp__nccl_cuda_failed(e, text) : cdp__nccl_nccl_failed(result, text);
}

/* Checks whether an operation is done. Never blocks, and does not call the group. */
CDP__PRIVATE cdp_status cdp__nccl_look(cdp__nccl *b, uint64_t number) {
    cdp__nc_result state = (cdp__nc_result)0;
    const cdp__nccl_op *at;
    cdp__nccl_op op;
    cdp__cu_error e;
    cdp_lock_acquire(&b->lock);
    if (!number) number = b->issued << 1;
    at = number ? cdp__nccl_find(b, number, false) : NULL;
    /* a copy: a later operation may reuse the entry, and its event covers this one */
    if (at) op = *at;
    cdp_lock_release(&b->lock);
    if (!number) return CDP_OK;
    if (!at) return cdp_last_error()->status;
    e = cdp__nccl_query(op.event);
    /* an abort ends operations, too; the group has the cause */
    if (cdp__nccl_failed(b)) return CDP_PENDING;
    if (e == 0) return CDP_OK;
    if ((int)e != CDP__CU_NOT_READY) return cdp__nccl_op_failed(&op, e, 0);
    (void)cdp__nc.cudaGetLastError();
    cdp_lock_acquire(
        &b->lock); /* keeps the communicator valid; a thread inside NCCL checks it itself */
    if (b->comm && !b->inside && cdp__nc.ncclCommGetAsyncError(b->comm, &state) != 0)
        state = (cdp__nc_result)0;
    cdp_lock_release(&b->lock);
    if ((int)state != 0 && (int)state != CDP__NC_IN_PROGRESS)
        return cdp__nccl_op_failed(&op, (cdp__cu_error)0, (int)state);
    if (op.index == number >> 1 && cdp__nccl_now(b) >= op.deadline_ns) return cdp__nccl_late(&op);
    return CDP_PENDING;
}

/* Fails the group with this thread's last error, and waits for its cause, which after a timeout
   needs answers of other ranks. Polls, because there may be no other thread that does. */
CDP__PRIVATE CDP__COLD cdp_status cdp__nccl_break(cdp__nccl *b) {
    const cdp_error e = *cdp_last_error();
    const uint64_t until = cdp__nccl_now(b) + CDP__NCCL_LEAVE_MS * CDP__MS;
    cdp_group_fail(b->group);
    while (cdp_group_status(b->group) == CDP_OK && cdp__nccl_now(b) < until)
        (void)cdp_poll(b->group, 1000);
    if (cdp_group_status(b->group) != CDP_OK) return cdp_last_error()->status;
    *cdp__error_slot() = e;
    return e.status;
}

/* Waits until the stream has done all its present work, or the group fails (which aborts its
   operations), or other work hangs for 2 * timeout_ms. */
CDP__PRIVATE cdp_status cdp__nccl_sync(cdp__nccl *b, cdp__cu_event event, cdp__cu_stream stream) {
    /* longer than operations, so that a late operation is reported as such */
    const uint64_t until = b->timeout_ms == CDP_NO_TIMEOUT
        ? CDP__NEVER
        : cdp__nccl_now(b) + (uint64_t)b->timeout_ms * 2 * CDP__MS;
    cdp__cu_error e = cdp__nc.cudaEventRecord(event, stream);
    uint32_t naps = 0;
    cdp_status st;
    while (e == 0 && (int)(e = cdp__nccl_query(event)) == CDP__CU_NOT_READY) {
        (void)cdp__nc.cudaGetLastError();
        e = (cdp__cu_error)0;
        if ((st = cdp_group_status(b->group)) != CDP_OK) return st;
        st = cdp__nccl_look(b, 0); /* the last operation may be late */
        if (st != CDP_OK && st != CDP_PENDING) return cdp__nccl_break(b);
        if (cdp__nccl_now(b) >= until)
            return cdp__fail(CDP_ERR_TIMEOUT,
                "a stream of device %d has not become empty within %llu ms, although no "
                "operation of this group is late; work of the caller or of another group hangs "
                "there",
                b->device, 2ull * b->timeout_ms);
        if (cdp_group_desc_of(b->group)->no_thread) (void)cdp_poll(b->group, 0);
        cdp__nccl_nap(b, &naps);
    }
    return e == 0 ? CDP_OK : cdp__nccl_cuda_failed(e, "waiting for a stream");
}
CDP__PRIVATE cdp_status cdp__nccl_sync_caller(cdp__nccl *b) {
    return cdp__nccl_sync(b, b->begin, b->caller);
}

/* Waits until the stream is empty, whether or not the group fails, for `ms` at most. */
CDP__PRIVATE bool cdp__nccl_drain(
    cdp__nccl *b, cdp__cu_event event, cdp__cu_stream stream, uint64_t ms) {
    const uint64_t until = cdp__nccl_now(b) + ms * CDP__MS;
    cdp__cu_error e = cdp__nc.cudaEventRecord(event, stream);
    uint32_t naps = 0;
    while (e == 0 && (int)(e = cdp__nccl_query(event)) == CDP__CU_NOT_READY
        && cdp__nccl_now(b) < until) {
        e = (cdp__cu_error)0;
        if (cdp_group_desc_of(b->group)->no_thread) (void)cdp_poll(b->group, 0);
        cdp__nccl_nap(b, &naps);
    }
    (void)cdp__nc.cudaGetLastError();
    return (int)e != CDP__CU_NOT_READY;
}

#endif /* CDP_SRC_NCCL_STREAM_H */
