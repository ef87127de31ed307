/* group/collective_calls.h - the named operations

   Knows: requests. Promises: a blocking call returns when its operation has ended, or by its
   deadline. */
#ifndef CDP_SRC_GROUP_COLLECTIVE_CALLS_H
#define CDP_SRC_GROUP_COLLECTIVE_CALLS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../message/transport_api.h"
#include "group_api.h"
#include "collectives_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../message/stream.h"
#include "state.h"
#include "deferred.h"
#include "progress.h"
#include "device.h"
#include "requests.h"
#include "queue.h"
#include "work_calls.h"

CDP__PRIVATE cdp_request cdp__request_of(cdp_coll_kind kind, const void *in, void *out,
    uint64_t count, cdp_dtype dtype, cdp_reduce_op op, uint32_t root) {
    cdp_request rq;
    memset(&rq, 0, sizeof rq);
    rq.kind = kind;
    rq.in = in;
    rq.out = out;
    rq.count = count;
    rq.dtype = dtype;
    rq.op = op;
    rq.root = root;
    return rq;
}

/* Starts an operation and waits until it has ended. `counts`: the lengths of all parts, or NULL. */
CDP__PRIVATE cdp_status cdp__collective(cdp_group *g, cdp_coll_kind kind, const void *in, void *out,
    uint64_t count, cdp_dtype dtype, cdp_reduce_op op, uint32_t root, const uint64_t *counts) {
    const cdp__with with = {{NULL, 0}, NULL, NULL, false, 0};
    cdp_request rq = cdp__request_of(kind, in, out, count, dtype, op, root);
    cdp_work w = {NULL, 0};
    cdp__world *m;
    cdp__progress t;
    bool device;
    cdp_status st = cdp__must_not_wait();
    rq.in_counts = rq.out_counts = counts; /* an operation uses those that it has */
    if (st == CDP_OK) st = cdp__alive_for(g, kind);
    if (st == CDP_OK) st = cdp__request_check(g, &rq, &device);
    if (st == CDP_OK && device) {
        st = cdp__device_start(g, &rq, 1, &w);
        return st == CDP_OK ? cdp__device_wait(w, CDP__NEVER) : st;
    }
    if (st != CDP_OK) return st;
    m = g->w;
    cdp__enter(g);
    st = cdp__enqueue(g, &rq, &with, &w); /* no hand-over: this thread makes the progress */
    if (st == CDP_OK) cdp__first_moves(g);
    if (st == CDP_OK && (st = cdp__work_state(w)) == CDP_PENDING) {
        ++g->queue.waiters;
        cdp__progress_begin(&t, g, w.seq, CDP__NEVER, false);
        /* as cdp__progress_until(), but here: the walk in the head of this file stays short */
        while (cdp__progress_next(&t))
            t.polled = cdp__world_poll(m);
        st = cdp__work_state(w);
        --g->queue
              .waiters; /* last access: a thread that destroys the group waits until this is 0 */
    }
    cdp_lock_release(&m->lock);
    return st == CDP_PENDING ? cdp__fail(
               CDP_ERR_INTERNAL, "the wait ended, but its work has no result; this is a bug of cdp")
                             : st;
}

CDP__PRIVATE cdp_status cdp__collective_async(cdp_group *g, cdp_work *work, cdp_coll_kind kind,
    const void *in, void *out, uint64_t count, cdp_dtype dtype, cdp_reduce_op op, uint32_t root) {
    const cdp_request rq = cdp__request_of(kind, in, out, count, dtype, op, root);
    if (!work) return cdp__missing(cdp_coll_name(kind), "work");
    return cdp_start(g, &rq, work);
}

CDP_API cdp_status cdp_barrier(cdp_group *g) {
    return cdp__collective(
        g, CDP_COLL_BARRIER, NULL, NULL, 0, CDP_DTYPE_U8, CDP_REDUCE_DEFAULT, 0, NULL);
}

CDP_API cdp_status cdp_barrier_async(cdp_group *g, cdp_work *work) {
    return cdp__collective_async(
        g, work, CDP_COLL_BARRIER, NULL, NULL, 0, CDP_DTYPE_U8, CDP_REDUCE_DEFAULT, 0);
}

CDP_API cdp_status cdp_allreduce(
    cdp_group *g, const void *in, void *out, uint64_t count, cdp_dtype dtype, cdp_reduce_op op) {
    return cdp__collective(g, CDP_COLL_ALLREDUCE, in, out, count, dtype, op, 0, NULL);
}

CDP_API cdp_status cdp_allreduce_async(cdp_group *g, const void *in, void *out, uint64_t count,
    cdp_dtype dtype, cdp_reduce_op op, cdp_work *work) {
    return cdp__collective_async(g, work, CDP_COLL_ALLREDUCE, in, out, count, dtype, op, 0);
}

CDP_API cdp_status cdp_broadcast(
    cdp_group *g, void *data, uint64_t count, cdp_dtype dtype, uint32_t root) {
    return cdp__collective(
        g, CDP_COLL_BROADCAST, NULL, data, count, dtype, CDP_REDUCE_DEFAULT, root, NULL);
}

CDP_API cdp_status cdp_broadcast_async(
    cdp_group *g, void *data, uint64_t count, cdp_dtype dtype, uint32_t root, cdp_work *work) {
    return cdp__collective_async(
        g, work, CDP_COLL_BROADCAST, NULL, data, count, dtype, CDP_REDUCE_DEFAULT, root);
}

CDP_API cdp_status cdp_allgather(
    cdp_group *g, const void *in, void *out, uint64_t count, cdp_dtype dtype) {
    return cdp__collective(
        g, CDP_COLL_ALLGATHER, in, out, count, dtype, CDP_REDUCE_DEFAULT, 0, NULL);
}

CDP_API cdp_status cdp_allgather_async(
    cdp_group *g, const void *in, void *out, uint64_t count, cdp_dtype dtype, cdp_work *work) {
    return cdp__collective_async(
        g, work, CDP_COLL_ALLGATHER, in, out, count, dtype, CDP_REDUCE_DEFAULT, 0);
}

CDP_API cdp_status cdp_reduce(cdp_group *g, const void *in, void *out, uint64_t count,
    cdp_dtype dtype, cdp_reduce_op op, uint32_t root) {
    return cdp__collective(g, CDP_COLL_REDUCE, in, out, count, dtype, op, root, NULL);
}

CDP_API cdp_status cdp_reduce_async(cdp_group *g, const void *in, void *out, uint64_t count,
    cdp_dtype dtype, cdp_reduce_op op, uint32_t root, cdp_work *work) {
    return cdp__collective_async(g, work, CDP_COLL_REDUCE, in, out, count, dtype, op, root);
}

CDP_API cdp_status cdp_gather(
    cdp_group *g, const void *in, void *out, uint64_t count, cdp_dtype dtype, uint32_t root) {
    return cdp__collective(
        g, CDP_COLL_GATHER, in, out, count, dtype, CDP_REDUCE_DEFAULT, root, NULL);
}

CDP_API cdp_status cdp_gather_async(cdp_group *g, const void *in, void *out, uint64_t count,
    cdp_dtype dtype, uint32_t root, cdp_work *work) {
    return cdp__collective_async(
        g, work, CDP_COLL_GATHER, in, out, count, dtype, CDP_REDUCE_DEFAULT, root);
}

CDP_API cdp_status cdp_scatter(
    cdp_group *g, const void *in, void *out, uint64_t count, cdp_dtype dtype, uint32_t root) {
    return cdp__collective(
        g, CDP_COLL_SCATTER, in, out, count, dtype, CDP_REDUCE_DEFAULT, root, NULL);
}

CDP_API cdp_status cdp_scatter_async(cdp_group *g, const void *in, void *out, uint64_t count,
    cdp_dtype dtype, uint32_t root, cdp_work *work) {
    return cdp__collective_async(
        g, work, CDP_COLL_SCATTER, in, out, count, dtype, CDP_REDUCE_DEFAULT, root);
}

CDP_API cdp_status cdp_reduce_scatter(
    cdp_group *g, const void *in, void *out, uint64_t count, cdp_dtype dtype, cdp_reduce_op op) {
    return cdp__collective(g, CDP_COLL_REDUCE_SCATTER, in, out, count, dtype, op, 0, NULL);
}

CDP_API cdp_status cdp_reduce_scatter_async(cdp_group *g, const void *in, void *out, uint64_t count,
    cdp_dtype dtype, cdp_reduce_op op, cdp_work *work) {
    return cdp__collective_async(g, work, CDP_COLL_REDUCE_SCATTER, in, out, count, dtype, op, 0);
}

CDP_API cdp_status cdp_alltoall(
    cdp_group *g, const void *in, void *out, uint64_t count, cdp_dtype dtype) {
    return cdp__collective(
        g, CDP_COLL_ALLTOALL, in, out, count, dtype, CDP_REDUCE_DEFAULT, 0, NULL);
}

CDP_API cdp_status cdp_alltoall_async(
    cdp_group *g, const void *in, void *out, uint64_t count, cdp_dtype dtype, cdp_work *work) {
    return cdp__collective_async(
        g, work, CDP_COLL_ALLTOALL, in, out, count, dtype, CDP_REDUCE_DEFAULT, 0);
}

#ifndef CDP_NO_SCAN

CDP_API cdp_status cdp_scan(
    cdp_group *g, const void *in, void *out, uint64_t count, cdp_dtype dtype, cdp_reduce_op op) {
    return cdp__collective(g, CDP_COLL_SCAN, in, out, count, dtype, op, 0, NULL);
}

CDP_API cdp_status cdp_scan_async(cdp_group *g, const void *in, void *out, uint64_t count,
    cdp_dtype dtype, cdp_reduce_op op, cdp_work *work) {
    return cdp__collective_async(g, work, CDP_COLL_SCAN, in, out, count, dtype, op, 0);
}

CDP_API cdp_status cdp_exscan(
    cdp_group *g, const void *in, void *out, uint64_t count, cdp_dtype dtype, cdp_reduce_op op) {
    return cdp__collective(g, CDP_COLL_EXSCAN, in, out, count, dtype, op, 0, NULL);
}

CDP_API cdp_status cdp_exscan_async(cdp_group *g, const void *in, void *out, uint64_t count,
    cdp_dtype dtype, cdp_reduce_op op, cdp_work *work) {
    return cdp__collective_async(g, work, CDP_COLL_EXSCAN, in, out, count, dtype, op, 0);
}

#endif /* CDP_NO_SCAN */

#endif /* CDP_SRC_GROUP_COLLECTIVE_CALLS_H */
