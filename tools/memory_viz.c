/*  memory_viz.c - says or draws what a memory snapshot holds, of cdp_mem.h or of PyTorch

        gcc -O2 tools/memory_viz.c -o memory_viz -pthread -lm
        memory_viz stats FILE             what is held, at the peak and at the end, and by whom
        memory_viz trace FILE             every event, as a program
        memory_viz segments FILE          lines for flamegraph.pl: segments, blocks, gaps
        memory_viz memory FILE            the same without segments
        memory_viz compare BEFORE AFTER   what grew, and by whom
        memory_viz svg FILE > X.svg       a picture: memory in use over time
        memory_viz blocks FILE > X.svg    a picture: segments and their blocks
        memory_viz json FILE              the snapshot as JSON
        memory_viz symbols FILE NEW       a new file with function names, by addr2line of binutils

    stats, svg and compare sum up in rows:
        --rows label|place|stack          by label, or by the innermost frame where there is none
                                          (default); by frame; by whole stack
        --skip NAME,NAME...               functions that only pass requests on ("tensor_new,x*")

    FILE is a pickle or JSON. Results go to stdout. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_mem.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int usage(void) {
    fprintf(stderr,
        "usage: memory_viz [OPTIONS] stats|trace|segments|memory|svg|blocks|json FILE\n"
        "       memory_viz [OPTIONS] compare BEFORE AFTER\n"
        "       memory_viz symbols FILE NEW\n"
        "options: --rows label|place|stack   what a row sums up\n"
        "         --skip NAME,NAME...        functions that only pass requests on\n");
    return 2;
}

static cdp_mem_rows rows;
static const char *skip;

static cdp_mem_shot *read_shot(const char *path) {
    FILE *const f = fopen(path, "rb");
    size_t room = 1 << 20, bytes = 0;
    char *data = malloc(room);
    cdp_mem_shot *shot = NULL;
    if (!f) {
        perror(path);
        exit(1);
    }
    while (data && (bytes += fread(data + bytes, 1, room - bytes, f)) == room) {
        room *= 2;
        data = realloc(data, room);
    }
    fclose(f);
    if (!data || cdp_mem_read(data, bytes, NULL, &shot) != CDP_OK) {
        fprintf(stderr, "%s: ", path);
        exit(cdp_print_error(stderr));
    }
    free(data);
    if (cdp_mem_shot_rows(shot, rows, skip) != CDP_OK) exit(cdp_print_error(stderr));
    return shot;
}

static bool to_stdout(void *user, const void *data, uint64_t bytes) {
    (void)user;
    return fwrite(data, 1, bytes, stdout) == bytes;
}

static int compare(const char *before, const char *after) {
    static char text[1 << 20];
    cdp_mem_shot *const a = read_shot(before), *const b = read_shot(after);
    int64_t more;
    (void)cdp_mem_compare(a, b, &more, text, sizeof text);
    printf("%s%lld bytes more\n", text, (long long)more);
    cdp_mem_shot_free(a);
    cdp_mem_shot_free(b);
    return 0;
}

/* ---- symbols: names for frames called "module+0x4f1a" ---- */

typedef struct place { /* a frame without a name */
    uint32_t stack, frame, module;
    uint64_t offset;
} place;

typedef struct places {
    place *at;
    size_t count, room;
} places;

static int by_module(const void *a, const void *b) {
    const place *const x = a, *const y = b;
    if (x->module != y->module) return x->module < y->module ? -1 : 1;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return 0;
}

/* The number of the module with this path; UINT32_MAX: none. */
static uint32_t module_of(const cdp_mem_shot *s, const char *filename) {
    const char *path;
    for (uint32_t i = 0; cdp_mem_module(s, i, &path, NULL); ++i)
        if (strcmp(path, filename) == 0) return i;
    return UINT32_MAX;
}

static void add_place(
    places *p, const cdp_mem_shot *s, uint32_t stack, uint32_t frame, const cdp_mem_frame *f) {
    const char *const plus = strstr(f->name, "+0x");
    const uint32_t module = plus && !f->line ? module_of(s, f->filename) : UINT32_MAX;
    if (module == UINT32_MAX) return;
    if (p->count == p->room) {
        p->room = p->room ? 2 * p->room : 1024;
        p->at = realloc(p->at, p->room * sizeof *p->at);
        if (!p->at) exit(1);
    }
    p->at[p->count++] = (place){stack, frame, module, strtoull(plus + 1, NULL, 16)};
}

static places unnamed(const cdp_mem_shot *s, uint32_t stacks) {
    places p = {NULL, 0, 0};
    const cdp_mem_frame *f;
    for (uint32_t i = 1; i <= stacks; ++i) {
        const uint32_t n = cdp_mem_frames(s, i, &f);
        for (uint32_t j = 0; j < n; ++j)
            add_place(&p, s, i, j, &f[j]);
    }
    if (p.count) qsort(p.at, p.count, sizeof *p.at, by_module);
    return p;
}

/* The highest number of a stack in use. */
static uint32_t stacks_of(const cdp_mem_shot *s) {
    const cdp_mem_segment *g;
    const cdp_mem_event *e;
    const uint32_t segments = cdp_mem_segments(s, &g);
    uint32_t most = 0;
    for (uint32_t i = 0; i < segments; ++i) {
        if (g[i].stack > most) most = g[i].stack;
        for (uint32_t j = 0; j < g[i].block_count; ++j)
            if (g[i].blocks[j].stack > most) most = g[i].blocks[j].stack;
    }
    for (uint32_t d = 0; d < cdp_mem_devices(s); ++d)
        for (uint64_t i = cdp_mem_events(s, d, &e); i > 0; --i)
            if (e[i - 1].stack > most) most = e[i - 1].stack;
    return most;
}

/* Programs that are linked to a fixed address have their addresses in the file, others offsets. */
static bool fixed_address(const char *path) {
    unsigned char head[18] = {0};
    FILE *const f = fopen(path, "rb");
    const bool good = f && fread(head, 1, sizeof head, f) == sizeof head;
    if (f) fclose(f);
    return good && memcmp(head, "\177ELF", 4) == 0 && head[16] == 2;
}

/* Paths come from the file, and go to a shell: only plain ones. */
static bool plain(const char *path) {
    return path[0] == '/'
        && strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./")
        == strlen(path);
}

/* Ask addr2line for places of one module, 200 at a time. */
static void name_some(
    cdp_mem_shot *s, const place *p, size_t count, const char *path, uint64_t base) {
    char command[8192], name[1024], where[1024];
    int n = snprintf(command, sizeof command, "addr2line -f -C -e %s", path);
    FILE *pipe;
    for (size_t i = 0; i < count && n < (int)sizeof command - 64; ++i)
        n += snprintf(command + n, sizeof command - (size_t)n, " 0x%llx",
            (unsigned long long)(p[i].offset + base));
    snprintf(command + n, sizeof command - (size_t)n, " 2> /dev/null");
    pipe = popen(command, "r");
    for (size_t i = 0;
         pipe && i < count && fgets(name, sizeof name, pipe) && fgets(where, sizeof where, pipe);
         ++i) {
        char *const colon = strrchr(where, ':');
        name[strcspn(name, "\n")] = 0;
        if (name[0] == '?' || !colon) continue;
        *colon = 0;
        if (cdp_mem_frame_set(s, p[i].stack, p[i].frame, where[0] == '?' ? path : where, name,
                (uint32_t)strtoul(colon + 1, NULL, 10))
            != CDP_OK)
            exit(cdp_print_error(stderr));
    }
    if (pipe) pclose(pipe);
}

static int symbols(const char *from, const char *to) {
    cdp_mem_shot *const s = read_shot(from);
    const places p = unnamed(s, stacks_of(s));
    size_t i = 0, n;
    for (; i < p.count; i += n) {
        const char *path = "";
        uint64_t base = 0;
        cdp_mem_module(s, p.at[i].module, &path, &base);
        for (n = 1; n < 200 && i + n < p.count && p.at[i + n].module == p.at[i].module; ++n) {
        }
        if (plain(path))
            name_some(s, p.at + i, n, path, fixed_address(path) ? base : 0);
        else
            fprintf(stderr, "memory_viz: no names for %s: a path with odd characters\n", path);
    }
    free(p.at);
    if (cdp_mem_write_file(s, CDP_MEM_PICKLE, to) != CDP_OK) return cdp_print_error(stderr);
    cdp_mem_shot_free(s);
    return 0;
}

/* Reads the options, and takes them out of argv. Returns what is left; 0: they are wrong. */
static int options(int argc, char **argv) {
    static const char *const names[] = {"label", "place", "stack"};
    int left = 1;
    for (int i = 1; i < argc; ++i) {
        const bool is_rows = strcmp(argv[i], "--rows") == 0;
        if (!is_rows && strcmp(argv[i], "--skip") != 0) {
            argv[left++] = argv[i];
            continue;
        }
        if (++i == argc) return 0;
        if (!is_rows) {
            skip = argv[i];
            continue;
        }
        int n = 0;
        while (n < 3 && strcmp(argv[i], names[n]) != 0)
            ++n;
        if (n == 3) return 0;
        rows = (cdp_mem_rows)n;
    }
    return left;
}

int main(int argc, char **argv) {
    static const struct {
        const char *word;
        cdp_mem_format format;
    } forms[] = {{"stats", CDP_MEM_PEAK}, {"trace", CDP_MEM_TRACE}, {"segments", CDP_MEM_FLAME},
        {"memory", CDP_MEM_FLAME_MEMORY}, {"svg", CDP_MEM_SVG}, {"blocks", CDP_MEM_SVG_SEGMENTS},
        {"json", CDP_MEM_JSON}};
    if (argc > 1 && strcmp(argv[1], "--help") == 0) {
        usage();
        return 0;
    }
    argc = options(argc, argv);
    if (argc == 4 && strcmp(argv[1], "compare") == 0) return compare(argv[2], argv[3]);
    if (argc == 4 && strcmp(argv[1], "symbols") == 0) return symbols(argv[2], argv[3]);
    for (size_t i = 0; argc == 3 && i < sizeof forms / sizeof *forms; ++i) {
        cdp_mem_shot *s;
        if (strcmp(argv[1], forms[i].word) != 0) continue;
        s = read_shot(argv[2]);
        if (cdp_mem_write(s, forms[i].format, to_stdout, NULL) != CDP_OK)
            return cdp_print_error(stderr);
        cdp_mem_shot_free(s);
        return 0;
    }
    return usage();
}
