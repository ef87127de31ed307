/* test_lanes.c - several groups and messages over the same links: whatever the order, nobody
   waits for another */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "worlds.h"

/* ---- groups ---------------------------------------------------------------------------------- */

static void some_groups(uint32_t rank, cdp_group *w) {
    static const uint32_t backwards[4] = {3, 2, 1, 0}, odd[2] = {1, 3}, even[2] = {0, 2};
    cdp_group *all, *half;
    int32_t x = (int32_t)rank, got[4];
    if (!OK(cdp_group_new(w, backwards, 4, &all))
        || !OK(cdp_group_new(w, rank % 2 ? odd : even, 2, &half)))
        return;
    T_EQ(3 - rank, cdp_rank(all));
    T_EQ(4, cdp_size(all));
    T_EQ(rank / 2, cdp_rank(half));
    T_EQ(rank, cdp_world_rank_of(half, cdp_rank(half)));
    T_EQ(3, cdp_world_rank_of(all, 0));
    T_EQ(0, cdp_rank_of_world(all, 3));
    T_EQ(UINT32_MAX, cdp_rank_of_world(half, rank ^ 1u));
    T_EQ(UINT32_MAX, cdp_world_rank_of(half, 2));
    OK(cdp_allgather(all, &x, got, 1, CDP_DTYPE_I32));
    for (int32_t i = 0; i < 4; ++i)
        T_EQ(3 - i, got[i]);
    OK(cdp_allreduce(half, &x, got, 1, CDP_DTYPE_I32, CDP_REDUCE_SUM));
    T_EQ(rank % 2 ? 4 : 2, got[0]);
    cdp_group_destroy(half);
    OK(cdp_broadcast(all, &x, 1, CDP_DTYPE_I32, 0));
    T_EQ(3, x);
    cdp_group_destroy(all);
    OK(cdp_barrier(w));
}

TEST(groups_of_any_ranks_in_any_order) {
    run(4, 20000, some_groups);
}

static void split(uint32_t rank, cdp_group *w) {
    cdp_group *g;
    OK(cdp_group_split(w, rank == 4 ? CDP_NO_COLOR : rank % 2, 10 - rank, &g));
    if (rank == 4) {
        T(g == NULL);
        return;
    }
    T_EQ(rank % 2 ? 2 : 2, cdp_size(g));
    T_EQ(rank < 2 ? 1 : 0, cdp_rank(g)); /* the larger rank has the smaller key */
    OK(cdp_barrier(g));
    cdp_group_destroy(g);
}

TEST(split_by_colour_and_key) {
    run(5, 20000, split);
}

/* Each rank starts the operations of ten groups in an order of its own, large ones among them,
   and only then waits. */
static void any_order(uint32_t rank, cdp_group *w) {
    enum {
        GROUPS = 10
    };
    const uint32_t all[3] = {0, 1, 2};
    cdp_group *g[GROUPS];
    cdp_work work[GROUPS];
    float *x[GROUPS];
    uint64_t state = rank * 77 + 5;
    uint32_t order[GROUPS];
    for (uint32_t i = 0; i < GROUPS; ++i) {
        const uint64_t n = i % 3 ? 1000 : 2000000;
        order[i] = i;
        if (!OK(cdp_group_new(w, all, 3, &g[i]))) return;
        x[i] = (float *)malloc(n * sizeof(float));
        for (uint64_t k = 0; k < n; ++k)
            x[i][k] = (float)(rank + i);
    }
    for (uint32_t i = GROUPS - 1; i; --i) {
        const uint32_t j = (uint32_t)(test_random(&state) % (i + 1)), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    for (uint32_t i = 0; i < GROUPS; ++i) {
        const uint32_t k = order[i];
        OK(cdp_allreduce_async(
            g[k], NULL, x[k], k % 3 ? 1000 : 2000000, CDP_DTYPE_F32, CDP_REDUCE_SUM, &work[k]));
    }
    for (uint32_t i = 0; i < GROUPS; ++i) {
        OK(cdp_work_wait(work[i]));
        T(x[i][0] == (float)(3 + 3 * i) && x[i][999] == (float)(3 + 3 * i));
        free(x[i]);
    }
    OK(cdp_barrier(w)); /* nobody leaves a group that others still use */
    for (uint32_t i = 0; i < GROUPS; ++i)
        cdp_group_destroy(g[i]);
}

/* One rank waits for the last group first while the others fill the links with what it does not
   read yet. */
static void unread(uint32_t rank, cdp_group *w) {
    const uint32_t both[2] = {0, 1};
    enum {
        BYTES = 40000000
    };
    cdp_group *a, *b;
    cdp_work big, small;
    uint8_t *x = (uint8_t *)calloc(BYTES, 1);
    int32_t y = 7;
    if (!OK(cdp_group_new(w, both, 2, &a)) || !OK(cdp_group_new(w, both, 2, &b))) return;
    if (rank == 0) {
        memset(x, 5, BYTES);
        /* far more than sockets and window hold */
        OK(cdp_broadcast_async(a, x, BYTES, CDP_DTYPE_U8, 0, &big));
        OK(cdp_broadcast_async(b, &y, 1, CDP_DTYPE_I32, 0, &small));
        if (no_thread)
            while (cdp_work_test(small) == CDP_PENDING) {
            }
        OK(cdp_work_wait(small));
        OK(cdp_work_wait(big));
    } else {
        y = 0;
        /* comes although the other group's data stands before it */
        OK(cdp_broadcast(b, &y, 1, CDP_DTYPE_I32, 0));
        T_EQ(7, y);
        OK(cdp_broadcast(a, x, BYTES, CDP_DTYPE_U8, 0));
        T(x[0] == 5 && x[BYTES - 1] == 5 && x[BYTES / 2] == 5);
    }
    OK(cdp_barrier(w));
    cdp_group_destroy(a);
    cdp_group_destroy(b);
    free(x);
}

TEST(groups_in_different_orders) {
    run(3, 30000, any_order);
}
TEST(unread_data_stops_nobody) {
    run(2, 30000, unread);
}

/* A group breaks; the world and its other groups do not. */
static void breaks(uint32_t rank, cdp_group *w) {
    const uint32_t pair[2] = {0, 1}, three[3] = {0, 1, 2};
    cdp_group *g = NULL, *all;
    int32_t x = 1;
    if (!OK(cdp_group_new(w, three, 3, &all)) || (rank < 2 && !OK(cdp_group_new(w, pair, 2, &g))))
        return;
    if (rank == 0) cdp_group_abort(g, "the pair is not needed");
    if (rank == 1) {
        T_EQ(CDP_ERR_ABORTED, cdp_allreduce(g, NULL, &x, 1, CDP_DTYPE_I32, CDP_REDUCE_SUM));
        T_TEXT("the pair is not needed", cdp_last_error()->text);
        T_EQ(0, cdp_last_error()->peer);
    }
    OK(cdp_allreduce(all, NULL, &x, 1, CDP_DTYPE_I32, CDP_REDUCE_SUM));
    T_EQ(3, x);
    OK(cdp_barrier(w));
    cdp_group_destroy(g);
    cdp_group_destroy(all);
}

TEST(a_group_breaks_alone) {
    run(3, 20000, breaks);
}

/* Who waits for one rank hears of the failure of another, though it reads nothing from that one. */
static void far_away(uint32_t rank, cdp_group *w) {
    const uint32_t all[4] = {0, 1, 2, 3};
    static float x[4][100000];
    cdp_group *g;
    if (!OK(cdp_group_new(w, all, 4, &g))) return;
    /* a ring: 0 reads from 3 */
    OK(cdp_allreduce(g, NULL, x[rank], 100000, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    OK(cdp_barrier(w)); /* or it breaks while others are still in it */
    if (rank == 1) cdp_group_abort(g, "rank 1 has had enough");
    if (rank == 0) {
        const uint64_t from = test_now_ns();
        /* 2 and 3 do not come */
        T_EQ(CDP_ERR_ABORTED,
            cdp_allreduce(g, NULL, x[rank], 100000, CDP_DTYPE_F32, CDP_REDUCE_SUM));
        T_TEXT("rank 1 has had enough", cdp_last_error()->text);
        T_WITHIN(200, test_now_ns() - from);
    }
    OK(cdp_barrier(w));
    cdp_group_destroy(g);
}

TEST(a_failure_far_away_is_heard) {
    run(4, 20000, far_away);
}

/* After a failure a new group is made of the ranks that are left, over the same links. */
static void survivors(uint32_t rank, cdp_group *w) {
    const uint32_t left[2] = {0, 2};
    cdp_group *g;
    int32_t x = (int32_t)rank;
    if (rank == 1) {
        test_sleep_ms(20);
        cdp_group_abort(w, "rank 1 gives up");
        return;
    }
    T_EQ(CDP_ERR_ABORTED, cdp_barrier(w));
    if (!OK(cdp_group_new(w, left, 2, &g))) return;
    OK(cdp_allreduce(g, NULL, &x, 1, CDP_DTYPE_I32, CDP_REDUCE_SUM));
    T_EQ(2, x);
    OK(cdp_barrier(g));
    cdp_group_destroy(g);
}

TEST(survivors_go_on) {
    run(3, 20000, survivors);
}

/* A rank that leaves a group is noticed by whoever waits for it there, and by nobody else. */
static void leaves(uint32_t rank, cdp_group *w) {
    const uint32_t all[2] = {0, 1};
    cdp_group *g;
    int32_t x = 1;
    if (!OK(cdp_group_new(w, all, 2, &g))) return;
    OK(cdp_allreduce(g, NULL, &x, 1, CDP_DTYPE_I32, CDP_REDUCE_SUM));
    if (rank == 0) {
        T_EQ(CDP_ERR_PEER_LOST, cdp_barrier(g));
        T_TEXT("rank 1 has left the group", cdp_last_error()->text);
    }
    cdp_group_destroy(g);
    OK(cdp_barrier(w));
}

TEST(leaving_a_group) {
    run(2, 20000, leaves);
}

static uint64_t bytes_now, allocations;
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

static void *counted_alloc(void *user, uint64_t bytes) {
    uint64_t *p = (uint64_t *)cdp__os_alloc(user, bytes + 64);
    pthread_mutex_lock(&counting);
    bytes_now += bytes;
    ++allocations;
    pthread_mutex_unlock(&counting);
    p[0] = bytes;
    return p + 8;
}

static void counted_free(void *user, void *p) {
    if (!p) return;
    pthread_mutex_lock(&counting);
    bytes_now -= ((uint64_t *)p)[-8];
    pthread_mutex_unlock(&counting);
    cdp__os_release(user, (uint64_t *)p - 8);
}

/* 1,000 groups of 8 ranks: at most 1 ms and 16 KiB each. */
TEST(many_groups_are_cheap) {
    enum {
        GROUPS = 1000
    };
    cdp_os os = *cdp_os_default();
    static cdp_group *g[GROUPS];
    const uint32_t ranks[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    cdp_group *w;
    os.alloc = counted_alloc;
    os.release = counted_free;
    bytes_now = 0;
    const cdp_hub_desc h = {.world_size = 8, .os = &os};
    if (!OK(cdp_hub_create(&h, &hub))) return;
    const cdp_group_desc d = {.rank = 3, .world_size = 8, .hub = hub, .os = &os};
    if (!OK(cdp_group_create(&d, &w))) return;
    const uint64_t before = bytes_now, from = test_now_ns();
    for (uint32_t i = 0; i < GROUPS; ++i)
        if (!OK(cdp_group_new(w, ranks, 8, &g[i]))) return;
    const uint64_t each = (bytes_now - before) / GROUPS;
    T_WITHIN(1 * GROUPS, test_now_ns() - from);
    test_check(
        each <= 16384, __FILE__, __LINE__, "a group takes %llu bytes", (unsigned long long)each);
    printf("  %llu bytes and %.1f us for each of %u groups\n", (unsigned long long)each,
        (double)(test_now_ns() - from) / 1e3 / GROUPS, (unsigned)GROUPS);
    for (uint32_t i = 0; i < GROUPS; ++i)
        cdp_group_destroy(g[i]);
    cdp_group_destroy(w);
    cdp_hub_destroy(hub);
    T_EQ(0, bytes_now);
}

static uint32_t open_descriptors(void) {
    DIR *d = opendir("/proc/self/fd");
    uint32_t n = 0;
    while (d && readdir(d))
        ++n;
    if (d) closedir(d);
    return n;
}

/* Groups of ranks that are connected make no connections, nor do messages in them. */
static void shares_links(uint32_t rank, cdp_group *w) {
    static uint32_t before, after;
    cdp_group *g[40];
    float x = 1;
    OK(cdp_allreduce(w, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    /* all pairs are connected now */
    OK(cdp_alltoall(w, (float[3]){1, 2, 3}, (float[3]){0}, 1, CDP_DTYPE_F32));
    OK(cdp_barrier(w));
    if (rank == 0) before = open_descriptors();
    OK(cdp_barrier(w));
    for (uint32_t i = 0; i < 40; ++i) {
        const uint32_t ranks[3] = {i % 3, (i + 1) % 3, (i + 2) % 3};
        if (!OK(cdp_group_new(w, ranks, 3, &g[i]))) return;
        OK(cdp_allreduce(g[i], NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_MAX));
        OK(cdp_sendrecv(g[i], &x, 1, (cdp_rank(g[i]) + 1) % 3, &(float){0}, 1,
            (cdp_rank(g[i]) + 2) % 3, CDP_DTYPE_F32, i));
    }
    OK(cdp_barrier(w));
    if (rank == 0) {
        after = open_descriptors();
        test_check(after == before, __FILE__, __LINE__,
            "%u descriptors, %u before 40 groups were made", after, before);
    }
    OK(cdp_barrier(w));
    for (uint32_t i = 0; i < 40; ++i)
        cdp_group_destroy(g[i]);
}

TEST(groups_make_no_connections) {
    run(3, 20000, shares_links);
}

TEST(mistakes) {
    const cdp_group_desc d = {.world_size = 1};
    const uint32_t none[1] = {1}, twice[2] = {0, 0}, me[1] = {0};
    cdp_group *w, *g;
    cdp_work work;
    float x = 1;
    if (!OK(cdp_group_create(&d, &w))) return;
    T_EQ(CDP_ERR_INVALID, cdp_group_new(w, none, 1, &g));
    T_TEXT("rank 1 is not below the parent's size 1", cdp_last_error()->text);
    T_EQ(CDP_ERR_INVALID, cdp_group_new(w, twice, 2, &g));
    T_TEXT("twice", cdp_last_error()->text);
    T_EQ(CDP_ERR_INVALID, cdp_group_new(w, me, 0, &g));
    T_EQ(CDP_ERR_INVALID, cdp_group_new(NULL, me, 1, &g));
    T_EQ(CDP_ERR_INVALID, cdp_send(w, &x, 1, CDP_DTYPE_F32, 0, 1));
    T_TEXT("this rank", cdp_last_error()->text);
    T_EQ(CDP_ERR_INVALID, cdp_recv(w, &x, 1, CDP_DTYPE_F32, 5, 1));
    T_TEXT("rank 5 is not below", cdp_last_error()->text);
    T_EQ(CDP_ERR_INVALID, cdp_recv_async(NULL, &x, 1, CDP_DTYPE_F32, 5, 1, &work));
    T_EQ(CDP_ERR_INVALID, cdp_group_split(NULL, 1, 1, &g));
    if (OK(cdp_group_new(w, me, 1, &g))) {
        OK(cdp_allreduce(g, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
        cdp_group_destroy(g);
    }
    cdp_group_destroy(w);
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Everybody sends to everybody, both ways at once, and asks for the tags in another order than
   they were sent in. */
static void crossing(uint32_t rank, cdp_group *w) {
    enum {
        TAGS = 5,
        COUNT = 300000
    };
    cdp_work out[RANKS_MAX][TAGS], in[RANKS_MAX][TAGS];
    int32_t *to[RANKS_MAX][TAGS], *from[RANKS_MAX][TAGS];
    for (uint32_t p = 0; p < world_size; ++p)
        for (uint32_t t = 0; t < TAGS && p != rank; ++t) {
            to[p][t] = (int32_t *)malloc(COUNT * sizeof(int32_t));
            from[p][t] = (int32_t *)malloc(COUNT * sizeof(int32_t));
            for (int32_t i = 0; i < COUNT; ++i)
                to[p][t][i] = (int32_t)(rank * 100 + p * 10 + t) + i;
            OK(cdp_send_async(w, to[p][t], t == 3 ? 1 : COUNT, CDP_DTYPE_I32, p, t, &out[p][t]));
        }
    for (uint32_t p = 0; p < world_size; ++p)
        for (uint32_t t = TAGS; t-- > 0 && p != rank;)
            OK(cdp_recv_async(w, from[p][t], t == 3 ? 1 : COUNT, CDP_DTYPE_I32, p, t, &in[p][t]));
    for (uint32_t p = 0; p < world_size; ++p)
        for (uint32_t t = 0; t < TAGS && p != rank; ++t) {
            OK(cdp_work_wait(in[p][t]));
            OK(cdp_work_wait(out[p][t]));
            for (int32_t i = 0; i < (t == 3 ? 1 : COUNT); ++i)
                if (from[p][t][i] != (int32_t)(p * 100 + rank * 10 + t) + i) {
                    test_check(false, __FILE__, __LINE__,
                        "rank %u: element %d from rank %u with tag %u is wrong", rank, i, p, t);
                    break;
                }
            free(to[p][t]);
            free(from[p][t]);
        }
    OK(cdp_barrier(w));
}

TEST(messages_cross) {
    run(3, 30000, crossing);
}

/* Many in a row, in order, and blocking calls that wait for each other the other way round. */
static void in_order(uint32_t rank, cdp_group *w) {
    int32_t x;
    for (int32_t i = 0; i < 500; ++i) {
        x = i;
        if (rank == 0)
            OK(cdp_send(w, &x, 1, CDP_DTYPE_I32, 1, 7));
        else if (OK(cdp_recv(w, &x, 1, CDP_DTYPE_I32, 0, 7)))
            T_EQ(i, x);
    }
    x = 42;
    if (rank == 0) {
        OK(cdp_send(w, &x, 1, CDP_DTYPE_I32, 1, 1));
        OK(cdp_send(w, &x, 1, CDP_DTYPE_I32, 1, 2));
    } else {
        OK(cdp_recv(w, &x, 1, CDP_DTYPE_I32, 0, 2));
        OK(cdp_recv(w, &x, 1, CDP_DTYPE_I32, 0, 1));
    }
    OK(cdp_barrier(w));
}

TEST(messages_keep_their_order) {
    run(2, 20000, in_order);
}

static void mismatch(uint32_t rank, cdp_group *w) {
    int32_t x[4] = {0};
    T_EQ(CDP_OK, cdp_barrier(w));
    /* it is on its way before the receiver looks */
    if (rank == 0)
        T_EQ(CDP_OK, cdp_send(w, x, 3, CDP_DTYPE_I32, 1, 9));
    else {
        T_EQ(CDP_ERR_MISMATCH, cdp_recv(w, x, 4, CDP_DTYPE_I32, 0, 9));
        T_TEXT("message #1 of 4 x i32 with tag 9", cdp_last_error()->text);
        T_TEXT("message #1 of 3 x i32 with tag 9", cdp_last_error()->text);
    }
    T_EQ(CDP_ERR_MISMATCH, cdp_barrier(w)); /* a failure of a message breaks the group */
}

TEST(messages_that_differ) {
    run(2, 20000, mismatch);
}

static void never_sent(uint32_t rank, cdp_group *w) {
    int32_t x;
    if (rank == 1) {
        const uint64_t from = test_now_ns();
        T_EQ(CDP_ERR_TIMEOUT, cdp_recv(w, &x, 1, CDP_DTYPE_I32, 0, 3));
        T_TEXT("message #1 of 1 x i32 with tag 3", cdp_last_error()->text);
        T_TEXT("waiting for rank 0", cdp_last_error()->text);
        T_EQ(0, cdp_last_error()->peer);
        T_WITHIN(1000, test_now_ns() - from);
        come();
    } else {
        await(1); /* it does nothing until then, whatever it is asked */
        T(cdp_group_status(w) != CDP_OK || cdp_poll(w, 1000) != CDP_OK || cdp_barrier(w) != CDP_OK);
    }
}

TEST(messages_that_never_come) {
    run(2, 400, never_sent);
}

static void all_come(uint32_t rank, cdp_group *w) {
    for (uint32_t i = 0; i < 20; ++i) {
        if (i % 4 == rank) test_sleep_ms(2);
        OK(cdp_monitored_barrier(w, 0));
    }
}

TEST(monitored_barrier) {
    run(4, 20000, all_come);
}

/* Others wait for rank 0 longer than it waits for them. They begin when it does, so that the
   deadline of rank 0 is the first that passes. */
static void two_missing(uint32_t rank, cdp_group *w) {
    const uint32_t ms = 250 * TEST_SLACK; /* longer than a machine stands still */
    const uint64_t until = test_until_ns(10000);
    char text[80];
    if (rank == 1 || rank == 3) { /* they come much too late, and hear of it */
        while (
            test_now_ns() < until && cdp_poll(w, 1000) == CDP_OK && cdp_group_status(w) == CDP_OK)
            test_sleep_ms(10);
        T(cdp_monitored_barrier(w, 0) == CDP_ERR_TIMEOUT);
    } else {
        if (rank == 0) come();
        await(1);
        T_EQ(CDP_ERR_TIMEOUT, cdp_monitored_barrier(w, ms));
    }
    snprintf(text, sizeof text, "2 of 5 ranks have not come within %u ms: 1, 3", ms);
    T_TEXT(text, cdp_last_error()->text);
    T_EQ(1, cdp_last_error()->peer);
}

TEST(monitored_barrier_names_all) {
    run(5, 20000, two_missing);
}

/* Rank 0 does not come: the others wait as long as their callers said, and little longer, and name
   it and the call. */
static void first_missing(uint32_t rank, cdp_group *w) {
    const uint32_t ms = 200 * TEST_SLACK;
    char text[80];
    uint64_t began;
    if (rank == 0) {
        await(2); /* it does nothing until then, whatever it is asked */
        return;
    }
    began = test_now_ns();
    T_EQ(CDP_ERR_TIMEOUT, cdp_monitored_barrier(w, ms));
    T_WITHIN(ms + ms / 2 + 350, test_now_ns() - began); /* settling takes a part of the timeout */
    T_EQ(0, cdp_last_error()->peer);
    T_TEXT("monitored barrier #1 (round 1/1)", cdp_last_error()->text);
    snprintf(text, sizeof text, "the deadline of %u ms passed while waiting for rank 0", ms);
    T_TEXT(text, cdp_last_error()->text);
    come();
}

TEST(monitored_barrier_without_rank_0) {
    run(3, 20000, first_missing);
}

/* Rank 1 is missing because rank 2 keeps it waiting: that one is to blame. */
static void one_keeps_another(uint32_t rank, cdp_group *w) {
    const uint32_t ms = 250 * TEST_SLACK;
    int32_t x = 0;
    if (rank == 2) {
        await(2); /* it does nothing until then, whatever it is asked */
        return;
    }
    if (rank == 1) {
        T_EQ(CDP_ERR_TIMEOUT, cdp_recv(w, &x, 1, CDP_DTYPE_I32, 2, 3));
    } else {
        T_EQ(CDP_ERR_TIMEOUT, cdp_monitored_barrier(w, ms));
        T_TEXT("2 of 3 ranks have not come", cdp_last_error()->text);
    }
    T_EQ(2, cdp_last_error()->peer);
    T_TEXT("everybody waits for rank 2; rank 2 does not answer", cdp_last_error()->text);
    come();
}

TEST(monitored_barrier_blames_who_keeps_the_missing) {
    run(3, 20000, one_keeps_another);
}

static void patience(uint32_t rank, cdp_group *w) {
    cdp_work work;
    if (rank == 1) test_sleep_ms(200);
    OK(cdp_barrier_async(w, &work));
    if (rank == 0) {
        const uint64_t from = test_now_ns();
        T_EQ(CDP_PENDING, cdp_work_wait_for(work, 20));
        T_WITHIN(120, test_now_ns() - from);
    }
    OK(cdp_work_wait_for(work, 20000));
    OK(cdp_work_wait(work));
}

TEST(a_wait_ends_and_the_operation_goes_on) {
    run(2, 20000, patience);
}

/* More tags than a rank keeps streams for that it has not asked for: both sides hear what
   happened, and what to do. */
static void crowd(uint32_t rank, cdp_group *w) {
    int32_t x = 5;
    cdp_work work;
    cdp_status st = CDP_OK;
    if (rank == 0) {
        for (uint32_t tag = 0; tag < 300 && st == CDP_OK; ++tag) {
            st = cdp_send_async(w, &x, 1, CDP_DTYPE_I32, 1, tag, &work);
            if (st == CDP_OK) st = cdp_work_wait(work);
        }
        if (st == CDP_OK) st = cdp_barrier(w);
    } else {
        st = cdp_recv(w, &x, 1, CDP_DTYPE_I32, 0, 299);
    }
    T_EQ(CDP_ERR_MISMATCH, st);
    T_TEXT("more than 256 groups and tags", cdp_last_error()->text);
    T_TEXT("that rank 1 has not asked for yet; let it make these groups and ask for these messages "
           "earlier",
        cdp_last_error()->text);
    come();
    await(2);
}

/* The same with groups, some of whose frames wait beside the streams. */
#define GROUPS_AHEAD (CDP__UNEXPECTED + CDP_SLOTS + 4)

static void crowd_of_groups(uint32_t rank, cdp_group *w) {
    static cdp_group *groups[2][GROUPS_AHEAD];
    const uint32_t all[2] = {0, 1};
    int32_t x = 5;
    cdp_status st = CDP_OK;
    uint32_t made = 0;
    if (rank == 0) {
        for (; made < GROUPS_AHEAD; ++made) {
            if (!OK(cdp_group_new(w, all, 2, &groups[0][made]))) return;
            st = cdp_broadcast(groups[0][made], &x, 1, CDP_DTYPE_I32, 0);
            if (st != CDP_OK) break;
        }
        if (st == CDP_OK)
            st = cdp_allreduce(
                groups[0][GROUPS_AHEAD - 1], NULL, &x, 1, CDP_DTYPE_I32, CDP_REDUCE_SUM);
    } else {
        st = cdp_barrier(w);
    }
    T_EQ(CDP_ERR_MISMATCH, st);
    T_TEXT("more than 256 groups and tags at once that rank 1 has not asked for yet",
        cdp_last_error()->text);
    come();
    await(2);
    while (rank == 0 && made)
        cdp_group_destroy(groups[0][--made]);
}

TEST(too_many_tags_ahead) {
    run(2, 20000, crowd);
}
TEST(too_many_groups_ahead) {
    run(2, 20000, crowd_of_groups);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"groups_of_any_ranks_in_any_order", groups_of_any_ranks_in_any_order, 60},
        {"split_by_colour_and_key", split_by_colour_and_key, 60},
        {"groups_in_different_orders", groups_in_different_orders, 120},
        {"unread_data_stops_nobody", unread_data_stops_nobody, 120},
        {"a_group_breaks_alone", a_group_breaks_alone, 60},
        {"a_failure_far_away_is_heard", a_failure_far_away_is_heard, 60},
        {"survivors_go_on", survivors_go_on, 60},
        {"leaving_a_group", leaving_a_group, 60},
        {"many_groups_are_cheap", many_groups_are_cheap, 60},
        {"groups_make_no_connections", groups_make_no_connections, 60},
        {"mistakes", mistakes, 10},
        {"messages_cross", messages_cross, 120},
        {"messages_keep_their_order", messages_keep_their_order, 60},
        {"messages_that_differ", messages_that_differ, 60},
        {"messages_that_never_come", messages_that_never_come, 60},
        {"monitored_barrier", monitored_barrier, 60},
        {"monitored_barrier_names_all", monitored_barrier_names_all, 60},
        {"monitored_barrier_without_rank_0", monitored_barrier_without_rank_0, 60},
        {"monitored_barrier_blames_who_keeps_the_missing",
            monitored_barrier_blames_who_keeps_the_missing, 60},
        {"too_many_tags_ahead", too_many_tags_ahead, 60},
        {"too_many_groups_ahead", too_many_groups_ahead, 60},
        {"a_wait_ends_and_the_operation_goes_on", a_wait_ends_and_the_operation_goes_on, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
