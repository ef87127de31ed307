/* cdp_mem.h with several threads: four allocate, free blocks of each other, record streams, set
   labels and open scopes; another takes snapshots, changes the recording, watches levels, trims and
   reads statistics. Also built with ThreadSanitizer. */
#define CDP_IMPLEMENTATION
#include "cdp_mem.h"
#include "source.h"
#include "viewer.h"

#include <pthread.h>

#define MIB (1ull << 20)
#define WORKERS 4
#define SLOTS 64

static cdp_mem *mem;
static uint64_t
    *slots[SLOTS]; /* blocks that any thread may take and free; the first word is their size */
static int going;

static void work_of(uint64_t seed) {
    uint64_t random = seed;
    const int turns = TEST_SLOW ? 1500 : 100000;
    cdp_mem_scope scope;
    for (int i = 0; i < turns; ++i) {
        const uint64_t bytes =
            16 + test_random(&random) % (test_random(&random) % 10 ? 5000 : 2 * MIB);
        uint64_t **const slot = &slots[test_random(&random) % SLOTS], *p;
        void *at;
        if (i % 50 == 0) OK(cdp_mem_scope_begin(mem, &scope));
        if (i % 50 == 49) {
            OK(cdp_mem_scope_end(mem, &scope));
            T(scope.active_bytes.peak >= scope.allocated_bytes.peak
                && scope.allocated_bytes.peak >= scope.allocated_bytes.current
                && scope.reserved_bytes.peak >= scope.active_bytes.peak);
        }
        cdp_mem_label(i % 2 ? "worker" : "other");
        if (!OK(cdp_mem_alloc_at(mem, NULL, bytes, NULL, CDP_MEM_HERE, &at))) return;
        p = (uint64_t *)at;
        p[0] = bytes;
        p[1] = ~bytes;
        OK(cdp_mem_record_stream(mem, p, fake_handle(1)));
        if (i % 7 == 0) cdp_mem_note(mem, p, "noted");
        cdp_mem_label(NULL);
        p = __atomic_exchange_n(slot, p, __ATOMIC_ACQ_REL);
        if (!p) continue;
        T(p[1] == ~p[0] && cdp_mem_usable(mem, p) >= p[0]); /* nobody else had it */
        OK(cdp_mem_free(mem, p));
    }
}
static void *worker(void *arg) {
    work_of((uint64_t)(uintptr_t)arg);
    __atomic_sub_fetch(&going, 1, __ATOMIC_ACQ_REL);
    return NULL;
}

static uint32_t risen;
static void rise(void *user, cdp_mem *m, uint64_t level_bytes, uint64_t now_bytes) {
    (void)user;
    T(m == mem && now_bytes > level_bytes);
    __atomic_add_fetch(&risen, 1, __ATOMIC_RELAXED);
}

/* Everything that looks without a snapshot. */
static void look_live(int turn) {
    cdp_mem_held rows[8];
    char text[4096];
    const uint32_t n = cdp_mem_held_by(mem, rows, 8);
    for (uint32_t i = 0; i < n && i < 8; ++i)
        T(rows[i].peak >= rows[i].bytes && (rows[i].bytes > 0) == (rows[i].blocks > 0));
    T(cdp_mem_summary(mem, text, sizeof text) > 1000);
    T(cdp_mem_json_line(mem, (uint64_t)turn, text, sizeof text) > 500);
    if (turn % 2 == 0) OK(cdp_mem_watch_level(mem, 2 * MIB, MIB, rise, &risen));
    if (turn % 3 == 0) cdp_mem_reset(mem, true, false);
    if (turn % 2) cdp_mem_unwatch(mem, &risen);
}

static void look(int turn) {
    cdp_mem_record_desc d;
    cdp_mem_stats stats;
    cdp_mem_shot *s;
    written w = {NULL, 0, 0, 0};
    viewer_file v;
    memset(&d, 0, sizeof d);
    d.history = CDP_MEM_HISTORY_ALL;
    d.stacks = turn % 3 ? CDP_MEM_STACKS_FRAME_POINTER : CDP_MEM_STACKS_BACKTRACE;
    d.max_entries = 500;
    if (turn % 4 == 0) OK(cdp_mem_record(mem, turn % 8 ? &d : NULL));
    stats = cdp_mem_stats_of(mem);
    T(stats.allocation[0].current <= WORKERS + SLOTS
        && stats.active[0].peak >= stats.active[0].current);
    if (turn % 5 == 0) cdp_mem_trim(mem);
    look_live(turn);
    OK(cdp_mem_snapshot(&mem, 1, false, &s));
    OK(cdp_mem_write(s, CDP_MEM_PICKLE, written_sink, &w));
    const char *const wrong = viewer_open(&v, w.at, w.bytes);
    test_check(!wrong, __FILE__, __LINE__, "the viewer would fail: %s", wrong ? wrong : "");
    if (!wrong) { /* segments and events were copied at one moment, and no event is missing */
        const char *const torn = viewer_replay(&v, 0, false);
        test_check(!torn, __FILE__, __LINE__, "snapshot %d: %s", turn, torn ? torn : "");
    }
    viewer_close(&v);
    free(w.at);
    cdp_mem_shot_free(s);
}

/* Without streams: a free is complete at once. */
static void run(bool streams) {
    cdp_mem_source source;
    cdp_mem_desc d;
    pthread_t threads[WORKERS];
    fake f;
    memset(&f, 0, sizeof f);
    memset(&d, 0, sizeof d);
    source = fake_source(&f);
    f.limit = 1ull << 30;
    if (!streams) {
        source.event_create = NULL;
        source.event_destroy = NULL;
        source.event_record = NULL;
        source.event_query = NULL;
    }
    d.source = &source;
    OK(cdp_mem_create(&d, &mem));
    going = WORKERS;
    for (uintptr_t i = 0; i < WORKERS; ++i)
        pthread_create(&threads[i], NULL, worker, (void *)(i + 1));
    for (int turn = 0; __atomic_load_n(&going, __ATOMIC_ACQUIRE); ++turn) {
        look(turn);
        test_sleep_ms(1);
    }
    for (int i = 0; i < WORKERS; ++i)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < SLOTS; ++i) {
        OK(cdp_mem_free(mem, slots[i]));
        slots[i] = NULL;
    }
    T_WELL(mem);
    T(!mem->scopes);
    T_EQ(0, cdp_mem_destroy(mem));
    T_EQ(0, f.held);
    T_EQ(0, f.events);
}

TEST(threads_without_streams) {
    run(false);
}
TEST(threads_with_streams) {
    run(true);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"threads_without_streams", threads_without_streams, 60},
        {"threads_with_streams", threads_with_streams, 60}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
