/* What cdp.h does for backends (cdp_nccl.h is one), without any: comparing calls, listening to a
   neighbour, breaking the group. */
#define CDP_IMPLEMENTATION
#include "cdp.h"

#include "../test.h"

#include "ranks.h"

#ifndef CDP_NO_THREADS
static void compare_rank(cdp_group *g, void *arg) {
    cdp_request rq[2];
    float x = 1;
    (void)arg;
    memset(rq, 0, sizeof rq);
    rq[0].kind = rq[1].kind = CDP_COLL_ALLREDUCE;
    rq[0].dtype = rq[1].dtype = CDP_DTYPE_F8E4M3;
    rq[0].op = rq[1].op = CDP_REDUCE_SUM;
    rq[0].count = rq[1].count = 1u << 30; /* nothing of it is sent */
    T_EQ(CDP_OK, cdp_group_compare(g, rq, 2, true));
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    T(x == (float)cdp_size(g));
    if (cdp_rank(g) == 1) rq[1].count = 77;
    T_EQ(CDP_ERR_MISMATCH, cdp_group_compare(g, rq, 2, true));
    T_TEXT("77", cdp_last_error()->text);
    T_TEXT("in device memory", cdp_last_error()->text);
}
TEST(calls_are_compared) {
    run_ranks(2, NULL, 0, compare_rank, NULL);
    run_ranks(5, NULL, 0, compare_rank, NULL);
}

static void missing_rank(cdp_group *g, void *arg) {
    cdp_request rq;
    (void)arg;
    memset(&rq, 0, sizeof rq);
    rq.kind = CDP_COLL_BROADCAST;
    rq.dtype = CDP_DTYPE_U8;
    rq.count = 5;
    rq.timeout_ms = 300;
    if (cdp_rank(g) == 1) {
        test_sleep_ms(1000);
        return;
    }
    T_EQ(CDP_ERR_TIMEOUT, cdp_group_compare(g, &rq, 1, true));
    T_EQ(1, cdp_last_error()->peer);
}
TEST(who_does_not_call_is_named) {
    run_ranks(2, NULL, 0, missing_rank, NULL);
}

static void failing_rank(cdp_group *g, void *arg) {
    (void)arg;
    T_EQ(CDP_ERR_INVALID, cdp_group_watch(g, cdp_rank(g)));
    T_EQ(CDP_ERR_INVALID, cdp_group_watch(g, 9));
    T_EQ(CDP_OK, cdp_group_watch(g, (cdp_rank(g) + 2) % 3));
    T_EQ(CDP_OK, cdp_barrier(g)); /* listening takes nothing away from others */
    if (cdp_rank(g) < 2) {
        T_EQ(CDP_OK, cdp_send(g, "x", 1, CDP_DTYPE_U8, 2, 0));
    } else {
        char x;
        /* nobody is in the barrier any more */
        for (uint32_t r = 0; r < 2; ++r)
            T_EQ(CDP_OK, cdp_recv(g, &x, 1, CDP_DTYPE_U8, r, 0));
        cdp_error_set(CDP_ERR_IO, -1, 0, "the machine is on fire");
        cdp_group_fail(g);
        cdp_group_fail(g); /* twice is once */
    }
    T_EQ(CDP_ERR_IO, cdp_barrier(g));
    T_TEXT("on fire", cdp_last_error()->text);
}
TEST(a_backend_breaks_the_group) {
    run_ranks(3, NULL, 0, failing_rank, NULL);
}
#endif

TEST(no_backend) {
    const cdp_group_desc d = {.world_size = 1};
    cdp_group *g;
    if (!T_EQ(CDP_OK, cdp_group_create(&d, &g))) return;
    T(!cdp_group_backend(g) && !cdp_group_backend(NULL));
    T_EQ(CDP_ERR_INVALID, cdp_group_set_backend(g, NULL));
    T_EQ(CDP_ERR_INVALID, cdp_group_set_backend(NULL, NULL));
    cdp_group_fail(NULL);
    cdp_group_clear_backend(NULL);
    cdp_group_clear_backend(g);
    cdp_group_destroy(g);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
#ifndef CDP_NO_THREADS
        {"calls_are_compared", calls_are_compared, 60},
        {"who_does_not_call_is_named", who_does_not_call_is_named, 60},
        {"a_backend_breaks_the_group", a_backend_breaks_the_group, 60},
#endif
        {"no_backend", no_backend, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
