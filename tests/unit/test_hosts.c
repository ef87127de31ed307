/* Groups of several hosts: who is where, which algorithms that chooses, and that these work on
   real links. Ranks are threads; one that says that its memory is elsewhere is on another host,
   and TCP leads there. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "test.h"

#include "hosts.h"
#include "ports.h"

#include <pthread.h>

#define RANKS_MAX 8u

static uint32_t places[RANKS_MAX], world_size; /* on which host each rank is */
static uint16_t port;
static const cdp_choice *choices;
static uint32_t choice_count;
static bool reproducible;
static void (*body)(uint32_t rank, cdp_group *w);

static uint64_t host_of(uint32_t place) {
    return cdp_os_default()->shared.host_id(NULL) ^ (place << 1);
}
static uint64_t host_0(void *user) {
    (void)user;
    return host_of(0);
}
static uint64_t host_1(void *user) {
    (void)user;
    return host_of(1);
}
static uint64_t host_2(void *user) {
    (void)user;
    return host_of(2);
}
static uint64_t host_3(void *user) {
    (void)user;
    return host_of(3);
}

static void *rank_main(void *arg) {
    typedef uint64_t host_function(void *user);
    static host_function *const hosts[] = {host_0, host_1, host_2, host_3};
    const uint32_t rank = (uint32_t)(uintptr_t)arg;
    cdp_os os = *cdp_os_default();
    cdp_tcp_desc d;
    cdp_group *g = NULL;
    os.shared.host_id = hosts[places[rank]];
    memset(&d, 0, sizeof d);
    d.group.rank = rank;
    d.group.world_size = world_size;
    d.master_port = port;
    d.group.timeout_ms = d.init_timeout_ms = 30000 * TEST_SLACK;
    d.group.choices = choices;
    d.group.choice_count = choice_count;
    d.group.reproducible = reproducible;
    d.group.os = &os;
    if (test_check(cdp_init(&d, &g) == CDP_OK, __FILE__, __LINE__, "%s", cdp_last_error()->text))
        body(rank, g);
    cdp_group_destroy(g);
    return NULL;
}

/* A digit for each rank: its host. */
static void run(const char *where, void (*func)(uint32_t rank, cdp_group *w)) {
    pthread_t t[RANKS_MAX];
    port = free_port();
    body = func;
    for (world_size = 0; where[world_size]; ++world_size)
        places[world_size] = (uint32_t)(where[world_size] - '0');
    for (uint32_t r = 0; r < world_size; ++r)
        pthread_create(&t[r], NULL, rank_main, (void *)(uintptr_t)r);
    for (uint32_t r = 0; r < world_size; ++r)
        pthread_join(t[r], NULL);
}

static void everything(uint32_t rank, cdp_group *w) {
    static const uint64_t counts[] = {1, 6, 5003};
    static const char *const names[] = {NULL, "hierarchical", "leaders"};
    (void)rank;
    for (uint32_t i = 0; i < 3; ++i) {
        hosts_case c;
        memset(&c, 0, sizeof c);
        c.g = w;
        hosts_choose(w, names[i]);
        if (!test_check(hosts_all(&c, counts + (i ? 1 : 0), i ? 1 : 3), __FILE__, __LINE__,
                "%s: %s", names[i] ? names[i] : "the table", c.what))
            return;
    }
}

TEST(two_hosts_one_after_the_other) {
    run("0011", everything);
}
TEST(two_hosts_in_turn) {
    run("0101", everything);
}
TEST(three_hosts) {
    run("001122", everything);
}
TEST(hosts_of_different_ranks) {
    run("00011", everything);
    run("0120", everything);
}

/* ---- layouts ---- */

static const char *algorithm_of(cdp_group *g, cdp_coll_kind kind, uint64_t bytes) {
    return cdp__algo_at(cdp__select(&g->w->choosing, kind, bytes, cdp_size(g), g->topology.flags))
        ->name;
}

static void sub_groups(uint32_t rank, cdp_group *w) { /* 0 1 0 1 2 0 */
    const uint32_t backwards[] = {5, 4, 3, 2, 1, 0}, alone[] = {0, 1, 4}, together[] = {5, 0, 2},
                   two[] = {1, 2, 3, 0};
    const uint16_t order[] = {
        0 | CDP__HOST_BEGINS, 3, 5, 1 | CDP__HOST_BEGINS, 2 | CDP__HOST_BEGINS, 4};
    cdp_group *g = NULL;
    hosts_case c;
    T_EQ(CDP__HOSTS, w->topology.flags);
    T_EQ(3, w->topology.hosts.count);
    T_EQ(1, w->topology.hosts.fewest);
    T_EQ(3, w->topology.hosts.most);
    T(cdp_group_new(w, backwards, 6, &g) == CDP_OK
        && memcmp(g->topology.hosts.ranks, order, sizeof order) == 0);
    memset(&c, 0, sizeof c);
    c.g = g;
    if (g) test_check(hosts_all(&c, (const uint64_t[]){1500}, 1), __FILE__, __LINE__, "%s", c.what);
    cdp_group_destroy(g);
    if (rank == 0 || rank == 1 || rank == 4) {
        T(cdp_group_new(w, alone, 3, &g) == CDP_OK);
        T(g && g->topology.flags == 0
            && !g->topology.hosts.ranks); /* one on each: nothing to remember */
        if (g) T_TEXT("dissemination", algorithm_of(g, CDP_COLL_BARRIER, 0));
        cdp_group_destroy(g);
    }
    if (rank == 0 || rank == 5 || rank == 2) {
        T(cdp_group_new(w, together, 3, &g) == CDP_OK);
        T(g
            && g->topology.flags
                == (w->w->transport.remote.map ? CDP__SAME_HOST | CDP__SHARED : CDP__SAME_HOST)
            && !g->topology.hosts.ranks);
        cdp_group_destroy(g);
    }
    if (rank < 4) {
        T(cdp_group_new(w, two, 4, &g) == CDP_OK);
        T(g && g->topology.flags == (CDP__HOSTS | CDP__UNIFORM) && g->topology.hosts.count == 2);
        memset(&c, 0, sizeof c);
        c.g = g;
        if (g)
            test_check(
                hosts_all(&c, (const uint64_t[]){1500}, 1), __FILE__, __LINE__, "%s", c.what);
        cdp_group_destroy(g);
    }
    T(cdp_barrier(w) == CDP_OK);
}

TEST(a_group_knows_the_hosts_of_its_ranks) {
    run("010120", sub_groups);
}

/* ---- choice ---- */

static void by_name(uint32_t rank, cdp_group *w) {
    static _Thread_local char text[16000];
    float x[100] = {0};
    cdp_record last;
    (void)rank;
    T(cdp_allreduce(w, NULL, x, 100, CDP_DTYPE_F32, CDP_REDUCE_SUM) == CDP_OK
        && cdp_group_records(w, &last, 1) == 1);
    T_TEXT("leaders", last.algorithm);
    T(cdp_describe(w, text, sizeof text) < sizeof text - 1);
    T_TEXT("allreduce: leaders, for hosts of several ranks (choices)\n", text);
    T_TEXT("allgather: hierarchical, for hosts of as many ranks each (never in this group) "
           "(choices)\n",
        text);
    T_TEXT("3 hosts, of 1 to 2 ranks", text);
    /* hosts have different numbers of ranks */
    T_TEXT("Bruck", algorithm_of(w, CDP_COLL_ALLGATHER, 400));
    T(cdp_barrier(w) == CDP_OK);
}

TEST(algorithms_are_chosen_by_name) {
    static const cdp_choice by[] = {
        {CDP_COLL_ALLREDUCE, "leaders", 0, 0}, {CDP_COLL_ALLGATHER, "hierarchical", 0, 0}};
    choices = by;
    choice_count = 2;
    run("0102", by_name);
    choices = NULL;
    choice_count = 0;
}

static void fixed_only(uint32_t rank, cdp_group *w) {
    hosts_case c;
    uint32_t kind;
    uint64_t bytes;
    (void)rank;
    for (kind = CDP_COLL_ALLREDUCE; kind < CDP_COLL_COUNT; ++kind)
        for (bytes = 1; bytes < 1ull << 40; bytes *= 8)
            T(cdp__algo_at(cdp__select(&w->w->choosing, (cdp_coll_kind)kind, bytes, cdp_size(w),
                               w->topology.flags))
                    ->fixed);
    memset(&c, 0, sizeof c);
    c.g = w;
    test_check(hosts_all(&c, (const uint64_t[]){1, 20011}, 2), __FILE__, __LINE__, "%s", c.what);
}

TEST(the_same_bits_whatever_the_hosts) {
    reproducible = true;
    run("0011", fixed_only);
    reproducible = false;
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"two_hosts_one_after_the_other", two_hosts_one_after_the_other, 60},
        {"two_hosts_in_turn", two_hosts_in_turn, 60},
        {"three_hosts", three_hosts, 60},
        {"hosts_of_different_ranks", hosts_of_different_ranks, 60},
        {"a_group_knows_the_hosts_of_its_ranks", a_group_knows_the_hosts_of_its_ranks, 60},
        {"algorithms_are_chosen_by_name", algorithms_are_chosen_by_name, 20},
        {"the_same_bits_whatever_the_hosts", the_same_bits_whatever_the_hosts, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
}
