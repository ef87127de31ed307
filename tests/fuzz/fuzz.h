/*  fuzz.h - what every fuzz target shares: how it breaks, how it takes an input apart, and a main()
    that makes inputs from seeds, so that no fuzzer is needed.

    With libFuzzer; with -O2 -fno-sanitize-coverage=trace-cmp it is four times as fast, for long
    runs from a corpus that knows the formats already:

        clang -g -O1 -fsanitize=fuzzer,address,undefined -DFUZZ_LIB -I. tests/fuzz/TARGET.c -o fuzz
        ./fuzz corpus/

    Without it:

        gcc -g -O1 -fsanitize=address,undefined -I. tests/fuzz/TARGET.c -o fuzz -pthread
        ./fuzz                     the inputs of seeds 1 to 20000
        ./fuzz --count 10000000    those of more
        ./fuzz --seeds 20001 30000 those of seeds from here to there
        ./fuzz --seconds 600 30001 those of seeds from here on, for so long
        ./fuzz --seed 7            that one alone
        ./fuzz FILE...             replay
        ./fuzz --write 7 FILE      the input of a seed, for a corpus */
#ifndef FUZZ_INCLUDED
#define FUZZ_INCLUDED
#define CDP_IMPLEMENTATION
#define T(x) ((x) ? (void)0 : fuzz_broken(#x, __LINE__))
#ifndef TESTS_LINKED_H /* otherwise those of the library are assert()s */
#define CDP_ASSERT(x) T(x)
#endif
#define FUZZ_API __attribute__((unused)) static
#include <stdio.h>
#include <stdlib.h>
static unsigned long long fuzz_seed;
static void fuzz_broken(const char *what, int line) {
    printf("broken, seed %llu, line %d: %s\n", fuzz_seed, line, what);
    fflush(stdout);
    abort();
}
#ifdef FUZZ_BEFORE_TCP
#include "cdp_store.h"
#include FUZZ_BEFORE_TCP
#endif
#include "cdp_tcp.h"

typedef struct fuzz_input {
    const uint8_t *p;
    uint64_t n;
} fuzz_input;

FUZZ_API uint8_t next_byte(fuzz_input *in) {
    if (!in->n) return 0;
    --in->n;
    return *in->p++;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- memory: each block is fenced, and large ones are kept for the next input ---- */

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define FUZZ_ASAN
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(FUZZ_ASAN)
#include <sanitizer/asan_interface.h>
#define FUZZ_POISON(at, bytes) ASAN_POISON_MEMORY_REGION(at, bytes)
#define FUZZ_UNPOISON(at, bytes) ASAN_UNPOISON_MEMORY_REGION(at, bytes)
#define FUZZ_FENCE 0u
/* A freed block is not used again before this much was freed; 256 MiB, the default, would make
   every allocation touch fresh pages. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "quarantine_size_mb=4:allocator_may_return_null=1";
}
#else
#define FUZZ_POISON(at, bytes) (void)(at)
#define FUZZ_UNPOISON(at, bytes) (void)(at)
#define FUZZ_FENCE 16u
#endif

/* Without AddressSanitizer, FUZZ_FENCE known bytes lie before and behind each block. The first
   fence starts with the block's length. Both are compared when the block is freed, so a write
   beside a block is noticed then. */
static const uint8_t fuzz_fence[16] = {
    0xf3, 0x9c, 0x17, 0xe5, 0x6a, 0x81, 0xd4, 0x3b, 0xc2, 0x58, 0xaf, 0x06, 0x7d, 0xe9, 0x24, 0xb0};

/* As malloc(). What a block holds at first is not defined. */
FUZZ_API void *fenced_alloc(uint64_t bytes) {
    uint8_t *at = (uint8_t *)malloc((size_t)bytes + 2 * FUZZ_FENCE);
    if (!at || !FUZZ_FENCE) return at;
    memcpy(at, &bytes, 8);
    memcpy(at + 8, fuzz_fence, 8);
    memcpy(at + 16 + bytes, fuzz_fence, 16);
    return at + FUZZ_FENCE;
}

FUZZ_API void fenced_look(const void *p) {
    const uint8_t *at = (const uint8_t *)p;
    uint64_t bytes;
    if (!p || !FUZZ_FENCE) return;
    memcpy(&bytes, at - 16, 8);
    T(memcmp(at - 8, fuzz_fence, 8) == 0);
    T(memcmp(at + bytes, fuzz_fence, 16) == 0);
}

FUZZ_API void fenced_free(void *p) {
    fenced_look(p);
    free(p ? (uint8_t *)p - FUZZ_FENCE : NULL);
}

/* Fresh pages for blocks of this size take most of the time of a short input. A kept block has
   exactly the length that was asked for, and is poisoned while nobody has it, so that
   AddressSanitizer still sees what is read or written beside it or too late. */
#define FUZZ_KEPT_FROM 16385u
#define FUZZ_KEPT 32

typedef struct fuzz_block {
    void *at;
    uint64_t bytes;
    bool taken;
} fuzz_block;

static fuzz_block fuzz_blocks[FUZZ_KEPT];

/* As fenced_alloc() and fenced_free(). */
FUZZ_API void *fuzz_alloc(uint64_t bytes) {
    uint32_t i, spare = FUZZ_KEPT;
    fuzz_block *b;
    if (bytes < FUZZ_KEPT_FROM) return fenced_alloc(bytes);
    for (i = 0; i < FUZZ_KEPT; ++i) {
        b = &fuzz_blocks[i];
        if (b->taken) continue;
        spare = i;
        if (!b->at || b->bytes == bytes) break;
    }
    if (spare == FUZZ_KEPT) return fenced_alloc(bytes);
    b = &fuzz_blocks[spare];
    if (b->at) FUZZ_UNPOISON(b->at, (size_t)b->bytes);
    if (b->bytes != bytes) {
        fenced_free(b->at);
        b->at = fenced_alloc(bytes);
    }
    b->bytes = b->at ? bytes : 0;
    b->taken = b->at != NULL;
    return b->at;
}

FUZZ_API void fuzz_free(void *p) {
    uint32_t i;
    for (i = 0; p && i < FUZZ_KEPT; ++i) {
        fuzz_block *b = &fuzz_blocks[i];
        if (b->at != p) continue;
        T(b->taken);
        fenced_look(p);
        b->taken = false;
        FUZZ_POISON(p, (size_t)b->bytes);
        return;
    }
    fenced_free(p);
}

#ifndef FUZZ_LIB
#define FUZZ_INPUT_BYTES (256u * 1024u)

static uint64_t random_state;
static uint32_t pick(uint32_t n) {
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) % n);
}

/* The target's own: the input of a seed. `out` has room for FUZZ_INPUT_BYTES; random_state is
   set. */
static size_t make_input(uint64_t seed, uint8_t *out);

static size_t input_of(uint64_t seed, uint8_t *out) {
    fuzz_seed = random_state = seed;
    return make_input(seed, out);
}

static void replay(const char *path) {
    static uint8_t data[1 << 20];
    FILE *f = fopen(path, "rb");
    size_t n;
    if (!f) fuzz_broken(path, 0);
    n = fread(data, 1, sizeof data, f);
    fclose(f);
    LLVMFuzzerTestOneInput(data, n);
}

static int write_input(uint64_t seed, const char *path) {
    static uint8_t data[FUZZ_INPUT_BYTES];
    const size_t n = input_of(seed, data);
    FILE *f = fopen(path, "wb");
    return !f || fwrite(data, 1, n, f) != n || fclose(f) != 0;
}

/* The inputs of seeds from `first` on, up to `last` and until `until_ns`; returns how many. */
static uint64_t run_seeds(uint64_t first, uint64_t last, uint64_t until_ns) {
    static uint8_t data[FUZZ_INPUT_BYTES];
    const cdp_os *os = cdp_os_default();
    uint64_t seed;
    for (seed = first; seed <= last; ++seed) {
        if (seed % 1024 == 0 && os->now_ns(os->user) >= until_ns) break;
        LLVMFuzzerTestOneInput(data, input_of(seed, data));
    }
    return seed - first;
}

int main(int argc, char **argv) {
    uint64_t first = 1, last = 20000, until_ns = UINT64_MAX, count;
    int i;
    if (argc == 4 && strcmp(argv[1], "--write") == 0)
        return write_input(strtoull(argv[2], NULL, 10), argv[3]);
    if (argc == 3 && strcmp(argv[1], "--seed") == 0) {
        first = last = strtoull(argv[2], NULL, 10);
    } else if (argc == 3 && strcmp(argv[1], "--count") == 0) {
        last = strtoull(argv[2], NULL, 10);
    } else if (argc == 4 && strcmp(argv[1], "--seeds") == 0) {
        first = strtoull(argv[2], NULL, 10);
        last = strtoull(argv[3], NULL, 10);
    } else if (argc == 4 && strcmp(argv[1], "--seconds") == 0) {
        until_ns = cdp__deadline(cdp_os_default(), (uint32_t)(strtoul(argv[2], NULL, 10) * 1000));
        first = strtoull(argv[3], NULL, 10);
        last = UINT64_MAX - 1;
    } else {
        for (i = 1; i < argc; ++i)
            replay(argv[i]);
        last = argc > 1 ? 0 : last;
    }
    count = run_seeds(first, last, until_ns);
    if (count)
        printf("seeds %llu to %llu\n", (unsigned long long)first,
            (unsigned long long)(first + count - 1));
    printf("%u passed, 0 failed\n", (unsigned)(count ? count : (uint64_t)(argc - 1)));
    return 0;
}
#endif
#endif
