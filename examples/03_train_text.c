/*  03_train_text.c - train a small language model on text, with any number of processes

        gcc -O2 examples/03_train_text.c -o train_text -pthread -lm
        ./train_text                              one process, on the text of this repository
        cdprun -n 4 ./train_text                  four processes, the same global batches, the same
        model
        cdprun -n 4 ./train_text ~/my/notes       your own text: files or folders

    The model predicts the next byte: token and position embeddings, a few transformer blocks (layer
    norm, causal
    attention, layer norm, a two-layer perceptron with GELU), a last layer norm and one output per
    possible byte.
    Forward, backward and the Adam optimizer are written out by hand; nothing but cdp and the C
    library is needed.

    How data parallel training looks in this program; search for "DDP" to find each place:

      1. Every process builds the whole model. cdp_ddp_create() compares the models and copies rank
      0's parameters to
         all others, so it does not matter what the others start with.
         trainer_open()
      2. Which sequences make up the global batch of a step is a function of the seed and the step
      number alone. Each
         rank takes its own part of them, so one process and eight see the same batches.
         draw_sequences()
      3. Gradients live in the library's buckets: the backward pass adds to what cdp_ddp_grad()
      returned, and says
         cdp_ddp_ready() the moment the gradient of a parameter is complete, last layer first. While
         the layers
         below are still being computed, full buckets already travel.
         gradient_done()
      4. After cdp_ddp_backward_end() every rank holds the same mean gradient, bit for bit. Every
      rank then does the
         same arithmetic in Adam, so the models stay equal without ever being sent again.
         trainer_step()
      5. At the end the ranks compare a hash of everything they hold: a claim like "equal, bit for
      bit" is cheap to
         check, so it is checked in every run.
         compare_replicas()

    Contents (search for ">>"): tools, files, text, matmul, model, adam, checkpoint, options,
    picture, trainer,
    verdicts, main. */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"

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

#define VOCABULARY 256u /* a token is a byte */

/* ---- >>tools --------------------------------------------------------------------------------- */

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
static void complain(const reason *why) {
    fprintf(stderr, "train_text: %s\n", why->text);
    (void)cdp_error_record_from_env(why->text);
}

/* After a failed cdp call the library knows the whole story; this prints and records it. */
static bool worked(cdp_status status) {
    if (status == CDP_OK) return true;
    (void)cdp_error_record_from_env(NULL);
    cdp_print_error(stderr);
    return false;
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

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
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

__attribute__((format(printf, 2, 3))) static void page_add(page *p, const char *format, ...) {
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
static bool file_write(const char *path, const void *data, size_t bytes, reason *why) {
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

/* Asked before hours of training rather than after them. */
static bool can_write(const char *path, reason *why) {
    char folder[1024];
    if (!path || access(folder_of(path, folder), W_OK) == 0) return true;
    return because(why, "cannot write %s: its folder: %s", path, strerror(errno));
}

static bool file_read(const char *path, uint8_t **data, size_t *bytes, reason *why) {
    FILE *file = fopen(path, "rb");
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

static bool corpus_gather(
    corpus *c, char **paths, int count, const char *program, uint64_t context, reason *why) {
    bool ok = count > 0 || corpus_add_repository(c, program, why);
    for (int i = 0; ok && i < count; ++i)
        ok = corpus_add(c, paths[i], true, why);
    return ok && corpus_split(c, context, why);
}

static void corpus_free(corpus *c) {
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

static void model_create(model *m, uint64_t layers, uint64_t width, uint64_t heads,
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
static void model_init(model *m, uint64_t seed) {
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

static void model_forward(model *m, const uint8_t *bytes, uint64_t sequences) {
    embed(m, bytes, sequences);
    blocks_forward(m, sequences);
    head_forward(m, sequences);
}

/* The sum over all rows of -log2 p(target): bits. The logits become their own gradient, times
   `scale`. */
static double model_loss(model *m, const uint8_t *targets, uint64_t sequences, real scale) {
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
static void model_backward(model *m, const uint8_t *bytes, uint64_t sequences) {
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
static void adam(const plan *p, uint64_t step, real *restrict value, const real *restrict grad,
    real *restrict m, real *restrict v, uint64_t count, bool decays) {
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

/* ---- >>checkpoint ---------------------------------------------------------------------------- */

/* The file: this header, then parameters, first and second moments (value_count numbers each),
   then the hash of all that. */
typedef struct header {
    char magic[8];
    /* in the machine's byte order, so that a machine of the other order refuses the file */
    uint64_t version;
    uint64_t real_bytes, value_count, step, text_hash;
    plan plan;
} header;

#define CHECKPOINT_MAGIC "cdptext\n"
#define CHECKPOINT_VERSION 1u

static header header_of(const plan *p, const model *m, uint64_t step, uint64_t text_hash) {
    header h = {.version = CHECKPOINT_VERSION,
        .real_bytes = sizeof(real),
        .value_count = m->value_count,
        .step = step,
        .text_hash = text_hash,
        .plan = *p};
    memcpy(h.magic, CHECKPOINT_MAGIC, sizeof h.magic);
    return h;
}

static bool checkpoint_save(
    const char *path, const header *h, const real *values, const real *moments, reason *why) {
    const size_t part = (size_t)h->value_count * sizeof(real), bytes = sizeof *h + 3 * part;
    uint8_t *file = (uint8_t *)need(bytes + 8, 1);
    memcpy(file, h, sizeof *h);
    memcpy(file + sizeof *h, values, part);
    memcpy(file + sizeof *h + part, moments, 2 * part);
    const uint64_t hash = hash_bytes(0, file, bytes);
    memcpy(file + bytes, &hash, 8);
    const bool ok = file_write(path, file, bytes + 8, why);
    free(file);
    return ok;
}

/* What the bytes of a file mean. Nothing in them is believed before the size fits and the hash
   is right. */
static bool checkpoint_parse(
    const uint8_t *file, size_t bytes, const char *path, header *h, reason *why) {
    uint64_t hash;
    if (bytes < sizeof *h + 8)
        return because(why, "%s is cut off: %zu bytes are too few for a checkpoint", path, bytes);
    memcpy(h, file, sizeof *h);
    if (memcmp(h->magic, CHECKPOINT_MAGIC, sizeof h->magic) != 0)
        return because(why, "%s is not a checkpoint of this program", path);
    if (h->version != CHECKPOINT_VERSION)
        return because(why, "%s has checkpoint format %llu, this program reads format %u", path,
            llu(h->version), CHECKPOINT_VERSION);
    if (h->real_bytes != sizeof(real))
        return because(why, "%s holds numbers of %llu bytes, this program uses %zu", path,
            llu(h->real_bytes), sizeof(real));
    const size_t room = (bytes - sizeof *h - 8) / sizeof(real);
    if (h->value_count > room / 3
        || bytes != sizeof *h + 8 + 3 * (size_t)h->value_count * sizeof(real))
        return because(why,
            "%s is cut off or damaged: it has %zu bytes, and %llu parameters need another size",
            path, bytes, llu(h->value_count));
    memcpy(&hash, file + bytes - 8, 8);
    if (hash != hash_bytes(0, file, bytes - 8))
        return because(why, "%s is damaged: its checksum is wrong", path);
    return true;
}

/* `state` gets parameters, first and second moments in one piece; free() it. */
static bool checkpoint_load(const char *path, header *h, real **state, reason *why) {
    uint8_t *file;
    size_t bytes;
    if (!file_read(path, &file, &bytes, why)) return false;
    const bool ok = checkpoint_parse(file, bytes, path, h, why);
    if (ok) {
        *state = need_reals(3 * h->value_count);
        memcpy(*state, file + sizeof *h, 3 * (size_t)h->value_count * sizeof(real));
    }
    free(file);
    return ok;
}

/* ---- >>options ------------------------------------------------------------------------------- */

typedef struct settings {
    plan plan;
    uint64_t steps, log_every, eval_every, eval_bytes, sample, digits, bucket_kib, save_every,
        check_steps, hook;
    const char *save, *load, *svg, *trace;
    bool check, quiet, help;
    bool given[32]; /* per option: it was on the command line */
    char **paths;
    int path_count;
} settings;

typedef struct option {
    const char *name;
    char letter;
    char kind;     /* 'n' whole number, 'f' number, 's' text, 'b' switch */
    size_t offset; /* of its value in settings */
    double least, most;
    const char *help;
} option;

#define AT(member) offsetof(settings, member)
static const option OPTIONS[] = {
    {"layers", 'l', 'n', AT(plan.layers), 1, 64, "transformer blocks"},
    {"width", 'w', 'n', AT(plan.width), 1, 4096,
        "numbers per byte in the stream between the blocks"},
    {"heads", 0, 'n', AT(plan.heads), 1, 256, "attention heads; must divide the width"},
    {"context", 'c', 'n', AT(plan.context), 2, 4096,
        "bytes the model looks back, and the length of a sequence"},
    {"steps", 'n', 'n', AT(steps), 1, 1e9,
        "steps of training in all (a resumed run counts on from its checkpoint)"},
    {"batch", 'b', 'n', AT(plan.batch), 1, 1e6,
        "sequences per step over all ranks; must divide by ranks x accumulate"},
    {"accumulate", 'k', 'n', AT(plan.accumulate), 1, 1e6,
        "parts in which a rank takes its share of a batch; only the last one sends"},
    {"seed", 's', 'n', AT(plan.seed), 0, 1e15,
        "first parameters, order of the text, and the sample"},
    {"lr", 0, 'f', AT(plan.rate), 1e-9, 10, "learning rate of Adam"},
    {"weight-decay", 0, 'f', AT(plan.weight_decay), 0, 10,
        "decoupled weight decay of all weight matrices"},
    {"warmup", 0, 'n', AT(plan.warmup), 0, 1e9, "steps until the learning rate is full"},
    {"decay", 0, 'n', AT(plan.decay), 0, 1e9,
        "steps until it has fallen to a tenth (0: the number of steps)"},
    {"bucket-kib", 0, 'n', AT(bucket_kib), 1, 1e6,
        "size of a bucket, the unit in which gradients travel"},
    {"hook", 0, 'n', AT(hook), 0, 5,
        "how gradients travel: 0 as they are, 1 f16, 2 bf16, 3 8 bits, 4 PowerSGD, 5 top 1 of 100"},
    {"trace", 0, 's', AT(trace), 0, 0,
        "draw the last step of rank 0 here: FILE.svg, FILE.json for ui.perfetto.dev, FILE.txt"},
    {"save", 'o', 's', AT(save), 0, 0,
        "write a checkpoint here at the end (and the curve to FILE.svg)"},
    {"save-every", 0, 'n', AT(save_every), 0, 1e9, "and after every so many steps (0: no)"},
    {"load", 'i', 's', AT(load), 0, 0,
        "go on from this checkpoint; it also sets the options above up to --decay"},
    {"svg", 0, 's', AT(svg), 0, 0, "draw the loss curve here"},
    {"log-every", 0, 'n', AT(log_every), 1, 1e9, "steps between two progress lines"},
    {"eval-every", 0, 'n', AT(eval_every), 0, 1e9,
        "steps between two scores on held-out text (0: only at the end)"},
    {"eval-bytes", 0, 'n', AT(eval_bytes), 1, 1e12,
        "held-out bytes to take the score from, at most"},
    {"digits", 'd', 'n', AT(digits), 1, 12, "decimals of reported scores"},
    {"sample", 0, 'n', AT(sample), 0, 1e6, "bytes of text to make up at the end"},
    {"check", 0, 'b', AT(check), 0, 0, "train again on rank 0 alone, same batches, and compare"},
    {"check-steps", 0, 'n', AT(check_steps), 0, 1e9,
        "compare after so many steps only (implies --check; 0: all)"},
    {"quiet", 'q', 'b', AT(quiet), 0, 0, "print the verdict and errors only"},
    {"help", 'h', 'b', AT(help), 0, 0, "print this"},
};
#undef AT
#define OPTION_COUNT (sizeof OPTIONS / sizeof *OPTIONS)
#define PLAN_SIZES 4u    /* the first options are the model's sizes, */
#define PLAN_OPTIONS 12u /* and these and more are in the plan; --steps, between them, is not */

static settings settings_default(void) {
    return (settings){.plan = {.layers = 2,
                          .width = 64,
                          .heads = 4,
                          .context = 32,
                          .batch = 32,
                          .accumulate = 1,
                          .seed = 1,
                          .warmup = 20,
                          .rate = 0.006},
        .steps = 300,
        .log_every = 20,
        .eval_every = 60,
        .eval_bytes = 16384,
        .sample = 240,
        .digits = 3,
        .bucket_kib = 64};
}

static void *option_value(const settings *s, const option *o) {
    return (char *)(uintptr_t)s + o->offset;
}

static void print_help(FILE *to) {
    const settings s = settings_default();
    fprintf(to,
        "train_text [options] [file or folder ...]\n\n"
        "Trains a small language model on text, in one process or in many:\n"
        "    ./train_text                     alone, on the text of this repository\n"
        "    cdprun -n 4 ./train_text notes/  four ranks, on all text below notes/\n"
        "Ranks see the same global batches as one process, so the results agree. Exit code:\n"
        "0 when the run and all its checks are good, 1 when not, 2 for a wrong command line.\n\n");
    for (size_t i = 0; i < OPTION_COUNT; ++i) {
        const option *o = &OPTIONS[i];
        const char *argument = " N";
        char name[40], letter[8] = "   ";
        if (o->kind == 'b') argument = "";
        if (o->kind == 's') argument = " FILE";
        if (o->letter) snprintf(letter, sizeof letter, "-%c,", o->letter);
        snprintf(name, sizeof name, "--%s%s", o->name, argument);
        fprintf(to, "  %s %-17s %s", letter, name, o->help);
        if (o->kind == 'n' && strcmp(o->name, "decay") && strcmp(o->name, "check-steps"))
            fprintf(to, " [%llu]", llu(*(uint64_t *)option_value(&s, o)));
        if (o->kind == 'f') fprintf(to, " [%g]", *(double *)option_value(&s, o));
        fputc('\n', to);
    }
}

static bool option_set(settings *s, const option *o, const char *text, reason *why) {
    char *end = NULL;
    errno = 0;
    if (o->kind == 's') {
        *(const char **)option_value(s, o) = text;
        return *text ? true : because(why, "--%s wants the name of a file", o->name);
    }
    const double fraction = strtod(text, &end);
    const bool number =
        end != text && *end == 0 && errno == 0 && fraction >= o->least && fraction <= o->most;
    if (o->kind == 'f') *(double *)option_value(s, o) = fraction;
    if (o->kind == 'f')
        return number
            || because(why, "--%s wants a number from %g to %g, not \"%s\"", o->name, o->least,
                o->most, text);
    *(uint64_t *)option_value(s, o) = strtoull(text, &end, 10);
    return (number && isdigit((unsigned char)*text) && *end == 0)
        || because(why, "--%s wants a whole number from %.0f to %.0f, not \"%s\"", o->name,
            o->least, o->most, text);
}

/* The option that `word` names: "--steps", "--steps=9" (then *value points behind the sign), or
   "-n". */
static const option *option_find(const char *word, const char **value) {
    const size_t length = strcspn(word, "=");
    for (size_t i = 0; i < OPTION_COUNT; ++i) {
        const option *o = &OPTIONS[i];
        if (word[1] == '-'
                ? strlen(o->name) == length - 2 && strncmp(word + 2, o->name, length - 2) == 0
                : o->letter && o->letter == word[1] && length == 2) {
            *value = word[length] ? word + length + 1 : NULL;
            return o;
        }
    }
    return NULL;
}

static bool settings_parse(settings *s, int argc, char **argv, reason *why) {
    *s = settings_default();
    s->paths = (char **)need((uint64_t)argc + 1, sizeof *s->paths);
    bool options = true;
    for (int i = 1; i < argc; ++i) {
        if (options && strcmp(argv[i], "--") == 0) {
            options = false;
        } else if (!options || argv[i][0] != '-' || argv[i][1] == 0) {
            s->paths[s->path_count++] = argv[i];
        } else {
            const char *value;
            const option *o = option_find(argv[i], &value);
            if (!o) return because(why, "there is no option %s; --help lists them", argv[i]);
            s->given[o - OPTIONS] = true;
            if (o->kind == 'b' && value) return because(why, "--%s takes no value", o->name);
            if (o->kind == 'b') {
                *(bool *)option_value(s, o) = true;
                continue;
            }
            if (!value && ++i >= argc) return because(why, "--%s needs a value", o->name);
            if (!option_set(s, o, value ? value : argv[i], why)) return false;
        }
    }
    if (s->plan.decay == 0) s->plan.decay = s->steps;
    s->check = s->check || s->check_steps > 0;
    return true;
}

/* How many numbers a model of these sizes has. */
static uint64_t value_count_of(const plan *p) {
    return (2 * VOCABULARY + p->context + 2) * p->width
        + p->layers * (12 * p->width + 4) * p->width;
}

/* A checkpoint brings its plan along. The command line may change how to train on, but not what
   the model is. */
static bool settings_adopt(settings *s, const header *h, reason *why) {
    settings loaded = *s;
    loaded.plan = h->plan;
    for (size_t i = 0; i < PLAN_OPTIONS; ++i) {
        const option *o = &OPTIONS[i];
        if (o->offset >= sizeof(plan)) continue;
        const double number = o->kind == 'f' ? *(double *)option_value(&loaded, o)
                                             : (double)*(uint64_t *)option_value(&loaded, o);
        if (!(number >= o->least && number <= o->most))
            return because(why, "the checkpoint has an impossible --%s", o->name);
        uint64_t *mine = (uint64_t *)option_value(s, o),
                 *theirs = (uint64_t *)option_value(&loaded, o);
        if (i < PLAN_SIZES && s->given[i] && *mine != *theirs)
            return because(why,
                "the checkpoint's model has --%s %llu, the command line asks for %llu", o->name,
                llu(*theirs), llu(*mine));
        if (!s->given[i]) memcpy(mine, theirs, 8);
    }
    if (h->value_count != value_count_of(&h->plan))
        return because(why, "the checkpoint's parameters do not fit its model");
    if (h->step >= s->steps)
        return because(why,
            "the checkpoint already has %llu steps; ask for more than that with --steps",
            llu(h->step));
    return true;
}

static bool settings_fit(const settings *s, uint64_t ranks, uint64_t done, reason *why) {
    const plan *p = &s->plan;
    if (p->width % p->heads)
        return because(
            why, "a width of %llu does not divide into %llu heads", llu(p->width), llu(p->heads));
    if (p->batch % (ranks * p->accumulate))
        return because(why,
            "a batch of %llu sequences does not divide into %llu rank%s x %llu part%s (--batch, "
            "--accumulate)",
            llu(p->batch), llu(ranks), ranks == 1 ? "" : "s", llu(p->accumulate),
            p->accumulate == 1 ? "" : "s");
    if (s->hook && s->check)
        return because(
            why, "--check compares with gradients that nothing was taken from: leave --hook 0");
    if (s->check_steps && (s->check_steps > s->steps || s->check_steps <= done))
        return because(why,
            "--check-steps must be one of the steps that this run takes: %llu to %llu",
            llu(done) + 1, llu(s->steps));
    return true;
}

/* ---- >>picture ------------------------------------------------------------------------------- */

typedef struct curve {
    uint64_t *step;
    double *bits;
    size_t count, room;
} curve;

static void curve_add(curve *c, uint64_t step, double bits) {
    if (c->count == c->room) {
        c->room = c->room * 2 + 64;
        c->step = (uint64_t *)realloc(c->step, c->room * sizeof *c->step);
        c->bits = (double *)realloc(c->bits, c->room * sizeof *c->bits);
        if (!c->step || !c->bits) need(SIZE_MAX, 1);
    }
    c->step[c->count] = step;
    c->bits[c->count++] = bits;
}

/* The round number (1, 2 or 5 times a power of ten) that cuts `range` into at most `parts`
   parts. */
static double tick_of(double range, int parts) {
    static const double steps[] = {1, 2, 5};
    double unit = 1e-6;
    for (;; unit *= 10)
        for (int i = 0; i < 3; ++i)
            if (range / (unit * steps[i]) <= parts) return unit * steps[i];
}

enum {
    PLOT_LEFT = 70,
    PLOT_RIGHT = 690,
    PLOT_TOP = 60,
    PLOT_BOTTOM = 360
};

typedef struct frame {
    double steps, low, high; /* what the axes span */
} frame;

static double frame_x(const frame *f, double step) {
    return PLOT_LEFT + (PLOT_RIGHT - PLOT_LEFT) * step / f->steps;
}
static double frame_y(const frame *f, double bits) {
    return PLOT_BOTTOM - (PLOT_BOTTOM - PLOT_TOP) * (bits - f->low) / (f->high - f->low);
}

static frame frame_of(const curve *train, const curve *held) {
    frame f = {1, 1e9, -1e9};
    const curve *both[2] = {train, held};
    for (int k = 0; k < 2; ++k)
        for (size_t i = 0; i < both[k]->count; ++i) {
            f.steps = fmax(f.steps, (double)both[k]->step[i]);
            f.low = fmin(f.low, both[k]->bits[i]);
            f.high = fmax(f.high, both[k]->bits[i]);
        }
    /* nothing, one point, or not a number */
    if (!(f.low < f.high) || !isfinite(f.high - f.low)) {
        f.low = 0;
        f.high = 8;
    }
    f.low = floor(f.low * 2) / 2;
    f.high = ceil(f.high * 2) / 2;
    return f;
}

static void draw_axes(page *p, const frame *f) {
    for (double v = f->low, d = tick_of(f->high - f->low, 6); v <= f->high + d / 1e6; v += d) {
        page_add(p, "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>\n",
            PLOT_LEFT, PLOT_RIGHT, frame_y(f, v), frame_y(f, v));
        page_add(p, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", PLOT_LEFT - 8,
            frame_y(f, v) + 4, v);
    }
    for (double v = 0, d = fmax(1, tick_of(f->steps, 6)); v <= f->steps; v += d)
        page_add(p, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.0f</text>\n", frame_x(f, v),
            PLOT_BOTTOM + 20, v);
    page_add(p, "<line class=\"axis\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/>\n", PLOT_LEFT,
        PLOT_RIGHT, PLOT_BOTTOM, PLOT_BOTTOM);
    page_add(p, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">step</text>\n",
        (PLOT_LEFT + PLOT_RIGHT) / 2, PLOT_BOTTOM + 42);
    page_add(p,
        "<text transform=\"translate(24 %d) rotate(-90)\" text-anchor=\"middle\">loss in bits per "
        "byte</text>\n",
        (PLOT_TOP + PLOT_BOTTOM) / 2);
}

static void draw_curve(page *p, const frame *f, const curve *c, const char *style, bool dots) {
    page_add(p, "<polyline class=\"%s\" points=\"", style);
    for (size_t i = 0; i < c->count; ++i)
        if (isfinite(c->bits[i]))
            page_add(p, "%.1f,%.1f ", frame_x(f, (double)c->step[i]), frame_y(f, c->bits[i]));
    page_add(p, "\"/>\n");
    for (size_t i = 0; dots && i < c->count; ++i)
        if (isfinite(c->bits[i]))
            page_add(p, "<circle class=\"%s-dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>\n", style,
                frame_x(f, (double)c->step[i]), frame_y(f, c->bits[i]));
}

static const char STYLE[] =
    "svg { font: 13px system-ui, sans-serif }\n"
    "text { fill: #4a4f57 }\n"
    ".head { font-size: 15px; fill: #16191d }\n"
    ".paper { fill: #ffffff }\n"
    ".grid { stroke: #e3e6ea }\n"
    ".axis { stroke: #6b727b }\n"
    ".train { fill: none; stroke: #1f6fd0; stroke-width: 2; stroke-linejoin: round }\n"
    ".held { fill: none; stroke: #c2540a; stroke-dasharray: 2 5 }\n"
    ".train-name { fill: #1f6fd0 }\n"
    ".held-dot, .held-name { fill: #c2540a }\n";

static const char STYLE_DARK[] = /* for viewers that prefer it */
    "@media (prefers-color-scheme: dark) {\n"
    "text { fill: #aab1ba }\n"
    ".head { fill: #eceff3 }\n"
    ".paper { fill: #14171b }\n"
    ".grid { stroke: #2b3037 }\n"
    ".axis { stroke: #838b95 }\n"
    ".train { stroke: #6aaeff }\n"
    ".held { stroke: #ff9d57 }\n"
    ".train-name { fill: #6aaeff }\n"
    ".held-dot, .held-name { fill: #ff9d57 }\n"
    "}\n";

static page draw_picture(
    const curve *train, const curve *held, const char *title, uint64_t digits) {
    page p = {0};
    const frame f = frame_of(train, held);
    page_add(&p,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 420\" width=\"720\" "
        "height=\"420\" role=\"img\">\n");
    page_add(&p, "<title>%s</title>\n<style>\n%s%s</style>\n", title, STYLE, STYLE_DARK);
    page_add(&p,
        "<rect class=\"paper\" width=\"720\" height=\"420\"/>\n<text class=\"head\" x=\"%d\" "
        "y=\"28\">%s</text>\n",
        PLOT_LEFT, title);
    draw_axes(&p, &f);
    draw_curve(&p, &f, train, "train", false);
    draw_curve(&p, &f, held, "held", true);
    if (train->count)
        page_add(&p,
            "<text class=\"train-name\" x=\"%d\" y=\"%d\" text-anchor=\"end\">training text: "
            "%.*f</text>\n",
            PLOT_RIGHT, PLOT_TOP + 16, (int)digits, train->bits[train->count - 1]);
    if (held->count)
        page_add(&p,
            "<text class=\"held-name\" x=\"%d\" y=\"%d\" text-anchor=\"end\">held-out text: "
            "%.*f</text>\n",
            PLOT_RIGHT, PLOT_TOP + 36, (int)digits, held->bits[held->count - 1]);
    page_add(&p, "</svg>\n");
    return p;
}

/* ---- >>trainer ------------------------------------------------------------------------------- */

typedef struct trainer {
    plan plan;
    const corpus *text;
    cdp_group *world;
    cdp_ddp *ddp;
    model model;
    /* Adam's first moments, then the second, each in the order of model.values */
    real *moments;
    uint64_t step;             /* steps done */
    uint64_t share;            /* sequences of one forward pass on this rank */
    uint8_t *inputs, *targets; /* share x context */
} trainer;

static void trainer_close(trainer *t) {
    cdp_ddp_destroy(t->ddp);
    model_free(&t->model);
    free(t->moments);
    free(t->inputs);
    free(t->targets);
    *t = (trainer){0};
}

/* Gradients may travel as less than they are. */
static bool trainer_hook(trainer *t, uint64_t number) {
    static const cdp_hook_kind kinds[] = {CDP_HOOK_ALLREDUCE, CDP_HOOK_FP16, CDP_HOOK_BF16,
        CDP_HOOK_QUANTIZE, CDP_HOOK_POWERSGD, CDP_HOOK_TOPK};
    const cdp_hook_desc desc = {.kind = kinds[number], .rank = 2, .start = 10};
    cdp_hook hook;
    return !number
        || (worked(cdp_hook_create(&desc, &hook)) && worked(cdp_ddp_set_hook(t->ddp, &hook)));
}

/* The last step as a picture, for people, for Perfetto, and in figures. */
static bool trainer_trace(const trainer *t, const char *file, reason *why) {
    static const struct {
        cdp_trace_format format;
        const char *ending;
    } kinds[] = {{CDP_TRACE_SVG, ".svg"}, {CDP_TRACE_JSON, ".json"}, {CDP_TRACE_TEXT, ".txt"}};
    bool ok = true;
    for (int k = 0; k < 3 && ok; ++k) {
        const uint64_t size = cdp_ddp_trace(t->ddp, kinds[k].format, NULL, 0);
        char *text = (char *)need(size, 1), path[1024];
        snprintf(path, sizeof path, "%s%s", file, kinds[k].ending);
        ok = file_write(
            path, text, (size_t)cdp_ddp_trace(t->ddp, kinds[k].format, text, size) - 1, why);
        free(text);
    }
    return ok;
}

/* DDP, places 1 and 3: describe the parameters, get everybody's copy made equal, and learn where
   the gradients live. */
static bool trainer_join(trainer *t, uint64_t bucket_bytes) {
    model *m = &t->model;
    cdp_param *params = (cdp_param *)need(m->tensor_count, sizeof *params);
    for (uint32_t i = 0; i < m->tensor_count; ++i)
        params[i] = (cdp_param){.name = m->tensors[i].name,
            .data = value_of(m, i),
            .count = m->tensors[i].count,
            .rows = m->tensors[i].rows,
            .dtype = REAL_DTYPE};
    const cdp_ddp_desc desc = {.group = t->world,
        .params = params,
        .param_count = m->tensor_count,
        .first_bucket_bytes = bucket_bytes,
        .bucket_bytes = bucket_bytes};
    const bool ok = worked(cdp_ddp_create(&desc, &t->ddp));
    free(params);
    for (uint32_t i = 0; ok && i < m->tensor_count; ++i)
        m->grads[i] = (real *)cdp_ddp_grad(t->ddp, i);
    m->ddp = t->ddp;
    return ok;
}

/* `step` and `state` are those of a checkpoint, or 0 and NULL. Only rank 0 needs the state, and
   only rank 0 draws first parameters: the others get them. */
static bool trainer_open(trainer *t, const settings *s, const corpus *text, cdp_group *world,
    uint64_t step, const real *state) {
    const plan *p = &s->plan;
    *t = (trainer){.plan = *p, .text = text, .world = world, .step = step};
    t->share = p->batch / cdp_size(world) / p->accumulate;
    model_create(&t->model, p->layers, p->width, p->heads, p->context, t->share);
    const uint64_t count = t->model.value_count;
    t->moments = need_reals(2 * count);
    t->inputs = (uint8_t *)need(t->share, p->context);
    t->targets = (uint8_t *)need(t->share, p->context);
    if (state) {
        memcpy(t->model.values, state, (size_t)count * sizeof(real));
        memcpy(t->moments, state + count, 2 * (size_t)count * sizeof(real));
    } else if (cdp_rank(world) == 0) {
        model_init(&t->model, p->seed);
    }
    return trainer_join(t, s->bucket_kib * 1024) && trainer_hook(t, s->hook)
        && (step == 0 || worked(cdp_broadcast(world, t->moments, 2 * count, REAL_DTYPE, 0)));
}

/* DDP, place 2: sequence number `index` of the global batch of a step begins here, whoever takes
   it. */
static uint64_t sequence_start(const plan *p, const corpus *text, uint64_t step, uint64_t index) {
    return draw(p->seed ^ 0x7465787473657175u, step, index) % (text->train_bytes - p->context);
}

static void draw_sequences(trainer *t, uint64_t part) {
    const uint64_t n = t->plan.context,
                   first = (cdp_rank(t->world) * t->plan.accumulate + part) * t->share;
    for (uint64_t i = 0; i < t->share; ++i) {
        const uint8_t *from =
            t->text->train + sequence_start(&t->plan, t->text, t->step, first + i);
        memcpy(t->inputs + i * n, from, n);
        memcpy(t->targets + i * n, from + 1, n); /* the answer to each byte is the one after it */
    }
}

/* DDP, place 4: one step on one global batch. `bits` gets this rank's mean loss. */
static bool trainer_step(trainer *t, double *bits) {
    model *m = &t->model;
    const uint64_t parts = t->plan.accumulate, rows = t->share * t->plan.context * parts;
    *bits = 0;
    cdp_ddp_zero_grad(t->ddp);
    for (uint64_t part = 0; part < parts; ++part) {
        draw_sequences(t, part);
        model_forward(m, t->inputs, t->share);
        *bits += model_loss(m, t->targets, t->share, 1 / (real)rows) / (double)rows;
        /* All parts but the last only add up here; the last one sends the sum. */
        if (!worked(cdp_ddp_no_sync(t->ddp, part + 1 < parts))
            || !worked(cdp_ddp_backward_begin(t->ddp)))
            return false;
        model_backward(m, t->inputs, t->share);
        if (!worked(cdp_ddp_backward_end(t->ddp))) return false;
    }
    for (uint32_t i = 0; i < m->tensor_count; ++i) {
        real *first = t->moments + m->tensors[i].offset, *second = first + m->value_count;
        /* a parameter that no rank used has no gradient: like PyTorch's, this Adam skips it */
        if (!cdp_ddp_used(t->ddp, i)) continue;
        adam(&t->plan, t->step, value_of(m, i), m->grads[i], first, second, m->tensors[i].count,
            m->tensors[i].rows > 1);
    }
    ++t->step;
    return true;
}

/* Bits per byte on held-out text: windows from all over it, dealt out to the ranks, the sums
   added up. */
static bool trainer_score(trainer *t, uint64_t most_bytes, double *score, uint64_t *scored) {
    const uint64_t n = t->plan.context, all = (t->text->held_bytes - 1) / n;
    const uint64_t wanted = most_bytes / n ? most_bytes / n : 1,
                   windows = wanted < all ? wanted : all;
    double sum = 0;
    for (uint64_t i = cdp_rank(t->world); i < windows;) {
        uint64_t filled = 0;
        for (; filled < t->share && i < windows; ++filled, i += cdp_size(t->world)) {
            const uint8_t *from = t->text->held + i * all / windows * n;
            memcpy(t->inputs + filled * n, from, n);
            memcpy(t->targets + filled * n, from + 1, n);
        }
        model_forward(&t->model, t->inputs, filled);
        sum += model_loss(&t->model, t->targets, filled, 0);
    }
    if (!worked(cdp_allreduce(t->world, NULL, &sum, 1, CDP_DTYPE_F64, CDP_REDUCE_SUM)))
        return false;
    *scored = windows * n;
    *score = sum / (double)*scored;
    return true;
}

/* What the end of a run has to say about it. */
typedef struct report {
    curve train, held;
    uint64_t train_ns, first_step; /* time spent in steps, and the step at which the run began */
    bool terminal, speaks;         /* progress overwrites itself; this rank prints */
    /* rank 0: the parameters after `snapshot_step` steps, for --check */
    real *snapshot;
    uint64_t snapshot_step;
} report;

static void report_progress(
    const report *r, const settings *s, const trainer *t, double bits, double bytes_per_second) {
    if (!r->speaks) return;
    const cdp_ddp_stats stats = cdp_ddp_stats_of(t->ddp);
    const double left = (double)(s->steps - t->step) * (double)r->train_ns / 1e9
        / (double)(t->step - r->first_step);
    printf("%sstep %*llu/%llu  %.*f bits/byte  %.0f tokens/s", r->terminal ? "\r" : "",
        snprintf(NULL, 0, "%llu", llu(s->steps)),
        /* a token is a byte */
        llu(t->step), llu(s->steps), (int)s->digits, bits, bytes_per_second);
    if (cdp_size(t->world) > 1 && stats.total_comm_ns > 0)
        printf("  %3.0f %% of communication hidden",
            100 * (1 - (double)stats.total_exposed_ns / (double)stats.total_comm_ns));
    printf("  %d:%02d left%s", (int)left / 60, (int)left % 60, r->terminal ? "\033[K" : "\n");
    if (r->terminal) fflush(stdout);
}

static void report_line_end(const report *r) {
    if (r->speaks && r->terminal) putchar('\n');
}

static bool checkpoint_write(const trainer *t, const settings *s, reason *why) {
    const header h = header_of(&t->plan, &t->model, t->step, t->text->hash);
    return checkpoint_save(s->save, &h, t->model.values, t->moments, why);
}

/* Rank 0 did something that can fail (`ok`, and if not, `why`): all ranks learn of it and go the
   same way. Without this the others would wait in their next collective for a rank that has
   given up. */
static bool all_learn(cdp_group *world, bool ok, reason *why) {
    struct {
        int64_t ok;
        reason why;
    } news = {.ok = ok, .why = *why};
    if (!worked(cdp_broadcast(world, &news, sizeof news, CDP_DTYPE_U8, 0))) return false;
    *why = news.why;
    if (!news.ok) complain(why);
    return news.ok != 0;
}

static bool save_on_rank_0(const trainer *t, const settings *s) {
    reason why = {{0}};
    const bool ok = cdp_rank(t->world) != 0 || checkpoint_write(t, s, &why);
    return all_learn(t->world, ok, &why);
}

static bool score_and_note(trainer *t, const settings *s, report *r, uint64_t *scored) {
    double score;
    if (!trainer_score(t, s->eval_bytes, &score, scored)) return false;
    curve_add(&r->held, t->step, score);
    return true;
}

static bool train(trainer *t, const settings *s, report *r) {
    double sum = 0;
    uint64_t since = 0, ns = 0, scored;
    r->first_step = t->step;
    while (t->step < s->steps) {
        double bits;
        const uint64_t begun = now_ns();
        if (!trainer_step(t, &bits)) return false;
        ns += now_ns() - begun;
        sum += bits;
        ++since;
        const bool last = t->step == s->steps;
        if (t->step % s->log_every == 0 || last) {
            /* talking costs a round trip, so only now and then */
            double mean = sum / (double)since;
            if (!worked(cdp_allreduce(t->world, NULL, &mean, 1, CDP_DTYPE_F64, CDP_REDUCE_AVG)))
                return false;
            r->train_ns += ns;
            curve_add(&r->train, t->step, mean);
            report_progress(r, s, t, mean,
                (double)(since * t->plan.batch * t->plan.context) / ((double)ns / 1e9));
            sum = 0;
            since = 0;
            ns = 0;
        }
        if (r->snapshot && t->step == r->snapshot_step)
            memcpy(r->snapshot, t->model.values, (size_t)t->model.value_count * sizeof(real));
        if (s->eval_every && t->step % s->eval_every == 0 && !last
            && !score_and_note(t, s, r, &scored))
            return false;
        if (s->save && s->save_every && t->step % s->save_every == 0 && !last
            && !save_on_rank_0(t, s))
            return false;
    }
    report_line_end(r);
    return true;
}

/* ---- >>verdicts ------------------------------------------------------------------------------ */

/* DDP, place 5: do all ranks hold the same bits? */
static bool compare_replicas(const trainer *t, const report *r, bool *equal) {
    const uint32_t ranks = cdp_size(t->world);
    const size_t bytes = (size_t)t->model.value_count * sizeof(real);
    const uint64_t hash = hash_bytes(hash_bytes(0, t->model.values, bytes), t->moments, 2 * bytes);
    uint64_t *all = (uint64_t *)need(ranks, sizeof *all);
    const bool ok = worked(cdp_allgather(t->world, &hash, all, 1, CDP_DTYPE_I64));
    *equal = ok;
    for (uint32_t i = 0; i < ranks; ++i)
        *equal = *equal && all[i] == all[0];
    if (ok && r->speaks && *equal && ranks > 1)
        printf("replicas: bit-identical on all %u ranks, parameters and moments (%016llx)\n", ranks,
            llu(hash));
    for (uint32_t i = 0; ok && cdp_rank(t->world) == 0 && !*equal && i < ranks; ++i)
        printf("replicas: DIFFERENT: rank %u has %016llx\n", i, llu(all[i]));
    free(all);
    return ok;
}

typedef struct difference {
    /* both relative to the largest value of the same tensor, respectively of all */
    double largest, mean_square;
    const char *tensor; /* where the largest one is */
} difference;

/* Element by element a relative difference would say little, since many parameters are close to
   zero. So: the largest |a - b| of a tensor, divided by the largest |b| of that tensor. */
static difference compare_models(const model *m, const real *a, const real *b) {
    difference d = {0, 0, "none"};
    double square = 0, whole = 0;
    for (uint32_t i = 0; i < m->tensor_count; ++i) {
        double gap = 0, top = 0;
        for (uint64_t k = 0, at = m->tensors[i].offset; k < m->tensors[i].count; ++k, ++at) {
            const double delta = fabs((double)a[at] - (double)b[at]), size = fabs((double)b[at]);
            if (delta > gap || delta != delta) gap = delta; /* not-a-number, once seen, stays */
            top = size > top ? size : top;
            square += delta * delta;
            whole += size * size;
        }
        const double relative = gap > 0 || gap != gap ? gap / top : 0;
        if (relative > d.largest || relative != relative) {
            d.largest = relative;
            d.tensor = m->tensors[i].name;
        }
    }
    d.mean_square = sqrt(square / whole);
    return d;
}

#define CHECK_TOLERANCE 0.01
#define CHECK_SCORE_TOLERANCE 0.01

/* The same run, alone on rank 0. Float additions in another order give other last digits, and
   training amplifies them (Adam divides by the size of the gradient, however small it is), so
   equal bits are not to be expected. */
static bool check_alone(const settings *s, const corpus *text, const header *from,
    const real *state, const report *r, bool *good) {
    cdp_group *solo = NULL;
    trainer t = {0};
    double bits, alone = 0, together = 0;
    uint64_t scored;
    bool ok = worked(cdp_group_create(&(cdp_group_desc){.world_size = 1}, &solo))
        && trainer_open(&t, s, text, solo, from ? from->step : 0, state);
    while (ok && t.step < r->snapshot_step) {
        ok = trainer_step(&t, &bits);
        if (r->speaks && r->terminal) {
            printf("\rchecking: step %llu/%llu in one process\033[K", llu(t.step),
                llu(r->snapshot_step));
            fflush(stdout);
        }
    }
    if (r->speaks && r->terminal) printf("\r\033[K");
    const difference d =
        ok ? compare_models(&t.model, r->snapshot, t.model.values) : (difference){0};
    ok = ok && trainer_score(&t, s->eval_bytes, &alone, &scored);
    if (ok) memcpy(t.model.values, r->snapshot, (size_t)t.model.value_count * sizeof(real));
    ok = ok && trainer_score(&t, s->eval_bytes, &together, &scored);
    *good = ok && d.largest <= CHECK_TOLERANCE && fabs(alone - together) <= CHECK_SCORE_TOLERANCE;
    if (ok && r->speaks)
        printf("one process: after %llu steps the largest difference is %.2g of the largest value "
               "of its tensor (%s), all in all %.2g;\n"
               "             held out %.*f there, %.*f here\n",
            llu(r->snapshot_step), d.largest, d.tensor, d.mean_square, (int)s->digits, alone,
            (int)s->digits, together);
    trainer_close(&t);
    cdp_group_destroy(solo);
    return ok;
}

/* Rank 0 checks while the others wait for its result: as long as that may take, not only as long
   as one operation. */
static bool check_and_tell(cdp_group *world, const settings *s, const corpus *text,
    const header *from, const real *state, const report *r, bool *good) {
    const uint64_t patience_ms = 600000 + r->train_ns / 1000000 * cdp_size(world) * 8;
    int64_t result = 1;
    cdp_work work;
    if (cdp_rank(world) == 0) result = check_alone(s, text, from, state, r, good) && *good;
    const cdp_request request = {.kind = CDP_COLL_BROADCAST,
        .out = &result,
        .count = 1,
        .dtype = CDP_DTYPE_I64,
        .timeout_ms = (uint32_t)(patience_ms < 0xfffffffe ? patience_ms : 0xfffffffe)};
    if (!worked(cdp_start(world, &request, &work)) || !worked(cdp_work_wait(work))) return false;
    *good = result != 0;
    return true;
}

/* The next byte after `history`, drawn from the model's distribution. */
static uint8_t next_byte(
    model *m, const uint8_t *history, uint64_t length, uint8_t *window, uint64_t seed) {
    const uint64_t n = m->context, seen = length < n ? length : n;
    memset(window, 0, n);
    memcpy(window, history + length - seen, seen);
    model_forward(m, window, 1); /* what lies behind the last byte seen cannot reach its row */
    const real *row = m->logits + (seen - 1) * VOCABULARY;
    double weight[VOCABULARY], sum = 0, top = (double)row[0];
    for (uint32_t j = 1; j < VOCABULARY; ++j)
        top = fmax(top, (double)row[j]);
    for (uint32_t j = 0; j < VOCABULARY; ++j)
        sum += weight[j] = exp((double)row[j] - top);
    double left = draw_unit(seed, 0x73616d706c65u, length) * sum;
    for (uint32_t j = 0; j + 1 < VOCABULARY; ++j)
        if ((left -= weight[j]) < 0) return (uint8_t)j;
    return VOCABULARY - 1;
}

/* The model goes on from the middle of a word in the held-out text. */
static void print_sample(model *m, const corpus *from, uint64_t bytes, uint64_t seed) {
    uint8_t *text = (uint8_t *)need(bytes + m->context, 1),
            *window = (uint8_t *)need(m->context, 1);
    size_t at = from->held_bytes / 2; /* where the sample takes over */
    while (at + 1 < from->held_bytes && !(isalpha(from->held[at - 1]) && isalpha(from->held[at])))
        ++at;
    memcpy(text, from->held + at - m->context, m->context);
    printf("sample:\n    | ");
    for (uint64_t i = m->context; i < m->context + bytes; ++i) {
        const uint8_t c = text[i] = next_byte(m, text, i, window, seed);
        if (c == '\n')
            printf("\n    | ");
        else if (c >= 32 && c < 127)
            putchar(c);
        else
            printf("\\x%02x", c);
    }
    putchar('\n');
    free(text);
    free(window);
}

/* ---- >>main ---------------------------------------------------------------------------------- */

/* A launcher (cdprun, torchrun, Slurm, mpirun) tells each process its rank; without one this
   process is alone. */
static bool join_world(cdp_group **world, bool *alone) {
    static const char *const names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
    *alone = true;
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
        *alone = *alone && !getenv(names[i]);
    if (*alone) return worked(cdp_group_create(&(cdp_group_desc){.world_size = 1}, world));
    return worked(cdp_init_from_env(NULL, world));
}

/* Rank 0 reads the checkpoint; all ranks learn what is in it, or why it cannot be read. */
static bool load_on_rank_0(cdp_group *world, settings *s, header *h, real **state) {
    reason why = {{0}};
    bool ok = true;
    if (cdp_rank(world) == 0) {
        ok = checkpoint_load(s->load, h, state, &why);
        settings trial = *s;
        ok = ok && settings_adopt(&trial, h, &why);
    }
    if (!all_learn(world, ok, &why) || !worked(cdp_broadcast(world, h, sizeof *h, CDP_DTYPE_U8, 0)))
        return false;
    if (settings_adopt(s, h, &why)) return true;
    complain(&why);
    return false;
}

/* Every rank says whether it can start, with which plan and on which text; all must be able, and
   all must agree. */
static bool all_agree(cdp_group *world, bool ok, const settings *s, const corpus *text) {
    const uint32_t ranks = cdp_size(world);
    const uint64_t rest[] = {s->steps, s->bucket_kib, s->log_every, s->eval_every, s->eval_bytes,
        s->save != NULL, s->save_every, s->check, s->check_steps, s->hook};
    const uint64_t mine[3] = {
        ok, hash_bytes(hash_bytes(0, &s->plan, sizeof s->plan), rest, sizeof rest), text->hash};
    uint64_t *all = (uint64_t *)need(ranks, sizeof mine);
    bool agreed = worked(cdp_allgather(world, mine, all, 3, CDP_DTYPE_I64));
    for (uint32_t i = 0; agreed && i < ranks; ++i) {
        reason why;
        const uint64_t *theirs = all + 3 * i;
        if (theirs[0] == 0)
            agreed = ok && because(&why, "rank %u could not start; it says why", i);
        else if (ok && theirs[1] != all[1])
            agreed = because(&why, "rank %u was started with other options than rank 0", i);
        else if (ok && theirs[2] != all[2])
            agreed = because(&why,
                "rank %u found another text than rank 0; all ranks must read the same files", i);
        if (!agreed && ok) complain(&why);
    }
    free(all);
    return agreed && ok;
}

static void print_start(const settings *s, const trainer *t, bool alone) {
    const corpus *c = t->text;
    if (alone)
        printf("train_text: no launcher, so this process runs alone (four of them: cdprun -n 4 "
               "./train_text)\n");
    printf("text: %llu files, %zu bytes to learn from and %zu held out", llu(c->files),
        c->train_bytes, c->held_bytes);
    if (c->skipped) printf(" (%llu files skipped: they are not text)", llu(c->skipped));
    printf("\nmodel: %llu layers, width %llu, %llu heads, context %llu: %llu parameters, %.0f KiB "
           "of gradients in %u buckets\n",
        llu(s->plan.layers), llu(s->plan.width), llu(s->plan.heads), llu(s->plan.context),
        llu(t->model.value_count), (double)(t->model.value_count * sizeof(real)) / 1024,
        cdp_ddp_stats_of(t->ddp).bucket_count);
    printf("batch: %llu sequences = %llu bytes per step over %u rank%s; steps %llu to %llu\n",
        llu(s->plan.batch), llu(s->plan.batch * s->plan.context), cdp_size(t->world),
        cdp_size(t->world) == 1 ? "" : "s", llu(t->step) + 1, llu(s->steps));
}

static bool draw_result(const settings *s, const report *r, uint32_t ranks) {
    char path[1024], title[160];
    reason why;
    if (!s->svg && !s->save) return true;
    snprintf(path, sizeof path, "%s%s", s->svg ? s->svg : s->save, s->svg ? "" : ".svg");
    snprintf(title, sizeof title, "%llu layers of width %llu, batch %llu x %llu bytes, %u rank%s",
        llu(s->plan.layers), llu(s->plan.width), llu(s->plan.batch), llu(s->plan.context), ranks,
        ranks == 1 ? "" : "s");
    page p = draw_picture(&r->train, &r->held, title, s->digits);
    const bool ok = file_write(path, p.at, p.bytes, &why);
    free(p.at);
    if (!ok)
        complain(&why);
    else if (r->speaks)
        printf("curve: %s\n", path);
    return ok;
}

/* The end of a run. Whatever needs all ranks comes first; then only rank 0 still has something
   to do. */
static bool conclude(
    trainer *t, const settings *s, report *r, const header *from, const real *state) {
    uint64_t scored = 0;
    bool equal = false, good = true;
    if (!score_and_note(t, s, r, &scored)) return false;
    const double score = r->held.bits[r->held.count - 1];
    if (r->speaks) {
        printf("speed: %.0f tokens per second over all ranks, %.1f s of training\n",
            (double)((t->step - r->first_step) * t->plan.batch * t->plan.context)
                / ((double)r->train_ns / 1e9),
            (double)r->train_ns / 1e9);
        printf("held out: %.*f bits per byte over %llu bytes (guessing blindly: 8)\n",
            (int)s->digits, score, llu(scored));
    }
    if (!compare_replicas(t, r, &equal)) return false;
    if (s->save && !save_on_rank_0(t, s)) return false;
    if (s->trace && cdp_rank(t->world) == 0) {
        reason why;
        if (!trainer_trace(t, s->trace, &why)) complain(&why);
    }
    if (s->save && r->speaks) printf("checkpoint: %s\n", s->save);
    if (s->check && !check_and_tell(t->world, s, t->text, from, state, r, &good)) return false;
    if (cdp_rank(t->world) != 0) return equal && good;
    if (r->speaks && s->sample) print_sample(&t->model, t->text, s->sample, s->plan.seed);
    const bool drawn = draw_result(s, r, cdp_size(t->world)), finite = isfinite(score);
    const char *compared = "";
    if (s->check) compared = good ? ", agrees with one process" : ", DIFFERS from one process";
    printf("%s: %.*f bits per byte held out, replicas %s%s\n",
        equal && good && drawn && finite ? "PASS" : "FAIL", (int)s->digits, score,
        equal ? "identical" : "DIFFERENT", compared);
    return equal && good && drawn && finite;
}

static bool run(settings *s, cdp_group *world, const char *program, bool alone) {
    header from = {.step = 0};
    real *state = NULL;
    corpus text = {0};
    trainer t = {0};
    reason why;
    const bool first = cdp_rank(world) == 0;
    report r = {.terminal = isatty(1), .speaks = first && !s->quiet};
    if (s->load && !load_on_rank_0(world, s, &from, &state)) return false;
    bool ok = settings_fit(s, cdp_size(world), from.step, &why)
        && corpus_gather(&text, s->paths, s->path_count, program, s->plan.context, &why);
    ok = ok && (!first || (can_write(s->save, &why) && can_write(s->svg, &why)));
    if (!ok) complain(&why);
    ok = all_agree(world, ok, s, &text) && trainer_open(&t, s, &text, world, from.step, state);
    if (ok && r.speaks) print_start(s, &t, alone);
    if (ok && s->check && first) {
        r.snapshot = need_reals(t.model.value_count);
        r.snapshot_step = s->check_steps ? s->check_steps : s->steps;
    }
    ok = ok && train(&t, s, &r) && conclude(&t, s, &r, &from, state);
    trainer_close(&t);
    corpus_free(&text);
    free(state);
    free(r.snapshot);
    free(r.train.step);
    free(r.train.bits);
    free(r.held.step);
    free(r.held.bits);
    return ok;
}

int main(int argc, char **argv) {
    settings s;
    reason why;
    cdp_group *world = NULL;
    bool alone;
    setvbuf(stdout, NULL, _IOLBF, 0); /* launchers read lines */
    if (!settings_parse(&s, argc, argv, &why)) {
        complain(&why);
        return 2;
    }
    if (s.help) {
        print_help(stdout);
        return 0;
    }
    if (!join_world(&world, &alone)) return 1;
    const bool ok = run(&s, world, argv[0], alone);
    cdp_group_destroy(world);
    free(s.paths);
    return ok ? 0 : 1;
}
