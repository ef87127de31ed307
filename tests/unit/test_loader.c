/* Loaders: batches come in the order of the sampler, whoever reads them and when; files of
   tokens. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "ranks.h"
#include <unistd.h>
#ifndef _WIN32
#include <sys/wait.h>
#endif

/* A data set whose samples are three numbers made of their index. */
typedef struct data_set {
    uint64_t fails_at; /* this sample cannot be read; UINT64_MAX: none */
    uint32_t gate;     /* 1: reads wait until it is 0 */
    uint32_t reads;
} data_set;

static cdp_status read_sample(void *user, uint64_t index, void *out) {
    data_set *const set = user;
    uint64_t *const x = out;
    while (__atomic_load_n(&set->gate, __ATOMIC_ACQUIRE))
        usleep(200);
    __atomic_add_fetch(&set->reads, 1, __ATOMIC_RELAXED);
    if (index == set->fails_at) return CDP_ERR_IO;
    x[0] = index;
    x[1] = index * index;
    x[2] = ~index;
    return CDP_OK;
}

static cdp_loader_desc describe(data_set *set, uint64_t size, bool no_thread) {
    cdp_loader_desc d = {.read = read_sample, .user = set, .sample_bytes = 24};
    set->fails_at = UINT64_MAX;
    set->gate = set->reads = 0;
    d.no_thread = no_thread;
    d.sampler.size = size;
    d.sampler.ranks = 1;
    return d;
}

/* Compares the next batches with the sampler's samples. `steps`: at most so many. */
static uint64_t compare(cdp_loader *l, uint64_t steps) {
    static uint64_t want[2000];
    const cdp_sampler s = cdp_loader_state(l);
    const uint64_t all = cdp_sampler_steps(&s), have = cdp_sampler_count(&s);
    uint64_t at = 0, step;
    T_EQ(CDP_OK, cdp_sampler_fill(&s, want));
    for (step = 0; step < all && step < steps; ++step) {
        const void *batch;
        uint32_t count;
        T_EQ(CDP_OK, cdp_loader_next(l, &batch, &count));
        T(batch != NULL && (uintptr_t)batch % 64 == 0);
        T_EQ(have - at < s.batch ? have - at : s.batch, count);
        for (uint32_t i = 0; i < count; ++i, ++at) {
            const uint64_t *const x = (const uint64_t *)batch + 3 * i;
            T(x[0] == want[at] && x[1] == want[at] * want[at] && x[2] == ~want[at]);
        }
    }
    return at;
}

static void expect_end(cdp_loader *l) {
    const void *batch = l;
    uint32_t count = 1;
    T_EQ(CDP_OK, cdp_loader_next(l, &batch, &count));
    T(!batch && !count);
}

TEST(batches_come_in_the_order_of_the_sampler) {
    for (uint32_t how = 0; how < 48; ++how) {
        data_set set;
        cdp_loader *l;
        cdp_loader_desc d = describe(&set, 1 + how * 3, how & 1);
        d.ahead = how % 3;
        d.sampler.batch = how % 5;
        d.sampler.ranks = 1 + how % 4;
        d.sampler.rank = d.sampler.ranks - 1;
        d.sampler.shuffle = how & 4;
        d.sampler.exact = how & 8;
        d.sampler.drop_last = !d.sampler.exact && how & 16;
        T_EQ(CDP_OK, cdp_loader_create(&d, &l));
        for (uint32_t epoch = 0; epoch < 3; ++epoch) {
            T_EQ(epoch, cdp_loader_state(l).epoch);
            compare(l, UINT64_MAX);
            expect_end(l);
            expect_end(l);
            cdp_sampler end = cdp_loader_state(l);
            T_EQ(0, cdp_sampler_count(&end));
            T_EQ(CDP_OK, cdp_loader_restart(l, NULL));
        }
        cdp_loader_destroy(l);
    }
}

TEST(a_loader_goes_on_with_other_ranks) {
    static const uint32_t ranks[4] = {3, 1, 4, 2};
    for (uint32_t no_thread = 0; no_thread < 2; ++no_thread) {
        data_set set;
        cdp_loader *l[4];
        cdp_sampler state = {.size = 200, .shuffle = true, .exact = true, .batch = 4, .ranks = 3};
        uint32_t had = 0, turn = 0;
        cdp_loader_desc d = describe(&set, 200, no_thread);
        d.sampler.batch = 4;
        for (uint32_t r = 0; r < 4; ++r)
            T_EQ(CDP_OK, cdp_loader_create(&d, &l[r]));
        for (; cdp_sampler_steps(&state); ++turn) {
            state.ranks = ranks[turn % 4];
            for (uint32_t r = 0; r < state.ranks; ++r) {
                cdp_sampler own = state;
                own.rank = r;
                T_EQ(CDP_OK, cdp_loader_restart(l[r], &own));
                had += (uint32_t)compare(l[r], 3);
            }
            state = cdp_loader_state(l[0]);
            state.rank = 0;
        }
        T_EQ(200, had); /* exactly once: compare() has seen which */
        for (uint32_t r = 0; r < 4; ++r)
            cdp_loader_destroy(l[r]);
    }
}

TEST(a_failed_read_is_reported_for_its_batch) {
    for (uint32_t no_thread = 0; no_thread < 2; ++no_thread) {
        data_set set;
        const void *batch;
        uint32_t count;
        cdp_loader *l;
        cdp_loader_desc d = describe(&set, 100, no_thread);
        d.sampler.batch = 4;
        d.ahead = 3;
        set.fails_at = 9;
        T_EQ(CDP_OK, cdp_loader_create(&d, &l));
        T_EQ(8, compare(l, 2));
        for (int again = 0; again < 2; ++again)
            REFUSED(CDP_ERR_IO, "reading sample 9", cdp_loader_next(l, &batch, &count));
        T(!batch && !count);
        cdp_sampler state = cdp_loader_state(l);
        T_EQ(8, state.consumed);
        set.fails_at = UINT64_MAX;
        T_EQ(CDP_OK, cdp_loader_restart(l, &state));
        T_EQ(92, compare(l, UINT64_MAX));
        cdp_loader_destroy(l);
    }
}

TEST(a_late_batch_is_a_timeout_and_comes_later) {
    data_set set;
    const void *batch;
    uint32_t count;
    cdp_loader *l;
    cdp_loader_desc d = describe(&set, 10, false);
    d.timeout_ms = 30;
    set.gate = 1;
    T_EQ(CDP_OK, cdp_loader_create(&d, &l));
    REFUSED(CDP_ERR_TIMEOUT, "0 of 1 samples", cdp_loader_next(l, &batch, &count));
    REFUSED(CDP_ERR_TIMEOUT, "has not returned", cdp_loader_restart(l, NULL));
    __atomic_store_n(&set.gate, 0, __ATOMIC_RELEASE);
    while (cdp_loader_next(l, &batch, &count) == CDP_ERR_TIMEOUT) {
    }
    T(batch && *(const uint64_t *)batch == 0 && count == 1);
    T_EQ(9, compare(l, UINT64_MAX));
    cdp_loader_destroy(l);
}

TEST(a_loader_reads_ahead_within_its_budget) {
    data_set set;
    const void *batch;
    uint32_t count;
    cdp_loader *l;
    cdp_loader_desc d = describe(&set, 100, true);
    d.sampler.batch = 5;
    d.ahead = 3;
    T_EQ(CDP_OK, cdp_loader_create(&d, &l));
    T_EQ(CDP_OK, cdp_loader_poll(l, 0));
    T_EQ(0, set.reads);
    T_EQ(CDP_OK, cdp_loader_poll(l, 10 * 1000000));
    T_EQ(15, set.reads); /* three batches, and no more */
    T_EQ(CDP_OK, cdp_loader_next(l, &batch, &count));
    T_EQ(15, set.reads);
    T_EQ(CDP_OK, cdp_loader_poll(l, 10 * 1000000));
    T_EQ(20, set.reads);
    T_EQ(0, *(const uint64_t *)batch); /* still that of the first step */
    T_EQ(1, cdp_loader_stats_of(l).batches);
    T_EQ(20, cdp_loader_stats_of(l).samples);
    T_EQ(0, cdp_loader_stats_of(l).waited_ns);
    cdp_loader_destroy(l);
}

TEST(a_batch_stays_while_others_are_read) {
    data_set set;
    const void *batch;
    uint32_t count;
    cdp_loader *l;
    cdp_loader_desc d = describe(&set, 64, false);
    d.sampler.batch = 2;
    T_EQ(CDP_OK, cdp_loader_create(&d, &l));
    for (uint64_t step = 0; step < 32; ++step) {
        const uint64_t there = 2 * (step + 3) < 64 ? 2 * (step + 3) : 64;
        T_EQ(CDP_OK, cdp_loader_next(l, &batch, &count));
        while (cdp_loader_stats_of(l).samples < there)
            usleep(50);
        T_EQ(2 * step, ((const uint64_t *)batch)[0]);
        T_EQ(2 * step + 1, ((const uint64_t *)batch)[3]);
        T_EQ(there, cdp_loader_stats_of(l).samples);
    }
    cdp_loader_destroy(l);
}

TEST(a_child_does_not_use_a_loader) {
#ifdef _WIN32
    test_skip("there is no fork on Windows");
#else
    data_set set;
    const void *batch;
    uint32_t count;
    cdp_loader *l;
    cdp_loader_desc d = describe(&set, 10, false);
    int status = 0;
    T_EQ(CDP_OK, cdp_loader_create(&d, &l));
    T_EQ(CDP_OK, cdp_loader_next(l, &batch, &count));
    const pid_t pid = fork();
    if (pid == 0) {
        const cdp_status next = cdp_loader_next(l, &batch, &count);
        const bool no_stats = cdp_loader_stats_of(l).batches == 0;
        cdp_loader_destroy(l);
        _exit(next == CDP_ERR_STATE && !batch && no_stats ? 0 : 1);
    }
    T_EQ(pid, waitpid(pid, &status, 0));
    T_EQ(0, status);
    T_EQ(9, compare(l, UINT64_MAX));
    cdp_loader_destroy(l);
    REFUSED(CDP_ERR_STATE, "was destroyed", cdp_loader_next(l, &batch, &count));
#endif
}

TEST(loaders_refuse_what_is_missing) {
    data_set set;
    cdp_loader *l = (cdp_loader *)&set;
    cdp_loader_desc d = describe(&set, 10, false);
    REFUSED(CDP_ERR_INVALID, "desc is NULL", cdp_loader_create(NULL, &l));
    T(!l);
    d.sample_bytes = 0;
    REFUSED(CDP_ERR_INVALID, "sample_bytes", cdp_loader_create(&d, &l));
    d.sample_bytes = UINT64_MAX / 2;
    d.sampler.batch = 3;
    REFUSED(CDP_ERR_INVALID, "too many", cdp_loader_create(&d, &l));
    d.sample_bytes = 8;
    d.read = NULL;
    REFUSED(CDP_ERR_INVALID, "desc.read is NULL", cdp_loader_create(&d, &l));
    d.read = read_sample;
    d.sampler.rank = 1;
    REFUSED(CDP_ERR_INVALID, "below ranks", cdp_loader_create(&d, &l));
    d.sampler.rank = 0;
    d.sample_bytes = 24;
    T_EQ(CDP_OK, cdp_loader_create(&d, &l));
    d.sampler.ranks = 0;
    REFUSED(CDP_ERR_INVALID, "below ranks", cdp_loader_restart(l, &d.sampler));
    expect_end(l);
    T_EQ(CDP_OK, cdp_loader_restart(l, NULL)); /* the epoch after the last one that began */
    T_EQ(1, cdp_loader_state(l).epoch);
    d.sampler.ranks = 1;
    T_EQ(CDP_OK, cdp_loader_restart(l, &d.sampler));
    T_EQ(10, compare(l, UINT64_MAX));
    cdp_loader_destroy(l);
    cdp_loader_destroy(NULL);
}

/* ---- tokens ---- */

static void write_file(const char *path, bool header, uint32_t size, uint32_t from, uint32_t n) {
    FILE *f = fopen(path, "wb");
    uint8_t head[1024] = {0};
    cdp__put_u32(head, 20240520);
    cdp__put_u32(head + 4, 1);
    cdp__put_u32(head + 8, n);
    T(f != NULL);
    if (!f) return;
    if (header) fwrite(head, 1, sizeof head, f);
    for (uint32_t i = from; i < from + n; ++i) {
        uint8_t token[4];
        cdp__put_u32(token, i);
        fwrite(token, 1, size, f);
    }
    fclose(f);
}

static char paths[3][64];
static const char *const all_paths[3] = {paths[0], paths[1], paths[2]};
static void name_files(void) {
    for (int i = 0; i < 3; ++i)
        snprintf(paths[i], sizeof paths[i], "test_loader.%d.%ld", i, (long)getpid());
}

/* Files of 25, 5 and 10 tokens, in samples of 4: 6, 1 and 2. */
static void tokens_of(cdp_dtype dtype, uint32_t size, bool header) {
    static const uint32_t first[9] = {0, 4, 8, 12, 16, 20, 100, 200, 204};
    const cdp_tokens_desc d = {.paths = all_paths, .path_count = 3, .length = 4, .dtype = dtype};
    const uint32_t base = size == 4 ? 70000 : 300;
    cdp_tokens *t;
    name_files();
    write_file(paths[0], header, size, base, 25);
    write_file(paths[1], header, size, base + 100, 5);
    write_file(paths[2], header, size, base + 200, 10);
    T_EQ(CDP_OK, cdp_tokens_create(&d, &t));
    T_EQ(9, cdp_tokens_count(t));
    T_EQ(20, cdp_tokens_bytes(t));
    for (uint32_t k = 0; k < 9; ++k) {
        int32_t got[6] = {0, 0, 0, 0, 0, -7};
        T_EQ(CDP_OK, cdp_tokens_read(t, k, got));
        for (uint32_t i = 0; i < 5; ++i)
            T_EQ(base + first[k] + i, got[i]);
        T_EQ(-7, got[5]);
    }
    int32_t got[5];
    REFUSED(CDP_ERR_INVALID, "sample 9 of 9", cdp_tokens_read(t, 9, got));
    cdp_tokens_destroy(t);
    for (int i = 0; i < 3; ++i)
        remove(paths[i]);
}

TEST(tokens_come_from_several_files) {
    tokens_of(CDP_DTYPE_DEFAULT, 2, false);
    tokens_of(CDP_DTYPE_U16, 2, true);
    tokens_of(CDP_DTYPE_I32, 4, true);
    tokens_of(CDP_DTYPE_U32, 4, false);
}

TEST(files_of_tokens_that_cannot_be_used_are_named) {
    cdp_tokens_desc d = {.paths = all_paths, .path_count = 1, .length = 4};
    cdp_tokens *t;
    int32_t got[5];
    name_files();
    remove(paths[0]);
    REFUSED(CDP_ERR_IO, paths[0], cdp_tokens_create(&d, &t));
    T(!t);
    write_file(paths[0], false, 2, 0, 4);
    REFUSED(
        CDP_ERR_INVALID, "has 4 tokens; a sample of length 4 needs 5", cdp_tokens_create(&d, &t));
    write_file(paths[0], false, 1, 0, 31);
    REFUSED(CDP_ERR_INVALID, "within a token", cdp_tokens_create(&d, &t));
    d.header_bytes = 1;
    T_EQ(CDP_OK, cdp_tokens_create(&d, &t));
    T_EQ(3, cdp_tokens_count(t));
    write_file(paths[0], false, 1, 0, 20); /* shorter, while it is open */
    REFUSED(CDP_ERR_IO, "shorter", cdp_tokens_read(t, 2, got));
    cdp_tokens_destroy(t);
    d.dtype = CDP_DTYPE_F32;
    REFUSED(CDP_ERR_INVALID, "U16", cdp_tokens_create(&d, &t));
    remove(paths[0]);
}

/* A loader over tokens: what a training loop does. */
TEST(a_loader_reads_tokens) {
    const cdp_tokens_desc td = {.paths = all_paths, .path_count = 1, .length = 8};
    cdp_tokens *t;
    cdp_loader *l;
    const void *batch;
    uint32_t count, seen = 0;
    name_files();
    write_file(paths[0], true, 2, 0, 801);
    T_EQ(CDP_OK, cdp_tokens_create(&td, &t));
    cdp_loader_desc d = {.read = cdp_tokens_read, .user = t, .sample_bytes = cdp_tokens_bytes(t)};
    d.sampler.size = cdp_tokens_count(t);
    d.sampler.ranks = 1;
    d.sampler.shuffle = true;
    d.sampler.batch = 7;
    T_EQ(CDP_OK, cdp_loader_create(&d, &l));
    for (;;) {
        T_EQ(CDP_OK, cdp_loader_next(l, &batch, &count));
        if (!batch) break;
        for (uint32_t i = 0; i < count; ++i, ++seen) {
            const int32_t *const x = (const int32_t *)batch + 9 * i;
            T_EQ(0, x[0] % 8);
            for (int k = 0; k < 8; ++k)
                T_EQ(x[k] + 1, x[k + 1]);
        }
    }
    T_EQ(100, seen);
    cdp_loader_destroy(l);
    cdp_tokens_destroy(t);
    remove(paths[0]);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"batches_come_in_the_order_of_the_sampler", batches_come_in_the_order_of_the_sampler, 30},
        {"a_loader_goes_on_with_other_ranks", a_loader_goes_on_with_other_ranks, 20},
        {"a_failed_read_is_reported_for_its_batch", a_failed_read_is_reported_for_its_batch, 20},
        {"a_late_batch_is_a_timeout_and_comes_later", a_late_batch_is_a_timeout_and_comes_later,
            20},
        {"a_loader_reads_ahead_within_its_budget", a_loader_reads_ahead_within_its_budget, 20},
        {"a_batch_stays_while_others_are_read", a_batch_stays_while_others_are_read, 20},
        {"a_child_does_not_use_a_loader", a_child_does_not_use_a_loader, 20},
        {"loaders_refuse_what_is_missing", loaders_refuse_what_is_missing, 20},
        {"tokens_come_from_several_files", tokens_come_from_several_files, 20},
        {"files_of_tokens_that_cannot_be_used_are_named",
            files_of_tokens_that_cannot_be_used_are_named, 20},
        {"a_loader_reads_tokens", a_loader_reads_tokens, 20}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
