/* elastic.c - what a death, a step and a newcomer cost in a job of cdp_elastic.h

       elastic [ROUNDS [RANKS [MIB]]]      default: 10 rounds, 16 ranks, 64 and 256 MiB

   1. One of the ranks is killed: how long until all others are told (their allreduce fails), and
      until each of them has finished an allreduce without it. Median and worst of the rounds.
   2. cdp_elastic_next() without a change, and cdp_elastic_commit(): nanoseconds each, in CPU time
      of the thread; median and worst of 20 rounds, and the longest of a million. With the thread of
      the header, and without threads, where calls look at the store's socket each millisecond.
   3. A newcomer receives the state: bytes per second, beside a broadcast of as many, by which a
      newcomer of a job without entries gets them: the first one of its group, as the transfer is.
      Median and worst of 11 jobs of each kind, in turn. The fastest of five later broadcasts, for
      which the memory is warm, is shown, too. Through memory, and over TCP. */
#define _GNU_SOURCE
#define CDP_IMPLEMENTATION
#include "cdp_elastic.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    MOST = 256,
    COUNT = 1000 /* values of the allreduce */
};

enum {
    STEP_ROUNDS = 20,
    JOBS = 11
};

/* What ranks tell the parent; shared. */
typedef struct seat {
    volatile uint64_t step, told_ns, working_ns, epoch;
    volatile double moved_s, first_s, broadcast_s, longest_ns;
    double next_ns[STEP_ROUNDS], commit_ns[STEP_ROUNDS];
} seat;

static seat *seats;
static uint64_t state_bytes;

static uint64_t now_ns(void) {
    return cdp_os_default()->now_ns(NULL);
}

/* Of this thread: other programs do not count. */
static double cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static pid_t spawn(int (*body)(seat *), seat *at) {
    fflush(stdout);
    const pid_t pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    _exit(body(at));
}

/* The store is served by a process of its own: the parent forks, so it has no threads. */
static pid_t serve(void) {
    int ends[2];
    uint16_t port = 0;
    char text[8];
    if (pipe(ends) != 0) abort();
    const pid_t pid = fork();
    if (pid == 0) {
        cdp_store_server_desc d = {0};
        cdp_store_server *s;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (cdp_store_server_create(&d, &s) != CDP_OK) _exit(cdp_print_error(stderr));
        port = cdp_store_server_port(s);
        if (write(ends[1], &port, sizeof port) != sizeof port) _exit(1);
        for (;;)
            pause();
    }
    if (read(ends[0], &port, sizeof port) != sizeof port) abort();
    close(ends[0]);
    close(ends[1]);
    snprintf(text, sizeof text, "%u", port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", text, 1);
    return pid;
}

static void end(pid_t pid) {
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static bool no_thread, over_tcp;

static cdp_elastic *join(uint32_t min, uint32_t max, const cdp_entry *entries, uint32_t count) {
    cdp_tcp_desc tcp = {.no_shared_memory = over_tcp,
        .group = {
            .timeout_ms = 30000, .no_thread = no_thread, .logger = {.level = CDP_LOG_SILENT}}};
    cdp_elastic_desc d = {.tcp = &tcp,
        .min_ranks = min,
        .max_ranks = max,
        .grow_ms = 1,
        .settle_ms = no_thread ? 2000 : 300,
        .entries = entries,
        .entry_count = count};
    cdp_elastic *e;
    if (cdp_elastic_create_from_env(&d, &e) != CDP_OK) exit(cdp_print_error(stderr));
    return e;
}

/* ---- a death ---- */

static uint32_t ranks_at_once;

static int trainer(seat *at) {
    static float x[COUNT];
    cdp_elastic_now now;
    /* all of them in the first epoch; then as many as are left */
    cdp_elastic *e = join(ranks_at_once - 1, ranks_at_once, NULL, 0);
    while (cdp_elastic_next(e, &now) == CDP_OK) {
        const cdp_status st =
            cdp_allreduce(now.group, NULL, x, COUNT, CDP_DTYPE_F32, CDP_REDUCE_SUM);
        if (st != CDP_OK) {
            if (now.size == ranks_at_once) at->told_ns = now_ns();
            continue;
        }
        if (now.size == ranks_at_once - 1 && at->told_ns && !at->working_ns)
            at->working_ns = now_ns();
        if (cdp_elastic_commit(e) == CDP_OK && now.size == ranks_at_once) at->step = now.step + 1;
    }
    return 1;
}

/* Waits until all seats but `without` have it. */
static bool all_have(uint32_t n, uint32_t without, bool (*has)(const seat *)) {
    const uint64_t until = now_ns() + 30000000000u;
    for (uint32_t i = 0; i < n && now_ns() < until; ++i)
        while (i != without && !has(&seats[i]) && now_ns() < until)
            usleep(1000);
    return now_ns() < until;
}

static bool has_steps(const seat *s) {
    return s->step >= 20;
}
static bool works(const seat *s) {
    return s->working_ns != 0;
}

static bool death(uint32_t n, uint32_t victim, double *told_ms, double *working_ms) {
    pid_t pid[MOST] = {0}, server;
    memset(seats, 0, MOST * sizeof *seats);
    server = serve();
    for (uint32_t i = 0; i < n; ++i)
        pid[i] = spawn(trainer, &seats[i]);
    bool ok = all_have(n, UINT32_MAX, has_steps);
    const uint64_t begun = now_ns();
    kill(pid[victim], SIGKILL);
    ok = ok && all_have(n, victim, works);
    *told_ms = *working_ms = 0;
    for (uint32_t i = 0; ok && i < n; ++i) {
        if (i == victim) continue;
        *told_ms = fmax(*told_ms, (double)(seats[i].told_ns - begun) / 1e6);
        *working_ms = fmax(*working_ms, (double)(seats[i].working_ns - begun) / 1e6);
    }
    for (uint32_t i = 0; i < n; ++i)
        end(pid[i]);
    end(server);
    return ok;
}

static bool deaths(uint32_t rounds, uint32_t n) {
    double told[1000], working[1000];
    ranks_at_once = n;
    for (uint32_t i = 0; i < rounds; ++i)
        if (!death(n, i * 7 % n, &told[i], &working[i])) {
            printf("round %u did not end within 30 s\n", i);
            return false;
        }
    qsort(told, rounds, sizeof *told, by_value);
    qsort(working, rounds, sizeof *working, by_value);
    printf("kill to all told:            %6.1f ms median, %6.1f worst of %u (%u ranks; goal 50)\n",
        told[rounds / 2], told[rounds - 1], rounds, n);
    printf("kill to first allreduce:     %6.1f ms median, %6.1f worst of %u (goal 500, wanted "
           "150)\n",
        working[rounds / 2], working[rounds - 1], rounds);
    return true;
}

/* ---- a step ---- */

static int steps(seat *at) {
    enum {
        TIMES = 500000
    };
    cdp_elastic *e = join(1, 1, NULL, 0);
    cdp_elastic_now now;
    if (cdp_elastic_next(e, &now) != CDP_OK) return 1;
    for (int round = 0; round < STEP_ROUNDS; ++round) {
        double t = cpu_ns();
        for (int i = 0; i < TIMES; ++i)
            if (cdp_elastic_next(e, &now) != CDP_OK) return 1;
        const double alone = cpu_ns() - t;
        t = cpu_ns();
        for (int i = 0; i < TIMES; ++i)
            if (cdp_elastic_next(e, &now) != CDP_OK || cdp_elastic_commit(e) != CDP_OK) return 1;
        at->next_ns[round] = alone / TIMES;
        at->commit_ns[round] = fmax(0, cpu_ns() - t - alone) / TIMES;
    }
    for (int i = 0; i < 2 * TIMES; ++i) {
        const double t = cpu_ns();
        if (cdp_elastic_next(e, &now) != CDP_OK || cdp_elastic_commit(e) != CDP_OK) return 1;
        at->longest_ns = fmax(at->longest_ns, cpu_ns() - t);
    }
    return 0;
}

static bool step_costs(bool without_threads) {
    int status = 1;
    double *next = seats[0].next_ns, *commit = seats[0].commit_ns;
    const char *const how = without_threads ? ", without threads" : "";
    const pid_t server = serve();
    memset(seats, 0, MOST * sizeof *seats);
    no_thread = without_threads;
    waitpid(spawn(steps, &seats[0]), &status, 0);
    end(server);
    no_thread = false;
    qsort(next, STEP_ROUNDS, sizeof *next, by_value);
    qsort(commit, STEP_ROUNDS, sizeof *commit, by_value);
    printf(
        "cdp_elastic_next():          %6.1f ns median, %6.1f worst of %d (no change; goal 50)%s\n",
        next[STEP_ROUNDS / 2], next[STEP_ROUNDS - 1], STEP_ROUNDS, how);
    printf("cdp_elastic_commit():        %6.1f ns median, %6.1f worst of %d (goal 50)%s\n",
        commit[STEP_ROUNDS / 2], commit[STEP_ROUNDS - 1], STEP_ROUNDS, how);
    printf("    both: at most %.1f us of a million times\n", seats[0].longest_ns / 1e3);
    return status == 0;
}

/* ---- a newcomer ---- */

static double transfer_of(cdp_elastic *e) {
    char text[8000];
    const char *at = NULL;
    unsigned long long us = 0;
    (void)cdp_elastic_history(e, text, sizeof text);
    for (const char *p = text; (p = strstr(p, "\"transfer_us\": ")) != NULL; ++p)
        at = p;
    if (at) (void)sscanf(at + 15, "%llu", &us);
    return (double)us / 1e6;
}

/* Of a broadcast to the last rank, in seconds; below 0: it failed. */
static double broadcast_of(cdp_group *group, uint8_t *data) {
    if (cdp_barrier(group) != CDP_OK) return -1;
    const uint64_t t = now_ns();
    if (cdp_broadcast(group, data, state_bytes, CDP_DTYPE_U8, 0) != CDP_OK) return -1;
    if (cdp_barrier(group) != CDP_OK) return -1;
    return (double)(now_ns() - t) / 1e9;
}

static bool with_entries;

static int holder(seat *at) {
    uint8_t *data = (uint8_t *)malloc(state_bytes);
    const cdp_entry entry = {"state", data, state_bytes, CDP_DTYPE_U8};
    cdp_elastic_now now;
    memset(data, (int)(at - seats), state_bytes);
    cdp_elastic *e = join(1, 2, &entry, with_entries);
    while (cdp_elastic_next(e, &now) == CDP_OK) {
        if (now.changed) at->moved_s = transfer_of(e);
        at->epoch = now.epoch;
        if (now.size < 2) {
            usleep(1000);
            continue;
        }
        at->first_s = at->broadcast_s = broadcast_of(now.group, data);
        for (int i = 0; i < 5; ++i)
            at->broadcast_s = fmin(at->broadcast_s, broadcast_of(now.group, data));
        if (at->broadcast_s < 0) return 1;
        break;
    }
    return cdp_elastic_finish(e) != CDP_OK;
}

static bool joins(bool entries) {
    int status[2] = {1, 1};
    const pid_t server = serve();
    with_entries = entries;
    memset(seats, 0, MOST * sizeof *seats);
    const pid_t first = spawn(holder, &seats[0]);
    for (int i = 0; !seats[0].epoch && i < 30000; ++i)
        usleep(1000);
    const pid_t second = spawn(holder, &seats[1]);
    waitpid(first, &status[0], 0);
    waitpid(second, &status[1], 0);
    end(server);
    return !status[0] && !status[1];
}

static bool newcomer(uint64_t mib, bool tcp) {
    double moved[JOBS], first[JOBS], later[JOBS], ratio[JOBS];
    state_bytes = mib << 20;
    over_tcp = tcp;
    for (int round = 0; round < JOBS; ++round) {
        if (!joins(true)) return false;
        moved[round] = seats[1].moved_s;
        if (!joins(false)) return false;
        first[round] = seats[1].first_s;
        later[round] = seats[1].broadcast_s;
        ratio[round] = 100 * first[round] / moved[round];
    }
    qsort(moved, JOBS, sizeof *moved, by_value);
    qsort(first, JOBS, sizeof *first, by_value);
    qsort(later, JOBS, sizeof *later, by_value);
    qsort(ratio, JOBS, sizeof *ratio, by_value);
    printf("%3llu MiB to a newcomer:      %6.1f ms median, %6.1f worst of %d; %.2f GB/s, %s\n",
        (unsigned long long)mib, moved[JOBS / 2] * 1e3, moved[JOBS - 1] * 1e3, JOBS,
        (double)state_bytes / moved[JOBS / 2] / 1e9, over_tcp ? "over TCP" : "through memory");
    printf("beside its first broadcast:  %6.1f ms median; %.0f %% of its bandwidth median, %.0f "
           "worst (goal 80)\n",
        first[JOBS / 2] * 1e3, ratio[JOBS / 2], ratio[0]);
    printf("    fastest later broadcast: %6.1f ms median\n", later[JOBS / 2] * 1e3);
    return true;
}

int main(int argc, char **argv) {
    const uint32_t rounds = argc > 1 ? (uint32_t)atoi(argv[1]) : 10,
                   ranks = argc > 2 ? (uint32_t)atoi(argv[2]) : 16;
    const uint64_t mib = argc > 3 ? (uint64_t)atoi(argv[3]) : 64, more = argc > 3 ? mib : 256;
    if (rounds < 1 || rounds > 1000 || ranks < 3 || ranks > MOST || mib < 1) return 2;
    seats = (seat *)mmap(
        NULL, MOST * sizeof *seats, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (seats == MAP_FAILED) return 1;
    if (!deaths(rounds, ranks) || !step_costs(false) || !step_costs(true)) return 1;
    for (uint64_t m = mib; m <= more; m *= 4)
        if (!newcomer(m, false) || !newcomer(m, true)) return 1;
    return 0;
}
