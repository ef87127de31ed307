/* sources - reads C sources as words and says what no compiler says

   sources layout FILE...      one line "RULE FILE:LINE: what" for each place that breaks a rule:
                               wide, ternary, comma, pragma, attribute, function (too long)
   sources functions FILE...   "LINES FILE NAME" of every function
   sources code FILE...        "FILE:LINE: code" of every line, without comments and the insides of
                               strings

   It is no parser: it knows brackets, statements and the layout that clang-format makes. Exit
   code 0, or 2 when a file cannot be read. */
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    COLUMNS = 100,
    FUNCTION_LINES = 60,
    SOURCES = 1000
};

typedef struct word {
    const char *text;
    int length, line;
    bool macro; /* part of a #define */
} word;

typedef struct source {
    const char *path;
    char *text, *code; /* code: comments, insides of strings and directives are blanks */
    int lines;
    word *words;
    int count;
} source;

static source sources[SOURCES];
static int source_count;

static void *need(void *p) {
    if (!p) {
        fprintf(stderr, "sources: no memory\n");
        exit(2);
    }
    return p;
}

static char *read_file(const char *path) {
    FILE *f = fopen(path, "rb");
    long bytes;
    char *text;
    if (!f || fseek(f, 0, SEEK_END) || (bytes = ftell(f)) < 0) {
        fprintf(stderr, "sources: cannot read %s\n", path);
        exit(2);
    }
    rewind(f);
    text = need(malloc((size_t)bytes + 2));
    if (fread(text, 1, (size_t)bytes, f) != (size_t)bytes) exit(2);
    text[bytes] = text[bytes + 1] = 0;
    fclose(f);
    return text;
}

/* ---- words ---- */

static char *skip_string(char *p) {
    const char quote = *p++;
    while (*p && *p != quote && *p != '\n') {
        if (*p == '\\' && p[1]) *p++ = ' ';
        if (*p != '\n') *p = ' ';
        ++p;
    }
    return *p == quote ? p + 1 : p;
}

static char *skip_comment(char *p) {
    const bool block = p[1] == '*';
    *p = p[1] = ' ';
    for (p += 2; *p; ++p) {
        if (block && p[0] == '*' && p[1] == '/') {
            p[0] = p[1] = ' ';
            return p + 2;
        }
        if (!block && *p == '\n') return p;
        if (*p != '\n') *p = ' ';
    }
    return p;
}

static char *code_of(const char *text) {
    char *code = need(strdup(text)), *p = code;
    while (*p) {
        if (*p == '/' && (p[1] == '*' || p[1] == '/'))
            p = skip_comment(p);
        else if (*p == '\'' && p > code && isalnum((unsigned char)p[-1]))
            ++p; /* 1'000 of C++ */
        else if (*p == '"' || *p == '\'')
            p = skip_string(p);
        else
            ++p;
    }
    return code;
}

static bool word_char(char c) {
    return isalnum((unsigned char)c) || c == '_';
}

static bool is(const word *w, const char *text) {
    return (int)strlen(text) == w->length && !memcmp(w->text, text, (size_t)w->length);
}

static bool name_like(const word *w) {
    return isalpha((unsigned char)*w->text) || *w->text == '_';
}

static void add_word(source *s, const char *at, int length, int line, bool macro) {
    if (s->count % 4096 == 0) {
        s->words = need(realloc(s->words, (size_t)(s->count + 4096) * sizeof *s->words));
    }
    s->words[s->count].text = at;
    s->words[s->count].length = length;
    s->words[s->count].line = line;
    s->words[s->count++].macro = macro;
}

/* Directives other than #define vanish. A #define becomes its words with `macro` set, and ends
   with a ";" of its own. */
static void split(source *s) {
    const char *p = s->code;
    bool fresh = true, macro = false, skip = false;
    int line = 1;
    for (; *p; ++p) {
        if (*p == '\n') {
            const bool more = (macro || skip) && p > s->code && p[-1] == '\\';
            if (macro && !more) add_word(s, ";", 1, line, true);
            ++line;
            fresh = true;
            if (!more) macro = skip = false;
        } else if (*p == '#' && fresh && !macro && !skip) {
            const char *q = p + 1;
            while (*q == ' ')
                ++q;
            macro = !strncmp(q, "define ", 7);
            skip = !macro;
            if (macro) p = q - 1;
            fresh = false;
        } else if (!isspace((unsigned char)*p) && *p != '\\') {
            int n = 1;
            fresh = false;
            if (word_char(*p)) {
                while (word_char(p[n]))
                    ++n;
            }
            if (!skip) add_word(s, p, n, line, macro);
            p += n - 1;
        }
    }
    s->lines = line - 1;
}

/* ---- statements ---- */

static bool of_type(const word *w) {
    static const char *const known[] = {"static", "const", "unsigned", "signed", "char", "short",
        "int", "long", "float", "double", "void", "bool", "struct", "union", "enum", "typedef",
        "extern", "register", "volatile", "inline", "auto", "define", NULL};
    for (int i = 0; known[i]; ++i) {
        if (is(w, known[i])) return true;
    }
    return w->length > 2 && !memcmp(w->text + w->length - 2, "_t", 2);
}

/* Do the n words from w on declare something? */
static bool declares(const word *w, int n) {
    int i = 1;
    if (!n || of_type(w)) return true;
    if (!name_like(w) || is(w, "return") || is(w, "else") || is(w, "case") || is(w, "goto"))
        return false;
    while (i < n && (is(&w[i], "*") || is(&w[i], "const")))
        ++i;
    return i < n && name_like(&w[i]);
}

typedef struct level {
    char kind; /* '(' call or condition, 'g' grouping, 'f' for, 'b' block, 'i' initialiser, '[' */
    int open_ternary, start; /* of the statement in it */
} level;

/* Does the brace at `at` follow a type in parentheses that is a value: = (type){ ... }? */
static bool compound_literal(const source *s, int at) {
    int i = at - 1, open = 0;
    if (i < 0 || !is(&s->words[i], ")")) return false;
    for (; i > 0; --i) {
        open += is(&s->words[i], ")") - is(&s->words[i], "(");
        if (!open) break;
    }
    return i > 0 && (is(&s->words[i - 1], "=") || is(&s->words[i - 1], "return"));
}

static char kind_of(const source *s, int at, const level *l, char outer) {
    const word *w = &s->words[at], *before = at ? w - 1 : NULL;
    if (*w->text == '[') return '[';
    if (*w->text == '(') {
        if (before && is(before, "for")) return 'f';
        if (before
            && (is(before, "if") || is(before, "while") || is(before, "switch")
                || is(before, "return")))
            return 'g';
        if (before && (name_like(before) || is(before, ")") || is(before, "]"))) return '(';
        if (before && is(before, ",")) return '('; /* parameters given to a macro */
        return 'g';
    }
    if (before && is(before, "(")) return 'b';
    if (before && (is(before, "enum") || (at > 1 && is(before - 1, "enum")))) return 'i';
    if (outer != 'b' || compound_literal(s, at)) return 'i';
    for (int i = l->start; i < at; ++i) {
        if (is(&s->words[i], "=") || is(&s->words[i], "enum") || is(&s->words[i], "return"))
            return 'i';
        if (is(&s->words[i], "(")) break;
    }
    return 'b';
}

static void broken(const source *s, const char *rule, int line, const char *what) {
    printf("%s %s:%d: %s\n", rule, s->path, line, what);
}

static void statements(const source *s) {
    static level stack[200];
    int depth = 0;
    stack[0] = (level){'b', 0, 0};
    for (int i = 0; i < s->count; ++i) {
        const word *w = &s->words[i];
        level *l = &stack[depth];
        const char c = *w->text;
        if (is(w, "define") && w->macro) l->start = i;
        if (c == '(' || c == '[' || c == '{') {
            const char kind = kind_of(s, i, l, l->kind);
            if (depth < 199) ++depth;
            stack[depth] = (level){kind, kind == 'b' ? 0 : l->open_ternary, i + 1};
        } else if (c == ')' || c == ']' || c == '}') {
            const bool block = l->kind == 'b';
            if (depth) --depth;
            if (c == '}' && block) stack[depth].start = i + 1;
            if (c == '}' && block && stack[depth].kind == 'b') stack[depth].open_ternary = 0;
        } else if (c == ';') {
            while (w->macro && depth && stack[depth].kind != 'b')
                --depth;
            l = &stack[depth];
            l->open_ternary = 0;
            l->start = i + 1;
        } else if (c == '?') {
            if (l->open_ternary) broken(s, "ternary", w->line, "a ternary inside another");
            l->open_ternary = 1;
        } else if (c == ',') {
            if (l->kind == 'b' && !declares(&s->words[l->start], i - l->start)
                && !s->words[l->start].macro)
                broken(s, "comma", w->line, "two statements joined by a comma");
            if (l->kind == 'g' && !declares(&s->words[l->start], i - l->start))
                broken(s, "comma", w->line, "two expressions joined by a comma");
            l->open_ternary = depth && l->kind != 'b' ? stack[depth - 1].open_ternary : 0;
        }
    }
}

/* ---- what a file defines at its outermost level ---- */

typedef void found(const source *s, const word *name, int strength, int from_line, int to_line,
    bool function, void *user);

/* The name of the function that words from..to declare, or NULL. */
static const word *function_of(const source *s, int from, int to) {
    for (int i = from; i + 1 < to; ++i) {
        const word *w = &s->words[i];
        if (is(&s->words[i + 1], "(") && islower((unsigned char)*w->text) && name_like(w)
            && !is(w, "__attribute__") && !is(&s->words[i + 2], "*"))
            return w;
    }
    return NULL;
}

static bool has(const source *s, int from, int to, const char *text) {
    for (int i = from; i < to; ++i) {
        if (is(&s->words[i], text)) return true;
    }
    return false;
}

/* A typedef, a variable or a prototype: words from..to, the ";" not among them. `body`: where the
   body of a struct, union or enum begins and ends in it, or 0. */
static void declaration(
    const source *s, int from, int to, int body, int body_end, found *say, void *user) {
    const word *w = s->words;
    const int line = w[from].line, rest = body ? body_end : from;
    int i = to - 1;
    if (body && name_like(&w[body - 1]) && !is(&w[body - 1], "struct") && !is(&w[body - 1], "union")
        && !is(&w[body - 1], "enum"))
        say(s, &w[body - 1], 3, line, w[to].line, false, user);
    if (body && has(s, from, body, "enum")) {
        for (int k = body; k < body_end; ++k) {
            if ((is(&w[k], "{") || is(&w[k], ",")) && name_like(&w[k + 1]))
                say(s, &w[k + 1], 3, w[k].line, w[k].line, false, user);
        }
    }
    if (!body && function_of(s, from, to) && !has(s, from, to, "=")) {
        const bool public = has(s, from, to, "CDP_API");
        say(s, function_of(s, from, to), public ? 5 : 1, line, w[to].line, false, user);
        return;
    }
    for (int k = rest; k + 2 < to; ++k) { /* a pointer to a function */
        if (is(&w[k], "(") && is(&w[k + 1], "*") && name_like(&w[k + 2])) {
            say(s, &w[k + 2], 3, line, w[to].line, false, user);
            return;
        }
    }
    for (int k = rest; k < to; ++k) {
        if (is(&w[k], "=") || is(&w[k], "[")) {
            i = k - 1;
            break;
        }
    }
    if (i > from && name_like(&w[i]))
        say(s, &w[i], body || !has(s, from, to, "struct") || !is(&w[from], "typedef") ? 3 : 2, line,
            w[to].line, false, user);
}

static int after_bracket(const source *s, int at) { /* the word after the partner of at's bracket */
    int depth = 0;
    for (; at < s->count; ++at) {
        const char c = *s->words[at].text;
        if (c == '{' || c == '(') ++depth;
        if ((c == '}' || c == ')') && --depth == 0) return at + 1;
    }
    return at;
}

static void definitions(const source *s, found *say, void *user) {
    int from = 0, body = 0, body_end = 0;
    for (int i = 0; i < s->count; ++i) {
        const word *w = &s->words[i];
        if (w->macro) {
            if (is(w, "define") && (i == 0 || !w[-1].macro || is(&w[-1], ";"))) {
                say(s, w + 1, 3, w->line, w->line, false, user);
                while (!(is(&s->words[i], ";") && s->words[i].macro))
                    ++i;
                if (from >= i || s->words[from].macro) from = i + 1;
            }
        } else if (is(w, "{")) {
            if (is(w - 1, "\"") && has(s, from, i, "extern")) { /* extern "C" */
                from = i + 1;
            } else if (i > from && is(w - 1, ")") && !has(s, from, i, "=")) {
                const int end = after_bracket(s, i);
                const word *name = function_of(s, from, i);
                if (name) say(s, name, 3, s->words[from].line, s->words[end - 1].line, true, user);
                i = end - 1;
                from = end;
            } else {
                const int end = after_bracket(s, i);
                if (!has(s, from, i, "=")) {
                    body = i;
                    body_end = end;
                }
                i = end - 1;
            }
        } else if (is(w, "}")) {
            from = i + 1; /* of extern "C" */
        } else if (is(w, ";")) {
            if (i > from) declaration(s, from, i, body, body_end, say, user);
            from = i + 1;
            body = body_end = 0;
        }
    }
}

/* ---- rules ---- */

static void long_function(
    const source *s, const word *name, int strength, int from, int to, bool function, void *user) {
    char what[160];
    (void)strength;
    if (!function) return;
    if (user) {
        printf("%d %s %.*s\n", to - from + 1, s->path, name->length, name->text);
    } else if (to - from + 1 > FUNCTION_LINES) {
        snprintf(what, sizeof what, "%.*s has %d lines", name->length, name->text, to - from + 1);
        broken(s, "function", from, what);
    }
}

static void wide(const source *s) {
    int line = 1;
    for (const char *p = s->text, *end; (end = strchr(p, '\n')) != NULL; p = end + 1, ++line) {
        char what[40];
        int columns = 0;
        for (const char *c = p; c < end; ++c)
            columns += ((unsigned char)*c & 0xc0) != 0x80;
        snprintf(what, sizeof what, "%d columns", columns);
        if (columns > COLUMNS) broken(s, "wide", line, what);
    }
}

static void forbidden(const source *s) {
    int line = 1;
    for (const char *p = s->code, *end; (end = strchr(p, '\n')) != NULL; p = end + 1, ++line) {
        const size_t n = (size_t)(end - p);
        const bool pragma = memmem(p, n, "pragma", 6) || memmem(p, n, "_Pragma", 7);
        /* CDP__EXACT says how results are rounded, which is not the user's choice */
        const bool exact = strstr(s->path, "base/compiler.h") && memmem(p, n, "__optimize__", 12);
        if (memmem(p, n, "optimize", 8) && !exact && (pragma || memmem(p, n, "__attribute__", 13)))
            broken(s, "pragma", line, "how much to optimise is the user's choice");
        /* one macro names the few functions that have it, which check_sources.sh counts */
        if (memmem(p, n, "__attribute__", 13) && !memmem(p, n, "define CDP__ONE_COPY ", 21)
            && !memmem(p, n, "define CDP__COLD ", 17)
            && (memmem(p, n, "cold", 4) || memmem(p, n, "noinline", 8)))
            broken(s, "attribute", line, "cold or noinline");
    }
}

static void layout(const source *s) {
    wide(s);
    forbidden(s);
    statements(s);
    definitions(s, long_function, NULL);
}

static void load(const char *path) {
    source *s = &sources[source_count++];
    memset(s, 0, sizeof *s);
    s->path = path;
    s->text = read_file(path);
    s->code = code_of(s->text);
    split(s);
}

static void code(const source *s) {
    int line = 1;
    for (const char *p = s->code, *end; (end = strchr(p, '\n')) != NULL; p = end + 1, ++line)
        printf("%s:%d: %.*s\n", s->path, line, (int)(end - p), p);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    static int yes = 1;
    for (int i = 2; i < argc && source_count < SOURCES; ++i)
        load(argv[i]);
    for (int i = 0; i < source_count; ++i) {
        if (!strcmp(what, "layout")) layout(&sources[i]);
        if (!strcmp(what, "functions")) definitions(&sources[i], long_function, &yes);
        if (!strcmp(what, "code")) code(&sources[i]);
    }
    return source_count == argc - 2 ? 0 : 2;
}
