/* Collectives over separate arrays give what those over packed parts do; what is wrong with a list
   is said, and costs the group nothing. */
#define CDP_IMPLEMENTATION
#include "cdp.h"

#include "ranks.h"

#define MOST 7u /* elements of a part */

/* Every rank knows what rank `from` sends to rank `to`. */
static int32_t element(uint32_t from, uint32_t to, uint32_t i) {
    return (int32_t)(from * 1000 + to * 100 + i);
}
static uint64_t length(bool uneven, uint32_t r) {
    return uneven ? (r * 3 + 2) % MOST : MOST - 1; /* rank 4 has none */
}

/* The arrays of one rank, each with room on both sides that nobody may touch. */
typedef struct arrays {
    int32_t room[RANKS_MAX][MOST + 2];
    void *at[RANKS_MAX];
} arrays;

static void arrays_open(arrays *a, uint32_t n) {
    memset(a, 0xee, sizeof *a);
    for (uint32_t r = 0; r < n; ++r)
        a->at[r] = &a->room[(r * 3 + 1) % n % RANKS_MAX][1]; /* in no order */
    for (uint32_t r = 0; r < n; ++r) /* but where 3 divides n, that order names some twice */
        if (n % 3 == 0) a->at[r] = &a->room[n - 1 - r][1];
}
static void array_is(const arrays *a, uint32_t r, uint64_t count, uint32_t from, uint32_t to) {
    const int32_t *x = (const int32_t *)a->at[r];
    for (uint32_t i = 0; i < count; ++i)
        if (!T_EQ(element(from, to, i), x[i])) return;
    T_EQ((int32_t)0xeeeeeeee, x[-1]);
    T_EQ((int32_t)0xeeeeeeee, x[count]);
}

typedef struct plan {
    bool uneven, in_place;
} plan;

static void allgather_and_gather(cdp_group *g, void *arg) {
    const plan *p = (const plan *)arg;
    const uint32_t n = cdp_size(g), me = cdp_rank(g);
    for (uint32_t gather = 0; gather < 2; ++gather) {
        const uint32_t root = gather ? n - 1 : 0;
        const bool takes = !gather || me == root;
        uint64_t counts[RANKS_MAX];
        int32_t mine[MOST];
        arrays outs;
        cdp_request rq = {.kind = gather ? CDP_COLL_GATHER : CDP_COLL_ALLGATHER,
            .dtype = CDP_DTYPE_I32,
            .root = root,
            .count = MOST - 1};
        arrays_open(&outs, n);
        for (uint32_t r = 0; r < n; ++r)
            counts[r] = length(p->uneven, r);
        for (uint32_t i = 0; i < MOST; ++i)
            mine[i] = element(me, 0, i);
        if (p->uneven) rq.out_counts = counts;
        rq.in = mine;
        if (p->in_place && takes) {
            rq.in = NULL;
            memcpy(outs.at[me], mine, (size_t)counts[me] * sizeof *mine);
        }
        T_EQ(CDP_OK, cdp_collective_lists(g, &rq, NULL, takes ? outs.at : NULL));
        for (uint32_t r = 0; r < n && takes; ++r)
            array_is(&outs, r, counts[r], r, 0);
    }
}

static void scatter_and_reduce_scatter(cdp_group *g, void *arg) {
    const plan *p = (const plan *)arg;
    const uint32_t n = cdp_size(g), me = cdp_rank(g);
    for (uint32_t reduce = 0; reduce < 2; ++reduce) {
        const uint32_t root = n / 2;
        uint64_t counts[RANKS_MAX];
        int32_t mine[MOST + 1];
        arrays ins;
        cdp_request rq = {.kind = reduce ? CDP_COLL_REDUCE_SCATTER : CDP_COLL_SCATTER,
            .dtype = CDP_DTYPE_I32,
            .op = reduce ? CDP_REDUCE_SUM : CDP_REDUCE_DEFAULT,
            .root = reduce ? 0 : root,
            .out = mine,
            .count = MOST - 1};
        arrays_open(&ins, n);
        memset(mine, 0xee, sizeof mine);
        for (uint32_t r = 0; r < n; ++r) {
            counts[r] = length(p->uneven, r);
            for (uint32_t i = 0; i < counts[r]; ++i)
                ((int32_t *)ins.at[r])[i] = element(me, r, i);
        }
        if (p->uneven) rq.in_counts = counts;
        T_EQ(CDP_OK,
            cdp_collective_lists(
                g, &rq, reduce || me == root ? (const void **)ins.at : NULL, NULL));
        for (uint32_t i = 0; i < counts[me]; ++i) {
            int32_t want = element(root, me, i);
            for (uint32_t r = 0; reduce && r < n; ++r)
                want = (r ? want : 0) + element(r, me, i);
            T_EQ(want, mine[i]);
        }
        T_EQ((int32_t)0xeeeeeeee, mine[counts[me]]);
    }
}

static void alltoall(cdp_group *g, void *arg) {
    const plan *p = (const plan *)arg;
    const uint32_t n = cdp_size(g), me = cdp_rank(g);
    uint64_t sent[RANKS_MAX], taken[RANKS_MAX];
    arrays ins, outs;
    cdp_request rq = {.kind = CDP_COLL_ALLTOALL, .dtype = CDP_DTYPE_I32, .count = MOST - 1};
    arrays_open(&ins, n);
    arrays_open(&outs, n);
    for (uint32_t r = 0; r < n; ++r) {
        sent[r] = length(p->uneven, p->in_place ? me + r : me * 2 + r);
        taken[r] = length(p->uneven, p->in_place ? me + r : r * 2 + me);
        for (uint32_t i = 0; i < sent[r]; ++i)
            ((int32_t *)(p->in_place ? outs : ins).at[r])[i] = element(me, r, i);
    }
    if (p->uneven) {
        rq.in_counts = sent;
        rq.out_counts = taken;
    }
    T_EQ(CDP_OK,
        cdp_collective_lists(g, &rq, (const void **)(p->in_place ? outs : ins).at, outs.at));
    for (uint32_t r = 0; r < n; ++r)
        array_is(&outs, r, taken[r], r, me);
}

static void for_all_plans(void (*func)(cdp_group *g, void *arg)) {
    static const uint32_t sizes[] = {1, 2, 3, 5, 8};
    for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; ++i)
        for (uint32_t k = 0; k < 4; ++k) {
            plan p = {.uneven = k & 1, .in_place = k / 2};
            const cdp_group_desc like = {.os = counted_os()};
            run_ranks(sizes[i], &like, 0, func, &p);
            T_EQ(0, counted.held);
        }
}

TEST(parts_are_gathered_into_separate_arrays) {
    for_all_plans(allgather_and_gather);
}
TEST(separate_arrays_are_scattered_and_reduced) {
    for_all_plans(scatter_and_reduce_scatter);
}
TEST(separate_arrays_go_to_all) {
    for_all_plans(alltoall);
}

/* A rank with lists and a rank with packed parts are in one operation. */
static void half_packed(cdp_group *g, void *arg) {
    const uint32_t n = cdp_size(g), me = cdp_rank(g);
    uint8_t bytes[4 * 3 + 1], all[4 * 12];
    void *outs[4];
    cdp_work w;
    cdp_request rq = {
        .kind = CDP_COLL_ALLGATHER, .in = bytes + 1, .count = 12, .dtype = CDP_DTYPE_U8};
    (void)arg;
    memset(bytes, 'a' + (int)me, sizeof bytes);
    for (uint32_t r = 0; r < n; ++r)
        outs[r] = all + (n - 1 - r) * 12;
    if (me % 2) {
        rq.out = all;
        T_EQ(CDP_OK, cdp_start(g, &rq, &w));
        T_EQ(CDP_OK, cdp_work_wait(w));
    } else {
        T_EQ(CDP_OK, cdp_collective_lists(g, &rq, NULL, outs));
    }
    for (uint32_t r = 0; r < n; ++r)
        T_EQ('a' + (int)r, all[(me % 2 ? r : n - 1 - r) * 12 + 5]);
}
TEST(lists_and_packed_parts_meet_in_one_operation) {
    run_ranks(4, NULL, 0, half_packed, NULL);
}

/* The arrays of a list may lie anywhere: parts of f64 at odd addresses, also the one in place. */
static void odd_places(cdp_group *g, void *arg) {
    const uint32_t n = cdp_size(g), me = cdp_rank(g);
    uint8_t room[3][8 * 2 + 1];
    void *outs[3];
    const double x[2] = {1.5 + me, -2.5 * me};
    cdp_request rq = {.kind = CDP_COLL_ALLGATHER, .count = 2, .dtype = CDP_DTYPE_F64};
    (void)arg;
    for (uint32_t r = 0; r < n; ++r)
        outs[r] = room[r] + ((uintptr_t)room[r] % 2 == 0);
    memcpy(outs[me], x, sizeof x);
    T_EQ(CDP_OK, cdp_collective_lists(g, &rq, NULL, outs));
    for (uint32_t r = 0; r < n; ++r) {
        double got[2];
        memcpy(got, outs[r], sizeof got);
        T(got[0] == 1.5 + r && got[1] == -2.5 * r);
    }
}
TEST(arrays_of_a_list_have_any_alignment) {
    run_ranks(3, NULL, 0, odd_places, NULL);
}

static int owns_one(void *self, const void *at) {
    return at == self;
}

static void wrong_lists(cdp_group *g, void *arg) {
    static float device[4];
    float x[3][4] = {{0}}, mine[4] = {0};
    void *at[3] = {x[0], x[1], x[2]};
    const void **ins = (const void **)at;
    uint64_t counts[3] = {4, UINT64_MAX / 8, 4};
    cdp_request rq = {.kind = CDP_COLL_ALLREDUCE, .in = mine, .out = mine, .count = 4};
    (void)arg;
    REFUSED(CDP_ERR_INVALID, "group is NULL", cdp_collective_lists(NULL, &rq, ins, at));
    REFUSED(CDP_ERR_INVALID, "cdp_collective_lists: request is NULL",
        cdp_collective_lists(g, NULL, ins, at));
    REFUSED(CDP_ERR_INVALID, "allreduce has no parts for single ranks; use cdp_start()",
        cdp_collective_lists(g, &rq, ins, at));
    rq.kind = CDP_COLL_ALLTOALL;
    REFUSED(CDP_ERR_INVALID, "alltoall: ins is NULL", cdp_collective_lists(g, &rq, NULL, at));
    REFUSED(CDP_ERR_INVALID, "alltoall: outs is NULL", cdp_collective_lists(g, &rq, ins, NULL));
    at[2] = NULL;
    REFUSED(CDP_ERR_INVALID, "alltoall: ins[2] is NULL, but that part has 4 elements",
        cdp_collective_lists(g, &rq, ins, at));
    rq.kind = CDP_COLL_ALLGATHER;
    REFUSED(CDP_ERR_INVALID, "allgather: outs[2] is NULL, but that part has 4 elements",
        cdp_collective_lists(g, &rq, ins, at));
    at[2] = x[2];
    rq.out_counts = counts;
    REFUSED(CDP_ERR_INVALID, "allgather: the parts of outs are more than 2^63 bytes",
        cdp_collective_lists(g, &rq, ins, at));
    rq.out_counts = NULL;
    rq.dtype = (cdp_dtype)999;
    REFUSED(CDP_ERR_INVALID, "dtype 999", cdp_collective_lists(g, &rq, ins, at));
    rq.dtype = CDP_DTYPE_F32;
    rq.kind = CDP_COLL_GATHER;
    rq.root = 3;
    REFUSED(CDP_ERR_INVALID, "root 3 is not below", cdp_collective_lists(g, &rq, ins, at));
    rq.root = 0;
    rq.kind = CDP_COLL_REDUCE_SCATTER;
    rq.out = NULL;
    REFUSED(CDP_ERR_INVALID, "out is NULL", cdp_collective_lists(g, &rq, ins, at));
    rq.out = mine;
    const cdp_backend b = {.self = device, .name = "stand-in", .owns = owns_one};
    T_EQ(CDP_OK, cdp_group_set_backend(g, &b));
    at[1] = device;
    REFUSED(CDP_ERR_UNSUPPORTED, "ins points to device memory, of which there are no lists",
        cdp_collective_lists(g, &rq, ins, at));
    at[1] = x[1];
    rq.out = device;
    REFUSED(
        CDP_ERR_UNSUPPORTED, "out points to device memory", cdp_collective_lists(g, &rq, ins, at));
    cdp_group_clear_backend(g);
    rq.out = mine;
    T_EQ(CDP_OK, cdp_collective_lists(g, &rq, ins, at)); /* nothing of that was started */
}
TEST(a_wrong_list_is_refused_and_the_group_goes_on) {
    run_counted(3, wrong_lists, NULL);
}

/* A rank without memory has started nothing: it may call again, and all get their results. */
static void without_memory(cdp_group *g, void *arg) {
    float x[2][4], mine[4] = {1, 2, 3, 4};
    void *outs[2] = {x[0], x[1]};
    const cdp_request rq = {.kind = CDP_COLL_ALLGATHER, .in = mine, .count = 4};
    (void)arg;
    if (cdp_rank(g) == 1) {
        own_fail_at = 1;
        T_EQ(CDP_ERR_NOMEM, cdp_collective_lists(g, &rq, NULL, outs));
        own_fail_at = 0;
    }
    T_EQ(CDP_OK, cdp_collective_lists(g, &rq, NULL, outs));
    T(x[0][3] == 4 && x[1][3] == 4);
}
TEST(a_list_without_memory_may_be_sent_again) {
    run_counted(2, without_memory, NULL);
}

static void without_the_other(cdp_group *g, void *arg) {
    float x[2][4], mine[4] = {0};
    void *outs[2] = {x[0], x[1]};
    const cdp_request rq = {.kind = CDP_COLL_ALLGATHER, .in = mine, .count = 4, .timeout_ms = 100};
    (void)arg;
    memset(x, 0xee, sizeof x);
    if (cdp_rank(g) == 1) return;
    T_EQ(CDP_ERR_TIMEOUT, cdp_collective_lists(g, &rq, NULL, outs));
    T_EQ(1, cdp_last_error()->peer);
    T(((uint8_t *)x)[0] == 0xee && ((uint8_t *)x)[31] == 0xee);
}
TEST(a_list_that_fails_changes_nothing_and_frees_its_memory) {
    run_counted(2, without_the_other, NULL);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"parts_are_gathered_into_separate_arrays", parts_are_gathered_into_separate_arrays, 60},
        {"separate_arrays_are_scattered_and_reduced", separate_arrays_are_scattered_and_reduced,
            60},
        {"separate_arrays_go_to_all", separate_arrays_go_to_all, 60},
        {"lists_and_packed_parts_meet_in_one_operation",
            lists_and_packed_parts_meet_in_one_operation, 30},
        {"arrays_of_a_list_have_any_alignment", arrays_of_a_list_have_any_alignment, 30},
        {"a_wrong_list_is_refused_and_the_group_goes_on",
            a_wrong_list_is_refused_and_the_group_goes_on, 30},
        {"a_list_without_memory_may_be_sent_again", a_list_without_memory_may_be_sent_again, 30},
        {"a_list_that_fails_changes_nothing_and_frees_its_memory",
            a_list_that_fails_changes_nothing_and_frees_its_memory, 30},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
