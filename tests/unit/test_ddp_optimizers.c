/* What stands beside the gradients of a step: local training with averages of parameters, sharded
   optimizers, clipping. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "ranks.h"
#include "ddp_rig.h"

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

static void add_rank(void *user, uint32_t i, const cdp_param *p, const void *g) {
    (void)g;
    for (uint64_t k = 0; k < p->count; ++k)
        ((float *)p->data)[k] = (float)(100 * *(uint32_t *)user + i);
}

static void rank_owns_a_shard(cdp_group *g, void *arg) {
    uint32_t owner[N] = {1, 0, 2, 1}, rank = cdp_rank(g);
    rig r;
    (void)arg;
    rig_desc(&r, g);
    rig_open(&r);
    T_EQ(CDP_OK, cdp_zero_step(r.ddp, owner, add_rank, &rank));
    for (uint32_t i = 0; i < N; ++i)
        T(r.data[i][0] == (float)(100 * owner[i] + i) && r.data[i][COUNT - 1] == r.data[i][0]);
    owner[2] = 3;
    REFUSED(CDP_ERR_INVALID, "parameter 2 belongs to rank 3",
        cdp_zero_step(r.ddp, owner, add_rank, &rank));
    cdp_ddp_destroy(r.ddp);
}

TEST(sharded_optimizer) {
    static const uint64_t first[3] = {3, 5, 2}, second[3] = {5, 7, 1};
    uint64_t totals[2] = {0, 0};
    uint32_t owner[3];
    cdp_zero_partition(first, 3, 2, totals, owner); /* rank 0: 5; rank 1: 3, 2 */
    T(owner[0] == 1 && owner[1] == 0 && owner[2] == 1);
    cdp_zero_partition(second, 3, 2, totals, owner); /* rank 0: 7; rank 1: 5, 1 */
    T(owner[0] == 1 && owner[1] == 0 && owner[2] == 1);
    run_ranks(3, NULL, 0, rank_owns_a_shard, NULL);
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

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"local_training_and_averages", local_training_and_averages, 20},
        {"sharded_optimizer", sharded_optimizer, 20}, {"clipping", clipping, 20}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
