/* rpc/update_rules.h - the settings of a remote optimizer; updates one element in double (pure)

   Knows: settings, an element, its gradient, its state. Promises: the same bits as the same formula
   in a loop of the program. Rules that cdp_optim_update() has for F32 are for F64 here. */
#ifndef CDP_SRC_RPC_UPDATE_RULES_H
#define CDP_SRC_RPC_UPDATE_RULES_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/bytes.h"
#include "../train/optimizer_defaults.h"
#include "optimizer_api.h"

typedef struct cdp__optim_rule {
    cdp_optim_kind kind;
    bool nesterov, amsgrad, centered, maximize;
    double lr, momentum, dampening, beta1, beta2, alpha, rho, eps, decay, lr_decay, initial;
} cdp__optim_rule;

CDP__PRIVATE double cdp__optim_sgd(const cdp__optim_rule *o, double t, double g, double *s) {
    if (o->momentum == 0) return o->lr * g;
    s[0] = t == 1 ? g : o->momentum * s[0] + (1 - o->dampening) * g;
    return o->lr * (o->nesterov ? g + o->momentum * s[0] : s[0]);
}

CDP__PRIVATE double cdp__optim_adam(const cdp__optim_rule *o, double t, double g, double *s) {
    double v;
    s[0] = o->beta1 * s[0] + (1 - o->beta1) * g;
    s[1] = o->beta2 * s[1] + (1 - o->beta2) * g * g;
    v = s[1];
    if (o->amsgrad) {
        s[2] = v > s[2] ? v : s[2];
        v = s[2];
    }
    return o->lr / (1 - pow(o->beta1, t)) * s[0] / (sqrt(v) / sqrt(1 - pow(o->beta2, t)) + o->eps);
}

CDP__PRIVATE double cdp__optim_adamax(const cdp__optim_rule *o, double t, double g, double *s) {
    const double a = (g < 0 ? -g : g) + o->eps;
    s[0] = o->beta1 * s[0] + (1 - o->beta1) * g;
    s[1] = o->beta2 * s[1] > a ? o->beta2 * s[1] : a;
    return o->lr / (1 - pow(o->beta1, t)) * s[0] / s[1];
}

/* Its state begins with `initial`, for every row. */
CDP__PRIVATE double cdp__optim_adagrad(const cdp__optim_rule *o, double t, double g, double *s) {
    s[0] += g * g;
    return o->lr / (1 + (t - 1) * o->lr_decay) * g / (sqrt(s[0]) + o->eps);
}

CDP__PRIVATE double cdp__optim_adadelta(const cdp__optim_rule *o, double g, double *s) {
    double d;
    s[0] = o->rho * s[0] + (1 - o->rho) * g * g;
    d = sqrt(s[1] + o->eps) / sqrt(s[0] + o->eps) * g;
    s[1] = o->rho * s[1] + (1 - o->rho) * d * d;
    return o->lr * d;
}

CDP__PRIVATE double cdp__optim_rmsprop(const cdp__optim_rule *o, double g, double *s) {
    double q;
    s[0] = o->alpha * s[0] + (1 - o->alpha) * g * g;
    if (o->centered) s[1] = o->alpha * s[1] + (1 - o->alpha) * g;
    q = sqrt(o->centered ? s[0] - s[1] * s[1] : s[0]) + o->eps;
    if (o->momentum == 0) return o->lr * g / q;
    s[2] = o->momentum * s[2] + g / q;
    return o->lr * s[2];
}

CDP__PRIVATE double cdp__optim_sign(double x) {
    if (x > 0) return 1;
    return x < 0 ? -1 : 0;
}

CDP__PRIVATE double cdp__optim_rprop(const cdp__optim_rule *o, double t, double g, double *s) {
    const double k = cdp__optim_sign(g * s[1]);
    if (t == 1) s[0] = o->lr;
    if (k > 0) s[0] *= 1.2;
    if (k < 0) s[0] *= .5;
    if (s[0] < 1e-6) s[0] = 1e-6;
    if (s[0] > 50) s[0] = 50;
    if (k < 0) g = 0;
    s[1] = g;
    return cdp__optim_sign(g) * s[0];
}

/* The new value of an element in step t (from 1). */
CDP__PRIVATE double cdp__optim_element(
    const cdp__optim_rule *o, double t, double w, double g, double s[3]) {
    if (o->maximize) g = -g;
    if (o->kind == CDP_OPTIM_ADAMW)
        w *= 1 - o->lr * o->decay;
    else if (o->decay != 0)
        g += o->decay * w;
    switch (o->kind) {
    case CDP_OPTIM_NONE:
    case CDP_OPTIM_OWN: break; /* a function of the program */
    case CDP_OPTIM_SGD: return w - cdp__optim_sgd(o, t, g, s);
    case CDP_OPTIM_ADAM:
    case CDP_OPTIM_ADAMW: return w - cdp__optim_adam(o, t, g, s);
    case CDP_OPTIM_ADAMAX: return w - cdp__optim_adamax(o, t, g, s);
    case CDP_OPTIM_ADAGRAD: return w - cdp__optim_adagrad(o, t, g, s);
    case CDP_OPTIM_ADADELTA: return w - cdp__optim_adadelta(o, g, s);
    case CDP_OPTIM_RMSPROP: return w - cdp__optim_rmsprop(o, g, s);
    case CDP_OPTIM_RPROP: return w - cdp__optim_rprop(o, t, g, s);
    }
    return w;
}

CDP__PRIVATE cdp__optim_rule cdp__optim_rule_of(const cdp_optim_desc *d) {
    const cdp__optim_default of = cdp__optim_default_of(d->kind);
    cdp__optim_rule o;
    memset(&o, 0, sizeof o);
    o.kind = d->kind;
    o.nesterov = d->nesterov;
    o.amsgrad = d->amsgrad;
    o.centered = d->centered;
    o.maximize = d->maximize;
    o.lr = cdp__optim_or(d->lr, of.lr);
    o.momentum = cdp__optim_or(d->momentum, 0);
    o.dampening = cdp__optim_or(d->dampening, 0);
    o.beta1 = cdp__optim_or(d->beta1, of.beta1);
    o.beta2 = cdp__optim_or(d->beta2, of.beta2);
    o.alpha = cdp__optim_or(d->alpha, of.alpha);
    o.rho = cdp__optim_or(d->rho, of.rho);
    o.eps = cdp__optim_or(d->eps, of.eps);
    o.decay = cdp__optim_or(d->weight_decay, of.weight_decay);
    o.lr_decay = cdp__optim_or(d->lr_decay, 0);
    o.initial = cdp__optim_or(d->initial, 0);
    return o;
}

#ifndef CDP_NO_TRAINING
/* A number of a rule as settings have it. */
CDP__PRIVATE double cdp__optim_given(double x) {
    return x == 0 ? CDP_OPTIM_ZERO : x;
}

/* The rule as cdp_optim_update() takes it. */
CDP__PRIVATE cdp_optim cdp__optim_settings(const cdp__optim_rule *o, uint64_t step) {
    cdp_optim s;
    memset(&s, 0, sizeof s);
    s.kind = o->kind;
    s.step = step;
    s.lr = cdp__optim_given(o->lr);
    s.momentum = cdp__optim_given(o->momentum);
    s.dampening = cdp__optim_given(o->dampening);
    s.beta1 = cdp__optim_given(o->beta1);
    s.beta2 = cdp__optim_given(o->beta2);
    s.alpha = cdp__optim_given(o->alpha);
    s.eps = cdp__optim_given(o->eps);
    s.weight_decay = cdp__optim_given(o->decay);
    s.lr_decay = cdp__optim_given(o->lr_decay);
    s.initial = cdp__optim_given(o->initial);
    s.nesterov = o->nesterov && o->kind == CDP_OPTIM_SGD;
    s.amsgrad = o->amsgrad;
    s.centered = o->centered;
    s.maximize = o->maximize;
    return s;
}
#endif /* CDP_NO_TRAINING */

#define CDP__OPTIM_NUMBERS 11u
#define CDP__OPTIM_BYTES (8u + 8u * CDP__OPTIM_NUMBERS)

CDP__PRIVATE void cdp__optim_put(uint8_t *at, const cdp__optim_rule *o) {
    const double x[CDP__OPTIM_NUMBERS] = {o->lr, o->momentum, o->dampening, o->beta1, o->beta2,
        o->alpha, o->rho, o->eps, o->decay, o->lr_decay, o->initial};
    uint64_t bits;
    uint32_t i;
    memset(at, 0, 8);
    at[0] = (uint8_t)o->kind;
    at[1] = o->nesterov;
    at[2] = o->amsgrad;
    at[3] = o->centered;
    at[4] = o->maximize;
    for (i = 0; i < CDP__OPTIM_NUMBERS; ++i) {
        memcpy(&bits, &x[i], 8);
        cdp__put_u64(at + 8 + 8 * i, bits);
    }
}

/* Decodes the rule of an optimizer. False: no peer of this version sends that. */
CDP__PRIVATE bool cdp__optim_get(const uint8_t *at, uint64_t bytes, cdp__optim_rule *o) {
    double x[CDP__OPTIM_NUMBERS];
    uint64_t bits;
    uint32_t i;
    memset(o, 0, sizeof *o);
    if (bytes != CDP__OPTIM_BYTES || at[0] < CDP_OPTIM_SGD || at[0] > CDP_OPTIM_RPROP) return false;
    for (i = 0; i < CDP__OPTIM_NUMBERS; ++i) {
        bits = cdp__get_u64(at + 8 + 8 * i);
        memcpy(&x[i], &bits, 8);
        if (!(x[i] >= -1e300 && x[i] <= 1e300)) return false;
    }
    o->kind = (cdp_optim_kind)at[0];
    o->nesterov = at[1] != 0;
    o->amsgrad = at[2] != 0;
    o->centered = at[3] != 0;
    o->maximize = at[4] != 0;
    o->lr = x[0];
    o->momentum = x[1];
    o->dampening = x[2];
    o->beta1 = x[3];
    o->beta2 = x[4];
    o->alpha = x[5];
    o->rho = x[6];
    o->eps = x[7];
    o->decay = x[8];
    o->lr_decay = x[9];
    o->initial = x[10];
    return true;
}

#endif /* CDP_SRC_RPC_UPDATE_RULES_H */
