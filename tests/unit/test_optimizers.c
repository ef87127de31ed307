/* Updates of parameters: the bits of a plain loop in PyTorch's order of operations, for every
   cut. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "test.h"
#include <math.h>

#define N 1003u
#define STEPS 6u

typedef struct model {
    float p[N], s[3][N];
} model;

/* As a program would write it. Volatile: nothing is fused, whatever the compiler's flags. */
static float madd(bool fused, float a, float b, float c) {
    volatile float product = a * b;
    return fused ? fmaf(a, b, c) : product + c;
}

/* From the nearer end: m = 1e8 and g = 1 give 1 where all of g is taken. */
static float average(bool fused, float take, float m, float g) {
    return take < 0.5f ? madd(fused, take, g - m, m) : madd(fused, take - 1, g - m, g);
}

static void plain_sgd(const cdp_optim *o, float *p, float g, float *s) {
    const float mu = (float)o->momentum;
    if (o->weight_decay != 0) g = madd(o->fma, (float)o->weight_decay, *p, g);
    if (o->momentum != 0) {
        volatile float kept = *s * mu;
        *s = o->step == 1 ? g : madd(o->fma, (float)(1 - o->dampening), g, kept);
        g = o->nesterov ? madd(o->fma, mu, *s, g) : *s;
    }
    *p = madd(o->fma, (float)-o->lr, g, *p);
}

static void plain_adam(const cdp_optim *o, float *p, float g, float s[3]) {
    const double t = (double)o->step, beta1 = o->beta1, beta2 = .95;
    volatile float part, v;
    if (o->kind == CDP_OPTIM_ADAMW)
        *p = *p * (float)(1 - o->lr * o->weight_decay);
    else if (o->weight_decay != 0)
        g = madd(o->fma, (float)o->weight_decay, *p, g);
    s[0] = average(o->fma, (float)(1 - beta1), s[0], g);
    v = s[1] * (float)beta2;
    part = (float)(1 - beta2) * g;
    s[1] = v = madd(o->fma, part, g, v);
    if (o->amsgrad) {
        s[2] = v > s[2] || v != v ? v : s[2];
        v = s[2];
    }
    part = sqrtf(v) / (float)sqrt(1 - pow(beta2, t));
    v = part + (float)o->eps;
    part = (float)(-o->lr / (1 - pow(beta1, t))) * s[0];
    part = part / v;
    *p = *p + part;
}

static void plain_adagrad(const cdp_optim *o, float *p, float g, float *s) {
    volatile float part, root;
    if (o->step == 1) *s = (float)o->initial;
    if (o->weight_decay != 0) g = madd(o->fma, (float)o->weight_decay, *p, g);
    *s = madd(o->fma, g, g, *s);
    root = sqrtf(*s) + (float)o->eps;
    part = (float)(-o->lr / (1 + (double)(o->step - 1) * o->lr_decay)) * g;
    part = part / root;
    *p = *p + part;
}

static void plain_rmsprop(const cdp_optim *o, float *p, float g, float s[3]) {
    const float alpha = (float)o->alpha;
    volatile float part, root, v;
    if (o->weight_decay != 0) g = madd(o->fma, (float)o->weight_decay, *p, g);
    v = s[0] * alpha;
    part = (float)(1 - o->alpha) * g;
    s[0] = v = madd(o->fma, part, g, v);
    if (o->centered) {
        s[1] = average(o->fma, (float)(1 - o->alpha), s[1], g);
        v = madd(o->fma, -s[1], s[1], v);
    }
    root = sqrtf(v) + (float)o->eps;
    if (o->momentum != 0) {
        v = s[2] * (float)o->momentum;
        part = g / root;
        s[2] = v + part;
        *p = madd(o->fma, (float)-o->lr, s[2], *p);
        return;
    }
    part = (float)-o->lr * g;
    part = part / root;
    *p = *p + part;
}

static void plain(const cdp_optim *o, model *m, const float *g) {
    for (uint32_t i = 0; i < N; ++i) {
        float s[3] = {m->s[0][i], m->s[1][i], m->s[2][i]};
        const float given = o->maximize ? -g[i] : g[i];
        if (o->kind == CDP_OPTIM_SGD) plain_sgd(o, &m->p[i], given, s);
        if (o->kind == CDP_OPTIM_ADAM || o->kind == CDP_OPTIM_ADAMW)
            plain_adam(o, &m->p[i], given, s);
        if (o->kind == CDP_OPTIM_ADAGRAD) plain_adagrad(o, &m->p[i], given, s);
        if (o->kind == CDP_OPTIM_RMSPROP) plain_rmsprop(o, &m->p[i], given, s);
        for (uint32_t k = 0; k < 3; ++k)
            m->s[k][i] = s[k];
    }
}

static uint32_t drawn = 1;
static float draw(void) {
    drawn = drawn * 1664525u + 1013904223u;
    return (float)(int32_t)drawn * 0x1p-31f;
}

/* Which of the reference's three states the library keeps, in its order. */
static uint32_t states_of(const cdp_optim *o, model *m, float *state[3]) {
    uint32_t n = 0;
    const bool momentum = o->momentum != 0;
    const bool kept[3] = {o->kind != CDP_OPTIM_SGD || momentum,
        o->kind == CDP_OPTIM_ADAM || o->kind == CDP_OPTIM_ADAMW || o->centered,
        o->amsgrad || (o->kind == CDP_OPTIM_RMSPROP && momentum)};
    for (uint32_t k = 0; k < 3; ++k)
        if (kept[k]) state[n++] = m->s[k];
    return n;
}

static cdp_status step_in_cuts(const cdp_optim *o, model *m, const float *g, uint32_t cut) {
    cdp_optim_range r;
    float *state[3] = {NULL, NULL, NULL};
    const uint32_t kept = states_of(o, m, state);
    T_EQ(kept, cdp_optim_states(o));
    for (uint32_t at = 0; at < N; at += cut) {
        cdp_status st;
        memset(&r, 0, sizeof r);
        r.param = m->p + at;
        for (uint32_t k = 0; k < kept; ++k)
            r.state[k] = state[k] + at;
        r.grad = g + at;
        r.count = N - at < cut ? N - at : cut;
        st = cdp_optim_update(o, &r);
        if (st != CDP_OK) return st;
    }
    return CDP_OK;
}

static bool same_bits(const float *a, const float *b) {
    for (uint32_t i = 0; i < N; ++i)
        if (memcmp(&a[i], &b[i], 4) != 0 && !(isnan(a[i]) && isnan(b[i]))) return false;
    return true;
}

static void same_as_plain(cdp_optim o, const char *what) {
    static model reference, whole, cut;
    float g[N];
    memset(&reference, 0, sizeof reference);
    for (uint32_t i = 0; i < N; ++i)
        reference.p[i] = draw();
    whole = cut = reference;
    for (uint32_t step = 1; step <= STEPS; ++step) {
        for (uint32_t i = 0; i < N; ++i)
            g[i] = draw() * (i % 7 ? 1 : 1e-20f);
        if (step == 3) g[5] = NAN;
        if (step == 4) g[6] = INFINITY;
        o.step = step;
        plain(&o, &reference, g);
        T_EQ(CDP_OK, step_in_cuts(&o, &whole, g, N));
        T_EQ(CDP_OK, step_in_cuts(&o, &cut, g, 100));
        test_check(same_bits(reference.p, whole.p), __FILE__, __LINE__, "%s, step %u", what, step);
        test_check(same_bits(whole.p, cut.p), __FILE__, __LINE__, "%s, step %u, cut", what, step);
    }
}

TEST(updates_have_the_bits_of_a_plain_loop_for_every_cut) {
    for (int fma = 0; fma < 2; ++fma) {
        const cdp_optim s = {.kind = CDP_OPTIM_SGD, .lr = .1, .fma = fma != 0};
        cdp_optim o = s;
        same_as_plain(o, "sgd");
        o.weight_decay = .01;
        o.maximize = true;
        same_as_plain(o, "sgd, decay, maximize");
        o.momentum = .9;
        o.dampening = .1;
        same_as_plain(o, "momentum, dampening");
        o.dampening = 0;
        o.nesterov = true;
        same_as_plain(o, "nesterov");
        const cdp_optim a = {.kind = CDP_OPTIM_ADAM,
            .lr = .01,
            .beta1 = .9,
            .beta2 = .95,
            .eps = 1e-8,
            .fma = fma != 0};
        o = a;
        same_as_plain(o, "adam");
        o.weight_decay = .1;
        same_as_plain(o, "adam, decay");
        o.amsgrad = true;
        same_as_plain(o, "amsgrad");
        o.kind = CDP_OPTIM_ADAMW;
        same_as_plain(o, "adamw, amsgrad");
        o.beta1 = .3;
        same_as_plain(o, "adamw, most of each gradient");
        const cdp_optim g = {.kind = CDP_OPTIM_ADAGRAD,
            .lr = .01,
            .lr_decay = .1,
            .initial = .5,
            .eps = 1e-10,
            .fma = fma != 0};
        same_as_plain(g, "adagrad");
        const cdp_optim r = {
            .kind = CDP_OPTIM_RMSPROP, .lr = .01, .alpha = .9, .eps = 1e-8, .fma = fma != 0};
        o = r;
        same_as_plain(o, "rmsprop");
        o.momentum = .9;
        same_as_plain(o, "rmsprop, momentum");
        o.centered = true;
        same_as_plain(o, "rmsprop, momentum, centered");
        o.alpha = .25;
        same_as_plain(o, "rmsprop, most of each gradient");
    }
}

/* Gradients of 16 bits are the f32 numbers that they hold, times the scale; the copy for the
   forward pass is that of cdp_convert(). */
TEST(narrow_gradients_a_scale_and_a_copy_for_the_forward_pass) {
    static model wide, narrow;
    static uint16_t g16[N], copy[N], expected[N];
    float g[N];
    const cdp_round round = {3, 1, 40};
    const cdp_optim o = {.kind = CDP_OPTIM_ADAMW, .step = 1};
    cdp_optim_range r;
    for (uint32_t i = 0; i < N; ++i) {
        wide.p[i] = narrow.p[i] = draw();
        g[i] = draw();
    }
    T_EQ(CDP_OK, cdp_convert(g, CDP_DTYPE_F32, g16, CDP_DTYPE_F16, N, NULL));
    T_EQ(CDP_OK, cdp_convert(g16, CDP_DTYPE_F16, g, CDP_DTYPE_F32, N, NULL));
    for (uint32_t i = 0; i < N; ++i)
        g[i] *= 0.25f;
    T_EQ(CDP_OK, step_in_cuts(&o, &wide, g, N));
    memset(&r, 0, sizeof r);
    r.param = narrow.p;
    r.state[0] = narrow.s[0];
    r.state[1] = narrow.s[1];
    r.grad = g16;
    r.grad_dtype = CDP_DTYPE_F16;
    r.scale = 0.25;
    r.count = N;
    r.compute = copy;
    r.compute_dtype = CDP_DTYPE_BF16;
    r.round = &round;
    T_EQ(CDP_OK, cdp_optim_update(&o, &r));
    T(same_bits(wide.p, narrow.p));
    T_EQ(CDP_OK, cdp_convert(wide.p, CDP_DTYPE_F32, expected, CDP_DTYPE_BF16, N, &round));
    T(memcmp(expected, copy, sizeof copy) == 0);
    r.round = NULL;
    r.count = 0;
    r.param = NULL;
    T_EQ(CDP_OK, cdp_optim_update(&o, &r));
}

TEST(settings_that_make_no_sense_are_refused) {
    float p = 1, g = 1;
    cdp_optim o = {.kind = CDP_OPTIM_ADAM, .step = 1};
    cdp_optim_range r = {.param = &p, .grad = &g, .count = 1};
    T_EQ(CDP_ERR_INVALID, cdp_optim_update(NULL, &r));
    T_EQ(CDP_ERR_INVALID, cdp_optim_update(&o, NULL));
    T_EQ(CDP_ERR_INVALID, cdp_optim_update(&o, &r));
    T_TEXT("range.state[0]", cdp_last_error()->text);
    o.kind = CDP_OPTIM_SGD;
    o.nesterov = true;
    T_EQ(CDP_ERR_INVALID, cdp_optim_update(&o, &r));
    o.nesterov = false;
    o.step = 0;
    T_EQ(CDP_ERR_INVALID, cdp_optim_update(&o, &r));
    T_TEXT("first one is 1", cdp_last_error()->text);
    o.step = 1;
    o.kind = CDP_OPTIM_RPROP;
    T_EQ(CDP_ERR_INVALID, cdp_optim_update(&o, &r));
    T_EQ(0, cdp_optim_states(&o));
    o.kind = CDP_OPTIM_SGD;
    r.grad_dtype = CDP_DTYPE_I32;
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_optim_update(&o, &r));
    T_TEXT("grad_dtype is i32", cdp_last_error()->text);
    r.grad_dtype = CDP_DTYPE_F32;
    T_EQ(CDP_OK, cdp_optim_update(&o, &r));
    T(p == 1 - .01f);
    r.scale = -1;
    T_EQ(CDP_ERR_INVALID, cdp_optim_update(&o, &r));
    r.scale = 0;
    o.lr = CDP_OPTIM_ZERO;
    T_EQ(CDP_OK, cdp_optim_update(&o, &r));
    T(p == 1 - .01f);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"updates_have_the_bits_of_a_plain_loop_for_every_cut",
            updates_have_the_bits_of_a_plain_loop_for_every_cut, 20},
        {"narrow_gradients_a_scale_and_a_copy_for_the_forward_pass",
            narrow_gradients_a_scale_and_a_copy_for_the_forward_pass, 10},
        {"settings_that_make_no_sense_are_refused", settings_that_make_no_sense_are_refused, 10},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
