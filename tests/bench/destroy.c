/*  destroy.c - how long cdp_group_destroy() and cdp_group_leave() take: the distribution over many
    worlds, for ranks that leave at once, one that leaves later, peers that do not poll, and a peer
    that was killed. Each rank is a process; each world is new.

    destroy [--ranks 2,4] [--worlds 200] [--transport memory|tcp] [--only WORD]

    gcc -O2 -I. -Itests tests/bench/destroy.c -o destroy -pthread -lm */
#define _GNU_SOURCE
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "ports.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define RANKS 8u
#define LATE_MS 50u
#define STILL_MS 150u /* how long peers that do not poll stand still: longer than anybody waits */

typedef enum how {
    AT_ONCE, /* all ranks leave together */
    LATER,   /* the last rank LATE_MS after the others */
    LATEST,  /* the same, and the last rank is measured */
    STILL,   /* rank 0 leaves; the others have no thread, and do not poll */
    KILLED,  /* the last rank is killed; the others learn it, and leave */
    FRAMES,  /* as AT_ONCE with cdp_group_leave(group, 0) and no thread */
    ENDED,   /* one look of cdp_group_leave, then cdp_group_destroy ends it */
    HOW_COUNT
} how;
static const char *const how_names[HOW_COUNT] = {"at_once", "the_others_50_ms_before",
    "50_ms_after_the_others", "peers_do_not_poll", "after_a_killed_peer", "leave_in_frames",
    "destroy_after_one_look"};

typedef struct seat {
    double ms;
    bool measured;
    int status;
} seat;
static struct {
    pthread_barrier_t meet;
    seat seats[RANKS];
} * shared;

static double now_ms(void) {
    return (double)test_now_ns() * 1e-6;
}

/* Leaves, and says how long that took. */
static double leave(cdp_group *g, how h) {
    const double from = now_ms();
    if (h == FRAMES)
        while (cdp_group_leave(g, 0) == CDP_PENDING) {
        }
    else if (h == ENDED && cdp_group_leave(g, 0) == CDP_PENDING)
        cdp_group_destroy(g);
    else if (h != ENDED)
        cdp_group_destroy(g);
    return now_ms() - from;
}

static int rank_main(how h, bool tcp, uint32_t rank, uint32_t n, uint16_t port) {
    const uint32_t last = n - 1;
    static float x[65536];
    cdp_tcp_desc d;
    cdp_group *g;
    cdp_status st;
    memset(&d, 0, sizeof d);
    d.group.rank = rank;
    d.group.world_size = n;
    d.group.timeout_ms = 20000;
    d.group.logger.level = CDP_LOG_SILENT;
    d.group.no_thread = h == STILL || h == FRAMES || h == ENDED;
    d.master_port = port;
    d.no_shared_memory = tcp;
    if (cdp_init(&d, &g) != CDP_OK) return cdp_print_error(stderr);
    for (uint32_t i = 0; i < 3; ++i)
        if (cdp_allreduce(g, NULL, x, 65536, CDP_DTYPE_F32, CDP_REDUCE_SUM) != CDP_OK)
            return cdp_print_error(stderr);
    if (h == KILLED) {
        if (rank == last) raise(SIGKILL);
        st = cdp_allreduce(g, NULL, x, 65536, CDP_DTYPE_F32, CDP_REDUCE_SUM);
        if (st != CDP_ERR_PEER_LOST) return 2;
    } else {
        pthread_barrier_wait(&shared->meet);
    }
    if ((h == LATER || h == LATEST) && rank == last) test_sleep_ms(LATE_MS);
    if (h == STILL && rank) test_sleep_ms(STILL_MS);
    shared->seats[rank].ms = leave(g, h);
    shared->seats[rank].measured =
        (h != LATER || rank != last) && (h != LATEST || rank == last) && (h != STILL || !rank);
    return 0;
}

static int by_size(const void *a, const void *b) {
    const double d = *(const double *)a - *(const double *)b;
    return (d > 0) - (d < 0);
}

/* One world from its start to its end. False: a rank failed. */
static bool world(how h, bool tcp, uint32_t n, double *ms, uint32_t *count) {
    const uint16_t port = free_port();
    pthread_barrierattr_t a;
    pid_t pid[RANKS];
    bool good = true;
    pthread_barrierattr_init(&a);
    pthread_barrierattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->meet, &a, n);
    for (uint32_t r = 0; r < n; ++r) {
        shared->seats[r].measured = false;
        pid[r] = fork();
        if (pid[r]) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(rank_main(h, tcp, r, n, port));
    }
    for (uint32_t r = 0; r < n; ++r) {
        int status = 0;
        waitpid(pid[r], &status, 0);
        if (h == KILLED && r == n - 1) continue;
        if (!WIFEXITED(status) || WEXITSTATUS(status)) good = false;
        if (shared->seats[r].measured) ms[(*count)++] = shared->seats[r].ms;
    }
    return good;
}

static bool measure(how h, bool tcp, uint32_t n, uint32_t worlds) {
    double *ms = malloc(worlds * n * sizeof *ms);
    uint32_t count = 0;
    bool good = ms != NULL;
    for (uint32_t w = 0; w < worlds && ms; ++w)
        good = world(h, tcp, n, ms, &count) && good;
    if (count) qsort(ms, count, sizeof *ms, by_size);
    if (count)
        printf("%-7s %u ranks  %-24s %5u  least %8.3f  median %8.3f  90 %% %8.3f  99 %% %8.3f  "
               "worst %8.3f ms%s\n",
            tcp ? "TCP" : "memory", n, how_names[h], count, ms[0], ms[count / 2],
            ms[count * 9 / 10], ms[count * 99 / 100], ms[count - 1], good ? "" : "  A RANK FAILED");
    fflush(stdout);
    free(ms);
    return good;
}

static bool takes(uint32_t ranks) {
    return ranks >= 2 && ranks <= RANKS;
}

int main(int argc, char **argv) {
    const char *only = "", *ranks = "2,4", *transport = "";
    uint32_t worlds = 200;
    const char *unknown = NULL;
    bool good = true;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--ranks") == 0)
            ranks = argv[i + 1];
        else if (strcmp(argv[i], "--worlds") == 0)
            worlds = (uint32_t)atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--only") == 0)
            only = argv[i + 1];
        else if (strcmp(argv[i], "--transport") == 0)
            transport = argv[i + 1];
        else
            unknown = argv[i];
    }
    if (unknown) {
        fprintf(stderr, "%s: see the first comment of this file\n", unknown);
        return 2;
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 1;
    for (int tcp = 0; tcp < 2; ++tcp)
        for (const char *at = ranks; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
            for (int h = 0; h < HOW_COUNT; ++h)
                if (takes((uint32_t)atoi(at)) && strstr(how_names[h], only)
                    && strstr(tcp ? "tcp" : "memory", transport))
                    good = measure((how)h, tcp, (uint32_t)atoi(at), worlds) && good;
    return good ? 0 : 1;
}
