/*  checkpoint.c - lists, verifies, compares and merges checkpoints of cdp_checkpoint.h

        gcc -O2 tools/checkpoint.c -o checkpoint -pthread -lm
        checkpoint list PATH              tensors and blobs: dtype, shape, bytes, file
        checkpoint verify PATH            compares every sum; names each tensor that is damaged
        checkpoint compare PATH OTHER     names what is not the same in both
        checkpoint merge PATH FILE        writes all tensors into one new file of safetensors

    PATH is a folder of steps (the newest counts), one step, a folder with files of safetensors as
    Hugging Face has them (these have no sums), or one such file. merge compares each sum that
    there is, leaves bytes of the program (blobs) out and says so, and gives FILE its name at the
    end; a FILE that exists is not touched. On a terminal, verify, compare and merge draw a bar on
    stderr. Exit code: 0; 1: damage, a difference, PATH cannot be read, or FILE not be written;
    2: wrong arguments. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_checkpoint.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#include <io.h>
#define isatty _isatty
#define NEW_FILE "wb" /* its C library may not know "x" */
#else
#define NEW_FILE "wbx"
#include <unistd.h>
#endif

static int usage(FILE *to) {
    fprintf(to,
        "usage: checkpoint list PATH\n"
        "       checkpoint verify PATH\n"
        "       checkpoint compare PATH OTHER\n"
        "       checkpoint merge PATH FILE\n"
        "PATH: a folder of steps (the newest counts), one step, a folder with files of\n"
        "safetensors, or one such file. merge writes all tensors into FILE, which must be new.\n");
    return to == stdout ? 0 : 2;
}

/* ---- a bar on a terminal ---- */

static uint64_t bar_done, bar_total;

static void bar(uint64_t bytes) {
    bar_done += bytes;
    if (!isatty(2)) return;
    const uint32_t percent =
        bar_total ? (uint32_t)(100.0 * (double)bar_done / (double)bar_total) : 100;
    fprintf(stderr, "\r[%-50.*s] %u%%", (int)(percent / 2),
        "##################################################", percent);
}

static void bar_end(void) {
    if (isatty(2)) fprintf(stderr, "\r%60s\r", "");
}

/* ---- what is there ---- */

static cdp_ckpt_reader *open_path(const char *path) {
    cdp_ckpt_reader *r;
    if (cdp_ckpt_open(path, NULL, &r) != CDP_OK) exit(cdp_print_error(stderr));
    return r;
}

static uint64_t bytes_of(const cdp_ckpt_reader *r) {
    uint64_t all = 0;
    for (uint32_t i = 0; i < cdp_ckpt_count(r); ++i)
        all += cdp_ckpt_entry_at(r, i).bytes;
    return all;
}

static void type_text(const cdp_ckpt_entry *e, char *out, size_t room) {
    size_t n = (size_t)snprintf(out, room, "%s[", e->blob ? "blob" : cdp_dtype_name(e->dtype));
    for (uint32_t d = 0; d < e->ndim && n < room; ++d)
        n += (size_t)snprintf(
            out + n, room - n, d ? ",%llu" : "%llu", (unsigned long long)e->shape[d]);
    if (n < room) snprintf(out + n, room - n, "]");
}

static int list(const char *path) {
    cdp_ckpt_reader *const r = open_path(path);
    for (uint32_t i = 0; i < cdp_ckpt_count(r); ++i) {
        const cdp_ckpt_entry e = cdp_ckpt_entry_at(r, i);
        char type[256];
        type_text(&e, type, sizeof type);
        printf("%-40s %-24s %14llu %s\n", e.name, type, (unsigned long long)e.bytes, e.file);
    }
    printf("step %llu: %u entries, %llu bytes\n", (unsigned long long)cdp_ckpt_step_of(r),
        cdp_ckpt_count(r), (unsigned long long)bytes_of(r));
    cdp_ckpt_close(r);
    return 0;
}

static int verify(const char *path) {
    cdp_ckpt_reader *const r = open_path(path);
    uint32_t bad = 0;
    bar_total = bytes_of(r);
    for (uint32_t i = 0; i < cdp_ckpt_count(r); ++i) {
        const cdp_status st = cdp_ckpt_verify(r, i);
        bar(cdp_ckpt_entry_at(r, i).bytes);
        if (st == CDP_OK) continue;
        bar_end();
        cdp_print_error(stdout);
        ++bad;
        if (st == CDP_ERR_UNSUPPORTED) break; /* no sums at all */
    }
    bar_end();
    printf("step %llu: %u entries, %u of them damaged or not verified\n",
        (unsigned long long)cdp_ckpt_step_of(r), cdp_ckpt_count(r), bad);
    cdp_ckpt_close(r);
    return bad ? 1 : 0;
}

/* ---- elements ---- */

/* The elements of an entry, some rows at a time. */
typedef struct rows {
    uint64_t left, most, row; /* rows; most: at a time; row: its bytes */
    uint64_t bytes, room;     /* of the rows in `box`; of the most rows that are ever there */
    cdp_box box;
} rows;

static rows rows_of(const cdp_ckpt_reader *r, uint32_t i) {
    const cdp_ckpt_entry e = cdp_ckpt_entry_at(r, i);
    rows w;
    memset(&w, 0, sizeof w);
    w.left = e.ndim ? e.shape[0] : 1;
    if (!e.bytes) w.left = 0;
    w.row = w.left ? e.bytes / w.left : 0;
    w.most = w.row && w.row < (8u << 20) ? (8u << 20) / w.row : 1;
    w.room = w.most * w.row + 1;
    memcpy(w.box.size, e.shape, sizeof w.box.size);
    w.box.size[0] = 0;
    return w;
}

/* The next rows, in the bar also those before. False: there are no more. */
static bool rows_next(rows *w) {
    bar(w->bytes);
    w->box.start[0] += w->box.size[0];
    w->box.size[0] = w->left < w->most ? w->left : w->most;
    w->left -= w->box.size[0];
    w->bytes = w->box.size[0] * w->row;
    return w->bytes != 0;
}

/* ---- two of them ---- */

/* Compares elements. Returns 0: equal, 1: different, -1: not readable. */
static int compare_rows(cdp_ckpt_reader *a, uint32_t i, cdp_ckpt_reader *b, uint32_t k) {
    rows w = rows_of(a, i);
    char *const x = (char *)malloc((size_t)w.room), *const y = (char *)malloc((size_t)w.room);
    int result = x && y ? 0 : -1;
    while (result == 0 && rows_next(&w)) {
        if (cdp_ckpt_read(a, i, &w.box, x) != CDP_OK || cdp_ckpt_read(b, k, &w.box, y) != CDP_OK)
            result = -1;
        else if (memcmp(x, y, (size_t)w.bytes) != 0)
            result = 1;
    }
    free(x);
    free(y);
    return result;
}

/* Says what is different of entry i of `a`; returns whether anything is. */
static bool differs(cdp_ckpt_reader *a, uint32_t i, cdp_ckpt_reader *b) {
    const cdp_ckpt_entry e = cdp_ckpt_entry_at(a, i);
    const uint32_t k = cdp_ckpt_find(b, e.name);
    const cdp_ckpt_entry other = cdp_ckpt_entry_at(b, k);
    char one[256], two[256];
    int result;
    if (k == UINT32_MAX) {
        printf("only in the first: %s\n", e.name);
        return true;
    }
    type_text(&e, one, sizeof one);
    type_text(&other, two, sizeof two);
    if (strcmp(one, two) != 0) {
        printf("%s: %s in the first, %s in the second\n", e.name, one, two);
        return true;
    }
    result = compare_rows(a, i, b, k);
    if (!result) return false;
    bar_end();
    if (result < 0) cdp_print_error(stdout);
    printf("%s: %s\n", e.name, result < 0 ? "cannot be read" : "other elements");
    return true;
}

static int compare(const char *path, const char *with) {
    cdp_ckpt_reader *const a = open_path(path), *const b = open_path(with);
    uint32_t different = 0;
    bar_total = bytes_of(a);
    for (uint32_t i = 0; i < cdp_ckpt_count(a); ++i)
        different += differs(a, i, b);
    for (uint32_t i = 0; i < cdp_ckpt_count(b); ++i)
        if (cdp_ckpt_find(a, cdp_ckpt_entry_at(b, i).name) == UINT32_MAX) {
            printf("only in the second: %s\n", cdp_ckpt_entry_at(b, i).name);
            ++different;
        }
    bar_end();
    printf("%u differences\n", different);
    cdp_ckpt_close(a);
    cdp_ckpt_close(b);
    return different ? 1 : 0;
}

/* ---- all tensors in one file ---- */

static bool merge_sums(cdp_ckpt_reader *r) {
    for (uint32_t i = 0; i < cdp_ckpt_count(r); ++i) {
        const cdp_ckpt_entry e = cdp_ckpt_entry_at(r, i);
        if (e.blob) continue;
        const cdp_status st = cdp_ckpt_verify(r, i);
        bar(e.bytes);
        if (st != CDP_OK && st != CDP_ERR_UNSUPPORTED) return false; /* UNSUPPORTED: no sums */
    }
    return true;
}

/* Whether safetensors has the dtypes of all tensors; else says which it lacks. */
static bool merge_fits(const cdp_ckpt_reader *r) {
    for (uint32_t i = 0; i < cdp_ckpt_count(r); ++i) {
        const cdp_ckpt_entry e = cdp_ckpt_entry_at(r, i);
        char word[16];
        if (e.blob || cdp__ck_dtype_word(e.dtype, word)) continue;
        fprintf(stderr, "checkpoint: '%s' is %s, which files of safetensors cannot have\n", e.name,
            cdp_dtype_name(e.dtype));
        return false;
    }
    return true;
}

/* Writes the header of a file that has all tensors. */
static bool merge_header(const cdp_ckpt_reader *r, FILE *f) {
    cdp__ck_table one = r->t; /* with the same texts */
    bool ok = false;
    one.entries = (cdp__ck_entry *)malloc((size_t)r->t.count * sizeof *one.entries + 1);
    one.count = 0;
    for (uint64_t i = 0; one.entries && i < r->t.count; ++i) {
        if (r->t.entries[i].blob) continue;
        one.entries[one.count] = r->t.entries[i];
        one.entries[one.count++].file = 0;
    }
    const size_t bytes = one.entries ? (size_t)cdp__ck_header_bytes(&one, 0) : 0;
    uint8_t *const header = (uint8_t *)malloc(bytes + 1);
    if (one.entries && header) {
        cdp__ck_fill_header(&one, 0, header, bytes);
        ok = fwrite(header, 1, bytes, f) == bytes;
    }
    free(one.entries);
    free(header);
    return ok;
}

/* Copies a tensor. Returns 0, 1: not written, -1: not readable. */
static int merge_rows(cdp_ckpt_reader *r, uint32_t i, FILE *f) {
    rows w = rows_of(r, i);
    char *const x = (char *)malloc((size_t)w.room);
    int result = x ? 0 : 1;
    while (result == 0 && rows_next(&w)) {
        if (cdp_ckpt_read(r, i, &w.box, x) != CDP_OK)
            result = -1;
        else if (fwrite(x, 1, (size_t)w.bytes, f) != w.bytes)
            result = 1;
    }
    free(x);
    return result;
}

static int merge_into(cdp_ckpt_reader *r, FILE *f) {
    int result = merge_header(r, f) ? 0 : 1;
    for (uint32_t i = 0; result == 0 && i < cdp_ckpt_count(r); ++i) {
        if (cdp_ckpt_entry_at(r, i).blob) continue;
        result = merge_rows(r, i, f);
    }
    return result;
}

/* All of the file is on the disk, before it gets its name: it outlives a power cut. */
static bool on_disk(FILE *f) {
#ifdef _WIN32
    return fflush(f) == 0 && _commit(_fileno(f)) == 0;
#else
    return fflush(f) == 0 && fsync(fileno(f)) == 0;
#endif
}

static int merge(const char *path, const char *to) {
    cdp_ckpt_reader *const r = open_path(path);
    char part[4096];
    FILE *f = fopen(to, "rb");
    int result;
    if (f || errno != ENOENT) { /* also one that may not be read */
        fprintf(stderr,
            f ? "checkpoint: %s exists: name a file that does not\n"
              : "checkpoint: %s cannot be made\n",
            to);
        if (f) fclose(f);
        cdp_ckpt_close(r);
        return 1;
    }
    if (!merge_fits(r)) {
        cdp_ckpt_close(r);
        return 1;
    }
    bar_total = 2 * bytes_of(r);
    if (!merge_sums(r)) {
        bar_end();
        cdp_ckpt_close(r);
        return cdp_print_error(stderr);
    }
    f = snprintf(part, sizeof part, "%s.part", to) < (int)sizeof part ? fopen(part, NEW_FILE)
                                                                      : NULL;
    if (f == NULL) {
        const bool there = errno == EEXIST;
        bar_end();
        fprintf(stderr,
            there ? "checkpoint: %s.part exists, of a merge that runs or was ended: remove it\n"
                  : "checkpoint: %s cannot be made\n",
            to);
        cdp_ckpt_close(r);
        return 1;
    }
    result = merge_into(r, f);
    bar_end();
    if (result < 0) cdp_print_error(stderr);
    if (!result && !on_disk(f)) result = 1;
    if (fclose(f) != 0 && !result) result = 1;
    if (!result && rename(part, to) != 0) result = 1;
    if (result) {
        if (result > 0) fprintf(stderr, "checkpoint: %s cannot be written\n", to);
        remove(part);
    }
    for (uint32_t i = 0; !result && i < cdp_ckpt_count(r); ++i)
        if (cdp_ckpt_entry_at(r, i).blob) printf("left out: %s\n", cdp_ckpt_entry_at(r, i).name);
    cdp_ckpt_close(r);
    return result ? 1 : 0;
}

int main(int argc, char **argv) {
    const char *const what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "--help") == 0 || strcmp(what, "-h") == 0) return usage(stdout);
    if (argc == 3 && strcmp(what, "list") == 0) return list(argv[2]);
    if (argc == 3 && strcmp(what, "verify") == 0) return verify(argv[2]);
    if (argc == 4 && strcmp(what, "compare") == 0) return compare(argv[2], argv[3]);
    if (argc == 4 && strcmp(what, "merge") == 0) return merge(argv[2], argv[3]);
    return usage(stderr);
}
