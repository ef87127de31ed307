/* The smallest tables in shared memory: one slot each way, one payload that is read in place, two
   segments. What has no room there goes through the rings, with the same results. */
#define CDP_SLOTS 1
#define CDP_SLOT_BYTES 64
#define CDP_EXPOSURES 1
#define CDP_SEGMENTS 2
#define CDP_IMPLEMENTATION
#define CDP__TEST_OF_ITS_OWN /* this program compiles the library itself */
#include "cdp_tcp.h"

#include "test.h"
#include "ports.h"
#include "group_memory.h"

#include <pthread.h>

#define RANKS 3u
#define MOST 200000u /* elements */

typedef struct seat {
    pthread_t thread;
    uint32_t rank;
    cdp_hub *hub; /* NULL: over cdp_tcp.h */
    uint16_t port;
} seat;

static void check_sum(cdp_group *g, uint32_t *x, uint64_t count) {
    const uint32_t me = cdp_rank(g);
    for (uint64_t i = 0; i < count; ++i)
        x[i] = (uint32_t)i * (me + 1);
    if (!T_EQ(CDP_OK, cdp_allreduce(g, NULL, x, count, CDP_DTYPE_U32, CDP_REDUCE_SUM)))
        cdp_print_error(stdout);
    for (uint64_t i = 0; i < count && T_EQ((uint32_t)i * 6u, x[i]); ++i) {
    }
}

/* More messages in flight than there are slots and exposures. */
static void check_messages(cdp_group *g, uint32_t *x, uint64_t count) {
    enum {
        MANY = 20
    };
    const uint32_t me = cdp_rank(g), to = (me + 1) % RANKS, from = (me + RANKS - 1) % RANKS;
    cdp_work w[2 * MANY];
    for (uint64_t i = 0; i < MANY * count; ++i)
        x[i] = me * 1000u + (uint32_t)(i / count);
    for (uint32_t k = 0; k < MANY; ++k) {
        T_EQ(CDP_OK, cdp_send_async(g, x + k * count, count, CDP_DTYPE_U32, to, k % 2, &w[k]));
        T_EQ(CDP_OK,
            cdp_recv_async(
                g, x + (MANY + k) * count, count, CDP_DTYPE_U32, from, k % 2, &w[MANY + k]));
    }
    for (uint32_t k = 0; k < 2 * MANY; ++k)
        T_EQ(CDP_OK, cdp_work_wait(w[k]));
    for (uint64_t i = 0; i < MANY * count; ++i)
        if (!T_EQ(from * 1000u + i / count, x[MANY * count + i])) break;
}

static void *rank_main(void *user) {
    const seat *s = (const seat *)user;
    const bool over_memory = !s->hub && cdp_os_default()->shared.create;
    char text[4096];
    uint32_t *x[4];
    cdp_tcp_desc d;
    cdp_group *g = NULL;
    memset(&d, 0, sizeof d);
    d.group.rank = s->rank;
    d.group.world_size = RANKS;
    d.group.timeout_ms = 20000 * TEST_SLACK;
    d.group.hub = s->hub;
    d.master_port = s->port;
    d.ring_bytes = 1024;
    if (!T_EQ(CDP_OK, s->hub ? cdp_group_create(&d.group, &g) : cdp_init(&d, &g))) {
        cdp_print_error(stdout);
        return NULL;
    }
    for (uint32_t k = 0; k < 4; ++k) { /* more than there are segments */
        x[k] = (uint32_t *)memory_of_group(g, MOST * sizeof *x[k]);
        check_sum(g, x[k], 1);
        check_sum(g, x[k], 16 + k);
        check_sum(g, x[k], MOST);
        check_messages(g, x[k], 1);
        check_messages(g, x[k], 17);
        check_messages(g, x[k], MOST / 40);
    }
    cdp_describe(g, text, sizeof text);
    T(!over_memory || strstr(text, "KiB each way"));
    for (uint32_t k = 0; k < 4; ++k)
        cdp_group_free(g, x[k]);
    cdp_group_destroy(g);
    return NULL;
}

static void all_ranks(cdp_hub *hub) {
    const uint16_t port = hub ? 0 : free_port();
    seat s[RANKS];
    for (uint32_t r = 0; r < RANKS; ++r) {
        s[r].rank = r;
        s[r].hub = hub;
        s[r].port = port;
        pthread_create(&s[r].thread, NULL, rank_main, &s[r]);
    }
    for (uint32_t r = 0; r < RANKS; ++r)
        pthread_join(s[r].thread, NULL);
}

TEST(small_tables_between_processes) {
    T_EQ(64 + 512, CDP_SLOTS_BYTES);
    all_ranks(NULL);
}

TEST(small_tables_in_a_hub) {
    cdp_hub_desc d;
    cdp_hub *hub;
    memset(&d, 0, sizeof d);
    d.world_size = RANKS;
    d.ring_bytes = 1024;
    if (!T_EQ(CDP_OK, cdp_hub_create(&d, &hub))) return;
    all_ranks(hub);
    cdp_hub_destroy(hub);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"small_tables_between_processes", small_tables_between_processes, 60},
        {"small_tables_in_a_hub", small_tables_in_a_hub, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
