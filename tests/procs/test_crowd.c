/*  test_crowd.c - many ranks on one machine with few descriptors

        gcc -O2 -g -std=gnu11 -I. -Itests tests/procs/test_crowd.c -o test_crowd -pthread -lm

    The job starts and every rank talks to every other one, or cdp_init says which limit to
    raise. */
#define _GNU_SOURCE
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "ports.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define RANKS_MOST 64u

typedef struct seat {
    int32_t status, sys_errno;
    uint32_t fds, warned;
    char text[600];
} seat;
static seat *seats; /* of each rank; all processes see them */
static uint32_t start_ms = 20000 * TEST_SLACK;

static void listen_to_log(cdp_log_level level, const char *text, int32_t rank, void *user) {
    (void)user;
    if (level != CDP_LOG_WARN || !strstr(text, "ulimit -n")) return;
    ++seats[rank].warned;
    snprintf(seats[rank].text, sizeof seats[rank].text, "%s", text);
}

/* Every rank sends to every other one: all links are made. */
static cdp_status talk(cdp_group *g, uint32_t n) {
    static float in[RANKS_MOST], out[RANKS_MOST], sum[1000];
    cdp_status st;
    for (uint32_t i = 0; i < n; ++i)
        in[i] = (float)(cdp_rank(g) * n + i);
    st = cdp_alltoall(g, in, out, 1, CDP_DTYPE_F32);
    for (uint32_t i = 0; i < n && st == CDP_OK; ++i)
        if (out[i] != (float)(i * n + cdp_rank(g))) return CDP_ERR_INTERNAL;
    for (uint32_t i = 0; i < 1000; ++i)
        sum[i] = 1;
    if (st == CDP_OK) st = cdp_allreduce(g, NULL, sum, 1000, CDP_DTYPE_F32, CDP_REDUCE_SUM);
    return st == CDP_OK && sum[999] != (float)n ? CDP_ERR_INTERNAL : st;
}

static int rank_main(uint32_t rank, uint32_t n, uint32_t limit, uint16_t port) {
    const struct rlimit few = {limit, limit};
    seat *me = &seats[rank];
    cdp_tcp_desc d;
    cdp_group *g = NULL;
    setrlimit(RLIMIT_NOFILE, &few);
    memset(&d, 0, sizeof d);
    d.group.rank = rank;
    d.group.world_size = n;
    d.group.timeout_ms = 20000 * TEST_SLACK;
    d.group.logger.func = listen_to_log;
    d.master_port = port;
    d.init_timeout_ms = start_ms;
    me->status = cdp_init(&d, &g);
    if (me->status == CDP_OK) {
        me->status = talk(g, n);
        me->fds = (uint32_t)test__entries("/proc/self/fd");
        if (me->status == CDP_OK) me->status = cdp_barrier(g);
    }
    if (me->status != CDP_OK) {
        me->sys_errno = cdp_last_error()->sys_errno;
        snprintf(me->text, sizeof me->text, "%s", cdp_last_error()->text);
    }
    if (g) cdp_group_destroy(g);
    return 0;
}

static void crowd(uint32_t n, uint32_t limit) {
    const uint16_t port = free_port();
    pid_t pid[RANKS_MOST];
    memset(seats, 0, RANKS_MOST * sizeof *seats);
    for (uint32_t r = 0; r < n; ++r) {
        seats[r].status = CDP_ERR_INTERNAL;
        pid[r] = fork();
        if (pid[r]) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(rank_main(r, n, limit, port));
    }
    for (uint32_t r = 0; r < n; ++r) {
        int status = 0;
        waitpid(pid[r], &status, 0);
        T(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

TEST(sixty_four_ranks_with_256_descriptors) {
    const uint32_t n = TEST_SLOW ? 24 : 64, limit = TEST_SLOW ? 96 : 256;
    uint32_t most = 0;
    crowd(n, limit);
    for (uint32_t r = 0; r < n; ++r) {
        if (!T_EQ(CDP_OK, seats[r].status)) printf("  rank %u: %s\n", r, seats[r].text);
        if (seats[r].fds > most) most = seats[r].fds;
    }
    printf("INFO %u ranks, limit %u: %u descriptors at most; rank 0 %s: %s\n", n, limit, most,
        seats[0].warned ? "warned" : "said nothing", seats[0].text);
    T(seats[0].warned == 1);
}

/* Not enough for rank 0 to serve the store: it says so at once, and what to do. */
TEST(too_few_descriptors_are_named) {
    start_ms = 2000; /* the others wait so long for rank 0 */
    crowd(32, 64);
    T_EQ(CDP_ERR_IO, seats[0].status);
    T_EQ(EMFILE, seats[0].sys_errno);
    T_TEXT("ulimit -n", seats[0].text);
    for (uint32_t r = 1; r < 32; ++r)
        T(seats[r].status < CDP_OK);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"sixty_four_ranks_with_256_descriptors", sixty_four_ranks_with_256_descriptors, 120},
        {"too_few_descriptors_are_named", too_few_descriptors_are_named, 120},
    };
    seats = (seat *)mmap(NULL, RANKS_MOST * sizeof *seats, PROT_READ | PROT_WRITE,
        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (seats == MAP_FAILED) return 1;
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
