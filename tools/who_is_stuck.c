/*  who_is_stuck.c - reads the dumps of the ranks of a job, and says which rank waits where, and
    for which other rank; or draws what all ranks did, on one clock

        gcc -O2 tools/who_is_stuck.c -o who_is_stuck -pthread -lm
        ./who_is_stuck /tmp/run.*.json
        ./who_is_stuck --trace /tmp/run.*.json > trace.json

    The trace is for chrome://tracing and https://ui.perfetto.dev: a process for each rank, a thread
    for each group and for the messages with one tag from one rank to another. Clocks of several
    machines differ: what has to be added to each follows from the operations that ranks have in
    common, because no rank ends one before all have begun it.

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

/* Says of all groups what report() says of one. True: somebody is stuck. */
static bool report_all(void) {
    long long rank, spoken = 0;
    bool stuck = false;
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
    if (!stuck) printf("nobody waits for anybody\n");
    return stuck;
}

/* ---- a trace ---- */

typedef struct span {
    long long at, took; /* microseconds */
    long long rank, track;
    unsigned long long number; /* keeps the order of those that begin together */
    const json *group, *op;
} span;

/* What is added to a clock to get the common one: between low and high. */
typedef struct bounds {
    long long low, high;
} bounds;

#define UNBOUND (1LL << 60)
#define COMPARED 16 /* ranks of a group whose clocks are compared with one clock */
#define LANES 16    /* of a track: messages with one tag overlap in time */

static long long shift_of[RANKS];
static bool placed[RANKS]; /* its shift is known */

static long long began(long long rank, const json *o) {
    const long long ago = number_of(o, "began_us_ago", -1);
    return ago < 0 ? -1 : number_of(dump_of[rank], "clock_us", 0) - ago;
}
static long long ended(long long rank, const json *o) {
    const long long took = number_of(o, "took_us", -1), from = began(rank, o);
    return took < 0 || from < 0 ? -1 : from + took;
}

/* `first` was not after `last`, on the clocks of a rank that is placed and of one that is not: so
   much is added to the latter at least, or at most. Each is rounded to a microsecond. */
static void at_least(bounds *b, long long other, long long first, long long last) {
    const long long low = first + shift_of[other] - last - 1;
    if (first >= 0 && last >= 0 && low > b->low) b->low = low;
}
static void at_most(bounds *b, long long other, long long first, long long last) {
    const long long high = last + shift_of[other] - first + 1;
    if (first >= 0 && last >= 0 && high < b->high) b->high = high;
}

/* All ranks of a group need something from all others in these, so no rank ends one before another
   has begun it. An operation without elements may be none of them. */
static bool waits_for_all(const json *o) {
    static const char *const kinds[] = {"allreduce", "allgather", "reduce_scatter", "alltoall"};
    if (strcmp(text_of(o, "kind"), "barrier") == 0) return true;
    for (unsigned i = 0; i < sizeof kinds / sizeof kinds[0]; ++i)
        if (strcmp(text_of(o, "kind"), kinds[i]) == 0) return number_of(o, "count", 0) > 0;
    return false;
}

/* What the operations of one group, on `rank` and on one that is placed, say of rank's clock. */
static void compare_clocks(bounds *b, long long rank, const json *here, long long other) {
    const json *there = group_on(other, text_of(here, "group")), *o, *p;
    const bool messages = strcmp(text_of(here, "is"), "messages") == 0;
    const bool sends = messages && atoll(member(here, "ranks")->first->text) == rank;
    if (!there) return;
    for (o = member(here, "operations")->first; o; o = o->next) {
        p = operation(there, number_of(o, "seq", 0));
        if (!p || (!messages && !waits_for_all(o))) continue;
        if (!sends) at_least(b, other, began(other, p), ended(rank, o));
        if (!messages || sends) at_most(b, other, began(rank, o), ended(other, p));
    }
}

/* Finds the shift of a rank from those that are placed. False: they have nothing in common. */
static bool place(long long rank) {
    bounds b = {-UNBOUND, UNBOUND};
    const json *g, *r;
    for (g = member(dump_of[rank], "groups")->first; g; g = g->next) {
        int compared = 0;
        for (r = member(g, "ranks")->first; r && compared < COMPARED; r = r->next)
            if (atoll(r->text) != rank && placed[atoll(r->text)]) {
                compare_clocks(&b, rank, g, atoll(r->text));
                ++compared;
            }
    }
    if (b.low == -UNBOUND && b.high == UNBOUND) return false;
    placed[rank] = true;
    if (b.low <= 0 && b.high >= 0)
        shift_of[rank] = 0; /* it may be the same clock */
    else if (b.low == -UNBOUND || b.high == UNBOUND)
        shift_of[rank] = b.low == -UNBOUND ? b.high : b.low;
    else
        shift_of[rank] = b.low + (b.high - b.low) / 2;
    if (shift_of[rank])
        fprintf(stderr, "rank %lld: %lld us are added to its clock\n", rank, shift_of[rank]);
    return true;
}

/* The first rank has the common clock; then those that have operations in common with ranks that
   are placed, again and again. */
static void place_all(void) {
    bool more = true;
    long long rank, first = 0;
    while (first < RANKS - 1 && !dump_of[first])
        ++first;
    placed[first] = true;
    while (more)
        for (more = false, rank = 0; rank < RANKS; ++rank)
            if (dump_of[rank] && !placed[rank]) more = place(rank) || more;
    for (rank = 0; rank < RANKS; ++rank)
        if (dump_of[rank] && !placed[rank])
            fprintf(stderr,
                "rank %lld has nothing in common with rank %lld: its clock is left as "
                "it is\n",
                rank, first);
}

static int by_time(const void *a, const void *b) {
    const span *x = (const span *)a, *y = (const span *)b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

/* Everything that has begun on any rank, in the order of the common clock. */
static span *spans_of_all(size_t *count) {
    span *all = NULL;
    size_t room = 0, n = 0;
    for (long long rank = 0; rank < RANKS; ++rank) {
        long long track = 0;
        const json *g = dump_of[rank] ? member(dump_of[rank], "groups")->first : NULL;
        for (; g; g = g->next, ++track)
            for (const json *o = member(g, "operations")->first; o; o = o->next) {
                if (began(rank, o) < 0) continue; /* it is queued */
                if (n == room) {
                    room = room * 2 + 1024;
                    all = (span *)realloc(all, room * sizeof *all);
                    if (!all) abort();
                }
                all[n].at = began(rank, o) + shift_of[rank];
                all[n].took = number_of(o, "took_us", number_of(o, "began_us_ago", 0));
                all[n].rank = rank;
                all[n].track = track;
                all[n].group = g;
                all[n].op = o;
                all[n].number = n;
                ++n;
            }
    }
    if (n) qsort(all, n, sizeof *all, by_time);
    *count = n;
    return all;
}

static const char *comma = ""; /* before the next event */

static void put_text(const char *s) {
    putchar('"');
    for (; *s; ++s)
        if ((unsigned char)*s < ' ')
            printf("\\u%04x", (unsigned)(unsigned char)*s);
        else
            printf(*s == '"' || *s == '\\' ? "\\%c" : "%c", *s);
    putchar('"');
}

static void put_name(const char *kind, long long rank, long long thread, const char *words) {
    printf("%s\n{\"name\": \"%s_name\", \"ph\": \"M\", \"pid\": %lld, \"tid\": %lld, "
           "\"args\": {\"name\": ",
        comma, kind, rank, thread);
    comma = ",";
    put_text(words);
    printf("}}");
}

static void put_args(const json *o) {
    static const char *const texts[] = {"dtype", "op", "algorithm", "state"};
    static const char *const numbers[] = {"count", "root", "tag", "round", "rounds", "waits_for"};
    printf("\"args\": {\"seq\": %lld", number_of(o, "seq", 0));
    for (unsigned i = 0; i < sizeof texts / sizeof texts[0]; ++i)
        if (member(o, texts[i])) {
            printf(", \"%s\": ", texts[i]);
            put_text(text_of(o, texts[i]));
        }
    for (unsigned i = 0; i < sizeof numbers / sizeof numbers[0]; ++i)
        if (member(o, numbers[i]))
            printf(", \"%s\": %lld", numbers[i], number_of(o, numbers[i], 0));
    printf("}}");
}

/* The names of a rank and of its tracks, each of which has `lanes[track]` lanes. */
static void put_rank(long long rank, const long long *lanes) {
    const json *g = member(dump_of[rank], "groups")->first, *r;
    char words[160];
    snprintf(words, sizeof words, "rank %lld", rank);
    put_name("process", rank, 0, words);
    for (long long track = 0; g; g = g->next, ++track) {
        size_t used = (size_t)snprintf(words, sizeof words, "%.40s", text_of(g, "is"));
        for (r = member(g, "ranks")->first; r && used < sizeof words - 24; r = r->next)
            if (strcmp(text_of(g, "is"), "world") != 0)
                used += (size_t)snprintf(words + used, sizeof words - used, "%s%lld",
                    r == member(g, "ranks")->first ? " " : ", ", atoll(r->text));
        for (long long k = 0; k < lanes[track]; ++k)
            put_name("thread", rank, track * LANES + k, words);
    }
}

/* The first lane of a track that is free at that time, or the last one. */
static long long lane_of(const span *s, long long *ends) {
    long long k = 0;
    while (k < LANES - 1 && ends[k] > s->at)
        ++k;
    ends[k] = s->at + s->took;
    return k;
}

/* Gives each span of a rank its lane, and names them. */
static void lay_out(long long rank, span *all, size_t n) {
    size_t tracks = 1, i;
    long long *ends, *lanes;
    for (const json *g = member(dump_of[rank], "groups")->first; g; g = g->next)
        ++tracks;
    ends = (long long *)calloc(tracks * LANES, sizeof *ends);
    lanes = (long long *)calloc(tracks, sizeof *lanes);
    if (!ends || !lanes) abort();
    for (i = 0; i < tracks * LANES; ++i)
        ends[i] = -UNBOUND;
    for (i = 0; i < n; ++i) {
        span *s = &all[i];
        long long lane;
        if (s->rank != rank) continue;
        lane = lane_of(s, ends + s->track * LANES);
        if (lanes[s->track] <= lane) lanes[s->track] = lane + 1;
        s->track = s->track * LANES + lane;
    }
    put_rank(rank, lanes);
    free(ends);
    free(lanes);
}

static void put_span(const span *s, long long from) {
    const char *state = text_of(s->op, "state");
    const bool done = strcmp(state, "done") == 0;
    char words[96];
    snprintf(words, sizeof words, "%.40s #%lld%s%.20s", text_of(s->op, "kind"),
        number_of(s->op, "seq", 0), done ? "" : " ", done ? "" : state);
    printf("%s\n{\"name\": ", comma);
    comma = ",";
    put_text(words);
    printf(", \"cat\": \"%s\", \"ph\": \"X\", \"ts\": %lld, \"dur\": %lld, \"pid\": %lld, "
           "\"tid\": %lld, ",
        strcmp(text_of(s->group, "is"), "messages") == 0 ? "message" : "collective", s->at - from,
        s->took, s->rank, s->track);
    put_args(s->op);
}

static void trace_all(void) {
    size_t n, i;
    span *all;
    place_all();
    all = spans_of_all(&n);
    comma = "";
    printf("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [");
    for (long long rank = 0; rank < RANKS; ++rank)
        if (dump_of[rank]) lay_out(rank, all, n);
    for (i = 0; i < n; ++i)
        put_span(&all[i], all[0].at);
    printf("\n]}\n");
    free(all);
}

int main(int argc, char **argv) {
    const bool trace = argc > 1 && strcmp(argv[1], "--trace") == 0;
    bool done = true, stuck = false;
    if (argc < 2 + trace || strcmp(argv[1], "--help") == 0) {
        printf("usage: who_is_stuck [--trace] FILE...\nFILEs are the dumps of a job's ranks "
               "(cdp_group_dump, or dump_path in the desc: PATH.RANK.json).\n"
               "Says for each group who waits in which operation, for whom, and who is the cause. "
               "Exit code: 0 somebody\nis stuck, 1 nobody is, 2 the files cannot be read.\n"
               "  --trace  print all that they remember as one trace in Chrome's format, on one "
               "clock; exit code 0\n");
        return argc < 2 + trace ? 2 : 0;
    }
    for (int i = 1 + trace; i < argc && done; ++i)
        done = load(argv[i]);
    if (done && trace)
        trace_all();
    else if (done)
        stuck = report_all();
    for (long long rank = 0; rank < RANKS; ++rank) {
        json_free(dump_of[rank]);
        dump_of[rank] = NULL;
        placed[rank] = false;
        shift_of[rank] = 0;
    }
    if (!done) return 2;
    return trace || stuck ? 0 : 1;
}
