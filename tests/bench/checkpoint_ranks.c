/* checkpoint_ranks.c - one rank of what checkpoint.sh measures beside PyTorch

   checkpoint_ranks FOLDER BLOCKS PASSES: parameters with the shapes of GPT-2 of so many blocks, cut
   by rows over the ranks, are saved, loaded as they are, and loaded with matrices cut by columns.
   Before each, all ranks write, and read, their own bytes with plain calls: what is possible. Rank
   0 prints a line for each pass and operation: "limit.save MS", "save MS", ... The pages of files
   leave the memory of the system before they are read, where it forgets them on request. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "cdp_checkpoint.h"

#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    WIDTH = 768,
    PIECE = 8 << 20,
    PER_BLOCK = 12,
    MOST = 50 * PER_BLOCK
};

static cdp_group *world;
static uint8_t *memory;
static uint64_t mine;
static char plain[400];

static void check(bool ok, const char *what) {
    if (ok) return;
    perror(what);
    exit(1);
}
static void good(cdp_status st) {
    if (st != CDP_OK) exit(cdp_print_error(stderr));
}

static void write_plain(void) {
    const int fd = open(plain, O_CREAT | O_WRONLY | O_TRUNC, 0644);
    check(fd >= 0 && ftruncate(fd, (off_t)mine) == 0, plain);
    for (uint64_t at = 0; at < mine; at += PIECE) {
        const uint64_t n = mine - at < PIECE ? mine - at : PIECE;
        check(pwrite(fd, memory + at, n, (off_t)at) == (ssize_t)n, plain);
    }
    check(fsync(fd) == 0 && close(fd) == 0, plain);
}
static void read_plain(void) {
    const int fd = open(plain, O_RDONLY);
    check(fd >= 0, plain);
    for (uint64_t at = 0; at < mine; at += PIECE) {
        const uint64_t n = mine - at < PIECE ? mine - at : PIECE;
        check(pread(fd, memory + at, n, (off_t)at) == (ssize_t)n, plain);
    }
    check(close(fd) == 0, plain);
}
static void forget(const char *path) {
    glob_t found;
    if (glob(path, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; ++i) {
            const int fd = open(found.gl_pathv[i], O_RDONLY);
            check(fd >= 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0 && close(fd) == 0,
                path);
        }
        globfree(&found);
    }
    good(cdp_barrier(world));
}

static double began;
static void start(void) {
    good(cdp_barrier(world));
    began = (double)cdp_os_default()->now_ns(NULL) / 1e6;
}
static void stop(const char *what, bool said) {
    good(cdp_barrier(world));
    if (said && cdp_rank(world) == 0)
        printf("%s %.1f\n", what, (double)cdp_os_default()->now_ns(NULL) / 1e6 - began);
}

/* Shapes of a block, and at the end of the tables: tokens, places, and two vectors. */
static uint32_t shapes(uint32_t blocks, uint64_t out[][2]) {
    static const uint64_t block[PER_BLOCK][2] = {{WIDTH}, {WIDTH}, {3 * WIDTH, WIDTH}, {3 * WIDTH},
        {WIDTH, WIDTH}, {WIDTH}, {WIDTH}, {WIDTH}, {4 * WIDTH, WIDTH}, {4 * WIDTH},
        {WIDTH, 4 * WIDTH}, {WIDTH}};
    static const uint64_t rest[4][2] = {{50257, WIDTH}, {1024, WIDTH}, {WIDTH}, {WIDTH}};
    uint32_t n = 0;
    for (uint32_t b = 0; b < blocks; ++b, n += PER_BLOCK)
        memcpy(out + n, block, sizeof block);
    memcpy(out + n, rest, sizeof rest);
    return n + 4;
}

/* Items in one array; returns the bytes of this rank. */
static uint64_t items_of(cdp_mesh *mesh, uint32_t n, uint64_t shape[][2], bool columns,
    cdp_item *items, char names[][16]) {
    uint64_t used = 0;
    for (uint32_t i = 0; i < n; ++i) {
        cdp_layout *const l = &items[i].tensor.layout;
        cdp_box box;
        snprintf(names[i], 16, "p%u", i);
        memset(&items[i], 0, sizeof items[i]);
        items[i].name = names[i];
        l->mesh = mesh;
        l->ndim = shape[i][1] ? 2 : 1;
        memcpy(l->shape, shape[i], sizeof shape[i]);
        good(cdp_layout_parse(l, columns && l->ndim == 2 ? "S1" : "S0"));
        items[i].tensor.data = memory ? memory + used : NULL;
        used += cdp_layout_box(l, NULL, &box) * 4;
    }
    return used;
}

int main(int argc, char **argv) {
    static cdp_item rows[MOST], columns[MOST];
    static uint64_t shape[MOST][2];
    static char names[MOST][16];
    const uint32_t blocks = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 12;
    const uint32_t passes = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 1;
    char files[500], line[500];
    cdp_mesh_desc md;
    cdp_mesh *mesh;
    cdp_ckpt *by_rows, *by_columns;
    if (argc < 2 || blocks > 49) return 2;
    good(cdp_init_from_env(NULL, &world));
    memset(&md, 0, sizeof md);
    md.group = world;
    good(cdp_mesh_create(&md, &mesh));
    const uint32_t n = shapes(blocks, shape);
    mine = items_of(mesh, n, shape, false, rows, names);
    const uint64_t other = items_of(mesh, n, shape, true, columns, names);
    memory = (uint8_t *)malloc(mine > other ? mine : other);
    check(memory != NULL, "memory");
    for (uint64_t k = 0; k < mine; ++k)
        memory[k] = (uint8_t)(k * 2654435761u >> 13);
    (void)items_of(mesh, n, shape, false, rows, names);
    (void)items_of(mesh, n, shape, true, columns, names);
    snprintf(plain, sizeof plain, "%s/plain.%u", argv[1], cdp_rank(world));
    snprintf(files, sizeof files, "%s/ours/step-*/*.safetensors", argv[1]);
    snprintf(line, sizeof line, "%s/ours", argv[1]);
    cdp_ckpt_desc d = {.group = world, .path = line, .items = rows, .item_count = n};
    good(cdp_ckpt_create(&d, &by_rows));
    d.items = columns;
    good(cdp_ckpt_create(&d, &by_columns));
    for (uint32_t pass = 0; pass <= passes; ++pass) { /* the first is not counted */
        start();
        write_plain();
        stop("limit.save", pass);
        start();
        good(cdp_ckpt_save(by_rows, pass));
        stop("save", pass);
        forget(plain);
        start();
        read_plain();
        stop("limit.load", pass);
        forget(files);
        start();
        good(cdp_ckpt_load(by_rows, NULL, pass, NULL));
        stop("load", pass);
        forget(files);
        start();
        good(cdp_ckpt_load(by_columns, NULL, pass, NULL));
        stop("load.columns", pass);
        good(cdp_ckpt_load(by_rows, NULL, pass, NULL));
        char away[600];
        snprintf(away, sizeof away, "rm -rf %s/ours/step-*", argv[1]);
        if (cdp_rank(world) == 0) check(system(away) == 0 && unlink(plain) == 0, away);
        if (cdp_rank(world) > 0) check(unlink(plain) == 0, plain);
        good(cdp_barrier(world));
    }
    cdp_ckpt_destroy(by_rows);
    cdp_ckpt_destroy(by_columns);
    cdp_mesh_destroy(mesh);
    cdp_group_destroy(world);
    return 0;
}
