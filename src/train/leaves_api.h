/* train/leaves_api.h - the same bits on any number of ranks */
#ifndef CDP_SRC_TRAIN_LEAVES_API_H
#define CDP_SRC_TRAIN_LEAVES_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../group/group_api.h"
#include "../ddp/ddp_api.h"

#ifndef CDP_NO_DDP
#ifndef CDP_NO_TRAINING
/* A global batch of `leaves` micro-batches whose mean gradient has the same bits on 1, 2, 3 ...
   or `leaves` ranks: micro-batches are added along one binary tree over all of them, and a rank
   sends the nodes of that tree that it owns. So a job may go on with another number of ranks
   (create the ddp and this again), and parameters have the bits that they would have had.

       cdp_status st = CDP_PENDING;
       while (st == CDP_PENDING) {
           uint64_t leaf;
           st = cdp_leaves_begin(leaves, &leaf);      // the number of a micro-batch
           if (st != CDP_OK) break;
           ...                                        // its backward pass, with cdp_ddp_ready()
           st = cdp_leaves_end(leaves);               // CDP_OK: gradients hold the mean
       }

   What the program must keep: a micro-batch has the same gradient bits on every rank. So its data
   follow from its number alone, random numbers, too; it has the same shape, and its loss the same
   divisor; kernels do not depend on the number of threads; statistics (batch normalisation) are
   those of the micro-batch. What uses the mean must not depend on the number of ranks either, as
   cdp_ddp_clip() and an update of all parameters do not.

   What it costs. Rank r has micro-batches [leaves * r / n, leaves * (r + 1) / n), at most one more
   than another. Additions: those of plain accumulation. Bytes: where leaves / n is a power of two,
   those of an allreduce; else a rank sends at most 2 log2(leaves / n) + 1 nodes in place of one
   gradient. Memory: one more gradient for each node that is kept at once, at most as many, and
   buckets on their way as often as this rank has nodes, and once for what it receives. No hook
   compresses.

   Threads: those of the ddp. */
typedef struct cdp_leaves cdp_leaves;

typedef struct cdp_leaves_desc {
    /* Its gradients, f32 or f64; its hook is replaced, so its divisor has no effect. It outlives
       the leaves, or is destroyed first. Not with join, sparse parameters, or device memory. */
    cdp_ddp *ddp;
    /* Without a ddp: one array of gradients, owned by the caller, which cdp_leaves_begin() sets to
       zero. */
    cdp_group *group;
    void *grads;
    uint64_t count;  /* elements */
    cdp_dtype dtype; /* f32 (default) or f64 */
    uint32_t leaves; /* micro-batches of a global batch, 1 to 2^31; equal on all ranks */
} cdp_leaves_desc;

/* Collective; waits. *out belongs to the caller. Errors: INVALID (a missing member; fewer leaves
   than ranks: the text lists the numbers of ranks that are possible), UNSUPPORTED (what the desc
   excludes), NOMEM, STATE (a backward pass is open; the group or the ddp was destroyed), MISMATCH
   on all ranks (ranks have other leaves, counts or dtypes), or the group's failure. What one rank
   refuses, but STATE, is the error of all: the text names that rank. */
CDP_MUST_CHECK CDP_API cdp_status cdp_leaves_create(const cdp_leaves_desc *desc, cdp_leaves **out);

/* Local, between passes. The ddp has no hook then. NULL is allowed. A second call does nothing,
   and other calls of destroyed leaves are STATE. */
CDP_API void cdp_leaves_destroy(cdp_leaves *leaves);

/* Begins the next micro-batch of this rank: gradients are zero, and the ddp's backward pass has
   begun, without communication but for the last one. *leaf, which may be NULL, gets its number in
   the global batch. After the last micro-batch this begins the next global batch. Errors: INVALID
   (NULL), STATE (cdp_leaves_end() is missing; the group or the ddp was destroyed; the ddp has
   another hook), and those of cdp_ddp_no_sync() and cdp_ddp_backward_begin(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_leaves_begin(cdp_leaves *leaves, uint64_t *leaf);

/* Ends it. CDP_PENDING: this rank has more micro-batches. CDP_OK: all are done, and gradients
   hold the mean over all micro-batches of all ranks. With a ddp this is cdp_ddp_backward_end(), and
   buckets have left while the last micro-batch was computed; without, the exchange is here.
   Collective where it is the last one. Errors: INVALID (NULL), STATE (no cdp_leaves_begin(); the
   group or the ddp was destroyed), NOMEM, and those of cdp_ddp_backward_end(); then the global
   batch is lost. */
CDP_MUST_CHECK CDP_API cdp_status cdp_leaves_end(cdp_leaves *leaves);

/* The micro-batches of this rank: *first to *first + *count - 1. Both 0 for NULL. */
CDP_API void cdp_leaves_range(const cdp_leaves *leaves, uint64_t *first, uint64_t *count);
#endif /* CDP_NO_TRAINING */
#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_TRAIN_LEAVES_API_H */
