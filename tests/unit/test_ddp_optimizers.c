/* What stands beside the gradients of a step: local training with averages of parameters,
   clipping. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "ranks.h"
#include "ddp_rig.h"
#include <float.h>

static void rank_trains_locally(cdp_group *g, void *arg) {
    cdp_averager average;
    cdp_hook_desc d;
    rig r;
    (void)arg;
    rig_desc(&r, g);
    rig_open(&r);
    memset(&d, 0, sizeof d);
    d.kind = CDP_HOOK_POST_LOCAL_SGD;
    d.start = 2;
    const cdp_hook hook = made(d);
    T_EQ(CDP_OK, cdp_ddp_set_hook(r.ddp, &hook));
    memset(&average, 0, sizeof average);
    average.ddp = r.ddp;
    average.warmup = 3;
    average.period = 2;
    REFUSED(CDP_ERR_INVALID, "is NULL", cdp_averager_step(NULL));
    for (int step = 0; step < 8; ++step) {
        T_EQ(CDP_OK, rig_pass(&r, whole));
        for (uint32_t k = 0; k < COUNT; ++k)
            T((double)grad(&r, 1)[k]
                == (step < 2 ? (double)(float)mean_of(whole, 2, 1, k)
                             : (double)whole(cdp_rank(g), 1, k)));
        r.data[0][0] = (float)cdp_rank(g);
        const uint64_t before = g->queue.issued;
        T_EQ(CDP_OK, cdp_averager_step(&average));
        const bool due = step == 3 || step == 5 || step == 7;
        T_EQ(due ? N : 0, g->queue.issued - before);
        T(r.data[0][0] == (due ? 0.5f : (float)cdp_rank(g)));
    }
    cdp_ddp_destroy(r.ddp);
}

TEST(local_training_and_averages) {
    run_ranks(2, NULL, 0, rank_trains_locally, NULL);
}

static float ones(uint32_t rank, uint32_t i, uint32_t k) {
    (void)rank;
    (void)i;
    (void)k;
    return 2;
}

TEST(clipping) {
    cdp_group *g = group_of_one(NULL);
    double norm = 0;
    rig r;
    rig_desc(&r, g);
    rig_open(&r);
    T_EQ(CDP_OK, rig_pass(&r, ones));
    T_EQ(CDP_OK, cdp_ddp_clip(r.ddp, 0, &norm)); /* only measured */
    T(fabs(norm - 2 * sqrt(N * COUNT)) < 1e-9);
    T(grad(&r, 0)[0] == 2);
    T_EQ(CDP_OK, cdp_ddp_clip(r.ddp, norm * 2, NULL));
    T(grad(&r, 0)[0] == 2);
    T_EQ(CDP_OK, cdp_ddp_clip(r.ddp, norm / 4, NULL));
    T(fabsf(grad(&r, 3)[COUNT - 1] - 0.5f) < 1e-6f);
    REFUSED(CDP_ERR_INVALID, "positive", cdp_ddp_clip(r.ddp, -1, NULL));
    cdp_ddp_destroy(r.ddp);
    cdp_group_destroy(g);
}

/* ---- norms over a mesh ---- */

static bool near_to(double want, double got) {
    return fabs(want - got) <= 1e-15 * want;
}

/* Ranks are (dp, tp) of 2 x 2, and one more that holds nothing. Gradient 0 is cut over tp,
   unevenly; gradient 1 is a copy everywhere, as bf16; gradient 2 is of tp rank 1 alone. */
static void rank_norms(cdp_group *g, void *arg) {
    const uint32_t rank = cdp_rank(g), dp = rank / 2, tp = rank % 2;
    const bool idle = rank == 4;
    float cut[700], alone[3] = {1, -2, 2};
    uint16_t copy[2] = {0x3f80, 0xc000}; /* 1, -2 */
    double each[3], serial = 0;
    cdp_norm norm;
    cdp_norm_item items[3] = {{cut, tp ? 699 : 700, CDP_DTYPE_F32, dp != 0},
        {copy, 2, CDP_DTYPE_BF16, rank != 0}, {alone, tp ? 3 : 0, CDP_DTYPE_DEFAULT, dp != 0}};
    cdp_norm_desc d = {g, items, 3, 0};
    (void)arg;
    for (uint32_t i = 0; i < 3 && idle; ++i)
        items[i].count = 0;
    for (uint32_t i = 0; i < 1399; ++i) {
        const float v = (float)(i % 37) - 18.25f;
        serial += (double)v * (double)v;
        if (i < 700 ? !tp : tp) cut[i % 700] = v;
    }
    T_EQ(CDP_OK, cdp_grads_norm(&d, each, &norm));
    T(near_to(sqrt(serial + 5 + 9), norm.norm) && !norm.found_inf);
    T(near_to(sqrt(serial), each[0]) && each[1] == sqrt(5.0) && each[2] == 3);
    T_EQ(CDP_OK, cdp_grads_scale(&d, 0.5));
    T(idle || (copy[0] == 0x3f00 && copy[1] == 0xbf80 && (!tp || alone[1] == -1)));
    T_EQ(CDP_OK, cdp_grads_norm(&d, NULL, &norm));
    T(near_to(sqrt(serial + 5 + 9) / 2, norm.norm));
    d.p = 1;
    T_EQ(CDP_OK, cdp_grads_norm(&d, each, &norm));
    T(each[1] == 1.5 && each[2] == 2.5);
    d.p = (double)INFINITY;
    T_EQ(CDP_OK, cdp_grads_norm(&d, each, &norm));
    T(each[0] == 9.125 && each[1] == 1 && norm.norm == 9.125 && !norm.found_inf);
    d.p = 3;
    REFUSED(CDP_ERR_INVALID, "p is not 1, 2 or INFINITY", cdp_grads_norm(&d, each, &norm));
}
/* Stages of a pipeline, two ranks each: every rank lists the gradients of all stages in one order,
   and its own ones have elements. Gradient 0 is tied: the first and the last stage have it. */
static void rank_norms_of_stages(cdp_group *g, void *arg) {
    const uint32_t stage = cdp_rank(g) / 2, last = cdp_size(g) / 2 - 1;
    const bool again = cdp_rank(g) % 2 != 0; /* a copy of the other rank of this stage */
    float tied[3] = {2, 3, 6}, mine[4][50];
    cdp_norm_item items[4];
    double serial = 49, each[4];
    cdp_norm norm;
    cdp_norm_desc d = {g, items, 4, 0};
    (void)arg;
    memset(items, 0, sizeof items);
    if (stage == 0 || stage == last)
        items[0] = (cdp_norm_item){tied, 3, CDP_DTYPE_F32, stage != 0 || again};
    for (uint32_t s = 0; s < 3; ++s)
        for (uint32_t k = 0; k < 50; ++k) {
            mine[s][k] = (float)(s * 50 + k) / 8;
            serial += (double)mine[s][k] * (double)mine[s][k];
        }
    items[1 + stage] = (cdp_norm_item){mine[stage], 50, CDP_DTYPE_F32, again};
    T_EQ(CDP_OK, cdp_grads_norm(&d, each, &norm));
    T(near_to(sqrt(serial), norm.norm) && each[0] == 7);
    T_EQ(CDP_OK, cdp_grads_scale(&d, 0.5));
    T(mine[stage][49] == (float)(stage * 50 + 49) / 16);
    T(tied[0] == (stage == 0 || stage == last ? 1.0f : 2.0f));
}

TEST(norms_count_each_element_of_a_pipeline_once) {
    run_ranks(6, NULL, 0, rank_norms_of_stages, NULL);
}

TEST(norms_count_each_element_once) {
    run_ranks(5, NULL, 0, rank_norms, NULL);
}

/* The largest f32 is no overflow; an infinity or a NaN of one rank is one on all, in each norm and
   at each place. */
static void rank_overflows(cdp_group *g, void *arg) {
    static const double ps[] = {2, 1, (double)INFINITY};
    const bool bad = cdp_rank(g) == 1;
    float x[300];
    double y[2] = {1e200, 1};
    cdp_norm norm;
    cdp_norm_item items[2] = {{x, 300, CDP_DTYPE_F32, false}, {y, 2, CDP_DTYPE_F64, false}};
    cdp_norm_desc d = {g, items, 2, 0};
    (void)arg;
    for (uint32_t i = 0; i < 300; ++i)
        x[i] = FLT_MAX;
    for (uint32_t p = 0; p < 3; ++p) {
        d.p = ps[p];
        T_EQ(CDP_OK, cdp_grads_norm(&d, NULL, &norm));
        T(!norm.found_inf); /* though the squares of 1e200 exceed f64 */
        for (uint32_t at = 0; at < 300; at += 299)
            for (int nan = 0; nan < 2; ++nan) {
                x[at] = 1;
                if (bad) x[at] = nan ? NAN : INFINITY;
                T_EQ(CDP_OK, cdp_grads_norm(&d, NULL, &norm));
                T(norm.found_inf && norm.norm - norm.norm != 0);
                x[at] = 1;
            }
        y[1] = bad ? (double)NAN : 1;
        T_EQ(CDP_OK, cdp_grads_norm(&d, NULL, &norm));
        T(norm.found_inf);
        y[1] = 1;
    }
}
TEST(overflow_is_found_on_all_ranks) {
    run_ranks(2, NULL, 0, rank_overflows, NULL);
}

TEST(mistakes_in_norms) {
    float x[2] = {3, 4};
    cdp_norm_item item = {x, 2, CDP_DTYPE_F32, false};
    cdp_norm_desc d = {NULL, &item, 1, 0};
    cdp_norm norm;
    T_EQ(CDP_OK, cdp_grads_norm(&d, NULL, &norm));
    T(norm.norm == 5);
    REFUSED(CDP_ERR_INVALID, "desc is NULL", cdp_grads_norm(NULL, NULL, &norm));
    REFUSED(CDP_ERR_INVALID, "out is NULL", cdp_grads_norm(&d, NULL, NULL));
    item.grad = (char *)x + 1;
    REFUSED(CDP_ERR_INVALID, "items[0].grad", cdp_grads_scale(&d, 1));
    item.grad = x;
    item.dtype = CDP_DTYPE_I32;
    REFUSED(CDP_ERR_UNSUPPORTED, "items[0].dtype is 3 (i32)", cdp_grads_norm(&d, NULL, &norm));
    d.items = NULL;
    REFUSED(CDP_ERR_INVALID, "desc.items is NULL", cdp_grads_norm(&d, NULL, &norm));
    d.items = &item;
    item.dtype = CDP_DTYPE_F32;
    d.group = group_of_one(NULL);
    T_EQ(CDP_OK, cdp_grads_norm(&d, NULL, &norm));
    cdp_group_destroy(d.group);
    REFUSED(
        CDP_ERR_STATE, "cdp_grads_norm: this group was destroyed", cdp_grads_norm(&d, NULL, &norm));
}

/* ---- ranks that run out of data in a loop with two models ---- */

typedef struct loop {
    cdp_group *g;
    uint32_t steps, lasts;
    float active; /* ranks that had data, counted by an operation of the loop itself */
} loop;

static cdp_status count_ranks(loop *l, float mine) {
    l->active = mine;
    ++l->steps;
    return cdp_allreduce(l->g, &l->active, &l->active, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM);
}

static cdp_status count_nothing(void *user) {
    return count_ranks(user, 0);
}

static cdp_status count_last(void *user) {
    ++((loop *)user)->lasts;
    return CDP_OK;
}

/* Rank r has data for 2 * r + 1 steps; a step trains one model, counts, and trains the other. */
static void rank_trains_two_models(cdp_group *g, void *arg) {
    const uint32_t me = cdp_rank(g), n = cdp_size(g);
    rig judge, maker;
    loop l = {g, 0, 0, 0};
    (void)arg;
    rig_desc(&judge, g);
    rig_desc(&maker, g);
    judge.desc.join = maker.desc.join = true;
    rig_open(&judge);
    rig_open(&maker);
    for (uint32_t step = 0; step < 2 * me + 1; ++step) {
        const uint32_t first = (step + 1) / 2; /* ranks before it have no data */
        float mean = 0;
        for (uint32_t r = first; r < n; ++r)
            mean += whole(r, 1, 5) / (float)n;
        T_EQ(CDP_OK, rig_pass(&judge, whole));
        T(grad(&judge, 1)[5] > mean - 1e-5f && grad(&judge, 1)[5] < mean + 1e-5f);
        T_EQ(CDP_OK, count_ranks(&l, 1));
        T_EQ(n - first, (uint32_t)l.active);
        T_EQ(CDP_OK, rig_pass(&maker, whole));
        T(grad(&maker, 1)[5] > mean - 1e-5f && grad(&maker, 1)[5] < mean + 1e-5f);
        judge.data[0][0] = (float)step + 1;
        maker.data[0][0] = (float)step + 101;
    }
    const cdp_joinable items[3] = {
        {.ddp = judge.ddp},
        {.step = count_nothing, .last = count_last, .user = &l},
        {.ddp = maker.ddp},
    };
    T_EQ(CDP_OK, cdp_ddp_join_all(items, 3));
    T_EQ(2 * n - 1, l.steps);
    T_EQ(1, l.lasts);
    T(judge.data[0][0] == (float)(2 * n - 1)); /* of the rank that had data last */
    T(maker.data[0][0] == (float)(2 * n - 1) + 100);
    T_EQ(CDP_OK, rig_pass(&judge, whole)); /* and training goes on */
    REFUSED(CDP_ERR_INVALID, "items", cdp_ddp_join_all(NULL, 1));
    REFUSED(CDP_ERR_INVALID, "is no ddp", cdp_ddp_join_all(items + 1, 1));
    cdp_ddp_destroy(judge.ddp);
    cdp_ddp_destroy(maker.ddp);
}

TEST(ranks_run_out_of_data_in_a_loop_with_two_models) {
    for (uint32_t n = 1; n <= 4; ++n)
        run_ranks(n, NULL, 0, rank_trains_two_models, NULL);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"ranks_run_out_of_data_in_a_loop_with_two_models",
                                          ranks_run_out_of_data_in_a_loop_with_two_models, 20},
        {"local_training_and_averages", local_training_and_averages, 20},
        {"clipping", clipping, 20},
        {"norms_count_each_element_of_a_pipeline_once", norms_count_each_element_of_a_pipeline_once,
            20},
        {"norms_count_each_element_once", norms_count_each_element_once, 20},
        {"overflow_is_found_on_all_ranks", overflow_is_found_on_all_ranks, 20},
        {"mistakes_in_norms", mistakes_in_norms, 20}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
