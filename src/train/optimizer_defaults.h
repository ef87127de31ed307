/* train/optimizer_defaults.h - settings that the kind of an optimizer gives (pure)

   Knows: kinds of optimizers. Promises: every optimizer of a kind has the same defaults, in a ddp
   and in remote calls. */
#ifndef CDP_SRC_TRAIN_OPTIMIZER_DEFAULTS_H
#define CDP_SRC_TRAIN_OPTIMIZER_DEFAULTS_H

#include "optimizers_api.h"
#include "../base/compiler.h"

typedef struct cdp__optim_default {
    double lr, eps, weight_decay, beta1, beta2, alpha, rho;
} cdp__optim_default;

/* The defaults of a kind from CDP_OPTIM_NONE to CDP_OPTIM_RPROP, in that order. */
CDP__PRIVATE cdp__optim_default cdp__optim_default_of(cdp_optim_kind kind) {
    static const cdp__optim_default rows[] = {
        {0, 0, 0, 0, 0, 0, 0},
        {.01, 0, 0, 0, 0, 0, 0},
        {.001, 1e-8, 0, .9, .999, 0, 0},
        {.001, 1e-8, .01, .9, .999, 0, 0},
        {.002, 1e-8, 0, .9, .999, 0, 0},
        {.01, 1e-10, 0, 0, 0, 0, 0},
        {1, 1e-6, 0, 0, 0, 0, .9},
        {.01, 1e-8, 0, 0, 0, .99, 0},
        {.01, 0, 0, 0, 0, 0, 0},
    };
    return rows[kind <= CDP_OPTIM_RPROP ? kind : 0];
}

/* A setting as the program gave it, or its default. */
CDP__PRIVATE double cdp__optim_or(double x, double otherwise) {
    if (x == 0) return otherwise;
    return x == CDP_OPTIM_ZERO ? 0 : x;
}

#endif /* CDP_SRC_TRAIN_OPTIMIZER_DEFAULTS_H */
