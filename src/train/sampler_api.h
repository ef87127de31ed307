/* train/sampler_api.h - which samples of a data set a rank gets */
#ifndef CDP_SRC_TRAIN_SAMPLER_API_H
#define CDP_SRC_TRAIN_SAMPLER_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"

#ifndef CDP_NO_SAMPLER
/* What a shuffle is made with. */
typedef enum cdp_sample_order {
    CDP_SAMPLE_ORDER_TORCH = 0, /* PyTorch's: takes 4 bytes per sample of the data set */
    CDP_SAMPLE_ORDER_HASH       /* four Feistel rounds: no memory, for any number of samples */
} cdp_sample_order;

/* Which samples of a data set a rank sees in an epoch; by default those of PyTorch's
   DistributedSampler, in its order. Owned by the caller; no state is kept: save size, seed, epoch
   and consumed, and the job goes on with any number of ranks. Equal on all ranks but for `rank`. */
typedef struct cdp_sampler {
    /* Samples of the data set, 1 to 2^32 - 1. To 2^62 - 1 without weights and lengths, if there is
       no shuffle or `order` is CDP_SAMPLE_ORDER_HASH: then no list of them is made */
    uint64_t size;
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
    /* Neither repeat nor leave out: some ranks get one sample fewer. For evaluation: sum over the
       ranks what was added up, and how many samples it were, then divide. Not with drop_last */
    bool exact;
    cdp_sample_order order; /* of a shuffle */
    /* Draw sample i with a probability of weights[i] over the sum of all, `draws` times in an epoch
       (default: size). `size` weights, finite, none negative; they stay the caller's. `shuffle` is
       not read */
    const double *weights;
    uint64_t draws;
    bool once; /* no sample is drawn twice; then weights above 0 must be `draws` or more */
    /* Lengths of the `size` samples: ranks get batches of samples alike in length, so that none
       waits for a longer one. In the order of the epoch, `window` rows of row * batch samples are
       sorted by length (equal ones by index) and cut into rows again, and the rows are shuffled by
       seed and epoch; the samples that fill no row come last. A step takes a row */
    const uint32_t *lengths;
    uint32_t batch;  /* samples of a step of one rank (default: 1) */
    uint32_t window; /* (default: 32) */
    uint32_t row;    /* batches of a row (default: ranks). When the ranks change within an epoch,
                        keep the number that it began with, or samples come twice or not at all */
} cdp_sampler;

/* Samples of each rank that are left; 0 for NULL or ranks 0. Any thread. */
CDP_API uint64_t cdp_sampler_count(const cdp_sampler *sampler);
/* Steps that are left, of `batch` samples each, equal on all ranks. With `exact`, the last may have
   no samples for some. 0 for NULL or ranks 0. Any thread. */
CDP_API uint64_t cdp_sampler_steps(const cdp_sampler *sampler);
/* Write their indices to `indices`, which has room for cdp_sampler_count() numbers. Local, any
   thread. For the call it allocates 4 bytes per sample of the data set with shuffle, 8 with weights
   (20 if they are drawn once), and 16 per sample of a window with lengths. Errors: INVALID (NULL, a
   number out of range, drop_last with exact, weights that are no weights), NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_sampler_fill(const cdp_sampler *sampler, uint64_t *indices);
/* As cdp_sampler_fill, for `count` of the rank's samples from number `first` on. Where no list is
   made (see size), it allocates nothing. Errors: also INVALID if they are not all left. */
CDP_MUST_CHECK CDP_API cdp_status cdp_sampler_part(
    const cdp_sampler *sampler, uint64_t first, uint64_t count, uint64_t *indices);
#endif /* CDP_NO_SAMPLER */

#endif /* CDP_SRC_TRAIN_SAMPLER_API_H */
