/* cdp_mem.h: segments that grow by pages (desc.expandable), over a source that counts its pages and
   over the host. */
#define CDP_IMPLEMENTATION
#include "cdp_mem.h"
#include "source.h"
#include "viewer.h"

#define MIB (1ull << 20)

typedef struct world {
    fake f;
    cdp_mem *mem;
} world;

static void world_begin(world *w, uint64_t limit) {
    cdp_mem_source source;
    cdp_mem_desc d;
    memset(w, 0, sizeof *w);
    memset(&d, 0, sizeof d);
    w->f.numbers = true;
    w->f.limit = limit;
    w->f.fail_with = CDP_ERR_IO;
    source = fake_source(&w->f);
    d.source = &source;
    d.expandable = true;
    d.timeout_ms = 200;
    d.record.history = CDP_MEM_HISTORY_ALL;
    d.record.context = CDP_MEM_CONTEXT_NONE;
    d.logger.level = CDP_LOG_SILENT;
    OK(cdp_mem_create(&d, &w->mem));
}

static void world_end(world *w) {
    T_WELL(w->mem);
    T_EQ(0, cdp_mem_destroy(w->mem));
    T_EQ(0, w->f.held);
    T_EQ(0, w->f.range_count);
    T_EQ(0, w->f.events);
    T(!w->f.fault);
}

static uint32_t segments(const world *w) {
    uint32_t n = 0;
    for (const cdp__mem_span *s = w->mem->spans; s; s = s->next)
        ++n;
    return n;
}

static char *get(world *w, uint64_t bytes, uint32_t stream) {
    void *p;
    OK(cdp_mem_alloc(w->mem, bytes, fake_handle(stream), &p));
    T_WELL(w->mem);
    return (char *)p;
}

static void put(world *w, void *p) {
    OK(cdp_mem_free(w->mem, p));
    T_WELL(w->mem);
}

TEST(a_segment_grows_at_its_end) {
    world w;
    char *a, *b, *c;
    world_begin(&w, 0);
    a = get(&w, 3 * MIB, 0);
    T_EQ(4 * MIB, w.f.held);
    b = get(&w, 6 * MIB, 0); /* from the free MiB on */
    T(b == a + 3 * MIB);
    T_EQ(10 * MIB, w.f.held);
    T_EQ(2, w.f.maps);
    T_EQ(1, segments(&w));
    c = get(&w, 1000, 0); /* small ones have a range of their own */
    T_EQ(2, segments(&w));
    T_EQ(2, w.f.range_count);
    put(&w, a);
    put(&w, b);
    put(&w, c);
    T_EQ(12 * MIB, cdp_mem_trim(w.mem));
    T_EQ(0, segments(&w));
    world_end(&w);
}

/* Where ordinary segments fail: sizes that differ a little each time. */
TEST(freed_memory_serves_larger_requests) {
    world w;
    world_begin(&w, 0);
    for (uint64_t i = 0; i < 40; ++i) {
        char *const p = get(&w, (11 + i / 2) * MIB, 0), *const q = get(&w, (13 + i / 3) * MIB, 0);
        put(&w, p);
        put(&w, q);
    }
    T_EQ((11 + 39 / 2 + 13 + 39 / 3) * MIB, w.f.held); /* what the largest pair needs */
    T_EQ(1, segments(&w));
    world_end(&w);
}

TEST(pages_leave_the_middle_and_come_back) {
    world w;
    char *a, *b, *c;
    world_begin(&w, 0);
    a = get(&w, 5 * MIB, 0);
    b = get(&w, 6 * MIB, 0);
    c = get(&w, 5 * MIB, 0);
    T_EQ(16 * MIB, w.f.held);
    put(&w, b); /* from 5 to 11 MiB: two whole pages, from 6 to 10 */
    T_EQ(4 * MIB, cdp_mem_trim(w.mem));
    T_WELL(w.mem);
    T_EQ(2, segments(&w));
    T_EQ(12 * MIB, w.f.held);
    T_EQ(0, cdp_mem_trim(w.mem));
    T(get(&w, 6 * MIB, 0) == b); /* into the hole, with the free ends on both sides */
    T_EQ(16 * MIB, w.f.held);
    T_EQ(1, segments(&w));
    put(&w, b);
    put(&w, a);
    put(&w, c);
    world_end(&w);
}

/* Of two places, the one that needs fewer pages; segments between holes that are free count. */
TEST(the_place_with_the_fewest_pages_is_taken) {
    world w;
    char *p[5], *q;
    world_begin(&w, 0);
    for (int i = 0; i < 5; ++i)
        p[i] = get(&w, 4 * MIB, 0);
    put(&w, p[1]);
    T_EQ(4 * MIB, cdp_mem_trim(w.mem)); /* a hole of 4 MiB */
    put(&w, p[3]);
    T_EQ(4 * MIB, cdp_mem_trim(w.mem)); /* and one of 4 MiB, with p[2] between them */
    put(&w, p[2]);
    const uint64_t before = w.f.held;
    q = get(&w, 12 * MIB, 0); /* both holes and what lies between them: 8 MiB to map, not 12 */
    T(q == p[1]);
    T_EQ(before + 8 * MIB, w.f.held);
    T_EQ(1, segments(&w));
    put(&w, q);
    put(&w, p[0]);
    put(&w, p[4]);
    world_end(&w);
}

/* The end of a segment is left for requests that nothing else serves. */
TEST(the_end_serves_last) {
    world w;
    char *a, *b, *c, *d;
    world_begin(&w, 0);
    a = get(&w, 8 * MIB, 0);
    b = get(&w, 2 * MIB, 0);
    c = get(&w, 6 * MIB, 0);
    put(&w, a); /* 8 MiB inside */
    put(&w, c); /* 6 MiB at the end, which fit better */
    d = get(&w, 6 * MIB, 0);
    T(d == a);
    T(get(&w, 7 * MIB, 0) == c); /* 1 MiB more was enough: a page */
    T_EQ(18 * MIB, w.f.held);
    put(&w, c);
    put(&w, b);
    put(&w, d);
    world_end(&w);
}

/* Before a request fails, idle pages of all streams, size classes and pools are unmapped. */
TEST(idle_pages_of_all_pools_make_room) {
    const cdp_mem_pool_desc desc = {.label = "a pool"};
    cdp_mem_pool *pool;
    cdp_mem_stats s;
    world w;
    char *x, *tiny, *all;
    void *in_pool;
    world_begin(&w, 40 * MIB);
    OK(cdp_mem_pool_create(w.mem, &desc, &pool));
    x = get(&w, 11 * MIB, 1);
    tiny = get(&w, 5000, 2);
    OK(cdp_mem_alloc_at(w.mem, pool, 9 * MIB, fake_handle(3), CDP_MEM_HERE, &in_pool));
    put(&w, x);
    put(&w, in_pool);
    T_EQ(24 * MIB, w.f.held);
    all = get(&w, 38 * MIB, 4);
    T_EQ(40 * MIB, w.f.held); /* and the page that `tiny` is in */
    s = cdp_mem_stats_of(w.mem);
    T_EQ(1, s.alloc_retries);
    T_EQ(0, s.ooms);
    put(&w, all);
    put(&w, tiny);
    OK(cdp_mem_pool_destroy(pool));
    world_end(&w);
}

TEST(a_limit_counts_pages) {
    cdp_mem_stats s;
    world w;
    char *p;
    void *q;
    world_begin(&w, 0);
    cdp_mem_set_limit(w.mem, 10 * MIB);
    p = get(&w, 9 * MIB, 0);
    FAILS(CDP_ERR_NOMEM, "no 2.0 MiB", cdp_mem_alloc(w.mem, 2 * MIB, NULL, &q));
    T(!q);
    s = cdp_mem_stats_of(w.mem);
    T_EQ(10 * MIB, s.reserved_bytes[0].current);
    put(&w, p);
    p = get(&w, 10 * MIB, 5); /* of another stream */
    put(&w, p);
    world_end(&w);
}

/* The n-th call of the source fails, for each n and both kinds of errors. */
TEST(the_source_fails_everywhere) {
    for (int kind = 0; kind < 2; ++kind)
        for (uint64_t n = 1; n < 40; ++n) {
            const cdp_mem_pool_desc desc = {.label = "a pool"};
            cdp_mem_pool *pool = NULL;
            void *p[8] = {NULL};
            world w;
            world_begin(&w, 0);
            w.f.fail_at = n;
            w.f.fail_with = kind ? CDP_ERR_IO : CDP_ERR_NOMEM;
            OK(cdp_mem_pool_create(w.mem, &desc, &pool));
            for (int i = 0; i < 8; ++i) {
                cdp_mem_pool *const of = i == 5 ? pool : NULL;
                const uint64_t bytes = i == 3 ? 800 : (3 + (uint64_t)i) * MIB;
                const cdp_status st =
                    cdp_mem_alloc_at(w.mem, of, bytes, fake_handle(i % 2), CDP_MEM_HERE, &p[i]);
                T(st == CDP_OK ? p[i] != NULL : !p[i]);
                if (i % 3 == 2 && p[i - 1] && cdp_mem_free(w.mem, p[i - 1]) == CDP_OK)
                    p[i - 1] = NULL;
                if (i % 3 == 2) (void)cdp_mem_trim(w.mem);
                T_WELL(w.mem);
                T_EQ(w.mem->held, w.f.held);
            }
            w.f.fail_at = 0;
            for (int i = 0; i < 8; ++i)
                if (p[i]) put(&w, p[i]);
            OK(cdp_mem_pool_destroy(pool));
            world_end(&w);
        }
}

TEST(a_pool_is_emptied_while_it_lives) {
    const cdp_mem_pool_desc desc = {.label = "graph", .keep = true};
    cdp_mem_pool *pool;
    void *p, *q;
    world w;
    world_begin(&w, 0);
    OK(cdp_mem_pool_create(w.mem, &desc, &pool));
    OK(cdp_mem_alloc_at(w.mem, pool, 5 * MIB, NULL, CDP_MEM_HERE, &p));
    OK(cdp_mem_alloc_at(w.mem, pool, 5 * MIB, NULL, CDP_MEM_HERE, &q));
    OK(cdp_mem_free(w.mem, p));
    T_EQ(0, cdp_mem_trim(w.mem)); /* a pool with `keep` */
    T_EQ(4 * MIB, cdp_mem_pool_trim(pool));
    T_WELL(w.mem);
    OK(cdp_mem_free(w.mem, q));
    T_EQ(6 * MIB, cdp_mem_pool_trim(pool));
    T_EQ(0, w.f.held);
    OK(cdp_mem_alloc_at(w.mem, pool, 5 * MIB, NULL, CDP_MEM_HERE, &q));
    T(q == p); /* the addresses are still the pool's */
    OK(cdp_mem_free(w.mem, q));
    OK(cdp_mem_pool_destroy(pool));
    T_EQ(0, w.f.range_count);
    world_end(&w);
}

TEST(a_forgotten_stream_leaves_its_range) {
    world w;
    char *p;
    world_begin(&w, 0);
    p = get(&w, 5 * MIB, 3);
    put(&w, p);
    OK(cdp_mem_forget_stream(w.mem, fake_handle(3)));
    T_EQ(0, w.f.held);
    T_EQ(0, w.f.range_count);
    world_end(&w);
}

/* Fixed pools and those with no_split have ordinary segments. */
TEST(some_pools_do_not_grow) {
    const cdp_mem_pool_desc fixed = {.fixed_bytes = 4 * MIB}, whole = {.no_split = true};
    cdp_mem_pool *pool[2];
    void *p, *q;
    world w;
    world_begin(&w, 0);
    OK(cdp_mem_pool_create(w.mem, &fixed, &pool[0]));
    OK(cdp_mem_pool_create(w.mem, &whole, &pool[1]));
    OK(cdp_mem_alloc_at(w.mem, pool[0], 1000, NULL, CDP_MEM_HERE, &p));
    OK(cdp_mem_alloc_at(w.mem, pool[1], 3 * MIB, NULL, CDP_MEM_HERE, &q));
    T_EQ(0, w.f.maps);
    OK(cdp_mem_free(w.mem, p));
    OK(cdp_mem_free(w.mem, q));
    OK(cdp_mem_pool_destroy(pool[0]));
    OK(cdp_mem_pool_destroy(pool[1]));
    world_end(&w);
}

typedef struct heard {
    uint64_t bytes[CDP_MEM_ACTION_COUNT];
} heard;
static void hear(void *user, cdp_mem_action action, void *at, uint64_t bytes, cdp_mem_pool *pool) {
    (void)at;
    (void)pool;
    ((heard *)user)->bytes[action] += bytes;
}

TEST(watchers_hear_of_pages) {
    heard h = {{0}}, late = {{0}};
    world w;
    char *p;
    world_begin(&w, 0);
    OK(cdp_mem_watch(w.mem, hear, &h));
    p = get(&w, 5 * MIB, 0);
    OK(cdp_mem_watch(w.mem, hear, &late));
    T_EQ(6 * MIB, h.bytes[CDP_MEM_SEGMENT_MAP]);
    T_EQ(6 * MIB, late.bytes[CDP_MEM_SEGMENT_MAP]);
    put(&w, p);
    cdp_mem_trim(w.mem);
    T_EQ(6 * MIB, h.bytes[CDP_MEM_SEGMENT_UNMAP]);
    T_EQ(0, h.bytes[CDP_MEM_SEGMENT_ALLOC] + h.bytes[CDP_MEM_SEGMENT_FREE]);
    world_end(&w);
}

/* The file has what PyTorch writes, and its viewer can go back over it. */
TEST(a_snapshot_has_segments_that_grow) {
    static const cdp_mem_action expected[] = {CDP_MEM_SEGMENT_MAP, CDP_MEM_ALLOC,
        CDP_MEM_SEGMENT_MAP, CDP_MEM_ALLOC, CDP_MEM_FREE_REQUESTED, CDP_MEM_FREE_COMPLETED,
        CDP_MEM_SEGMENT_UNMAP};
    const cdp_mem_segment *g;
    const cdp_mem_event *e;
    written file = {NULL, 0, 0, 0};
    viewer_file v;
    cdp_mem_shot *shot;
    world w;
    char *a, *b;
    const char *bad;
    world_begin(&w, 0);
    a = get(&w, 3 * MIB, 0);
    b = get(&w, 8 * MIB, 0);
    put(&w, a);
    T_EQ(2 * MIB, cdp_mem_trim(w.mem));
    if (!OK(cdp_mem_snapshot(&w.mem, 1, false, &shot))) return;
    T_EQ(1, cdp_mem_segments(shot, &g));
    T(g[0].grows && g[0].large && g[0].block_count == 3);
    T(g[0].address == (uint64_t)(uintptr_t)a + 2 * MIB && g[0].size == 10 * MIB);
    T_EQ(7, cdp_mem_events(shot, 0, &e));
    for (int i = 0; i < 7; ++i)
        T_EQ(expected[i], e[i].action);
    T(e[0].size == 4 * MIB && e[2].size == 8 * MIB && e[6].size == 2 * MIB);
    T(e[2].address == (uint64_t)(uintptr_t)a + 4 * MIB && e[6].address == (uintptr_t)a);
    OK(cdp_mem_write(shot, CDP_MEM_JSON, written_sink, &file));
    T_TEXT("\"is_expandable\":true", file.at);
    T_TEXT("\"action\":\"segment_map\"", file.at);
    T_TEXT("\"action\":\"segment_unmap\"", file.at);
    T_TEXT("\"expandable_segments\":1", file.at);
    file.bytes = 0;
    OK(cdp_mem_write(shot, CDP_MEM_PICKLE, written_sink, &file));
    bad = viewer_open(&v, file.at, file.bytes);
    if (!bad) bad = viewer_replay(&v, 0, false);
    test_check(!bad, __FILE__, __LINE__, "%s", bad ? bad : "");
    viewer_close(&v);
    cdp_mem_shot_free(shot);
    free(file.at);
    put(&w, b);
    world_end(&w);
}

TEST(settings_and_what_goes_with_them) {
    uint32_t divisions[16];
    cdp_mem_source source;
    cdp_mem_desc d;
    cdp_mem *m;
    fake f;
    memset(&d, 0, sizeof d);
    memset(&f, 0, sizeof f);
    OK(cdp_mem_settings_read("expandable_segments:True", divisions, &d));
    T(d.expandable);
    FAILS(CDP_ERR_INVALID, "expandable_segments:yes",
        cdp_mem_settings_read("expandable_segments:yes", divisions, &d));
    OK(cdp_mem_settings_read("expandable_segments:False,max_split_size_mb:64", divisions, &d));
    T(!d.expandable);
    source = fake_source(&f);
    d.source = &source;
    d.expandable = true;
    FAILS(CDP_ERR_INVALID, "no max_split_bytes", cdp_mem_create(&d, &m));
    d.max_split_bytes = 0;
    source.unmap = NULL;
    FAILS(CDP_ERR_INVALID, "or none of them", cdp_mem_create(&d, &m));
    source.map = NULL;
    source.range_reserve = NULL;
    source.range_release = NULL;
    source.page_bytes = 0;
    FAILS(CDP_ERR_UNSUPPORTED, "fake:0 cannot map pages", cdp_mem_create(&d, &m));
    T(!m);
    T_EQ(3, f.destroyed);
}

/* Real memory: contents stay, what is unmapped is given back, and new pages are 0. */
TEST(pages_of_the_host) {
    const uint64_t limit = 64 * MIB;
    cdp_mem_source source;
    cdp_mem_desc d;
    uint64_t left, all;
    cdp_mem *m;
    void *a, *b, *c;
    memset(&d, 0, sizeof d);
    OK(cdp_mem_source_host(NULL, limit, &source));
    if (!source.map) {
        source.destroy(source.user);
        test_skip("this system has no pages");
        return;
    }
    d.source = &source;
    d.expandable = true;
    OK(cdp_mem_create(&d, &m));
    OK(cdp_mem_alloc(m, 9 * MIB, NULL, &a));
    memset(a, 1, 9 * MIB);
    OK(cdp_mem_alloc(m, 11 * MIB, NULL, &b));
    memset(b, 2, 11 * MIB);
    OK(cdp_mem_alloc(m, 2000, NULL, &c));
    memset(c, 3, 2000);
    OK(cdp_mem_free(m, a));
    T_EQ(8 * MIB, cdp_mem_trim(m));
    OK(source.info(source.user, &left, &all));
    T_EQ(limit - 14 * MIB, left);
    T(((char *)b)[0] == 2 && ((char *)b)[11 * MIB - 1] == 2 && ((char *)c)[1999] == 3);
    FAILS(CDP_ERR_NOMEM, "no 60.0 MiB", cdp_mem_alloc(m, 60 * MIB, NULL, &a));
    OK(cdp_mem_alloc(m, 9 * MIB, NULL, &a)); /* in the hole again */
    T(((char *)a)[0] == 0 && ((char *)a)[8 * MIB] == 1);
    memset(a, 4, 9 * MIB);
    OK(cdp_mem_alloc(m, 30 * MIB, NULL, &a));
    memset(a, 5, 30 * MIB);
    T_WELL(m);
    T_EQ(9 * MIB + 11 * MIB + 30 * MIB + 2048, cdp_mem_destroy(m));
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"a_segment_grows_at_its_end", a_segment_grows_at_its_end, 0},
        {"freed_memory_serves_larger_requests", freed_memory_serves_larger_requests, 0},
        {"pages_leave_the_middle_and_come_back", pages_leave_the_middle_and_come_back, 0},
        {"the_place_with_the_fewest_pages_is_taken", the_place_with_the_fewest_pages_is_taken, 0},
        {"the_end_serves_last", the_end_serves_last, 0},
        {"idle_pages_of_all_pools_make_room", idle_pages_of_all_pools_make_room, 0},
        {"a_limit_counts_pages", a_limit_counts_pages, 0},
        {"the_source_fails_everywhere", the_source_fails_everywhere, 0},
        {"a_pool_is_emptied_while_it_lives", a_pool_is_emptied_while_it_lives, 0},
        {"a_forgotten_stream_leaves_its_range", a_forgotten_stream_leaves_its_range, 0},
        {"some_pools_do_not_grow", some_pools_do_not_grow, 0},
        {"watchers_hear_of_pages", watchers_hear_of_pages, 0},
        {"a_snapshot_has_segments_that_grow", a_snapshot_has_segments_that_grow, 0},
        {"settings_and_what_goes_with_them", settings_and_what_goes_with_them, 0},
        {"pages_of_the_host", pages_of_the_host, 0}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
