/* join - writes the headers that users copy from the files of src/

       gcc -O1 tools/join.c -o join && ./join src .        what `make headers` does

   Each file src/cdp*.h is a manual and a list of #include lines. The header of the same name is
   that file with every included file in the place of its line: without the guard and the #include
   lines of that file, below a mark with its name. What two headers include keeps its guard. A
   header is included by another one only where that has something to say: the first time, and for
   an implementation. A file
   may use what comes before it in the list; an #include of anything else is an error, so the order
   of the lists is the order of the layers. Exit code 0, or 1 with a sentence that says which line
   is wrong. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROOTS = 16,
    FILES = 1024,
    PATH = 256,
    COLUMNS = 100
};

/* The headers, in an order in which each comes after those that it includes. */
static const char *const roots[] = {"cdp.h", "cdp_store.h", "cdp_tcp.h", "cdp_nccl.h", "cdp_mpi.h",
    "cdp_rpc.h", "cdp_elastic.h", "cdp_dtensor.h", "cdp_checkpoint.h", "cdp_mem.h", "cdp_fsdp.h",
    "cdp_pipeline.h", "cdp_launch.h"};
enum {
    ROOT_COUNT = sizeof roots / sizeof *roots
};

/* A file of src/, and which headers have it: bit r stands for roots[r]. */
static struct {
    char path[PATH];
    unsigned in;
} files[FILES];
static int file_count;
static unsigned reach[ROOT_COUNT]; /* the headers that header r includes, itself among them */

static void die(const char *path, int line, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "join: %s:%d: ", path, line);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

static char *read_file(const char *src, const char *path) {
    char name[2 * PATH];
    char *text = NULL;
    size_t used = 0, got;
    FILE *f;
    snprintf(name, sizeof name, "%s/%s", src, path);
    f = fopen(name, "rb");
    if (!f) die(name, 0, "cannot be read");
    do {
        text = realloc(text, used + 65537);
        if (!text) die(name, 0, "no memory");
        got = fread(text + used, 1, 65536, f);
        used += got;
    } while (got);
    text[used] = 0;
    fclose(f);
    return text;
}

/* Copies the line at `text` without its end; returns where the next one begins, NULL at the end. */
static const char *next_line(const char *text, char *line, size_t room) {
    const size_t length = strcspn(text, "\r\n");
    if (!*text) return NULL;
    if (length >= room) die("a line", 0, "of %u bytes is too long", (unsigned)length);
    memcpy(line, text, length);
    line[length] = 0;
    text += length;
    if (*text == '\r') ++text;
    return *text == '\n' ? text + 1 : text;
}

static int file_of(const char *path) {
    int i;
    for (i = 0; i < file_count; ++i)
        if (!strcmp(files[i].path, path)) return i;
    if (file_count == FILES) die(path, 0, "is one file too many: raise FILES");
    snprintf(files[file_count].path, PATH, "%s", path);
    return file_count++;
}

/* If the line includes a file of ours: its path below src/, seen from the folder of `from`. */
static bool included(const char *line, const char *from, char *out) {
    const char *name = line + 10, *slash = strrchr(from, '/');
    if (strncmp(line, "#include \"", 10)) return false;
    if (!strncmp(name, "../", 3)) { /* folders of src/ have no folders of their own */
        name += 3;
        slash = NULL;
    }
    snprintf(out, PATH, "%.*s%.*s", slash ? (int)(slash - from) + 1 : 0, from,
        (int)strcspn(name, "\""), name);
    return true;
}

/* Notes what header r consists of, and which headers it includes. */
static void survey(const char *src, int r) {
    char *text = read_file(src, roots[r]), line[4096], path[PATH];
    const char *at = text;
    int other;
    reach[r] = 1u << r;
    while ((at = next_line(at, line, sizeof line)) != NULL) {
        if (!included(line, roots[r], path)) continue;
        for (other = 0; other < ROOT_COUNT && strcmp(path, roots[other]); ++other) {
        }
        if (other < ROOT_COUNT)
            reach[r] |= reach[other];
        else
            files[file_of(path)].in |= 1u << r;
    }
    free(text);
}

/* "/x path - title" begins a file: the mark of its part, and what else that comment says. */
static bool head_line(FILE *out, const char *line, const char *path) {
    const char *title = strstr(line, " - ");
    const bool whole = strstr(line, "*/") != NULL;
    int used;
    if (strncmp(line, "/* ", 3) || strncmp(line + 3, path, strlen(path)) || !title)
        die(path, 1, "should begin with /* %s - what it is", path);
    used = fprintf(out, "/* ---- >>%.*s: %.*s ", (int)strlen(path) - 2, path,
        (int)strlen(title + 3) - (whole ? 3 : 0), title + 3);
    while (used++ < COLUMNS - 3)
        fputc('-', out);
    fputs(" */\n\n", out);
    return whole;
}

static bool is_guard(const char *line) {
    return !strncmp(line, "#ifndef CDP_SRC_", 16) || !strncmp(line, "#define CDP_SRC_", 16)
        || !strncmp(line, "#endif /* CDP_SRC_", 18);
}

/* Two blank lines in a row are one, as clang-format has it. */
static bool after_blank;
static void put_line(FILE *out, const char *line) {
    if (*line || !after_blank) fprintf(out, "%s\n", line);
    after_blank = !*line;
}

/* Writes one file of header r. `done`: which files the header, or one that it includes, has. */
static void part(FILE *out, const char *src, int r, const char *path, const bool *done) {
    char *text = read_file(src, path), line[4096], other[PATH];
    const char *at = next_line(text, line, sizeof line);
    const unsigned in = files[file_of(path)].in;
    bool in_head = at && !head_line(out, line, path);
    after_blank = true;
    for (int n = 2; (at = next_line(at, line, sizeof line)) != NULL; ++n) {
        if (included(line, path, other)) {
            const int i = file_of(other);
            if (!done[i] && !(files[i].in & reach[r] & ~(1u << r)))
                die(path, n, "includes %s, which comes later in src/%s, or is not in it", other,
                    roots[r]);
            continue;
        }
        if (is_guard(line) && !(in & (in - 1))) continue;
        if (in_head && *line) {
            memcpy(line, "/* ", 3);
            in_head = false;
        }
        put_line(out, line);
    }
    put_line(out, "");
    free(text);
}

/* The macro of a root: "cdp_tcp.h" and "INCLUDED" give CDP_TCP_INCLUDED. */
static void macro_of(const char *root, const char *what, char *out) {
    char *at;
    snprintf(out, PATH, "%.*s_%s", (int)strlen(root) - 2, root, what);
    for (at = out; *at; ++at)
        if (*at >= 'a' && *at <= 'z') *at = (char)(*at - 'a' + 'A');
}

/* One term of a condition, in lines as clang-format fills them. */
static void put_term(char lines[][PATH], int *count, const char *macro) {
    char *last = lines[*count - 1];
    char term[PATH + 16];
    snprintf(term, sizeof term, "|| defined(%s)", macro);
    if (strlen(last) + 1 + strlen(term) + 2 > COLUMNS) {
        last = lines[(*count)++];
        snprintf(last, PATH, "   ");
    }
    snprintf(last + strlen(last), PATH - strlen(last), " %s", term);
}

/* Where header r includes another one: a compiler reads all of it again, for nothing unless it is
   the first time, or one of the headers below is to be implemented. */
static void put_include(FILE *out, int r, const char *line, const char *path) {
    char lines[8][PATH], macro[PATH];
    int count = 1, other, i, longest = 0;
    macro_of(path, "INCLUDED", macro);
    snprintf(lines[0], PATH, "#if !defined(%.80s)", macro);
    put_term(lines, &count, "CDP_IMPLEMENTATION");
    put_term(lines, &count, "CDP_CORE_IMPLEMENTATION");
    for (other = 1; other < ROOT_COUNT; ++other)
        if (reach[r] & 1u << other) {
            macro_of(roots[other], "IMPLEMENTATION", macro);
            put_term(lines, &count, macro);
        }
    for (i = 0; i + 1 < count; ++i)
        if ((int)strlen(lines[i]) > longest) longest = (int)strlen(lines[i]);
    for (i = 0; i < count; ++i)
        fprintf(
            out, i + 1 < count ? "%-*s \\\n" : "%.*s\n", i + 1 < count ? longest : PATH, lines[i]);
    fprintf(out, "%s\n#endif\n", line);
    after_blank = false;
}

static void join(const char *src, const char *to, int r) {
    char *text = read_file(src, roots[r]), line[4096], path[PATH], name[2 * PATH];
    static bool done[FILES];
    const char *at = text;
    bool manual = true;
    FILE *out;
    memset(done, 0, sizeof done);
    snprintf(name, sizeof name, "%s/%s", to, roots[r]);
    out = fopen(name, "wb");
    if (!out) die(name, 0, "cannot be written");
    fputs("/* SPDX-License-Identifier: MIT-0 OR Unlicense\n   Both texts are at the end of cdp.h. "
          "*/\n",
        out);
    while ((at = next_line(at, line, sizeof line)) != NULL) {
        if (included(line, roots[r], path) && strchr(path, '/')) {
            part(out, src, r, path, done);
            done[file_of(path)] = true;
            continue;
        }
        if (included(line, roots[r], path)) {
            put_include(out, r, line, path);
            continue;
        }
        put_line(out, line);
        if (manual && strstr(line, "*/")) {
            fprintf(out,
                "\n/* Joined from src/%s and what it includes: change that, then `make headers`. "
                "*/\n",
                roots[r]);
            manual = false;
        }
    }
    if (fclose(out)) die(name, 0, "cannot be written");
    free(text);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fputs("usage: join SRC TO - writes TO/cdp*.h from SRC/cdp*.h and what they include\n",
            stderr);
        return 2;
    }
    for (int r = 0; r < ROOT_COUNT; ++r)
        survey(argv[1], r);
    for (int r = 0; r < ROOT_COUNT; ++r)
        join(argv[1], argv[2], r);
    return 0;
}
