/* What DDP costs in messages and memory: flags travel inside buckets, gradients are the memory of
   buckets, and buckets are rebuilt in the order of rank 0. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "ranks.h"
#include "ddp_rig.h"

static void rank_counts_operations(cdp_group *g, void *arg) {
    rig r;
    (void)arg;
    rig_desc(&r, g);
    r.desc.join = r.desc.find_unused = true;
    rig_open(&r);
    const uint64_t before = g->queue.issued;
    T_EQ(CDP_OK, rig_pass(&r, whole));
    /* the buckets and nothing else, although join and unused parameters are possible */
    T_EQ(N, g->queue.issued - before);
    T_EQ(COUNT * 4 * N + 4 * (cdp_size(g) + N), cdp_ddp_stats_of(r.ddp).sent_bytes);
    T_EQ(cdp_size(g), cdp_ddp_stats_of(r.ddp).active_ranks);
    const uint64_t then = g->queue.issued;
    T_EQ(CDP_OK, cdp_ddp_join(r.ddp));
    T_EQ(1, g->queue.issued - then); /* one more first bucket, and everybody knows */
    cdp_ddp_destroy(r.ddp);
}

TEST(flags_travel_inside_buckets) {
    run_ranks(3, NULL, 0, rank_counts_operations, NULL);
}

static int64_t held_bytes;

static void *sized_alloc(void *user, uint64_t bytes) {
    uint64_t *p = (uint64_t *)cdp_os_default()->alloc(user, bytes + 64);
    if (!p) return NULL;
    p[0] = bytes;
    held_bytes += (int64_t)bytes;
    return p + 8;
}

static void sized_free(void *user, void *p) {
    if (!p) return;
    held_bytes -= (int64_t)((uint64_t *)p)[-8];
    cdp_os_default()->release(user, (uint64_t *)p - 8);
}

TEST(buckets_are_the_gradients) {
    enum {
        MANY = 40
    };
    static float data[MANY][100000];
    cdp_param p[MANY];
    cdp_ddp_desc d;
    cdp_os os = *cdp_os_default();
    os.alloc = sized_alloc;
    os.release = sized_free;
    cdp_group *g = group_of_one(&os);
    cdp_ddp *ddp[3];
    memset(p, 0, sizeof p);
    memset(&d, 0, sizeof d);
    for (int i = 0; i < MANY; ++i) {
        p[i].data = data[i];
        p[i].count = 100000;
    }
    d.group = g;
    d.params = p;
    d.param_count = MANY;
    d.find_unused = d.join = d.rebuild = true;
    for (int k = 0; k < 3; ++k) { /* several on one group */
        const int64_t before = held_bytes, gradients = (int64_t)MANY * 400000;
        T_EQ(CDP_OK, cdp_ddp_create(&d, &ddp[k]));
        test_check(
            held_bytes - before >= gradients && held_bytes - before < gradients + gradients / 100,
            __FILE__, __LINE__, "%lld bytes of gradients take %lld", (long long)gradients,
            (long long)(held_bytes - before));
        for (int step = 0; step < 3; ++step) {
            T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp[k]));
            for (uint32_t i = 0; i < MANY; ++i)
                T_EQ(CDP_OK, cdp_ddp_ready(ddp[k], i));
            T_EQ(CDP_OK, cdp_ddp_backward_end(ddp[k]));
        }
        T(cdp_ddp_stats_of(ddp[k]).rebuilt);
        T(held_bytes - before < gradients + gradients / 100);
        /* what one rank does not use has to be kept */
        T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp[k]));
        for (uint32_t i = 0; i + 1 < MANY; ++i)
            T_EQ(CDP_OK, cdp_ddp_ready(ddp[k], i));
        T_EQ(CDP_OK, cdp_ddp_backward_end(ddp[k]));
        T_EQ(1, cdp_ddp_stats_of(ddp[k]).unused_count);
        T(held_bytes - before < gradients + 400000 + gradients / 100);
    }
    for (int k = 0; k < 3; ++k)
        cdp_ddp_destroy(ddp[k]);
    cdp_group_destroy(g);
    T_EQ(0, held_bytes);
}

static void rank_rebuilds(cdp_group *g, void *arg) {
    static const uint32_t order[N] = {1, 3, 0, 2};
    cdp_hook_desc d;
    cdp_hook hook;
    rig r;
    (void)arg;
    rig_desc(&r, g);
    r.desc.rebuild = true;
    r.desc.first_bucket_bytes = r.desc.bucket_bytes = 2 * COUNT * 4;
    rig_open(&r);
    memset(&d, 0, sizeof d);
    d.kind = CDP_HOOK_TOPK; /* has state per bucket */
    T_EQ(CDP_OK, cdp_hook_create(&d, &hook));
    T_EQ(CDP_OK, cdp_ddp_set_hook(r.ddp, &hook));
    for (int pass = 0; pass < 4; ++pass) {
        if (pass == 2) T_EQ(CDP_OK, cdp_ddp_set_hook(r.ddp, NULL));
        T_EQ(CDP_OK, cdp_ddp_forward_begin(r.ddp));
        T_EQ(pass >= 2, cdp_ddp_stats_of(r.ddp).rebuilt);
        T_EQ(CDP_OK, cdp_ddp_backward_begin(r.ddp));
        for (uint32_t i = 0; i < N; ++i) {
            const uint32_t at = cdp_rank(g) == 0 ? order[i] : i; /* rank 0's order counts */
            for (uint32_t k = 0; k < COUNT; ++k)
                grad(&r, at)[k] = whole(cdp_rank(g), at, k);
            T_EQ(CDP_OK, cdp_ddp_ready(r.ddp, at));
        }
        T_EQ(CDP_OK, cdp_ddp_backward_end(r.ddp));
        for (uint32_t i = 0; i < N && pass >= 2; ++i)
            for (uint32_t k = 0; k < COUNT; ++k)
                T((double)grad(&r, i)[k] == (double)(float)mean_of(whole, 2, i, k));
    }
    T(grad(&r, 3) == grad(&r, 1) + COUNT && grad(&r, 2) == grad(&r, 0) + COUNT);
    cdp_ddp_destroy(r.ddp);
}

TEST(buckets_follow_the_order_of_rank_0_when_no_hook_needs_them) {
    run_ranks(2, NULL, 0, rank_rebuilds, NULL);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"flags_travel_inside_buckets", flags_travel_inside_buckets, 20},
        {"buckets_are_the_gradients", buckets_are_the_gradients, 60},
        {"buckets_follow_the_order_of_rank_0_when_no_hook_needs_them",
            buckets_follow_the_order_of_rank_0_when_no_hook_needs_them, 20}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
