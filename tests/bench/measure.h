/* What the programs of this folder that measure collectives have in common, so that every
   library is measured by the same code: options, contents and their check, timing, and lines of
   output. C and C++.

   A world is a set of ranks of one library on this machine. All ranks share one file (--meet) in
   which they meet before each call; the last one to arrive takes the time, and the call has
   ended when the slowest rank has. Several worlds may share a file (--turn I/N): they take
   turns, measurement by measurement, and sleep while it is not their turn, so that a machine
   that becomes slower meets all of them. */
#ifndef MEASURE_H
#define MEASURE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#define M_RANKS 16
#define M_SAMPLES 20000
#define M_WORLDS 16
#define M_SIZES 32
#define M_MIB (1ull << 20)

typedef enum m_op {
    M_ALLREDUCE,
    M_REDUCE_SCATTER,
    M_ALLGATHER,
    M_BROADCAST,
    M_ALLTOALL,
    M_BARRIER,
    M_PINGPONG,
    M_DUPLEX,
    M_ONEWAY,
    M_EXCHANGE,
    M_MEMCPY,
    M_ADD,
    M_OPS
} m_op;
static const char *const m_names[M_OPS] = {"allreduce", "reduce_scatter", "allgather", "broadcast",
    "alltoall", "barrier", "pingpong", "duplex", "oneway", "exchange", "memcpy", "add"};

typedef struct m_world { /* in the shared file */
    uint32_t arrived, generation, more[2], wrong;
    double start[M_SAMPLES], end[M_RANKS][M_SAMPLES];
} m_world;

typedef struct m_shared {
    uint32_t turn, failed, ready, started;
    m_world worlds[M_WORLDS];
} m_shared;

typedef struct m_options {
    bool ops[M_OPS];
    uint64_t sizes[M_SIZES];
    uint32_t size_count, ranks, rounds, turn, turns;
    double seconds;
    uint32_t iterations;
    const char *meet;
    bool bind, header;
} m_options;

/* What is measured now. `variant` is the library's own: 0, and on as long as the call says that
   there is one more. */
typedef struct m_case {
    m_op op;
    uint64_t bytes, count; /* count: f32 per rank's part, or of the whole vector */
    uint32_t rank, ranks, variant;
    float *in, *out;
    const char *transport; /* set by the library when a variant needs a name */
} m_case;

static m_options m_opt;
static m_shared *m_all;
static m_world *m_here;
static uint32_t m_rank;
/* memory that a library is to be measured with (default: any) */
static void *(*m_alloc)(uint64_t bytes);

static double m_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void m_die(const char *what) {
    fprintf(stderr, "rank %u of %u: %s%s%s\n", m_rank, m_opt.ranks, what, errno ? ": " : "",
        errno ? strerror(errno) : "");
    if (m_all) __atomic_store_n(&m_all->failed, 1, __ATOMIC_RELEASE);
    _exit(1);
}

/* ---- options ---- */

static uint64_t m_size_of(const char *text) {
    char *end;
    uint64_t n = strtoull(text, &end, 10);
    if (*end == 'K' || *end == 'k')
        n *= 1024;
    else if (*end == 'M' || *end == 'm')
        n *= M_MIB;
    return n;
}

/* Where the scheduler decides, two ranks now and then share a core for a whole measurement. */
static void m_bind(uint32_t rank) {
#ifdef __linux__
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(rank % (uint32_t)sysconf(_SC_NPROCESSORS_ONLN), &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) m_die("sched_setaffinity");
#else
    (void)rank;
#endif
}

static int m_usage(const char *name, FILE *f, int code) {
    fprintf(f,
        "%s [--op LIST] [--size LIST] [--ranks N] [--seconds S] [--iterations N] [--rounds N] "
        "[--meet FILE --turn I/N] [--bind] [--no-header]\n"
        "  --op LIST        of "
        "allreduce,reduce_scatter,allgather,broadcast,alltoall,barrier,pingpong (default: these), "
        "or of\n"
        "                   duplex,oneway,exchange,memcpy,add where the program has them\n"
        "  --size LIST      in bytes, or as 64K, 1M (default: 4,256,4K,64K,1M,16M,64M)\n"
        "  --ranks N        2 to 16 (default: 2)\n"
        "  --seconds S      end a measurement after S seconds (default: 0.5)\n"
        "  --iterations N   or after N calls (default: 2000); at least 5 in any case\n"
        "  --rounds N       the whole list again and again: a line for each (default: 1)\n"
        "  --meet FILE      where the ranks of several worlds meet; --turn I/N: this is world I of "
        "N\n"
        "  --bind           rank R runs on core R alone, counted again from the first where there "
        "are fewer\n"
        "One tab-separated line for each measurement:\n"
        "  lib transport op ranks bytes median_us min_us p90_us busbw_GBps iterations\n"
        "busbw is that of nccl-tests. Each result is checked in full before and after.\n",
        name);
    return code;
}

static bool m_ops_of(char *list) {
    char *at, *save = NULL;
    int k;
    memset(m_opt.ops, 0, sizeof m_opt.ops);
    for (at = strtok_r(list, ",", &save); at; at = strtok_r(NULL, ",", &save)) {
        for (k = 0; k < M_OPS && strcmp(at, m_names[k]) != 0; ++k) {
        }
        if (k == M_OPS) return false;
        m_opt.ops[k] = true;
    }
    return true;
}

static void m_sizes_of(char *list) {
    char *at, *save = NULL;
    m_opt.size_count = 0;
    for (at = strtok_r(list, ",", &save); at && m_opt.size_count < M_SIZES;
         at = strtok_r(NULL, ",", &save))
        m_opt.sizes[m_opt.size_count++] = m_size_of(at);
}

/* -1: go on; else the exit status. */
static int m_parse(int argc, char **argv) {
    static char sizes[] = "4,256,4K,64K,1M,16M,64M";
    int a;
    for (a = M_ALLREDUCE; a <= M_PINGPONG; ++a)
        m_opt.ops[a] = true;
    m_sizes_of(sizes);
    m_opt.ranks = 2;
    m_opt.rounds = m_opt.turns = 1;
    m_opt.seconds = 0.5;
    m_opt.iterations = 2000;
    m_opt.header = true;
    for (a = 1; a < argc; ++a) {
        const char *o = argv[a];
        if (strcmp(o, "--help") == 0) return m_usage(argv[0], stdout, 0);
        if (strcmp(o, "--no-header") == 0) {
            m_opt.header = false;
            continue;
        }
        if (strcmp(o, "--bind") == 0) {
            m_opt.bind = true;
            continue;
        }
        if (++a == argc) return m_usage(argv[0], stderr, 2);
        if (strcmp(o, "--op") == 0 && m_ops_of(argv[a]))
            continue;
        else if (strcmp(o, "--size") == 0)
            m_sizes_of(argv[a]);
        else if (strcmp(o, "--ranks") == 0)
            m_opt.ranks = (uint32_t)atoi(argv[a]);
        else if (strcmp(o, "--seconds") == 0)
            m_opt.seconds = atof(argv[a]);
        else if (strcmp(o, "--iterations") == 0)
            m_opt.iterations = (uint32_t)atoi(argv[a]);
        else if (strcmp(o, "--rounds") == 0)
            m_opt.rounds = (uint32_t)atoi(argv[a]);
        else if (strcmp(o, "--meet") == 0)
            m_opt.meet = argv[a];
        else if (strcmp(o, "--turn") == 0
            && sscanf(argv[a], "%u/%u", &m_opt.turn, &m_opt.turns) == 2)
            continue;
        else
            return m_usage(argv[0], stderr, 2);
    }
    if (m_opt.iterations > M_SAMPLES) m_opt.iterations = M_SAMPLES;
    if (m_opt.ranks < 1 || m_opt.ranks > M_RANKS || !m_opt.size_count || m_opt.turn >= m_opt.turns
        || m_opt.turns > M_WORLDS)
        return m_usage(argv[0], stderr, 2);
    return -1;
}

/* ---- meeting ---- */

static void m_open(void) {
    int fd = -1;
    if (m_opt.meet
        && ((fd = open(m_opt.meet, O_RDWR | O_CREAT, 0600)) < 0
            || ftruncate(fd, (off_t)sizeof *m_all) != 0))
        m_die(m_opt.meet);
    m_all = (m_shared *)mmap(NULL, sizeof *m_all, PROT_READ | PROT_WRITE,
        fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
    if (m_all == MAP_FAILED) {
        m_all = NULL;
        m_die("mmap");
    }
    if (fd >= 0) close(fd);
    m_here = &m_all->worlds[m_opt.turn];
}

/* All ranks of this world; the last one takes the time. Who has a core of its own looks, others
   let the next one run. */
static void m_meet(double *start) {
    static long cores;
    const uint32_t generation = __atomic_load_n(&m_here->generation, __ATOMIC_ACQUIRE);
    if (!cores) cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (__atomic_add_fetch(&m_here->arrived, 1, __ATOMIC_ACQ_REL) == m_opt.ranks) {
        __atomic_store_n(&m_here->arrived, 0, __ATOMIC_RELAXED);
        if (start) *start = m_now();
        __atomic_add_fetch(&m_here->generation, 1, __ATOMIC_ACQ_REL);
        return;
    }
    while (__atomic_load_n(&m_here->generation, __ATOMIC_ACQUIRE) == generation) {
        if (__atomic_load_n(&m_all->failed, __ATOMIC_RELAXED)) _exit(1);
        if ((long)m_opt.ranks > cores) sched_yield();
    }
}

/* Sleep until it is this world's turn. */
static void m_turn_begin(uint32_t turn) {
    while (__atomic_load_n(&m_all->turn, __ATOMIC_ACQUIRE) != turn) {
        if (__atomic_load_n(&m_all->failed, __ATOMIC_RELAXED)) _exit(1);
        usleep(2000);
    }
}

static void m_turn_end(uint32_t turn) {
    m_meet(NULL);
    if (m_rank == 0) __atomic_store_n(&m_all->turn, turn + 1, __ATOMIC_RELEASE);
}

/* ---- contents: small whole numbers, so that every sum is exact ---- */

static float m_value(uint32_t rank, uint64_t i) {
    return (float)((i * 7 + rank * 13 + 3) % 61);
}

static void m_fill(m_case *c) {
    const uint64_t n = c->bytes / 4, all = c->op == M_ALLGATHER ? c->count : n;
    uint64_t i;
    for (i = 0; i < all; ++i)
        c->in[i] = m_value(c->rank, i);
    for (i = 0; i < n; ++i)
        c->out[i] = -1;
    if (c->op == M_BROADCAST && c->rank == 0) memcpy(c->out, c->in, c->bytes);
}

static float m_sum(uint32_t ranks, uint64_t i) {
    float s = 0;
    uint32_t r;
    for (r = 0; r < ranks; ++r)
        s += m_value(r, i);
    return s;
}

static bool m_right(const m_case *c) {
    const uint64_t n = c->bytes / 4, p = c->count;
    uint64_t i;
    switch (c->op) {
    case M_ALLREDUCE:
        for (i = 0; i < n && c->out[i] == m_sum(c->ranks, i); ++i) {
        }
        return i == n;
    case M_REDUCE_SCATTER:
        for (i = 0; i < p && c->out[i] == m_sum(c->ranks, c->rank * p + i); ++i) {
        }
        return i == p;
    case M_ALLGATHER:
        for (i = 0; i < n && c->out[i] == m_value((uint32_t)(i / p), i % p); ++i) {
        }
        return i == n;
    case M_BROADCAST:
        for (i = 0; i < n && c->out[i] == m_value(0, i); ++i) {
        }
        return i == n;
    case M_ALLTOALL:
        for (i = 0; i < n && c->out[i] == m_value((uint32_t)(i / p), c->rank * p + i % p); ++i) {
        }
        return i == n;
    case M_PINGPONG:
        for (i = 0; c->rank == 0 && i < n && c->out[i] == m_value(0, i); ++i) {
        }
        return c->rank != 0 || i == n;
    default: return true;
    }
}

/* ---- timing ---- */

static int m_compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double m_busbw(const m_case *c, double us) {
    const double p = c->ranks, rate = us > 0 ? (double)c->bytes / us / 1e3 : 0;
    switch (c->op) {
    case M_ALLREDUCE: return rate * 2 * (p - 1) / p;
    case M_REDUCE_SCATTER:
    case M_ALLGATHER:
    case M_ALLTOALL: return rate * (p - 1) / p;
    case M_PINGPONG: return rate * 2; /* there and back */
    default: return rate;
    }
}

static void m_print(const char *lib, const m_case *c, uint32_t n) {
    static double t[M_SAMPLES];
    uint32_t i, r;
    double mid;
    for (i = 0; i < n; ++i)
        for (t[i] = 0, r = 0; r < m_opt.ranks; ++r)
            t[i] = t[i] > m_here->end[r][i] - m_here->start[i]
                ? t[i]
                : m_here->end[r][i] - m_here->start[i];
    qsort(t, n, sizeof *t, m_compare);
    mid = t[n / 2];
    printf("%s\t%s\t%s\t%u\t%llu\t%.2f\t%.2f\t%.2f\t%.3f\t%u\n", lib, c->transport, m_names[c->op],
        c->ranks, (unsigned long long)c->bytes, mid, t[0], t[(uint64_t)n * 9 / 10], m_busbw(c, mid),
        n);
    fflush(stdout);
}

/* The library's one call. True: there is another variant of this case. */
typedef bool (*m_call)(m_case *c);

/* Returns how many calls; rank 0 decides for all whether there is one more. */
static uint32_t m_repeat(m_case *c, m_call call, double seconds, uint32_t least, uint32_t most) {
    const double until = m_now() + seconds * 1e6;
    uint32_t i;
    for (i = 0; i < M_SAMPLES; ++i) {
        /* who is late still reads the last one */
        if (m_rank == 0) m_here->more[i % 2] = i < least || (i < most && m_now() < until);
        m_meet(&m_here->start[i]);
        if (!m_here->more[i % 2]) break;
        (void)call(c);
        m_here->end[m_rank][i] = m_now();
    }
    m_meet(NULL);
    return i;
}

static bool m_check(const char *lib, m_case *c, const char *when) {
    bool ok;
    m_meet(NULL);
    if (m_rank == 0) m_here->wrong = 0;
    m_meet(NULL);
    if (!m_right(c)) __atomic_store_n(&m_here->wrong, 1, __ATOMIC_RELAXED);
    m_meet(NULL);
    ok = !m_here->wrong;
    if (!ok && m_rank == 0)
        fprintf(stderr, "# WRONG RESULT: %s %s %s, %u ranks, %llu bytes, %s\n", lib, c->transport,
            m_names[c->op], c->ranks, (unsigned long long)c->bytes, when);
    m_meet(NULL);
    return ok;
}

static bool m_measure(const char *lib, const char *transport, m_case *c, m_call call) {
    bool more = false, right = true;
    uint32_t n;
    c->variant = 0;
    do {
        c->transport = transport;
        m_fill(c);
        m_meet(NULL);
        more = call(c);
        if (m_check(lib, c, "first call")) {
            /* warm-up */
            (void)m_repeat(c, call, m_opt.seconds / 10 < 0.05 ? m_opt.seconds / 10 : 0.05, 2, 200);
            n = m_repeat(c, call, m_opt.seconds, 5, m_opt.iterations);
            if (!m_check(lib, c, "last call"))
                right = false;
            else if (m_rank == 0)
                m_print(lib, c, n);
        } else {
            right = false;
        }
        ++c->variant;
    } while (more);
    return right;
}

/* Everything that was asked for, of what `has` names. Every rank calls it. False: some result
   was wrong. */
static bool m_run(const char *lib, const char *transport, const bool has[M_OPS], m_call call) {
    uint64_t room = 4096;
    uint32_t k, round, s, turn = 0;
    bool right = true;
    m_case c;
    memset(&c, 0, sizeof c);
    c.rank = m_rank;
    c.ranks = m_opt.ranks;
    for (s = 0; s < m_opt.size_count; ++s)
        room = room > m_opt.sizes[s] + 4096 ? room : m_opt.sizes[s] + 4096;
    c.in = (float *)(m_alloc ? m_alloc(room)
                             : aligned_alloc(4096, (size_t)(room + 4095) / 4096 * 4096));
    c.out = (float *)(m_alloc ? m_alloc(room)
                              : aligned_alloc(4096, (size_t)(room + 4095) / 4096 * 4096));
    if (!c.in || !c.out) m_die("no memory");
    memset(c.in, 0, (size_t)room);
    memset(c.out, 0, (size_t)room);
    if (m_rank == 0 && m_opt.header && m_opt.turn == 0)
        printf("# "
               "lib\ttransport\top\tranks\tbytes\tmedian_us\tmin_us\tp90_us\tbusbw_"
               "GBps\titerations\n");
    for (round = 0; round < m_opt.rounds; ++round)
        for (k = 0; k < M_OPS; ++k)
            for (s = 0; m_opt.ops[k] && s < (k == M_BARRIER ? 1 : m_opt.size_count);
                 ++s, turn += m_opt.turns) {
                const bool parts = k == M_REDUCE_SCATTER || k == M_ALLGATHER || k == M_ALLTOALL;
                const uint64_t unit = parts ? 4ull * m_opt.ranks : 4;
                m_turn_begin(turn + m_opt.turn);
                c.op = (m_op)k;
                c.bytes = k == M_BARRIER ? 0 : (m_opt.sizes[s] + unit - 1) / unit * unit;
                c.count = parts ? c.bytes / 4 / m_opt.ranks : c.bytes / 4;
                m_meet(NULL);
                if (has[k] && !((k == M_PINGPONG || k == M_ONEWAY) && m_opt.ranks != 2)
                    && !m_measure(lib, transport, &c, call))
                    right = false;
                m_turn_end(turn + m_opt.turn);
            }
    if (m_alloc) return right; /* it goes with the library */
    free(c.in);
    free(c.out);
    return right;
}

/* ---- ranks as children ---- */

/* Forks the ranks, waits for them, and ends the others when one fails. Returns the exit status. */
static __attribute__((unused)) int m_fork(int (*func)(uint32_t rank)) {
    pid_t pids[M_RANKS];
    uint32_t r, k;
    int bad = 0;
    fflush(stdout);
    for (r = 0; r < m_opt.ranks; ++r) {
        pids[r] = fork();
        if (pids[r] < 0) m_die("fork");
        if (pids[r]) continue;
#ifdef __linux__
        prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
        m_rank = r;
        if (m_opt.bind) m_bind(r);
        k = (uint32_t)func(r);
        fflush(stdout);
        _exit((int)k);
    }
    for (r = 0; r < m_opt.ranks; ++r) {
        int status = 0;
        const pid_t p = wait(&status);
        for (k = 0; k < m_opt.ranks; ++k)
            if (pids[k] == p) pids[k] = 0;
        if (status == 0 || bad) continue;
        bad = 1;
        __atomic_store_n(&m_all->failed, 1, __ATOMIC_RELEASE);
        for (k = 0; k < m_opt.ranks; ++k)
            if (pids[k]) kill(pids[k], SIGKILL);
    }
    return bad;
}
#endif
