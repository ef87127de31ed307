/* ddp_rig.h - N parameters in buckets of their own, and passes over them, for test_ddp_*.c */
#ifndef DDP_RIG_INCLUDED
#define DDP_RIG_INCLUDED

#include "ranks.h"

enum {
    N = 4,
    COUNT = 48
};

/* N parameters of 6 x 8 values, one bucket each, unless told otherwise. */
typedef struct rig {
    cdp_group *g;
    cdp_ddp *ddp;
    float data[N][COUNT];
    cdp_param params[N];
    cdp_ddp_desc desc;
} rig;

TEST_API void rig_desc(rig *r, cdp_group *g) {
    static const char *const names[N] = {"embed", "attention", "norm", "head"};
    memset(r, 0, sizeof *r);
    r->g = r->desc.group = g;
    for (int i = 0; i < N; ++i) {
        r->params[i].name = names[i];
        r->params[i].data = r->data[i];
        r->params[i].count = COUNT;
        r->params[i].rows = 6;
    }
    r->desc.params = r->params;
    r->desc.param_count = N;
    r->desc.first_bucket_bytes = r->desc.bucket_bytes = 4;
}

TEST_API void rig_open(rig *r) {
    test_check(cdp_ddp_create(&r->desc, &r->ddp) == CDP_OK, __FILE__, __LINE__, "%s",
        cdp_last_error()->text);
}

TEST_API float *grad(rig *r, uint32_t i) {
    return (float *)cdp_ddp_grad(r->ddp, i);
}

/* One pass in which parameter i gets gradient value(i, k) on this rank. */
TEST_API cdp_status rig_pass(rig *r, float (*value)(uint32_t rank, uint32_t i, uint32_t k)) {
    cdp_status st = cdp_ddp_backward_begin(r->ddp);
    for (uint32_t i = N; i-- > 0 && st == CDP_OK;) {
        for (uint32_t k = 0; k < COUNT; ++k)
            grad(r, i)[k] = value(cdp_rank(r->g), i, k);
        st = cdp_ddp_ready(r->ddp, i);
    }
    /* which reports a failure of ready() again */
    return r->ddp->in_backward ? cdp_ddp_backward_end(r->ddp) : st;
}

TEST_API float whole(uint32_t rank, uint32_t i, uint32_t k) {
    return (float)((rank * 7 + i * 3 + k) % 11) - 5;
}

TEST_API double mean_of(
    float (*value)(uint32_t, uint32_t, uint32_t), uint32_t n, uint32_t i, uint32_t k) {
    double sum = 0;
    for (uint32_t r = 0; r < n; ++r)
        sum += (double)value(r, i, k);
    return sum / n;
}

TEST_API cdp_hook made(cdp_hook_desc d) {
    cdp_hook h;
    test_check(cdp_hook_create(&d, &h) == CDP_OK, __FILE__, __LINE__, "%s", cdp_last_error()->text);
    return h;
}

#endif /* DDP_RIG_INCLUDED */
