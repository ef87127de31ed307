/* test_big.c - more than 2^32 bytes and 2^31 elements in one operation. Needs memory and some
   seconds, so it runs when it is called with --big alone. */
#define CDP_IMPLEMENTATION
#include "cdp.h"

#include "ranks.h"

#include <sys/mman.h>

/* a prime number of pages: a part that lies 2^31 or 2^32 bytes off is noticed */
#define PERIOD (4096ull * 4099)
#define MESSAGE ((1ull << 32) + 7)
#define ELEMENTS ((1ull << 31) + 9)

static bool big;
static uint8_t *pattern, *twice; /* the bytes of one period, and their sums over two ranks */
static FILE *file;               /* holds one period, too */

static uint64_t mem_available(void) {
    char line[200];
    unsigned long long kb = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && fgets(line, sizeof line, f) && sscanf(line, "MemAvailable: %llu kB", &kb) != 1) {
    }
    if (f) fclose(f);
    return kb * 1024;
}

static uint8_t *map(uint64_t bytes) {
    void *p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : (uint8_t *)p;
}

/* The pattern over and over, in the memory of one period. */
static uint8_t *map_pattern(uint64_t bytes) {
    const uint64_t all = (bytes + PERIOD - 1) / PERIOD * PERIOD;
    uint8_t *p = map(all);
    for (uint64_t at = 0; p && at < all; at += PERIOD)
        if (mmap(p + at, PERIOD, PROT_READ, MAP_SHARED | MAP_FIXED, fileno(file), 0) == MAP_FAILED)
            return NULL;
    return p;
}

static bool repeats(const uint8_t *p, uint64_t bytes, const uint8_t *what) {
    for (uint64_t at = 0; at < bytes; at += PERIOD) {
        const uint64_t n = bytes - at < PERIOD ? bytes - at : PERIOD;
        if (memcmp(p + at, what, n) != 0)
            return test_check(
                false, __FILE__, __LINE__, "wrong bytes after byte %llu", (unsigned long long)at);
    }
    return true;
}

static bool ready(void) {
    uint64_t state = 1;
    if (!big) {
        test_skip("only with --big, as .ci/run has it");
    } else if (sizeof(size_t) < 8 || TEST_SLOW) {
        test_skip("not with 32 bits or a sanitizer");
    } else if (mem_available() < 12ull << 30) {
        char why[100];
        snprintf(why, sizeof why, "%llu MiB of memory are available, 12288 are needed",
            (unsigned long long)(mem_available() >> 20));
        test_skip(why);
    } else {
        pattern = (uint8_t *)malloc(PERIOD);
        twice = (uint8_t *)malloc(PERIOD);
        for (uint64_t i = 0; i < PERIOD; ++i) {
            pattern[i] = (uint8_t)test_random(&state);
            twice[i] = (uint8_t)(2 * pattern[i]);
        }
        file = tmpfile();
        return T(file != NULL) && T(fwrite(pattern, 1, PERIOD, file) == PERIOD)
            && T(fflush(file) == 0);
    }
    return false;
}

static void done(void) {
    if (file) fclose(file);
    free(pattern);
    free(twice);
    file = NULL;
    pattern = twice = NULL;
}

/* A broadcast, then a message of a length that the receiver does not know. */
static void sends(cdp_group *g, void *arg) {
    const bool root = cdp_rank(g) == 0;
    uint8_t *p = root ? map_pattern(MESSAGE) : map(MESSAGE + 4096);
    cdp_message got;
    (void)arg;
    if (!T(p != NULL)) return;
    T_EQ(CDP_OK, cdp_broadcast(g, p, MESSAGE, CDP_DTYPE_U8, 0));
    if (!root) {
        repeats(p, MESSAGE, pattern);
        T_EQ(0, p[MESSAGE]);
        memset(p + MESSAGE - 4096, 0, 4096);
        T_EQ(CDP_OK, cdp_recv_any(g, p, MESSAGE + 4096, CDP_DTYPE_U8, CDP_ANY_RANK, 1, &got));
        T_EQ(MESSAGE, got.count);
        repeats(p, MESSAGE, pattern);
    } else {
        T_EQ(CDP_OK, cdp_send(g, p, MESSAGE, CDP_DTYPE_U8, 1, 1));
    }
    munmap(p, root ? (MESSAGE + PERIOD - 1) / PERIOD * PERIOD : MESSAGE + 4096);
}

static void sums(cdp_group *g, void *arg) {
    uint8_t *in = map_pattern(ELEMENTS), *out = map(ELEMENTS + 4096);
    (void)arg;
    if (!T(in && out)) return;
    T_EQ(CDP_OK, cdp_allreduce(g, in, out, ELEMENTS, CDP_DTYPE_I8, CDP_REDUCE_SUM));
    repeats(out, ELEMENTS, twice);
    T_EQ(0, out[ELEMENTS]);
    munmap(in, (ELEMENTS + PERIOD - 1) / PERIOD * PERIOD);
    munmap(out, ELEMENTS + 4096);
}

TEST(more_than_4_gib) {
    if (ready()) run_ranks(2, NULL, 1 << 20, sends, NULL);
    done();
}

TEST(more_than_2_31_elements) {
    if (ready()) run_ranks(2, NULL, 1 << 20, sums, NULL);
    done();
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"more_than_4_gib", more_than_4_gib, 120},
        {"more_than_2_31_elements", more_than_2_31_elements, 120},
    };
    big = argc > 1 && strcmp(argv[1], "--big") == 0;
    return test_main(big ? 1 : argc, argv, cases, sizeof cases / sizeof *cases);
}
