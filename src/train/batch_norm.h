/* train/batch_norm.h - batch normalisation over all ranks

   Knows: statistics of channels, allgather. Promises: statistics are combined in the order of
   ranks, so that all ranks have the same bits. */
#ifndef CDP_SRC_TRAIN_BATCH_NORM_H
#define CDP_SRC_TRAIN_BATCH_NORM_H

#include "batch_norm_api.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "../base/text.h"
#include "../dtype/numbers.h"
#include "../group/collectives_api.h"

#ifndef CDP_NO_TRAINING

/* Statistics of some values. */
typedef struct cdp__moments {
    double count, mean, m2;
} cdp__moments;

/* Chan's formula: `b` may be one value or the statistics of many. */
CDP__PRIVATE void cdp__moments_add(cdp__moments *a, double count, double mean, double m2) {
    const double all = a->count + count, apart = mean - a->mean;
    if (count == 0) return;
    a->m2 += m2 + apart * apart * (a->count * count / all);
    a->mean += apart * (count / all);
    a->count = all;
}

CDP_API cdp_status cdp_batch_norm_local(const void *data, cdp_dtype dtype, uint64_t batch,
    uint32_t channels, uint64_t inner, double *mean, double *m2) {
    const bool wide = dtype == CDP_DTYPE_F64;
    const float *narrow = (const float *)data;
    const double *doubles = (const double *)data;
    uint64_t b, i;
    uint32_t c;
    if (!data && batch && inner) return cdp__missing("cdp_batch_norm_local", "data");
    if (!mean) return cdp__missing("cdp_batch_norm_local", "mean");
    if (!m2) return cdp__missing("cdp_batch_norm_local", "m2");
    if (!wide && dtype != CDP_DTYPE_F32 && dtype != CDP_DTYPE_DEFAULT)
        return cdp__fail(CDP_ERR_INVALID, "cdp_batch_norm_local: dtype %s; convert to f32 or f64",
            cdp_dtype_name(dtype));
    for (c = 0; c < channels; ++c) {
        cdp__moments all = {0, 0, 0};
        for (b = 0; b < batch; ++b)
            for (i = 0; i < inner; ++i) {
                const uint64_t at = (b * channels + c) * inner + i;
                cdp__moments_add(&all, 1, wide ? doubles[at] : (double)narrow[at], 0);
            }
        mean[c] = all.mean;
        m2[c] = all.m2;
    }
    return CDP_OK;
}

CDP_API uint64_t cdp_batch_norm_scratch(const cdp_batch_norm *bn) {
    return bn && bn->group ? cdp_size(bn->group) * (2ull * bn->channels + 1) : 0;
}

/* 1 / the standard deviation of this variance. */
CDP__PRIVATE double cdp__batch_norm_inverse(const cdp_batch_norm *bn, double variance) {
    return 1 / cdp__sqrt(variance + (bn->eps > 0 ? bn->eps : 1e-5));
}

/* What every collective call needs. */
CDP__PRIVATE cdp_status cdp__batch_norm_check(const cdp_batch_norm *bn, const char *call) {
    if (!bn) return cdp__missing(call, "bn");
    if (!bn->group) return cdp__missing(call, "bn.group");
    if (!bn->channels) return cdp__fail(CDP_ERR_INVALID, "%s: bn.channels is 0", call);
    if (!bn->scratch) return cdp__missing(call, "bn.scratch");
    if (!bn->running_mean != !bn->running_var)
        return cdp__fail(
            CDP_ERR_INVALID, "%s: give both running_mean and running_var, or neither", call);
    return CDP_OK;
}

/* Gathers [count, first[channels], second[channels]] of all ranks into the scratch. */
CDP__PRIVATE cdp_status cdp__batch_norm_gather(
    cdp_batch_norm *bn, double count, const double *first, const double *second) {
    const uint64_t channels = bn->channels, row = 2 * channels + 1;
    double *mine = bn->scratch + cdp_rank(bn->group) * row;
    mine[0] = count;
    memcpy(mine + 1, first, (size_t)channels * sizeof *mine);
    memcpy(mine + 1 + channels, second, (size_t)channels * sizeof *mine);
    return cdp_allgather(bn->group, NULL, bn->scratch, row, CDP_DTYPE_F64);
}

/* One channel's statistics, combined in the order of ranks. */
CDP__PRIVATE cdp__moments cdp__batch_norm_merge(const cdp_batch_norm *bn, uint32_t c) {
    const uint64_t row = 2ull * bn->channels + 1;
    cdp__moments all = {0, 0, 0};
    uint32_t r;
    for (r = 0; r < cdp_size(bn->group); ++r) {
        const double *of = bn->scratch + r * row;
        cdp__moments_add(&all, of[0], of[1 + c], of[1 + bn->channels + c]);
    }
    return all;
}

CDP_API cdp_status cdp_batch_norm_forward(
    cdp_batch_norm *bn, uint64_t *count, double *mean, double *m2, double *inv_std) {
    static const char *const call = "cdp_batch_norm_forward";
    cdp_status st = cdp__batch_norm_check(bn, call);
    double take;
    uint32_t c;
    if (st != CDP_OK) return st;
    if (!count) return cdp__missing(call, "count");
    if (!mean) return cdp__missing(call, "mean");
    if (!m2) return cdp__missing(call, "m2");
    if (!inv_std) return cdp__missing(call, "inv_std");
    st = cdp__batch_norm_gather(bn, (double)*count, mean, m2);
    if (st != CDP_OK) return st;
    take = bn->momentum > 0 ? bn->momentum : 0.1;
    if (bn->cumulative) take = 1 / (double)(bn->tracked + 1);
    *count = 0;
    for (c = 0; c < bn->channels; ++c) {
        const cdp__moments all = cdp__batch_norm_merge(bn, c);
        *count = (uint64_t)all.count;
        mean[c] = all.mean;
        m2[c] = all.m2;
        inv_std[c] = cdp__batch_norm_inverse(bn, all.count > 0 ? all.m2 / all.count : 0);
        if (!bn->running_mean || all.count < 2) continue;
        bn->running_mean[c] = (1 - take) * bn->running_mean[c] + take * all.mean;
        bn->running_var[c] = (1 - take) * bn->running_var[c] + take * (all.m2 / (all.count - 1));
    }
    if (bn->running_mean && *count >= 2) ++bn->tracked;
    return CDP_OK;
}

CDP_API cdp_status cdp_batch_norm_backward(cdp_batch_norm *bn, double *sum_dy, double *sum_dy_xmu) {
    static const char *const call = "cdp_batch_norm_backward";
    cdp_status st = cdp__batch_norm_check(bn, call);
    uint32_t r, c;
    if (st != CDP_OK) return st;
    if (!sum_dy) return cdp__missing(call, "sum_dy");
    if (!sum_dy_xmu) return cdp__missing(call, "sum_dy_xmu");
    st = cdp__batch_norm_gather(bn, 0, sum_dy, sum_dy_xmu);
    if (st != CDP_OK) return st;
    for (c = 0; c < bn->channels; ++c) {
        sum_dy[c] = sum_dy_xmu[c] = 0;
        for (r = 0; r < cdp_size(bn->group); ++r) {
            const double *of = bn->scratch + r * (2ull * bn->channels + 1) + 1;
            sum_dy[c] += of[c];
            sum_dy_xmu[c] += of[bn->channels + c];
        }
    }
    return CDP_OK;
}

CDP_API cdp_status cdp_batch_norm_eval(const cdp_batch_norm *bn, double *mean, double *inv_std) {
    uint32_t c;
    if (!bn) return cdp__missing("cdp_batch_norm_eval", "bn");
    if (!bn->running_mean) return cdp__missing("cdp_batch_norm_eval", "bn.running_mean");
    if (!bn->running_var) return cdp__missing("cdp_batch_norm_eval", "bn.running_var");
    if (!mean) return cdp__missing("cdp_batch_norm_eval", "mean");
    if (!inv_std) return cdp__missing("cdp_batch_norm_eval", "inv_std");
    for (c = 0; c < bn->channels; ++c) {
        mean[c] = bn->running_mean[c];
        inv_std[c] = cdp__batch_norm_inverse(bn, bn->running_var[c]);
    }
    return CDP_OK;
}
#endif /* CDP_NO_TRAINING */

#endif /* CDP_SRC_TRAIN_BATCH_NORM_H */
