/* join - writes the headers that users copy from the files of src/

       gcc -O1 tools/join.c -o join && ./join src .        what `make headers` does

   Each file src/cdp*.h is a manual and a list of #include lines. The header of the same name is
   that file with every included file in the place of its line: without the guard and the #include
   lines of that file, below a mark with its name. What two headers include keeps its guard. A file
   may use what comes before it in the list; an #include of anything else is an error, so the order
   of the lists is the order of the layers. Exit code 0, or 1 with a sentence that says which line
   is wrong. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FILES = 1024,
    PATH = 256,
    COLUMNS = 100
};

/* Files of src/: first the headers, each after those that it includes; then their parts. */
static char files[FILES][PATH] = {"cdp.h", "cdp_store.h", "cdp_tcp.h", "cdp_nccl.h", "cdp_mpi.h",
    "cdp_rpc.h", "cdp_elastic.h", "cdp_dtensor.h", "cdp_checkpoint.h", "cdp_mem.h", "cdp_fsdp.h",
    "cdp_pipeline.h", "cdp_launch.h"};
static unsigned reach[FILES]; /* of a header: bit i says that it is files[i], or includes it */
static unsigned in[FILES];    /* of a part: bit i says that files[i] has it */
static int headers, header;   /* how many there are, and which one is written now, to `out` */
static const char *src;       /* the folder */
static FILE *out;

typedef struct source {
    FILE *f;
    int file, number;
    char line[4096];
} source;

static void die(const source *s, const char *what, const char *name) {
    fprintf(stderr, "join: %s/%s:%d, for %s: %s%s\n", src, files[s->file], s->number, files[header],
        what, name);
    exit(1);
}

static FILE *open_file(source *s, int file, const char *folder, const char *mode) {
    FILE *f;
    s->file = file;
    s->number = 0;
    snprintf(s->line, sizeof s->line, "%s/%s", folder, files[file]);
    f = fopen(s->line, mode);
    if (!f) die(s, "cannot open ", s->line);
    return f;
}

/* Reads a line without its end. False: there is no more, and the file is closed. */
static bool next_line(source *s) {
    ++s->number;
    if (fgets(s->line, sizeof s->line, s->f)) {
        if (strlen(s->line) + 1 == sizeof s->line) die(s, "is too long", "");
        s->line[strcspn(s->line, "\r\n")] = 0;
        return true;
    }
    if (ferror(s->f) || fclose(s->f)) die(s, "cannot be read", "");
    return false;
}

/* The file that the line includes, as an index of files[]; -1: it includes none of ours. */
static int included(const source *s) {
    const char *from = files[s->file], *slash = strrchr(from, '/'), *name = s->line + 10;
    char path[PATH];
    int i = 0;
    if (strncmp(s->line, "#include \"", 10)) return -1;
    if (!strncmp(name, "../", 3)) { /* folders of src/ have no folders of their own */
        name += 3;
        slash = NULL;
    }
    snprintf(path, PATH, "%.*s%.*s", slash ? (int)(slash + 1 - from) : 0, from,
        (int)strcspn(name, "\""), name);
    while (i < FILES && *files[i] && strcmp(files[i], path))
        ++i;
    if (i == FILES) die(s, "one file too many: raise FILES of tools/join.c", "");
    strcpy(files[i], path);
    return i;
}

/* Two blank lines in a row are one, as clang-format has it. */
static void put_line(const char *line) {
    static bool after_blank;
    if (*line || !after_blank) fprintf(out, "%s\n", line);
    after_blank = !*line;
}

/* A part begins with "/x path - title". Writes its mark; returns whether the comment goes on. */
static bool put_mark(const source *s) {
    const char *end = strstr(s->line, " */");
    char path[PATH], mark[sizeof s->line + COLUMNS];
    int title = 0, used;
    sscanf(s->line, "/* %255s - %n", path, &title);
    if (!title || strcmp(path, files[s->file]))
        die(s, "should begin a comment with the path, a dash, and what the file is", "");
    used = snprintf(mark, sizeof mark, "/* ---- >>%.*s: %.*s ", (int)strlen(path) - 2, path,
        end ? (int)(end - s->line) - title : PATH, s->line + title);
    while (used < COLUMNS - 3)
        mark[used++] = '-';
    strcpy(mark + used, " */");
    put_line(mark);
    put_line("");
    return !end;
}

static void put_part(int part) {
    static source s;
    const bool shared = in[part] & (in[part] - 1);
    bool in_head;
    s.f = open_file(&s, part, src, "rb");
    in_head = next_line(&s) && put_mark(&s);
    while (next_line(&s)) {
        const int i = included(&s);
        const bool guard = *s.line == '#' && strstr(s.line, " CDP_SRC_");
        if (i >= 0 && !(in[i] & reach[header]))
            die(&s, "includes what is no earlier part of it: ", files[i]);
        if (i >= 0 || (guard && !shared)) continue;
        if (in_head && *s.line) {
            memcpy(s.line, "/* ", 3);
            in_head = false;
        }
        put_line(s.line);
    }
    put_line("");
    in[part] |= 1u << header;
}

/* CDP_TCP for cdp_tcp.h: how macros of a header begin. */
static const char *prefix_of(int i) {
    static char prefix[PATH];
    char *at;
    strcpy(prefix, files[i]);
    *strchr(prefix, '.') = 0;
    for (at = prefix; *at; ++at)
        *at = (char)toupper(*at);
    return prefix;
}

/* Where a header includes another one, a compiler reads all of that again: for nothing, unless it
   is the first time, or one of the headers below is to be implemented. */
static void put_include(const char *line, int other) {
    int i;
    reach[header] |= reach[other];
    fprintf(out, "#if !defined(%s_INCLUDED)", prefix_of(other));
    for (i = 0; i < headers; ++i) {
        if (!(reach[header] & 1u << i)) continue;
        fprintf(out, " \\\n    || defined(%s_IMPLEMENTATION)", prefix_of(i));
        if (i == 0) fputs(" || defined(CDP_CORE_IMPLEMENTATION)", out);
    }
    fputs("\n", out); /* the end of the condition: no line of its own, however empty */
    put_line(line);
    put_line("#endif");
}

static void join(const char *to) {
    static source s;
    bool manual = true;
    out = open_file(&s, header, to, "wb");
    s.f = open_file(&s, header, src, "rb");
    reach[header] |= 1u << header;
    put_line("/* SPDX-License-Identifier: MIT-0 OR Unlicense");
    put_line("   Both texts are at the end of cdp.h. */");
    while (next_line(&s)) {
        const int i = included(&s);
        if (i >= headers)
            put_part(i);
        else if (i >= 0)
            put_include(s.line, i);
        else
            put_line(s.line);
        if (!manual || !strstr(s.line, "*/")) continue;
        manual = false;
        fprintf(out, "\n/* Joined from src/%s and what it includes: ", files[header]);
        put_line("change that, then `make headers`. */");
    }
    if (ferror(out) | fclose(out)) die(&s, "cannot be written", "");
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fputs("usage: join SRC TO - writes TO/cdp*.h from SRC/cdp*.h and what they include\n",
            stderr);
        return 2;
    }
    src = argv[1];
    while (*files[headers])
        ++headers;
    for (int pass = 0; pass < 2; ++pass) /* in the second one, it is known which parts are shared */
        for (header = 0; header < headers; ++header)
            join(argv[2]);
    return 0;
}
