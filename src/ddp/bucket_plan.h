/* ddp/bucket_plan.h - which parameters share a bucket (pure)

   Knows: dtypes and sizes of parameters. Promises: the same plan for the same numbers, in linear
   time, without memory of its own. */
#ifndef CDP_SRC_DDP_BUCKET_PLAN_H
#define CDP_SRC_DDP_BUCKET_PLAN_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "ddp_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/helpers.h"

#ifndef CDP_NO_DDP

/* The bucket that is being filled with parameters of one dtype. While it is open, bucket_of[] of
   its parameters is a list: each entry is the index of the parameter that was added before it. */
typedef struct cdp__bucket_open {
    uint64_t bytes;
    uint32_t closed; /* buckets of this dtype before it */
    uint32_t newest; /* the parameter added last; UINT32_MAX: the bucket is empty */
    /* the lowest parameter index of this dtype: after it, the open bucket is complete */
    uint32_t lowest;
} cdp__bucket_open;

CDP__PRIVATE void cdp__bucket_close(cdp__bucket_open *o, uint32_t number, uint32_t *bucket_of) {
    uint32_t i = o->newest;
    while (i != UINT32_MAX) {
        const uint32_t before = bucket_of[i];
        bucket_of[i] = number;
        i = before;
    }
    o->newest = UINT32_MAX;
    o->bytes = 0;
    ++o->closed;
}

/* PyTorch's rule over the parameters in reverse order: one open bucket per dtype. The parameter
   that brings a bucket to its limit closes it, so a bucket may exceed its limit. The first bucket
   of each dtype usually has a smaller limit, so that communication starts early; the last limit is
   for all others. Buckets are numbered in the order in which a backward pass from the last
   parameter to the first completes them; those of delayed parameters come last. `bucket_of` has
   room for n numbers; returns how many buckets there are. Takes time proportional to n. */
CDP__PRIVATE uint32_t cdp__bucket_plan_make(const cdp_param *params, uint32_t n,
    const uint64_t *limits, uint32_t limit_count, uint32_t *bucket_of) {
    cdp__bucket_open open[2 * CDP_DTYPE_COUNT]; /* the second half: of delayed parameters */
    uint32_t count = 0, i;
    for (i = 0; i < 2 * CDP_DTYPE_COUNT; ++i) {
        open[i].bytes = open[i].closed = 0;
        open[i].newest = open[i].lowest = UINT32_MAX;
    }
    for (i = n; i-- > 0;)
        if (!params[i].delayed) open[params[i].dtype].lowest = i;
    for (i = n; i-- > 0;) {
        cdp__bucket_open *o = &open[params[i].dtype + (params[i].delayed ? CDP_DTYPE_COUNT : 0)];
        bucket_of[i] = o->newest;
        o->newest = i;
        o->bytes += params[i].count * cdp_dtype_size(params[i].dtype);
        if (params[i].delayed) continue;
        if (o->bytes < limits[cdp__min(o->closed, limit_count - 1)] && i != o->lowest) continue;
        cdp__bucket_close(o, count++, bucket_of);
    }
    for (i = CDP_DTYPE_COUNT; i < 2 * CDP_DTYPE_COUNT; ++i)
        if (open[i].newest != UINT32_MAX) cdp__bucket_close(&open[i], count++, bucket_of);
    return count;
}

#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_DDP_BUCKET_PLAN_H */
