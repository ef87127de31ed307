/*  checkpoint.c - lists, verifies, compares, merges, converts and draws what cdp_checkpoint.h saved

        gcc -O2 tools/checkpoint.c -o checkpoint -pthread -lm
        checkpoint list PATH              tensors and blobs: dtype, shape, bytes, file
        checkpoint verify PATH            compares every sum; names each tensor that is damaged
        checkpoint compare PATH OTHER     names what is not the same in both
        checkpoint merge PATH FILE        writes all tensors into one new file of safetensors
        checkpoint convert PATH FILE --dtype bf16    the same; floats become floats of this dtype
        checkpoint convert PATH FILE.pt   into a file for torch.load(), with --dtype or without
        checkpoint show PATH > page.svg   draws which rank had what of each tensor, as SVG

    PATH is a folder of steps (the newest counts), one step, a folder with files of safetensors as
    Hugging Face has them (these have no sums), or one such file. merge compares each sum that
    there is, leaves bytes of the program (blobs) out and says so, and gives FILE its name at the
    end; a FILE that exists is not touched. A FILE whose name ends with .pt or .pth is a dict of
    names and tensors that torch.load(FILE, weights_only=True) reads; any other one is safetensors.
    convert rounds as cdp_convert() does: what f16 or f8 cannot hold becomes infinite, or NaN.
    Integers stay what they are. show reads no elements; the picture follows the light or dark
    scheme of its page. On a terminal, verify, compare, merge and convert draw a bar on stderr. Exit
    code: 0; 1: damage, a difference, PATH cannot be read, or FILE not be written; 2: wrong
    arguments. */
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
#include "checkpoint_torch.h"

static int usage(FILE *to) {
    fprintf(to,
        "usage: checkpoint list PATH\n"
        "       checkpoint verify PATH\n"
        "       checkpoint compare PATH OTHER\n"
        "       checkpoint merge PATH FILE\n"
        "       checkpoint convert PATH FILE [--dtype f32|f16|bf16|...]\n"
        "       checkpoint show PATH > page.svg\n"
        "PATH: a folder of steps (the newest counts), one step, a folder with files of\n"
        "safetensors, or one such file. merge writes all tensors into FILE, which must be new;\n"
        "convert does so, too, and rounds each float once. A FILE that ends with .pt or .pth is\n"
        "for torch.load(), any other one is safetensors. show draws how tensors were cut.\n");
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

/* What is written: a file of safetensors, or, in `zip`, one for torch.load(). */
typedef struct target {
    FILE *f;
    bool torch;
    zip_file zip;
    cdp_dtype to; /* what floats become; CDP_DTYPE_COUNT: nothing changes */
} target;

static bool ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n > m && strcmp(text + n - m, end) == 0;
}

static bool is_torch(const char *path) {
    return ends_with(path, ".pt") || ends_with(path, ".pth");
}

/* Whether the format has the dtypes of all tensors; else says which it lacks. */
static bool merge_fits(const cdp_ckpt_reader *r, bool torch) {
    for (uint32_t i = 0; i < cdp_ckpt_count(r); ++i) {
        const cdp_ckpt_entry e = cdp_ckpt_entry_at(r, i);
        char word[16];
        if (e.blob
            || (torch ? torch_dtype(e.dtype) != UINT32_MAX : cdp__ck_dtype_word(e.dtype, word)))
            continue;
        fprintf(stderr, "checkpoint: '%s' is %s, which files of %s cannot have\n", e.name,
            cdp_dtype_name(e.dtype), torch ? "PyTorch" : "safetensors");
        return false;
    }
    return true;
}

/* What an element becomes: floats become `to`; CDP_DTYPE_COUNT: nothing changes. */
static cdp_dtype dtype_after(cdp_dtype from, cdp_dtype to) {
    return to != CDP_DTYPE_COUNT && cdp__dtype_row_of(from)->kind == CDP__FLOAT ? to : from;
}

/* Fills order[] with the tensors in their order in the file: large elements first, so that all are
   aligned. Returns how many. */
static uint32_t merge_order(const cdp_ckpt_reader *r, cdp_dtype to, uint32_t *order) {
    uint32_t n = 0;
    for (uint64_t size = 8; size; size /= 2)
        for (uint32_t i = 0; i < cdp_ckpt_count(r); ++i) {
            const cdp_ckpt_entry e = cdp_ckpt_entry_at(r, i);
            if (!e.blob && cdp_dtype_size(dtype_after(e.dtype, to)) == size) order[n++] = i;
        }
    return n;
}

/* Writes the header of a file that has these tensors. */
static bool merge_header(
    const cdp_ckpt_reader *r, cdp_dtype to, const uint32_t *order, uint32_t n, FILE *f) {
    cdp__ck_table one = r->t; /* with the same texts */
    bool ok = false;
    one.entries = (cdp__ck_entry *)malloc(n * sizeof *one.entries + 1);
    one.count = n;
    for (uint32_t i = 0; one.entries && i < n; ++i) {
        cdp__ck_entry *const e = &one.entries[i];
        *e = r->t.entries[order[i]];
        e->file = 0;
        e->bytes /= cdp_dtype_size(e->dtype);
        e->dtype = dtype_after(e->dtype, to);
        e->bytes *= cdp_dtype_size(e->dtype);
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

/* Converts elements; where they are, if they do not become larger. NULL: they cannot be. */
static char *converted(char *x, char *y, cdp_dtype from, cdp_dtype to, uint64_t count) {
    char *const into = cdp_dtype_size(to) > cdp_dtype_size(from) ? y : x;
    if (from == to) return x;
    return into && cdp_convert(x, from, into, to, count, NULL) == CDP_OK ? into : NULL;
}

static bool target_put(target *t, const void *data, uint64_t bytes) {
    if (!t->torch) return fwrite(data, 1, (size_t)bytes, t->f) == bytes;
    zip_more(&t->zip, data, bytes);
    return t->zip.ok;
}

/* Copies a tensor. Returns 0, 1: not written, -1: not readable. */
static int merge_rows(cdp_ckpt_reader *r, uint32_t i, target *t) {
    const cdp_dtype from = cdp_ckpt_entry_at(r, i).dtype, as = dtype_after(from, t->to);
    const uint64_t elem = cdp_dtype_size(from), size = cdp_dtype_size(as);
    rows w = rows_of(r, i);
    char *const x = (char *)malloc((size_t)w.room);
    char *const y = size > elem ? (char *)malloc((size_t)(w.room / elem * size + size)) : NULL;
    int result = x ? 0 : 1;
    while (result == 0 && rows_next(&w)) {
        const uint64_t count = w.bytes / elem;
        const char *out = NULL;
        if (cdp_ckpt_read(r, i, &w.box, x) != CDP_OK)
            result = -1;
        else if (!(out = converted(x, y, from, as, count)) || !target_put(t, out, count * size))
            result = 1;
    }
    free(x);
    free(y);
    return result;
}

static int merge_into(cdp_ckpt_reader *r, target *t) {
    uint32_t *const order = (uint32_t *)malloc(cdp_ckpt_count(r) * sizeof *order + 1);
    const uint32_t n = order ? merge_order(r, t->to, order) : 0;
    int result = order && merge_header(r, t->to, order, n, t->f) ? 0 : 1;
    for (uint32_t i = 0; result == 0 && i < n; ++i)
        result = merge_rows(r, order[i], t);
    free(order);
    return result;
}

/* ---- all tensors in one file for torch.load() ---- */

static cdp_ckpt_entry entry_after(const cdp_ckpt_reader *r, uint32_t i, cdp_dtype to) {
    cdp_ckpt_entry e = cdp_ckpt_entry_at(r, i);
    e.bytes /= cdp_dtype_size(e.dtype);
    if (!e.blob) e.dtype = dtype_after(e.dtype, to);
    e.bytes *= cdp_dtype_size(e.dtype);
    return e;
}

static void torch_pickle(const cdp_ckpt_reader *r, cdp_dtype to, cdp__text *t) {
    uint32_t key = 0;
    cdp__text_bytes(t, "\x80\x02}(", 4);
    for (uint32_t i = 0; i < cdp_ckpt_count(r); ++i) {
        const cdp_ckpt_entry e = entry_after(r, i, to);
        if (e.blob) continue;
        pickle_text(t, e.name);
        pickle_tensor(t, &e, key++);
    }
    cdp__text_add(t, "u.");
}

/* The members before those of tensors. */
static bool torch_begin(cdp_ckpt_reader *r, target *t) {
    cdp__text text = cdp__text_of(NULL, 0);
    torch_pickle(r, t->to, &text);
    const uint64_t room = text.used + 1;
    char *const memory = (char *)malloc((size_t)room);
    if (!memory) return false;
    text = cdp__text_of(memory, room);
    torch_pickle(r, t->to, &text);
    zip_text(&t->zip, "data.pkl", memory, text.used);
    zip_text(&t->zip, "byteorder", "little", 6);
    zip_text(&t->zip, "version", "3\n", 2);
    free(memory);
    return t->zip.ok;
}

static int torch_into(cdp_ckpt_reader *r, target *t) {
    const uint32_t n = cdp_ckpt_count(r);
    zip_member *const members = (zip_member *)malloc((n + (size_t)3) * sizeof *members);
    uint32_t key = 0;
    int result = 1;
    if (!members) return 1;
    zip_open(&t->zip, t->f, members);
    if (torch_begin(r, t)) result = 0;
    for (uint32_t i = 0; result == 0 && i < n; ++i) {
        const cdp_ckpt_entry e = entry_after(r, i, t->to);
        char name[24];
        if (e.blob) continue;
        snprintf(name, sizeof name, "data/%u", key++);
        zip_begin(&t->zip, name, e.bytes);
        result = merge_rows(r, i, t);
        zip_end(&t->zip);
    }
    if (!result && !zip_close(&t->zip)) result = 1;
    free(members);
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

static int merge(const char *path, const char *to, cdp_dtype dtype) {
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
    if (!merge_fits(r, is_torch(to))) {
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
    target t;
    memset(&t, 0, sizeof t);
    t.f = f;
    t.torch = is_torch(to);
    t.to = dtype;
    result = t.torch ? torch_into(r, &t) : merge_into(r, &t);
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

static int convert(const char *path, const char *to, const char *name) {
    for (int d = 1; d < CDP_DTYPE_COUNT; ++d) {
        char word[16]; /* that safetensors has for it */
        if (strcmp(name, cdp_dtype_name((cdp_dtype)d)) == 0
            && cdp__dtype_row_of((cdp_dtype)d)->kind == CDP__FLOAT
            && cdp__ck_dtype_word((cdp_dtype)d, word))
            return merge(path, to, (cdp_dtype)d);
    }
    fprintf(
        stderr, "checkpoint: --dtype %s is no dtype of floats; such as f32, f16 or bf16\n", name);
    return 2;
}

/* ---- a picture ---- */

enum {
    SHOW_WIDTH = 640,
    SHOW_BOX = 40,   /* height of a tensor */
    SHOW_EACH = 66,  /* with its text */
    SHOW_RANKS = 256 /* more are not drawn one by one */
};

/* Writes a text of somebody else into XML. */
static void show_text(cdp__text *t, const char *text) {
    for (; *text; ++text)
        if (*text == '&')
            cdp__text_add(t, "&amp;");
        else if (*text == '<')
            cdp__text_add(t, "&lt;");
        else if (*text == '>')
            cdp__text_add(t, "&gt;");
        else
            cdp__text_char(t, (uint8_t)*text < ' ' ? '?' : *text);
}

/* Takes numbers like "2x4" from a text; returns what is behind them, or NULL. */
static const char *show_numbers(const char *s, uint64_t *out, uint32_t max, uint32_t *n) {
    for (*n = 0; *n < max; ++s) {
        char *end;
        out[(*n)++] = strtoull(s, &end, 10);
        if (end == s || *s == '-' || !out[*n - 1]) return NULL;
        s = end;
        if (*s != 'x') return s;
    }
    return NULL;
}

/* Makes the layout that a tensor was saved with, on paper; false: its text cannot be read back,
   such as that of a cut. */
static bool show_layout(const cdp_ckpt_entry *e, cdp_layout *l, cdp_mesh **mesh) {
    const char *const on = e->layout ? strstr(e->layout, " on ") : NULL;
    uint64_t shape[CDP_MESH_DIMS];
    char places[256];
    cdp_mesh_desc d;
    const char *s;
    *mesh = NULL;
    if (!on || on - e->layout >= (int)sizeof places) return false;
    memset(&d, 0, sizeof d);
    memset(l, 0, sizeof *l);
    memcpy(places, e->layout, (size_t)(on - e->layout));
    places[on - e->layout] = 0;
    s = show_numbers(on + 4, shape, CDP_MESH_DIMS, &d.ndim);
    if (!s) return false;
    l->ndim = e->ndim;
    memcpy(l->shape, e->shape, sizeof l->shape);
    if (strncmp(s, " of ", 4) == 0) s = show_numbers(s + 4, l->shape, CDP_TENSOR_DIMS, &l->ndim);
    if (!s || *s) return false;
    d.paper_ranks = 1;
    for (uint32_t k = 0; k < d.ndim; ++k) {
        if (shape[k] > SHOW_RANKS / d.paper_ranks) return false;
        d.shape[k] = (uint32_t)shape[k];
        d.paper_ranks *= d.shape[k];
    }
    l->dtype = e->dtype;
    if (cdp_mesh_create(&d, mesh) != CDP_OK) return false;
    l->mesh = *mesh;
    return cdp_layout_parse(l, places) == CDP_OK;
}

/* The box of a rank, whose coordinates are those of its number in the mesh. */
static bool show_rank(const cdp_layout *l, uint32_t rank, cdp_box *box) {
    const cdp_mesh_desc *const m = cdp_mesh_desc_of(l->mesh);
    uint32_t coord[CDP_MESH_DIMS];
    for (uint32_t d = m->ndim; d-- > 0; rank /= m->shape[d])
        coord[d] = rank % m->shape[d];
    memset(box, 0, sizeof *box);
    return cdp_layout_box(l, coord, box) != 0;
}

/* Which two dimensions go down and across: those that are cut. False: more are. */
static bool show_dims(const cdp_layout *l, uint32_t dims[2]) {
    const uint32_t ranks = cdp_mesh_desc_of(l->mesh)->paper_ranks;
    uint32_t n = 0, cut[CDP_TENSOR_DIMS];
    for (uint32_t d = 0; d < l->ndim; ++d) {
        bool is_cut = false;
        cdp_box box;
        for (uint32_t k = 0; k < ranks; ++k)
            is_cut = is_cut || (show_rank(l, k, &box) && box.size[d] != l->shape[d]);
        if (is_cut) cut[n++] = d;
    }
    dims[0] = n ? cut[0] : 0;
    dims[1] = n > 1 ? cut[1] : l->ndim;
    return n <= 2;
}

static void show_box(cdp__text *t, uint32_t tint, const double at[4], const char *inside) {
    cdp__text_add(t, "<rect class=\"box\" x=\"");
    cdp__text_tenths(t, 10 + at[0] * (SHOW_WIDTH - 20));
    cdp__text_add(t, "\" y=\"");
    cdp__text_tenths(t, at[1]);
    cdp__text_add(t, "\" width=\"");
    cdp__text_tenths(t, at[2] * (SHOW_WIDTH - 20));
    cdp__text_add(t, "\" height=\"");
    cdp__text_tenths(t, at[3]);
    cdp__text_add(t, "\" fill=\"%s\"><title>%s</title></rect>\n", cdp__svg_tint(tint), inside);
    if (at[2] * (SHOW_WIDTH - 20) < 7.0 * (double)strlen(inside) || at[3] < 12) return;
    cdp__text_add(t, "<text class=\"in\" x=\"");
    cdp__text_tenths(t, 14 + at[0] * (SHOW_WIDTH - 20));
    cdp__text_add(t, "\" y=\"");
    cdp__text_tenths(t, at[1] + at[3] / 2 + 4);
    cdp__text_add(t, "\">%s</text>\n", inside);
}

/* The ranks that have the box of `rank`; false: one with a lower number has it, too. */
static bool show_holders(const cdp_layout *l, uint32_t rank, const cdp_box *box, char text[64]) {
    const uint32_t ranks = cdp_mesh_desc_of(l->mesh)->paper_ranks;
    cdp__text t = cdp__text_of(text, 64);
    uint32_t n = 0;
    for (uint32_t k = 0; k < ranks; ++k) {
        cdp_box other;
        if (!show_rank(l, k, &other) || memcmp(&other, box, sizeof other) != 0) continue;
        if (k < rank) return false;
        if (n++ < 4) cdp__text_add(&t, n > 1 ? " %u" : "%u", k);
    }
    if (n > 4) cdp__text_add(&t, " +%u", n - 4);
    (void)cdp__text_end(&t);
    return true;
}

/* Draws who had what of a tensor. False: it is not known. */
static bool show_boxes(cdp__text *t, const cdp_layout *l, double y) {
    uint32_t dims[2];
    if (!l->ndim || !show_dims(l, dims)) return false;
    for (uint32_t k = 0; k < cdp_mesh_desc_of(l->mesh)->paper_ranks; ++k) {
        const uint32_t down = dims[0], across = dims[1];
        const bool lone = across == l->ndim; /* one dimension is cut: side by side */
        char holders[64];
        cdp_box box;
        double at[4] = {0, y, 1, SHOW_BOX};
        if (!show_rank(l, k, &box) || !show_holders(l, k, &box, holders)) continue;
        const uint32_t x = lone && l->ndim == 1 ? down : across;
        if (x < l->ndim) {
            at[0] = (double)box.start[x] / (double)l->shape[x];
            at[2] = (double)box.size[x] / (double)l->shape[x];
        }
        if (x != down) {
            at[1] += SHOW_BOX * (double)box.start[down] / (double)l->shape[down];
            at[3] = SHOW_BOX * (double)box.size[down] / (double)l->shape[down];
        }
        show_box(t, k, at, holders);
    }
    return true;
}

static void show_entry(cdp__text *t, const cdp_ckpt_entry *e, uint32_t y) {
    const double whole[4] = {0, y + 18, 1, SHOW_BOX};
    cdp_mesh *mesh = NULL;
    cdp_layout l;
    char type[256];
    bool drawn;
    type_text(e, type, sizeof type);
    cdp__text_add(t, "<text x=\"10\" y=\"%u\">", y + 12);
    show_text(t, e->name);
    cdp__text_add(t, " <tspan class=\"thin\">%s ", type);
    show_text(t, e->layout ? e->layout : "");
    cdp__text_add(t, " in ");
    show_text(t, e->file);
    cdp__text_add(t, "</tspan></text>\n");
    drawn = show_layout(e, &l, &mesh) && show_boxes(t, &l, y + 18);
    if (!drawn) show_box(t, 7, whole, e->layout ? "cut otherwise" : "no mesh");
    cdp_mesh_destroy(mesh);
}

static uint64_t show_page(const cdp_ckpt_reader *r, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    uint32_t n = 0;
    for (uint32_t i = 0; i < cdp_ckpt_count(r); ++i)
        n += !cdp_ckpt_entry_at(r, i).blob;
    cdp__svg_begin(&t, SHOW_WIDTH, 30 + n * SHOW_EACH);
    cdp__text_add(&t, "<text x=\"10\" y=\"18\">step %llu: %u tensors; numbers are ranks</text>\n",
        (unsigned long long)cdp_ckpt_step_of(r), n);
    for (uint32_t i = 0, y = 28; i < cdp_ckpt_count(r); ++i) {
        const cdp_ckpt_entry e = cdp_ckpt_entry_at(r, i);
        if (e.blob) continue;
        show_entry(&t, &e, y);
        y += SHOW_EACH;
    }
    cdp__text_add(&t, "</svg>\n");
    return cdp__text_end(&t);
}

static int show(const char *path) {
    cdp_ckpt_reader *const r = open_path(path);
    const uint64_t bytes = show_page(r, NULL, 0);
    char *const page = (char *)malloc((size_t)bytes + 1);
    int result = 1;
    if (page) {
        (void)show_page(r, page, bytes + 1);
        result = fwrite(page, 1, (size_t)bytes, stdout) == bytes && fflush(stdout) == 0 ? 0 : 1;
    }
    if (result) fprintf(stderr, "checkpoint: the picture cannot be written\n");
    free(page);
    cdp_ckpt_close(r);
    return result;
}

int main(int argc, char **argv) {
    const char *const what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "--help") == 0 || strcmp(what, "-h") == 0) return usage(stdout);
    if (argc == 3 && strcmp(what, "list") == 0) return list(argv[2]);
    if (argc == 3 && strcmp(what, "verify") == 0) return verify(argv[2]);
    if (argc == 4 && strcmp(what, "compare") == 0) return compare(argv[2], argv[3]);
    if (argc == 4 && strcmp(what, "merge") == 0) return merge(argv[2], argv[3], CDP_DTYPE_COUNT);
    if (argc == 4 && strcmp(what, "convert") == 0) return merge(argv[2], argv[3], CDP_DTYPE_COUNT);
    if (argc == 6 && strcmp(what, "convert") == 0 && strcmp(argv[4], "--dtype") == 0)
        return convert(argv[2], argv[3], argv[5]);
    if (argc == 3 && strcmp(what, "show") == 0) return show(argv[2]);
    return usage(stderr);
}
