/*  doctor.c - can every rank reach every other one, over which addresses, and how fast?

        gcc -O2 tools/doctor.c -o doctor -pthread -lm
        gcc -O2 tools/cdprun.c -o cdprun -pthread -lm
        ./cdprun -n 4 ./doctor                 or as the job itself starts: torchrun, mpirun, srun
        ./doctor

    Rank 0 prints two tables with a row for each rank: the round trip to each other rank in
    microseconds, or what went wrong, and how many MB a second go each way, at once. It judges: a
    link is slow if it needs three times as long as the middle one of its kind, within a host or
    between hosts. Above the tables each rank prints the addresses of its links. Exit code 0: all
    pairs can talk. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WAIT_MS 3000 /* for one pair */
#define ROUNDS 20
#define MIB (1u << 20)

/* What a rank knows of the link to another one. */
typedef struct trip {
    float us;  /* there and back, the middle one of some; < 0: they cannot talk */
    float mbs; /* each way */
} trip;

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

/* MB a second that go each way while both send, of the best of some exchanges; 0: it failed. */
static float speed(cdp_group *pair) {
    static uint8_t out[MIB], in[MIB];
    const uint32_t other = 1 - cdp_rank(pair);
    double best = 1e12;
    int i;
    for (i = 0; i < 8; ++i) {
        const double start = now_us();
        if (cdp_sendrecv(pair, out, MIB, other, in, MIB, other, CDP_DTYPE_U8, 1) != CDP_OK)
            return 0;
        if (now_us() - start < best) best = now_us() - start;
    }
    return (float)(MIB / best);
}

static int by_size(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static trip visit(cdp_group *pair) {
    const trip none = {-1, 0};
    float us[ROUNDS];
    trip t;
    int i;
    if (cdp_barrier(pair) != CDP_OK) return none; /* waits until the other one is here */
    for (i = 0; i < ROUNDS; ++i) {
        const double start = now_us();
        if (cdp_barrier(pair) != CDP_OK) return none;
        us[i] = (float)(now_us() - start);
    }
    qsort(us, ROUNDS, sizeof *us, by_size);
    t.us = us[ROUNDS / 2];
    t.mbs = speed(pair);
    return t.mbs > 0 ? t : none;
}

/* Whom rank `r` visits in round `k`, so that all pairs meet in n - 1 rounds and nobody waits for
   a third one: the last one stays, the others move around a table. n is even; a rank that does
   not exist is a pause. */
static uint32_t partner(uint32_t r, uint32_t k, uint32_t n) {
    const uint32_t m = n - 1;
    if (r == m) return k * (n / 2) % m; /* that p for which 2 p = k modulo m */
    return (2 * r) % m == k % m ? m : (k + m - r) % m;
}

/* What all ranks have told rank 0. */
typedef struct rows {
    uint32_t n;
    const trip *trips;     /* n rows of n */
    const uint32_t *hosts; /* a number for the host of each rank */
    const char *answered;
} rows;

static const trip *at(const rows *all, uint32_t r, uint32_t c) {
    return &all->trips[r * all->n + c];
}

/* Returns how many pairs cannot talk. */
static int print_table(const rows *all, const char *title, int speeds) {
    int wrong = 0;
    uint32_t r, c;
    printf("%8s", "from");
    for (c = 0; c < all->n; ++c)
        printf(" %8u", c);
    printf("   %s\n", title);
    for (r = 0; r < all->n; ++r) {
        printf("%8u", r);
        for (c = 0; c < all->n; ++c) {
            const trip *t = at(all, r, c);
            const int bad = r != c && (!all->answered[r] || t->us < 0);
            wrong += bad;
            if (r == c)
                printf(" %8s", "-");
            else if (bad)
                printf(" %8s", all->answered[r] ? "x" : "?");
            else
                printf(" %8.0f", (double)(speeds ? t->mbs : t->us));
        }
        printf("\n");
    }
    return wrong;
}

/* Links of one kind whose numbers are three times as bad as the middle one; returns how many. */
static int judge(const rows *all, int within, int speeds) {
    const char *kind = within ? "within a host" : "between hosts";
    float *const v = (float *)calloc((size_t)all->n * all->n, sizeof *v);
    uint32_t r, c, count = 0;
    int slow = 0;
    for (r = 0; v && r < all->n; ++r)
        for (c = 0; c < all->n; ++c)
            if (r != c && all->answered[r] && at(all, r, c)->us >= 0
                && (all->hosts[r] == all->hosts[c]) == within)
                v[count++] = speeds ? 1 / at(all, r, c)->mbs : at(all, r, c)->us;
    if (count) {
        qsort(v, count, sizeof *v, by_size);
        const float middle = v[count / 2], worst = v[count - 1];
        if (speeds)
            printf("%s: %.0f MB a second in the middle, %.0f at least\n", kind, 1 / (double)middle,
                1 / (double)worst);
        else
            printf(
                "%s: %.0f us in the middle, %.0f at most\n", kind, (double)middle, (double)worst);
        for (r = 0; r < all->n; ++r)
            for (c = r + 1; c < all->n; ++c) {
                const trip *t = at(all, r, c);
                if (!all->answered[r] || t->us < 0 || (all->hosts[r] == all->hosts[c]) != within
                    || (speeds ? 1 / t->mbs : t->us) <= 3 * middle)
                    continue;
                ++slow;
                printf("slow: rank %u and rank %u, %.0f us and %.0f MB a second\n", r, c,
                    (double)t->us, (double)t->mbs);
            }
    }
    free(v);
    return slow;
}

static int print_all(const rows *all) {
    const int wrong = print_table(
        all, "microseconds there and back; x: cannot talk, ?: no answer from this rank", 0);
    int slow = 0, within;
    printf("\n");
    (void)print_table(all, "MB a second each way, both at once", 1);
    printf("\n");
    for (within = 1; within >= 0; --within)
        slow += judge(all, within, 0) + judge(all, within, 1);
    if (wrong)
        printf("FAIL: %d of %u links do not work\n", wrong, all->n * (all->n - 1));
    else if (slow)
        printf(
            "PASS: all ranks can talk; %d numbers are three times as bad as their kind's\n", slow);
    else
        printf("PASS: all ranks can talk, and no link is slow beside others\n");
    fflush(stdout);
    return wrong;
}

/* A number that ranks of one host share. */
static uint32_t this_host(void) {
    char name[256] = "";
    uint32_t hash = 2166136261u, i;
    (void)gethostname(name, sizeof name - 1);
    for (i = 0; name[i]; ++i)
        hash = (hash ^ (uint8_t)name[i]) * 16777619u;
    return hash;
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
    trip *row;          /* n rows of n; only rank 0 ever has more than its own row */
    uint32_t *hosts;    /* likewise */
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
    v->row = (trip *)calloc((size_t)n * n, sizeof *v->row);
    v->hosts = (uint32_t *)calloc(n, sizeof *v->hosts);
    v->answered = (char *)calloc(n, 1);
    return v->pairs && v->works && v->status && v->row && v->hosts && v->answered;
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
    free(v->hosts);
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
        v->row[me * v->n + k].us = *st == CDP_OK ? 0 : -1;
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

/* A rank's row and its host, to rank 0 through their pair. */
static cdp_status pass_row(visits *v, uint32_t of, cdp_group *pair) {
    cdp_status st = cdp_broadcast(pair, &v->row[of * v->n], 2 * (uint64_t)v->n, CDP_DTYPE_F32, 1);
    if (st == CDP_OK) st = cdp_broadcast(pair, &v->hosts[of], 1, CDP_DTYPE_U32, 1);
    return st;
}

/* Every rank sends its row to rank 0; a rank that cannot has said so on stderr. Returns what went
   wrong. */
static int collect(visits *v) {
    const rows all = {v->n, v->row, v->hosts, v->answered};
    uint32_t k;
    v->answered[v->me] = 1;
    v->hosts[v->me] = this_host();
    if (v->me != 0) return v->status[0] == CDP_OK && pass_row(v, v->me, v->pairs[0]) != CDP_OK;
    for (k = 1; k < v->n; ++k)
        v->answered[k] = v->status[k] == CDP_OK && pass_row(v, k, v->pairs[k]) == CDP_OK;
    return print_all(&all);
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
            wrong |= k != v.me && v.row[v.me * v.n + k].us < 0;
    }
    visits_close(&v);
    return wrong != 0;
}
