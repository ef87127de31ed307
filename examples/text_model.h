/*  text_model.h - a small transformer that predicts the next byte of a text, written out by hand

    03_train_text.c (DDP), 11_pipeline.c (stages), 21_elastic.c (ranks die and join),
    23_slow_network.c (few bytes) and 24_fsdp.c (shards) train it; 26_gpt2.c and gpt_model.h have
    its layers.
    Include it after a header of cdp. Only gradient_done() calls cdp for the sake of training;
    everything else is what a program has before it is given several ranks.

    The model: token and position embeddings, blocks (layer norm, causal attention, layer norm, a
    two-layer perceptron with GELU), a last layer norm, and one score for each possible byte. The
    forward pass, the backward pass and the Adam optimizer need nothing but the C library.

    Contents (search for ">>"): tools, files, text, matmul, model, adam.                        */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#ifndef TEXT_MODEL_INCLUDED
#define TEXT_MODEL_INCLUDED

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef _WIN32 /* what POSIX has beyond it; gcc -static and -lws2_32 -lbcrypt in place of -pthread */
#include <io.h>
#define fsync _commit
#define lstat stat
#define rename(from, to) (MoveFileExA(from, to, MOVEFILE_REPLACE_EXISTING) ? 0 : -1)
#else
#define O_BINARY 0
#endif

/* the unit test compares gradients with finite differences, which takes doubles */
#ifdef TRAIN_TEXT_DOUBLE
typedef double real;
#define REAL_DTYPE CDP_DTYPE_F64
#define REAL_EXP exp
#define REAL_SQRT sqrt
#else
typedef float real;
#define REAL_DTYPE CDP_DTYPE_F32
#define REAL_EXP expf
#define REAL_SQRT sqrtf
#endif

#ifndef VOCABULARY
#define VOCABULARY 256u /* a token is a byte */
#endif

/* ---- >>tools --------------------------------------------------------------------------------- */

/* Functions that some of the programs do not call are inline: compilers do not warn of those. */

static unsigned long long llu(uint64_t number) {
    return number;
} /* for printf */

/* Why something failed: one sentence for the user. */
typedef struct reason {
    char text[400];
} reason;

__attribute__((format(printf, 2, 3))) static bool because(reason *why, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(why->text, sizeof why->text, format, args);
    va_end(args);
    return false; /* so that a function can end with `return because(why, ...)` */
}

/* Launchers show the last reason that a rank has recorded. */
static inline void complain(const reason *why) {
    fprintf(stderr, "train_text: %s\n", why->text);
    (void)cdp_error_record_from_env(why->text);
}

/* After a failed cdp call the library knows the whole story; this prints and records it. */
static inline bool worked(cdp_status status) {
    if (status == CDP_OK) return true;
    (void)cdp_error_record_from_env(NULL);
    cdp_print_error(stderr);
    return false;
}

/* A launcher (cdprun, torchrun, Slurm, mpirun) tells each process its rank; without one this
   process is alone. */
static inline bool join_world(cdp_group **world, bool *alone) {
    cdp_launch launch;
    if (!worked(cdp_launch_read(NULL, NULL, &launch))) return false;
    *alone = !launch.launcher[0];
    return worked(cdp_init_from_env(&(cdp_tcp_desc){.alone_ok = true}, world));
}

static void *need(uint64_t count, uint64_t size) {
    void *got = NULL;
    if (count == 0) count = 1;
    if (count <= SIZE_MAX / 2 / size) got = calloc((size_t)count, (size_t)size);
    if (!got) {
        fprintf(stderr, "train_text: out of memory (%llu x %llu bytes)\n", llu(count), llu(size));
        exit(1);
    }
    return got;
}

static real *need_reals(uint64_t count) {
    return (real *)need(count, sizeof(real));
}

/* Scrambles 64 bits so that neighbours in become strangers out (the finalizer of splitmix64). */
static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* The random number with this name. There is no hidden state: any process can draw any of them,
   in any order, and a resumed run draws what the uninterrupted one would have drawn. */
static uint64_t draw(uint64_t seed, uint64_t a, uint64_t b) {
    return mix(
        mix(mix(seed + 0x9e3779b97f4a7c15u) ^ (a + 0x632be59bd9b4e019u)) + b * 0x9e3779b97f4a7c15u);
}

static double draw_unit(uint64_t seed, uint64_t a, uint64_t b) {
    return (double)(draw(seed, a, b) >> 11) / 9007199254740992.0;
}

/* A 64-bit hash, eight bytes at a time. Each step is invertible, so a change in one place can
   never get lost. */
static uint64_t hash_bytes(uint64_t hash, const void *data, uint64_t bytes) {
    const uint8_t *p = (const uint8_t *)data;
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        hash = (hash ^ word) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    for (; bytes > 0; --bytes, ++p) {
        hash = (hash ^ *p) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    return mix(hash);
}

/* Text that grows. */
typedef struct page {
    char *at;
    size_t bytes, room;
} page;

static void page_grow(page *p, size_t more) {
    if (p->room - p->bytes > more) return;
    p->room = p->room * 2 + more + 4096;
    p->at = (char *)realloc(p->at, p->room);
    if (!p->at) need(SIZE_MAX, 1); /* says that memory is out */
}

__attribute__((format(printf, 2, 3))) static inline void page_add(
    page *p, const char *format, ...) {
    va_list args;
    va_start(args, format);
    page_grow(p, 1000);
    const int n = vsnprintf(p->at + p->bytes, 1000, format, args);
    if (n > 0) p->bytes += n < 1000 ? (size_t)n : 999;
    va_end(args);
}

/* ---- >>files --------------------------------------------------------------------------------- */

static bool write_all(int fd, const void *data, size_t bytes) {
    const char *p = (const char *)data;
    while (bytes > 0) {
        const ssize_t n = write(fd, p, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return false;
        p += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* The folder that a path lies in: "a/b" is in "a/", "b" in ".". */
static const char *folder_of(const char *path, char folder[1024]) {
    const char *slash = strrchr(path, '/');
    snprintf(folder, 1024, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    return folder;
}

/* A rename is only safe against power loss once the folder itself is on the disk. */
static bool sync_folder_of(const char *path) {
#ifdef _WIN32
    (void)path; /* a folder is no file there */
    return true;
#else
    char folder[1024];
    const int fd = open(folder_of(path, folder), O_RDONLY | O_DIRECTORY);
    /* EINVAL: a file system that needs no sync */
    const bool ok = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);
    if (fd >= 0) close(fd);
    return ok;
#endif
}

/* Whole or not at all: readers see the old file or the new one, never half of it, even when the
   power fails. */
static inline bool file_write(const char *path, const void *data, size_t bytes, reason *why) {
    char temporary[1024];
    if (snprintf(temporary, sizeof temporary, "%s.tmp", path) >= (int)sizeof temporary)
        return because(why, "the path of the file to write is too long: %.300s", path);
    const int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_BINARY, 0666);
    if (fd < 0) return because(why, "cannot create %s: %s", temporary, strerror(errno));
    bool ok = write_all(fd, data, bytes) && fsync(fd) == 0;
    int error = errno; /* of the first thing that went wrong: what follows may overwrite it */
    if (close(fd) != 0 && ok) {
        ok = false;
        error = errno;
    }
    if (ok && (rename(temporary, path) != 0 || !sync_folder_of(path))) {
        ok = false;
        error = errno;
    }
    if (ok) return true;
    unlink(temporary);
    return because(why, "cannot write %s: %s", path, strerror(error));
}

static bool file_read(const char *path, uint8_t **data, size_t *bytes, reason *why) {
    FILE *file = fopen(path, "rb");
    *data = NULL;
    *bytes = 0;
    if (!file) return because(why, "cannot read %s: %s", path, strerror(errno));
    page p = {0};
    size_t n;
    errno = 0;
    do {
        page_grow(&p, 1u << 16);
        n = fread(p.at + p.bytes, 1, p.room - p.bytes, file);
        p.bytes += n;
    } while (n > 0);
    int error = 0;
    if (ferror(file)) error = errno ? errno : EIO;
    fclose(file);
    *data = (uint8_t *)p.at;
    *bytes = p.bytes;
    if (!error) return true;
    free(p.at);
    return because(why, "cannot read %s: %s", path, strerror(error));
}

/* ---- >>text ---------------------------------------------------------------------------------- */

typedef struct corpus {
    page all;              /* every file, one after the other; empty after corpus_split() */
    uint8_t *train, *held; /* what is learnt from, and what only the score is taken from */
    size_t train_bytes, held_bytes;
    uint64_t files, skipped; /* skipped: files that hold NUL bytes and so are no text */
    uint64_t hash;
} corpus;

typedef struct name_list {
    char **at;
    size_t count, room;
} name_list;

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void names_free(name_list *names) {
    for (size_t i = 0; i < names->count; ++i)
        free(names->at[i]);
    free(names->at);
}

static bool has_suffix(const char *name, const char *suffix) {
    const size_t n = strlen(name), k = strlen(suffix);
    return n >= k && strcmp(name + n - k, suffix) == 0;
}

/* The visible names in a folder that end in `suffix`, sorted: the order in which a folder lists
   its files differs from machine to machine, and all ranks must read the same text. */
static bool names_in(const char *folder, const char *suffix, name_list *names, reason *why) {
    DIR *dir = opendir(folder);
    if (!dir) return because(why, "cannot open the folder %s: %s", folder, strerror(errno));
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        /* so no .git either */
        if (entry->d_name[0] == '.' || !has_suffix(entry->d_name, suffix)) continue;
        if (names->count == names->room) {
            names->room = names->room * 2 + 32;
            names->at = (char **)realloc(names->at, names->room * sizeof *names->at);
            if (!names->at) need(SIZE_MAX, 1);
        }
        const size_t length = strlen(entry->d_name);
        names->at[names->count++] = (char *)memcpy(need(length + 1, 1), entry->d_name, length);
    }
    closedir(dir);
    if (names->count) qsort(names->at, names->count, sizeof *names->at, compare_names);
    return true;
}

static bool corpus_add_file(corpus *c, const char *path, reason *why) {
    uint8_t *data;
    size_t bytes;
    if (!file_read(path, &data, &bytes, why)) return false;
    if (memchr(data, 0, bytes)) {
        ++c->skipped;
    } else {
        page_grow(&c->all, bytes + 1);
        memcpy(c->all.at + c->all.bytes, data, bytes);
        c->all.bytes += bytes;
        if (bytes && data[bytes - 1] != '\n') c->all.at[c->all.bytes++] = '\n';
        ++c->files;
    }
    free(data);
    return true;
}

static bool corpus_add_folder(corpus *c, const char *folder, const char *suffix, reason *why);

/* A symbolic link counts when it was named on the command line; inside a folder it could lead
   round in circles. */
static bool corpus_add(corpus *c, const char *path, bool named, reason *why) {
    struct stat info;
    if ((named ? stat : lstat)(path, &info) != 0)
        return because(why, "cannot read %s: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode)) return corpus_add_folder(c, path, "", why);
    if (S_ISREG(info.st_mode)) return corpus_add_file(c, path, why);
    return !named || because(why, "%s is neither a file nor a folder", path);
}

static bool corpus_add_folder(corpus *c, const char *folder, const char *suffix, reason *why) {
    name_list names = {0};
    bool ok = names_in(folder, suffix, &names, why);
    for (size_t i = 0; ok && i < names.count; ++i) {
        char path[4096];
        if (snprintf(path, sizeof path, "%s/%s", folder, names.at[i]) >= (int)sizeof path)
            ok = because(why, "a path below %.300s is too long", folder);
        else
            ok = corpus_add(c, path, false, why);
    }
    names_free(&names);
    return ok;
}

/* Without any text named: what came with the repository, looked for here, beside the program,
   and above it. */
static bool corpus_add_repository(corpus *c, const char *program, reason *why) {
    const char *slash = strrchr(program, '/');
    const int length = slash ? (int)(slash - program) : 1;
    for (int i = 0; i < 3; ++i) {
        char root[1024], path[1100];
        snprintf(root, sizeof root, "%.*s%s", i ? length : 1, i && slash ? program : ".",
            i == 2 ? "/.." : "");
        snprintf(path, sizeof path, "%s/cdp.h", root);
        if (access(path, R_OK) != 0) continue;
        snprintf(path, sizeof path, "%s/examples", root);
        return corpus_add_folder(c, root, ".h", why) && corpus_add_folder(c, root, ".md", why)
            && (access(path, R_OK) != 0 || corpus_add_folder(c, path, ".c", why));
    }
    return because(why,
        "no text: cdp.h is neither here nor beside the program; name text files or folders to "
        "train on");
}

/* Every tenth piece is held out: never trained on, so that the score on it tells learning from
   remembering. Pieces from everywhere, rather than the last tenth, so that both parts are of the
   same kind. */
static bool corpus_split(corpus *c, uint64_t context, reason *why) {
    const size_t total = c->all.bytes, piece = total / 10 < 8192 ? total / 10 : 8192;
    if (total == 0)
        return because(why,
            "no text to train on: of the files named, %llu are empty and %llu are not text",
            llu(c->files), llu(c->skipped));
    if (piece < context + 1)
        return because(why,
            "the text of %zu bytes is too short for a context of %llu bytes: %llu bytes are needed",
            total, llu(context), llu(10 * context + 10));
    c->hash = hash_bytes(0, c->all.at, total);
    c->train = (uint8_t *)need(total, 1);
    c->held = (uint8_t *)need(total, 1);
    for (size_t at = 0, i = 0; at < total; at += piece, ++i) {
        const size_t n = total - at < piece ? total - at : piece;
        const bool hold = i % 10 == 9;
        memcpy(hold ? c->held + c->held_bytes : c->train + c->train_bytes, c->all.at + at, n);
        *(hold ? &c->held_bytes : &c->train_bytes) += n;
    }
    free(c->all.at);
    c->all = (page){0};
    return true;
}

static inline bool corpus_gather(
    corpus *c, char **paths, int count, const char *program, uint64_t context, reason *why) {
    bool ok = count > 0 || corpus_add_repository(c, program, why);
    for (int i = 0; ok && i < count; ++i)
        ok = corpus_add(c, paths[i], true, why);
    return ok && corpus_split(c, context, why);
}

static inline void corpus_free(corpus *c) {
    free(c->all.at);
    free(c->train);
    free(c->held);
    *c = (corpus){0};
}

/* ---- >>matmul -------------------------------------------------------------------------------- */

/* A view of a matrix: element (i, j) lies at at[i * down + j * right]. Transposing swaps numbers
   and moves no memory. */
typedef struct matrix {
    real *at;
    size_t rows, cols, down, right;
} matrix;

static matrix matrix_of(real *at, size_t rows, size_t cols) {
    return (matrix){at, rows, cols, cols, 1};
}
static matrix turned(matrix m) {
    return (matrix){m.at, m.cols, m.rows, m.right, m.down};
}

/* Sixteen bytes of numbers: what every x86-64 and ARM64 processor multiplies at once, without
   any compiler option. */
typedef real lanes __attribute__((vector_size(16)));
#define LANES (16 / sizeof(real))
#define TILE_ROWS 4u
#define TILE_COLS (2 * LANES)
/* a block of the right matrix, depth x cols, stays in the second-level cache */
#define BLOCK_DEPTH 128u
#define BLOCK_COLS 256u

/* out[4][2 * LANES] = left[depth][4] x right[depth][2 * LANES]: eight vectors of sums that live
   in registers. All of the program's speed is in this loop. */
static void tile_multiply(const real *left, const lanes *right, size_t depth, lanes out[8]) {
    lanes a0 = {0}, a1 = {0}, b0 = {0}, b1 = {0}, c0 = {0}, c1 = {0}, d0 = {0}, d1 = {0};
    for (size_t k = 0; k < depth; ++k, left += 4, right += 2) {
        const lanes r0 = right[0], r1 = right[1];
        a0 += left[0] * r0;
        a1 += left[0] * r1;
        b0 += left[1] * r0;
        b1 += left[1] * r1;
        c0 += left[2] * r0;
        c1 += left[2] * r1;
        d0 += left[3] * r0;
        d1 += left[3] * r1;
    }
    out[0] = a0;
    out[1] = a1;
    out[2] = b0;
    out[3] = b1;
    out[4] = c0;
    out[5] = c1;
    out[6] = d0;
    out[7] = d1;
}

/* Copy `count` columns of m, rows k0 to k0 + depth, so that each row's piece is contiguous and
   padded with zeros to `width`. */
static void pack(matrix m, size_t k0, size_t depth, size_t j0, size_t width, real *restrict to) {
    const size_t count = m.cols - j0 < width ? m.cols - j0 : width;
    const real *from = m.at + k0 * m.down + j0 * m.right;
    for (size_t k = 0; k < depth; ++k, from += m.down, to += width) {
        size_t j = 0;
        /* four at a time: at -O2 a compiler does not do this by itself */
        for (; j + 4 <= count; j += 4) {
            const real *f = from + j * m.right;
            to[j] = f[0];
            to[j + 1] = f[m.right];
            to[j + 2] = f[2 * m.right];
            to[j + 3] = f[3 * m.right];
        }
        for (; j < count; ++j)
            to[j] = from[j * m.right];
        for (; j < width; ++j)
            to[j] = 0;
    }
}

static void tile_store(matrix c, size_t i0, size_t j0, const lanes tile[8], bool add) {
    const real *from = (const real *)tile;
    const size_t rows = c.rows - i0 < TILE_ROWS ? c.rows - i0 : TILE_ROWS;
    const size_t cols = c.cols - j0 < TILE_COLS ? c.cols - j0 : TILE_COLS;
    for (size_t i = 0; i < rows; ++i, from += TILE_COLS) {
        real *to = c.at + (i0 + i) * c.down + j0;
        if (add)
            for (size_t j = 0; j < cols; ++j)
                to[j] += from[j];
        else
            for (size_t j = 0; j < cols; ++j)
                to[j] = from[j];
    }
}

/* c = a x b, or c += a x b. A block of b is packed once, then every four rows of a meet all of
   it. */
static void matmul(matrix c, matrix a, matrix b, bool add) {
    lanes right[BLOCK_DEPTH * BLOCK_COLS / LANES], left[BLOCK_DEPTH * TILE_ROWS / LANES], tile[8];
    const matrix at = turned(a);
    for (size_t k0 = 0; k0 < b.rows; k0 += BLOCK_DEPTH) {
        const size_t depth = b.rows - k0 < BLOCK_DEPTH ? b.rows - k0 : BLOCK_DEPTH;
        for (size_t j0 = 0; j0 < b.cols; j0 += BLOCK_COLS) {
            const size_t end = b.cols - j0 < BLOCK_COLS ? b.cols : j0 + BLOCK_COLS;
            for (size_t j = j0; j < end; j += TILE_COLS)
                pack(b, k0, depth, j, TILE_COLS, (real *)(right + (j - j0) / LANES * depth));
            for (size_t i = 0; i < c.rows; i += TILE_ROWS) {
                pack(at, k0, depth, i, TILE_ROWS, (real *)left);
                for (size_t j = j0; j < end; j += TILE_COLS) {
                    tile_multiply(
                        (const real *)left, right + (j - j0) / LANES * depth, depth, tile);
                    tile_store(c, i, j, tile, add || k0 > 0);
                }
            }
        }
    }
}

/* ---- >>model --------------------------------------------------------------------------------- */

/* The parameters, in the order of the forward pass. A weight has one row per input and one
   column per output. */
enum {
    BLOCK_GAIN1,
    BLOCK_BIAS1,
    BLOCK_QKV,
    BLOCK_OUT,
    BLOCK_GAIN2,
    BLOCK_BIAS2,
    BLOCK_UP,
    BLOCK_DOWN,
    BLOCK_PARAMS
};
enum {
    PARAM_TOKEN,
    PARAM_POSITION,
    PARAM_BLOCKS
}; /* then BLOCK_PARAMS for each block, then: */
enum {
    LAST_GAIN,
    LAST_BIAS,
    LAST_HEAD,
    LAST_PARAMS
};

typedef struct tensor {
    char name[24];
    uint64_t rows, cols, count, offset; /* offset: in model.values and in Adam's moments */
} tensor;

/* What the forward pass of one block leaves for its backward pass. A row is one byte of one
   sequence. */
typedef struct block_memory {
    /* width, width, 3, 1, 1, 1, 4, 4 widths per row */
    real *in, *norm1, *qkv, *mix, *mid, *norm2, *act, *slope;
    /* sequences x heads x context x context */
    real *prob;
    /* mean and 1/deviation of each row, for the layer norms */
    real *stat1, *stat2;
} block_memory;

typedef struct model {
    /* sequences: the most that a forward pass can take at once */
    uint64_t layers, width, heads, context, sequences;
    uint32_t tensor_count;
    uint64_t value_count;
    tensor *tensors;
    real *values;
    real **grads; /* per tensor: the buckets' memory */
    cdp_ddp *ddp; /* told when a gradient is complete; NULL: nobody is */
    block_memory *blocks;
    real *last, *norm, *stat, *logits; /* behind the last block */
    real *stream, *narrow, *wide;      /* backward: gradients of 1, 1 and 4 widths per row */
    real *square;                      /* backward: context x context */
} model;

static tensor *model_add(model *m, const char *name, uint64_t rows, uint64_t cols) {
    tensor *t = &m->tensors[m->tensor_count++];
    snprintf(t->name, sizeof t->name, "%s", name);
    t->rows = rows;
    t->cols = cols;
    t->count = rows * cols;
    t->offset = m->value_count;
    m->value_count += t->count;
    return t;
}

static void model_add_block(model *m, uint64_t layer) {
    static const char *const names[BLOCK_PARAMS] = {
        "norm1.gain", "norm1.bias", "qkv", "out", "norm2.gain", "norm2.bias", "up", "down"};
    const uint64_t w = m->width;
    const uint64_t rows[BLOCK_PARAMS] = {1, 1, w, w, 1, 1, w, 4 * w},
                   cols[BLOCK_PARAMS] = {w, w, 3 * w, w, w, w, 4 * w, w};
    for (int i = 0; i < BLOCK_PARAMS; ++i) {
        char name[24];
        snprintf(name, sizeof name, "%u.%s", (unsigned)layer, names[i]);
        model_add(m, name, rows[i], cols[i]);
    }
}

static void model_reserve(model *m) {
    const uint64_t rows = m->sequences * m->context, w = m->width;
    m->blocks = (block_memory *)need(m->layers, sizeof *m->blocks);
    for (uint64_t l = 0; l < m->layers; ++l) {
        block_memory *b = &m->blocks[l];
        b->in = need_reals(rows * w);
        b->norm1 = need_reals(rows * w);
        b->qkv = need_reals(rows * w * 3);
        b->mix = need_reals(rows * w);
        b->mid = need_reals(rows * w);
        b->norm2 = need_reals(rows * w);
        b->act = need_reals(rows * w * 4);
        b->slope = need_reals(rows * w * 4);
        b->prob = need_reals(rows * m->heads * m->context);
        b->stat1 = need_reals(rows * 2);
        b->stat2 = need_reals(rows * 2);
    }
    m->last = need_reals(rows * w);
    m->norm = need_reals(rows * w);
    m->stat = need_reals(rows * 2);
    m->logits = need_reals(rows * VOCABULARY);
    m->stream = need_reals(rows * w);
    m->narrow = need_reals(rows * w);
    m->wide = need_reals(rows * w * 4);
    m->square = need_reals(m->context * m->context);
}

static inline void model_create(model *m, uint64_t layers, uint64_t width, uint64_t heads,
    uint64_t context, uint64_t sequences) {
    *m = (model){.layers = layers,
        .width = width,
        .heads = heads,
        .context = context,
        .sequences = sequences};
    m->tensors =
        (tensor *)need(PARAM_BLOCKS + layers * BLOCK_PARAMS + LAST_PARAMS, sizeof *m->tensors);
    model_add(m, "token", VOCABULARY, width);
    model_add(m, "position", context, width);
    for (uint64_t l = 0; l < layers; ++l)
        model_add_block(m, l);
    model_add(m, "norm.gain", 1, width);
    model_add(m, "norm.bias", 1, width);
    model_add(m, "head", width, VOCABULARY);
    m->values = need_reals(m->value_count);
    m->grads = (real **)need(m->tensor_count, sizeof *m->grads);
    model_reserve(m);
}

static void model_free(model *m) {
    for (uint64_t l = 0; m->blocks && l < m->layers; ++l) {
        block_memory *b = &m->blocks[l];
        real *const all[] = {b->in, b->norm1, b->qkv, b->mix, b->mid, b->norm2, b->act, b->slope,
            b->prob, b->stat1, b->stat2};
        for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
            free(all[i]);
    }
    real *const all[] = {
        m->values, m->last, m->norm, m->stat, m->logits, m->stream, m->narrow, m->wide, m->square};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
        free(all[i]);
    free(m->tensors);
    free(m->grads);
    free(m->blocks);
    *m = (model){0};
}

/* How a parameter starts: uniform with this half width. Token embeddings are larger than
   positions, so that the first thing to be learnt is what follows what; weights keep the size of
   what passes through them, except for those that add to the stream: these start smaller, so
   that a deep model begins as quietly as a flat one. */
static double start_width(const model *m, uint32_t i) {
    const tensor *t = &m->tensors[i];
    if (i == PARAM_TOKEN || i == PARAM_POSITION) return i == PARAM_TOKEN ? 0.9 : 0.18;
    const double keep = sqrt(3.0 / (double)t->rows);
    if (has_suffix(t->name, ".out") || has_suffix(t->name, ".down"))
        return keep * 0.5 / sqrt(2.0 * (double)m->layers);
    return strcmp(t->name, "head") ? keep : keep * 0.1;
}

/* Gains and biases start as the identity, weights at random. */
static inline void model_init(model *m, uint64_t seed) {
    for (uint32_t i = 0; i < m->tensor_count; ++i) {
        const tensor *t = &m->tensors[i];
        real *const values = m->values + t->offset;
        const bool gain = has_suffix(t->name, ".gain"), bias = has_suffix(t->name, ".bias");
        const double width = start_width(m, i);
        for (uint64_t k = 0; k < t->count; ++k) {
            if (gain || bias)
                values[k] = gain ? 1 : 0;
            else
                values[k] = (real)(width * (2 * draw_unit(seed, i, k) - 1));
        }
    }
}

static real *value_of(const model *m, uint32_t i) {
    return m->values + m->tensors[i].offset;
}
static matrix weight_of(const model *m, uint32_t i) {
    return matrix_of(value_of(m, i), m->tensors[i].rows, m->tensors[i].cols);
}
static matrix grad_of(const model *m, uint32_t i) {
    return matrix_of(m->grads[i], m->tensors[i].rows, m->tensors[i].cols);
}
static uint32_t block_param(uint64_t layer, uint32_t i) {
    return PARAM_BLOCKS + (uint32_t)layer * BLOCK_PARAMS + i;
}
static uint32_t last_param(const model *m, uint32_t i) {
    return PARAM_BLOCKS + (uint32_t)m->layers * BLOCK_PARAMS + i;
}

/* The gradient of parameter i is complete: DDP may send it. An error comes back from
   cdp_ddp_backward_end(). */
static void gradient_done(model *m, uint32_t i) {
    if (m->ddp) (void)cdp_ddp_ready(m->ddp, i);
}

static void layer_norm(real *restrict out, real *restrict stat, const real *restrict in,
    const real *restrict gain, const real *restrict bias, size_t rows, size_t width) {
    for (size_t r = 0; r < rows; ++r, in += width, out += width, stat += 2) {
        real mean = 0, square = 0;
        for (size_t j = 0; j < width; ++j)
            mean += in[j];
        mean /= (real)width;
        for (size_t j = 0; j < width; ++j)
            square += (in[j] - mean) * (in[j] - mean);
        const real scale = 1 / REAL_SQRT(square / (real)width + (real)1e-5);
        for (size_t j = 0; j < width; ++j)
            out[j] = (in[j] - mean) * scale * gain[j] + bias[j];
        stat[0] = mean;
        stat[1] = scale;
    }
}

/* Adds to din, dgain and dbias. With x the normalized input and g = dout * gain: din += scale *
   (g - mean(g) - x * mean(g * x)). */
static void layer_norm_backward(real *restrict din, real *restrict dgain, real *restrict dbias,
    const real *restrict dout, const real *restrict in, const real *restrict stat,
    const real *restrict gain, size_t rows, size_t width) {
    for (size_t r = 0; r < rows; ++r, in += width, din += width, dout += width, stat += 2) {
        real sum = 0, dot = 0;
        for (size_t j = 0; j < width; ++j) {
            const real x = (in[j] - stat[0]) * stat[1], g = dout[j] * gain[j];
            sum += g;
            dot += g * x;
            dgain[j] += dout[j] * x;
            dbias[j] += dout[j];
        }
        sum /= (real)width;
        dot /= (real)width;
        for (size_t j = 0; j < width; ++j)
            din[j] += stat[1] * (dout[j] * gain[j] - sum - (in[j] - stat[0]) * stat[1] * dot);
    }
}

/* GELU in its tanh form, written as x * sigmoid(2u). Its slope is kept for the backward pass,
   where exp() is then not needed again. x is replaced by the result. */
static void gelu(real *restrict x, real *restrict slope, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        const real v = x[i], c = (real)1.5957691216057308; /* 2 sqrt(2 / pi) */
        const real s = 1 / (1 + REAL_EXP(-c * (v + (real)0.044715 * v * v * v)));
        slope[i] = s + v * s * (1 - s) * c * (1 + 3 * (real)0.044715 * v * v);
        x[i] = v * s;
    }
}

/* One head's columns of the query (part 0), key (1) or value (2) of one sequence. */
static matrix head_part(
    const model *m, real *qkv, uint64_t sequence, uint64_t head, uint64_t part) {
    const size_t depth = m->width / m->heads;
    return (matrix){qkv + sequence * m->context * 3 * m->width + part * m->width + head * depth,
        m->context, depth, 3 * m->width, 1};
}

static matrix head_mix(const model *m, real *mix, uint64_t sequence, uint64_t head) {
    const size_t depth = m->width / m->heads;
    return (matrix){
        mix + sequence * m->context * m->width + head * depth, m->context, depth, m->width, 1};
}

static real head_scale(const model *m) {
    return 1 / REAL_SQRT((real)(m->width / m->heads));
}

/* Each row looks at itself and what came before; the rest gets weight zero. */
static void causal_softmax(matrix scores, real scale) {
    for (size_t i = 0; i < scores.rows; ++i) {
        real *row = scores.at + i * scores.down, top = row[0], sum = 0;
        for (size_t j = 1; j <= i; ++j)
            top = row[j] > top ? row[j] : top;
        for (size_t j = 0; j <= i; ++j)
            sum += row[j] = REAL_EXP((row[j] - top) * scale);
        for (size_t j = 0; j <= i; ++j)
            row[j] /= sum;
        for (size_t j = i + 1; j < scores.cols; ++j)
            row[j] = 0;
    }
}

static void attention(const model *m, block_memory *b, uint64_t sequences) {
    const size_t n = m->context;
    for (uint64_t s = 0; s < sequences; ++s)
        for (uint64_t h = 0; h < m->heads; ++h) {
            const matrix prob = matrix_of(b->prob + (s * m->heads + h) * n * n, n, n);
            matmul(
                prob, head_part(m, b->qkv, s, h, 0), turned(head_part(m, b->qkv, s, h, 1)), false);
            causal_softmax(prob, head_scale(m));
            matmul(head_mix(m, b->mix, s, h), prob, head_part(m, b->qkv, s, h, 2), false);
        }
}

/* dmix -> dqkv. The softmax turns dprob into dscore = prob * (dprob - sum(prob * dprob)), row by
   row. */
static void attention_backward(
    const model *m, block_memory *b, real *dqkv, real *dmix, uint64_t sequences) {
    const size_t n = m->context;
    const matrix square = matrix_of(m->square, n, n);
    for (uint64_t s = 0; s < sequences; ++s)
        for (uint64_t h = 0; h < m->heads; ++h) {
            const matrix prob = matrix_of(b->prob + (s * m->heads + h) * n * n, n, n),
                         dout = head_mix(m, dmix, s, h);
            matmul(head_part(m, dqkv, s, h, 2), turned(prob), dout, false);
            matmul(square, dout, turned(head_part(m, b->qkv, s, h, 2)), false);
            for (size_t i = 0; i < n; ++i) {
                real *d = m->square + i * n, dot = 0;
                const real *p = prob.at + i * n;
                for (size_t j = 0; j <= i; ++j)
                    dot += d[j] * p[j];
                for (size_t j = 0; j <= i; ++j)
                    d[j] = p[j] * (d[j] - dot) * head_scale(m);
                for (size_t j = i + 1; j < n; ++j)
                    d[j] = 0;
            }
            matmul(head_part(m, dqkv, s, h, 0), square, head_part(m, b->qkv, s, h, 1), false);
            matmul(
                head_part(m, dqkv, s, h, 1), turned(square), head_part(m, b->qkv, s, h, 0), false);
        }
}

static void block_forward(const model *m, uint64_t layer, real *out, uint64_t sequences) {
    block_memory *b = &m->blocks[layer];
    const size_t rows = sequences * m->context, w = m->width;
    layer_norm(b->norm1, b->stat1, b->in, value_of(m, block_param(layer, BLOCK_GAIN1)),
        value_of(m, block_param(layer, BLOCK_BIAS1)), rows, w);
    matmul(matrix_of(b->qkv, rows, 3 * w), matrix_of(b->norm1, rows, w),
        weight_of(m, block_param(layer, BLOCK_QKV)), false);
    attention(m, b, sequences);
    memcpy(b->mid, b->in, rows * w * sizeof(real));
    matmul(matrix_of(b->mid, rows, w), matrix_of(b->mix, rows, w),
        weight_of(m, block_param(layer, BLOCK_OUT)), true);
    layer_norm(b->norm2, b->stat2, b->mid, value_of(m, block_param(layer, BLOCK_GAIN2)),
        value_of(m, block_param(layer, BLOCK_BIAS2)), rows, w);
    matmul(matrix_of(b->act, rows, 4 * w), matrix_of(b->norm2, rows, w),
        weight_of(m, block_param(layer, BLOCK_UP)), false);
    gelu(b->act, b->slope, rows * 4 * w);
    memcpy(out, b->mid, rows * w * sizeof(real));
    matmul(matrix_of(out, rows, w), matrix_of(b->act, rows, 4 * w),
        weight_of(m, block_param(layer, BLOCK_DOWN)), true);
}

/* The first part of the model: bytes become the stream that enters the first block. */
static void embed(model *m, const uint8_t *bytes, uint64_t sequences) {
    const size_t rows = sequences * m->context, w = m->width;
    for (size_t r = 0; r < rows; ++r) {
        const real *token = value_of(m, PARAM_TOKEN) + bytes[r] * w,
                   *position = value_of(m, PARAM_POSITION) + r % m->context * w;
        for (size_t j = 0; j < w; ++j)
            m->blocks[0].in[r * w + j] = token[j] + position[j];
    }
}

/* From the first block's input to m->last. */
static void blocks_forward(model *m, uint64_t sequences) {
    for (uint64_t l = 0; l < m->layers; ++l)
        block_forward(m, l, l + 1 < m->layers ? m->blocks[l + 1].in : m->last, sequences);
}

/* The last part: one row of 256 logits for each byte of each sequence, in m->logits. */
static void head_forward(model *m, uint64_t sequences) {
    const size_t rows = sequences * m->context, w = m->width;
    layer_norm(m->norm, m->stat, m->last, value_of(m, last_param(m, LAST_GAIN)),
        value_of(m, last_param(m, LAST_BIAS)), rows, w);
    matmul(matrix_of(m->logits, rows, VOCABULARY), matrix_of(m->norm, rows, w),
        weight_of(m, last_param(m, LAST_HEAD)), false);
}

static inline void model_forward(model *m, const uint8_t *bytes, uint64_t sequences) {
    embed(m, bytes, sequences);
    blocks_forward(m, sequences);
    head_forward(m, sequences);
}

/* The sum over all rows of -log2 p(target): bits. The logits become their own gradient, times
   `scale`. */
static inline double model_loss(model *m, const uint8_t *targets, uint64_t sequences, real scale) {
    double bits = 0;
    for (size_t r = 0; r < sequences * m->context; ++r) {
        real *row = m->logits + r * VOCABULARY, top = row[0], sum = 0;
        const real wanted = row[targets[r]];
        for (size_t j = 1; j < VOCABULARY; ++j)
            top = row[j] > top ? row[j] : top;
        for (size_t j = 0; j < VOCABULARY; ++j)
            sum += row[j] = REAL_EXP(row[j] - top);
        const real factor = scale / sum;
        for (size_t j = 0; j < VOCABULARY; ++j)
            row[j] *= factor;
        row[targets[r]] -= scale;
        bits += (log((double)sum) - (double)(wanted - top)) / log(2.0);
    }
    return bits;
}

/* m->stream holds the gradient of the block's output and leaves with that of its input. The
   gradients of weights come first, before what the layers below need: the sooner a parameter is
   ready, the more of its journey is hidden. */
static void block_backward(model *m, uint64_t layer, uint64_t sequences) {
    block_memory *b = &m->blocks[layer];
    const size_t rows = sequences * m->context, w = m->width;
    const uint32_t first = block_param(layer, 0);
    const matrix stream = matrix_of(m->stream, rows, w), narrow = matrix_of(m->narrow, rows, w);
    const matrix wide = matrix_of(m->wide, rows, 4 * w), dqkv = matrix_of(m->wide, rows, 3 * w);

    matmul(grad_of(m, first + BLOCK_DOWN), turned(matrix_of(b->act, rows, 4 * w)), stream, true);
    gradient_done(m, first + BLOCK_DOWN);
    matmul(wide, stream, turned(weight_of(m, first + BLOCK_DOWN)), false);
    for (size_t i = 0; i < rows * 4 * w; ++i)
        m->wide[i] *= b->slope[i];
    matmul(grad_of(m, first + BLOCK_UP), turned(matrix_of(b->norm2, rows, w)), wide, true);
    gradient_done(m, first + BLOCK_UP);
    matmul(narrow, wide, turned(weight_of(m, first + BLOCK_UP)), false);
    layer_norm_backward(m->stream, m->grads[first + BLOCK_GAIN2], m->grads[first + BLOCK_BIAS2],
        m->narrow, b->mid, b->stat2, value_of(m, first + BLOCK_GAIN2), rows, w);
    gradient_done(m, first + BLOCK_BIAS2);
    gradient_done(m, first + BLOCK_GAIN2);

    matmul(grad_of(m, first + BLOCK_OUT), turned(matrix_of(b->mix, rows, w)), stream, true);
    gradient_done(m, first + BLOCK_OUT);
    matmul(narrow, stream, turned(weight_of(m, first + BLOCK_OUT)), false);
    attention_backward(m, b, m->wide, m->narrow, sequences);
    matmul(grad_of(m, first + BLOCK_QKV), turned(matrix_of(b->norm1, rows, w)), dqkv, true);
    gradient_done(m, first + BLOCK_QKV);
    matmul(narrow, dqkv, turned(weight_of(m, first + BLOCK_QKV)), false);
    layer_norm_backward(m->stream, m->grads[first + BLOCK_GAIN1], m->grads[first + BLOCK_BIAS1],
        m->narrow, b->in, b->stat1, value_of(m, first + BLOCK_GAIN1), rows, w);
    gradient_done(m, first + BLOCK_BIAS1);
    gradient_done(m, first + BLOCK_GAIN1);
}

/* Logits that are their own gradient become that of m->last, in m->stream. */
static void head_backward(model *m, uint64_t sequences) {
    const size_t rows = sequences * m->context, w = m->width;
    const uint32_t gain = last_param(m, LAST_GAIN), bias = last_param(m, LAST_BIAS),
                   head = last_param(m, LAST_HEAD);
    const matrix dlogits = matrix_of(m->logits, rows, VOCABULARY);
    matmul(grad_of(m, head), turned(matrix_of(m->norm, rows, w)), dlogits, true);
    gradient_done(m, head);
    matmul(matrix_of(m->narrow, rows, w), dlogits, turned(weight_of(m, head)), false);
    memset(m->stream, 0, rows * w * sizeof(real));
    layer_norm_backward(m->stream, m->grads[gain], m->grads[bias], m->narrow, m->last, m->stat,
        value_of(m, gain), rows, w);
    gradient_done(m, bias);
    gradient_done(m, gain);
}

static void blocks_backward(model *m, uint64_t sequences) {
    for (uint64_t l = m->layers; l-- > 0;)
        block_backward(m, l, sequences);
}

static void embed_backward(model *m, const uint8_t *bytes, uint64_t sequences) {
    const size_t rows = sequences * m->context, w = m->width;
    for (size_t r = 0; r < rows; ++r) {
        real *restrict token = m->grads[PARAM_TOKEN] + bytes[r] * w;
        real *restrict position = m->grads[PARAM_POSITION] + r % m->context * w;
        for (size_t j = 0; j < w; ++j) {
            token[j] += m->stream[r * w + j];
            position[j] += m->stream[r * w + j];
        }
    }
    gradient_done(m, PARAM_POSITION);
    gradient_done(m, PARAM_TOKEN);
}

/* After model_forward() and model_loss(): adds to the gradients of all parameters, last layer
   first. */
static inline void model_backward(model *m, const uint8_t *bytes, uint64_t sequences) {
    head_backward(m, sequences);
    blocks_backward(m, sequences);
    embed_backward(m, bytes, sequences);
}

/* ---- >>adam ---------------------------------------------------------------------------------- */

/* Everything that decides what a run computes, and so what a checkpoint must remember. Eight
   bytes each, no padding. */
typedef struct plan {
    uint64_t layers, width, heads, context; /* the model */
    /* sequences of a step over all ranks, and in how many parts each rank takes its own */
    uint64_t batch, accumulate;
    /* steps until the learning rate is full, and until it has fallen to a tenth */
    uint64_t seed, warmup, decay;
    double rate, weight_decay;
} plan;

static double rate_at(const plan *p, uint64_t step) {
    const double warm = step < p->warmup ? (double)(step + 1) / (double)p->warmup : 1;
    const double gone = step < p->decay ? (double)step / (double)p->decay : 1;
    return p->rate * warm * (1 - 0.9 * gone);
}

/* base^n from multiplications alone: unlike pow() it gives the same bits with every C library. */
static double power(double base, uint64_t n) {
    double result = 1;
    for (; n > 0; n >>= 1, base *= base)
        if (n & 1) result *= base;
    return result;
}

/* One step of Adam (Kingma and Ba, 2015) with decoupled weight decay (Loshchilov and Hutter,
   2019). Additions, multiplications, divisions and square roots only, in a fixed order: ranks
   with equal gradients stay equal. */
static inline void adam(const plan *p, uint64_t step, real *restrict value,
    const real *restrict grad, real *restrict m, real *restrict v, uint64_t count, bool decays) {
    const real beta1 = (real)0.9, beta2 = (real)0.99, rate = (real)rate_at(p, step);
    const real scale1 = (real)(1 / (1 - power(0.9, step + 1))),
               scale2 = (real)(1 / (1 - power(0.99, step + 1)));
    const real shrink = decays ? 1 - rate * (real)p->weight_decay : 1;
    for (uint64_t i = 0; i < count; ++i) {
        m[i] = beta1 * m[i] + (1 - beta1) * grad[i];
        v[i] = beta2 * v[i] + (1 - beta2) * grad[i] * grad[i];
        value[i] =
            value[i] * shrink - rate * m[i] * scale1 / (REAL_SQRT(v[i] * scale2) + (real)1e-8);
    }
}

/* DDP, place 2: sequence number `index` of the global batch of a step begins here, whoever takes
   it. */
static inline uint64_t sequence_start(
    const plan *p, const corpus *text, uint64_t step, uint64_t index) {
    return draw(p->seed ^ 0x7465787473657175u, step, index) % (text->train_bytes - p->context);
}

#endif /* TEXT_MODEL_INCLUDED */
