/* Collectives in place, said in each of the three ways: no input, input equal to the result, and
   as with NCCL the smaller buffer inside the larger one. Every rank must answer alike. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "ranks.h"

enum {
    COUNT = 37
};

typedef struct setup {
    cdp_coll_kind kind;
    uint32_t root;
    bool uneven;
} setup;

/* Elements of part `p`, and where it begins. */
static uint64_t part_count(const setup *s, uint32_t p) {
    return s->uneven ? p * 5 % 13 : COUNT;
}
static uint64_t part_begin(const setup *s, uint32_t p) {
    uint64_t at = 0;
    for (uint32_t k = 0; k < p; ++k)
        at += part_count(s, k);
    return at;
}
static int32_t brought(uint32_t rank, uint64_t at) {
    return (int32_t)(rank * 100000 + at);
}

/* What element `at` of part `p` holds afterwards. */
static int32_t expected(const setup *s, uint32_t n, uint32_t p, uint64_t at) {
    int32_t sum = 0;
    if (s->kind == CDP_COLL_ALLGATHER || s->kind == CDP_COLL_GATHER) return brought(p, at);
    if (s->kind == CDP_COLL_SCATTER) return brought(s->root, at);
    for (uint32_t r = 0; r < n; ++r)
        sum += brought(r, at);
    return sum;
}

static void rank_works_in_place(cdp_group *g, void *arg) {
    const setup *s = (const setup *)arg;
    const uint32_t n = cdp_size(g), me = cdp_rank(g);
    const bool root = me == s->root, to_all = s->kind == CDP_COLL_ALLGATHER,
               from_all = s->kind == CDP_COLL_REDUCE_SCATTER;
    int32_t memory[RANKS_MAX * COUNT + 1];
    uint64_t counts[RANKS_MAX];
    const uint64_t all = part_begin(s, n), mine = part_begin(s, me);
    cdp_request rq;
    cdp_work work;
    for (uint32_t r = 0; r < n; ++r)
        counts[r] = part_count(s, r);
    for (uint64_t k = 0; k < all; ++k)
        memory[k] = brought(me, k);
    memset(&rq, 0, sizeof rq);
    rq.kind = s->kind;
    rq.dtype = CDP_DTYPE_I32;
    rq.count = COUNT;
    rq.root = s->root;
    rq.in = memory + mine;
    rq.out = memory;
    if (from_all || (s->kind == CDP_COLL_SCATTER && root)) {
        rq.in = memory;
        rq.out = memory + mine;
    }
    if (s->kind == CDP_COLL_GATHER && !root) rq.out = NULL;
    if (s->kind == CDP_COLL_SCATTER && !root) {
        rq.in = NULL;
        rq.out = memory + mine;
    }
    if (s->uneven && (to_all || s->kind == CDP_COLL_GATHER)) rq.out_counts = counts;
    if (s->uneven && (from_all || s->kind == CDP_COLL_SCATTER)) rq.in_counts = counts;
    if (!test_check(cdp_start(g, &rq, &work) == CDP_OK, __FILE__, __LINE__, "rank %u/%u: %s: %s",
            me, n, cdp_coll_name(s->kind), cdp_last_error()->text)) {
        cdp_group_abort(g, "the test has failed");
        return;
    }
    T_EQ(CDP_OK, cdp_work_wait(work));
    for (uint32_t p = 0; p < n; ++p)
        for (uint64_t k = part_begin(s, p); k < part_begin(s, p + 1); ++k) {
            if (!(to_all || (s->kind == CDP_COLL_GATHER && root) || p == me)) continue;
            if (s->kind == CDP_COLL_GATHER && !root) continue;
            if (!test_check(memory[k] == expected(s, n, p, k), __FILE__, __LINE__,
                    "rank %u/%u, %s: element %llu is %d, not %d", me, n, cdp_coll_name(s->kind),
                    (unsigned long long)k, memory[k], expected(s, n, p, k)))
                return;
        }
}

static void works_in_place(cdp_coll_kind kind, bool rooted) {
    for (uint32_t n = 1; n <= 5; ++n)
        for (uint32_t root = 0; root < (rooted ? n : 1); ++root)
            for (uint32_t uneven = 0; uneven < 2; ++uneven) {
                setup s;
                s.kind = kind;
                s.root = root;
                s.uneven = uneven != 0;
                run_ranks(n, NULL, 0, rank_works_in_place, &s);
                if (test__now.failed_checks) return;
            }
}

TEST(own_part_of_an_allgather) {
    works_in_place(CDP_COLL_ALLGATHER, false);
}
TEST(own_part_of_a_reduce_scatter) {
    works_in_place(CDP_COLL_REDUCE_SCATTER, false);
}
TEST(own_part_of_a_gather) {
    works_in_place(CDP_COLL_GATHER, true);
}
TEST(own_part_of_a_scatter) {
    works_in_place(CDP_COLL_SCATTER, true);
}

/* Anything else that overlaps is a mistake of the caller, on every rank. */
static void rank_overlaps(cdp_group *g, void *arg) {
    int32_t memory[RANKS_MAX * COUNT + 1] = {0};
    (void)arg;
    REFUSED(CDP_ERR_INVALID, "input and result overlap",
        cdp_allgather(g, memory + cdp_rank(g) * COUNT + 1, memory, COUNT, CDP_DTYPE_I32));
    REFUSED(CDP_ERR_INVALID, "input and result overlap",
        cdp_reduce_scatter(
            g, memory, memory + cdp_rank(g) * COUNT + 1, COUNT, CDP_DTYPE_I32, CDP_REDUCE_SUM));
    T_EQ(CDP_OK, cdp_barrier(g));
}
TEST(other_overlaps_are_refused_on_every_rank) {
    run_ranks(3, NULL, 0, rank_overlaps, NULL);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"own_part_of_an_allgather", own_part_of_an_allgather, 60},
        {"own_part_of_a_reduce_scatter", own_part_of_a_reduce_scatter, 60},
        {"own_part_of_a_gather", own_part_of_a_gather, 60},
        {"own_part_of_a_scatter", own_part_of_a_scatter, 60},
        {"other_overlaps_are_refused_on_every_rank", other_overlaps_are_refused_on_every_rank, 20},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
