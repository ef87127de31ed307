/* Samplers: which samples a rank gets, as PyTorch numbers them, also when the number of ranks
   changes. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "ranks.h"

static void sampled(uint64_t size, uint32_t n, bool shuffle, bool drop_last, uint64_t seed,
    uint64_t epoch, const uint64_t *want, uint64_t per_rank, int line) {
    for (uint32_t rank = 0; rank < n; ++rank) {
        const cdp_sampler s = {size, n, rank, shuffle, drop_last, seed, epoch, NULL, 0};
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
    const cdp_sampler none = {0, 2, 0, false, false, 0, 0, NULL, 0};
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
    const cdp_sampler one = {size, 1, 0, shuffle, drop_last, 7, 3, NULL, 0};
    T_EQ(CDP_OK, cdp_sampler_fill(&one, all));
    for (; left; ++step) {
        uint64_t taken = 0;
        n = ranks[step % 6];
        for (uint32_t r = 0; r < n; ++r) {
            const cdp_sampler s = {size, n, r, shuffle, drop_last, 7, 3, NULL, consumed};
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
    const cdp_sampler done = {10, 3, 0, false, false, 0, 0, NULL, 11};
    T_EQ(0, cdp_sampler_count(&done));
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"samplers", samplers, 20},
        {"samplers_go_on_with_other_ranks", samplers_go_on_with_other_ranks, 20}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
