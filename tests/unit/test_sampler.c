/* Samplers: which samples a rank gets, as PyTorch numbers them, also when the number of ranks
   changes. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "ranks.h"

static void sampled(uint64_t size, uint32_t n, bool shuffle, bool drop_last, uint64_t seed,
    uint64_t epoch, const uint64_t *want, uint64_t per_rank, int line) {
    for (uint32_t rank = 0; rank < n; ++rank) {
        const cdp_sampler s = {.size = size,
            .ranks = n,
            .rank = rank,
            .shuffle = shuffle,
            .drop_last = drop_last,
            .seed = seed,
            .epoch = epoch};
        uint64_t got[16];
        test_check(cdp_sampler_count(&s) == per_rank, __FILE__, line, "%llu samples",
            (unsigned long long)cdp_sampler_count(&s));
        test_check(
            cdp_sampler_fill(&s, got) == CDP_OK, __FILE__, line, "%s", cdp_last_error()->text);
        for (uint64_t i = 0; i < per_rank; ++i)
            test_check(got[i] == want[rank * per_rank + i], __FILE__, line,
                "rank %u, sample %llu: %llu", rank, (unsigned long long)i,
                (unsigned long long)got[i]);
    }
}

#define SAMPLED(size, n, shuffle, drop, seed, epoch, per_rank, ...)              \
    do {                                                                         \
        static const uint64_t want_[] = {__VA_ARGS__};                           \
        sampled(size, n, shuffle, drop, seed, epoch, want_, per_rank, __LINE__); \
    } while (0)

TEST(samplers) {
    cdp__mt m;
    cdp__mt_seed(&m, 0);
    T_EQ(2357136044u, cdp__mt_next(&m));
    T_EQ(2546248239u, cdp__mt_next(&m));
    SAMPLED(10, 1, true, false, 0, 0, 10, 4, 1, 7, 5, 3, 9, 0, 8, 6, 2);
    SAMPLED(10, 1, true, false, 0, 1, 10, 5, 6, 1, 2, 0, 8, 9, 3, 7, 4); /* seed + epoch */
    SAMPLED(10, 4, true, false, 0, 0, 3, 4, 3, 6, 1, 9, 2, 7, 0, 4, 5, 8, 1);
    SAMPLED(10, 4, true, true, 0, 0, 2, 4, 3, 1, 9, 7, 0, 5, 8);
    SAMPLED(10, 4, false, false, 0, 0, 3, 0, 4, 8, 1, 5, 9, 2, 6, 0, 3, 7, 1);
    SAMPLED(2, 5, false, false, 0, 0, 1, 0, 1, 0, 1, 0);
    const cdp_sampler none = {.ranks = 2};
    uint64_t at;
    REFUSED(CDP_ERR_INVALID, "needs a size", cdp_sampler_fill(&none, &at));
    T_EQ(0, cdp_sampler_count(NULL));
}

/* The ranks of a job change within an epoch: each sample comes once, and the permutation is that of
   the epoch. `dropped`: samples that the last number of ranks does not divide. */
static void sampled_by_changing_ranks(uint64_t size, bool shuffle, bool drop_last) {
    static const uint32_t ranks[6] = {4, 3, 5, 1, 2, 5}, batch = 2;
    uint64_t all[200], got[200], consumed = 0, left = 1;
    uint32_t times[200] = {0}, step = 0, n = 0;
    const cdp_sampler one = {.size = size,
        .ranks = 1,
        .shuffle = shuffle,
        .drop_last = drop_last,
        .seed = 7,
        .epoch = 3};
    T_EQ(CDP_OK, cdp_sampler_fill(&one, all));
    for (; left; ++step) {
        uint64_t taken = 0;
        n = ranks[step % 6];
        for (uint32_t r = 0; r < n; ++r) {
            const cdp_sampler s = {.size = size,
                .ranks = n,
                .rank = r,
                .shuffle = shuffle,
                .drop_last = drop_last,
                .seed = 7,
                .epoch = 3,
                .consumed = consumed};
            left = cdp_sampler_count(&s);
            T_EQ(CDP_OK, cdp_sampler_fill(&s, got));
            for (uint64_t i = 0; i < left && i < batch; ++i, ++taken) {
                T_EQ(all[(consumed + r + i * n) % size], got[i]);
                ++times[got[i]];
            }
        }
        consumed += taken;
    }
    for (uint64_t i = 0; i < size; ++i) {
        T_EQ(consumed / size + (i < consumed % size), times[all[i]]); /* repeated at the end */
    }
    T(drop_last ? consumed <= size && size - consumed < n : consumed >= size);
}

TEST(samplers_go_on_with_other_ranks) {
    for (uint64_t size = 1; size < 120; size += 7)
        for (uint32_t how = 0; how < 4; ++how)
            sampled_by_changing_ranks(size, how & 1, how & 2);
    const cdp_sampler done = {.size = 10, .ranks = 3, .consumed = 11};
    T_EQ(0, cdp_sampler_count(&done));
}

/* An epoch of `s`, by 1 to 5 ranks in turn, a step each. Counts how often each sample comes; ranks
   have the same steps, and `exact` ones differ by a sample. */
static uint32_t times[3000];
static void deal(cdp_sampler s) {
    static const uint32_t ranks[5] = {3, 2, 5, 1, 4};
    static uint64_t got[3000];
    const uint64_t total = s.weights && s.draws ? s.draws : s.size, batch = s.batch ? s.batch : 1;
    memset(times, 0, sizeof times);
    for (uint32_t step = 0; s.consumed < total; ++step) {
        uint64_t taken = 0, most = 0, least = UINT64_MAX, steps = 0;
        s.ranks = ranks[step % 5];
        for (s.rank = 0; s.rank < s.ranks; ++s.rank) {
            const uint64_t have = cdp_sampler_count(&s), count = have < batch ? have : batch;
            T(cdp_sampler_steps(&s) == steps || s.rank == 0);
            steps = cdp_sampler_steps(&s);
            T_EQ(CDP_OK, cdp_sampler_part(&s, 0, count, got));
            for (uint64_t k = 0; k < count; ++k)
                ++times[got[k]];
            taken += count;
            most = have > most ? have : most;
            least = have < least ? have : least;
        }
        T(steps > 0 && most - least <= 1 && (taken || least != most));
        if (!T(taken > 0)) return;
        s.consumed += taken;
    }
}

TEST(exact_samplers_repeat_and_leave_out_nothing) {
    for (uint32_t how = 0; how < 6; ++how)
        for (uint64_t size = 1; size < 60; ++size) {
            const cdp_sampler s = {.size = size,
                .shuffle = how != 0,
                .seed = 3,
                .epoch = how,
                .exact = true,
                .order = how & 1 ? CDP_SAMPLE_ORDER_HASH : CDP_SAMPLE_ORDER_TORCH,
                .batch = how};
            deal(s);
            for (uint64_t i = 0; i < size; ++i)
                T_EQ(1, times[i]);
        }
}

static void *no_memory(void *user, uint64_t bytes) {
    (void)user;
    (void)bytes;
    return NULL;
}

TEST(a_hashed_order_is_a_permutation_without_a_list) {
    cdp_os bare = *cdp_os_default();
    static uint64_t got[3000], other[3000];
    bare.alloc = no_memory;
    for (uint64_t size = 1; size <= 3000; size += size < 70 ? 1 : 586) {
        cdp_sampler s = {.size = size,
            .ranks = 1,
            .shuffle = true,
            .seed = 5,
            .os = &bare,
            .order = CDP_SAMPLE_ORDER_HASH};
        uint64_t same = 0;
        memset(times, 0, sizeof times);
        T_EQ(CDP_OK, cdp_sampler_fill(&s, got));
        ++s.epoch;
        T_EQ(CDP_OK, cdp_sampler_fill(&s, other));
        for (uint64_t i = 0; i < size; ++i) {
            T_EQ(1, ++times[got[i]]);
            same += got[i] == other[i];
        }
        if (size > 60) T(same < 12);
    }
    cdp_sampler huge = {.size = 1ull << 61,
        .ranks = 7,
        .rank = 3,
        .shuffle = true,
        .seed = 1,
        .os = &bare,
        .order = CDP_SAMPLE_ORDER_HASH};
    T_EQ(CDP_OK, cdp_sampler_part(&huge, 1ull << 58, 3000, got));
    for (uint32_t i = 0; i < 3000; ++i)
        for (uint32_t k = 0; k < i; ++k)
            T(got[i] != got[k] && got[i] < huge.size);
    huge.order = CDP_SAMPLE_ORDER_TORCH;
    REFUSED(CDP_ERR_INVALID, "2^32 - 1", cdp_sampler_part(&huge, 0, 1, got));
}

TEST(weighted_samplers_draw_by_weight) {
    static const double weights[6] = {0, 1, 2, 0, 3, 0};
    const cdp_sampler s = {.size = 6, .draws = 60000, .exact = true, .weights = weights, .seed = 9};
    deal(s);
    T_EQ(0, times[0] + times[3] + times[5]);
    for (uint32_t i = 1; i < 5; ++i) /* five standard deviations of 60,000 draws are 613 at most */
        T(times[i] + 650 > weights[i] * 10000 && times[i] < weights[i] * 10000 + 650);
}

TEST(weighted_samplers_draw_a_sample_once) {
    static const double weights[5] = {4, 0, 1, 2, 3};
    uint32_t first[5] = {0};
    uint64_t got[4];
    cdp_sampler s = {.size = 5, .ranks = 1, .draws = 4, .weights = weights, .once = true};
    for (s.epoch = 0; s.epoch < 20000; ++s.epoch) {
        uint32_t seen = 0;
        T_EQ(CDP_OK, cdp_sampler_fill(&s, got));
        for (uint32_t i = 0; i < 4; ++i)
            seen |= 1u << got[i];
        if (!T_EQ(29, seen)) break;
        ++first[got[0]];
    }
    for (uint32_t i = 0; i < 5; ++i) /* first in the race: by weight; five deviations are 347 */
        T(first[i] + 350 > weights[i] * 2000 && first[i] < weights[i] * 2000 + 350);
    s.draws = 5;
    REFUSED(CDP_ERR_INVALID, "5 draws without repetition from 4", cdp_sampler_fill(&s, got));
}

/* Steps of all ranks together are rows: neighbours in the window, sorted by length. */
TEST(batches_have_samples_alike_in_length) {
    enum {
        SIZE = 2000,
        RANKS = 4,
        BATCH = 5,
        ROW = RANKS * BATCH
    };
    static uint32_t lengths[SIZE];
    static uint64_t got[RANKS][SIZE];
    uint64_t spread = 0, all = 0;
    for (uint32_t i = 0; i < SIZE; ++i)
        lengths[i] = i * 7919u % 1000;
    cdp_sampler s = {.size = SIZE,
        .ranks = RANKS,
        .shuffle = true,
        .lengths = lengths,
        .batch = BATCH,
        .window = 25};
    for (s.rank = 0; s.rank < RANKS; ++s.rank)
        T_EQ(CDP_OK, cdp_sampler_fill(&s, got[s.rank]));
    for (uint32_t step = 0; step < SIZE / ROW; ++step) {
        uint32_t least = UINT32_MAX, most = 0;
        for (uint32_t r = 0; r < RANKS; ++r)
            for (uint32_t k = 0; k < BATCH; ++k) {
                const uint32_t length = lengths[got[r][step * BATCH + k]];
                least = length < least ? length : least;
                most = length > most ? length : most;
            }
        spread += most - least;
        all += most >= 500;
    }
    T(spread / (SIZE / ROW) <= 60); /* a window of 25 rows: a row spans 1/25 of 1,000 */
    T(all > 30 && all < 70);        /* and rows are shuffled */
    for (uint32_t row = 3; row <= 4; ++row)
        for (uint64_t size = 1; size < SIZE; size += 333) {
            const cdp_sampler part = {.size = size,
                .shuffle = true,
                .lengths = lengths,
                .exact = true,
                .batch = 3,
                .window = 4,
                .row = row};
            deal(part);
            for (uint64_t i = 0; i < size; ++i)
                T_EQ(1, times[i]);
        }
}

TEST(samplers_refuse_what_they_cannot_do) {
    static const double negative[2] = {1, -1}, nothing[2] = {0, 0};
    double nan[2] = {1, 0};
    uint64_t got[4];
    cdp_sampler s = {.size = 2, .ranks = 1, .exact = true, .drop_last = true};
    nan[1] = nan[1] / nan[1];
    REFUSED(CDP_ERR_INVALID, "not both", cdp_sampler_fill(&s, got));
    s.drop_last = false;
    REFUSED(CDP_ERR_INVALID, "samples 1 to 3", cdp_sampler_part(&s, 1, 2, got));
    s.order = (cdp_sample_order)2;
    REFUSED(CDP_ERR_INVALID, "no order", cdp_sampler_fill(&s, got));
    s.order = CDP_SAMPLE_ORDER_TORCH;
    s.weights = negative;
    REFUSED(CDP_ERR_INVALID, "weights[1]", cdp_sampler_fill(&s, got));
    s.weights = nan;
    REFUSED(CDP_ERR_INVALID, "weights[1]", cdp_sampler_fill(&s, got));
    s.weights = nothing;
    REFUSED(CDP_ERR_INVALID, "is 0 or no finite number", cdp_sampler_fill(&s, got));
    s.draws = 1ull << 32;
    REFUSED(CDP_ERR_INVALID, "draws at most 2^32 - 1 samples, not 4294967296",
        cdp_sampler_part(&s, 0, 1, got));
    s.draws = 0;
    s.rank = 1;
    REFUSED(CDP_ERR_INVALID, "below ranks", cdp_sampler_fill(&s, got));
    REFUSED(CDP_ERR_INVALID, "sampler", cdp_sampler_fill(NULL, got));
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"samplers", samplers, 20},
        {"samplers_go_on_with_other_ranks", samplers_go_on_with_other_ranks, 20},
        {"exact_samplers_repeat_and_leave_out_nothing", exact_samplers_repeat_and_leave_out_nothing,
            20},
        {"a_hashed_order_is_a_permutation_without_a_list",
            a_hashed_order_is_a_permutation_without_a_list, 20},
        {"weighted_samplers_draw_by_weight", weighted_samplers_draw_by_weight, 30},
        {"weighted_samplers_draw_a_sample_once", weighted_samplers_draw_a_sample_once, 20},
        {"batches_have_samples_alike_in_length", batches_have_samples_alike_in_length, 20},
        {"samplers_refuse_what_they_cannot_do", samplers_refuse_what_they_cannot_do, 20}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
