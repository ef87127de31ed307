/*  doctor.c - can every rank reach every other one, over which addresses, and how fast?

    gcc -O2 examples/doctor.c -o doctor -pthread -lm
    gcc -O2 examples/cdprun.c -o cdprun -pthread -lm
    ./cdprun -n 4 ./doctor                 or, as the job itself is started: torchrun, mpirun, srun
    ./doctor

    Rank 0 prints a table: a row for each rank, and in it the microseconds from it to each other one
    and back, or what went
    wrong. Below it, each rank says over which addresses its links run. Ends with 0 when all pairs
    can talk.               */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WAIT_MS 3000 /* for one pair */
#define ROUNDS 20

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* A group of two: when they cannot talk, it fails alone, and the others go on. Its first barrier
   makes the link. */
static cdp_status begin(
    cdp_group *world, uint32_t me, uint32_t other, cdp_group **pair, cdp_work *work) {
    const uint32_t two[2] = {me < other ? me : other, me < other ? other : me};
    const cdp_status st = cdp_group_new(world, two, 2, pair);
    return st == CDP_OK ? cdp_barrier_async(*pair, work) : st;
}

/* Microseconds there and back, or < 0. */
static float visit(cdp_group *pair) {
    double start = 0;
    int i;
    for (i = 0; i <= ROUNDS; ++i) { /* the first one waits until the other one is here */
        if (i == 1) start = now_us();
        if (cdp_barrier(pair) != CDP_OK) return -1;
    }
    return (float)((now_us() - start) / ROUNDS);
}

/* Whom rank `r` visits in round `k`, so that all pairs meet in n - 1 rounds and nobody waits for
   a third one: the last one stays, the others move around a table. n is even; a rank that does
   not exist is a pause. */
static uint32_t partner(uint32_t r, uint32_t k, uint32_t n) {
    const uint32_t m = n - 1;
    if (r == m) return k * (n / 2) % m; /* that p for which 2 p = k modulo m */
    return (2 * r) % m == k % m ? m : (k + m - r) % m;
}

static int print_table(uint32_t n, const float *rows, const char *answered) {
    int wrong = 0;
    uint32_t r, c;
    printf("%8s", "from");
    for (c = 0; c < n; ++c)
        printf(" %8u", c);
    printf("   microseconds there and back; x: cannot talk, ?: no answer from this rank\n");
    for (r = 0; r < n; ++r) {
        printf("%8u", r);
        for (c = 0; c < n; ++c) {
            if (r == c)
                printf(" %8s", "-");
            else if (!answered[r])
                printf(" %8s", "?");
            else if (rows[r * n + c] < 0)
                printf(" %8s", "x");
            else
                printf(" %8.0f", (double)rows[r * n + c]);
            if (r != c && (!answered[r] || rows[r * n + c] < 0)) ++wrong;
        }
        printf("\n");
    }
    fflush(stdout);
    return wrong;
}

/* What cdp_describe() says about links. */
static void print_links(cdp_group *world) {
    static char text[1 << 16];
    const char *links;
    cdp_describe(world, text, sizeof text);
    links = strstr(text, "links:");
    printf("rank %u, %s", cdp_rank(world), links ? links : "no links\n");
}

int main(void) {
    cdp_tcp_desc desc = {0};
    cdp_group *world, **pairs;
    uint32_t me, n, even, k;
    int wrong = 0;
    desc.group.timeout_ms = 4 * WAIT_MS;
    if (cdp_init_from_env(&desc, &world) != CDP_OK) return cdp_print_error(stderr);
    me = cdp_rank(world);
    n = cdp_size(world);
    even = n + n % 2;
    pairs = (cdp_group **)calloc(n, sizeof *pairs);
    float *row = (float *)calloc((size_t)n * n, sizeof *row);
    char *answered = (char *)calloc(n, 1);
    cdp_work *works = (cdp_work *)calloc(n, sizeof *works);
    cdp_status *status = (cdp_status *)calloc(n, sizeof *status);
    const double start = now_us();
    if (!pairs || !row || !answered || !works || !status) return 1;
    /* all at once: who waits in vain for one does not keep the others waiting */
    for (k = 0; k < n; ++k)
        if (k != me) status[k] = begin(world, me, k, &pairs[k], &works[k]);
    for (k = 0; k < n; ++k) {
        const double left_ms = WAIT_MS - (now_us() - start) / 1000;
        if (k == me) continue;
        if (status[k] == CDP_OK)
            status[k] = cdp_work_wait_for(works[k], left_ms > 1 ? (uint32_t)left_ms : 1);
        row[me * n + k] = status[k] == CDP_OK ? 0 : -1;
        if (status[k] == CDP_PENDING || status[k] == CDP_ERR_TIMEOUT)
            fprintf(stderr, "rank %u to rank %u: no connection within %u ms\n", me, k, WAIT_MS);
        else if (status[k] != CDP_OK)
            fprintf(stderr, "rank %u to rank %u: %s\n", me, k, cdp_last_error()->text);
    }
    for (k = 0; k + 1 < even; ++k) {
        const uint32_t other = partner(me, k, even);
        if (other < n && other != me && status[other] == CDP_OK)
            row[me * n + other] = visit(pairs[other]);
    }
    print_links(world);
    answered[me] = 1;
    if (me) { /* rank 0 wants to know; who cannot reach it has said so on stderr */
        if (status[0] == CDP_OK
            && cdp_broadcast(pairs[0], row + me * n, n, CDP_DTYPE_F32, 1) != CDP_OK)
            wrong = 1;
    } else {
        for (k = 1; k < n; ++k)
            answered[k] = status[k] == CDP_OK
                && cdp_broadcast(pairs[k], row + k * n, n, CDP_DTYPE_F32, 1) == CDP_OK;
        wrong = print_table(n, row, answered);
    }
    for (k = 0; k < n; ++k) /* nobody leaves while others still look */
        if ((k == 0) != (me == 0) && status[k] == CDP_OK && cdp_barrier(pairs[k]) != CDP_OK)
            wrong = 1;
    for (k = 0; k < n; ++k)
        wrong |= k != me && row[me * n + k] < 0;
    for (k = 0; k < n; ++k)
        cdp_group_destroy(pairs[k]);
    cdp_group_destroy(world);
    free(pairs);
    free(row);
    free(answered);
    free(works);
    free(status);
    return wrong != 0;
}
