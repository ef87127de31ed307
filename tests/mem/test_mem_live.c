/* cdp_mem.h: who holds memory while the program runs: labels, scopes, summaries, levels. */
#define CDP_IMPLEMENTATION
#include "cdp_mem.h"
#include "source.h"

#define MIB (1ull << 20)
#define ROWS 1100u

static cdp_mem *open_mem(fake *f, cdp_mem_history history) {
    cdp_mem_source source = fake_source(f);
    cdp_mem_desc d = {.source = &source,
        .record = {.history = history, .context = CDP_MEM_CONTEXT_NONE, .max_entries = 100}};
    cdp_mem *m = NULL;
    f->numbers = true;
    OK(cdp_mem_create(&d, &m));
    return m;
}

static void *take(cdp_mem *m, const char *label, uint64_t bytes) {
    void *p = NULL;
    if (label) cdp_mem_label(label);
    OK(cdp_mem_alloc(m, bytes, NULL, &p));
    if (label) cdp_mem_label(NULL);
    return p;
}

/* The row of a label; all zero: there is none. */
static cdp_mem_held held_of(const cdp_mem *m, const char *label) {
    static cdp_mem_held rows[ROWS];
    const cdp_mem_held none = {.bytes = 0};
    const uint32_t n = cdp_mem_held_by(m, rows, ROWS);
    for (uint32_t i = 0; i < n && i < ROWS; ++i)
        if (strcmp(rows[i].label, label) == 0) return rows[i];
    return none;
}

static bool holds(const cdp_mem *m, const char *label, uint64_t bytes, uint64_t peak, uint64_t n) {
    const cdp_mem_held h = held_of(m, label);
    return T_EQ(bytes, h.bytes) & T_EQ(peak, h.peak) & T_EQ(n, h.blocks);
}

/* Bytes and blocks of all rows are those of the statistics. */
static void rows_add_up(const cdp_mem *m) {
    static cdp_mem_held rows[ROWS];
    const cdp_mem_stats s = cdp_mem_stats_of(m);
    const uint32_t n = cdp_mem_held_by(m, rows, ROWS);
    uint64_t bytes = 0, blocks = 0;
    T(n <= ROWS);
    for (uint32_t i = 0; i < n; ++i) {
        bytes += rows[i].bytes;
        blocks += rows[i].blocks;
        T(rows[i].peak >= rows[i].bytes && rows[i].peak <= s.active_bytes[0].peak);
        T(!i || rows[i].bytes <= rows[i - 1].bytes);
    }
    T_EQ(s.active_bytes[0].current, bytes);
    T_EQ(s.active[0].current, blocks);
}

TEST(labels_hold_bytes_and_peaks) {
    fake f = {.numbers = true};
    cdp_mem *const m = open_mem(&f, CDP_MEM_HISTORY_STATE);
    cdp_mem_held first[2];
    T_EQ(0, cdp_mem_held_by(m, NULL, 0));
    void *const w = take(m, "weights", 4 * MIB), *const g = take(m, "gradients", 3 * MIB);
    void *const g2 = take(m, "gradients", 512), *const bare = take(m, NULL, 1024);
    holds(m, "weights", 4 * MIB, 4 * MIB, 1);
    holds(m, "gradients", 3 * MIB + 512, 3 * MIB + 512, 2);
    holds(m, "", 1024, 1024, 1);
    T_EQ(3, cdp_mem_held_by(m, first, 2));
    T_TEXT("weights", first[0].label);
    T_TEXT("gradients", first[1].label);
    rows_add_up(m);
    OK(cdp_mem_free(m, g));
    OK(cdp_mem_free(m, bare));
    holds(m, "gradients", 512, 3 * MIB + 512, 1);
    holds(m, "", 0, 1024, 0);
    cdp_mem_note(m, w, "frozen"); /* a block changes its label */
    holds(m, "weights", 0, 4 * MIB, 0);
    holds(m, "frozen", 4 * MIB, 4 * MIB, 1);
    cdp_mem_note(m, w, "");
    holds(m, "", 4 * MIB, 4 * MIB, 1);
    rows_add_up(m);
    cdp_mem_reset(m, true, false);
    holds(m, "gradients", 512, 512, 1);
    holds(m, "frozen", 0, 0, 0);
    OK(cdp_mem_free(m, g2));
    OK(cdp_mem_free(m, w));
    rows_add_up(m);
    OK(cdp_mem_record(m, NULL));
    T_EQ(0, cdp_mem_held_by(m, first, 2));
    T_EQ(0, cdp_mem_held_by(NULL, first, 2));
    cdp_mem_destroy(m);
}

/* What lived before recording has no label; what is recorded later has one. */
TEST(labels_begin_with_recording) {
    const cdp_mem_record_desc r = {
        .history = CDP_MEM_HISTORY_STATE, .context = CDP_MEM_CONTEXT_NONE};
    fake f = {.numbers = true};
    cdp_mem *const m = open_mem(&f, CDP_MEM_HISTORY_OFF);
    void *const old = take(m, "weights", 2 * MIB);
    OK(cdp_mem_record(m, &r));
    holds(m, "", 2 * MIB, 2 * MIB, 1);
    void *const p = take(m, "weights", MIB);
    holds(m, "weights", MIB, MIB, 1);
    OK(cdp_mem_record(m, &r)); /* starts empty */
    holds(m, "", 3 * MIB, 3 * MIB, 2);
    OK(cdp_mem_free(m, p));
    OK(cdp_mem_free(m, old));
    holds(m, "", 0, 3 * MIB, 0);
    rows_add_up(m);
    cdp_mem_destroy(m);
}

/* Thousands of labels come and go: the first 256 keep their peaks, and room stays bounded. */
TEST(peaks_of_past_labels_stay) {
    fake f = {.numbers = true};
    cdp_mem *const m = open_mem(&f, CDP_MEM_HISTORY_STATE);
    OK(cdp_mem_free(m, take(m, "activations", 5 * MIB)));
    for (uint32_t i = 0; i < 5000; ++i) {
        char name[32];
        snprintf(name, sizeof name, "step %u", i);
        OK(cdp_mem_free(m, take(m, name, 4096)));
    }
    holds(m, "activations", 0, 5 * MIB, 0);
    holds(m, "step 100", 0, 4096, 0);
    holds(m, "step 4000", 0, 0, 0);
    T(m->log.labels.room <= 1024);
    T_EQ(0, cdp_mem_stats_of(m).labels_lost);
    rows_add_up(m);
    cdp_mem_destroy(m);
}

/* Frees that wait for a stream still hold their bytes; random calls keep the sums right. */
TEST(labels_add_up_at_random) {
    static const char *const labels[] = {NULL, "a", "b", "c", "d/e"};
    fake f = {.numbers = true};
    cdp_mem *const m = open_mem(&f, CDP_MEM_HISTORY_ALL);
    void *live[40] = {NULL};
    uint64_t random = 7;
    void *const p = take(m, "a", 4096);
    OK(cdp_mem_record_stream(m, p, fake_handle(2)));
    fake_work(&f, 2);
    OK(cdp_mem_free(m, p));
    holds(m, "a", 4096, 4096, 1);
    fake_pass(&f, 2);
    for (uint32_t turn = 0; turn < 20000; ++turn) {
        const uint32_t i = (uint32_t)(test_random(&random) % 40);
        const uint32_t what = (uint32_t)(test_random(&random) % 8);
        if (!live[i]) {
            live[i] = take(m, labels[test_random(&random) % 5], 1 + test_random(&random) % MIB);
            continue;
        }
        if (what == 0) cdp_mem_note(m, live[i], labels[1 + test_random(&random) % 4]);
        if (what == 1) OK(cdp_mem_record_stream(m, live[i], fake_handle(2)));
        if (what == 2) fake_work(&f, 2);
        if (what == 3) fake_pass(&f, 2);
        if (what > 3) OK(cdp_mem_free(m, live[i]));
        if (what > 3) live[i] = NULL;
        if (turn % 500 == 0) rows_add_up(m);
    }
    fake_pass(&f, 2);
    for (uint32_t i = 0; i < 40; ++i)
        OK(cdp_mem_free(m, live[i]));
    fake_pass(&f, 2);
    cdp_mem_trim(m);
    rows_add_up(m);
    T_EQ(0, cdp_mem_stats_of(m).active_bytes[0].current);
    T_WELL(m);
    cdp_mem_destroy(m);
}

static void scope_is(const cdp_mem_stat *s, uint64_t current, uint64_t peak, uint64_t allocated) {
    T_EQ(current, s->current);
    T_EQ(peak, s->peak);
    T_EQ(allocated, s->allocated);
}

TEST(scopes_nest_and_overlap) {
    fake f = {.numbers = true};
    cdp_mem *const m = open_mem(&f, CDP_MEM_HISTORY_OFF);
    cdp_mem_scope outer, inner, late;
    OK(cdp_mem_free(m, take(m, NULL, 8 * MIB))); /* the peak of all is outside */
    void *const w = take(m, NULL, 2 * MIB);
    OK(cdp_mem_scope_begin(m, &outer));
    OK(cdp_mem_free(m, take(m, NULL, 4 * MIB)));
    OK(cdp_mem_scope_begin(m, &inner));
    FAILS(CDP_ERR_INVALID, "open already", cdp_mem_scope_begin(m, &inner));
    void *const a = take(m, NULL, 1 * MIB);
    OK(cdp_mem_scope_begin(m, &late));
    OK(cdp_mem_free(m, a));
    T_EQ(8 * MIB, cdp_mem_stats_of(m).allocated_bytes[0].peak);
    OK(cdp_mem_scope_end(m, &inner)); /* began before `late`, and ends before it */
    FAILS(CDP_ERR_INVALID, "not open", cdp_mem_scope_end(m, &inner));
    void *const b = take(m, NULL, 3 * MIB);
    OK(cdp_mem_free(m, w));
    OK(cdp_mem_scope_end(m, &late));
    OK(cdp_mem_scope_end(m, &outer));
    scope_is(&inner.allocated_bytes, 2 * MIB, 3 * MIB, MIB);
    T_EQ(MIB, inner.allocated_bytes.freed);
    scope_is(&late.allocated_bytes, 3 * MIB, 5 * MIB, 3 * MIB);
    T_EQ(3 * MIB, late.allocated_bytes.freed);
    scope_is(&outer.allocated_bytes, 3 * MIB, 6 * MIB, 8 * MIB);
    scope_is(&outer.active_bytes, 3 * MIB, 6 * MIB, 8 * MIB);
    T_EQ(cdp_mem_stats_of(m).reserved_bytes[0].current, outer.reserved_bytes.current);
    T_EQ(8 * MIB, cdp_mem_stats_of(m).allocated_bytes[0].peak);
    OK(cdp_mem_free(m, take(m, NULL, 9 * MIB)));
    T_EQ(12 * MIB, cdp_mem_stats_of(m).allocated_bytes[0].peak);
    OK(cdp_mem_free(m, b));
    T_WELL(m);
    cdp_mem_destroy(m);
}

/* A reset changes no open scope, and a scope no statistics that were reset. */
TEST(scopes_survive_a_reset) {
    fake f = {.numbers = true};
    cdp_mem *const m = open_mem(&f, CDP_MEM_HISTORY_OFF);
    cdp_mem_scope s;
    void *const w = take(m, NULL, 2 * MIB);
    OK(cdp_mem_scope_begin(m, &s));
    OK(cdp_mem_free(m, take(m, NULL, 6 * MIB)));
    cdp_mem_reset(m, true, true);
    T_EQ(2 * MIB, cdp_mem_stats_of(m).allocated_bytes[0].peak);
    OK(cdp_mem_free(m, take(m, NULL, 3 * MIB)));
    T_EQ(5 * MIB, cdp_mem_stats_of(m).allocated_bytes[0].peak);
    OK(cdp_mem_scope_end(m, &s));
    scope_is(&s.allocated_bytes, 2 * MIB, 8 * MIB, 9 * MIB);
    T_EQ(9 * MIB, s.allocated_bytes.freed);
    T_EQ(5 * MIB, cdp_mem_stats_of(m).allocated_bytes[0].peak);
    OK(cdp_mem_free(m, w));
    cdp_mem_destroy(m);
}

/* Active memory of a scope has frees that wait for streams. */
TEST(scopes_know_waiting_frees) {
    fake f = {.numbers = true};
    cdp_mem *const m = open_mem(&f, CDP_MEM_HISTORY_OFF);
    cdp_mem_scope s;
    void *const p = take(m, NULL, 2 * MIB);
    OK(cdp_mem_record_stream(m, p, fake_handle(2)));
    fake_work(&f, 2);
    OK(cdp_mem_scope_begin(m, &s));
    OK(cdp_mem_free(m, p));
    void *const q = take(m, NULL, 3 * MIB);
    fake_pass(&f, 2);
    OK(cdp_mem_free(m, q));
    OK(cdp_mem_scope_end(m, &s));
    T_EQ(3 * MIB, s.allocated_bytes.peak);
    T_EQ(5 * MIB, s.active_bytes.peak);
    T_EQ(5 * MIB, cdp_mem_stats_of(m).active_bytes[0].peak);
    T_WELL(m);
    cdp_mem_destroy(m);
}

TEST(a_summary_for_people) {
    fake f = {.numbers = true};
    cdp_mem *const m = open_mem(&f, CDP_MEM_HISTORY_STATE);
    char text[8192], part[100];
    void *const w = take(m, "weights", 4 * MIB), *const a = take(m, "act", 1536);
    const uint64_t length = cdp_mem_summary(m, text, sizeof text);
    T_EQ(strlen(text), length);
    T_TEXT("memory of fake:0: 0 requests failed, 0 retries\n", text);
    T_TEXT(
        "in use                         4.0 MiB       4.0 MiB       4.0 MiB           0 B\n", text);
    T_TEXT(
        "  small                        1.5 KiB       1.5 KiB       1.5 KiB           0 B\n", text);
    T_TEXT(
        "blocks in use                        2             2             2             0\n", text);
    T_TEXT("weights                        4.0 MiB       4.0 MiB             1\n", text);
    T_TEXT("act                            1.5 KiB       1.5 KiB             1\n", text);
    T_EQ(length, cdp_mem_summary(m, NULL, 0));
    T_EQ(length, cdp_mem_summary(m, part, sizeof part)); /* cut, not overrun */
    T_EQ(99, strlen(part));
    T_EQ(0, strncmp(part, text, 99));
    for (int i = 0; i < 30; ++i) {
        char name[16];
        snprintf(name, sizeof name, "layer %d", i);
        OK(cdp_mem_free(m, take(m, name, 512)));
    }
    (void)cdp_mem_summary(m, text, sizeof text);
    T_TEXT("and 12 others\n", text);
    OK(cdp_mem_record(m, NULL));
    (void)cdp_mem_summary(m, text, sizeof text);
    T_TEXT("labels: nothing is recorded", text);
    T_EQ(0, cdp_mem_summary(NULL, text, sizeof text));
    T_EQ(0, text[0]);
    OK(cdp_mem_free(m, w));
    OK(cdp_mem_free(m, a));
    cdp_mem_destroy(m);
}

static bool out_of_host;
static void *host_or_none(void *user, uint64_t bytes) {
    return out_of_host ? NULL : cdp_os_default()->alloc(user, bytes);
}

/* A summary has no rows without host memory for them, and says that. */
TEST(a_summary_without_memory) {
    fake f = {.numbers = true};
    cdp_mem_source source = fake_source(&f);
    cdp_os os = *cdp_os_default();
    const cdp_mem_desc d = {.source = &source,
        .os = &os,
        .record = {.history = CDP_MEM_HISTORY_STATE, .context = CDP_MEM_CONTEXT_NONE}};
    cdp_mem *m = NULL;
    char text[8192];
    os.alloc = host_or_none;
    OK(cdp_mem_create(&d, &m));
    void *const w = take(m, "weights", 4 * MIB);
    out_of_host = true;
    (void)cdp_mem_summary(m, text, sizeof text);
    out_of_host = false;
    T_TEXT("labels: out of memory: ", text);
    (void)cdp_mem_summary(m, text, sizeof text);
    T_TEXT("weights                        4.0 MiB", text);
    OK(cdp_mem_free(m, w));
    cdp_mem_destroy(m);
}

static uint64_t noon(void *user) {
    (void)user;
    return 1234567;
}

TEST(a_line_of_json_per_step) {
    fake f = {.numbers = true};
    cdp_mem_source source = fake_source(&f);
    const cdp_mem_desc d = {.source = &source,
        .wall_us = noon,
        .record = {.history = CDP_MEM_HISTORY_STATE, .context = CDP_MEM_CONTEXT_NONE}};
    cdp_mem *m = NULL;
    char text[2048];
    OK(cdp_mem_create(&d, &m));
    void *const w = take(m, "a \"quoted\" one", 512);
    OK(cdp_mem_free(m, take(m, NULL, 1024)));
    const uint64_t length = cdp_mem_json_line(m, 7, text, sizeof text);
    static const char want[] =
        "{\"step\":7,\"device\":0,\"time_us\":1234567,"
        "\"allocated_bytes.all.current\":512,\"allocated_bytes.all.peak\":1536,"
        "\"active_bytes.all.current\":512,\"active_bytes.all.peak\":1536,"
        "\"requested_bytes.all.current\":512,\"requested_bytes.all.peak\":1536,"
        "\"reserved_bytes.all.current\":2097152,\"reserved_bytes.all.peak\":2097152,"
        "\"inactive_split_bytes.all.current\":2096640,"
        "\"inactive_split_bytes.all.peak\":2096640,"
        "\"allocation.all.current\":1,\"allocation.all.peak\":2,"
        "\"segment.all.current\":1,\"segment.all.peak\":1,"
        "\"num_alloc_retries\":0,\"num_ooms\":0,\"num_device_alloc\":1,\"num_device_free\":0,"
        "\"labels\":{\"a \\\"quoted\\\" one\":{\"bytes\":512,\"peak\":512,\"blocks\":1},"
        "\"\":{\"bytes\":0,\"peak\":1024,\"blocks\":0}}}\n";
    T_EQ(sizeof want - 1, length);
    T_TEXT(want, text);
    cdp_mem_reset(m, true, false); /* the next line has the peaks of its own step */
    (void)cdp_mem_json_line(m, 8, text, sizeof text);
    T_TEXT("\"allocated_bytes.all.current\":512,\"allocated_bytes.all.peak\":512,", text);
    OK(cdp_mem_free(m, w));
    OK(cdp_mem_record(m, NULL));
    (void)cdp_mem_json_line(m, 9, text, sizeof text);
    T(!strstr(text, "labels") && text[strlen(text) - 1] == '\n');
    T_EQ(0, cdp_mem_json_line(NULL, 0, text, sizeof text));
    cdp_mem_destroy(m);
}

typedef struct seen {
    uint32_t calls;
    uint64_t level, now;
    void *give_back;    /* what the function frees */
    cdp_mem_shot *shot; /* what it takes           */
} seen;

static void see(void *user, cdp_mem *mem, uint64_t level_bytes, uint64_t now_bytes) {
    seen *const s = (seen *)user;
    ++s->calls;
    s->level = level_bytes;
    s->now = now_bytes;
    if (s->give_back) OK(cdp_mem_free(mem, s->give_back));
    s->give_back = NULL;
    cdp_mem_shot_free(s->shot);
    OK(cdp_mem_snapshot(&mem, 1, false, &s->shot)); /* also where nothing is recorded */
}

TEST(levels_are_watched) {
    fake f = {.numbers = true};
    cdp_mem *const m = open_mem(&f, CDP_MEM_HISTORY_OFF);
    seen s = {0}, other = {0};
    FAILS(CDP_ERR_INVALID, "func", cdp_mem_watch_level(m, 1, 0, NULL, &s));
    FAILS(CDP_ERR_INVALID, "again_bytes 5 is above bytes 4", cdp_mem_watch_level(m, 4, 5, see, &s));
    OK(cdp_mem_watch_level(m, 4 * MIB, 2 * MIB, see, &s));
    OK(cdp_mem_watch_level(m, 5 * MIB, 0, see, &other));
    void *const a = take(m, NULL, 2 * MIB);
    void *b = take(m, NULL, 2 * MIB);
    T_EQ(0, s.calls); /* not more than the level */
    s.give_back = b;
    b = take(m, NULL, MIB);
    T_EQ(1, s.calls);
    T_EQ(4 * MIB, s.level);
    T_EQ(5 * MIB, s.now);
    T_EQ(0, other.calls);
    OK(cdp_mem_free(m, take(m, NULL, 3 * MIB))); /* 3 MiB before: not yet again */
    T_EQ(1, s.calls);
    T_EQ(1, other.calls);
    OK(cdp_mem_free(m, b)); /* 2 MiB are left */
    OK(cdp_mem_record(m,
        &(cdp_mem_record_desc){.history = CDP_MEM_HISTORY_ALL,
            .context = CDP_MEM_CONTEXT_NONE})); /* recording keeps the levels */
    OK(cdp_mem_free(m, take(m, NULL, 3 * MIB)));
    T_EQ(2, s.calls);
    T_EQ(1, other.calls); /* only after everything was freed */
    cdp_mem_unwatch(m, &s);
    OK(cdp_mem_free(m, take(m, NULL, 9 * MIB)));
    T_EQ(2, s.calls);
    OK(cdp_mem_free(m, a));
    OK(cdp_mem_free(m, take(m, NULL, 9 * MIB)));
    T_EQ(2, other.calls);
    cdp_mem_unwatch(m, &other);
    OK(cdp_mem_record(m, NULL));
    T_EQ(0, m->log.what); /* requests cost what they cost before */
    for (int i = 0; i < 8; ++i)
        OK(cdp_mem_watch_level(m, MIB, 0, see, &s));
    T(s.shot && other.shot);
    cdp_mem_shot_free(s.shot);
    cdp_mem_shot_free(other.shot);
    FAILS(CDP_ERR_INVALID, "8 levels", cdp_mem_watch_level(m, MIB, 0, see, &s));
    T_WELL(m);
    cdp_mem_destroy(m);
}

/* A recorder of another allocator has labels, scopes and levels, too. */
TEST(a_recorder_is_watched) {
    const cdp_mem_desc d = {.recorder_only = true,
        .record = {.history = CDP_MEM_HISTORY_STATE, .context = CDP_MEM_CONTEXT_NONE}};
    const cdp_mem_event e = {.action = CDP_MEM_ALLOC, .address = 1 << 30, .size = 2 * MIB};
    static char place[4096];
    cdp_mem_scope scope;
    seen s = {0};
    cdp_mem *m = NULL;
    OK(cdp_mem_create(&d, &m));
    OK(cdp_mem_watch_level(m, MIB, 4096, see, &s));
    OK(cdp_mem_scope_begin(m, &scope));
    cdp_mem_label("theirs");
    OK(cdp_mem_note_alloc(m, place, sizeof place, NULL));
    T_EQ(0, s.calls);
    OK(cdp_mem_note_event(m, &e));
    cdp_mem_label(NULL);
    T_EQ(1, s.calls);
    holds(m, "theirs", 2 * MIB + 4096, 2 * MIB + 4096, 2);
    OK(cdp_mem_note_free(m, (void *)(uintptr_t)e.address));
    OK(cdp_mem_note_alloc(m, (void *)(uintptr_t)e.address, 2 * MIB, NULL));
    T_EQ(2, s.calls);
    cdp_mem_shot_free(s.shot);
    OK(cdp_mem_note_free(m, (void *)(uintptr_t)e.address));
    OK(cdp_mem_note_free(m, place));
    OK(cdp_mem_scope_end(m, &scope));
    T_EQ(2 * MIB + 4096, scope.allocated_bytes.peak);
    holds(m, "theirs", 0, 2 * MIB + 4096, 0);
    cdp_mem_destroy(m);
}

/* A label and those inside it hold no more than their budget; others are free of it. */
TEST(budgets_of_labels) {
    fake f = {.numbers = true};
    cdp_mem *const m = open_mem(&f, CDP_MEM_HISTORY_STATE);
    void *p, *q, *r;
    OK(cdp_mem_set_budget(m, "act", 6 * MIB));
    p = take(m, "act", 3 * MIB);
    cdp_mem_label("act");
    q = take(m, "layer 3", 2 * MIB); /* "act/layer 3" */
    cdp_mem_label("layer 4");
    FAILS(CDP_ERR_NOMEM,
        "no 1.5 MiB for \"act/layer 4\": the budget of \"act\" is 6.0 MiB, of "
        "which 5.0 MiB are held",
        cdp_mem_alloc(m, 3 * MIB / 2, NULL, &r));
    T(!r);
    T_EQ(0, cdp_mem_stats_of(m).ooms);
    cdp_mem_label(NULL);
    cdp_mem_label(NULL);
    r = take(m, "action", 30 * MIB); /* no label inside "act" */
    OK(cdp_mem_free(m, r));
    r = take(m, NULL, 30 * MIB);
    OK(cdp_mem_free(m, r));
    OK(cdp_mem_free(m, p)); /* room again */
    p = take(m, "act", 4 * MIB);
    OK(cdp_mem_set_budget(m, "act", 0));
    r = take(m, "act", 40 * MIB);
    OK(cdp_mem_free(m, r));
    OK(cdp_mem_free(m, q));
    OK(cdp_mem_free(m, p));
    T_WELL(m);
    T_EQ(0, cdp_mem_destroy(m));
}

TEST(mistakes_of_budgets) {
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    fake f = {.numbers = true}, f2 = {.numbers = true};
    cdp_mem *const m = open_mem(&f, CDP_MEM_HISTORY_STATE),
                   *const off = open_mem(&f2, CDP_MEM_HISTORY_OFF);
    char text[200];
    memset(text, 'x', sizeof text);
    text[199] = 0;
    FAILS(CDP_ERR_INVALID, "label", cdp_mem_set_budget(m, NULL, 1));
    FAILS(CDP_ERR_INVALID, "label", cdp_mem_set_budget(m, "", 1));
    FAILS(CDP_ERR_INVALID, "more than 127 bytes", cdp_mem_set_budget(m, text, 1));
    FAILS(CDP_ERR_STATE, "nothing is recorded", cdp_mem_set_budget(off, "a", 1));
    for (int i = 0; i < 8; ++i)
        OK(cdp_mem_set_budget(m, names[i], 1));
    FAILS(CDP_ERR_INVALID, "8 labels have a budget", cdp_mem_set_budget(m, "i", 1));
    OK(cdp_mem_set_budget(m, "i", 0)); /* has none: nothing to do */
    OK(cdp_mem_set_budget(m, "c", 0));
    OK(cdp_mem_set_budget(m, "i", 1));
    T_EQ(0, cdp_mem_destroy(m));
    T_EQ(0, cdp_mem_destroy(off));
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"budgets_of_labels", budgets_of_labels, 0},
        {"mistakes_of_budgets", mistakes_of_budgets, 0},

        {"labels_hold_bytes_and_peaks", labels_hold_bytes_and_peaks, 10},
        {"labels_begin_with_recording", labels_begin_with_recording, 10},
        {"peaks_of_past_labels_stay", peaks_of_past_labels_stay, 10},
        {"labels_add_up_at_random", labels_add_up_at_random, 10},
        {"scopes_nest_and_overlap", scopes_nest_and_overlap, 10},
        {"scopes_survive_a_reset", scopes_survive_a_reset, 10},
        {"scopes_know_waiting_frees", scopes_know_waiting_frees, 10},
        {"a_summary_for_people", a_summary_for_people, 10},
        {"a_summary_without_memory", a_summary_without_memory, 10},
        {"a_line_of_json_per_step", a_line_of_json_per_step, 10},
        {"levels_are_watched", levels_are_watched, 10},
        {"a_recorder_is_watched", a_recorder_is_watched, 10}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
