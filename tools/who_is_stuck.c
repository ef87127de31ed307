/*  who_is_stuck.c - reads the dumps of the ranks of a job, and says which rank waits where, and
    for which other rank

        gcc -O2 tools/who_is_stuck.c -o who_is_stuck -pthread -lm
        ./who_is_stuck /tmp/run.*.json

    Ranks write these files in cdp_group_dump(), or by themselves where the desc has a dump_path. A
    rank without a file has crashed, was stopped, or never wrote one. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- JSON, as much of it as a dump needs ---- */

typedef struct json {
    char *name, *text;         /* of a member; of a string or number */
    struct json *first, *next; /* members, elements */
} json;

static const char *cursor; /* what is left to read; NULL after an error */

static void skip_space(void) {
    while (cursor && *cursor && strchr(" \t\r\n", *cursor))
        ++cursor;
}

static char *read_text(void) {
    const bool quoted = *cursor == '"';
    char *out = (char *)malloc(strlen(cursor) + 1), *to = out;
    if (!out) abort();
    for (cursor += quoted; *cursor && (quoted ? *cursor != '"' : !strchr(",:]}\n ", *cursor));
         ++cursor) {
        if (quoted && *cursor == '\\' && cursor[1]) ++cursor;
        *to++ = *cursor;
    }
    *to = 0;
    if (quoted && *cursor == '"')
        ++cursor;
    else if (quoted)
        cursor = NULL;
    return out;
}

static json *read_value(int depth) {
    json *v = (json *)calloc(1, sizeof *v), **last = &v->first;
    char close;
    skip_space();
    if (!cursor || depth > 20) {
        cursor = NULL;
        return v;
    }
    if (*cursor != '{' && *cursor != '[') {
        v->text = read_text();
        return v;
    }
    close = *cursor++ == '{' ? '}' : ']';
    for (skip_space(); cursor && *cursor != close; skip_space()) {
        char *name = close == '}' ? read_text() : NULL;
        skip_space();
        if (name && (!cursor || *cursor++ != ':')) {
            free(name);
            cursor = NULL;
            return v;
        }
        *last = read_value(depth + 1);
        (*last)->name = name;
        last = &(*last)->next;
        skip_space();
        if (cursor && *cursor == ',')
            ++cursor;
        else if (cursor && *cursor != close)
            cursor = NULL;
    }
    if (cursor) ++cursor;
    return v;
}

static json *member(const json *v, const char *name) {
    json *m = v ? v->first : NULL;
    while (m && (!m->name || strcmp(m->name, name) != 0))
        m = m->next;
    return m;
}
static const char *text_of(const json *v, const char *name) {
    const json *m = member(v, name);
    return m && m->text ? m->text : "";
}
static long long number_of(const json *v, const char *name, long long otherwise) {
    const json *m = member(v, name);
    return m && m->text && *m->text ? atoll(m->text) : otherwise;
}

static void json_free(json *v) {
    while (v) {
        json *next = v->next;
        json_free(v->first);
        free(v->name);
        free(v->text);
        free(v);
        v = next;
    }
}

/* ---- the dumps of all ranks ---- */

#define RANKS 65536
static json *dump_of[RANKS];
static long long world_size;

static bool is_whole(const json *d) {
    const json *g, *r;
    if (!member(d, "groups")) return false;
    for (g = member(d, "groups")->first; g; g = g->next) {
        if (!member(g, "ranks") || !member(g, "ranks")->first || !member(g, "operations"))
            return false;
        for (r = member(g, "ranks")->first; r; r = r->next)
            if (!r->text || atoll(r->text) < 0 || atoll(r->text) >= RANKS) return false;
    }
    return true;
}

static bool load(const char *path) {
    FILE *f = fopen(path, "rb");
    char *all = NULL;
    size_t used = 0, got = 1;
    json *d;
    long long rank;
    if (!f) {
        perror(path);
        return false;
    }
    for (; got; used += got) {
        all = (char *)realloc(all, used + 65537);
        if (!all) abort();
        got = fread(all + used, 1, 65536, f);
    }
    fclose(f);
    all[used] = 0;
    cursor = all;
    d = read_value(0);
    rank = number_of(d, "rank", -1);
    if (!cursor || !member(d, "cdp_dump") || rank < 0 || rank >= RANKS || !is_whole(d)) {
        fprintf(stderr, "%s: this is no complete dump\n", path);
        json_free(d);
        free(all);
        return false;
    }
    free(all);
    if (dump_of[rank]) {
        fprintf(stderr, "%s: a second file of rank %lld; it replaces the first\n", path, rank);
        json_free(dump_of[rank]);
    }
    dump_of[rank] = d;
    if (number_of(d, "world_size", 0) > world_size) world_size = number_of(d, "world_size", 0);
    return true;
}

static const json *group_on(long long rank, const char *id) {
    const json *g =
        rank >= 0 && rank < RANKS && dump_of[rank] ? member(dump_of[rank], "groups")->first : NULL;
    while (g && strcmp(text_of(g, "group"), id) != 0)
        g = g->next;
    return g;
}

static const json *operation(const json *group, long long seq) {
    const json *o = group ? member(group, "operations")->first : NULL;
    while (o && number_of(o, "seq", 0) != seq)
        o = o->next;
    return o;
}

/* The operation that a rank has begun and not completed. */
static const json *current(const json *group) {
    return operation(group, number_of(group, "completed", 0) + 1);
}

static void say_call(const json *o, char *out, size_t size) {
    snprintf(out, size, "%s #%s (%s x %s%s%s, %s %s)", text_of(o, "kind"), text_of(o, "seq"),
        text_of(o, "count"), text_of(o, "dtype"), *text_of(o, "op") ? " " : "", text_of(o, "op"),
        member(o, "tag") ? "tag" : "root",
        member(o, "tag") ? text_of(o, "tag") : text_of(o, "root"));
}

static bool same_call(const json *a, const json *b) {
    static const char *const what[] = {"kind", "dtype", "count", "op", "root", "tag"};
    for (unsigned i = 0; i < sizeof what / sizeof what[0]; ++i)
        if (strcmp(text_of(a, what[i]), text_of(b, what[i])) != 0) return false;
    return true;
}

/* ---- the verdict ---- */

/* Ranks that call different things under one number: the first such number. */
static bool find_mismatch(const json *group, const char *id) {
    const json *r = member(group, "ranks")->first, *a, *b;
    char here[160], there[160];
    long long first;
    while (r->next && !group_on(atoll(r->text), id))
        r = r->next;
    first = atoll(r->text);
    for (a = group_on(first, id) ? member(group_on(first, id), "operations")->first : NULL; a;
         a = a->next)
        for (r = member(group, "ranks")->first; r; r = r->next) {
            b = operation(group_on(atoll(r->text), id), number_of(a, "seq", 0));
            if (!b || same_call(a, b)) continue;
            say_call(a, here, sizeof here);
            say_call(b, there, sizeof there);
            printf("  cause: ranks call different things: rank %lld calls %s, rank %s calls %s\n",
                first, here, r->text, there);
            return true;
        }
    return false;
}

/* From rank to rank along "waits for", in any group, to the one that waits for nobody. */
static void follow(long long rank) {
    bool *seen = (bool *)calloc(RANKS, sizeof *seen);
    printf("  chain: rank %lld", rank);
    for (;;) {
        const json *g = dump_of[rank] ? member(dump_of[rank], "groups")->first : NULL;
        long long next = -1;
        seen[rank] = true;
        for (; g && next < 0; g = g->next)
            next = number_of(current(g), "waits_for", -1);
        if (next < 0 || next >= RANKS) break;
        printf(" waits for rank %lld%s", next, seen[next] ? "" : ", which");
        if (seen[next]) {
            printf(": a circle; these ranks wait for each other in different orders\n");
            free(seen);
            return;
        }
        rank = next;
    }
    if (!dump_of[rank])
        printf(" left no dump: it has crashed, is stopped, or was not asked\n  cause: rank %lld\n",
            rank);
    else
        printf(" waits for nobody: it does something else than communicate, or has ended\n  cause: "
               "rank %lld\n",
            rank);
    free(seen);
}

/* One group, seen by all its ranks. True: somebody waits in it. */
static bool report(const json *group, long long witness) {
    const char *id = text_of(group, "group");
    const json *r;
    char words[160];
    bool stuck = false;
    printf(
        "%s %s, %lld of %lld ranks have spoken:\n", text_of(group, "is"), id, witness, world_size);
    for (r = member(group, "ranks")->first; r; r = r->next) {
        const json *g = group_on(atoll(r->text), id), *o = g ? current(g) : NULL;
        if (!g) {
            printf("  rank %s: %s\n", r->text,
                dump_of[atoll(r->text)] ? "has called nothing here" : "left no dump");
            continue;
        }
        if (o) say_call(o, words, sizeof words);
        if (!o)
            printf(
                "  rank %s: completed all of its %s operations\n", r->text, text_of(g, "called"));
        else
            printf("  rank %s: %s in %s, round %lld of %s, for %.3f s, waits for rank %s\n",
                r->text, text_of(o, "state"), words, number_of(o, "round", 0) + 1,
                text_of(o, "rounds"), (double)number_of(o, "began_us_ago", 0) / 1e6,
                member(o, "waits_for") ? text_of(o, "waits_for") : "nobody");
        if (member(g, "error")) printf("    it says: %s\n", text_of(member(g, "error"), "text"));
        stuck = stuck || (o && member(o, "waits_for"));
    }
    if (find_mismatch(group, id)) return true;
    for (r = member(group, "ranks")->first; r && stuck; r = r->next)
        if (number_of(current(group_on(atoll(r->text), id)), "waits_for", -1) >= 0) {
            follow(atoll(r->text));
            break;
        }
    return stuck;
}

int main(int argc, char **argv) {
    long long rank, spoken = 0;
    bool stuck = false;
    if (argc < 2 || strcmp(argv[1], "--help") == 0) {
        printf("usage: who_is_stuck FILE...\nFILEs are the dumps of a job's ranks (cdp_group_dump, "
               "or dump_path in the desc: PATH.RANK.json).\n"
               "Says for each group who waits in which operation, for whom, and who is the cause. "
               "Exit code: 0 somebody\nis stuck, 1 nobody is, 2 the files cannot be read.\n");
        return argc < 2 ? 2 : 0;
    }
    for (int i = 1; i < argc; ++i)
        if (!load(argv[i])) return 2;
    for (rank = 0; rank < RANKS; ++rank)
        spoken += dump_of[rank] != NULL;
    for (rank = 0; rank < RANKS; ++rank)
        for (const json *g = dump_of[rank] ? member(dump_of[rank], "groups")->first : NULL; g;
             g = g->next) {
            bool told = false;
            for (long long r = 0; r < rank && !told; ++r)
                told = group_on(r, text_of(g, "group")) != NULL;
            if (!told) stuck = report(g, spoken) || stuck;
        }
    for (rank = 0; rank < RANKS; ++rank) {
        json_free(dump_of[rank]);
        dump_of[rank] = NULL;
    }
    if (!stuck) printf("nobody waits for anybody\n");
    return stuck ? 0 : 1;
}
