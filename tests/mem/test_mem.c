/* cdp_mem.h: sizes, bins, ring, depot, the allocator by its rules, recording, files, pictures. */
#define CDP_IMPLEMENTATION
#include "cdp_mem.h"
#include "source.h"
#include "viewer.h"

#include <math.h>

#define MIB (1ull << 20)

/* ---- pure parts ---- */

static cdp__mem_sizes usual(void) {
    cdp__mem_sizes s;
    memset(&s, 0, sizeof s);
    s.max_split = UINT64_MAX;
    s.max_non_split_rounding = CDP__MEM_REQUEST_MAX;
    s.large_segment = 20 * MIB;
    return s;
}

TEST(sizes_are_rounded) {
    cdp__mem_sizes s = usual();
    T_EQ(512, cdp__mem_round(&s, 1));
    T_EQ(512, cdp__mem_round(&s, 512));
    T_EQ(1024, cdp__mem_round(&s, 513));
    T_EQ(MIB, cdp__mem_round(&s, MIB));
    T_EQ(MIB + 512, cdp__mem_round(&s, MIB + 1));
    T(!cdp__mem_is_large(MIB));
    T(cdp__mem_is_large(MIB + 512));
    T_EQ(2 * MIB, cdp__mem_segment_size(&s, MIB));
    T_EQ(20 * MIB, cdp__mem_segment_size(&s, MIB + 512));
    T_EQ(20 * MIB, cdp__mem_segment_size(&s, 10 * MIB - 512));
    T_EQ(10 * MIB, cdp__mem_segment_size(&s, 10 * MIB));
    T_EQ(12 * MIB, cdp__mem_segment_size(&s, 10 * MIB + 512));
    s.divisions[0] = 4;
    s.divided = true;
    T_EQ(2560, cdp__mem_round(&s, 2050)); /* not 1200: 512 * 4 is the least */
    T_EQ(2048, cdp__mem_round(&s, 2048));
    T_EQ(1536, cdp__mem_round(&s, 1200));
    T_EQ(3072, cdp__mem_round(&s, 2561));
    T_EQ(4096, cdp__mem_round(&s, 3585));
    T_EQ(0, cdp__mem_interval(1));
    T_EQ(0, cdp__mem_interval(2 * MIB - 1));
    T_EQ(1, cdp__mem_interval(2 * MIB));
    T_EQ(15, cdp__mem_interval(1ull << 50));
}

TEST(intervals_begin_at_powers_of_two) {
    for (uint32_t log = 21; log < 64; ++log) {
        const uint32_t at = log < 35 ? log - 20 : 15;
        T_EQ(at, cdp__mem_interval(1ull << log));
        T_EQ(log < 36 ? at - 1 : 15, cdp__mem_interval((1ull << log) - 1));
    }
}

TEST(sizes_split_and_suit) {
    cdp__mem_sizes s = usual();
    T(cdp__mem_splits(&s, false, 512, 1024));
    T(!cdp__mem_splits(&s, false, 1024, 1024));
    T(!cdp__mem_splits(&s, true, 2 * MIB, 3 * MIB));
    T(cdp__mem_splits(&s, true, 2 * MIB, 3 * MIB + 512));
    s.max_split = 32 * MIB;
    s.max_non_split_rounding = 20 * MIB;
    T(!cdp__mem_splits(&s, true, 32 * MIB, 64 * MIB));
    T(!cdp__mem_suits(&s, 2 * MIB, 32 * MIB));
    T(cdp__mem_suits(&s, 2 * MIB, 32 * MIB - 512));
    T(!cdp__mem_suits(&s, 40 * MIB, 60 * MIB));
    T(cdp__mem_suits(&s, 40 * MIB, 60 * MIB - 512));
}

/* Against a search of everything. */
TEST(bins_find_the_best) {
    static cdp__mem_part parts[600];
    for (int coarse = 0; coarse < 2; ++coarse) {
        cdp__mem_bins *const b = (cdp__mem_bins *)calloc(1, cdp__mem_bins_bytes(coarse));
        uint64_t random = 5;
        bool in[600] = {false};
        b->coarse = coarse;
        b->count = coarse ? CDP__MEM_COARSE_BINS : CDP__MEM_BINS;
        for (int turn = 0; turn < 40000; ++turn) {
            const uint32_t i = (uint32_t)(test_random(&random) % 600);
            if (in[i])
                cdp__mem_bins_take(b, &parts[i]);
            else {
                parts[i].size = 512 * (1 + test_random(&random) % (i % 5 ? 4096 : 400000));
                cdp__mem_bins_put(b, &parts[i]);
            }
            in[i] = !in[i];
            const uint64_t want = 512 * (1 + test_random(&random) % (turn % 3 ? 4096 : 400000));
            uint64_t best = UINT64_MAX;
            uint32_t list;
            for (int k = 0; k < 600; ++k)
                if (in[k] && parts[k].size >= want && parts[k].size < best) best = parts[k].size;
            const cdp__mem_part *const all = cdp__mem_bins_best(b, want, UINT64_MAX, &list);
            const cdp__mem_part *const got =
                cdp__mem_bins_best(b, want, CDP__MEM_QUICK_SEARCH, &list);
            T_EQ(best, all ? all->size : UINT64_MAX);
            T(!got || all);
            if (!got) continue;
            T_EQ(cdp__mem_bin_of(coarse, got->size), list);
            T(got->size >= want);
            if (!coarse && best <= 2 * MIB)
                T_EQ(best, got->size);
            else
                T(got->size <= best + best / 16); /* of the same list, or of the next one */
        }
        free(b);
    }
}

TEST(bins_cover_every_size) {
    uint32_t last = 0;
    for (uint64_t size = 512; size < 1ull << 52;
         size += size < 8 * MIB ? 512 : size / 70 / 512 * 512) {
        const uint32_t i = cdp__mem_bin_of(false, size);
        T(i < CDP__MEM_BINS && i >= last && i <= last + 1);
        T(cdp__mem_bin_of(true, size) < CDP__MEM_COARSE_BINS);
        last = i;
    }
    T_EQ(CDP__MEM_BINS - 1, last);
}

TEST(table_against_a_list) {
    enum {
        N = 700
    };
    static cdp__mem_part parts[N];
    cdp__mem_part *slots[2048] = {NULL};
    cdp__mem_table t = {slots, 2047, 0, 64 - 11};
    bool in[N] = {false};
    uint64_t random = 9;
    for (int i = 0; i < N; ++i)
        parts[i].at = 512 * (test_random(&random) % 100000 * N + (uint64_t)i);
    for (int turn = 0; turn < 100000; ++turn) {
        const uint32_t i = (uint32_t)(test_random(&random) % N);
        if (in[i])
            cdp__mem_table_take(&t, &parts[i]);
        else
            cdp__mem_table_put(&t, &parts[i]);
        in[i] = !in[i];
        const uint32_t k = (uint32_t)(test_random(&random) % N);
        T(cdp__mem_table_find(&t, parts[k].at) == (in[k] ? &parts[k] : NULL));
    }
}

TEST(ring_keeps_the_last) {
    cdp__mem_record at[5], out[5];
    cdp__mem_ring r = {at, 5, 0, 0};
    for (uint64_t i = 1; i <= 13; ++i) {
        cdp__mem_ring_push(&r)->size = i;
        const uint32_t n = cdp__mem_ring_count(&r);
        T_EQ(i < 5 ? i : 5, n);
        T_EQ(i < 5 ? 0 : i - 5, cdp__mem_ring_lost(&r));
        cdp__mem_ring_copy(&r, out);
        for (uint32_t k = 0; k < n; ++k)
            T_EQ(i - n + 1 + k, out[k].size);
    }
}

TEST(depot_shares_and_fills) {
    cdp__mem_row rows[4];
    uint64_t words[40];
    uint32_t slots[16];
    cdp__mem_depot d = {rows, words, slots, 0, 4, 0, 40, 15, 0};
    cdp__mem_trace t;
    cdp__mem_depot_clear(&d);
    t.count = 0;
    T_EQ(0, cdp__mem_depot_number(&d, t.words, t.count));
    for (uint64_t i = 0; i < 3; ++i) {
        t.count = 2;
        t.words[0] = 7;
        t.words[1] = i;
        T_EQ(2 + i, cdp__mem_depot_number(&d, t.words, t.count));
        T_EQ(2 + i, cdp__mem_depot_number(&d, t.words, t.count));
    }
    t.words[1] = 99;
    T_EQ(1, cdp__mem_depot_number(&d, t.words, t.count));
    T_EQ(1, d.lost);
    t.words[1] = 1;
    T_EQ(3, cdp__mem_depot_number(&d, t.words, t.count));
}

TEST(labels_share_and_come_back) {
    cdp__mem_labels l;
    uint32_t first[1000], carried[1000];
    char text[32];
    memset(&l, 0, sizeof l);
    T_EQ(0, cdp__mem_labels_number(&l, 1, "nothing is recorded"));
    l.os = cdp_os_default();
    T_EQ(0, cdp__mem_labels_number(&l, cdp__mem_text_hash(""), ""));
    for (uint32_t turn = 0; turn < 2; ++turn)
        for (uint32_t i = 0; i < 1000; ++i) {
            snprintf(text, sizeof text, "label %u", i);
            const uint32_t n = cdp__mem_labels_number(&l, cdp__mem_text_hash(text), text);
            if (turn) T_EQ(first[i], n);
            if (!turn) carried[i] = 0;
            if (!turn) cdp__mem_label_set(&l, &carried[i], n);
            first[i] = n;
        }
    T_EQ(1000, l.used);
    for (uint32_t i = 0; i < 1000; ++i) /* all but 100 are gone */
        if (i % 10) cdp__mem_label_set(&l, &carried[i], 0);
    for (uint32_t i = 0; i < 100000; ++i) {
        uint32_t place = 0;
        snprintf(text, sizeof text, "step %u", i);
        cdp__mem_label_set(&l, &place, cdp__mem_labels_number(&l, cdp__mem_text_hash(text), text));
        T_TEXT(text, l.at[place - 1].text);
        cdp__mem_label_set(&l, &place, 0);
    }
    T_EQ(1024, l.room);
    for (uint32_t i = 0; i < 1000; i += 10) {
        snprintf(text, sizeof text, "label %u", i);
        T_EQ(first[i], cdp__mem_labels_number(&l, cdp__mem_text_hash(text), text));
    }
    T_EQ(0, l.lost);
    cdp__mem_labels_close(&l);
}

TEST(sites_share_and_fill) {
    cdp__mem_sites l;
    void *const memory = calloc(1, CDP__MEM_SITES_ALL);
    char text[32];
    cdp__mem_sites_at(&l, memory);
    for (uint32_t i = 1; i < CDP__MEM_SITES; ++i) {
        const uint64_t hash = cdp__mem_mix(3, i);
        snprintf(text, sizeof text, "file\n%u\nmain", i);
        T_EQ(i, cdp__mem_sites_add(&l, hash, text, cdp__mem_sites_slot(&l, hash)));
        T_EQ(i, l.slots[cdp__mem_sites_slot(&l, hash)]);
    }
    T_EQ(0, l.lost);
    T_EQ(CDP__MEM_SITES, cdp__mem_sites_add(&l, 1, "f\n1\nmain", cdp__mem_sites_slot(&l, 1)));
    T_EQ(1, l.lost);
    free(memory);
}

/* ---- the bytes of a pickle ---- */

static void pickled(written *w, void (*func)(cdp__mem_output *w)) {
    static cdp__mem_output pen;
    memset(&pen, 0, sizeof pen);
    w->bytes = 0;
    cdp__mem_output_open(&pen, written_sink, w);
    func(&pen);
    cdp__mem_output_flush(&pen.text);
}

static int64_t pickle_this;
static void pickle_number(cdp__mem_output *w) {
    cdp__mem_pickle_number(w, pickle_this);
}
static void pickle_half(cdp__mem_output *w) {
    cdp__mem_pickle_real(w, 0.5);
}

TEST(pickle_numbers_byte_by_byte) {
    static const struct {
        int64_t value;
        const char *bytes;
        size_t count;
    } rows[] = {{0, "\x4b\x00", 2}, {255, "\x4b\xff", 2}, {256, "\x4d\x00\x01", 3},
        {65535, "\x4d\xff\xff", 3}, {65536, "\x4a\x00\x00\x01\x00", 5},
        {-1, "\x4a\xff\xff\xff\xff", 5}, {INT32_MAX, "\x4a\xff\xff\xff\x7f", 5},
        {1ll << 31, "\x8a\x05\x00\x00\x00\x80\x00", 7},
        {0x7f064c000000, "\x8a\x06\x00\x00\x00\x4c\x06\x7f", 8},
        {-(1ll << 31) - 1, "\x8a\x05\xff\xff\xff\x7f\xff", 7},
        {1ll << 53, "\x8a\x07\x00\x00\x00\x00\x00\x00\x20", 9},
        {INT64_MAX, "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", 10}};
    written w = {NULL, 0, 0, 0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        pickle_this = rows[i].value;
        pickled(&w, pickle_number);
        test_check(w.bytes == rows[i].count && memcmp(w.at, rows[i].bytes, w.bytes) == 0, __FILE__,
            __LINE__, "%lld is written otherwise", (long long)rows[i].value);
    }
    pickled(&w, pickle_half);
    T(w.bytes == 9 && memcmp(w.at, "\x47\x3f\xe0\x00\x00\x00\x00\x00\x00", 9) == 0);
    free(w.at);
}

static const char *utf8_this;
static void put_utf8(cdp__mem_output *w) {
    cdp__mem_put_utf8(w, utf8_this, strlen(utf8_this));
}

TEST(bad_utf8_is_replaced) {
    static const char *const rows[][2] = {{"abc", "abc"}, {"\xc3\xa4", "\xc3\xa4"},
        {"\xe2\x82\xac!", "\xe2\x82\xac!"}, {"\xf0\x9f\x99\x82", "\xf0\x9f\x99\x82"}, {"\xc3", "?"},
        {"\xff\xfe", "??"}, {"\xc0\x80", "??"}, {"\xed\xa0\x80", "???"}, {"\xe2\x82", "??"},
        {"\xf5\x80\x80\x80", "????"}, {"a\x80z", "a?z"}};
    written w = {NULL, 0, 0, 0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        utf8_this = rows[i][0];
        pickled(&w, put_utf8);
        test_check(w.bytes == strlen(rows[i][1]) && memcmp(w.at, rows[i][1], w.bytes) == 0,
            __FILE__, __LINE__, "row %zu: %s", i, w.at);
    }
    free(w.at);
}

/* ---- the allocator ---- */

typedef struct world {
    fake f;
    cdp_mem_source source;
    cdp_mem_desc desc;
    cdp_mem *mem;
} world;

static void world_begin(world *w, void (*change)(cdp_mem_desc *d, fake *f)) {
    memset(w, 0, sizeof *w);
    w->f.limit = 1ull << 30;
    w->source = fake_source(&w->f);
    w->desc.source = &w->source;
    w->desc.timeout_ms = 200;
    w->desc.record.history = CDP_MEM_HISTORY_ALL;
    w->desc.record.stacks = CDP_MEM_STACKS_SITE;
    if (change) change(&w->desc, &w->f);
    OK(cdp_mem_create(&w->desc, &w->mem));
}

/* What was written is what the viewer reads, and what is read back. */
static void file_is_right(cdp_mem *m, bool whole) {
    cdp_mem_shot *shot, *again;
    written a = {NULL, 0, 0, 0}, b = {NULL, 0, 0, 0};
    viewer_file v;
    const char *wrong;
    if (!OK(cdp_mem_snapshot(&m, 1, false, &shot))) return;
    OK(cdp_mem_write(shot, CDP_MEM_PICKLE, written_sink, &a));
    wrong = viewer_open(&v, a.at, a.bytes);
    if (!wrong) wrong = viewer_replay(&v, 0, whole);
    test_check(!wrong, __FILE__, __LINE__, "the viewer would fail: %s", wrong ? wrong : "");
    viewer_close(&v);
    if (OK(cdp_mem_read(a.at, a.bytes, NULL, &again))) {
        OK(cdp_mem_write(again, CDP_MEM_PICKLE, written_sink, &b));
        T(a.bytes == b.bytes && memcmp(a.at, b.at, a.bytes) == 0);
        cdp_mem_shot_free(again);
    }
    cdp_mem_shot_free(shot);
    free(a.at);
    free(b.at);
}

static void world_end(world *w) {
    T_WELL(w->mem);
    file_is_right(w->mem, true);
    T_EQ(0, cdp_mem_destroy(w->mem));
    T_EQ(0, w->f.held);
    T_EQ(0, w->f.events);
    T_EQ(1, w->f.destroyed);
}

static cdp_mem_stats stats_of(const world *w) {
    cdp_mem_stats s;
    s = cdp_mem_stats_of(w->mem);
    return s;
}

TEST(memory_comes_and_goes) {
    static const uint64_t sizes[] = {1, 1000, MIB, MIB + 1, 30 * MIB};
    world w;
    void *p[5], *q;
    world_begin(&w, NULL);
    for (int i = 0; i < 5; ++i) {
        OK(cdp_mem_alloc(w.mem, sizes[i], NULL, &p[i]));
        T((uintptr_t)p[i] % 512 == 0);
        memset(p[i], i + 1, sizes[i]);
        T_WELL(w.mem);
    }
    cdp_mem_stats s = stats_of(&w);
    T_EQ(5, s.allocation[0].current);
    T_EQ(3, s.allocation[1].current);
    T_EQ(512 + 1024 + MIB + MIB + 512 + 30 * MIB, s.allocated_bytes[0].current);
    T_EQ(1 + 1000 + MIB + MIB + 1 + 30 * MIB, s.requested_bytes[0].current);
    T_EQ(2 * MIB + 20 * MIB + 30 * MIB, s.reserved_bytes[0].current);
    T_EQ(1024, cdp_mem_usable(w.mem, p[1]));
    T_EQ(0, cdp_mem_usable(w.mem, (char *)p[1] + 1));
    OK(cdp_mem_alloc(w.mem, 0, NULL, &q));
    T(q == NULL);
    OK(cdp_mem_free(w.mem, NULL));
    OK(cdp_mem_free(w.mem, p[1]));
    OK(cdp_mem_alloc(w.mem, 900, NULL, &q));
    T(q == p[1]);
    for (int i = 0; i < 5; ++i)
        OK(cdp_mem_free(w.mem, p[i]));
    T_WELL(w.mem);
    T_EQ(52 * MIB, cdp_mem_trim(w.mem));
    T_EQ(0, cdp_mem_trim(w.mem));
    cdp_mem_reset(w.mem, true, true);
    s = stats_of(&w);
    T_EQ(0, s.allocated_bytes[0].peak);
    T_EQ(0, s.allocation[0].allocated);
    T_EQ(0, s.oversize_segments.allocated);
    world_end(&w);
}

TEST(mistakes_are_one_sentence) {
    world w;
    void *p, *q;
    cdp_mem_pool *pool;
    cdp_mem_pool_desc pd;
    memset(&pd, 0, sizeof pd);
    world_begin(&w, NULL);
    OK(cdp_mem_alloc(w.mem, 100, NULL, &p));
    OK(cdp_mem_alloc(w.mem, 100, NULL, &q));
    FAILS(CDP_ERR_INVALID, "no block of this allocator", cdp_mem_free(w.mem, &w));
    FAILS(CDP_ERR_INVALID, "no block of this allocator", cdp_mem_free(w.mem, (char *)p + 8));
    OK(cdp_mem_free(w.mem, p));
    FAILS(CDP_ERR_INVALID, "freed already", cdp_mem_free(w.mem, p));
    FAILS(CDP_ERR_INVALID, "freed already", cdp_mem_record_stream(w.mem, p, fake_handle(1)));
    OK(cdp_mem_record_stream(w.mem, q, fake_handle(1)));
    fake_work(&w.f, 1);
    w.f.streams[1].gone = true; /* a stream that was destroyed */
    FAILS(CDP_ERR_IO, "invalid resource handle", cdp_mem_free(w.mem, q));
    T_EQ(512, cdp_mem_usable(w.mem, q));
    T_WELL(w.mem);
    w.f.streams[1].gone = false;
    OK(cdp_mem_free(w.mem, q));
    FAILS(CDP_ERR_INVALID, "waits for the streams", cdp_mem_free(w.mem, q));
    T_WELL(w.mem);
    fake_pass(&w.f, 1);
    FAILS(CDP_ERR_NOMEM, "negative", cdp_mem_alloc(w.mem, (uint64_t)-5, NULL, &p));
    pd.fixed_bytes = 1000;
    FAILS(CDP_ERR_INVALID, "multiple of 512", cdp_mem_pool_create(w.mem, &pd, &pool));
    FAILS(CDP_ERR_STATE, "source", cdp_mem_note_alloc(w.mem, &w, 4, NULL));
    FAILS(CDP_ERR_STATE, "source", cdp_mem_note_free(w.mem, &w));
    world_end(&w);
}

/* What a caller can see of an allocator, to compare. */
typedef struct state {
    cdp_mem_stats stats;
    uint64_t hash, events, usable;
} state;

static state state_of(const world *w, const cdp_mem_pool *pool, const void *block) {
    state s;
    memset(&s, 0, sizeof s);
    s.stats = stats_of(w);
    s.hash = cdp_mem_pool_hash(pool);
    s.usable = cdp_mem_usable(w->mem, block);
    s.events = w->mem->log.ring.total;
    T_WELL(w->mem);
    return s;
}

#define UNCHANGED(status, part, call)                    \
    do {                                                 \
        const state before = state_of(&w, pool, p);      \
        FAILS((status), (part), (call));                 \
        const state after = state_of(&w, pool, p);       \
        T(memcmp(&before, &after, sizeof before) == 0);  \
        T(strchr(cdp_last_error()->text, '\n') == NULL); \
    } while (0)

TEST(a_mistake_changes_nothing) {
    world w, other;
    void *p, *freed, *q;
    cdp_mem_pool *pool, *foreign;
    cdp_mem_pool_desc pd;
    memset(&pd, 0, sizeof pd);
    world_begin(&w, NULL);
    world_begin(&other, NULL);
    OK(cdp_mem_pool_create(w.mem, &pd, &pool));
    OK(cdp_mem_pool_create(other.mem, &pd, &foreign));
    OK(cdp_mem_alloc_at(w.mem, pool, 3000, fake_handle(1), NULL, &p));
    OK(cdp_mem_alloc_at(w.mem, pool, 3000, fake_handle(1), NULL, &freed));
    OK(cdp_mem_free(w.mem, freed));
    UNCHANGED(CDP_ERR_INVALID, "freed already", cdp_mem_free(w.mem, freed));
    UNCHANGED(CDP_ERR_INVALID, "of another one", cdp_mem_free(w.mem, &w));
    UNCHANGED(CDP_ERR_INVALID, "not the start", cdp_mem_free(w.mem, (char *)p + 512));
    UNCHANGED(CDP_ERR_INVALID, "another allocator's",
        cdp_mem_alloc_at(w.mem, foreign, 10, NULL, NULL, &q));
    UNCHANGED(CDP_ERR_STATE, "are in use", cdp_mem_pool_destroy(pool));
    OK(cdp_mem_record_stream(w.mem, p, fake_handle(2)));
    fake_work(&w.f, 2);
    w.f.streams[2].gone = true;
    UNCHANGED(CDP_ERR_IO, "invalid resource handle", cdp_mem_free(w.mem, p));
    w.f.streams[2].gone = false;
    OK(cdp_mem_free(w.mem, p));
    UNCHANGED(CDP_ERR_INVALID, "waits for the streams", cdp_mem_free(w.mem, p));
    fake_pass(&w.f, 2);
    OK(cdp_mem_pool_destroy(pool));
    OK(cdp_mem_pool_destroy(foreign));
    world_end(&w);
    world_end(&other);
}

TEST(unknown_devices) {
    world w;
    cdp_mem_desc d;
    cdp_mem *m;
    memset(&d, 0, sizeof d);
    d.recorder_only = true;
    d.device = 1024;
    FAILS(CDP_ERR_INVALID, "device 1024 is above 1023", cdp_mem_create(&d, &m));
    d.device = 1023;
    OK(cdp_mem_create(&d, &m));
    T_EQ(0, cdp_mem_destroy(m));
    memset(&w, 0, sizeof w);
    w.source = fake_source(&w.f);
    w.source.device = 5000;
    d.recorder_only = false;
    d.source = &w.source;
    FAILS(CDP_ERR_INVALID, "device 5000 is above 1023", cdp_mem_create(&d, &m));
    T_EQ(1, w.f.destroyed);
}

TEST(descs_are_checked) {
    fake f;
    cdp_mem_source s;
    cdp_mem_desc d;
    cdp_mem *m;
    uint32_t divisions[16] = {3};
    memset(&f, 0, sizeof f);
    s = fake_source(&f);
    memset(&d, 0, sizeof d);
    d.source = &s;
    d.max_split_bytes = 2 * MIB;
    FAILS(CDP_ERR_INVALID, "20 MiB", cdp_mem_create(&d, &m));
    d.max_split_bytes = 0;
    d.gc_threshold = 1.2;
    FAILS(CDP_ERR_INVALID, "gc_threshold", cdp_mem_create(&d, &m));
    d.gc_threshold = (double)NAN;
    FAILS(CDP_ERR_INVALID, "gc_threshold", cdp_mem_create(&d, &m));
    d.gc_threshold = 0;
    d.roundup_divisions = divisions;
    FAILS(CDP_ERR_INVALID, "power of two", cdp_mem_create(&d, &m));
    d.roundup_divisions = NULL;
    d.large_segment_bytes = 11 * MIB;
    FAILS(CDP_ERR_INVALID, "large_segment", cdp_mem_create(&d, &m));
    d.large_segment_bytes = 0;
    d.record.history = CDP_MEM_HISTORY_ALL;
    d.record.skip = 1u << CDP_MEM_SEGMENT_ALLOC;
    FAILS(CDP_ERR_INVALID, "replayed", cdp_mem_create(&d, &m));
    d.record.skip = 0;
    d.record.max_frames = 65;
    FAILS(CDP_ERR_INVALID, "max_frames", cdp_mem_create(&d, &m));
    d.record.max_frames = 0;
    s.event_query = NULL;
    FAILS(CDP_ERR_INVALID, "all four", cdp_mem_create(&d, &m));
    s = fake_source(&f);
    d.recorder_only = true;
    FAILS(CDP_ERR_INVALID, "no source", cdp_mem_create(&d, &m));
    T_EQ(9, f.destroyed); /* a source is taken over by every try */
    FAILS(CDP_ERR_INVALID, "is NULL", cdp_mem_create(NULL, &m));
    T(m == NULL);
}

TEST(settings_of_pytorch) {
    uint32_t div[16];
    cdp_mem_desc d;
    memset(&d, 0, sizeof d);
    OK(cdp_mem_settings_read("max_split_size_mb:128,garbage_collection_threshold:0.8, "
                             "roundup_power2_divisions:[2:1,8:2,>:4]",
        div, &d));
    T_EQ(128 * MIB, d.max_split_bytes);
    T(d.gc_threshold > 0.7999 && d.gc_threshold < 0.8001);
    T(d.roundup_divisions == div && div[0] == 1 && div[1] == 1 && div[2] == 2 && div[3] == 2
        && div[4] == 4 && div[15] == 4);
    OK(cdp_mem_settings_read(
        "roundup_power2_divisions:8,large_segment_size_mb:32,max_non_split_rounding_mb:7", div,
        &d));
    T(div[0] == 8 && div[15] == 8 && d.large_segment_bytes == 32 * MIB
        && d.max_non_split_rounding_bytes == 7 * MIB);
    static const char *const bad[] = {"nonsense:1", "max_split_size_mb:2", "max_split_size_mb",
        "garbage_collection_threshold:1.2",
        "garbage_collection_threshold:", "roundup_power2_divisions:3",
        "roundup_power2_divisions:[256:1", "roundup_power2_divisions:[3:1]",
        "max_split_size_mb:128;x", "roundup_power2_divisions:[>:4]x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
        cdp_mem_desc e;
        memset(&e, 0, sizeof e);
        test_check(cdp_mem_settings_read(bad[i], div, &e) == CDP_ERR_INVALID, __FILE__, __LINE__,
            "%s was taken", bad[i]);
        T(e.max_split_bytes == 0 && e.roundup_divisions == NULL);
    }
    OK(cdp_mem_settings_read("", div, &d));
}

TEST(streams_are_waited_for) {
    world w;
    void *p, *q, *again;
    world_begin(&w, NULL);
    OK(cdp_mem_alloc(w.mem, 1000, fake_handle(1), &p));
    OK(cdp_mem_record_stream(w.mem, p, fake_handle(1))); /* its own: ignored */
    OK(cdp_mem_record_stream(w.mem, p, fake_handle(2)));
    OK(cdp_mem_record_stream(w.mem, p, fake_handle(2)));
    OK(cdp_mem_record_stream(w.mem, p, fake_handle(3)));
    fake_work(&w.f, 2);
    fake_work(&w.f, 3);
    OK(cdp_mem_free(w.mem, p));
    T_EQ(2, w.f.events);
    T_EQ(0, cdp_mem_usable(w.mem, p));
    cdp_mem_stats s = stats_of(&w);
    T_EQ(0, s.allocation[0].current);
    T_EQ(1, s.active[0].current);
    T_WELL(w.mem);
    OK(cdp_mem_alloc(w.mem, 1000, fake_handle(1), &q));
    T(q != p);
    fake_pass(&w.f, 2);
    OK(cdp_mem_free(w.mem, q));
    OK(cdp_mem_alloc(w.mem, 1000, fake_handle(1), &q));
    T(q != p); /* the second of two streams */
    fake_pass(&w.f, 3);
    OK(cdp_mem_alloc(w.mem, 1000, fake_handle(1), &again));
    T(again == p);
    OK(cdp_mem_free(w.mem, again));
    OK(cdp_mem_free(w.mem, q));
    OK(cdp_mem_alloc(w.mem, 1000, fake_handle(2), &q));
    T(q != p); /* blocks never change their stream */
    OK(cdp_mem_free(w.mem, q));
    world_end(&w);
}

static void stat_is(const cdp_mem_stat *s, uint64_t current, uint64_t peak, uint64_t sum) {
    T_EQ(current, s->current);
    T_EQ(peak, s->peak);
    T_EQ(sum, s->allocated);
    T_EQ(sum - current, s->freed);
}

TEST(peaks_count_blocks_that_wait) {
    world w;
    void *p, *q;
    world_begin(&w, NULL);
    OK(cdp_mem_alloc(w.mem, 4096, NULL, &p));
    OK(cdp_mem_record_stream(w.mem, p, fake_handle(2)));
    fake_work(&w.f, 2);
    OK(cdp_mem_free(w.mem, p)); /* waits */
    OK(cdp_mem_alloc(w.mem, 2048, NULL, &q));
    cdp_mem_stats s = stats_of(&w);
    stat_is(&s.active_bytes[0], 6144, 6144, 6144);
    stat_is(&s.allocated_bytes[0], 2048, 4096, 6144);
    fake_pass(&w.f, 2);
    OK(cdp_mem_free(w.mem, q));
    OK(cdp_mem_alloc(w.mem, 3 * MIB, NULL, &q)); /* more than before, and nothing waits */
    s = stats_of(&w);
    stat_is(&s.active[0], 1, 2, 3);
    stat_is(&s.active_bytes[0], 3 * MIB, 3 * MIB, 3 * MIB + 6144);
    stat_is(&s.active_bytes[1], 0, 6144, 6144);
    OK(cdp_mem_free(w.mem, q));
    T(cdp_mem_trim(w.mem) > 0);
    cdp_mem_reset(w.mem, true, true);
    s = stats_of(&w);
    stat_is(&s.active_bytes[0], 0, 0, 0);
    OK(cdp_mem_alloc(w.mem, 512, NULL, &q));
    s = stats_of(&w);
    stat_is(&s.active_bytes[0], 512, 512, 512);
    OK(cdp_mem_free(w.mem, q));
    world_end(&w);
}

/* Free pieces are counted by what one call changes in all, as PyTorch counts them. */
TEST(pieces_are_counted_once) {
    world w;
    void *p[3];
    world_begin(&w, NULL);
    for (int i = 0; i < 3; ++i)
        OK(cdp_mem_alloc(w.mem, 512, NULL, &p[i]));
    cdp_mem_stats s = stats_of(&w);
    stat_is(&s.inactive_split[0], 1, 1, 1); /* the rest shrank twice */
    stat_is(&s.inactive_split_bytes[0], 2 * MIB - 1536, 2 * MIB - 512, 2 * MIB - 512);
    OK(cdp_mem_free(w.mem, p[0])); /* a second piece */
    s = stats_of(&w);
    stat_is(&s.inactive_split[0], 2, 2, 2);
    OK(cdp_mem_free(w.mem, p[1])); /* joins it */
    s = stats_of(&w);
    stat_is(&s.inactive_split[0], 2, 2, 2);
    stat_is(&s.inactive_split_bytes[0], 2 * MIB - 512, 2 * MIB - 512, 2 * MIB + 512);
    OK(cdp_mem_free(w.mem, p[2])); /* the segment is whole */
    s = stats_of(&w);
    stat_is(&s.inactive_split[0], 0, 2, 2);
    stat_is(&s.inactive_split_bytes[0], 0, 2 * MIB - 512, 2 * MIB + 512);
    world_end(&w);
}

TEST(a_stream_can_be_forgotten) {
    world w;
    void *p, *q;
    world_begin(&w, NULL);
    OK(cdp_mem_alloc(w.mem, 1000, fake_handle(1), &p));
    OK(cdp_mem_alloc(w.mem, 1000, fake_handle(2), &q));
    OK(cdp_mem_record_stream(w.mem, p, fake_handle(2)));
    FAILS(CDP_ERR_INVALID, "still in use", cdp_mem_forget_stream(w.mem, fake_handle(2)));
    OK(cdp_mem_free(w.mem, q));
    OK(cdp_mem_forget_stream(w.mem, fake_handle(2)));
    w.f.streams[2].gone = true;
    T_EQ(2 * MIB, w.f.held); /* that of stream 2 is back */
    OK(cdp_mem_free(w.mem, p));
    T_EQ(0, stats_of(&w).active[0].current);
    world_end(&w);
}

static void small_device(cdp_mem_desc *d, fake *f) {
    (void)d;
    f->limit = 64 * MIB;
}

static int oom_seen;
static bool oom_frees(void *user, cdp_mem *mem, const cdp_mem_oom *oom) {
    void **const p = (void **)user;
    cdp_mem_shot *shot;
    ++oom_seen;
    T(oom->bytes >= 30 * MIB && oom->held_bytes <= 64 * MIB);
    OK(cdp_mem_snapshot(&mem, 1, false, &shot)); /* allowed here */
    cdp_mem_shot_free(shot);
    if (!*p) return false;
    OK(cdp_mem_free(mem, *p));
    *p = NULL;
    return true;
}

TEST(out_of_memory_is_explained) {
    world w;
    void *p, *q, *r;
    world_begin(&w, small_device);
    cdp_mem_label("weights");
    OK(cdp_mem_alloc(w.mem, 40 * MIB, NULL, &p));
    cdp_mem_label(NULL);
    OK(cdp_mem_alloc(w.mem, 5000, NULL, &q));
    FAILS(CDP_ERR_NOMEM, "no 30.0 MiB for stream 0x0 on fake:0",
        cdp_mem_alloc(w.mem, 30 * MIB, NULL, &r));
    T_TEXT("has 22.0 MiB free of 64.0 MiB", cdp_last_error()->text);
    T_TEXT("held here 42.0 MiB", cdp_last_error()->text);
    T_TEXT("cached in pieces of at most", cdp_last_error()->text);
    T_TEXT("fragmented", cdp_last_error()->text);
    T_TEXT("most is held by \"weights\": 40.0 MiB in 1 blocks", cdp_last_error()->text);
    T(r == NULL);
    T_EQ(1, stats_of(&w).ooms);
    T_WELL(w.mem);
    oom_seen = 0;
    r = NULL;
    cdp_mem_on_oom(w.mem, oom_frees, &r); /* nothing to free: asked once */
    FAILS(CDP_ERR_NOMEM, "no 31.0 MiB", cdp_mem_alloc(w.mem, 31 * MIB, NULL, &r));
    T_EQ(1, oom_seen);
    r = p;
    void *s;
    cdp_mem_on_oom(w.mem, oom_frees, &r);
    OK(cdp_mem_alloc(w.mem, 50 * MIB, NULL, &s));
    T_EQ(2, oom_seen);
    cdp_mem_on_oom(w.mem, NULL, NULL);
    OK(cdp_mem_alloc(w.mem, 5000, NULL, &p)); /* small ones still fit */
    OK(cdp_mem_free(w.mem, p));
    OK(cdp_mem_free(w.mem, q));
    OK(cdp_mem_free(w.mem, s));
    world_end(&w);
}

static char oom_path[100];

static void with_dump(cdp_mem_desc *d, fake *f) {
    f->limit = 64 * MIB;
    d->dump_path = oom_path;
}

TEST(out_of_memory_is_dumped) {
    world w;
    void *p;
    FILE *file;
    static char bytes[1 << 20];
    size_t n;
    cdp_mem_shot *shot;
    const cdp_mem_event *e;
    snprintf(oom_path, sizeof oom_path, "/tmp/cdp_test_mem_oom.%d.pickle", (int)getpid());
    world_begin(&w, with_dump);
    FAILS(CDP_ERR_NOMEM, "no 80.0 MiB", cdp_mem_alloc(w.mem, 80 * MIB, NULL, &p));
    file = fopen(oom_path, "rb");
    if (!T(file != NULL)) return;
    n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    remove(oom_path);
    OK(cdp_mem_read(bytes, n, NULL, &shot));
    n = cdp_mem_events(shot, 0, &e);
    T(n >= 1 && e[n - 1].action == CDP_MEM_OOM && e[n - 1].size == 80 * MIB
        && e[n - 1].device_free == 64 * MIB);
    cdp_mem_shot_free(shot);
    FAILS(CDP_ERR_NOMEM, "no 80.0 MiB", cdp_mem_alloc(w.mem, 80 * MIB, NULL, &p));
    T(fopen(oom_path, "rb") == NULL); /* the first failure alone */
    world_end(&w);
}

TEST(pending_frees_come_back_on_need) {
    world w;
    void *p, *q;
    world_begin(&w, small_device);
    OK(cdp_mem_alloc(w.mem, 60 * MIB, fake_handle(1), &p));
    OK(cdp_mem_record_stream(w.mem, p, fake_handle(2)));
    fake_work(&w.f, 2);
    OK(cdp_mem_free(w.mem, p));
    FAILS(CDP_ERR_TIMEOUT, "1 events of freed blocks on fake:0 have not passed after 200 ms",
        cdp_mem_alloc(w.mem, 60 * MIB, NULL, &q));
    T_WELL(w.mem);
    fake_pass(&w.f, 2);
    OK(cdp_mem_alloc(w.mem, 60 * MIB, NULL, &q));
    OK(cdp_mem_free(w.mem, q));
    world_end(&w);
}

static void limited(cdp_mem_desc *d, fake *f) {
    (void)f;
    d->limit_bytes = 100 * MIB;
    d->gc_threshold = 0.5;
}

TEST(limits_and_collection) {
    world w;
    void *p[8], *q;
    world_begin(&w, limited);
    for (int i = 0; i < 4; ++i)
        OK(cdp_mem_alloc(w.mem, (20 + (uint64_t)i) * MIB, NULL, &p[i]));
    FAILS(CDP_ERR_NOMEM, "limit 100.0 MiB", cdp_mem_alloc(w.mem, 40 * MIB, NULL, &q));
    T(stats_of(&w).oom_rejections >= 1);
    for (int i = 0; i < 4; ++i)
        OK(cdp_mem_free(w.mem, p[i]));
    T_EQ(88 * MIB, w.f.held); /* 20, 22, 22, 24 */
    const uint64_t retries = stats_of(&w).alloc_retries;
    for (int i = 0; i < 20; ++i) { /* the requests make the others old */
        OK(cdp_mem_alloc(w.mem, 20 * MIB, NULL, &q));
        OK(cdp_mem_free(w.mem, q));
    }
    OK(cdp_mem_alloc(w.mem, 30 * MIB, NULL, &q));
    T(w.f.held <= 50 * MIB + 30 * MIB); /* collected down to the threshold before the new one */
    T(w.f.held >= 20 * MIB + 30 * MIB); /* the one that was just used is young */
    T_EQ(retries, stats_of(&w).alloc_retries);
    cdp_mem_set_limit(w.mem, 0);
    OK(cdp_mem_alloc(w.mem, 300 * MIB, NULL, &p[0]));
    OK(cdp_mem_free(w.mem, p[0]));
    OK(cdp_mem_free(w.mem, q));
    world_end(&w);
}

static void oversize(cdp_mem_desc *d, fake *f) {
    f->limit = 110 * MIB;
    d->max_split_bytes = 32 * MIB;
}

TEST(oversize_blocks_stay_whole) {
    world w;
    void *p, *q;
    world_begin(&w, oversize);
    OK(cdp_mem_alloc(w.mem, 60 * MIB, NULL, &p));
    OK(cdp_mem_free(w.mem, p));
    OK(cdp_mem_alloc(w.mem, 2 * MIB, NULL, &q)); /* must not take a part of the large one */
    T_EQ(80 * MIB, w.f.held);
    OK(cdp_mem_free(w.mem, q));
    OK(cdp_mem_alloc(w.mem, 50 * MIB, NULL, &q)); /* fits with less than 20 MiB lost */
    T(q == p);
    T_EQ(1, stats_of(&w).oversize_allocations.current);
    OK(cdp_mem_free(w.mem, q));
    OK(cdp_mem_alloc(w.mem, 36 * MIB, NULL, &q)); /* the idle one is given back for it */
    T_EQ(0, stats_of(&w).alloc_retries);
    OK(cdp_mem_free(w.mem, q));
    world_end(&w);
}

static void uncached(cdp_mem_desc *d, fake *f) {
    (void)f;
    d->no_cache = true;
}

TEST(without_cache) {
    world w;
    void *p, *q;
    world_begin(&w, uncached);
    OK(cdp_mem_alloc(w.mem, 1000, NULL, &p));
    OK(cdp_mem_alloc(w.mem, 3 * MIB, NULL, &q));
    T_EQ(1024 + 3 * MIB, w.f.held);
    OK(cdp_mem_free(w.mem, p));
    T_EQ(3 * MIB, w.f.held);
    w.f.fail_at = 1;
    w.f.fail_with = CDP_ERR_IO;
    OK(cdp_mem_free(w.mem, q)); /* the source failed: it is kept, and given back later */
    T_EQ(3 * MIB, w.f.held);
    T_EQ(3 * MIB, cdp_mem_trim(w.mem));
    world_end(&w);
}

TEST(pools_keep_their_memory) {
    world w;
    cdp_mem_pool_desc d;
    cdp_mem_pool *pool, *fixed, *same;
    void *p, *q, *r, *s;
    memset(&d, 0, sizeof d);
    world_begin(&w, NULL);
    OK(cdp_mem_pool_create(w.mem, &d, &pool));
    OK(cdp_mem_alloc_at(w.mem, pool, 1000, NULL, CDP_MEM_HERE, &p));
    OK(cdp_mem_alloc(w.mem, 1000, NULL, &q));
    T_EQ(4 * MIB, w.f.held);
    FAILS(CDP_ERR_STATE, "1 blocks of pool 1", cdp_mem_pool_destroy(pool));
    OK(cdp_mem_free(w.mem, p));
    OK(cdp_mem_free(w.mem, q));
    T_EQ(4 * MIB, cdp_mem_trim(w.mem));
    OK(cdp_mem_pool_destroy(pool));
    T_EQ(0, w.f.held);
    OK(cdp_mem_pool_destroy(NULL));
    d.fixed_bytes = 8 * MIB;
    d.label = "communication";
    OK(cdp_mem_pool_create(w.mem, &d, &fixed));
    OK(cdp_mem_pool_create(w.mem, &d, &same));
    for (int i = 0; i < 2; ++i) {
        cdp_mem_pool *const of = i ? same : fixed;
        OK(cdp_mem_alloc_at(w.mem, of, 3 * MIB, fake_handle(1), NULL, &p));
        OK(cdp_mem_alloc_at(w.mem, of, 700, fake_handle((uint32_t)i), NULL, &q));
        OK(cdp_mem_record_stream(w.mem, q, fake_handle(2)));
        OK(cdp_mem_free(w.mem, p)); /* waits for nothing */
        OK(cdp_mem_alloc_at(w.mem, of, 2 * MIB, NULL, NULL, &r));
        T(r == p);
        T_EQ(3 * MIB, (char *)q - (char *)p);
        FAILS(CDP_ERR_NOMEM, "the pool is fixed at 8.0 MiB",
            cdp_mem_alloc_at(w.mem, of, 7 * MIB, NULL, NULL, &s));
        OK(cdp_mem_free(w.mem, q));
        OK(cdp_mem_free(w.mem, r));
    }
    T(cdp_mem_pool_hash(fixed) == cdp_mem_pool_hash(same) && cdp_mem_pool_hash(same) != 0);
    OK(cdp_mem_alloc_at(w.mem, same, 1, NULL, NULL, &p));
    T(cdp_mem_pool_hash(fixed) != cdp_mem_pool_hash(same));
    OK(cdp_mem_free(w.mem, p));
    T_WELL(w.mem);
    OK(cdp_mem_pool_destroy(same));
    world_end(&w); /* destroys the other one */
}

TEST(pools_as_a_last_resort) {
    world w;
    cdp_mem_pool_desc d;
    cdp_mem_pool *pool;
    void *p, *q;
    memset(&d, 0, sizeof d);
    d.use_on_oom = true;
    d.no_split = true;
    world_begin(&w, small_device);
    OK(cdp_mem_pool_create(w.mem, &d, &pool));
    OK(cdp_mem_alloc_at(w.mem, pool, 60 * MIB, NULL, NULL, &p));
    FAILS(CDP_ERR_NOMEM, "no 20.0 MiB", cdp_mem_alloc(w.mem, 20 * MIB, NULL, &q));
    OK(cdp_mem_free(w.mem, p));
    OK(cdp_mem_alloc(w.mem, 20 * MIB, NULL, &q));
    T(q == p && cdp_mem_usable(w.mem, q) == 60 * MIB); /* not split */
    OK(cdp_mem_free(w.mem, q));
    world_end(&w);
}

TEST(a_pool_with_its_own_source) {
    world w;
    fake other;
    cdp_mem_source source;
    cdp_mem_pool_desc d;
    cdp_mem_pool *pool;
    void *p, *q;
    memset(&other, 0, sizeof other);
    source = fake_source(&other);
    memset(&d, 0, sizeof d);
    d.source = &source;
    world_begin(&w, NULL);
    OK(cdp_mem_pool_create(w.mem, &d, &pool));
    for (int i = 0; i < 3; ++i) { /* events stay with the source that made them */
        OK(cdp_mem_alloc_at(w.mem, pool, 1000, fake_handle(1), NULL, &p));
        OK(cdp_mem_alloc(w.mem, 1000, fake_handle(1), &q));
        OK(cdp_mem_record_stream(w.mem, p, fake_handle(2)));
        OK(cdp_mem_record_stream(w.mem, q, fake_handle(2)));
        OK(cdp_mem_free(w.mem, p));
        OK(cdp_mem_free(w.mem, q));
        T_EQ(0, cdp_mem_trim(w.mem) % MIB);
    }
    OK(cdp_mem_alloc_at(w.mem, pool, 1000, NULL, NULL, &p));
    OK(cdp_mem_free(w.mem, p));
    T_EQ(2 * MIB, other.held);
    OK(cdp_mem_pool_destroy(pool));
    T_EQ(0, other.held);
    T_EQ(0, other.events);
    T_EQ(1, other.destroyed);
    world_end(&w);
}

TEST(captures_put_things_off) {
    world w;
    cdp_mem_pool_desc d;
    cdp_mem_pool *pool;
    void *p, *q;
    memset(&d, 0, sizeof d);
    world_begin(&w, NULL);
    OK(cdp_mem_pool_create(w.mem, &d, &pool));
    w.f.streams[1].captured = true;
    FAILS(CDP_ERR_STATE, "being captured", cdp_mem_alloc(w.mem, 1000, fake_handle(1), &p));
    OK(cdp_mem_alloc_at(w.mem, pool, 1000, fake_handle(1), NULL, &p));
    OK(cdp_mem_record_stream(w.mem, p, fake_handle(2)));
    fake_work(&w.f, 2);
    OK(cdp_mem_free(w.mem, p));
    T_EQ(0, w.f.events); /* no event in a graph */
    T_WELL(w.mem);
    OK(cdp_mem_alloc_at(w.mem, pool, 1000, fake_handle(1), NULL, &q));
    T(q != p);
    w.f.streams[1].captured = false;
    OK(cdp_mem_free(w.mem, q));
    OK(cdp_mem_alloc_at(w.mem, pool, 1000, fake_handle(1), NULL, &q));
    T_EQ(1, w.f.events); /* now it is recorded */
    fake_pass(&w.f, 2);
    OK(cdp_mem_free(w.mem, q));
    world_end(&w);
}

typedef struct heard {
    int come, gone;
    uint64_t bytes;
} heard;
static void hear(void *user, cdp_mem_action action, void *at, uint64_t bytes, cdp_mem_pool *pool) {
    heard *const h = (heard *)user;
    T(at != NULL && pool == NULL);
    if (action == CDP_MEM_SEGMENT_ALLOC)
        ++h->come;
    else
        ++h->gone;
    h->bytes += action == CDP_MEM_SEGMENT_ALLOC ? bytes : 0 - bytes;
}

TEST(watchers_hear_of_segments) {
    world w;
    void *p, *q;
    heard h[9];
    memset(h, 0, sizeof h);
    world_begin(&w, NULL);
    OK(cdp_mem_alloc(w.mem, 1000, NULL, &p));
    for (int i = 0; i < 8; ++i)
        OK(cdp_mem_watch(w.mem, hear, &h[i]));
    FAILS(CDP_ERR_INVALID, "8 watchers exist", cdp_mem_watch(w.mem, hear, &h[8]));
    T(h[0].come == 1 && h[0].bytes == 2 * MIB); /* those that are there already */
    OK(cdp_mem_alloc(w.mem, 30 * MIB, NULL, &q));
    T_EQ(2, h[0].come);
    cdp_mem_unwatch(w.mem, &h[1]);
    OK(cdp_mem_free(w.mem, q));
    cdp_mem_trim(w.mem);
    T(h[0].gone == 1 && h[0].bytes == 2 * MIB && h[1].gone == 0);
    OK(cdp_mem_free(w.mem, p));
    world_end(&w);
}

TEST(leaks_are_named) {
    fake f;
    cdp_mem_source s;
    cdp_mem_desc d;
    cdp_mem *m;
    void *p;
    memset(&f, 0, sizeof f);
    s = fake_source(&f);
    memset(&d, 0, sizeof d);
    d.source = &s;
    d.logger.level = CDP_LOG_SILENT;
    OK(cdp_mem_create(&d, &m));
    OK(cdp_mem_alloc(m, 3 * MIB, NULL, &p));
    T_EQ(3 * MIB, cdp_mem_destroy(m));
    T_EQ(20 * MIB, f.held); /* what is in use is not taken away */
    T_EQ(1, f.destroyed);
    free(p);
    T_EQ(0, cdp_mem_destroy(NULL));
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"sizes_are_rounded", sizes_are_rounded, 10},
        {"intervals_begin_at_powers_of_two", intervals_begin_at_powers_of_two, 10},
        {"sizes_split_and_suit", sizes_split_and_suit, 10},
        {"bins_find_the_best", bins_find_the_best, 30},
        {"bins_cover_every_size", bins_cover_every_size, 30},
        {"table_against_a_list", table_against_a_list, 30},
        {"ring_keeps_the_last", ring_keeps_the_last, 10},
        {"depot_shares_and_fills", depot_shares_and_fills, 10},
        {"labels_share_and_come_back", labels_share_and_come_back, 10},
        {"sites_share_and_fill", sites_share_and_fill, 10},
        {"pickle_numbers_byte_by_byte", pickle_numbers_byte_by_byte, 10},
        {"bad_utf8_is_replaced", bad_utf8_is_replaced, 10},
        {"memory_comes_and_goes", memory_comes_and_goes, 10},
        {"mistakes_are_one_sentence", mistakes_are_one_sentence, 10},
        {"a_mistake_changes_nothing", a_mistake_changes_nothing, 10},
        {"unknown_devices", unknown_devices, 10}, {"descs_are_checked", descs_are_checked, 10},
        {"settings_of_pytorch", settings_of_pytorch, 10},
        {"streams_are_waited_for", streams_are_waited_for, 10},
        {"peaks_count_blocks_that_wait", peaks_count_blocks_that_wait, 10},
        {"pieces_are_counted_once", pieces_are_counted_once, 10},
        {"a_stream_can_be_forgotten", a_stream_can_be_forgotten, 10},
        {"out_of_memory_is_explained", out_of_memory_is_explained, 10},
        {"out_of_memory_is_dumped", out_of_memory_is_dumped, 10},
        {"pending_frees_come_back_on_need", pending_frees_come_back_on_need, 10},
        {"limits_and_collection", limits_and_collection, 10},
        {"oversize_blocks_stay_whole", oversize_blocks_stay_whole, 10},
        {"without_cache", without_cache, 10},
        {"pools_keep_their_memory", pools_keep_their_memory, 10},
        {"pools_as_a_last_resort", pools_as_a_last_resort, 10},
        {"a_pool_with_its_own_source", a_pool_with_its_own_source, 10},
        {"captures_put_things_off", captures_put_things_off, 10},
        {"watchers_hear_of_segments", watchers_hear_of_segments, 10},
        {"leaks_are_named", leaks_are_named, 10}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
