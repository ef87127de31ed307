/* train/precision_api.h - conversion between dtypes, and the scale of a loss */
#ifndef CDP_SRC_TRAIN_PRECISION_API_H
#define CDP_SRC_TRAIN_PRECISION_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"

#ifndef CDP_NO_TRAINING
/* Rounds up or down at random, so that the mean of many roundings is the number itself: parameters
   of 16 bits then keep updates that are smaller than their last bit. A random number depends on
   these three and the element's place alone: all copies of a parameter get the same bits, however
   it is cut. */
typedef struct cdp_round {
    uint64_t seed;  /* of the job */
    uint64_t step;  /* of training */
    uint64_t first; /* the place of the first element in the whole tensor */
} cdp_round;

/* Converts `count` elements of host memory between any two dtypes. Floats are rounded once, to the
   nearest, a tie to the even one; f8e4m3 has no infinity, and what is out of its range becomes NaN.
   To integers: towards zero; what is out of range becomes the nearest number that is not, and NaN
   becomes 0. To bool: 1 for all but 0. From complex numbers: the real part. `out` may be `in` if
   elements do not become larger; otherwise they must not overlap. `round` NULL, or see there:
   only to f16, bf16 and f8; infinities and NaN stay what they are, and a number that is a little
   larger than the largest one of f16 or f8 may become one. Any thread.
   Errors: INVALID: an argument is NULL, or a dtype does not exist; UNSUPPORTED: `round` with
   another dtype, or a dtype that CDP_FEW_DTYPES leaves out. */
CDP_MUST_CHECK CDP_API cdp_status cdp_convert(const void *in, cdp_dtype from, void *out,
    cdp_dtype to, uint64_t count, const cdp_round *round);

/* Gradients of 16 bits lose numbers below 6e-8. So the loss is multiplied by a scale, and gradients
   are divided by it; the scale is halved when one of them is infinite or NaN, and doubled after
   2000 steps without that, as in PyTorch's GradScaler. Begins as zeros; save it with the model.
       loss * cdp_scaler_scale(&s); backward pass; mean over the ranks;
       norm.found_inf of cdp_grads_norm();   equal on all ranks
       if (!found_inf) update the parameters with gradients times 1 / cdp_scaler_scale(&s);
       cdp_scaler_update(&s, found_inf); */
typedef struct cdp_scaler {
    float scale;       /* (default: 65536) */
    double growth;     /* above 1 (default: 2) */
    double backoff;    /* between 0 and 1 (default: 0.5) */
    uint32_t interval; /* steps after which it grows (default: 2000) */
    uint32_t tracker;  /* steps since it changed */
    uint64_t skipped;  /* steps that were left out */
} cdp_scaler;

/* The factor of the loss. */
CDP_API float cdp_scaler_scale(const cdp_scaler *scaler);
/* Once after each step, on every rank with the same `found_inf`. A scale that would become infinite
   does not grow. Errors: INVALID: scaler is NULL, or growth or backoff out of range; STATE: the
   scale would fall below 2^-14, which no overflow of f16 explains: look for NaN in the data. The
   scale stays as it was. */
CDP_MUST_CHECK CDP_API cdp_status cdp_scaler_update(cdp_scaler *scaler, bool found_inf);
#endif /* CDP_NO_TRAINING */

#endif /* CDP_SRC_TRAIN_PRECISION_API_H */
