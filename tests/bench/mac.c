/* mac.c - what authentication codes cost: two ranks on this machine, over TCP, with and without.

   mac [PASSES]: (default: 20)

   Both worlds live at once and take turns, pass by pass, so that a change of the machine's speed
   meets both. Printed are medians over the passes. Messages go one way and are answered by one of 4
   bytes; the processor time is that of both ranks. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define PASSES_MAX 1000u

static const struct {
    const char *name;
    uint32_t bytes, times; /* a pass */
} cases[] = {
    {"latency of 4 B", 4, 2000},
    {"1 MiB", 1u << 20, 30},
    {"16 MiB", 16u << 20, 2},
};
#define CASES (sizeof cases / sizeof cases[0])

static double us[CASES][2][PASSES_MAX], cpu[CASES][2][PASSES_MAX];
static uint8_t *memory;

static void check(cdp_status st) {
    if (st == CDP_OK) return;
    cdp_print_error(stderr);
    exit(1);
}

static double processor_us(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return 1e6 * (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec)
        + (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, uint32_t n) {
    qsort(v, n, sizeof *v, by_size);
    return v[n / 2];
}

static void once(cdp_group *g, uint32_t rank, uint32_t bytes) {
    uint8_t answer[4] = {0};
    if (rank == 0) check(cdp_send(g, memory, bytes, CDP_DTYPE_U8, 1, 0));
    if (rank == 1) check(cdp_recv(g, memory, bytes, CDP_DTYPE_U8, 0, 0));
    if (rank == 1) check(cdp_send(g, answer, 4, CDP_DTYPE_U8, 0, 0));
    if (rank == 0) check(cdp_recv(g, answer, 4, CDP_DTYPE_U8, 1, 0));
}

static void pass(cdp_group *g, uint32_t rank, uint32_t k, bool mac, uint32_t number) {
    const cdp_os *os = cdp_os_default();
    double spent = processor_us(), took;
    uint64_t began;
    check(cdp_barrier(g));
    began = os->now_ns(os->user);
    for (uint32_t i = 0; i < cases[k].times; ++i)
        once(g, rank, cases[k].bytes);
    took = (double)(os->now_ns(os->user) - began) / 1000;
    spent = processor_us() - spent;
    check(cdp_allreduce(g, NULL, &spent, 1, CDP_DTYPE_F64, CDP_REDUCE_SUM));
    us[k][mac][number] = took / cases[k].times;
    cpu[k][mac][number] = spent / cases[k].times;
}

static void print(uint32_t passes) {
    printf("two ranks over TCP on this machine, medians of %u passes\n", passes);
    for (uint32_t k = 0; k < CASES; ++k) {
        double t[2], c[2];
        for (uint32_t mac = 0; mac < 2; ++mac) {
            t[mac] = median(us[k][mac], passes);
            c[mac] = median(cpu[k][mac], passes);
        }
        if (k == 0) /* there and back */
            printf("%-15s %8.2f us    with mac %8.2f us    ratio %.2f", cases[k].name, t[0] / 2,
                t[1] / 2, t[1] / t[0]);
        else
            printf("%-15s %8.2f GB/s  with mac %8.2f GB/s  ratio %.2f", cases[k].name,
                cases[k].bytes / t[0] / 1000, cases[k].bytes / t[1] / 1000, t[1] / t[0]);
        printf(
            "    processor time %.1f us, with mac %.1f us, ratio %.2f\n", c[0], c[1], c[1] / c[0]);
    }
}

int main(int argc, char **argv) {
    const uint32_t passes = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 20;
    cdp_group *g[2] = {NULL, NULL};
    cdp_tcp_desc d;
    uint32_t rank = 1;
    pid_t child;
    int status = 1;
    if (!passes || passes > PASSES_MAX) return 2;
    memset(&d, 0, sizeof d);
    d.group.world_size = 2;
    d.no_shared_memory = true;
    d.job_key = "a key of this benchmark";
    memory = (uint8_t *)calloc(1, 16u << 20);
    child = fork();
    if (child > 0) rank = 0;
    d.group.rank = rank;
    for (uint32_t mac = 0; mac < 2; ++mac) {
        d.mac = mac;
        d.master_port = (uint16_t)(23571 + mac);
        check(cdp_init(&d, &g[mac]));
    }
    for (uint32_t n = 0; n < passes; ++n)
        for (uint32_t k = 0; k < CASES; ++k)
            for (uint32_t i = 0; i < 2; ++i)
                pass(g[(n + i) % 2], rank, k, (n + i) % 2, n);
    cdp_group_destroy(g[1]);
    cdp_group_destroy(g[0]);
    free(memory);
    if (rank == 1) exit(0);
    print(passes);
    waitpid(child, &status, 0);
    return status != 0;
}
