/* nccl/backend.h - requests of cdp.h, run by NCCL

   Knows: requests of cdp.h. Promises: what cdp_backend says; what NCCL does not support is refused
   before anything starts. */
#ifndef CDP_SRC_NCCL_BACKEND_H
#define CDP_SRC_NCCL_BACKEND_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../group/messages_api.h"
#include "../group/backend_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../collective/kinds.h"
#include "load.h"
#include "map.h"
#include "bootstrap.h"
#include "stream.h"
#include "watchdog.h"

CDP__PRIVATE int cdp__nccl_owns(void *self, const void *data) {
    const cdp__nccl *b = (const cdp__nccl *)self;
    cdp__cu_pointer where;
    cdp__cu_error e;
    int type, device;
    memset(&where, 0, sizeof where);
    e = cdp__nc.cudaPointerGetAttributes(&where, data);
    if (e != 0) return (int)cdp__nccl_cuda_failed(e, "asking whose memory this is");
    type = (int)where.type;
    device = where.device;
    if (type != CDP__CU_MANAGED_MEMORY && type != CDP__CU_DEVICE_MEMORY) return 0;
    if (type == CDP__CU_MANAGED_MEMORY || device == b->device)
        return cdp__nccl_right_device(b) == CDP_OK ? 1 : (int)cdp_last_error()->status;
    return (int)cdp__fail(CDP_ERR_INVALID,
        "memory of device %d was given to a group on device %d; allocate it while "
        "cudaSetDevice(%d) is in effect",
        device, b->device, b->device);
}

/* Returns an error if NCCL does not support the request. */
CDP__PRIVATE cdp_status cdp__nccl_check(const cdp__nccl *b, const cdp_request *rq) {
    const int type = cdp__nccl_type(rq->dtype, b->version);
    if (!cdp__kind_is(rq->kind, CDP__KIND_NCCL))
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "%s in device memory: NCCL has no such collective; copy the data to host memory",
            cdp_coll_name(rq->kind));
    if (!cdp__kind_reduces(rq->kind)) return CDP_OK; /* bytes are only copied */
    if (cdp_dtype_size(rq->dtype) == 1 && cdp__dtype_is_float(rq->dtype) && type >= 0
        && b->capability < 90)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "%s in device memory: NCCL reduces %s on devices of compute capability 9.0 and later "
            "only, and a rank of the group has %d.%d; reduce f16 or bf16",
            cdp_coll_name(rq->kind), cdp_dtype_name(rq->dtype), b->capability / 10,
            b->capability % 10);
    if (type >= 0 && cdp__nccl_reduction(rq->dtype, rq->op) >= 0) return CDP_OK;
    return cdp__fail(CDP_ERR_UNSUPPORTED, "%s in device memory: NCCL %d.%d has no %s of %s",
        cdp_coll_name(rq->kind), b->version / 10000, b->version / 100 % 100,
        cdp_reduce_name(rq->op), cdp_dtype_name(rq->dtype));
}

/* A request in terms of NCCL. */
typedef struct cdp__nccl_call {
    cdp__nccl *b;
    const cdp_request *rq;
    uint64_t size;     /* bytes of an element */
    uint8_t *in, *out; /* in == out: in place */
    uint64_t bytes;    /* bytes of `count` elements */
    cdp__nc_type type;
    cdp__nc_op op;
    bool made; /* `op` must be destroyed */
} cdp__nccl_call;

/* Where part r begins, and its length, in bytes. */
CDP__PRIVATE uint64_t cdp__nccl_part_at(
    const cdp__nccl_call *c, const uint64_t *counts, uint32_t r, uint64_t *bytes) {
    uint64_t at = 0;
    uint32_t i;
    *bytes = (counts ? counts[r] : c->rq->count) * c->size;
    if (!counts) return r * c->bytes;
    for (i = 0; i < r; ++i)
        at += counts[i];
    return at * c->size;
}

#define CDP__NC_BYTES ((cdp__nc_type)0) /* ncclInt8 */

CDP__PRIVATE int cdp__nccl_send(
    const cdp__nccl_call *c, const uint8_t *from, uint64_t bytes, uint32_t to) {
    return bytes ? (int)cdp__nc.ncclSend(
               from, (size_t)bytes, CDP__NC_BYTES, (int)to, c->b->comm, c->b->stream)
                 : 0;
}
CDP__PRIVATE int cdp__nccl_recv(
    const cdp__nccl_call *c, uint8_t *to, uint64_t bytes, uint32_t from) {
    return bytes ? (int)cdp__nc.ncclRecv(
               to, (size_t)bytes, CDP__NC_BYTES, (int)from, c->b->comm, c->b->stream)
                 : 0;
}

/* Starts collectives with parts of different lengths, and those that not all versions of NCCL
   have. */
CDP__PRIVATE int cdp__nccl_issue_parts(const cdp__nccl_call *c) {
    const cdp_request *rq = c->rq;
    cdp__nccl *b = c->b;
    uint64_t at, bytes, to, to_bytes;
    uint32_t r;
    int e = 0;
    for (r = 0; r < b->size && e == 0; ++r) {
        const bool me = r == b->rank;
        at = cdp__nccl_part_at(c, rq->in_counts, r, &bytes);
        to = cdp__nccl_part_at(c, rq->out_counts, r, &to_bytes);
        switch (rq->kind) {
        case CDP_COLL_ALLGATHER:
            if (to_bytes)
                e = (int)cdp__nc.ncclBroadcast(me && c->in != c->out ? c->in : c->out + to,
                    c->out + to, (size_t)to_bytes, CDP__NC_BYTES, (int)r, b->comm, b->stream);
            break;
        case CDP_COLL_REDUCE_SCATTER:
            if (bytes) {
                uint8_t *result = c->in == c->out ? c->out + at : c->out;
                e = (int)cdp__nc.ncclReduce(c->in + at, me ? result : NULL,
                    (size_t)(bytes / c->size), c->type, c->op, (int)r, b->comm, b->stream);
            }
            break;
        case CDP_COLL_GATHER:
            if (b->rank == rq->root && !me)
                e = cdp__nccl_recv(c, c->out + to, to_bytes, r);
            else if (me && b->rank != rq->root)
                e = cdp__nccl_send(c, c->in, to_bytes, rq->root);
            break;
        case CDP_COLL_SCATTER:
            if (b->rank == rq->root && !me)
                e = cdp__nccl_send(c, c->in + at, bytes, r);
            else if (me && b->rank != rq->root)
                e = cdp__nccl_recv(c, c->out, bytes, rq->root);
            break;
        case CDP_COLL_ALLTOALL:
            if (me) break;
            e = cdp__nccl_send(c, c->in + at, bytes, r);
            if (e == 0 || e == CDP__NC_IN_PROGRESS) e = cdp__nccl_recv(c, c->out + to, to_bytes, r);
            break;
        default: return CDP__NC_INVALID; /* cdp__nccl_check() has refused it */
        }
        if (e == CDP__NC_IN_PROGRESS) e = 0;
    }
    return e;
}

CDP__PRIVATE int cdp__nccl_issue(const cdp__nccl_call *c) {
    const cdp_request *rq = c->rq;
    cdp__nccl *b = c->b;
    const size_t n = (size_t)rq->count, bytes = (size_t)c->bytes;
    if (rq->in_counts || rq->out_counts) return cdp__nccl_issue_parts(c);
    switch (rq->kind) {
    case CDP_COLL_ALLREDUCE:
        return (int)cdp__nc.ncclAllReduce(c->in, c->out, n, c->type, c->op, b->comm, b->stream);
    case CDP_COLL_BROADCAST:
        return (int)cdp__nc.ncclBroadcast(
            c->out, c->out, bytes, CDP__NC_BYTES, (int)rq->root, b->comm, b->stream);
    case CDP_COLL_REDUCE:
        return (int)cdp__nc.ncclReduce(c->in, b->rank == rq->root ? c->out : NULL, n, c->type,
            c->op, (int)rq->root, b->comm, b->stream);
    case CDP_COLL_ALLGATHER:
        return (int)cdp__nc.ncclAllGather(c->in == c->out ? c->out + b->rank * c->bytes : c->in,
            c->out, bytes, CDP__NC_BYTES, b->comm, b->stream);
    case CDP_COLL_REDUCE_SCATTER:
        return (int)cdp__nc.ncclReduceScatter(c->in,
            c->in == c->out ? c->out + b->rank * c->bytes : c->out, n, c->type, c->op, b->comm,
            b->stream);
    default: return cdp__nccl_issue_parts(c);
    }
}

/* Copies this rank's own part, for collectives that are made of sends and receives. */
CDP__PRIVATE cdp_status cdp__nccl_own_part(const cdp__nccl_call *c) {
    const cdp_request *rq = c->rq;
    const cdp__nccl *b = c->b;
    uint64_t at, bytes, to, to_bytes;
    cdp__cu_error e;
    if (c->in == c->out
        || (rq->kind != CDP_COLL_ALLTOALL
            && ((rq->kind != CDP_COLL_GATHER && rq->kind != CDP_COLL_SCATTER)
                || rq->root != b->rank)))
        return CDP_OK;
    at = cdp__nccl_part_at(c, rq->in_counts, b->rank, &bytes);
    to = cdp__nccl_part_at(c, rq->out_counts, b->rank, &to_bytes);
    if (rq->kind == CDP_COLL_GATHER) {
        at = 0;
        bytes = to_bytes;
    }
    if (rq->kind == CDP_COLL_SCATTER) to = 0;
    e = bytes ? cdp__nc.cudaMemcpyAsync(
            c->out + to, c->in + at, (size_t)bytes, (cdp__cu_copy)CDP__CU_COPY_ANY, b->stream)
              : (cdp__cu_error)0;
    return e == 0 ? CDP_OK : cdp__nccl_cuda_failed(e, "copying this rank's own part");
}

CDP__PRIVATE cdp_status cdp__nccl_prepare(cdp__nccl *b, const cdp_request *rq, cdp__nccl_call *c) {
    uint8_t scalar[8];
    int r;
    c->b = b;
    c->rq = rq;
    c->size = cdp_dtype_size(rq->dtype);
    c->out = (uint8_t *)rq->out;
    c->in = rq->in ? (uint8_t *)(uintptr_t)rq->in : c->out;
    c->bytes = rq->count * c->size;
    c->type = (cdp__nc_type)cdp__nccl_type(rq->dtype, b->version);
    c->op = (cdp__nc_op)cdp__nccl_reduction(rq->dtype, rq->op);
    c->made = false;
    if (!cdp__kind_reduces(rq->kind) || rq->op != CDP_REDUCE_PREMUL_SUM) return CDP_OK;
    cdp__nccl_scalar(rq->dtype, rq->factor, scalar);
    r = (int)cdp__nc.ncclRedOpCreatePreMulSum(
        &c->op, scalar, c->type, (cdp__nc_residence)CDP__NC_HOST_SCALAR, b->comm);
    c->made = r == 0;
    return r == 0 ? CDP_OK : cdp__nccl_nccl_failed(r, "ncclRedOpCreatePreMulSum");
}

/* Takes the next entry of the ring for an operation about to start; from here on its number is
   valid. */
CDP__PRIVATE cdp__nccl_op *cdp__nccl_next(cdp__nccl *b, bool capture, uint64_t *number) {
    cdp__nccl_op *op;
    cdp_lock_acquire(&b->lock);
    *number = capture ? ++b->captures : ++b->issued;
    op = (capture ? b->captured : b->ring) + *number % CDP__NCCL_RING;
    op->index = *number;
    op->deadline_ns = CDP__NEVER; /* set when it has started */
    cdp_lock_release(&b->lock);
    *number = *number << 1 | (capture ? CDP__NCCL_CAPTURED : 0);
    return op;
}

CDP__PRIVATE void cdp__nccl_describe_op(cdp__nccl *b, cdp__nccl_op *op, const cdp_request *rq,
    uint32_t n, uint32_t timeout_ms, bool capture) {
    cdp_lock_acquire(&b->lock);
    op->kind = rq->kind;
    op->dtype = rq->dtype;
    op->op = rq->op;
    op->count = rq->count;
    op->many = n;
    op->timeout_ms = timeout_ms;
    /* if ranks compare calls over the links, that comparison times out first: it names the late
       rank */
    op->deadline_ns = CDP__NEVER;
    if (!capture && timeout_ms != CDP_NO_TIMEOUT) {
        const uint64_t later_ms = b->desc.no_check ? 0 : cdp__max(50, timeout_ms / 16);
        op->deadline_ns = cdp__nccl_now(b) + (timeout_ms + later_ms) * CDP__MS;
    }
    cdp_lock_release(&b->lock);
}

/* Starts operations in one NCCL group, and waits until they are in the stream. */
CDP__PRIVATE cdp_status cdp__nccl_together(cdp__nccl *b, cdp__nccl_call *calls,
    const cdp_transfer *list, uint32_t n, uint64_t deadline_ns) {
    int r = (int)cdp__nc.ncclGroupStart(), last;
    cdp_status st;
    uint32_t i;
    if (r != 0) return cdp__nccl_nccl_failed(r, "ncclGroupStart");
    for (i = 0; i < n && (r == 0 || r == CDP__NC_IN_PROGRESS); ++i) {
        if (calls)
            r = cdp__nccl_issue(&calls[i]);
        else {
            const uint64_t bytes =
                list[i].count * cdp_dtype_size(cdp__def(list[i].dtype, CDP_DTYPE_F32));
            cdp__nccl_call c;
            memset(&c, 0, sizeof c);
            c.b = b;
            r = list[i].receive
                ? cdp__nccl_recv(&c, (uint8_t *)list[i].data, bytes, list[i].peer)
                : cdp__nccl_send(&c, (const uint8_t *)list[i].data, bytes, list[i].peer);
        }
    }
    last = (int)cdp__nc.ncclGroupEnd();
    if (r != 0 && r != CDP__NC_IN_PROGRESS)
        return cdp__nccl_nccl_failed(r, "starting an operation");
    if (last != 0 && last != CDP__NC_IN_PROGRESS)
        return cdp__nccl_nccl_failed(last, "ncclGroupEnd");
    st = cdp__nccl_settle(b, b->comm, deadline_ns, "starting an operation");
    for (i = 0; calls && i < n && st == CDP_OK; ++i)
        st = cdp__nccl_own_part(&calls[i]);
    return st;
}

/* Prepares, starts and marks an operation. The caller must be inside NCCL (cdp__nccl_enter). */
CDP__PRIVATE cdp_status cdp__nccl_launch(cdp__nccl *b, const cdp_request *rqs,
    cdp__nccl_call *calls, const cdp_transfer *list, uint32_t n, uint32_t timeout_ms,
    uint64_t *number) {
    const bool capture = cdp__nccl_capturing(b->caller);
    cdp__nccl_op *op = cdp__nccl_next(b, capture, number);
    cdp_request what;
    cdp_status st = cdp__nccl_failed(b) ? cdp__fail(CDP_ERR_ABORTED, "the communicator was aborted")
                                        : cdp__nccl_after_caller(b);
    uint32_t i;
    memset(&what, 0, sizeof what);
    what.kind = CDP_COLL_SEND;
    for (i = 0; calls && i < n; ++i)
        calls[i].made = false;
    for (i = 0; calls && i < n && st == CDP_OK; ++i)
        st = cdp__nccl_prepare(b, &rqs[i], &calls[i]);
    cdp__nccl_describe_op(b, op, rqs ? rqs : &what, n, timeout_ms, capture);
    if (st == CDP_OK)
        st = cdp__nccl_together(
            b, calls, list, n, cdp__nccl_now(b) + cdp__min(timeout_ms, 1u << 30) * CDP__MS);
    /* after an error the reductions may still be in use; they end with the communicator */
    for (i = 0; calls && i < n && st == CDP_OK; ++i)
        if (calls[i].made) (void)cdp__nc.ncclRedOpDestroy(calls[i].op, b->comm);
    return st == CDP_OK ? cdp__nccl_mark(b, op, capture) : st;
}

/* Checks whether the oldest operation in the ring is late, in case no thread waits for it. */
CDP__PRIVATE cdp_status cdp__nccl_overdue(cdp__nccl *b) {
    const cdp__nccl_op *op =
        b->issued >= CDP__NCCL_RING ? &b->ring[(b->issued + 1) % CDP__NCCL_RING] : &b->ring[1];
    const cdp_status st = b->issued ? cdp__nccl_look(b, op->index << 1) : CDP_OK;
    return st == CDP_PENDING ? CDP_OK : st;
}

/* Ends every start. After a failure, threads of NCCL may still put operations into the stream;
   waits until the abort rules that out, because the caller may free the memory. */
CDP__PRIVATE cdp_status cdp__nccl_begun(cdp__nccl *b, cdp_status st, uint64_t number) {
    cdp__nccl_leave(b);
    if (st == CDP_OK || !number) return st;
    cdp_group_fail(b->group);
    cdp__nccl_by_hand(b);
    (void)cdp__nccl_await(b, &b->aborted, CDP__NCCL_LEAVE_MS);
    /* copies of this rank's own part may still run */
    if (!cdp__nccl_capturing(b->stream))
        (void)cdp__nccl_drain(b, b->all, b->stream, CDP__NCCL_LEAVE_MS);
    return cdp_group_status(b->group) != CDP_OK ? cdp_last_error()->status : st;
}

CDP__PRIVATE cdp_status cdp__nccl_start(
    void *self, const cdp_request *rqs, uint32_t n, uint64_t *number) {
    cdp__nccl *b = (cdp__nccl *)self;
    cdp__nccl_call one, *calls = &one;
    uint32_t i, timeout_ms = rqs[0].timeout_ms;
    cdp_status st = CDP_OK;
    *number = 0;
    for (i = 0; i < n && st == CDP_OK; ++i) {
        st = cdp__nccl_check(b, &rqs[i]);
        if (rqs[i].timeout_ms > timeout_ms) timeout_ms = rqs[i].timeout_ms;
    }
    if (st == CDP_OK) st = cdp__nccl_enter(b);
    if (st != CDP_OK) return st;
    if (n > 1) calls = (cdp__nccl_call *)cdp__alloc(b->os, n * sizeof *calls);
    if (!calls)
        st = cdp__fail_nomem("a list of requests", n * sizeof *calls);
    else if ((st = cdp__nccl_overdue(b)) != CDP_OK)
        *number = 1;
    if (st == CDP_OK && !b->desc.no_check)
        st = cdp_group_compare(b->group, rqs, n, b->desc.check_first);
    if (st == CDP_OK) st = cdp__nccl_launch(b, rqs, calls, NULL, n, timeout_ms, number);
    if (calls != &one) cdp__free(b->os, calls);
    return cdp__nccl_begun(b, st, *number);
}

CDP__PRIVATE cdp_status cdp__nccl_transfer(
    void *self, const cdp_transfer *list, uint32_t n, uint64_t *number) {
    cdp__nccl *b = (cdp__nccl *)self;
    uint32_t i, timeout_ms = 0;
    cdp_status st = CDP_OK;
    *number = 0;
    for (i = 0; i < n && st == CDP_OK; ++i)
        if (list[i].tag)
            st = cdp__fail(CDP_ERR_UNSUPPORTED,
                "device memory: messages between two ranks meet in the order in which they are "
                "started, so tag %u would be ignored; give tag 0",
                list[i].tag);
    if (st == CDP_OK) st = cdp__nccl_enter(b);
    if (st != CDP_OK) return st;
    for (i = 0; i < n; ++i)
        timeout_ms = (uint32_t)cdp__max(timeout_ms, cdp__def(list[i].timeout_ms, b->timeout_ms));
    if ((st = cdp__nccl_overdue(b)) != CDP_OK) *number = 1;
    if (st == CDP_OK) st = cdp__nccl_launch(b, NULL, NULL, list, n, timeout_ms, number);
    return cdp__nccl_begun(b, st, *number);
}

CDP__PRIVATE cdp_status cdp__nccl_wait(void *self, uint64_t number, uint64_t deadline_ns) {
    cdp__nccl *b = (cdp__nccl *)self;
    const bool no_limit = deadline_ns == CDP__NEVER;
    uint32_t naps = 0;
    cdp_status st;
    if (no_limit && !b->desc.blocking_wait) {
        st = cdp__nccl_right_device(b);
        return st == CDP_OK ? cdp__nccl_order(b, number) : st;
    }
    for (;;) {
        st = cdp__nccl_look(b, number);
        if (st != CDP_PENDING || deadline_ns == 0) return st;
        if ((st = cdp_group_status(b->group)) != CDP_OK) return st;
        if (cdp__nccl_now(b) >= deadline_ns) return CDP_PENDING;
        if (cdp_group_desc_of(b->group)->no_thread) (void)cdp_poll(b->group, 0);
        cdp__nccl_nap(b, &naps);
    }
}

CDP__PRIVATE void cdp__nccl_group_failed(void *self, const cdp_error *error) {
    cdp__nccl *b = (cdp__nccl *)self;
    (void)error;
    cdp_lock_acquire(&b->lock);
    cdp__atomic_store_u32(&b->failed, 1, CDP__RELEASE);
    cdp_lock_release(&b->lock);
    cdp__nccl_wake(b);
}

#endif /* CDP_SRC_NCCL_BACKEND_H */
