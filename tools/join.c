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

/* Files of src/: first the headers, each after those that it includes; then their parts. */
static char files[1024][128] = {"cdp.h", "cdp_store.h", "cdp_tcp.h", "cdp_nccl.h", "cdp_mpi.h",
    "cdp_rpc.h", "cdp_elastic.h", "cdp_dtensor.h", "cdp_checkpoint.h", "cdp_mem.h", "cdp_fsdp.h",
    "cdp_pipeline.h", "cdp_launch.h"};
static unsigned reach[32]; /* of a header: bit i says that it is files[i], or includes it */
static unsigned in[1024];  /* of a part: bit i says that files[i] has it */
static int headers;        /* how many there are */
static int header;         /* the one that is written now, to stdout */
static const char *src;    /* the folder */

typedef struct source { /* a file that is read line by line */
    int file, number;   /* of files[]; of the line */
    char line[1024];
    FILE *f;
} source;

static void die(const source *s, const char *what, const char *name) {
    fprintf(stderr, "join: %s/%s:%d, for %s: %s%s\n", src, files[s->file], s->number, files[header],
        what, name);
    exit(1);
}

/* Reads a line without its end. False: there is no more, and the file is closed. */
static bool next_line(source *s) {
    if (!s->number++) {
        snprintf(s->line, sizeof s->line, "%s/%s", src, files[s->file]);
        s->f = fopen(s->line, "rb");
        if (!s->f) die(s, "cannot be opened", "");
    }
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
    char path[256], *slash;
    int i = 0;
    if (sscanf(s->line, "#include \"../%127[^\"]", path) != 1) { /* or of the same folder: */
        strcpy(path, files[s->file]);
        slash = strrchr(path, '/');
        if (sscanf(s->line, "#include \"%127[^\"]", slash ? slash + 1 : path) != 1) return -1;
    }
    while (i < 1024 && *files[i] && strcmp(files[i], path))
        ++i;
    if (i == 1024 || strlen(path) > 127) die(s, "no room in files[] of tools/join.c: ", path);
    strcpy(files[i], path);
    return i;
}

/* Two blank lines in a row are one, as clang-format has it. */
static void put_line(const char *line) {
    static bool after_blank;
    if (*line || !after_blank) puts(line);
    after_blank = !*line;
}

/* A part begins with "/x path - title". Writes its mark, of 100 columns; returns whether the
   comment goes on. */
static bool put_mark(source *s) {
    const char *path = files[s->file], *title = strstr(s->line, " - ");
    char *end = strstr(s->line, " */");
    int used;
    if (!title) die(s, "should begin a comment with the path, a dash, and what the file is", "");
    if (end) *end = 0;
    used = printf("/* ---- >>%.*s: %s ", (int)strlen(path) - 2, path, title + 3);
    for (; used < 97; ++used)
        putchar('-');
    put_line(" */");
    put_line("");
    return !end;
}

static void put_part(int part) {
    const bool shared = in[part] & (in[part] - 1); /* more than one bit */
    source s = {.file = part};
    bool in_head = next_line(&s) && put_mark(&s);
    while (next_line(&s)) {
        const int i = included(&s);
        const bool guard = *s.line == '#' && strstr(s.line, " CDP_SRC_");
        if (i >= 0 && !(in[i] & reach[header]))
            die(&s, "includes what is no earlier part of it: ", files[i]);
        if (i >= 0 || (guard && !shared)) continue;
        if (in_head && *s.line) memcpy(s.line, "/* ", 3);
        in_head = in_head && !*s.line;
        put_line(s.line);
    }
    put_line("");
    in[part] |= 1u << header;
}

/* Macros of a header begin with its name: CDP_TCP for cdp_tcp.h. */
static void put_macro(const char *before, int of, const char *after) {
    fputs(before, stdout);
    for (const char *at = files[of]; *at != '.'; ++at)
        putchar(toupper(*at));
    fputs(after, stdout);
}

/* Where a header includes another one, a compiler reads all of that again: for nothing, unless it
   is the first time, or one of the headers below is to be implemented. */
static void put_include(const char *line, int other) {
    reach[header] |= reach[other];
    put_macro("#if !defined(", other, "_INCLUDED)");
    for (int i = 0; i < headers; ++i) {
        if (!(reach[header] & 1u << i)) continue;
        put_macro(" \\\n    || defined(", i, "_IMPLEMENTATION)");
        if (i == 0) fputs(" || defined(CDP_CORE_IMPLEMENTATION)", stdout);
    }
    printf("\n%s\n", line);
    put_line("#endif");
}

static void join(const char *to) {
    source s = {.file = header};
    bool manual = true;
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", to, files[header]);
    if (!freopen(path, "wb", stdout)) die(&s, "cannot write ", path);
    reach[header] |= 1u << header;
    put_line("/* SPDX-License-Identifier: MIT-0 OR Unlicense");
    put_line("   Both texts are at the end of cdp.h. */");
    while (next_line(&s)) {
        const int i = included(&s);
        if (i < 0)
            put_line(s.line);
        else if (i < headers)
            put_include(s.line, i);
        else
            put_part(i);
        if (!manual || !strstr(s.line, "*/")) continue;
        printf("\n/* Joined from src/%s and what it includes: ", files[header]);
        put_line("change that, then `make headers`. */");
        manual = false;
    }
    if (fflush(stdout) || ferror(stdout)) die(&s, "cannot be written: ", path);
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
