/* train/sampler_api.h - which samples of a data set a rank gets */
#ifndef CDP_SRC_TRAIN_SAMPLER_API_H
#define CDP_SRC_TRAIN_SAMPLER_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"

#ifndef CDP_NO_SAMPLER
/* Which samples of a data set a rank sees in an epoch: those of PyTorch's DistributedSampler, in
   its order. Owned by the caller; no state is kept. */
typedef struct cdp_sampler {
    uint64_t size; /* samples of the data set, 1 to 2^32 - 1 */
    uint32_t ranks, rank;
    bool shuffle;
    bool drop_last; /* if ranks does not divide size: leave samples out, do not repeat the first */
    uint64_t seed;  /* of the order; equal on all ranks */
    uint64_t epoch; /* set it, or every epoch has the same order */
    const cdp_os *os; /* (default: cdp_os_default()) */
    /* Samples of this epoch that all ranks together have had; the others are dealt out. Where the
       number of ranks changes within an epoch, each sample still comes once: add ranks times batch
       after each step that counts, and give every rank the same number */
    uint64_t consumed;
} cdp_sampler;

/* Samples of each rank that are left; 0 for NULL or ranks 0. Any thread. */
CDP_API uint64_t cdp_sampler_count(const cdp_sampler *sampler);
/* Write their indices to `indices`, which has room for cdp_sampler_count() numbers. Local, any
   thread; with shuffle it allocates 4 bytes per sample of the data set for the call. Errors:
   INVALID (NULL, size or rank out of range), NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_sampler_fill(const cdp_sampler *sampler, uint64_t *indices);
#endif /* CDP_NO_SAMPLER */

#endif /* CDP_SRC_TRAIN_SAMPLER_API_H */
