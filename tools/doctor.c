/*  doctor.c - can every rank reach every other one, over which addresses, and how fast?

        gcc -O2 tools/doctor.c -o doctor -pthread -lm
        gcc -O2 tools/cdprun.c -o cdprun -pthread -lm
        ./cdprun -n 4 ./doctor                 or as the job itself starts: torchrun, mpirun, srun
        ./doctor

    Rank 0 prints a table with a row for each rank: the round trip to each other rank in
    microseconds, or what went wrong. Below it, each rank prints the addresses of its links. Exit
    code 0: all pairs can talk. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
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

/* What this rank knows of the others; every array has an element for each rank. */
typedef struct visits {
    cdp_group *world;
    uint32_t me, n;
    cdp_group **pairs;  /* with each other rank */
    cdp_work *works;    /* the first barriers of the pairs */
    cdp_status *status; /* how they ended */
    float *row;         /* n rows of n numbers; only rank 0 ever has more than its own row */
    char *answered;     /* which rows are here */
} visits;

static int visits_open(visits *v, cdp_group *world) {
    const uint32_t n = cdp_size(world);
    v->world = world;
    v->me = cdp_rank(world);
    v->n = n;
    v->pairs = (cdp_group **)calloc(n, sizeof *v->pairs);
    v->works = (cdp_work *)calloc(n, sizeof *v->works);
    v->status = (cdp_status *)calloc(n, sizeof *v->status);
    v->row = (float *)calloc((size_t)n * n, sizeof *v->row);
    v->answered = (char *)calloc(n, 1);
    return v->pairs && v->works && v->status && v->row && v->answered;
}

static void visits_close(visits *v) {
    uint32_t k;
    for (k = 0; v->pairs && k < v->n; ++k)
        cdp_group_destroy(v->pairs[k]);
    cdp_group_destroy(v->world);
    free(v->pairs);
    free(v->works);
    free(v->status);
    free(v->row);
    free(v->answered);
}

/* Connects to all others at once: who waits in vain for one does not keep the others waiting. */
static void connect_all(visits *v) {
    const uint32_t me = v->me;
    const double start = now_us();
    uint32_t k;
    for (k = 0; k < v->n; ++k)
        if (k != me) v->status[k] = begin(v->world, me, k, &v->pairs[k], &v->works[k]);
    for (k = 0; k < v->n; ++k) {
        const double left_ms = WAIT_MS - (now_us() - start) / 1000;
        cdp_status *const st = &v->status[k];
        if (k == me) continue;
        if (*st == CDP_OK)
            *st = cdp_work_wait_for(v->works[k], left_ms > 1 ? (uint32_t)left_ms : 1);
        v->row[me * v->n + k] = *st == CDP_OK ? 0 : -1;
        if (*st == CDP_PENDING || *st == CDP_ERR_TIMEOUT)
            fprintf(stderr, "rank %u to rank %u: no connection within %u ms\n", me, k, WAIT_MS);
        else if (*st != CDP_OK)
            fprintf(stderr, "rank %u to rank %u: %s\n", me, k, cdp_last_error()->text);
    }
}

static void visit_all(visits *v) {
    const uint32_t even = v->n + v->n % 2;
    uint32_t k;
    for (k = 0; k + 1 < even; ++k) {
        const uint32_t other = partner(v->me, k, even);
        if (other < v->n && other != v->me && v->status[other] == CDP_OK)
            v->row[v->me * v->n + other] = visit(v->pairs[other]);
    }
}

/* Every rank sends its row to rank 0, through their pair; a rank that cannot has said so on
   stderr. Returns what went wrong. */
static int collect(visits *v) {
    const uint32_t n = v->n;
    uint32_t k;
    v->answered[v->me] = 1;
    if (v->me != 0) {
        float *const mine = v->row + v->me * n;
        return v->status[0] == CDP_OK
            && cdp_broadcast(v->pairs[0], mine, n, CDP_DTYPE_F32, 1) != CDP_OK;
    }
    for (k = 1; k < n; ++k)
        v->answered[k] = v->status[k] == CDP_OK
            && cdp_broadcast(v->pairs[k], v->row + k * n, n, CDP_DTYPE_F32, 1) == CDP_OK;
    return print_table(n, v->row, v->answered);
}

/* Nobody leaves while rank 0 still looks. Returns what went wrong. */
static int leave(visits *v) {
    int wrong = 0;
    uint32_t k;
    for (k = 0; k < v->n; ++k)
        if ((k == 0) != (v->me == 0) && v->status[k] == CDP_OK)
            wrong |= cdp_barrier(v->pairs[k]) != CDP_OK;
    return wrong;
}

int main(int argc, char **argv) {
    if (argc > 1) {
        puts("doctor: can every rank reach every other one, over which addresses, and how fast?\n"
             "usage: cdprun -n 4 ./doctor");
        return strcmp(argv[1], "--help") ? 2 : 0;
    }
    cdp_tcp_desc desc = {0};
    cdp_group *world;
    visits v = {0};
    int wrong = 1;
    uint32_t k;
    desc.group.timeout_ms = 4 * WAIT_MS;
    if (cdp_init_from_env(&desc, &world) != CDP_OK) return cdp_print_error(stderr);
    if (visits_open(&v, world)) {
        connect_all(&v);
        visit_all(&v);
        print_links(world);
        wrong = collect(&v);
        wrong |= leave(&v);
        for (k = 0; k < v.n; ++k)
            wrong |= k != v.me && v.row[v.me * v.n + k] < 0;
    }
    visits_close(&v);
    return wrong != 0;
}
