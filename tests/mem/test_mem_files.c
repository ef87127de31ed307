/* cdp_mem.h: what is recorded, and the files, pictures and reports made of it. */
#define CDP_IMPLEMENTATION
#include "cdp_mem.h"
#include "python_files.h"
#include "source.h"
#include "viewer.h"

#define MIB (1ull << 20)

typedef struct world {
    fake f;
    cdp_mem *mem;
} world;

static void world_begin(world *w, const cdp_mem_record_desc *record) {
    cdp_mem_source source;
    cdp_mem_desc d;
    memset(w, 0, sizeof *w);
    memset(&d, 0, sizeof d);
    w->f.limit = 1ull << 30;
    w->f.numbers = true;
    source = fake_source(&w->f);
    d.source = &source;
    if (record) d.record = *record;
    OK(cdp_mem_create(&d, &w->mem));
}

static void world_end(world *w) {
    T_WELL(w->mem);
    T_EQ(0, cdp_mem_destroy(w->mem));
    T_EQ(0, w->f.held);
}

static cdp_mem_record_desc recording(cdp_mem_context context, cdp_mem_stacks stacks) {
    cdp_mem_record_desc d;
    memset(&d, 0, sizeof d);
    d.history = CDP_MEM_HISTORY_ALL;
    d.context = context;
    d.stacks = stacks;
    return d;
}

static cdp_mem_shot *shot_of(world *w) {
    cdp_mem_shot *s = NULL;
    OK(cdp_mem_snapshot(&w->mem, 1, false, &s));
    return s;
}

static char *text_of(const cdp_mem_shot *s, cdp_mem_format format) {
    written w = {NULL, 0, 0, 0};
    OK(cdp_mem_write(s, format, written_sink, &w));
    return w.at;
}

static bool has_frame(const cdp_mem_shot *s, uint32_t stack, const char *name) {
    const cdp_mem_frame *f;
    const uint32_t n = cdp_mem_frames(s, stack, &f);
    for (uint32_t i = 0; i < n; ++i)
        if (strcmp(f[i].name, name) == 0) return true;
    return false;
}

TEST(events_in_their_order) {
    static const cdp_mem_action want[] = {CDP_MEM_SEGMENT_ALLOC, CDP_MEM_ALLOC,
        CDP_MEM_FREE_REQUESTED, CDP_MEM_FREE_COMPLETED, CDP_MEM_ALLOC, CDP_MEM_FREE_REQUESTED,
        CDP_MEM_ANNOTATE, CDP_MEM_USER_DEFINED, CDP_MEM_OOM, CDP_MEM_SNAPSHOT,
        CDP_MEM_FREE_COMPLETED, CDP_MEM_SEGMENT_FREE};
    const cdp_mem_record_desc d = recording(CDP_MEM_CONTEXT_NONE, CDP_MEM_STACKS_SITE);
    const cdp_mem_event *e;
    world w;
    cdp_mem_shot *s;
    void *p, *q;
    world_begin(&w, &d);
    OK(cdp_mem_alloc(w.mem, 1000, fake_handle(3), &p));
    OK(cdp_mem_free(w.mem, p));
    OK(cdp_mem_alloc(w.mem, 700, fake_handle(3), &p));
    OK(cdp_mem_record_stream(w.mem, p, fake_handle(4)));
    fake_work(&w.f, 4);
    OK(cdp_mem_free(w.mem, p));
    cdp_mem_note(w.mem, p, "what it is");
    cdp_mem_note(w.mem, NULL, "a moment");
    FAILS(CDP_ERR_TIMEOUT, "not passed",
        (w.mem->desc.timeout_ms = 1, cdp_mem_alloc(w.mem, 2000 * MIB, NULL, &q)));
    w.mem->desc.timeout_ms = 1000;
    fake_pass(&w.f, 4);
    w.f.streams[4].queued = w.f.streams[4].done + 1; /* still busy for what comes next */
    s = shot_of(&w);
    cdp_mem_shot_free(s);
    cdp_mem_trim(w.mem);
    FAILS(CDP_ERR_NOMEM, "no 1.9 GiB", cdp_mem_alloc(w.mem, 2000 * MIB, NULL, &q));
    s = shot_of(&w);
    const uint64_t n = cdp_mem_events(s, 0, &e);
    uint32_t seen[CDP_MEM_ACTION_COUNT] = {0};
    for (uint64_t i = 0; i < n; ++i)
        ++seen[e[i].action];
    T_EQ(2, seen[CDP_MEM_ALLOC]);
    T_EQ(2, seen[CDP_MEM_FREE_REQUESTED]);
    T_EQ(2, seen[CDP_MEM_FREE_COMPLETED]);
    T_EQ(1, seen[CDP_MEM_SEGMENT_ALLOC]);
    T_EQ(1, seen[CDP_MEM_SEGMENT_FREE]);
    T_EQ(1, seen[CDP_MEM_SNAPSHOT]);
    T_EQ(1, seen[CDP_MEM_OOM]);
    T_EQ(1, seen[CDP_MEM_ANNOTATE]);
    T_EQ(1, seen[CDP_MEM_USER_DEFINED]);
    for (uint32_t i = 0; i < 5 && i < n; ++i)
        T_EQ(want[i], e[i].action);
    T_EQ(1000, e[1].size); /* as requested */
    T_EQ(2 * MIB, e[0].size);
    T_EQ((int64_t)(uintptr_t)fake_handle(3), e[1].stream);
    T_EQ(e[1].address, e[3].address);
    T(e[0].time_us > 1600000000000000u && e[n - 1].time_us >= e[0].time_us
        && e[n - 1].time_us < e[0].time_us + 100000000u);
    for (uint64_t i = 0; i < n; ++i)
        if (e[i].action == CDP_MEM_OOM) T(e[i].device_free > 0 && e[i].size == 2000 * MIB);
    cdp_mem_shot_free(s);
    world_end(&w);
}

TEST(ring_is_bounded_and_counted) {
    cdp_mem_record_desc d = recording(CDP_MEM_CONTEXT_NONE, CDP_MEM_STACKS_SITE);
    const cdp_mem_event *e;
    cdp_mem_stats stats;
    cdp_mem_shot *s;
    world w;
    void *p;
    d.max_entries = 10;
    world_begin(&w, &d);
    for (uint64_t i = 1; i <= 20; ++i) {
        OK(cdp_mem_alloc(w.mem, i, NULL, &p));
        OK(cdp_mem_free(w.mem, p));
    }
    stats = cdp_mem_stats_of(w.mem);
    T_EQ(61 - 10, stats.events_lost);
    s = shot_of(&w);
    T_EQ(10, cdp_mem_events(s, 0, &e));
    T(e[9].action == CDP_MEM_FREE_COMPLETED && e[9].size == 20 && e[0].size == 17);
    char *const text = text_of(s, CDP_MEM_PEAK);
    T_TEXT("51 older ones were overwritten", text);
    free(text);
    cdp_mem_shot_free(s);
    d.keep = true; /* goes on */
    OK(cdp_mem_record(w.mem, &d));
    stats = cdp_mem_stats_of(w.mem);
    T_EQ(52, stats.events_lost); /* and the snapshot */
    d.keep = false;
    OK(cdp_mem_record(w.mem, &d));
    stats = cdp_mem_stats_of(w.mem);
    T_EQ(0, stats.events_lost);
    OK(cdp_mem_record(w.mem, NULL));
    OK(cdp_mem_alloc(w.mem, 5, NULL, &p));
    OK(cdp_mem_free(w.mem, p));
    s = shot_of(&w);
    T_EQ(0, cdp_mem_events(s, 0, &e));
    T_EQ(1, cdp_mem_devices(s));
    cdp_mem_shot_free(s);
    world_end(&w);
}

/* Which stacks are where, at each level. */
TEST(contexts) {
    for (int level = CDP_MEM_CONTEXT_ALL; level <= CDP_MEM_CONTEXT_NONE; ++level) {
        const cdp_mem_record_desc d = recording((cdp_mem_context)level, CDP_MEM_STACKS_BACKTRACE);
        const cdp_mem_segment *g;
        const cdp_mem_event *e;
        cdp_mem_shot *s;
        world w;
        void *p, *q;
        world_begin(&w, &d);
        OK(cdp_mem_alloc(w.mem, 1000, NULL, &p));
        OK(cdp_mem_alloc(w.mem, 1000, NULL, &q));
        OK(cdp_mem_free(w.mem, q));
        s = shot_of(&w);
        T_EQ(5, cdp_mem_events(s, 0, &e));
        T_EQ(1, cdp_mem_segments(s, &g));
        T((g->blocks[0].stack != 0) == (level != CDP_MEM_CONTEXT_NONE));
        T((e[1].stack != 0) == (level <= CDP_MEM_CONTEXT_ALLOC));
        T((e[3].stack != 0) == (level <= CDP_MEM_CONTEXT_ALLOC));
        T((e[3].stack == e[2].stack)
            == (level
                != CDP_MEM_CONTEXT_ALL)); /* its own at ALL, that of the allocation at ALLOC */
        T_EQ(0, g->blocks[1].stack);
        cdp_mem_shot_free(s);
        OK(cdp_mem_free(w.mem, p));
        world_end(&w);
    }
}

__attribute__((noinline)) void *test_mem_leaf(cdp_mem *m);
__attribute__((noinline)) void *test_mem_leaf(cdp_mem *m) {
    void *p = NULL;
    OK(cdp_mem_alloc(m, 3000, NULL, &p));
    return p;
}

TEST(stacks_begin_at_the_caller) {
    for (int how = CDP_MEM_STACKS_BACKTRACE; how <= CDP_MEM_STACKS_SITE; ++how) {
        const cdp_mem_record_desc d = recording(CDP_MEM_CONTEXT_ALL, (cdp_mem_stacks)how);
        const cdp_mem_segment *g;
        const cdp_mem_frame *f;
        cdp_mem_shot *s;
        world w;
        void *p, *q;
        uint64_t from, address;
        world_begin(&w, &d);
        cdp_mem_label("a phase");
        p = test_mem_leaf(w.mem);
        cdp_mem_label("inner");
        OK(cdp_mem_alloc_at(w.mem, NULL, 5000, NULL, CDP_MEM_HERE, &q));
        cdp_mem_label(NULL);
        cdp_mem_label(NULL);
        s = shot_of(&w);
        T_EQ(1, cdp_mem_segments(s, &g));
        uint32_t n = cdp_mem_frames(s, g->blocks[0].stack, &f);
        T_TEXT("a phase", g->blocks[0].label);
        T_TEXT("a phase/inner", g->blocks[1].label);
        if (how != CDP_MEM_STACKS_SITE) {
            T(n >= 2);
            from = (uint64_t)(uintptr_t)
                test_mem_leaf; /* the innermost frame is in the function that called */
            address = s->addresses[s->stacks[g->blocks[0].stack].first];
            T(address > from && address < from + 400);
            T_TEXT("test_mem_files+0x", f[0].name);
            cdp_mem_shot_names(s); /* without -rdynamic most have no name; nothing may be lost */
            T(f[0].name[0] != 0);
        }
        n = cdp_mem_frames(s, g->blocks[1].stack, &f);
        T(n >= 1 && strcmp(f[0].name, "stacks_begin_at_the_caller") == 0 && f[0].line > 100);
        T_TEXT("test_mem_files.c", f[0].filename);
        T(cdp_mem_module(s, 0, NULL, NULL) == (how != CDP_MEM_STACKS_SITE || s->module_count > 0));
        cdp_mem_shot_free(s);
        OK(cdp_mem_free(w.mem, p));
        OK(cdp_mem_free(w.mem, q));
        world_end(&w);
    }
}

TEST(labels_nest) {
    const cdp_mem_record_desc d = recording(CDP_MEM_CONTEXT_NONE, CDP_MEM_STACKS_SITE);
    const cdp_mem_segment *g;
    cdp_mem_shot *s;
    world w;
    void *p;
    world_begin(&w, &d);
    for (int i = 0; i < 40; ++i)
        cdp_mem_label("0123456789"); /* deeper and longer than there is room for */
    OK(cdp_mem_alloc(w.mem, 1, NULL, &p));
    OK(cdp_mem_free(w.mem, p));
    for (int i = 0; i < 39; ++i)
        cdp_mem_label(NULL);
    OK(cdp_mem_alloc(w.mem, 1, NULL, &p));
    s = shot_of(&w);
    cdp_mem_segments(s, &g);
    T(g->blocks[0].label && strcmp(g->blocks[0].label, "0123456789") == 0);
    cdp_mem_shot_free(s);
    cdp_mem_label(NULL);
    cdp_mem_label(NULL); /* one too many */
    OK(cdp_mem_free(w.mem, p));
    world_end(&w);
}

TEST(small_events_are_left_out) {
    cdp_mem_record_desc d = recording(CDP_MEM_CONTEXT_NONE, CDP_MEM_STACKS_SITE);
    const cdp_mem_event *e;
    cdp_mem_shot *s;
    world w;
    void *p, *q;
    d.min_bytes = 5000;
    d.skip = 1u << CDP_MEM_SNAPSHOT;
    world_begin(&w, &d);
    OK(cdp_mem_alloc(w.mem, 4999, NULL, &p));
    OK(cdp_mem_alloc(w.mem, 5000, NULL, &q));
    OK(cdp_mem_free(w.mem, p));
    OK(cdp_mem_free(w.mem, q));
    cdp_mem_shot_free(shot_of(&w));
    s = shot_of(&w);
    T_EQ(4, cdp_mem_events(s, 0, &e));
    T(e[1].size == 5000 && e[3].size == 5000);
    cdp_mem_shot_free(s);
    world_end(&w);
}

TEST(memory_of_others) {
    const cdp_mem_record_desc d = recording(CDP_MEM_CONTEXT_NONE, CDP_MEM_STACKS_SITE);
    const cdp_mem_segment *g;
    cdp_mem_shot *s;
    cdp_mem_stats stats;
    world w;
    char *json;
    world_begin(&w, &d);
    OK(cdp_mem_external(w.mem, "nccl world", 300 * MIB));
    OK(cdp_mem_external(w.mem, "context", 500 * MIB));
    OK(cdp_mem_external(w.mem, "nccl world", 301 * MIB));
    s = shot_of(&w);
    T_EQ(2, cdp_mem_segments(s, &g));
    T(g[0].external && g[0].size == 301 * MIB && strcmp(g[0].label, "nccl world") == 0
        && g[0].address >= 1ull << 52 && g[1].address < 1ull << 53);
    json = text_of(s, CDP_MEM_JSON);
    T_TEXT("\"is_external\":true", json);
    free(json);
    cdp_mem_shot_free(s);
    stats = cdp_mem_stats_of(w.mem);
    T_EQ(0, stats.reserved_bytes[0].current);
    OK(cdp_mem_external(w.mem, "context", 0));
    OK(cdp_mem_external(w.mem, "context", 0));
    s = shot_of(&w);
    T_EQ(1, cdp_mem_segments(s, &g));
    cdp_mem_shot_free(s);
    world_end(&w);
}

TEST(an_allocator_that_is_not_ours) {
    cdp_mem_desc d;
    cdp_mem *m;
    cdp_mem_shot *s;
    const cdp_mem_segment *g;
    void *p[50], *q;
    written a = {NULL, 0, 0, 0};
    viewer_file v;
    memset(&d, 0, sizeof d);
    d.recorder_only = true;
    d.device = 2;
    d.record.history = CDP_MEM_HISTORY_ALL;
    OK(cdp_mem_create(&d, &m));
    FAILS(CDP_ERR_STATE, "recorder_only", cdp_mem_alloc(m, 5, NULL, &q));
    for (int i = 0; i < 50; ++i) {
        p[i] = malloc(100 + (size_t)i * 100);
        OK(cdp_mem_note_alloc(m, p[i], 100 + (uint64_t)i * 100, NULL));
    }
    FAILS(CDP_ERR_INVALID, "in use already", cdp_mem_note_alloc(m, p[3], 5, NULL));
    for (int i = 0; i < 50; i += 2)
        OK(cdp_mem_note_free(m, p[i]));
    FAILS(CDP_ERR_INVALID, "no block", cdp_mem_note_free(m, p[0]));
    OK(cdp_mem_snapshot(&m, 1, false, &s));
    T_EQ(25, cdp_mem_segments(s, &g));
    T(g[0].device == 2 && g[0].blocks[0].requested == 200 && g[0].blocks[0].stack != 0);
    OK(cdp_mem_write(s, CDP_MEM_PICKLE, written_sink, &a));
    const char *wrong = viewer_open(&v, a.at, a.bytes);
    if (!wrong) wrong = viewer_replay(&v, 2, true);
    test_check(!wrong, __FILE__, __LINE__, "the viewer would fail: %s", wrong ? wrong : "");
    viewer_close(&v);
    free(a.at);
    cdp_mem_shot_free(s);
    for (int i = 1; i < 50; i += 2)
        OK(cdp_mem_note_free(m, p[i]));
    for (int i = 0; i < 50; ++i)
        free(p[i]);
    T_EQ(0, cdp_mem_destroy(m));
}

/* An allocator that has segments of its own, some of which grow page by page, and frees that wait:
   all of its events. Beside it, what each 4 KiB page of its addresses is. */
enum {
    PAGES = 64
};
typedef struct foreign {
    cdp_mem *mem;
    char page[PAGES];     /* ' ' nothing, 'f' free, 'u' in use, 'w' waits */
    uint32_t size[PAGES]; /* of the block that begins there */
    bool grows[PAGES];
} foreign;

static cdp_status say(foreign *f, cdp_mem_action action, uint64_t page, uint64_t pages) {
    cdp_mem_event e;
    memset(&e, 0, sizeof e);
    e.action = action;
    /* between those that grow and those that do not there is a gap, as there always is */
    e.address = (1ull << 40) + (page < 32 ? page : page + 1) * 4096;
    e.size = pages * 4096;
    e.stream = 7;
    e.device_free = 12345;
    return cdp_mem_note_event(f->mem, &e);
}
static bool all_are(const foreign *f, uint32_t page, uint32_t pages, char what, bool grows) {
    for (uint32_t i = page; i < page + pages; ++i)
        if (i >= PAGES || f->page[i] != what || (what != ' ' && f->grows[i] != grows)) return false;
    return true;
}
static void become(foreign *f, uint32_t page, uint32_t pages, char what) {
    for (uint32_t i = page; i < page + pages; ++i)
        f->page[i] = what;
}
/* Blocks must not lie across segments that do not grow: those are of four pages, at 0, 4 .. 28. */
static bool in_one(uint32_t page, uint32_t pages) {
    return page >= 32 || page / 4 == (page + pages - 1) / 4;
}
/* In pages that grow one segment may end where another begins: then a block fits into one of both,
   or not. So what the recorder says counts, if the pages are free at all. */
static void foreign_turn(foreign *f, uint64_t *random) {
    const uint32_t page = (uint32_t)(test_random(random) % PAGES),
                   pages = 1 + (uint32_t)(test_random(random) % 4), start = page / 4 * 4;
    const bool grows = page >= 32;
    cdp_status st;
    if (page + pages > PAGES || (!grows && page + pages > 32)) return;
    switch (test_random(random) % 6) {
    case 0:
        if (grows) {
            st = say(f, CDP_MEM_SEGMENT_MAP, page, pages);
            T(st == (all_are(f, page, pages, ' ', true) ? CDP_OK : CDP_ERR_INVALID));
            if (st != CDP_OK) break;
            become(f, page, pages, 'f');
            for (uint32_t i = page; i < page + pages; ++i)
                f->grows[i] = true;
        } else {
            st = say(f, CDP_MEM_SEGMENT_ALLOC, start, 4);
            T(st == (all_are(f, start, 4, ' ', false) ? CDP_OK : CDP_ERR_INVALID));
            if (st == CDP_OK) become(f, start, 4, 'f');
        }
        break;
    case 1:
        if (!grows) {
            st = say(f, CDP_MEM_SEGMENT_FREE, start, 4);
            T(st == (all_are(f, start, 4, 'f', false) ? CDP_OK : CDP_ERR_INVALID));
            if (st == CDP_OK) become(f, start, 4, ' ');
            break;
        }
        st = say(f, CDP_MEM_SEGMENT_UNMAP, page, pages);
        T(st == CDP_ERR_INVALID || all_are(f, page, pages, 'f', true));
        if (st == CDP_OK) become(f, page, pages, ' ');
        break;
    case 2:
    case 3:
        st = say(f, CDP_MEM_ALLOC, page, pages);
        if (st == CDP_OK && all_are(f, page, pages, ' ', grows)) { /* a segment of its own */
            OK(say(f, CDP_MEM_FREE_REQUESTED, page, pages));
            OK(say(f, CDP_MEM_FREE_COMPLETED, page, pages));
            break;
        }
        T(st == CDP_ERR_INVALID || (all_are(f, page, pages, 'f', grows) && in_one(page, pages)));
        if (st != CDP_OK) break;
        become(f, page, pages, 'u');
        f->size[page] = pages;
        break;
    case 4:
        st = say(f, CDP_MEM_FREE_REQUESTED, page, 1);
        T((st == CDP_OK) == (f->size[page] && f->page[page] == 'u'));
        if (st == CDP_OK) become(f, page, f->size[page], 'w');
        break;
    default:
        st = say(f, CDP_MEM_FREE_COMPLETED, page, 1);
        T((st == CDP_OK) == (f->size[page] && f->page[page] == 'w'));
        if (st != CDP_OK) break;
        become(f, page, f->size[page], 'f');
        f->size[page] = 0;
    }
}

/* What the snapshot and the statistics say is what the pages are; and the viewer can replay it. */
static void foreign_check(foreign *f) {
    uint64_t bytes[4] = {0}, is[4] = {0}, pieces = 0;
    const cdp_mem_segment *g;
    cdp_mem_stats stats;
    cdp_mem_shot *s;
    written a = {NULL, 0, 0, 0};
    viewer_file v;
    for (uint32_t i = 0; i < PAGES; ++i)
        bytes[strchr(" fuw", f->page[i]) - " fuw"] += 4096;
    if (!OK(cdp_mem_snapshot(&f->mem, 1, false, &s))) return;
    const uint32_t n = cdp_mem_segments(s, &g);
    for (uint32_t i = 0; i < n; ++i) {
        T(g[i].grows == (g[i].address >= (1ull << 40) + 32 * 4096));
        for (uint32_t j = 0; j < g[i].block_count; ++j) {
            is[1 + g[i].blocks[j].state] += g[i].blocks[j].size;
            if (g[i].block_count > 1 && g[i].blocks[j].state == CDP_MEM_INACTIVE)
                pieces += g[i].blocks[j].size;
        }
    }
    T(is[1] == bytes[1] && is[2] == bytes[2] && is[3] == bytes[3]);
    stats = cdp_mem_stats_of(f->mem);
    T_EQ(bytes[1] + bytes[2] + bytes[3], stats.reserved_bytes[0].current);
    T_EQ(bytes[2], stats.allocated_bytes[0].current);
    T_EQ(bytes[2] + bytes[3], stats.active_bytes[0].current);
    T_EQ(pieces, stats.inactive_split_bytes[0].current);
    T_EQ(n, stats.segment[0].current);
    OK(cdp_mem_write(s, CDP_MEM_PICKLE, written_sink, &a));
    const char *wrong = viewer_open(&v, a.at, a.bytes);
    if (!wrong) wrong = viewer_replay(&v, 0, true);
    test_check(!wrong, __FILE__, __LINE__, "the viewer would fail: %s", wrong ? wrong : "");
    viewer_close(&v);
    free(a.at);
    cdp_mem_shot_free(s);
}

TEST(all_events_of_another_allocator) {
    for (uint64_t seed = 1; seed <= (TEST_SLOW ? 5 : 20); ++seed) {
        uint64_t random = seed;
        cdp_mem_desc d;
        foreign f;
        memset(&f, 0, sizeof f);
        memset(f.page, ' ', sizeof f.page);
        memset(&d, 0, sizeof d);
        d.recorder_only = true;
        d.record.history = CDP_MEM_HISTORY_ALL;
        d.record.stacks = CDP_MEM_STACKS_SITE;
        OK(cdp_mem_create(&d, &f.mem));
        for (int turn = 0; turn < 2000 && !test__now.failed_checks; ++turn) {
            foreign_turn(&f, &random);
            if (turn % 100 == 0) foreign_check(&f);
        }
        foreign_check(&f);
        (void)cdp_mem_destroy(f.mem);
        if (test__now.failed_checks)
            test_check(false, __FILE__, __LINE__, "seed %llu", (unsigned long long)seed);
    }
}

/* Pages that one segment gains, and loses in its middle: never more is held than there was. */
TEST(pages_come_and_go_one_by_one) {
    cdp_mem_stats stats;
    cdp_mem_desc d;
    foreign f;
    memset(&f, 0, sizeof f);
    memset(&d, 0, sizeof d);
    d.recorder_only = true;
    OK(cdp_mem_create(&d, &f.mem));
    OK(say(&f, CDP_MEM_SEGMENT_MAP, 32, 2));
    OK(say(&f, CDP_MEM_SEGMENT_MAP, 34, 2));
    OK(say(&f, CDP_MEM_SEGMENT_UNMAP, 33, 1));
    stats = cdp_mem_stats_of(f.mem);
    T_EQ(3 * 4096, stats.reserved_bytes[0].current);
    T_EQ(4 * 4096, stats.reserved_bytes[0].peak);
    T_EQ(4 * 4096, stats.reserved_bytes[0].allocated);
    T_EQ(4096, stats.reserved_bytes[0].freed);
    (void)cdp_mem_destroy(f.mem);
}

TEST(events_that_do_not_fit) {
    const cdp_mem_action others[] = {
        CDP_MEM_SNAPSHOT, CDP_MEM_USER_DEFINED, CDP_MEM_ANNOTATE, CDP_MEM_ACTION_COUNT};
    const cdp_mem_event *e;
    cdp_mem_event none;
    cdp_mem_desc d;
    cdp_mem_shot *s;
    world w;
    foreign f;
    memset(&none, 0, sizeof none);
    memset(&f, 0, sizeof f);
    memset(&d, 0, sizeof d);
    world_begin(&w, NULL);
    none.size = 512;
    FAILS(CDP_ERR_STATE, "source", cdp_mem_note_event(w.mem, &none));
    world_end(&w);
    d.recorder_only = true;
    d.record.history = CDP_MEM_HISTORY_ALL;
    OK(cdp_mem_create(&d, &f.mem));
    FAILS(CDP_ERR_INVALID, "is NULL", cdp_mem_note_event(f.mem, NULL));
    FAILS(CDP_ERR_INVALID, "size", say(&f, CDP_MEM_ALLOC, 0, 0));
    for (size_t i = 0; i < 4; ++i)
        FAILS(CDP_ERR_INVALID, "action", say(&f, others[i], 0, 1));
    FAILS(CDP_ERR_INVALID, "no such segment", say(&f, CDP_MEM_SEGMENT_FREE, 0, 1));
    FAILS(CDP_ERR_INVALID, "no such segment", say(&f, CDP_MEM_SEGMENT_UNMAP, 0, 1));
    FAILS(CDP_ERR_INVALID, "no block", say(&f, CDP_MEM_FREE_REQUESTED, 0, 1));
    FAILS(CDP_ERR_INVALID, "no free waits", say(&f, CDP_MEM_FREE_COMPLETED, 0, 1));
    OK(say(&f, CDP_MEM_SEGMENT_ALLOC, 0, 4));
    FAILS(CDP_ERR_INVALID, "overlaps", say(&f, CDP_MEM_SEGMENT_MAP, 3, 2));
    FAILS(CDP_ERR_INVALID, "not free in one segment", say(&f, CDP_MEM_ALLOC, 3, 2));
    OK(say(&f, CDP_MEM_ALLOC, 1, 1));
    FAILS(CDP_ERR_INVALID, "not free", say(&f, CDP_MEM_SEGMENT_FREE, 0, 4));
    FAILS(CDP_ERR_INVALID, "no such segment", say(&f, CDP_MEM_SEGMENT_UNMAP, 2, 1));
    OK(say(&f, CDP_MEM_OOM, 0, 99));
    OK(cdp_mem_snapshot(&f.mem, 1, false, &s));
    T_EQ(3, cdp_mem_events(s, 0, &e));
    T(e[2].action == CDP_MEM_OOM && e[2].device_free == 12345 && e[2].size == 99 * 4096);
    cdp_mem_shot_free(s);
    T_EQ(4096, cdp_mem_destroy(f.mem));
}

/* The smallest file, byte by byte, and a file with nothing in it. */
TEST(the_smallest_file) {
    static const char bytes[] = "\x80\x02}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00"
                                "device_traces](]eu.";
    const cdp_mem_event *e;
    cdp_mem_shot *s;
    viewer_file v;
    char *text;
    T_EQ(42, sizeof bytes - 1);
    OK(cdp_mem_read(bytes, sizeof bytes - 1, NULL, &s));
    T_EQ(1, cdp_mem_devices(s));
    T_EQ(0, cdp_mem_segments(s, NULL));
    T_EQ(0, cdp_mem_events(s, 0, &e));
    for (int f = CDP_MEM_PICKLE; f <= CDP_MEM_PEAK; ++f) {
        text = text_of(s, (cdp_mem_format)f);
        free(text);
    }
    cdp_mem_shot_free(s);
    T(viewer_open(&v, bytes, sizeof bytes - 1) == NULL && viewer_replay(&v, 0, true) == NULL);
    viewer_close(&v);
}

/* What Python writes with protocol 4: frames, MEMOIZE, short texts. */
TEST(files_of_python) {
    static const uint8_t bytes[] =
        "\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x08segments\x94]\x94}\x94(\x8c\x06"
        "device\x94K\x01\x8c\x07"
        "address\x94"
        "\x8a\x06\x00\x00\x00\x4c\x06\x7f\x8c\x0atotal_"
        "sizeJ\x00\x00\x20\x00\x8c\x06streamK\x00\x8c\x0csegment_type\x8c\x05small\x8c\x06"
        "blocks]}(\x8c\x04sizeJ\x00\x00\x20\x00\x8c\x05state"
        "\x8c\x10"
        "active_allocated\x8c\x06"
        "frames]\x94}(\x8c\x08"
        "filename\x8c\x04"
        "a.py\x8c\x04lineK\x07\x8c\x04name\x8c\x01"
        "fuaua"
        "ua\x8c\x0d"
        "device_traces](]]}(\x8c\x06"
        "action\x8c\x05"
        "alloc\x8c\x04"
        "addrK\x09\x8c\x04sizeK\x05\x8c\x06"
        "framesh\x06\x8c\x04noneN\x8c\x01tG?\xf0\x00\x00\x00\x00\x00\x00uaeu.";
    const cdp_mem_segment *g;
    const cdp_mem_event *e;
    const cdp_mem_frame *f;
    cdp_mem_shot *s;
    if (!OK(cdp_mem_read(bytes, sizeof bytes - 1, NULL, &s))) return;
    T_EQ(1, cdp_mem_segments(s, &g));
    T(g->device == 1 && !g->large && g->block_count == 1 && g->allocated == 2 * MIB
        && g->blocks[0].address == 0x7f064c000000u);
    T_EQ(1, cdp_mem_frames(s, g->blocks[0].stack, &f));
    T(strcmp(f->filename, "a.py") == 0 && strcmp(f->name, "f") == 0 && f->line == 7);
    T_EQ(1, cdp_mem_events(s, 1, &e));
    T(e->action == CDP_MEM_ALLOC && e->address == 9);
    cdp_mem_shot_free(s);
}

static char *rewritten(const void *data, size_t bytes, cdp_mem_format format, size_t *length) {
    char *const copy = (char *)malloc(bytes), *text; /* reading on is noticed */
    written w = {NULL, 0, 0, 0};
    cdp_mem_shot *s;
    const bool read = OK(cdp_mem_read(memcpy(copy, data, bytes), bytes, NULL, &s));
    free(copy);
    if (!read) return NULL;
    OK(cdp_mem_write(s, format, written_sink, &w));
    cdp_mem_shot_free(s);
    text = (char *)malloc(w.bytes + 1);
    memcpy(text, w.at, w.bytes);
    text[w.bytes] = 0;
    free(w.at);
    if (length) *length = w.bytes;
    return text;
}

/* One file of Python in three forms: what is not known here is written again, in either form. */
TEST(unknown_keys_survive) {
    static const struct {
        const char *bytes;
        size_t count;
    } files[] = {{as_json, sizeof as_json - 1}, {protocol_0, sizeof protocol_0 - 1},
        {protocol_1, sizeof protocol_1 - 1}};
    static const char *const parts[] = {"\"fx_node_op\":\"call\"",
        "\"gr\\u00f6\\u00dfe \\u20ac \\ud83d\\ude00.py\"", "\"f\\\"'\\\\\"",
        "\"history\":[{\"real_size\":4000,\"ok\":true,\"none\":null}]",
        "\"registered\":[true,false,-1,1.5,1.0e300]", "\"compile_context\":\"0/1\"",
        "\"big\":4611686018427387904,\"little\":-4611686018427387904",
        "\"expandable_segments\":true,\"max_split_size\":-1,\"roundup\":{\"a\":0.1}",
        "\"external_annotations\":[{\"stage\":\"START\",\"name\":\"optimizer\\u000a\",\"device\":0}"
        "]",
        "\"later\":{\"k\":[[],{},[1,2]]}"};
    char *first = NULL;
    for (size_t i = 0; i < sizeof files / sizeof *files; ++i) {
        size_t length = 0;
        char *const json = rewritten(files[i].bytes, files[i].count, CDP_MEM_JSON, NULL);
        char *const pickle = rewritten(files[i].bytes, files[i].count, CDP_MEM_PICKLE, &length);
        if (!T(json && pickle)) return;
        char *const again = rewritten(pickle, length, CDP_MEM_JSON, NULL);
        char *const twice = rewritten(json, strlen(json), CDP_MEM_JSON, NULL);
        if (!first) first = strdup(json);
        T_EQ(0, strcmp(first, json));
        T_EQ(0, strcmp(first, again));
        T_EQ(0, strcmp(first, twice));
        free(json);
        free(pickle);
        free(again);
        free(twice);
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; ++i)
        T_TEXT(parts[i], first);
    free(first);
}

/* A pickle that repeats one value under unknown keys loses it, and nothing else. */
TEST(what_is_repeated_too_often_is_left_out) {
    char bytes[2000] = "(dVlist\np1\n(lp0\n", *json;
    for (int i = 0; i < 40; ++i)
        strcat(bytes, "I1\na");
    strcat(bytes, "s");
    for (int i = 0; i < 60; ++i)
        sprintf(bytes + strlen(bytes), "Vk%d\ng0\ns", i);
    strcat(bytes, "Vsegments\n(lsVdevice_traces\n(ls.");
    json = rewritten(bytes, strlen(bytes), CDP_MEM_JSON, NULL);
    if (!T(json != NULL)) return;
    T_TEXT("\"list\":[1,1,1,", json);
    T_TEXT("\"k0\":[1,1,1,", json);
    T(!strstr(json, "\"k59\""));
    T_TEXT("\"segments\":[]", json);
    free(json);
}

TEST(bad_files_are_refused) {
    static const struct {
        const char *bytes;
        size_t count;
        cdp_status status;
        const char *part;
    } rows[] = {{"", 0, CDP_ERR_INVALID, "neither"}, {"hello", 5, CDP_ERR_INVALID, "neither"},
        {"\x80\x02", 2, CDP_ERR_INVALID, "ends in the middle"},
        {"\x80\x06N.", 4, CDP_ERR_INVALID, "protocol"},
        {"\x80\x02N.", 4, CDP_ERR_INVALID, "no list of segments"},
        {"\x80\x02"
         "cos\nsystem\n.",
            14, CDP_ERR_UNSUPPORTED, "opcode"},
        {"\x80\x02R.", 4, CDP_ERR_UNSUPPORTED, "opcode"},
        {"\x80\x02h\x05.", 5, CDP_ERR_INVALID, "never remembered"},
        {"\x80\x02q\x00.", 5, CDP_ERR_INVALID, "no value to remember"},
        {"\x80\x02"
         "e.",
            4, CDP_ERR_INVALID, "no mark"},
        {"\x80\x02}(K\x01u.", 8, CDP_ERR_INVALID, "no value"},
        {"\x80\x02\x8a\x09"
         "123456789.",
            14, CDP_ERR_INVALID, "8 bytes"},
        {"\x80\x02NN.", 5, CDP_ERR_INVALID, "one value"},
        {"\x80\x02N(.", 5, CDP_ERR_INVALID, "one value"},
        {"\x80\x02X\xff\xff\xff\xff.", 8, CDP_ERR_INVALID, "ends in the middle"},
        {"\x80\x02Nr\xff\xff\xff\xff.", 9, CDP_ERR_INVALID, "too large a number"},
        {"\x80\x02N(a.", 6, CDP_ERR_INVALID, "missing"}, {"{", 1, CDP_ERR_INVALID, "key"},
        {"{\"segments\":[],\"device_traces\":3}", 33, CDP_ERR_INVALID, "no list"},
        {"{\"segments\":[1],\"device_traces\":[]}", 35, CDP_ERR_INVALID, "no dict"},
        {"{\"a\":1e}", 8, CDP_ERR_INVALID, "a digit is expected"},
        {"{\"a\":\"x", 7, CDP_ERR_INVALID, "does not end"},
        {"{\"a\":[1,]}", 10, CDP_ERR_INVALID, "value is expected"},
        {"{\"a\" 1}", 7, CDP_ERR_INVALID, "colon"},
        {"{\"a\":[1 2]}", 11, CDP_ERR_INVALID, "comma"}};
    cdp_mem_shot *s;
    char deep[200];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        char *const copy = (char *)malloc(rows[i].count + 1); /* reading on is noticed */
        memcpy(copy, rows[i].bytes, rows[i].count);
        const cdp_status st = cdp_mem_read(copy, rows[i].count, NULL, &s);
        test_check(st == rows[i].status && strstr(cdp_last_error()->text, rows[i].part), __FILE__,
            __LINE__, "row %zu: %d, %s", i, (int)st, cdp_last_error()->text);
        T(s == NULL);
        free(copy);
    }
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"a\":", 5);
    FAILS(CDP_ERR_INVALID, "nested too deep", cdp_mem_read(deep, sizeof deep, NULL, &s));
    FAILS(CDP_ERR_INVALID, "is NULL", cdp_mem_read(NULL, 4, NULL, &s));
}

/* Everything that a shot can hold, through both forms and back. */
static cdp_mem_shot *full_shot(world *w) {
    cdp_mem_record_desc d = recording(CDP_MEM_CONTEXT_ALL, CDP_MEM_STACKS_BACKTRACE);
    cdp_mem_pool_desc pd;
    cdp_mem_pool *pool;
    void *p[300], *q;
    world_begin(w, &d);
    memset(&pd, 0, sizeof pd);
    pd.label = "graph \"1\"";
    OK(cdp_mem_pool_create(w->mem, &pd, &pool));
    OK(cdp_mem_external(w->mem, "nccl <world>", 5 * MIB));
    for (int i = 0; i < 300; ++i) {
        cdp_mem_label(i % 2 ? "even\t\xc3\xa4" : "odd & \\ bad \xff");
        OK(cdp_mem_alloc_at(w->mem, i % 3 ? NULL : pool, 1 + (uint64_t)i * 5000,
            fake_handle((uint32_t)i % 3), i % 5 ? NULL : CDP_MEM_HERE, &p[i]));
        cdp_mem_label(NULL);
    }
    T(cdp_mem_alloc(w->mem, 4000 * MIB, NULL, &q) == CDP_ERR_NOMEM);
    for (int i = 0; i < 300; i += 2) {
        if (i % 8 == 0) OK(cdp_mem_record_stream(w->mem, p[i], fake_handle(5)));
        fake_work(&w->f, 5);
        OK(cdp_mem_free(w->mem, p[i]));
    }
    cdp_mem_note(w->mem, p[1], "noted");
    return shot_of(w);
}

static void full_end(world *w) {
    const cdp_mem_segment *g;
    cdp_mem_shot *const s = shot_of(w);
    const uint32_t n = cdp_mem_segments(s, &g);
    for (uint32_t i = 0; i < 10; ++i)
        fake_pass(&w->f, i);
    for (uint32_t i = 0; i < n; ++i)
        for (uint32_t j = 0; j < g[i].block_count; ++j)
            if (g[i].blocks[j].state == CDP_MEM_ACTIVE && !g[i].external)
                OK(cdp_mem_free(w->mem, (void *)(uintptr_t)g[i].blocks[j].address));
    cdp_mem_shot_free(s);
    world_end(w);
}

TEST(both_forms_and_back) {
    world w;
    cdp_mem_shot *s = full_shot(&w), *t, *u;
    written a = {NULL, 0, 0, 0}, b = {NULL, 0, 0, 0}, c = {NULL, 0, 0, 0}, d = {NULL, 0, 0, 0};
    viewer_file v;
    OK(cdp_mem_write(s, CDP_MEM_PICKLE, written_sink, &a));
    OK(cdp_mem_write(s, CDP_MEM_JSON, written_sink, &b));
    OK(cdp_mem_read(a.at, a.bytes, NULL, &t));
    OK(cdp_mem_read(b.at, b.bytes, NULL, &u));
    OK(cdp_mem_write(u, CDP_MEM_JSON, written_sink, &c));
    OK(cdp_mem_write(t, CDP_MEM_JSON, written_sink, &d));
    T(b.bytes == d.bytes && memcmp(b.at, d.at, b.bytes) == 0); /* through a pickle, as JSON */
    T(b.bytes == c.bytes && memcmp(b.at, c.at, b.bytes) == 0); /* through JSON */
    const char *wrong = viewer_open(&v, a.at, a.bytes);
    if (!wrong) wrong = viewer_replay(&v, 0, true);
    test_check(!wrong || strstr(wrong, "left at the beginning"), __FILE__, __LINE__,
        "the viewer would fail: %s", wrong ? wrong : "");
    viewer_close(&v);
    int64_t more = 1;
    (void)cdp_mem_compare(s, t, &more, NULL, 0);
    T_EQ(0, more);
    /* the sink may say no at any byte */
    for (uint64_t n = 1; n < a.bytes; n += a.bytes / 23 + 1) {
        written e = {NULL, 0, 0, n};
        FAILS(CDP_ERR_IO, "sink", cdp_mem_write(s, CDP_MEM_PICKLE, written_sink, &e));
        free(e.at);
    }
    cdp_mem_shot_free(s);
    cdp_mem_shot_free(t);
    cdp_mem_shot_free(u);
    free(a.at);
    free(b.at);
    free(c.at);
    free(d.at);
    full_end(&w);
}

static size_t count_of(const char *text, const char *part) {
    size_t n = 0;
    for (; (text = strstr(text, part)) != NULL; text += strlen(part))
        ++n;
    return n;
}

TEST(pictures) {
    world w;
    cdp_mem_shot *const s = full_shot(&w);
    char *const svg = text_of(s, CDP_MEM_SVG), *const rows = text_of(s, CDP_MEM_SVG_SEGMENTS);
    const char *wrong = xml_wrong(svg);
    test_check(!wrong, __FILE__, __LINE__, "the timeline: %s", wrong ? wrong : "");
    wrong = xml_wrong(rows);
    test_check(!wrong, __FILE__, __LINE__, "the segments: %s", wrong ? wrong : "");
    T(count_of(svg, "<polygon") >= 300); /* each allocation is an element */
    T_TEXT("prefers-color-scheme: dark", svg);
    T_TEXT("odd &amp; \\ bad ?", svg);
    T_TEXT("<line class=\"oom\"", svg);
    T_TEXT("<rect class=\"page\" width=\"1200\"", svg); /* not all know a background of CSS */
    T_TEXT("<rect class=\"page\" width=\"1200\"", rows);
    T_TEXT("red line: out of memory", svg);
    T_TEXT("Largest at the peak:", svg);
    T_TEXT(">128.0 MiB</text>", svg); /* round numbers */
    T_TEXT("a full row: ", rows);
    T_TEXT("peak 218.8 MiB", svg); /* 213.9 of 300 blocks, 5 of others */
    T_EQ(38,                       /* blocks that wait are red, and so is what rounding loses */
        count_of(rows, "class=\"lost\">") - count_of(rows, "class=\"lost\"><title>lost by"));
    T(!strstr(svg, "nan") && !strstr(rows, "nan"));
    free(svg);
    free(rows);
    char name[401]; /* names of PyTorch's files may be long: they are cut */
    memset(name, 'x', sizeof name);
    name[400] = 0;
    for (uint32_t i = 0; i < s->stack_count; ++i)
        if (s->stacks[i].count) OK(cdp_mem_frame_set(s, i, 0, "file", name, 1));
    char *const cut = text_of(s, CDP_MEM_SVG);
    T(strstr(cut, "xxxxxxxxxxxxxxxxxxxx...") && !strstr(cut, name + 200));
    T(!xml_wrong(cut));
    free(cut);
    cdp_mem_shot_free(s);
    full_end(&w);
}

/* PyTorch writes -1 where blocks may be split at any size. */
TEST(files_tell_the_largest_block_that_is_split) {
    static const uint64_t most[] = {0, 32 * MIB};
    for (int i = 0; i < 2; ++i) {
        cdp_mem_source source;
        cdp_mem_desc d;
        cdp_mem_shot *s;
        fake f;
        cdp_mem *mem;
        memset(&f, 0, sizeof f);
        memset(&d, 0, sizeof d);
        f.numbers = true;
        source = fake_source(&f);
        d.source = &source;
        d.max_split_bytes = most[i];
        if (!OK(cdp_mem_create(&d, &mem))) return;
        OK(cdp_mem_snapshot(&mem, 1, false, &s));
        char *const json = text_of(s, CDP_MEM_JSON);
        T_TEXT(i ? "\"max_split_size\":33554432," : "\"max_split_size\":-1,", json);
        free(json);
        cdp_mem_shot_free(s);
        T_EQ(0, cdp_mem_destroy(mem));
    }
}

/* A block that nothing moves is a box: four points, two of them at each end. */
TEST(a_block_that_stays_is_a_box) {
    const cdp_mem_record_desc d = recording(CDP_MEM_CONTEXT_NONE, CDP_MEM_STACKS_SITE);
    world w;
    void *p[3];
    world_begin(&w, &d);
    for (int i = 0; i < 3; ++i)
        OK(cdp_mem_alloc(w.mem, MIB, NULL, &p[i]));
    cdp_mem_shot *const s = shot_of(&w);
    char *const svg = text_of(s, CDP_MEM_SVG);
    const char *at = svg;
    int boxes = 0;
    while ((at = strstr(at, "<polygon fill=")) != NULL) {
        const char *const points = strstr(at, "points=\"") + 8;
        int count = 0;
        for (at = points; *at && *at != '"'; ++at)
            count += *at == ',';
        T_EQ(4, count);
        ++boxes;
    }
    T_EQ(3, boxes);
    free(svg);
    cdp_mem_shot_free(s);
    for (int i = 0; i < 3; ++i)
        OK(cdp_mem_free(w.mem, p[i]));
    world_end(&w);
}

TEST(reports) {
    world w;
    cdp_mem_shot *const s = full_shot(&w);
    char *const flame = text_of(s, CDP_MEM_FLAME), *const memory = text_of(s, CDP_MEM_FLAME_MEMORY);
    char *const trace = text_of(s, CDP_MEM_TRACE), *const peak = text_of(s, CDP_MEM_PEAK);
    T_TEXT(";active_allocated;", flame);
    T_TEXT(";<gaps> ", flame);
    T_TEXT(";seg_", flame);
    T(!strstr(memory, ";seg_") && !strstr(memory, ";inactive "));
    T_TEXT("raise OutOfMemoryError() # 4194304000 bytes requested", trace);
    T_EQ(300, (int64_t)count_of(trace, " = alloc("));
    T_TEXT("peak: 218.8 MiB", peak);
    T_TEXT("waiting for streams", peak);
    free(flame);
    free(memory);
    free(trace);
    free(peak);
    cdp_mem_shot_free(s);
    full_end(&w);
}

/* The ten largest are listed; of more, how many. */
TEST(reports_list_ten_and_count_the_others) {
    const cdp_mem_record_desc d = recording(CDP_MEM_CONTEXT_NONE, CDP_MEM_STACKS_SITE);
    char label[16];
    world w;
    void *p[12];
    world_begin(&w, &d);
    for (int i = 0; i < 12; ++i) {
        snprintf(label, sizeof label, "holder %d", i);
        cdp_mem_label(label);
        OK(cdp_mem_alloc(w.mem, MIB + (uint64_t)i * 512, NULL, &p[i]));
        cdp_mem_label(NULL);
        cdp_mem_shot *const s = shot_of(&w);
        char *const text = text_of(s, CDP_MEM_PEAK);
        const size_t listed = count_of(text, " in 1 blocks: holder ");
        T_EQ(2 * (i < 10 ? i + 1 : 10), (int64_t)listed); /* of the peak, and of the end */
        T_EQ(i < 10 ? 0 : 2, (int64_t)count_of(text, "others"));
        if (i == 11) T_TEXT("    and 2 others\n", text);
        free(text);
        cdp_mem_shot_free(s);
    }
    for (int i = 0; i < 12; ++i)
        OK(cdp_mem_free(w.mem, p[i]));
    world_end(&w);
}

/* Five milliseconds later at each look. */
static uint64_t steady_clock(void *user) {
    static uint64_t now = 1000000000;
    (void)user;
    return now += 5000000;
}

TEST(pictures_say_how_long_it_took) {
    cdp_os os = *cdp_os_default();
    cdp_mem_source source;
    cdp_mem_desc d;
    fake f;
    cdp_mem *mem;
    void *p[4];
    memset(&f, 0, sizeof f);
    memset(&d, 0, sizeof d);
    f.limit = 64 * MIB;
    f.numbers = true;
    source = fake_source(&f);
    os.now_ns = steady_clock;
    d.os = &os;
    d.source = &source;
    d.record = recording(CDP_MEM_CONTEXT_NONE, CDP_MEM_STACKS_SITE);
    d.record.max_entries = 2;
    d.record.skip = 1u << CDP_MEM_SNAPSHOT;
    OK(cdp_mem_create(&d, &mem));
    for (uint32_t i = 0; i < 4; ++i) { /* the last two are a block and another block */
        const cdp_mem_event *e;
        cdp_mem_shot *s;
        char want[60] = "2 events;"; /* a segment and its first block: at the same time */
        OK(cdp_mem_alloc(mem, MIB / 4, NULL, &p[i]));
        OK(cdp_mem_snapshot(&mem, 1, false, &s));
        if (!T_EQ(2, (int64_t)cdp_mem_events(s, 0, &e))) return;
        char *const svg = text_of(s, CDP_MEM_SVG);
        const uint64_t took = e[1].time_us - e[0].time_us;
        if (i > 0) T(took >= 5000);
        if (i > 0) snprintf(want, sizeof want, "2 events in %u ms;", (unsigned)(took / 1000));
        T_TEXT(want, svg);
        free(svg);
        cdp_mem_shot_free(s);
    }
    for (uint32_t i = 0; i < 4; ++i)
        OK(cdp_mem_free(mem, p[i]));
    T_EQ(0, cdp_mem_destroy(mem));
}

/* ---- memory that is counted ---- */

static int64_t counted_live;

static void *counted_alloc(void *user, uint64_t bytes) {
    void *const p = malloc((size_t)bytes);
    (void)user;
    counted_live += p != NULL;
    return p;
}

static void counted_release(void *user, void *p) {
    (void)user;
    counted_live -= p != NULL;
    free(p);
}

TEST(writing_gives_all_memory_back) {
    const cdp_mem_record_desc record = recording(CDP_MEM_CONTEXT_ALL, CDP_MEM_STACKS_SITE);
    cdp_os os = *cdp_os_default();
    cdp_mem_source source;
    cdp_mem_desc d;
    fake f;
    cdp_mem *mem;
    cdp_mem_shot *s;
    void *p;
    os.alloc = counted_alloc;
    os.release = counted_release;
    memset(&f, 0, sizeof f);
    memset(&d, 0, sizeof d);
    f.limit = 64 * MIB;
    f.numbers = true;
    source = fake_source(&f);
    d.os = &os;
    d.source = &source;
    d.record = record;
    OK(cdp_mem_create(&d, &mem));
    OK(cdp_mem_alloc(mem, MIB, NULL, &p));
    OK(cdp_mem_snapshot(&mem, 1, false, &s));
    for (int format = 0; format < 20; ++format) {
        const int64_t before = counted_live;
        written w = {NULL, 0, 0, 0};
        const cdp_status st = cdp_mem_write(s, (cdp_mem_format)format, written_sink, &w);
        if (format <= CDP_MEM_PEAK) T(st == CDP_OK && w.bytes > 0);
        T_EQ(before, counted_live);
        free(w.at);
    }
    cdp_mem_shot_free(s);
    OK(cdp_mem_free(mem, p));
    T_EQ(0, cdp_mem_destroy(mem));
    T_EQ(0, counted_live);
}

TEST(what_grew) {
    const cdp_mem_record_desc d = recording(CDP_MEM_CONTEXT_NONE, CDP_MEM_STACKS_SITE);
    cdp_mem_shot *a, *b;
    world w;
    void *p, *q, *r;
    char text[2000], little[20];
    int64_t more = 0;
    world_begin(&w, &d);
    cdp_mem_label("cache");
    OK(cdp_mem_alloc(w.mem, MIB, NULL, &p));
    a = shot_of(&w);
    OK(cdp_mem_alloc(w.mem, MIB, NULL, &q));
    cdp_mem_label(NULL);
    cdp_mem_label("batch");
    OK(cdp_mem_alloc(w.mem, 512, NULL, &r));
    cdp_mem_label(NULL);
    b = shot_of(&w);
    T_EQ(strlen("+1.0 MiB in 1 blocks: cache\n+512 B in 1 blocks: batch\n"),
        cdp_mem_compare(a, b, &more, text, sizeof text));
    T_EQ(MIB + 512, more);
    T_TEXT("+1.0 MiB in 1 blocks: cache\n+512 B in 1 blocks: batch\n", text);
    const uint64_t whole = cdp_mem_compare(b, a, NULL, NULL, 0);
    T_EQ(whole, cdp_mem_compare(b, a, &more, little, sizeof little)); /* though it is cut */
    T_EQ(-(int64_t)MIB - 512, more);
    T_TEXT("-1.0 MiB in -1 bloc", little);
    T_EQ(0, cdp_mem_compare(a, a, &more, text, sizeof text));
    T_EQ(0, more);
    T_EQ(0, text[0]);
    T_EQ(0, cdp_mem_compare(NULL, a, &more, text, sizeof text));
    cdp_mem_shot_free(a);
    cdp_mem_shot_free(b);
    OK(cdp_mem_free(w.mem, p));
    OK(cdp_mem_free(w.mem, q));
    OK(cdp_mem_free(w.mem, r));
    world_end(&w);
}

TEST(frames_can_be_named_later) {
    world w;
    cdp_mem_shot *s = full_shot(&w), *t;
    const cdp_mem_frame *f;
    written a = {NULL, 0, 0, 0};
    const cdp_mem_segment *g;
    cdp_mem_segments(s, &g);
    uint32_t of = 0;
    for (uint32_t i = 0; i < g[0].block_count && !of; ++i)
        of = g[0].blocks[i].stack;
    OK(cdp_mem_frame_set(s, of, 0, "train.c", "forward", 33));
    FAILS(CDP_ERR_INVALID, "no frame 500", cdp_mem_frame_set(s, 1, 500, "", "", 0));
    FAILS(CDP_ERR_INVALID, "no frame", cdp_mem_frame_set(s, 9999999, 0, "", "", 0));
    OK(cdp_mem_write(s, CDP_MEM_PICKLE, written_sink, &a));
    OK(cdp_mem_read(a.at, a.bytes, NULL, &t));
    bool found = false;
    for (uint32_t i = 1; i < 400; ++i)
        found = found || (has_frame(t, i, "forward") && cdp_mem_frames(t, i, &f) && f->line == 33);
    T(found);
    const char *path;
    uint64_t base;
    T(cdp_mem_module(t, 0, &path, &base) && base > 0 && path[0] == '/');
    T(!cdp_mem_module(t, 10000, &path, &base));
    cdp_mem_shot_free(s);
    cdp_mem_shot_free(t);
    free(a.at);
    full_end(&w);
}

TEST(several_devices) {
    const cdp_mem_record_desc d = recording(CDP_MEM_CONTEXT_NONE, CDP_MEM_STACKS_SITE);
    world a, b;
    cdp_mem_shot *s;
    const cdp_mem_segment *g;
    const cdp_mem_event *e;
    void *p, *q;
    world_begin(&a, &d);
    world_begin(&b, &d);
    b.mem->desc.device = 3;
    cdp_mem *const both[2] = {a.mem, b.mem};
    OK(cdp_mem_alloc(a.mem, 1, NULL, &p));
    OK(cdp_mem_alloc(b.mem, MIB + 1, NULL, &q));
    OK(cdp_mem_snapshot(both, 2, false, &s));
    T_EQ(2, cdp_mem_segments(s, &g));
    T_EQ(4, cdp_mem_devices(s));
    T(g[0].device == 0 && g[1].device == 3 && g[1].blocks[0].requested == MIB + 1);
    T_EQ(2, cdp_mem_events(s, 3, &e));
    T_EQ(0, cdp_mem_events(s, 1, &e));
    T_EQ(0, cdp_mem_events(s, 9, &e));
    cdp_mem_shot_free(s);
    OK(cdp_mem_snapshot(both, 2, true, &s));
    T_EQ(0, cdp_mem_events(s, 0, &e));
    cdp_mem_shot_free(s);
    OK(cdp_mem_free(a.mem, p));
    OK(cdp_mem_free(b.mem, q));
    world_end(&a);
    world_end(&b);
}

TEST(files_are_replaced_whole) {
    world w;
    const cdp_mem_record_desc d = recording(CDP_MEM_CONTEXT_NONE, CDP_MEM_STACKS_SITE);
    char path[64], beside[80];
    snprintf(path, sizeof path, "/tmp/cdp_test_mem_%d.pickle", (int)getpid());
    snprintf(beside, sizeof beside, "%s.tmp", path);
    world_begin(&w, &d);
    OK(cdp_mem_dump(w.mem, path));
    OK(cdp_mem_dump(w.mem, path));
    T(access(path, R_OK) == 0 && access(beside, R_OK) != 0);
    remove(path);
    FAILS(CDP_ERR_IO, "No such file", cdp_mem_dump(w.mem, "/nowhere/at/all"));
    FAILS(CDP_ERR_INVALID, "path is NULL", cdp_mem_dump(w.mem, NULL));
    FAILS(CDP_ERR_INVALID, "shot is NULL", cdp_mem_write_file(NULL, CDP_MEM_SVG, path));
    world_end(&w);
}

TEST(names_of_actions) {
    T_TEXT("free_requested", cdp_mem_action_name(CDP_MEM_FREE_REQUESTED));
    T_TEXT("annotate", cdp_mem_action_name(CDP_MEM_ANNOTATE));
    T_TEXT("?", cdp_mem_action_name(CDP_MEM_ACTION_COUNT));
}

/* A program's other parts allocate here through callbacks. */
TEST(callbacks) {
    const cdp_mem_record_desc d = recording(CDP_MEM_CONTEXT_NONE, CDP_MEM_STACKS_SITE);
    cdp_mem_source of;
    cdp_mem_desc md;
    cdp_mem_pool_desc pd;
    cdp_mem_pool *pool;
    cdp_mem *above;
    cdp_allocator a, b;
    const cdp_mem_segment *g;
    cdp_mem_shot *s;
    world w;
    void *p, *q;
    world_begin(&w, &d);
    memset(&pd, 0, sizeof pd);
    pd.fixed_bytes = 4 * MIB;
    OK(cdp_mem_pool_create(w.mem, &pd, &pool));
    a = cdp_mem_allocator(w.mem);
    b = cdp_mem_pool_allocator(pool);
    p = a.alloc(a.user, 1000, NULL, "ddp bucket 3");
    q = b.alloc(b.user, 1000, NULL, "group scratch");
    T(p && q);
    T(b.alloc(b.user, 5 * MIB, NULL, NULL) == NULL);
    s = shot_of(&w);
    T_EQ(2, cdp_mem_segments(s, &g));
    T_TEXT("group scratch", g[0].blocks[0].label);
    T_TEXT("ddp bucket 3", g[1].blocks[0].label);
    cdp_mem_shot_free(s);
    a.release(a.user, p);
    b.release(b.user, q);
    FAILS(CDP_ERR_INVALID, "from is NULL", cdp_mem_source_of(NULL, NULL, &of));
    OK(cdp_mem_source_of(&a, NULL, &of)); /* an allocator on top of another one */
    memset(&md, 0, sizeof md);
    md.source = &of;
    OK(cdp_mem_create(&md, &above));
    OK(cdp_mem_alloc(above, 1000, NULL, &p));
    s = shot_of(&w);
    cdp_mem_segments(s, &g);
    T_EQ(3, cdp_mem_segments(s, &g));
    T_TEXT("segment", g[2].blocks[0].label);
    cdp_mem_shot_free(s);
    OK(cdp_mem_free(above, p));
    T_EQ(0, cdp_mem_destroy(above));
    world_end(&w);
}

TEST(host_memory) {
    cdp_mem_source host;
    cdp_mem_desc d;
    cdp_mem *m;
    void *p, *q;
    OK(cdp_mem_source_host(NULL, 30 * MIB, &host));
    memset(&d, 0, sizeof d);
    d.source = &host;
    OK(cdp_mem_create(&d, &m));
    OK(cdp_mem_alloc(m, 3 * MIB, NULL, &p));
    memset(p, 1, 3 * MIB);
    FAILS(CDP_ERR_NOMEM, "host: the device has 10.0 MiB free of 30.0 MiB",
        cdp_mem_alloc(m, 20 * MIB, NULL, &q));
    OK(cdp_mem_free(m, p));
    OK(cdp_mem_alloc(m, 24 * MIB, NULL, &q)); /* the cached segment goes back for it */
    memset(q, 1, 24 * MIB);
    OK(cdp_mem_free(m, q));
    T_EQ(0, cdp_mem_destroy(m));
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"events_in_their_order", events_in_their_order, 20},
        {"ring_is_bounded_and_counted", ring_is_bounded_and_counted, 20},
        {"contexts", contexts, 20}, {"stacks_begin_at_the_caller", stacks_begin_at_the_caller, 20},
        {"labels_nest", labels_nest, 20},
        {"small_events_are_left_out", small_events_are_left_out, 20},
        {"memory_of_others", memory_of_others, 20},
        {"all_events_of_another_allocator", all_events_of_another_allocator, 60},
        {"pages_come_and_go_one_by_one", pages_come_and_go_one_by_one, 20},
        {"events_that_do_not_fit", events_that_do_not_fit, 60},
        {"an_allocator_that_is_not_ours", an_allocator_that_is_not_ours, 20},
        {"the_smallest_file", the_smallest_file, 20}, {"files_of_python", files_of_python, 20},
        {"unknown_keys_survive", unknown_keys_survive, 20},
        {"what_is_repeated_too_often_is_left_out", what_is_repeated_too_often_is_left_out, 20},
        {"bad_files_are_refused", bad_files_are_refused, 20},
        {"both_forms_and_back", both_forms_and_back, 20}, {"pictures", pictures, 20},
        {"files_tell_the_largest_block_that_is_split", files_tell_the_largest_block_that_is_split,
            20},
        {"a_block_that_stays_is_a_box", a_block_that_stays_is_a_box, 20}, {"reports", reports, 20},
        {"reports_list_ten_and_count_the_others", reports_list_ten_and_count_the_others, 20},
        {"pictures_say_how_long_it_took", pictures_say_how_long_it_took, 20},
        {"writing_gives_all_memory_back", writing_gives_all_memory_back, 20},
        {"what_grew", what_grew, 20}, {"frames_can_be_named_later", frames_can_be_named_later, 20},
        {"several_devices", several_devices, 20},
        {"files_are_replaced_whole", files_are_replaced_whole, 20},
        {"names_of_actions", names_of_actions, 20}, {"callbacks", callbacks, 20},
        {"host_memory", host_memory, 20}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
