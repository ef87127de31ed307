/* cdp_mem.h: memory that is there is found before a request fails. */
#define CDP_IMPLEMENTATION
#include "cdp_mem.h"
#include "source.h"

#include <unistd.h>

#define MIB (1ull << 20)
#define GIB (1ull << 30)

static cdp_mem *open_mem(fake *f, const cdp_mem_desc *desc) {
    cdp_mem_source source = fake_source(f);
    cdp_mem_desc d = *desc;
    cdp_mem *m = NULL;
    f->numbers = true;
    d.source = &source;
    OK(cdp_mem_create(&d, &m));
    return m;
}

static void *get(cdp_mem *m, cdp_mem_pool *pool, uint64_t bytes) {
    void *p = NULL;
    OK(cdp_mem_alloc_at(m, pool, bytes, NULL, NULL, &p));
    return p;
}

/* Leaves a free block of `size` bytes beside one that stays, in a segment of their own. */
static void *leave_hole(cdp_mem *m, uint64_t size, uint64_t whole, void **pin) {
    void *hole;
    OK(cdp_mem_free(m, get(m, NULL, whole)));
    hole = get(m, NULL, size);
    *pin = get(m, NULL, whole - size);
    return hole;
}

/* Twelve free blocks of one list; the one that fits was freed first, so it is the last. */
static void the_last_of_a_list(const cdp_mem_desc *desc, uint64_t most, uint64_t bytes) {
    fake f = {.numbers = true};
    cdp_mem *const m = open_mem(&f, desc);
    void *hole[12], *pin[12], *x = NULL;
    for (int i = 0; i < 12; ++i)
        hole[i] = leave_hole(m, most - (uint64_t)i * 1024, 42 * MIB, &pin[i]);
    for (int i = 0; i < 12; ++i)
        OK(cdp_mem_free(m, hole[i]));
    f.limit = f.held; /* the device is full */
    OK(cdp_mem_alloc(m, bytes, NULL, &x));
    T(x == hole[0]);
    T_WELL(m);
    OK(cdp_mem_free(m, x));
    for (int i = 0; i < 12; ++i)
        OK(cdp_mem_free(m, pin[i]));
    cdp_mem_destroy(m);
}

TEST(the_search_is_exact_before_it_fails) {
    the_last_of_a_list(&(cdp_mem_desc){0}, 30 * MIB + 400 * 1024, 30 * MIB + 399 * 1024 + 1);
    the_last_of_a_list(
        &(cdp_mem_desc){.coarse_bins = true}, 30 * MIB + 400 * 1024, 30 * MIB + 399 * 1024 + 1);
    the_last_of_a_list(&(cdp_mem_desc){.max_split_bytes = 50 * MIB}, 30 * MIB + 400 * 1024,
        30 * MIB + 399 * 1024 + 1);
}

/* A block that has room but may not be used hides one that may: the rule for oversize blocks
   comes after the search. */
TEST(a_block_that_does_not_suit_hides_none) {
    const uint64_t whole = 40 * MIB, fits = 32 * MIB + 600 * 1024, over = 32 * MIB + 900 * 1024;
    fake f = {.numbers = true};
    cdp_mem *const m = open_mem(&f,
        &(cdp_mem_desc){.max_split_bytes = 32 * MIB + 700 * 1024, .large_segment_bytes = whole});
    void *pin[10], *hole[10], *x = NULL;
    for (int i = 0; i < 10; ++i) {
        pin[i] = get(m, NULL, whole - (i ? over : fits)); /* leaves a free block behind it */
        hole[i] = get(m, NULL, i ? over : fits);
        T((char *)hole[i] == (char *)pin[i] + whole - (i ? over : fits));
    }
    for (int i = 0; i < 10; ++i)
        OK(cdp_mem_free(m, hole[i]));
    f.limit = f.held;
    OK(cdp_mem_alloc(m, fits - 100 * 1024, NULL, &x));
    T(x == hole[0]);
    OK(cdp_mem_free(m, x));
    for (int i = 0; i < 10; ++i)
        OK(cdp_mem_free(m, pin[i]));
    cdp_mem_destroy(m);
}

/* A fixed pool has nothing but its segment: the same holds there. */
TEST(a_fixed_pool_is_searched_to_the_end) {
    fake f = {.numbers = true};
    cdp_mem *const m = open_mem(&f, &(cdp_mem_desc){0});
    cdp_mem_pool *pool = NULL;
    void *hole[12], *pin[12], *x = NULL;
    OK(cdp_mem_pool_create(m, &(cdp_mem_pool_desc){.fixed_bytes = 12 * 32 * MIB}, &pool));
    for (int i = 0; i < 12; ++i) {
        const uint64_t size = 30 * MIB + 400 * 1024 - (uint64_t)i * 1024;
        hole[i] = get(m, pool, size);
        pin[i] = get(m, pool, 32 * MIB - size);
    }
    for (int i = 0; i < 12; ++i)
        OK(cdp_mem_free(m, hole[i]));
    OK(cdp_mem_alloc_at(m, pool, 30 * MIB + 399 * 1024 + 1, NULL, NULL, &x));
    T(x == hole[0]);
    OK(cdp_mem_free(m, x));
    for (int i = 0; i < 12; ++i)
        OK(cdp_mem_free(m, pin[i]));
    OK(cdp_mem_pool_destroy(pool));
    cdp_mem_destroy(m);
}

/* 60 of 80 GiB lie idle in a private pool: it can serve a larger request itself, the ordinary
   pool gets them, and trim gives them back. */
TEST(idle_pools_give_their_segments_back) {
    fake f = {.limit = 80 * GIB};
    cdp_mem *const m = open_mem(&f, &(cdp_mem_desc){0});
    cdp_mem_pool *pool = NULL, *other = NULL;
    OK(cdp_mem_pool_create(m, &(cdp_mem_pool_desc){.label = "pool"}, &pool));
    OK(cdp_mem_pool_create(m, &(cdp_mem_pool_desc){.label = "other"}, &other));
    OK(cdp_mem_free(m, get(m, pool, 60 * GIB)));
    OK(cdp_mem_free(m, get(m, pool, 70 * GIB)));
    T_EQ(70 * GIB, f.held);
    OK(cdp_mem_free(m, get(m, other, 60 * GIB)));
    T_EQ(60 * GIB, f.held);
    OK(cdp_mem_free(m, get(m, NULL, 70 * GIB)));
    T_EQ(70 * GIB, f.held);
    OK(cdp_mem_free(m, get(m, pool, 75 * GIB)));
    T_EQ(75 * GIB, cdp_mem_trim(m));
    T_EQ(0, f.held);
    T_WELL(m);
    cdp_mem_destroy(m);
}

/* A limit is met like a full device; a fixed pool is made of what lay idle. */
TEST(idle_pools_give_way_to_a_limit) {
    fake f = {.limit = 0};
    cdp_mem *const m = open_mem(&f, &(cdp_mem_desc){.limit_bytes = 80 * MIB});
    cdp_mem_pool *pool = NULL, *fixed = NULL;
    OK(cdp_mem_pool_create(m, &(cdp_mem_pool_desc){.label = "pool"}, &pool));
    OK(cdp_mem_free(m, get(m, pool, 60 * MIB)));
    OK(cdp_mem_pool_create(m, &(cdp_mem_pool_desc){.fixed_bytes = 50 * MIB}, &fixed));
    T_EQ(50 * MIB, f.held);
    cdp_mem_set_limit(m, 0);
    f.limit = 110 * MIB;
    OK(cdp_mem_free(m, get(m, pool, 60 * MIB)));
    OK(cdp_mem_pool_destroy(fixed));
    OK(cdp_mem_pool_create(m, &(cdp_mem_pool_desc){.fixed_bytes = 100 * MIB}, &fixed));
    T_EQ(100 * MIB, f.held);
    cdp_mem_destroy(m);
}

/* Addresses that a graph may use, and those of a pool that keeps its own, stay until somebody
   asks for them. */
TEST(pools_of_graphs_keep_their_addresses) {
    fake f = {.limit = 100 * MIB};
    cdp_mem *const m = open_mem(&f, &(cdp_mem_desc){0});
    cdp_mem_pool *graph = NULL, *kept = NULL;
    void *p = NULL, *q = NULL;
    OK(cdp_mem_pool_create(m, &(cdp_mem_pool_desc){.label = "graph"}, &graph));
    OK(cdp_mem_pool_create(m, &(cdp_mem_pool_desc){.label = "kept", .keep = true}, &kept));
    f.streams[1].captured = true;
    OK(cdp_mem_alloc_at(m, graph, 30 * MIB, fake_handle(1), NULL, &p));
    OK(cdp_mem_free(m, p));
    f.streams[1].captured = false;
    OK(cdp_mem_free(m, get(m, kept, 30 * MIB)));
    FAILS(CDP_ERR_NOMEM, "no 50.0 MiB", cdp_mem_alloc(m, 50 * MIB, NULL, &q));
    T_EQ(0, cdp_mem_trim(m));
    T_EQ(30 * MIB, cdp_mem_pool_trim(graph)); /* it lives on */
    OK(cdp_mem_alloc(m, 50 * MIB, NULL, &q));
    OK(cdp_mem_free(m, q));
    T_EQ(50 * MIB, cdp_mem_trim(m));
    p = get(m, kept, 8 * MIB);
    T_EQ(0, cdp_mem_pool_trim(kept)); /* not completely free */
    OK(cdp_mem_free(m, p));
    T_EQ(30 * MIB, cdp_mem_pool_trim(kept));
    T_EQ(0, cdp_mem_pool_trim(NULL));
    T_EQ(0, f.held);
    p = get(m, graph, 8 * MIB);
    OK(cdp_mem_free(m, p));
    T_WELL(m);
    cdp_mem_destroy(m);
}

/* Two segments make up the round; the older of them is the later one in the list. */
TEST(collection_takes_whole_rounds) {
    fake f = {.limit = 0};
    cdp_mem *const m = open_mem(&f, &(cdp_mem_desc){.limit_bytes = 200 * MIB, .gc_threshold = 0.5});
    void *p[4], *q;
    OK(cdp_mem_free(m, get(m, NULL, 1000))); /* the segment of the small requests below */
    for (int i = 0; i < 4; ++i)
        p[i] = get(m, NULL, 30 * MIB);
    OK(cdp_mem_free(m, p[1])); /* the oldest */
    for (int i = 0; i < 4; ++i)
        OK(cdp_mem_free(m, get(m, NULL, 1000)));
    OK(cdp_mem_free(m, p[0])); /* younger, and older than the mean; first in the list */
    for (int i = 0; i < 4; ++i)
        OK(cdp_mem_free(m, get(m, NULL, 1000)));
    OK(cdp_mem_free(m, p[2]));
    OK(cdp_mem_free(m, p[3]));
    q = get(m, NULL, 40 * MIB);
    /* 122 of at most 100 MiB were held: the round has p[0] and p[1], the older one included */
    T_EQ(2, f.releases);
    T(!cdp_mem_usable(m, p[1]));
    T_EQ(122 * MIB - 60 * MIB + 40 * MIB, f.held);
    T(get(m, NULL, 30 * MIB) != p[1]);
    OK(cdp_mem_free(m, q));
    cdp_mem_destroy(m);
}

/* An address means nothing in the next run: the error says the module and the place in it. */
TEST(an_error_names_the_module) {
    fake f = {.limit = 100 * MIB};
    cdp_mem *const m = open_mem(&f, &(cdp_mem_desc){.record = {.history = CDP_MEM_HISTORY_STATE}});
    void *const p = get(m, NULL, 60 * MIB);
    void *q = NULL;
    T_EQ(CDP_ERR_NOMEM, cdp_mem_alloc(m, 80 * MIB, NULL, &q));
    if (access("/proc/self/maps", R_OK) == 0)
        T_TEXT("most is held by code at test_mem_search+0x", cdp_last_error()->text);
    OK(cdp_mem_free(m, p));
    cdp_mem_destroy(m);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"the_search_is_exact_before_it_fails", the_search_is_exact_before_it_fails, 10},
        {"a_block_that_does_not_suit_hides_none", a_block_that_does_not_suit_hides_none, 10},
        {"a_fixed_pool_is_searched_to_the_end", a_fixed_pool_is_searched_to_the_end, 10},
        {"idle_pools_give_their_segments_back", idle_pools_give_their_segments_back, 10},
        {"idle_pools_give_way_to_a_limit", idle_pools_give_way_to_a_limit, 10},
        {"pools_of_graphs_keep_their_addresses", pools_of_graphs_keep_their_addresses, 10},
        {"an_error_names_the_module", an_error_names_the_module, 10},
        {"collection_takes_whole_rounds", collection_takes_whole_rounds, 10},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
