/* test_cores.c - which processors a rank gets: machines on paper, and this one */
#include "cdp_launch.h"
#include "test.h"

static cdp__cores_map map;

/* A machine of `nodes` nodes with `cores` cores each, of two threads: processor p and its sibling
   p + nodes * cores, as Linux numbers them; `list`: which of them may be used. */
static void machine(uint32_t nodes, uint32_t cores, const char *list) {
    cdp__cores allowed;
    memset(&allowed, 0, sizeof allowed);
    cdp__cores_list(&allowed, list);
    cdp__cores_map_begin(&map);
    for (uint32_t i = 0; i < nodes; ++i) {
        for (uint32_t k = 0; k < cores; ++k) {
            cdp__cores threads;
            memset(&threads, 0, sizeof threads);
            cdp__cores_add(&threads, i * cores + k);
            cdp__cores_add(&threads, i * cores + k + nodes * cores);
            cdp__cores_map_add(&map, &threads, &allowed);
        }
        cdp__cores_map_node(&map);
    }
}

/* The processors of a rank, as "0,8,". */
static const char *of(bool by_node, uint32_t each, uint32_t i, uint32_t n) {
    static char text[256];
    size_t used = 0;
    cdp__cores c;
    cdp__cores_of_rank(&map, by_node, each, i, n, &c);
    text[0] = 0;
    for (uint32_t p = 0; p < CDP__CORES_MAX; ++p)
        if (cdp__cores_has(&c, p))
            used += (size_t)snprintf(text + used, sizeof text - used, "%u,", p);
    return text;
}

static void is(const char *want, const char *got) {
    if (strcmp(want, got) != 0) printf("wanted: %s\n   got: %s\n", want, got);
    T(strcmp(want, got) == 0);
}

TEST(a_rank_has_whole_cores_of_its_own) {
    machine(2, 4, "0-15");
    T_EQ(8u, map.cores);
    T_EQ(2u, map.nodes);
    T_EQ(2u, cdp__cores_each(&map, 4));
    T_EQ(2u, cdp__cores_each(&map, 3));
    T_EQ(1u, cdp__cores_each(&map, 100));
    is("0,8,", of(false, 1, 0, 8));
    is("7,15,", of(false, 1, 7, 8));
    is("2,3,10,11,", of(false, 2, 1, 4));
    is("4,5,12,13,", of(false, 2, 2, 4));
}

TEST(ranks_are_spread_over_nodes) {
    machine(2, 4, "0-15");
    is("0,1,2,3,8,9,10,11,", of(true, 1, 0, 4));
    is("0,1,2,3,8,9,10,11,", of(true, 1, 1, 4));
    is("4,5,6,7,12,13,14,15,", of(true, 1, 2, 4));
    is("0,1,2,3,8,9,10,11,", of(true, 1, 0, 1));
    is("4,5,6,7,12,13,14,15,", of(true, 1, 2, 3));
}

TEST(only_allowed_processors_are_given_away) {
    machine(3, 2, "1,2-3,8"); /* 2 and 8 are one core; no core of node 2 */
    T_EQ(3u, map.cores);
    T_EQ(2u, map.nodes);
    is("1,", of(false, 1, 0, 3));
    is("2,8,", of(false, 1, 1, 3));
    is("3,", of(false, 1, 2, 3));
    is("2,3,8,", of(true, 1, 1, 2));
}

TEST(a_node_without_processors_is_none) {
    machine(3, 2, "0,4-5"); /* nodes 0 and 2 */
    T_EQ(2u, map.nodes);
    is("4,5,", of(true, 1, 1, 2));
}

TEST(lists_are_read_until_something_else) {
    cdp__cores c;
    memset(&c, 0, sizeof c);
    cdp__cores_list(&c, "0-2,63-64,4095-9999999999\n7");
    T(cdp__cores_has(&c, 0) && cdp__cores_has(&c, 2) && !cdp__cores_has(&c, 3));
    T(cdp__cores_has(&c, 63) && cdp__cores_has(&c, 64) && cdp__cores_has(&c, 4095));
    T(!cdp__cores_has(&c, 7) && !cdp__cores_has(&c, 4096));
}

TEST(this_machine_gives_each_worker_a_core) {
#ifdef __linux__
    T(cdp__cores_map_here(&map));
    T(map.cores >= 1 && map.nodes >= 1 && map.nodes <= map.cores);
    uint32_t known = 0;
    for (uint32_t p = 0; p < CDP__CORES_MAX; ++p)
        known += map.core_of[p] != CDP__CORES_NONE;
    T(known >= map.cores);
#else
    T(!cdp__cores_map_here(&map));
#endif
}

#ifdef __linux__
/* 0 if this worker may use one core, and has as many threads. */
static int bound(void *user) {
    cdp__cores_map mine;
    const char *const threads = getenv("OMP_NUM_THREADS");
    (void)user;
    if (!cdp__cores_map_here(&mine) || mine.cores != 1) return 1;
    return threads && strcmp(threads, "1") == 0 ? 0 : 2;
}

TEST(an_agent_binds_its_workers) {
    cdp_agent *a;
    unsetenv("OMP_NUM_THREADS");
    T(cdp__cores_map_here(&map));
    cdp_launch_desc d = {.func = bound, .workers = map.cores, .bind = CDP_LAUNCH_BIND_CORE};
    d.cores_per_worker = 1;
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    T_EQ(CDP_OK, cdp_agent_wait(a, 60000));
    cdp_agent_destroy(a);
}

TEST(more_cores_than_there_are_cannot_be_had) {
    cdp_agent *a;
    char want[200];
    T(cdp__cores_map_here(&map));
    cdp_launch_desc d = {.func = bound, .workers = 2, .bind = CDP_LAUNCH_BIND_CORE};
    d.cores_per_worker = map.cores;
    T_EQ(CDP_ERR_INVALID, cdp_agent_start(&d, &a));
    T(a == NULL);
    snprintf(want, sizeof want,
        "cdp_agent_start: desc.bind: 2 workers with %u cores each need more than the %u that this "
        "process may use",
        map.cores, map.cores);
    is(want, cdp_last_error()->text);
    d.bind = (cdp_launch_bind)3;
    T_EQ(CDP_ERR_INVALID, cdp_agent_start(&d, &a));
    is("cdp_agent_start: desc.bind is 3, which no CDP_LAUNCH_BIND_ has", cdp_last_error()->text);
}
#endif

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"a_rank_has_whole_cores_of_its_own", a_rank_has_whole_cores_of_its_own, 20},
        {"ranks_are_spread_over_nodes", ranks_are_spread_over_nodes, 20},
        {"only_allowed_processors_are_given_away", only_allowed_processors_are_given_away, 20},
        {"a_node_without_processors_is_none", a_node_without_processors_is_none, 20},
        {"lists_are_read_until_something_else", lists_are_read_until_something_else, 20},
        {"this_machine_gives_each_worker_a_core", this_machine_gives_each_worker_a_core, 20},
#ifdef __linux__
        {"an_agent_binds_its_workers", an_agent_binds_its_workers, 20},
        {"more_cores_than_there_are_cannot_be_had", more_cores_than_there_are_cannot_be_had, 20},
#endif
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
