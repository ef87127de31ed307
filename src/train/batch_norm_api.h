/* train/batch_norm_api.h - batch normalisation over all ranks */
#ifndef CDP_SRC_TRAIN_BATCH_NORM_API_H
#define CDP_SRC_TRAIN_BATCH_NORM_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../group/group_api.h"

#ifndef CDP_NO_TRAINING
/* A layer that normalises each channel over the samples of all ranks, as PyTorch's SyncBatchNorm.
   The program computes with its arrays; statistics of f32 and f64 data are f64. */
typedef struct cdp_batch_norm {
    cdp_group *group;  /* required */
    uint32_t channels; /* required; equal on all ranks */
    double eps;        /* (default: 1e-5) is added to variances; equal on all ranks */
    double momentum;   /* (default: 0.1) what running statistics take of a new batch */
    bool cumulative;   /* running statistics are the mean over all batches, as with PyTorch's
                          momentum None */
    /* [channels] or NULL, both. Before the first batch: zeros and ones. Equal on all ranks after
       each batch. */
    double *running_mean, *running_var;
    uint64_t tracked; /* batches that running statistics hold */
    double *scratch;  /* required: cdp_batch_norm_scratch() numbers */
} cdp_batch_norm;

/* How many numbers `scratch` has: (channels * 2 + 1) for each rank. 0: no group. */
CDP_API uint64_t cdp_batch_norm_scratch(const cdp_batch_norm *bn);

/* The statistics of this rank's data, [batch][channels][inner] of f32 or f64: mean[channels] and
   m2[channels], the sums of squares of what differs from the mean (zeros of no data). One pass, as
   Welford. `inner`: values of a channel in a sample, 1 after a linear layer. Any thread. Errors:
   INVALID (no array, another dtype). */
CDP_MUST_CHECK CDP_API cdp_status cdp_batch_norm_local(const void *data, cdp_dtype dtype,
    uint64_t batch, uint32_t channels, uint64_t inner, double *mean, double *m2);

/* Replaces this rank's statistics by those of all ranks, which combine them in the order of ranks:
   one allgather, and the same bits on every rank. In: *count (batch * inner; 0: no data here),
   mean, m2. Out: *count of all ranks, the mean, and m2 as the sum over all ranks;
   inv_std[channels] = 1 / sqrt(m2 / count + eps). Without data on any rank, inv_std is
   1 / sqrt(eps). Then updates running statistics, the variance with count - 1, as PyTorch; with a
   count below 2 these stay. A channel with a NaN is NaN on all ranks. Normalise with
   (x - mean) * inv_std. To evaluate: cdp_batch_norm_eval(). Collective; waits. Errors: INVALID (a
   missing member or array), and those of cdp_allgather(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_batch_norm_forward(
    cdp_batch_norm *bn, uint64_t *count, double *mean, double *m2, double *inv_std);

/* Replaces this rank's sums by those of all ranks, one allgather, added in the order of ranks:
   sum_dy[channels] of the gradients of the output, and sum_dy_xmu[channels] of these times
   (x - mean). A rank without data gives zeros. Take the gradients of weight and bias from the
   sums of this rank before, because DDP averages them; then
     dx = (dy - sum_dy / count - (x - mean) * inv_std * inv_std * sum_dy_xmu / count)
          * inv_std * weight.
   So the loss is the sum of the ranks' losses, as with SyncBatchNorm. Collective; waits. Errors:
   as cdp_batch_norm_forward(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_batch_norm_backward(
    cdp_batch_norm *bn, double *sum_dy, double *sum_dy_xmu);

/* mean and inv_std of the running statistics. Not collective. Errors: INVALID (a missing member or
   array). */
CDP_MUST_CHECK CDP_API cdp_status cdp_batch_norm_eval(
    const cdp_batch_norm *bn, double *mean, double *inv_std);
#endif /* CDP_NO_TRAINING */

#endif /* CDP_SRC_TRAIN_BATCH_NORM_API_H */
