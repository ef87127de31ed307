/* group/collectives_api.h - operations of all ranks */
#ifndef CDP_SRC_GROUP_COLLECTIVES_API_H
#define CDP_SRC_GROUP_COLLECTIVES_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "group_api.h"

/* One collective operation as a struct, for cdp_start(). The functions below are short forms of it.

   Uneven parts: where `out` (ALLGATHER, GATHER), `in` (SCATTER, REDUCE_SCATTER) or both
   (ALLTOALL) have one part per rank, out_counts and in_counts say how many elements each part
   has; parts lie one after the other. They are read during the call, and `count` is ignored.
   Both are the same on all ranks, but those of ALLTOALL: what rank i sends to j (its
   in_counts[j]) is what j receives from i (its out_counts[i]), also where j is i. */
typedef struct cdp_request {
    cdp_coll_kind kind;
    /* NULL or equal to `out`: in place. Also in place, as with NCCL: `in` is this rank's own part
       of `out` (ALLGATHER; GATHER on the root), or `out` is its own part of `in` (REDUCE_SCATTER,
       whose other parts may hold anything afterwards; SCATTER on the root). */
    const void *in;
    void *out;
    uint64_t count;      /* elements: see each function */
    cdp_dtype dtype;     /* (default: f32) */
    cdp_reduce_op op;    /* (default: SUM) */
    uint32_t root;       /* BROADCAST, REDUCE, GATHER, SCATTER */
    uint32_t timeout_ms; /* (default: the group's) */
    /* world_size numbers, NULL: all parts have `count` elements */
    const uint64_t *in_counts, *out_counts;
    cdp_real factor; /* PREMUL_SUM: what this rank's input is multiplied by (default: 1) */
    /* The dtype of partial results of SUM, PRODUCT and PREMUL_SUM of F16, BF16, F8E4M3 and F8E5M2.
       CDP_DTYPE_F32: they are added in f32 and rounded once, at the end; messages stay as short,
       but those of small operations, prefix reductions, PREMUL_SUM and groups over several hosts,
       which are sent as f32.
       Without effect on other dtypes and reductions. The same on all ranks. (default: rounded to
       `dtype` at every step.) INVALID: another dtype. UNSUPPORTED: device memory. */
    cdp_dtype accumulate;
} cdp_request;

/* An operation in flight: a plain value, free to copy and to drop; it stays meaningful until its
   group is destroyed. */
typedef struct cdp_work {
    cdp_group *group;
    uint64_t seq; /* the operation's number in its group, from 1; 0: none, which counts as done */
} cdp_work;

/* Start an operation and return. The memory of `in` and `out` belongs to the library until the
   work is done. Several may be in flight; they run in the order of the calls. Any thread, but
   all ranks must see one order. Errors (at the call, nothing started): INVALID, UNSUPPORTED,
   NOMEM; or the group's first failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_start(
    cdp_group *group, const cdp_request *request, cdp_work *out);

/* Start `n` operations in their order as one call: all, or none when one of them is wrong. *out
   is done when all are. NOMEM breaks the group where some had been started. */
CDP_MUST_CHECK CDP_API cdp_status cdp_start_all(
    cdp_group *group, const cdp_request *requests, uint32_t n, cdp_work *out);

/* Wait until the work is done; the waiting thread advances communication itself. Returns CDP_OK, or
   the group's first failure: TIMEOUT, PEER_LOST, ABORTED, MISMATCH, IO. May be called again, from
   any thread; the answer stays the same. INVALID: there is no such work. */
CDP_MUST_CHECK CDP_API cdp_status cdp_work_wait(cdp_work work);

/* Like cdp_work_wait(), but waits at most `timeout_ms`: then returns CDP_PENDING, and the
   operation goes on. */
CDP_MUST_CHECK CDP_API cdp_status cdp_work_wait_for(cdp_work work, uint32_t timeout_ms);

/* CDP_OK when done, CDP_PENDING when not, else the failure. Never blocks; without a progress
   thread it also moves all that can move now, of any size (cdp_work_poll() has a budget). */
CDP_API cdp_status cdp_work_test(cdp_work work);

#ifndef CDP_NO_FRAMES
/* Let communication advance until `work` is done, for at most `budget_us` microseconds (0: one
   step), as cdp_poll() does, with or without a progress thread. Returns what cdp_work_test()
   returns. Any thread. */
CDP_API cdp_status cdp_work_poll(cdp_work work, uint32_t budget_us);
#endif

/* Every rank gets the reduction of all ranks' `count` elements, the same bits everywhere. */
CDP_MUST_CHECK CDP_API cdp_status cdp_allreduce(
    cdp_group *group, const void *in, void *out, uint64_t count, cdp_dtype dtype, cdp_reduce_op op);
CDP_MUST_CHECK CDP_API cdp_status cdp_allreduce_async(cdp_group *group, const void *in, void *out,
    uint64_t count, cdp_dtype dtype, cdp_reduce_op op, cdp_work *work);
/* `count` elements of `data` on rank `root` are copied to every rank's `data`. */
CDP_MUST_CHECK CDP_API cdp_status cdp_broadcast(
    cdp_group *group, void *data, uint64_t count, cdp_dtype dtype, uint32_t root);
CDP_MUST_CHECK CDP_API cdp_status cdp_broadcast_async(
    cdp_group *group, void *data, uint64_t count, cdp_dtype dtype, uint32_t root, cdp_work *work);
/* Every rank brings `count` elements; `out` has world_size * count, rank r's part at r * count. In
   place (`in` NULL): this rank's part is already in its place in `out`. */
CDP_MUST_CHECK CDP_API cdp_status cdp_allgather(
    cdp_group *group, const void *in, void *out, uint64_t count, cdp_dtype dtype);
CDP_MUST_CHECK CDP_API cdp_status cdp_allgather_async(
    cdp_group *group, const void *in, void *out, uint64_t count, cdp_dtype dtype, cdp_work *work);
/* Rank `root` gets the reduction of all ranks' `count` elements in `out`, which no other rank
   needs. In place (`in` NULL): `out` is the input on every rank, and only root's is changed.
   Large ones need scratch of that size on the other ranks. */
CDP_MUST_CHECK CDP_API cdp_status cdp_reduce(cdp_group *group, const void *in, void *out,
    uint64_t count, cdp_dtype dtype, cdp_reduce_op op, uint32_t root);
CDP_MUST_CHECK CDP_API cdp_status cdp_reduce_async(cdp_group *group, const void *in, void *out,
    uint64_t count, cdp_dtype dtype, cdp_reduce_op op, uint32_t root, cdp_work *work);
/* Every rank brings `count` elements; root's `out` has world_size * count, rank r's part at r *
   count. In place: on the root, its own part is already in its place in `out`; on other ranks,
   `out` is the input. */
CDP_MUST_CHECK CDP_API cdp_status cdp_gather(
    cdp_group *group, const void *in, void *out, uint64_t count, cdp_dtype dtype, uint32_t root);
CDP_MUST_CHECK CDP_API cdp_status cdp_gather_async(cdp_group *group, const void *in, void *out,
    uint64_t count, cdp_dtype dtype, uint32_t root, cdp_work *work);
/* Root's `in` has world_size * count elements, of which rank r gets `count` from r * count on.
   In place: root's `out` has all parts, and its own stays where it is. */
CDP_MUST_CHECK CDP_API cdp_status cdp_scatter(
    cdp_group *group, const void *in, void *out, uint64_t count, cdp_dtype dtype, uint32_t root);
CDP_MUST_CHECK CDP_API cdp_status cdp_scatter_async(cdp_group *group, const void *in, void *out,
    uint64_t count, cdp_dtype dtype, uint32_t root, cdp_work *work);
/* `in` has world_size * count elements; rank r gets the reduction of part r of all ranks. In place:
   `out` has all parts; the result replaces this rank's part, and the contents of the other parts
   are undefined afterwards. */
CDP_MUST_CHECK CDP_API cdp_status cdp_reduce_scatter(
    cdp_group *group, const void *in, void *out, uint64_t count, cdp_dtype dtype, cdp_reduce_op op);
CDP_MUST_CHECK CDP_API cdp_status cdp_reduce_scatter_async(cdp_group *group, const void *in,
    void *out, uint64_t count, cdp_dtype dtype, cdp_reduce_op op, cdp_work *work);
/* Part r of `in` (world_size * count elements) goes to rank r; part r of `out` comes from it.
   Not in place. */
CDP_MUST_CHECK CDP_API cdp_status cdp_alltoall(
    cdp_group *group, const void *in, void *out, uint64_t count, cdp_dtype dtype);
CDP_MUST_CHECK CDP_API cdp_status cdp_alltoall_async(
    cdp_group *group, const void *in, void *out, uint64_t count, cdp_dtype dtype, cdp_work *work);
#ifndef CDP_NO_SCAN
/* Prefix reductions, as in MPI. Rank r gets the reduction of the `count` elements of ranks 0 to r
   (scan), or of ranks 0 to r - 1 (exscan: the `out` of rank 0 is not touched, but must be given).
   Operands are combined in the order of the ranks. In place: `in` NULL. UNSUPPORTED: AVG; device
   memory. Scratch of `count` elements; a scan of more than small_bytes needs none. */
CDP_MUST_CHECK CDP_API cdp_status cdp_scan(
    cdp_group *group, const void *in, void *out, uint64_t count, cdp_dtype dtype, cdp_reduce_op op);
CDP_MUST_CHECK CDP_API cdp_status cdp_scan_async(cdp_group *group, const void *in, void *out,
    uint64_t count, cdp_dtype dtype, cdp_reduce_op op, cdp_work *work);
CDP_MUST_CHECK CDP_API cdp_status cdp_exscan(
    cdp_group *group, const void *in, void *out, uint64_t count, cdp_dtype dtype, cdp_reduce_op op);
CDP_MUST_CHECK CDP_API cdp_status cdp_exscan_async(cdp_group *group, const void *in, void *out,
    uint64_t count, cdp_dtype dtype, cdp_reduce_op op, cdp_work *work);
#endif
/* Returns when every rank has called it. */
CDP_MUST_CHECK CDP_API cdp_status cdp_barrier(cdp_group *group);
CDP_MUST_CHECK CDP_API cdp_status cdp_barrier_async(cdp_group *group, cdp_work *work);

#endif /* CDP_SRC_GROUP_COLLECTIVES_API_H */
