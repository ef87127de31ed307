/* Measures cdp against what the sockets and the memory of this machine allow, both in the same run.

   bench [--quick] [--passes N] [--seconds S] [--only TEXT] [--list] [--help]

   The program forks its ranks; they talk over 127.0.0.1. Worlds of raw sockets and worlds of cdp
   alternate, pass by pass, so that a change of the machine's speed meets both. Every operation is
   checked for its full result before it is timed, warmed up, and then run back to back; each rank
   records each interval, and the slowest rank's counts. One tab-separated line for each
   measurement:

   lib  transport  op  ranks  bytes  median_us  min_us  p90_us  busbw_GBps  iterations

   busbw is that of nccl-tests: bytes over time, times 2(p-1)/p for allreduce and (p-1)/p for
   allgather, whose bytes are the whole result. Then come tables: ratios to the raw limits, calls
   per operation, DDP overlap, time to start.

   The limits, on p ranks:
     allreduce, small   p = 2, 4: recursive doubling written out with raw sockets (exchange), the
                        better of spinning and sleeping: log2 p rounds in which two processes send
                        each other n bytes
     allreduce, large   2n(p-1)/p bytes leave and reach each rank: at the rate of the raw duplex
                        (p = 4: ring of four processes), of the same number of bytes walked,
                        without the additions
     allgather          n(p-1)/p bytes each way, likewise
     broadcast          2 ranks: n bytes at the one-way rate; 4 ranks: n(p-1) bytes in all, at the
                        rate at which the ring of four processes moves bytes in all, since the
                        copies of all share the cores
     barrier            an exchange of 4 bytes */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#define MAX_RANKS 8
#define MAX_ITERATIONS 20000
#define MAX_SAMPLES 100000
#define MAX_CASES 128
#define MIB (1u << 20)

#define DDP_BYTES 25000000u
#define DDP_PARAMS 25u
#define DDP_BUCKET (5u * 1000 * 1000)

typedef enum op_kind {
    RAW_PINGPONG_BLOCK,
    RAW_PINGPONG_SPIN,
    RAW_EXCHANGE_BLOCK,
    RAW_EXCHANGE_SPIN,
    RAW_DUPLEX,
    RAW_ONEWAY,
    RAW_MEMCPY,
    RAW_ADD,
    CDP_ALLREDUCE,
    CDP_BROADCAST,
    CDP_ALLGATHER,
    CDP_BARRIER,
    DDP_BACKWARD,
    DDP_STEP,
    INIT,
    INIT_BARRIER
} op_kind;

typedef struct op_info {
    const char *lib, *transport, *name;
} op_info;

static const op_info infos[] = {
    {"raw", "tcp", "pingpong_block"},
    {"raw", "tcp", "pingpong_spin"},
    {"raw", "tcp", "exchange_block"},
    {"raw", "tcp", "exchange_spin"},
    {"raw", "tcp", "duplex"},
    {"raw", "tcp", "oneway"},
    {"raw", "mem", "memcpy"},
    {"raw", "mem", "add"},
    {"cdp", "tcp", "allreduce"},
    {"cdp", "tcp", "broadcast"},
    {"cdp", "tcp", "allgather"},
    {"cdp", "tcp", "barrier"},
    {"cdp", "tcp", "ddp_backward_alone"},
    {"cdp", "tcp", "ddp_step"},
    {"cdp", "tcp", "init"},
    {"cdp", "tcp", "init_barrier"},
};

typedef struct calls {
    double n[12];
} calls;
enum {
    CALL_SEND,
    CALL_RECV,
    CALL_RECV_NOTHING,
    CALL_POLL,
    CALL_CLOCK,
    CALL_LOCK,
    CALL_WAKE,
    CALL_YIELD,
    CALL_SLEEPS,
    CALL_PREEMPTED,
    CALL_USER_US,
    CALL_SYSTEM_US,
    CALL_COUNT
};
static const char *const call_names[CALL_COUNT] = {"send", "recv", "in vain", "poll", "clock",
    "lock", "wake", "yield", "sleeps", "preempt", "user us", "sys us"};

typedef struct test_case {
    op_kind op;
    uint32_t ranks;
    uint64_t bytes;
    uint64_t samples_used;
    double *samples;
    calls calls;   /* per operation, mean over the ranks */
    double hidden; /* DDP: mean of what the library says */
    uint32_t hidden_n;
} test_case;

typedef struct shared {
    uint32_t arrived, generation, failed;
    uint32_t iterations;
    double estimate_us, ready_us[MAX_RANKS], barrier_us[MAX_RANKS];
    double interval[MAX_RANKS][MAX_ITERATIONS];
    calls calls[MAX_RANKS];
    double per_unit_us;
    uint32_t case_count;
    test_case cases[MAX_CASES];
} shared;

static shared *sh;
static double seconds_each = 0.1;
static uint32_t pass_count = 4;
static uint64_t span = 64 * MIB; /* what the largest measurements walk through */
static bool counting, over_memory;
static const char *only;
static int links[MAX_RANKS][MAX_RANKS]; /* raw: links[me][peer] */
static uint32_t me, ranks;
static uint8_t *buf_a, *buf_b;
static cdp_group *group;
static cdp_ddp *ddp;
static uint32_t ddp_units; /* work of one slice of the synthetic backward */
static bool ddp_created;
static uint64_t ddp_seen_comm, ddp_seen_exposed;

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void die(const char *what) {
    fprintf(stderr, "bench: rank %u of %u: %s%s%s\n", me, ranks, what, errno ? ": " : "",
        errno ? strerror(errno) : "");
    sh->failed = 1;
    _exit(1);
}

static void die_cdp(const char *what) {
    fprintf(stderr, "bench: rank %u of %u: %s: ", me, ranks, what);
    cdp_print_error(stderr);
    sh->failed = 1;
    _exit(1);
}

/* All ranks of the world meet; memory alone, so that it measures nothing. */
static void meet(void) {
    const uint32_t generation = __atomic_load_n(&sh->generation, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&sh->arrived, 1, __ATOMIC_ACQ_REL) == ranks) {
        __atomic_store_n(&sh->arrived, 0, __ATOMIC_RELAXED);
        __atomic_add_fetch(&sh->generation, 1, __ATOMIC_ACQ_REL);
        return;
    }
    while (__atomic_load_n(&sh->generation, __ATOMIC_ACQUIRE) == generation) {
        if (__atomic_load_n(&sh->failed, __ATOMIC_RELAXED)) _exit(1);
        sched_yield();
    }
}

/* ---- raw sockets ---- */

static void set_blocking(int fd, bool blocking) {
    const int flags = fcntl(fd, F_GETFL);
    fcntl(fd, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
}

static void make_links(uint32_t n) {
    uint32_t i, j;
    for (i = 0; i < n; ++i) {
        for (j = i + 1; j < n; ++j) {
            struct sockaddr_in a;
            socklen_t len = sizeof a;
            const int on = 1, l = socket(AF_INET, SOCK_STREAM, 0),
                      c = socket(AF_INET, SOCK_STREAM, 0);
            memset(&a, 0, sizeof a);
            a.sin_family = AF_INET;
            a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            if (bind(l, (struct sockaddr *)&a, sizeof a) || listen(l, 1)
                || getsockname(l, (struct sockaddr *)&a, &len))
                die("cannot listen");
            if (connect(c, (struct sockaddr *)&a, sizeof a)) die("cannot connect");
            links[i][j] = accept(l, NULL, NULL);
            links[j][i] = c;
            close(l);
            setsockopt(links[i][j], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            setsockopt(links[j][i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        }
    }
}

static void close_links(uint32_t n) {
    uint32_t i, j;
    for (i = 0; i < n; ++i)
        for (j = 0; j < n; ++j)
            if (i != j) close(links[i][j]);
}

/* Send and receive at once, without blocking; between looks that find nothing: sleep, yield, or
   look again. */
typedef enum waiting {
    SLEEP,
    YIELD,
    LOOK
} waiting;

static void transfer(int out, const uint8_t *src, uint64_t out_bytes, int in, uint8_t *dst,
    uint64_t in_bytes, uint64_t walk, waiting how) {
    uint64_t sent = 0, got = 0;
    while (sent < out_bytes || got < in_bytes) {
        bool any = false;
        if (sent < out_bytes) {
            const uint64_t off = sent % walk,
                           n = cdp__min(cdp__min(MIB, walk - off), out_bytes - sent);
            const ssize_t r = send(out, src + off, n, MSG_NOSIGNAL);
            if (r > 0) {
                sent += (uint64_t)r;
                any = true;
            } else if (r < 0 && errno != EAGAIN)
                die("send");
        }
        if (got < in_bytes) {
            const uint64_t off = got % walk,
                           n = cdp__min(cdp__min(MIB, walk - off), in_bytes - got);
            const ssize_t r = recv(in, dst + off, n, 0);
            if (r > 0) {
                got += (uint64_t)r;
                any = true;
            } else if (r == 0 || errno != EAGAIN)
                die("recv");
        }
        if (any) continue;
        if (how == SLEEP) {
            struct pollfd p[2];
            p[0].fd = in;
            p[0].events = (short)(got < in_bytes ? POLLIN : 0);
            p[1].fd = out;
            p[1].events = (short)(sent < out_bytes ? POLLOUT : 0);
            if (poll(p, 2, 60000) <= 0) die("poll");
        } else if (how == YIELD) {
            sched_yield();
        }
    }
}

static void recv_all(int fd, uint8_t *dst, uint64_t bytes) {
    uint64_t got = 0;
    while (got < bytes) {
        const ssize_t r = recv(fd, dst + got, bytes - got, 0);
        if (r > 0)
            got += (uint64_t)r;
        else if (r == 0 || errno != EAGAIN)
            die("recv");
    }
}

static void send_all(int fd, const uint8_t *src, uint64_t bytes) {
    uint64_t sent = 0;
    while (sent < bytes) {
        const ssize_t r = send(fd, src + sent, bytes - sent, MSG_NOSIGNAL);
        if (r > 0)
            sent += (uint64_t)r;
        else if (r < 0 && errno != EAGAIN)
            die("send");
    }
}

static void add_floats(float *CDP__RESTRICT acc, const float *CDP__RESTRICT x, uint64_t n) {
    uint64_t i, j;
    for (i = 0; i + 64 <= n; i += 64)
        for (j = 0; j < 64; ++j)
            acc[i + j] += x[i + j];
    for (; i < n; ++i)
        acc[i] += x[i];
}

/* ---- the synthetic backward ---- */

static float work_data[16384]; /* 64 KiB of its own */

static void work(uint32_t units) {
    uint32_t u, i;
    for (u = 0; u < units; ++u)
        for (i = 0; i < 16384; ++i)
            work_data[i] = work_data[i] * 0.9999f + 0.5f;
    __asm__ volatile("" : : "r"(work_data) : "memory");
}

static void measure_work(void) {
    double best = 1e30;
    uint32_t k;
    for (k = 0; k < 20; ++k) {
        const double t = now_us();
        work(50);
        best = best < (now_us() - t) / 50 ? best : (now_us() - t) / 50;
    }
    sh->per_unit_us = best;
}

static void backward(bool sync) {
    uint32_t i;
    if (sync && cdp_ddp_backward_begin(ddp) != CDP_OK) die_cdp("backward_begin");
    for (i = DDP_PARAMS; i-- > 0;) {
        work(ddp_units);
        if (sync && cdp_ddp_ready(ddp, i) != CDP_OK) die_cdp("ready");
    }
    if (sync && cdp_ddp_backward_end(ddp) != CDP_OK) die_cdp("backward_end");
}

static void make_ddp(void) {
    static float params[DDP_BYTES / 4];
    static cdp_param list[DDP_PARAMS];
    cdp_ddp_desc d;
    uint32_t i;
    if (ddp_created) return;
    ddp_created = true;
    for (i = 0; i < DDP_PARAMS; ++i) {
        list[i].data = params + (uint64_t)i * (DDP_BYTES / 4 / DDP_PARAMS);
        list[i].count = DDP_BYTES / 4 / DDP_PARAMS;
    }
    memset(&d, 0, sizeof d);
    d.group = group;
    d.params = list;
    d.param_count = DDP_PARAMS;
    d.first_bucket_bytes = 1 << 20;
    d.bucket_bytes = DDP_BUCKET;
    if (cdp_ddp_create(&d, &ddp) != CDP_OK) die_cdp("cdp_ddp_create");
    /* 40 ms where every rank has a core */
    ddp_units = (uint32_t)(40000.0 / DDP_PARAMS / sh->per_unit_us) + 1;
}

/* ---- one operation ---- */

static void run_op(const test_case *c) {
    const uint32_t next = (me + 1) % ranks, prev = (me + ranks - 1) % ranks;
    uint32_t k;
    cdp_status st = CDP_OK;
    switch (c->op) {
    case RAW_PINGPONG_BLOCK:
    case RAW_PINGPONG_SPIN:
        if (me == 0) send_all(links[0][1], buf_a, c->bytes);
        recv_all(links[me][1 - me], buf_b, c->bytes);
        if (me == 1) send_all(links[1][0], buf_b, c->bytes);
        break;
    case RAW_EXCHANGE_BLOCK:
    case RAW_EXCHANGE_SPIN:
        for (k = 1; k < ranks; k *= 2) {
            const int fd = links[me][me ^ k];
            const waiting spin = ranks > 2 ? YIELD : LOOK;
            transfer(fd, buf_a, c->bytes, fd, buf_b, c->bytes, span,
                c->op == RAW_EXCHANGE_BLOCK ? SLEEP : spin);
        }
        break;
    case RAW_DUPLEX:
        transfer(
            links[me][next], buf_a, c->bytes, links[me][prev], buf_b, c->bytes, c->bytes, SLEEP);
        break;
    case RAW_ONEWAY:
        if (me == 0)
            transfer(links[0][1], buf_a, c->bytes, 0, NULL, 0, c->bytes, SLEEP);
        else
            transfer(0, NULL, 0, links[1][0], buf_b, c->bytes, c->bytes, SLEEP);
        break;
    case RAW_MEMCPY: memcpy(buf_a, buf_b, c->bytes); break;
    case RAW_ADD: add_floats((float *)buf_a, (const float *)buf_b, c->bytes / 4); break;
    case CDP_ALLREDUCE:
        st = cdp_allreduce(group, NULL, buf_a, c->bytes / 4, CDP_DTYPE_F32, CDP_REDUCE_SUM);
        break;
    case CDP_BROADCAST: st = cdp_broadcast(group, buf_a, c->bytes, CDP_DTYPE_U8, 0); break;
    case CDP_ALLGATHER:
        st = cdp_allgather(group, buf_b, buf_a, c->bytes / ranks, CDP_DTYPE_U8);
        break;
    case CDP_BARRIER: st = cdp_barrier(group); break;
    case DDP_BACKWARD: backward(false); break;
    case DDP_STEP: backward(true); break;
    default: break;
    }
    if (st != CDP_OK) die_cdp(infos[c->op].name);
}

/* ---- its check ---- */

static uint8_t byte_at(uint32_t rank, uint64_t i) {
    return (uint8_t)((i + 131u * rank) * 2654435761u >> 13);
}
/* sums are exact */
static float float_at(uint32_t rank, uint64_t i) {
    return (float)((i * 7 + rank * 13) % 1000);
}

static void check_op(const test_case *c) {
    const uint64_t n = c->bytes;
    uint64_t i;
    uint32_t r;
    errno = 0;
    if (c->op == CDP_ALLREDUCE || c->op == RAW_ADD) {
        const uint32_t parts = c->op == RAW_ADD ? 2 : ranks;
        for (i = 0; i < n / 4; ++i) {
            ((float *)buf_a)[i] = float_at(c->op == RAW_ADD ? 0 : me, i);
            ((float *)buf_b)[i] = float_at(1, i);
        }
        run_op(c);
        for (i = 0; i < n / 4; ++i) {
            float sum = 0;
            for (r = 0; r < parts; ++r)
                sum += float_at(r, i);
            if (((const float *)buf_a)[i] != sum) die("a wrong sum");
        }
    } else if (c->op <= RAW_MEMCPY || c->op == CDP_BROADCAST || c->op == CDP_ALLGATHER) {
        const uint64_t part = c->op == CDP_ALLGATHER ? n / ranks : n;
        const bool into_a = c->op == RAW_MEMCPY || c->op == CDP_BROADCAST || c->op == CDP_ALLGATHER;
        uint32_t from = ranks == 2 ? 1 - me : me ^ 2;
        if (c->op == RAW_MEMCPY) from = me;
        if (c->op == CDP_BROADCAST) from = 0;
        if (c->op == RAW_DUPLEX) from = (me + ranks - 1) % ranks;
        if (c->op <= RAW_PINGPONG_SPIN) from = 0; /* the one byte string goes there and back */
        memset(buf_a, 0xaa, n);
        memset(buf_b, 0xbb, n);
        for (i = 0; i < part; ++i) {
            const uint8_t v = byte_at(me, i);
            if (c->op == CDP_ALLGATHER || c->op == RAW_MEMCPY)
                buf_b[i] = v;
            else if (c->op != CDP_BROADCAST || me == 0)
                buf_a[i] = v;
        }
        if (c->op == RAW_ONEWAY && me == 0) {
            run_op(c);
            return;
        }
        run_op(c);
        for (i = 0; i < n; ++i)
            if ((into_a ? buf_a : buf_b)[i]
                != byte_at(c->op == CDP_ALLGATHER ? (uint32_t)(i / part) : from,
                    c->op == CDP_ALLGATHER ? i % part : i))
                die("wrong bytes");
    } else if (c->op == DDP_STEP) {
        uint32_t p;
        const uint64_t count = DDP_BYTES / 4 / DDP_PARAMS;
        for (p = 0; p < DDP_PARAMS; ++p)
            for (i = 0; i < count; ++i)
                ((float *)cdp_ddp_grad(ddp, p))[i] = (float)(me + p);
        run_op(c);
        for (p = 0; p < DDP_PARAMS; ++p)
            for (i = 0; i < count; ++i)
                if (((float *)cdp_ddp_grad(ddp, p))[i] != (float)(ranks - 1) / 2 + (float)p)
                    die("a wrong mean");
    } else {
        run_op(c);
    }
}

/* ---- timing ---- */

static void run_many(const test_case *c, uint32_t n) {
    uint32_t i;
    meet();
    for (i = 0; i < n; ++i) {
        const double t = now_us();
        run_op(c);
        sh->interval[me][i] = now_us() - t;
    }
    meet();
}

static void collect(test_case *c, uint32_t n) {
    uint32_t i, r;
    for (i = 0; i < n && c->samples_used < MAX_SAMPLES; ++i) {
        double t = 0;
        for (r = 0; r < ranks; ++r)
            t = t > sh->interval[r][i] ? t : sh->interval[r][i];
        c->samples[c->samples_used++] = t;
    }
}

static uint32_t iterations_for(uint32_t tried, double budget_us, uint32_t least) {
    double sum = 0;
    uint32_t i, n;
    for (i = 0; i < tried; ++i)
        sum += sh->interval[0][i];
    n = (uint32_t)(budget_us / (sum / tried + 0.01));
    if (n < least) return least;
    return n > MAX_ITERATIONS ? MAX_ITERATIONS : n;
}

static uint32_t agree(uint32_t n) {
    if (me == 0) sh->iterations = n;
    meet();
    n = sh->iterations;
    meet();
    return n;
}

/* How often each function of the os interface is called, and what the kernel did meanwhile. */
static calls counted;

static int64_t count_send(void *user, int32_t fd, const cdp_iov *v, uint32_t n) {
    counted.n[CALL_SEND] += 1;
    return cdp_os_default()->net.send_iov(user, fd, v, n);
}
static int64_t count_recv(void *user, int32_t fd, const cdp_iov *v, uint32_t n) {
    const int64_t r = cdp_os_default()->net.recv_iov(user, fd, v, n);
    counted.n[CALL_RECV] += 1;
    counted.n[CALL_RECV_NOTHING] += r == 0;
    return r;
}
static int32_t count_wait(
    void *user, void *watch, cdp_ready *out, uint32_t max_count, uint64_t deadline_ns) {
    counted.n[CALL_POLL] += 1;
    return cdp_os_default()->net.watch_wait(user, watch, out, max_count, deadline_ns);
}
static uint64_t count_now(void *user) {
    counted.n[CALL_CLOCK] += 1;
    return cdp_os_default()->now_ns(user);
}
static void count_lock(void *user, void *mutex) {
    counted.n[CALL_LOCK] += 1;
    cdp_os_default()->threads.mutex_lock(user, mutex);
}
static void count_wake(void *user, int32_t fd) {
    counted.n[CALL_WAKE] += 1;
    cdp_os_default()->net.wake_set(user, fd);
}
static void count_yield(void *user) {
    counted.n[CALL_YIELD] += 1;
    cdp_os_default()->threads.yield(user);
}

static calls calls_now(void) {
    struct rusage u;
    calls k = counted;
    getrusage(RUSAGE_SELF, &u);
    k.n[CALL_SLEEPS] = (double)u.ru_nvcsw;
    k.n[CALL_PREEMPTED] = (double)u.ru_nivcsw;
    k.n[CALL_USER_US] = (double)u.ru_utime.tv_sec * 1e6 + (double)u.ru_utime.tv_usec;
    k.n[CALL_SYSTEM_US] = (double)u.ru_stime.tv_sec * 1e6 + (double)u.ru_stime.tv_usec;
    return k;
}

static void count_case(test_case *c, uint32_t n) {
    const calls before = calls_now();
    calls after;
    uint32_t k, r;
    run_many(c, n);
    after = calls_now();
    for (k = 0; k < CALL_COUNT; ++k)
        sh->calls[me].n[k] = (after.n[k] - before.n[k]) / n;
    meet();
    if (me == 0)
        for (k = 0; k < CALL_COUNT; ++k)
            for (c->calls.n[k] = 0, r = 0; r < ranks; ++r)
                c->calls.n[k] += sh->calls[r].n[k] / ranks;
    meet();
}

static void time_case(test_case *c) {
    const bool block = c->op == RAW_PINGPONG_BLOCK;
    uint32_t r, n;
    if (c->op == DDP_STEP || c->op == DDP_BACKWARD) make_ddp();
    if (c->op <= RAW_ONEWAY)
        for (r = 0; r < ranks; ++r)
            if (r != me) set_blocking(links[me][r], block);
    meet();
    check_op(c);
    memset(buf_a, 0, c->bytes);
    memset(buf_b, 0, c->bytes);
    run_many(c, 2);
    n = agree(iterations_for(2, 5000, 1));
    run_many(c, n); /* warm-up */
    n = agree(iterations_for(n, seconds_each * 1e6, c->bytes >= 16 * MIB ? 3 : 5));
    if (c->op == DDP_STEP) {
        const cdp_ddp_stats s = cdp_ddp_stats_of(ddp);
        ddp_seen_comm = s.total_comm_ns;
        ddp_seen_exposed = s.total_exposed_ns;
    }
    if (counting) {
        count_case(c, n);
        return;
    }
    run_many(c, n);
    if (me == 0) collect(c, n);
    if (me == 0 && c->op == DDP_STEP) {
        const cdp_ddp_stats s = cdp_ddp_stats_of(ddp);
        c->hidden += 1
            - (double)(s.total_exposed_ns - ddp_seen_exposed)
                / (double)(s.total_comm_ns - ddp_seen_comm + 1);
        ++c->hidden_n;
    }
    meet();
}

/* ---- worlds ---- */

static uint16_t free_port(void) {
    struct sockaddr_in a;
    socklen_t len = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) || getsockname(fd, (struct sockaddr *)&a, &len))
        die("no free port");
    close(fd);
    return ntohs(a.sin_port);
}

static void join_job(uint16_t port) {
    static cdp_os os;
    cdp_tcp_desc d;
    memset(&d, 0, sizeof d);
    d.group.rank = me;
    d.group.world_size = ranks;
    d.master_port = port;
    d.init_timeout_ms = 60000;
    d.group.timeout_ms = 60000;
    d.no_shared_memory = !over_memory; /* what it is compared with are bare sockets */
    if (counting) {
        os = *cdp_os_default();
        os.net.send_iov = count_send;
        os.net.recv_iov = count_recv;
        os.net.watch_wait = count_wait;
        os.now_ns = count_now;
        os.threads.mutex_lock = count_lock;
        os.net.wake_set = count_wake;
        os.threads.yield = count_yield;
        d.group.os = &os;
    }
    if (cdp_init(&d, &group) != CDP_OK) die_cdp("cdp_init");
}

static bool selected(const test_case *c) {
    char text[96];
    snprintf(text, sizeof text, "%s/%s/%u/%llu/", infos[c->op].lib, infos[c->op].name, c->ranks,
        (unsigned long long)c->bytes);
    return !only || strstr(text, only);
}

static bool of_world(const test_case *c, bool raw) {
    return c->ranks == ranks && c->op < INIT && (c->op <= RAW_ADD) == raw && selected(c);
}

static void rank_main(bool raw, uint16_t port) {
    uint32_t i;
    const uint64_t room = cdp__max(span, DDP_BYTES);
    buf_a = (uint8_t *)cdp__alloc(cdp_os_default(), room);
    buf_b = (uint8_t *)cdp__alloc(cdp_os_default(), room);
    if (!buf_a || !buf_b) die("no memory");
    memset(buf_a, 1, room);
    memset(buf_b, 1, room);
    if (!raw) join_job(port);
    for (i = 0; i < sh->case_count; ++i)
        if (of_world(&sh->cases[i], raw)
            && (!counting || (sh->cases[i].op < DDP_BACKWARD && sh->cases[i].bytes <= 16 * MIB)))
            time_case(&sh->cases[i]);
    cdp_ddp_destroy(ddp);
    meet();
    cdp_group_destroy(group);
}

/* Fork the ranks, wait for them, and end the others when one fails. */
static void run_world(uint32_t n, void (*func)(bool, uint16_t), bool raw) {
    pid_t pids[MAX_RANKS];
    const uint16_t port = free_port();
    uint32_t r;
    int bad = 0;
    ranks = n;
    sh->arrived = 0;
    fflush(stdout);
    if (raw) make_links(n);
    for (r = 0; r < n; ++r) {
        pids[r] = fork();
        if (pids[r] < 0) die("fork");
        if (pids[r] == 0) {
#ifdef __linux__
            prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
            alarm(300);
            me = r;
            func(raw, port);
            _exit(0);
        }
    }
    if (raw) close_links(n);
    for (r = 0; r < n; ++r) {
        int status = 0;
        const pid_t p = wait(&status);
        uint32_t k;
        for (k = 0; k < n; ++k)
            if (pids[k] == p) pids[k] = 0;
        if (status == 0 || bad) continue;
        bad = 1;
        for (k = 0; k < n; ++k)
            if (pids[k]) kill(pids[k], SIGKILL);
    }
    if (bad) {
        fprintf(stderr, "bench: a rank failed\n");
        exit(1);
    }
}

static double launched_us;

static void start_main(bool raw, uint16_t port) {
    (void)raw;
    join_job(port);
    sh->ready_us[me] = now_us() - launched_us;
    if (cdp_barrier(group) != CDP_OK) die_cdp("barrier");
    sh->barrier_us[me] = now_us() - launched_us;
    meet();
    cdp_group_destroy(group);
}

static void measure_start(test_case *ready, test_case *barrier, uint32_t times) {
    uint32_t k, r;
    for (k = 0; k < times; ++k) {
        double a = 0, b = 0;
        launched_us = now_us();
        run_world(ready->ranks, start_main, false);
        for (r = 0; r < ready->ranks; ++r) {
            a = a > sh->ready_us[r] ? a : sh->ready_us[r];
            b = b > sh->barrier_us[r] ? b : sh->barrier_us[r];
        }
        ready->samples[ready->samples_used++] = a;
        barrier->samples[barrier->samples_used++] = b;
    }
}

/* ---- results ---- */

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double at_quantile(const test_case *c, double q) {
    return c->samples_used ? c->samples[(uint64_t)(q * (double)(c->samples_used - 1) + 0.5)] : 0;
}

static double median(const test_case *c) {
    return c ? at_quantile(c, 0.5) : 0;
}

static double busbw(const test_case *c, double us) {
    const double p = c->ranks;
    double factor = 1;
    if (c->op == CDP_ALLREDUCE) factor = 2 * (p - 1) / p;
    if (c->op == CDP_ALLGATHER) factor = (p - 1) / p;
    return us > 0 && c->op < DDP_BACKWARD ? factor * (double)c->bytes / us / 1e3 : 0;
}

static const test_case *find(op_kind op, uint32_t n, uint64_t bytes) {
    uint32_t i;
    for (i = 0; i < sh->case_count; ++i)
        if (sh->cases[i].op == op && sh->cases[i].ranks == n && sh->cases[i].bytes == bytes)
            return sh->cases[i].samples_used ? &sh->cases[i] : NULL;
    return NULL;
}

static test_case *add_case(op_kind op, uint32_t n, uint64_t bytes) {
    test_case *c = &sh->cases[sh->case_count++];
    c->op = op;
    c->ranks = n;
    c->bytes = bytes;
    c->samples = (double *)mmap(NULL, MAX_SAMPLES * sizeof *c->samples, PROT_READ | PROT_WRITE,
        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (c->samples == MAP_FAILED) die("no memory");
    return c;
}

static double raw_rate(op_kind op, uint32_t n, uint64_t bytes) { /* bytes per us */
    const uint64_t walk = bytes <= 4 * MIB ? MIB : span;
    const test_case *c = find(op, n, walk);
    return c ? (double)walk / median(c) : 0;
}

static double exchange_us(uint32_t n, uint64_t bytes) {
    const test_case *a = find(RAW_EXCHANGE_BLOCK, n, bytes), *b = find(RAW_EXCHANGE_SPIN, n, bytes);
    if (!a || !b) return 0;
    return median(a) < median(b) ? median(a) : median(b);
}

/* What the raw limit allows, in us; 0: no model. */
static double limit_us(const test_case *c) {
    const double p = c->ranks, n = (double)c->bytes;
    double rate;
    if (c->op == CDP_BARRIER) return exchange_us(c->ranks, 4);
    if (c->op == CDP_ALLREDUCE && c->bytes <= 64 * 1024) return exchange_us(c->ranks, c->bytes);
    if (c->op == CDP_BROADCAST && c->ranks == 2)
        rate = raw_rate(RAW_ONEWAY, 2, c->bytes);
    else
        rate = raw_rate(RAW_DUPLEX, c->ranks, c->bytes);
    if (rate <= 0 || c->bytes <= 64 * 1024) return 0;
    if (c->op == CDP_ALLREDUCE) return 2 * n * (p - 1) / p / rate;
    if (c->op == CDP_ALLGATHER) return n * (p - 1) / p / rate;
    if (c->op == CDP_BROADCAST) return c->ranks == 2 ? n / rate : n * (p - 1) / (p * rate);
    return 0;
}

static const char *size_text(uint64_t bytes, char out[24]) {
    if (bytes >= MIB && bytes % MIB == 0)
        snprintf(out, 24, "%u MiB", (unsigned)(bytes / MIB));
    else if (bytes >= 1024 && bytes % 1024 == 0)
        snprintf(out, 24, "%u KiB", (unsigned)(bytes / 1024));
    else if (bytes >= 1000000)
        snprintf(out, 24, "%u MB", (unsigned)(bytes / 1000000));
    else
        snprintf(out, 24, "%u B", (unsigned)bytes);
    return out;
}

static void print_lines(void) {
    uint32_t i;
    printf(
        "# lib\ttransport\top\tranks\tbytes\tmedian_us\tmin_us\tp90_us\tbusbw_GBps\titerations\n");
    for (i = 0; i < sh->case_count; ++i) {
        test_case *c = &sh->cases[i];
        qsort(c->samples, c->samples_used, sizeof *c->samples, compare);
        if (!c->samples_used) continue;
        printf("%s\t%s\t%s\t%u\t%llu\t%.2f\t%.2f\t%.2f\t%.3f\t%llu\n", infos[c->op].lib,
            over_memory && *infos[c->op].lib == 'c' ? "memory" : infos[c->op].transport,
            infos[c->op].name, c->ranks, (unsigned long long)c->bytes, median(c), at_quantile(c, 0),
            at_quantile(c, 0.9), busbw(c, median(c)), (unsigned long long)c->samples_used);
    }
}

static void print_tables(void) {
    char size[24];
    uint32_t i, k;
    printf("\n%-20s %5s %8s %11s %11s %11s %9s   %s\n", "raw", "ranks", "bytes", "median us",
        "min us", "p90 us", "GB/s", "");
    for (i = 0; i < sh->case_count; ++i) {
        const test_case *c = &sh->cases[i];
        if (c->op <= RAW_ADD && c->samples_used)
            printf("%-20s %5u %8s %11.2f %11.2f %11.2f %9.2f\n", infos[c->op].name, c->ranks,
                size_text(c->bytes, size), median(c), at_quantile(c, 0), at_quantile(c, 0.9),
                busbw(c, median(c)));
    }
    printf("\n%-20s %5s %8s %11s %11s %11s %9s %11s %7s\n",
        over_memory ? "cdp over memory" : "cdp over tcp", "ranks", "bytes", "median us", "min us",
        "p90 us", "busbw", "limit us", "ratio");
    for (i = 0; i < sh->case_count; ++i) {
        const test_case *c = &sh->cases[i];
        const double limit = limit_us(c);
        if (c->op < CDP_ALLREDUCE || c->op > CDP_BARRIER || !c->samples_used) continue;
        printf("%-20s %5u %8s %11.2f %11.2f %11.2f %9.3f ", infos[c->op].name, c->ranks,
            size_text(c->bytes, size), median(c), at_quantile(c, 0), at_quantile(c, 0.9),
            busbw(c, median(c)));
        if (limit > 0)
            printf("%11.2f %7.2f\n", limit, limit / median(c));
        else
            printf("%11s %7s\n", "-", "-");
    }
    printf("ratio: what the raw limit allows over what was measured; 1 is the limit. The model is "
           "at the top of bench.c.\n");

    printf("\ncalls per operation and rank (counted in a pass of its own)\n%-12s %5s %8s", "op",
        "ranks", "bytes");
    for (k = 0; k < CALL_COUNT; ++k)
        printf(" %8s", call_names[k]);
    printf("\n");
    for (i = 0; i < sh->case_count; ++i) {
        const test_case *c = &sh->cases[i];
        if (c->op < CDP_ALLREDUCE || c->op > CDP_BARRIER || c->calls.n[CALL_SEND] == 0) continue;
        printf("%-12s %5u %8s", infos[c->op].name, c->ranks, size_text(c->bytes, size));
        for (k = 0; k < CALL_COUNT; ++k)
            printf(" %8.1f", c->calls.n[k]);
        printf("\n");
    }

    for (k = 2; k <= 4; k += 2) {
        const test_case *alone = find(DDP_BACKWARD, k, DDP_BYTES),
                        *step = find(DDP_STEP, k, DDP_BYTES),
                        *plain = find(CDP_ALLREDUCE, k, DDP_BYTES);
        if (!alone || !step || !plain) continue;
        printf("\nDDP of 25 MB in buckets of 5 MB, %u ranks: backward alone %.1f ms, step %.1f ms, "
               "so %.1f ms exposed; plain allreduce of the same bytes %.1f ms.\n"
               "Hidden: %.0f %% of the plain allreduce; by the library's own count %.0f %% of the "
               "time that buckets were under way.\n",
            k, median(alone) / 1e3, median(step) / 1e3, (median(step) - median(alone)) / 1e3,
            median(plain) / 1e3, 100 * (1 - (median(step) - median(alone)) / median(plain)),
            100 * step->hidden / (step->hidden_n ? step->hidden_n : 1));
    }
    printf("\n");
    for (k = 2; k <= 8; k *= 2) {
        const test_case *a = find(INIT, k, 0), *b = find(INIT_BARRIER, k, 0);
        if (a && b)
            printf("start, %u ranks: from fork to group on the slowest rank %.2f ms (least %.2f), "
                   "to the end of a first barrier %.2f ms\n",
                k, median(a) / 1e3, at_quantile(a, 0) / 1e3, median(b) / 1e3);
    }
}

static void plan(void) {
    static const uint64_t exchanges[] = {4, 4096, 65536};
    const uint64_t allreduces[] = {4, 4096, 65536, MIB, 16 * MIB, span};
    const uint32_t allreduce_count = span > 16 * MIB ? 6 : 5;
    static const uint64_t others[] = {8, 4096, 65536, MIB, 16 * MIB};
    uint32_t p, i;
    for (p = 2; p <= 4; p += 2) {
        if (p == 2) {
            add_case(RAW_PINGPONG_BLOCK, 2, 4);
            add_case(RAW_PINGPONG_SPIN, 2, 4);
            add_case(RAW_ONEWAY, 2, MIB);
            add_case(RAW_ONEWAY, 2, span);
            add_case(RAW_MEMCPY, 2, MIB);
            add_case(RAW_MEMCPY, 2, span);
            add_case(RAW_ADD, 2, MIB);
            add_case(RAW_ADD, 2, span);
        }
        for (i = 0; i < 3; ++i) {
            add_case(RAW_EXCHANGE_BLOCK, p, exchanges[i]);
            add_case(RAW_EXCHANGE_SPIN, p, exchanges[i]);
        }
        add_case(RAW_DUPLEX, p, MIB);
        add_case(RAW_DUPLEX, p, span);
    }
    for (p = 2; p <= 4; p += 2) {
        for (i = 0; i < allreduce_count; ++i)
            add_case(CDP_ALLREDUCE, p, allreduces[i]);
        for (i = 0; i < 5; ++i)
            add_case(CDP_BROADCAST, p, others[i]);
        for (i = 0; i < 5; ++i)
            add_case(CDP_ALLGATHER, p, others[i]);
        add_case(CDP_BARRIER, p, 0);
        add_case(CDP_ALLREDUCE, p, DDP_BYTES);
        add_case(DDP_BACKWARD, p, DDP_BYTES);
        add_case(DDP_STEP, p, DDP_BYTES);
    }
    for (p = 2; p <= 8; p *= 2) {
        add_case(INIT, p, 0);
        add_case(INIT_BARRIER, p, 0);
    }
}

static bool any_of(uint32_t n, bool raw) {
    uint32_t i;
    ranks = n;
    for (i = 0; i < sh->case_count; ++i)
        if (of_world(&sh->cases[i], raw)) return true;
    return false;
}

static int usage(FILE *f, int code) {
    fprintf(f,
        "bench [--quick] [--passes N] [--seconds S] [--only TEXT] [--list] [--transport "
        "tcp|memory]\n"
        "  --quick      one short pass: less than half a minute\n"
        "  --passes N   how often everything is measured (default 4); samples of all passes "
        "count;\n"
        "               0: only count calls\n"
        "  --seconds S  how long each measurement runs in a pass (default 0.1)\n"
        "  --only TEXT  only measurements whose LIB/OP/RANKS/BYTES/ contains TEXT, say "
        "cdp/allreduce/2/4/\n"
        "  --list       the names of all measurements\n"
        "  --transport  what cdp talks over (default: tcp, as the bare sockets beside it)\n"
        "Several programs that run at once disturb each other: leave the machine alone "
        "meanwhile.\n");
    return code;
}

int main(int argc, char **argv) {
    bool quick = false, list = false;
    uint32_t pass, p, i;
    int a;
    sh =
        (shared *)mmap(NULL, sizeof *sh, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (sh == MAP_FAILED) return 1;
    for (a = 1; a < argc; ++a) {
        if (strcmp(argv[a], "--help") == 0)
            return usage(stdout, 0);
        else if (strcmp(argv[a], "--quick") == 0) {
            quick = true;
            pass_count = 1;
            seconds_each = 0.05;
            span = 16 * MIB;
        } else if (strcmp(argv[a], "--list") == 0)
            list = true;
        else if (a + 1 < argc && strcmp(argv[a], "--passes") == 0)
            pass_count = (uint32_t)atoi(argv[++a]);
        else if (a + 1 < argc && strcmp(argv[a], "--seconds") == 0)
            seconds_each = atof(argv[++a]);
        else if (a + 1 < argc && strcmp(argv[a], "--only") == 0)
            only = argv[++a];
        else if (a + 1 < argc && strcmp(argv[a], "--transport") == 0
            && (strcmp(argv[a + 1], "tcp") == 0 || strcmp(argv[a + 1], "memory") == 0))
            over_memory = *argv[++a] == 'm';
        else
            return usage(stderr, 2);
    }
    plan();
    if (list) {
        for (i = 0; i < sh->case_count; ++i)
            printf("%s/%s/%u/%llu/\n", infos[sh->cases[i].op].lib, infos[sh->cases[i].op].name,
                sh->cases[i].ranks, (unsigned long long)sh->cases[i].bytes);
        return 0;
    }
    measure_work();
    for (pass = 0; pass < pass_count; ++pass) {
        for (p = 2; p <= 4; p += 2) {
            if (any_of(p, true)) run_world(p, rank_main, true);
            if (any_of(p, false)) run_world(p, rank_main, false);
        }
        for (i = 0; i < sh->case_count; ++i)
            if (sh->cases[i].op == INIT && selected(&sh->cases[i]))
                measure_start(&sh->cases[i], &sh->cases[i + 1], quick ? 3 : 8);
    }
    counting = true;
    if (pass_count) seconds_each = 0.02;
    for (p = 2; p <= 4; p += 2)
        if (any_of(p, false)) run_world(p, rank_main, false);
    print_lines();
    print_tables();
    return 0;
}
