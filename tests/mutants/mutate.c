/* mutate.c - small defects in the bodies of a header's functions, one at a time

       mutate pick SEED COUNT HEADER...     COUNT lines "HEADER LINE AT KIND", drawn by SEED
       mutate plant HEADER LINE AT KIND     the header with that defect, to stdout
       mutate one HEADER LINE AT KIND       the same for -include tests/linked.h: an object of it
                                            has the function with the defect, and no other
       mutate show HEADER LINE AT KIND      "HEADER:LINE section KIND | before | after"

   Kinds: operator (another one of its sort), constant (a number plus one, true for false),
   condition (an if that is negated), missing (a statement that is left out), none (for control:
   nothing changes). Definitions outside of functions are left alone, since tests are compiled with
   them. So are lines that only check or describe: assertions, texts of errors, logs. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind {
    OPERATOR,
    CONSTANT,
    CONDITION,
    MISSING,
    KINDS, /* that are drawn */
    NONE = KINDS
};
static const char *const kind_names[KINDS + 1] = {
    "operator", "constant", "condition", "missing", "none"};

#define MAX_LINES 40000
#define MAX_LINE 400

typedef struct header {
    const char *name;
    char (*lines)[MAX_LINE];
    uint32_t count;
    bool *body;          /* inside of a function */
    char (*section)[64]; /* the name behind >> that came last */
} header;

typedef struct mutation {
    uint32_t header, line, at;
    enum kind kind;
} mutation;

static void stop(const char *what, const char *name) {
    fprintf(stderr, "mutate: %s %s\n", what, name);
    exit(2);
}

static bool starts(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static void header_read(header *h, const char *name) {
    FILE *f = fopen(name, "r");
    bool inside = false, implementation = false;
    char section[64] = "-";
    memset(h, 0, sizeof *h);
    h->name = name;
    h->lines = calloc(MAX_LINES, sizeof *h->lines);
    h->body = calloc(MAX_LINES, sizeof *h->body);
    h->section = calloc(MAX_LINES, sizeof *h->section);
    if (!f || !h->lines || !h->body || !h->section) stop("cannot read", name);
    while (h->count < MAX_LINES && fgets(h->lines[h->count], MAX_LINE, f)) {
        char *line = h->lines[h->count];
        const size_t n = strcspn(line, "\n");
        const char *anchor = starts(line, "/* ---- >>") ? line + 10 : NULL;
        line[n] = 0;
        if (anchor) { /* up to " (pure)", ": what it does" or the dashes */
            size_t end = 0;
            while (anchor[end] && anchor[end] != ':' && !starts(anchor + end, " (")
                && !starts(anchor + end, " --"))
                ++end;
            snprintf(section, sizeof section, "%.*s", (int)end, anchor);
        }
        if (starts(line, "#define CDP_") && strstr(line, "_IMPL_INCLUDED")) implementation = true;
        if (starts(line, "}")) inside = false;
        h->body[h->count] = inside;
        if (implementation && n && line[n - 1] == '{' && strchr(line, ')') && !starts(line, "#"))
            inside = true;
        snprintf(h->section[h->count++], 64, "%s", section);
    }
    fclose(f);
}

/* Lines on which a defect would be none, or in words only. */
static bool is_left_alone(const char *text) {
    static const char *const first[] = {"#", "/*", "*", "//", "\"", "case ", "default:", "static ",
        "typedef ", "goto ", "}", "CDP_ASSERT", "const char *"};
    static const char *const any[] = {
        "cdp__fail", "cdp__log(", "cdp__text_add", "cdp__format(", "(void)", "snprintf"};
    for (size_t i = 0; i < sizeof first / sizeof *first; ++i)
        if (starts(text, first[i])) return true;
    for (size_t i = 0; i < sizeof any / sizeof *any; ++i)
        if (strstr(text, any[i])) return true;
    return false;
}

/* Which bytes of a line are code, not comment or text. `comment` lives on to the next line. */
static void code_of(const char *line, bool *comment, bool code[MAX_LINE]) {
    char quote = 0;
    for (size_t i = 0; line[i]; ++i) {
        code[i] = !*comment && !quote;
        if (*comment && starts(line + i, "*/")) {
            *comment = false;
            code[++i] = false;
        } else if (!*comment && !quote && starts(line + i, "/*")) {
            *comment = true;
            code[i] = false;
        } else if (!*comment && !quote && starts(line + i, "//")) {
            memset(code + i, 0, strlen(line + i));
            return;
        } else if (!*comment && (line[i] == '"' || line[i] == '\'')) {
            code[i] = false;
            if (!quote)
                quote = line[i];
            else if (quote == line[i])
                quote = 0;
        } else if (quote && line[i] == '\\' && line[i + 1]) {
            code[++i] = false;
        }
    }
}

/* An operator with a space on both sides, so that signs, pointers and arrows are none. */
static const char *const operators[][2] = {{" == ", " != "}, {" != ", " == "}, {" < ", " <= "},
    {" <= ", " < "}, {" > ", " >= "}, {" >= ", " > "}, {" && ", " || "}, {" || ", " && "},
    {" + ", " - "}, {" - ", " + "}, {" += ", " -= "}, {" -= ", " += "}, {" | ", " & "},
    {" & ", " | "}, {" << ", " >> "}, {" >> ", " << "}, {" * ", " + "}, {" / ", " * "},
    {" % ", " / "}};

static const char *operator_at(const char *at, const char **other) {
    for (size_t i = 0; i < sizeof operators / sizeof *operators; ++i)
        if (starts(at, operators[i][0])) {
            *other = operators[i][1];
            return operators[i][0];
        }
    return NULL;
}

/* The size of an array of text is none: one more byte changes nothing. */
static bool is_number(const char *line, size_t at) {
    if (at && line[at - 1] == '[' && strstr(line, "char ")) return false;
    return line[at] >= '0' && line[at] <= '9'
        && (!at || (!is_word(line[at - 1]) && line[at - 1] != '.'));
}

static bool is_constant(const char *line, size_t at) {
    const bool begins = !at || !is_word(line[at - 1]);
    return is_number(line, at) || (begins && starts(line + at, "true") && !is_word(line[at + 4]))
        || (begins && starts(line + at, "false") && !is_word(line[at + 5]));
}

/* A statement of one line that a function can do without, as far as the compiler is concerned. */
static bool is_statement(const char *line, const char *text, const char *before) {
    static const char *const not [] = {
        "return", "break", "continue", "const ", "struct ", "else", "for ", "if ", "while ", "do "};
    const size_t n = strlen(text);
    const size_t m = strlen(before);
    const char *space = strchr(text, ' '), *call = strchr(text, '(');
    for (size_t i = 0; i < sizeof not / sizeof *not ; ++i)
        if (starts(text, not [i])) return false;
    if (text == line || !n || text[n - 1] != ';') return false;
    /* the rest of a statement that began above */
    if (m && before[m - 1] != ';' && before[m - 1] != '{' && before[m - 1] != '}'
        && before[m - 1] != ':' && before[m - 1] != ')' && !starts(before + m - 4, "else")
        && !starts(before + m - 2, "*/"))
        return false;
    /* a declaration has two words before anything else */
    if (!space) return call != NULL || strstr(text, "++") || strstr(text, "--");
    if (call && call < space) return true;
    return strchr("=+-|&*/<>^%", space[1]) != NULL && space[1] != '*';
}

static bool applies(const header *h, uint32_t line, uint32_t at, enum kind k, const bool *code) {
    const char *text = h->lines[line], *first = text + strspn(text, " "), *other;
    if (k == OPERATOR) return code[at] && code[at + 1] && operator_at(text + at, &other);
    if (k == CONSTANT) return code[at] && is_constant(text, at);
    if (k == CONDITION)
        return code[at] && starts(text + at, "if (") && (!at || !is_word(text[at - 1]));
    return text + at == first && is_statement(text, first, line ? h->lines[line - 1] : "");
}

static uint32_t candidates(const header *h, uint32_t number, mutation *out) {
    uint32_t n = 0;
    bool comment = false, code[MAX_LINE];
    for (uint32_t i = 0; i < h->count; ++i) {
        const char *text = h->lines[i];
        memset(code, 0, sizeof code);
        code_of(text, &comment, code);
        if (!h->body[i] || is_left_alone(text + strspn(text, " "))) continue;
        for (uint32_t at = 0; text[at]; ++at)
            for (int k = 0; k < KINDS; ++k)
                if (applies(h, i, at, (enum kind)k, code)) {
                    if (out) out[n] = (mutation){number, i, at, (enum kind)k};
                    ++n;
                }
    }
    return n;
}

/* The line with the defect. */
static void changed(const header *h, const mutation *m, char out[MAX_LINE + 16]) {
    const char *text = h->lines[m->line], *at = text + m->at, *other = "", *was;
    const int before = (int)m->at;
    if (m->kind == NONE) {
        snprintf(out, MAX_LINE + 16, "%s", text);
    } else if (m->kind == MISSING) {
        snprintf(out, MAX_LINE + 16, "%.*s;", before, text);
    } else if (m->kind == CONDITION) { /* to the end of the parentheses, or of the line */
        int depth = 1;
        const char *p = at + 4;
        for (; *p && depth; ++p) {
            depth += *p == '(';
            depth -= *p == ')';
        }
        if (depth)
            snprintf(out, MAX_LINE + 16, "%.*sif (!%s", before, text, at + 4);
        else
            snprintf(out, MAX_LINE + 16, "%.*sif (!(%.*s)%s", before, text, (int)(p - at - 4),
                at + 4, p);
    } else if (m->kind == OPERATOR) {
        was = operator_at(at, &other);
        snprintf(out, MAX_LINE + 16, "%.*s%s%s", before, text, other, at + strlen(was));
    } else if (starts(at, "true")) {
        snprintf(out, MAX_LINE + 16, "%.*sfalse%s", before, text, at + 4);
    } else if (starts(at, "false")) {
        snprintf(out, MAX_LINE + 16, "%.*strue%s", before, text, at + 5);
    } else {
        char *end;
        const unsigned long long v = strtoull(at, &end, 0);
        const bool hexadecimal = starts(at, "0x");
        snprintf(out, MAX_LINE + 16, hexadecimal ? "%.*s0x%llx%s" : "%.*s%llu%s", before, text,
            v + 1, end);
    }
}

static uint64_t random_state;
static uint64_t draw(uint64_t n) {
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % n;
}

/* Kinds are equally frequent, whatever a header has most of. */
static int pick(uint64_t seed, uint32_t count, char **names, uint32_t n) {
    header *h = calloc(n, sizeof *h);
    mutation *all, *of_kind;
    uint32_t total = 0, i;
    if (!h) return 2;
    for (i = 0; i < n; ++i) {
        header_read(&h[i], names[i]);
        total += candidates(&h[i], i, NULL);
    }
    all = calloc(total + 1, sizeof *all);
    of_kind = calloc(total + 1, sizeof *of_kind);
    if (!all || !of_kind) return 2;
    for (i = 0, total = 0; i < n; ++i)
        total += candidates(&h[i], i, all + total);
    random_state = seed;
    for (i = 0; i < count; ++i) {
        uint32_t m = 0, k, drawn;
        for (k = 0; k < total; ++k)
            if (all[k].kind == (enum kind)(i % KINDS)) of_kind[m++] = all[k];
        if (!m) continue;
        drawn = (uint32_t)draw(m);
        printf("%s %u %u %s\n", h[of_kind[drawn].header].name, of_kind[drawn].line + 1,
            of_kind[drawn].at, kind_names[i % KINDS]);
        for (k = 0; k < total; ++k) /* not twice */
            if (memcmp(&all[k], &of_kind[drawn], sizeof *all) == 0) all[k].kind = KINDS;
    }
    return 0;
}

/* The header, with one function of which code is made: its words for "private" and "public" lack
   the extern that tests/linked.h puts there. */
static void print_one(const header *h, const mutation *m, const char *line) {
    static const char *const words[] = {"CDP__PRIVATE", "CDP_API"};
    uint32_t from = m->line, to = m->line;
    while (from && (h->body[from] || h->lines[from][0] == ' '))
        --from;
    while (to + 1 < h->count && !starts(h->lines[to], "}"))
        ++to;
    for (uint32_t i = 0; i < h->count; ++i) {
        for (int k = 0; k < 2 && i == from; ++k)
            printf("#pragma push_macro(\"%s\")\n#undef %s\n"
                   "#define %s __inline __attribute__((__gnu_inline__))\n",
                words[k], words[k], words[k]);
        puts(i == m->line ? line : h->lines[i]);
        for (int k = 0; k < 2 && i == to; ++k)
            printf("#pragma pop_macro(\"%s\")\n", words[k]);
    }
}

int main(int argc, char **argv) {
    header h;
    mutation m = {0};
    char line[MAX_LINE + 16];
    const char *what = argc > 1 ? argv[1] : "";
    if (argc > 4 && strcmp(what, "pick") == 0)
        return pick(strtoull(argv[2], NULL, 10), (uint32_t)strtoul(argv[3], NULL, 10), argv + 4,
            (uint32_t)argc - 4);
    if (argc != 6)
        stop("usage: pick SEED COUNT HEADER... | plant, one or show HEADER LINE AT KIND", "");
    header_read(&h, argv[2]);
    m.line = (uint32_t)strtoul(argv[3], NULL, 10) - 1;
    m.at = (uint32_t)strtoul(argv[4], NULL, 10);
    while (m.kind < NONE && strcmp(argv[5], kind_names[m.kind]) != 0)
        ++m.kind;
    if (m.line >= h.count || m.at >= MAX_LINE) stop("no such place in", argv[2]);
    changed(&h, &m, line);
    if (strcmp(what, "one") == 0) print_one(&h, &m, line);
    if (strcmp(what, "show") == 0)
        printf("%s:%u %s %s | %s | %s\n", argv[2], m.line + 1, h.section[m.line], argv[5],
            h.lines[m.line] + strspn(h.lines[m.line], " "), line + strspn(line, " "));
    for (uint32_t i = 0; i < h.count && strcmp(what, "plant") == 0; ++i)
        puts(i == m.line ? line : h.lines[i]);
    return 0;
}
