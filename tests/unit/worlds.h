/* worlds.h - one test body for all ranks, as threads: over a hub, TCP and shared memory, with a
   progress thread and without. Include after cdp_tcp.h. */
#ifndef WORLDS_INCLUDED
#define WORLDS_INCLUDED

#include "said.h"

#include <pthread.h>

#define RANKS_MAX 8u

static uint32_t world_size;
static bool over_tcp, shared_memory, no_thread;
static cdp_hub *hub;
static uint16_t port;
static uint32_t timeout_ms;
static cdp_group *world[RANKS_MAX];
static void (*body)(uint32_t rank, cdp_group *w);

static uint32_t met; /* ranks that have come to some point of this run */

TEST_API void come(void) {
    __atomic_add_fetch(&met, 1, __ATOMIC_SEQ_CST);
}
TEST_API void await(uint32_t ranks) {
    const uint64_t until = test_until_ns(10000);
    while (__atomic_load_n(&met, __ATOMIC_SEQ_CST) < ranks && test_now_ns() < until)
        test_sleep_ms(1);
}

/* ---- a clock of rank 0 that can stand still ---- */

/* For tests that look at what lasts a short time: however late a busy machine lets them look, the
   clock of that rank has not passed the end. It passes no nanosecond after this one; 0: it goes on
   with the clock of the machine. */
static uint64_t clock_stands_at;
static __thread bool clock_goes_on; /* when this thread next looks at it */

static uint64_t clock_now_ns(void *user) {
    if (clock_goes_on) {
        clock_goes_on = false;
        __atomic_store_n(&clock_stands_at, 0, __ATOMIC_SEQ_CST);
    }
    const uint64_t stands = __atomic_load_n(&clock_stands_at, __ATOMIC_SEQ_CST),
                   now = cdp_os_default()->now_ns(user);
    return stands && now > stands ? stands : now;
}
static const cdp_os *clock_os(void) {
    static cdp_os os;
    os = *cdp_os_default();
    os.now_ns = clock_now_ns;
    return &os;
}
TEST_API void clock_stop(void) {
    __atomic_store_n(&clock_stands_at, cdp_os_default()->now_ns(NULL), __ATOMIC_SEQ_CST);
}
TEST_API void clock_goes_as_far_as(uint32_t ms) {
    __atomic_add_fetch(&clock_stands_at, ms * 1000000ull, __ATOMIC_SEQ_CST);
}
TEST_API void clock_go(void) {
    __atomic_store_n(&clock_stands_at, 0, __ATOMIC_SEQ_CST);
}

static const cdp_os *os_of_rank_0; /* made before there are threads */

static void *rank_main(void *arg) {
    const uint32_t rank = (uint32_t)(uintptr_t)arg;
    const cdp_os *const os = rank ? NULL : os_of_rank_0;
    cdp_group *g = NULL;
    if (over_tcp) {
        const cdp_tcp_desc d = {.group.rank = rank,
            .group.world_size = world_size,
            .master_port = port,
            .group.timeout_ms = timeout_ms,
            .init_timeout_ms = 5000 * TEST_LATE,
            .group.os = os,
            .group.no_thread = no_thread,
            .no_shared_memory = !shared_memory,
            .group.logger = {.level = CDP_LOG_SILENT}};
        if (!OK(cdp_init(&d, &g))) return NULL;
    } else {
        const cdp_group_desc d = {.rank = rank,
            .world_size = world_size,
            .hub = hub,
            .os = os,
            .timeout_ms = timeout_ms,
            .no_thread = no_thread,
            .logger = {.level = CDP_LOG_SILENT}};
        if (!OK(cdp_group_create(&d, &g))) return NULL;
    }
    world[rank] = g;
    body(rank, g);
    cdp_group_destroy(g);
    return NULL;
}

/* All ranks as threads of this program; over a hub, then over TCP, each with a progress thread
   and without, and over memory. Not that under ThreadSanitizer: it does not know that what two
   ranks see at two addresses is the same memory. */
static void run(uint32_t n, uint32_t timeout, void (*func)(uint32_t rank, cdp_group *w)) {
    for (uint32_t how = 0; how < (TEST_THREADS_WATCHED ? 4 : 5) && !test__now.failed_checks;
         ++how) {
        pthread_t t[RANKS_MAX];
        const cdp_hub_desc h = {.world_size = n};
        const cdp_addr any = {.family = 4, .ip = {127, 0, 0, 1}};
        cdp_addr bound;
        met = 0;
        os_of_rank_0 = clock_os();
        clock_go();
        world_size = n;
        timeout_ms = timeout;
        body = func;
        over_tcp = how >= 2;
        shared_memory = how == 4;
        no_thread = how % 2;
        if (!over_tcp && !OK(cdp_hub_create(&h, &hub))) return;
        const int32_t fd = cdp__os_listen(NULL, &any, &bound);
        close(fd);
        port = bound.port;
        for (uint32_t r = 0; r < n; ++r)
            pthread_create(&t[r], NULL, rank_main, (void *)(uintptr_t)r);
        for (uint32_t r = 0; r < n; ++r)
            pthread_join(t[r], NULL);
        if (!over_tcp) cdp_hub_destroy(hub);
    }
}

#endif
