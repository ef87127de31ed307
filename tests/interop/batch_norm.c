/* A batch normalisation whose ranks are threads, for ctypes: compiled into a library of its own by
   test_batch_norm.sh. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "../unit/ranks.h"
#include <math.h>

/* As in test_batch_norm.py. Arrays of doubles, but x and dy:
   [batch][channels][inner] of f32, or of f64 if `wide`. */
typedef struct layer {
    uint32_t ranks, channels, inner, wide;
    uint32_t cumulative, tracked;
    double momentum, eps; /* 0: the default */
    const uint32_t *part; /* how many samples each rank has, in the order of the joined batch */
    const void *x, *dy;
    const double *weight, *bias;
    double *y, *dx;            /* of the joined batch */
    double *d_weight, *d_bias; /* [channels], the sums of all ranks */
    double *eval;              /* as y, by the running statistics after the batch */
    double *running_mean;      /* [channels], as running_var: in and out */
    double *running_var;
    uint32_t failed;
} layer;

enum {
    CHANNELS = 8
};
static pthread_mutex_t sums = PTHREAD_MUTEX_INITIALIZER;

/* What one rank keeps between its calls. */
typedef struct own {
    cdp_batch_norm bn;
    uint64_t first, values; /* its part of the joined batch */
    double mean[CHANNELS], m2[CHANNELS], inv[CHANNELS], sum_dy[CHANNELS], sum_dy_xmu[CHANNELS];
    double running_mean[CHANNELS], running_var[CHANNELS];
} own;

static cdp_dtype dtype(const layer *l) {
    return l->wide ? CDP_DTYPE_F64 : CDP_DTYPE_F32;
}

static double value(const layer *l, const void *from, uint64_t i) {
    return cdp__number_get(dtype(l), from, i);
}

static uint32_t channel(const layer *l, uint64_t i) {
    return (uint32_t)(i / l->inner % l->channels);
}

static void normalise(const layer *l, const own *o, double *to) {
    for (uint64_t i = o->first; i < o->first + o->values; ++i) {
        const uint32_t c = channel(l, i);
        to[i] = (value(l, l->x, i) - o->mean[c]) * o->inv[c] * l->weight[c] + l->bias[c];
    }
}

static bool forward(const layer *l, own *o, uint32_t me, uint64_t *count) {
    const uint64_t size = cdp_dtype_size(dtype(l));
    *count = (uint64_t)l->part[me] * l->inner;
    if (cdp_batch_norm_local((const uint8_t *)l->x + o->first * size, dtype(l), l->part[me],
            l->channels, l->inner, o->mean, o->m2)
            != CDP_OK
        || cdp_batch_norm_forward(&o->bn, count, o->mean, o->m2, o->inv) != CDP_OK)
        return false;
    normalise(l, o, l->y);
    return true;
}

/* Sums of this rank give its gradients of weight and bias, those of all ranks the input's. */
static bool backward(layer *l, own *o, double count) {
    for (uint64_t i = o->first; i < o->first + o->values; ++i) {
        const uint32_t c = channel(l, i);
        o->sum_dy[c] += value(l, l->dy, i);
        o->sum_dy_xmu[c] += value(l, l->dy, i) * (value(l, l->x, i) - o->mean[c]);
    }
    pthread_mutex_lock(&sums);
    for (uint32_t c = 0; c < l->channels; ++c) {
        l->d_bias[c] += o->sum_dy[c];
        l->d_weight[c] += o->sum_dy_xmu[c] * o->inv[c];
    }
    pthread_mutex_unlock(&sums);
    if (cdp_batch_norm_backward(&o->bn, o->sum_dy, o->sum_dy_xmu) != CDP_OK) return false;
    for (uint64_t i = o->first; i < o->first + o->values; ++i) {
        const uint32_t c = channel(l, i);
        const double apart = value(l, l->x, i) - o->mean[c];
        l->dx[i] = (value(l, l->dy, i) - o->sum_dy[c] / count
                       - apart * o->inv[c] * o->inv[c] * o->sum_dy_xmu[c] / count)
            * o->inv[c] * l->weight[c];
    }
    return true;
}

static void rank_main(cdp_group *g, void *arg) {
    layer *l = (layer *)arg;
    const uint32_t me = cdp_rank(g);
    double scratch[RANKS_MAX * (2 * CHANNELS + 1)];
    own o = {.values = (uint64_t)l->part[me] * l->channels * l->inner};
    uint64_t count;
    bool fine;
    for (uint32_t r = 0; r < me; ++r)
        o.first += (uint64_t)l->part[r] * l->channels * l->inner;
    o.bn = (cdp_batch_norm){.group = g,
        .channels = l->channels,
        .eps = l->eps,
        .momentum = l->momentum,
        .cumulative = l->cumulative != 0,
        .running_mean = o.running_mean,
        .running_var = o.running_var,
        .tracked = l->tracked,
        .scratch = scratch};
    pthread_mutex_lock(&sums);
    memcpy(o.running_mean, l->running_mean, l->channels * sizeof *o.running_mean);
    memcpy(o.running_var, l->running_var, l->channels * sizeof *o.running_var);
    pthread_mutex_unlock(&sums);
    fine = forward(l, &o, me, &count) && backward(l, &o, (double)count)
        && cdp_batch_norm_eval(&o.bn, o.mean, o.inv) == CDP_OK;
    if (fine) normalise(l, &o, l->eval);
    pthread_mutex_lock(&sums);
    if (!fine) {
        ++l->failed;
        cdp_print_error(NULL);
    }
    if (me + 1 == l->ranks) { /* all have read them: this rank's allgathers have ended */
        memcpy(l->running_mean, o.running_mean, l->channels * sizeof *o.running_mean);
        memcpy(l->running_var, o.running_var, l->channels * sizeof *o.running_var);
    }
    pthread_mutex_unlock(&sums);
}

/* One batch. Returns how many ranks failed. */
uint32_t batch(layer *l) {
    if (l->channels > CHANNELS || l->ranks > RANKS_MAX) return l->ranks;
    run_ranks(l->ranks, &(cdp_group_desc){0}, 0, rank_main, l);
    return l->failed;
}
