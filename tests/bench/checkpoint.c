/* checkpoint.c - what saving and loading cost beside plain calls for the same bytes

   checkpoint [FOLDER [MIB [PASSES]]]: (default: /tmp, 64, 9)

   One rank, in turns, so that a change of the machine's speed meets all: a file that is written in
   pieces of 8 MiB and synced, beside cdp_ckpt_save(); a file that is read into memory, beside
   cdp_ckpt_load() with its sums, from the page cache and (where the system forgets it on request)
   from the disk; memcpy() of the bytes, beside how long cdp_ckpt_save_async() keeps the program,
   and with `late` that call and cdp_ckpt_staged() after the files were written. Printed are medians
   and their ratios. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "cdp_checkpoint.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    PASSES_MAX = 200,
    ITEMS = 4,
    PIECE = 8 << 20
};

typedef enum what {
    WRITE,
    SAVE,
    READ_WARM,
    LOAD_WARM,
    READ_COLD,
    LOAD_COLD,
    COPY,
    STALL,
    STALL_LATE,
    WHATS
} what;

static const struct {
    const char *name;
    int beside; /* what it is compared with; -1: nothing */
} rows[WHATS] = {
    {"write and sync, plain", -1},
    {"save", WRITE},
    {"read, page cache, plain", -1},
    {"load, page cache", READ_WARM},
    {"read, disk, plain", -1},
    {"load, disk", READ_COLD},
    {"memcpy", -1},
    {"stall of save_async", COPY},
    {"stall with late", COPY},
};

static double ms[WHATS][PASSES_MAX];
static uint8_t *memory, *other;
static uint64_t total;
static char folder[300], plain[400];

static void check(bool ok, const char *what) {
    if (ok) return;
    perror(what);
    exit(1);
}
static void good(cdp_status st) {
    if (st == CDP_OK) return;
    cdp_print_error(stderr);
    exit(1);
}
static double now_ms(void) {
    return (double)cdp_os_default()->now_ns(NULL) / 1e6;
}

static void plain_write(void) {
    const int fd = open(plain, O_CREAT | O_WRONLY, 0644);
    check(fd >= 0 && ftruncate(fd, (off_t)total) == 0, plain);
    for (uint64_t at = 0; at < total; at += PIECE) {
        const uint64_t n = total - at < PIECE ? total - at : PIECE;
        check(pwrite(fd, memory + at, n, (off_t)at) == (ssize_t)n, plain);
    }
    check(fsync(fd) == 0 && close(fd) == 0, plain);
}
static void plain_read(void) {
    const int fd = open(plain, O_RDONLY);
    check(fd >= 0, plain);
    for (uint64_t at = 0; at < total; at += PIECE) {
        const uint64_t n = total - at < PIECE ? total - at : PIECE;
        check(pread(fd, other + at, n, (off_t)at) == (ssize_t)n, plain);
    }
    check(close(fd) == 0, plain);
}
/* Both write where nothing is: removing older steps is no part of what is measured. */
static void no_steps(void) {
    char line[400];
    snprintf(line, sizeof line, "rm -rf %s/step-* %s", folder, plain);
    check(system(line) == 0, line);
}
/* The pages of a file leave the memory of the system. */
static void forget(const char *path) {
    const int fd = open(path, O_RDONLY);
    check(fd >= 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0 && close(fd) == 0, path);
}

static void saved_file(char path[500], uint64_t step) {
    snprintf(path, 500, "%s/step-%08llu/model-00001-of-00001.safetensors", folder,
        (unsigned long long)step);
}

static void stall(cdp_ckpt *c, uint64_t step, bool late, double *out) {
    double began = now_ms(), stalled;
    good(cdp_ckpt_save_async(c, step));
    stalled = now_ms() - began;
    while (late && cdp_ckpt_wait(c, 1) == CDP_PENDING) /* forward and backward are longer */
        ;
    began = now_ms();
    good(cdp_ckpt_staged(c));
    *out = stalled + now_ms() - began;
    good(cdp_ckpt_wait(c, CDP_NO_TIMEOUT));
}

static void pass(cdp_ckpt *c, cdp_ckpt *late, uint32_t i) {
    char path[500];
    double began = now_ms();
#define TIMED(row, call)               \
    do {                               \
        began = now_ms();              \
        call;                          \
        ms[row][i] = now_ms() - began; \
    } while (0)
    no_steps();
    TIMED(WRITE, plain_write());
    TIMED(SAVE, good(cdp_ckpt_save(c, 3 * i + 1)));
    TIMED(READ_WARM, plain_read());
    TIMED(LOAD_WARM, good(cdp_ckpt_load(c, NULL, 3 * i + 1, NULL)));
    saved_file(path, 3 * i + 1);
    forget(plain);
    forget(path);
    TIMED(READ_COLD, plain_read());
    TIMED(LOAD_COLD, good(cdp_ckpt_load(c, NULL, 3 * i + 1, NULL)));
    TIMED(COPY, memcpy(other, memory, total));
    stall(c, 3 * i + 2, false, &ms[STALL][i]);
    stall(late, 3 * i + 3, true, &ms[STALL_LATE][i]);
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    const uint64_t mib = argc > 2 ? strtoull(argv[2], NULL, 10) : 64;
    const uint32_t passes = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 9;
    cdp_group_desc gd = {.world_size = 1};
    cdp_group *g;
    cdp_item items[ITEMS];
    cdp_ckpt *c, *late;
    char line[400];
    if (!mib || !passes || passes > PASSES_MAX) return 2;
    total = mib << 20;
    memory = (uint8_t *)malloc(total);
    other = (uint8_t *)malloc(total);
    check(memory && other, "memory");
    for (uint64_t k = 0; k < total; ++k)
        memory[k] = (uint8_t)(k * 2654435761u >> 13);
    snprintf(folder, sizeof folder, "%s/cdp_bench.XXXXXX", argc > 1 ? argv[1] : "/tmp");
    check(mkdtemp(folder) != NULL, folder);
    snprintf(plain, sizeof plain, "%s/plain", folder);
    memset(items, 0, sizeof items);
    static const char *const names[ITEMS] = {"a", "b", "c", "d"};
    for (uint32_t k = 0; k < ITEMS; ++k) {
        items[k].name = names[k];
        items[k].tensor.layout.ndim = 1;
        items[k].tensor.layout.shape[0] = total / ITEMS / 4;
        items[k].tensor.data = memory + k * (total / ITEMS);
    }
    good(cdp_group_create(&gd, &g));
    cdp_ckpt_desc d = {.group = g, .path = folder, .items = items, .item_count = ITEMS};
    good(cdp_ckpt_create(&d, &c));
    d.late = true;
    good(cdp_ckpt_create(&d, &late));
    pass(c, late, 0); /* not counted: memory is made */
    for (uint32_t i = 0; i < passes; ++i)
        pass(c, late, i);
    printf("%llu MiB in %s, medians of %u passes\n", (unsigned long long)mib, folder, passes);
    for (uint32_t w = 0; w < WHATS; ++w) {
        qsort(ms[w], passes, sizeof(double), by_size);
        printf("%-26s %8.1f ms", rows[w].name, ms[w][passes / 2]);
        if (rows[w].beside >= 0)
            printf("   %.2f x %s", ms[w][passes / 2] / ms[rows[w].beside][passes / 2],
                rows[rows[w].beside].name);
        puts("");
    }
    cdp_ckpt_destroy(late);
    cdp_ckpt_destroy(c);
    cdp_group_destroy(g);
    snprintf(line, sizeof line, "rm -rf %s", folder);
    return system(line) != 0;
}
