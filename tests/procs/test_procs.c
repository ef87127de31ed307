/*  test_procs.c - real processes and real sockets on this machine: what they agree on, and what
    happens when they die

        gcc -O2 -g -std=gnu11 -I. -Itests tests/procs/test_procs.c -o test_procs -pthread -lm
        ./test_procs [--list] [--repeat N] [--long] [WORD...]
            WORD      only cases whose name contains one
            --long    abort_cycles and waiting_costs_nothing

    The parent stays without threads: it forks the ranks, reads one pipe from each, kills whom a
    case wants dead, and kills everybody at the deadline. What a rank has to tell goes into memory
    that all share, so that the parent can also read what a killed rank had said. Output is shown
    only of ranks that did not end as expected. */
#define _GNU_SOURCE
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "test.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>

/* ---- >>harness: memory that all processes share ---------------------------------------------- */

#define MAX_PROCS 64u
/* the deadlines that ranks are given; TEST_LATE is for what is asserted about them */
#define LONGER (TEST_SLOW ? TEST_SLACK : 1u)
#define DETECT_MS 1000u /* how soon after a death everybody must have reported it */

/* how a process of a job ends when something went wrong */
enum {
    EXIT_INIT = 10,
    EXIT_CALL = 11,
    EXIT_CHECK = 12
};

typedef struct report {
    uint32_t phase;     /* how far it is; each case says what that means */
    uint64_t joined_ns; /* when cdp_init had returned */
    uint64_t began_ns;  /* when the call began that failed */
    uint64_t error_ns;  /* when its first failure was reported to it */
    cdp_error error;
    uint64_t number[8];
} report;

static struct shared {
    uint32_t go;
    uint32_t arrived;
    report of[MAX_PROCS];
} * shared;

static report *me; /* in a child: its own */

static uint32_t seen(const uint32_t *p) {
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
static void tell(uint32_t *p, uint32_t v) {
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

/* ---- >>harness: processes -------------------------------------------------------------------- */

typedef struct process {
    pid_t pid;
    int pipe;
    char *out;
    size_t used;
    int expect; /* exit code, or minus the signal that ends it */
    int ended;  /* likewise */
    bool over;
} process;

static process procs[MAX_PROCS];
static uint32_t proc_count;

/* What the processes that are started next are told. */
static uint32_t size;
static uint16_t port;
static cdp_tcp_desc settings;
static uint64_t dice; /* random numbers of the parent */

typedef int (*rank_main)(uint32_t rank);

/* A port on which nobody listens: found by listening there. Below those that the system gives to
   outgoing connections. */
static int listen_at(uint16_t at) {
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(at), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 512) == 0) return fd;
    close(fd);
    return -1;
}

static uint16_t free_port(int *listener) {
    for (;;) {
        const uint16_t at = (uint16_t)(10000 + test_random(&dice) % 22000);
        const int fd = listen_at(at);
        if (fd < 0) continue;
        if (listener)
            *listener = fd;
        else
            close(fd);
        return at;
    }
}

/* How the ranks of a job talk: over TCP, over memory, or some over this and some over that. Jobs
   take turns, so that what happens to a job happens with all of these; in an order that does not
   go with the order of cases. */
static uint64_t jobs;
typedef enum way {
    OVER_TCP,
    OVER_MEMORY,
    OVER_BOTH
} way;
static way over;

/* A new job of n ranks: forget the last one. */
static void job(uint32_t n) {
    uint64_t dice_of_jobs;
    memset(shared, 0, sizeof *shared);
    memset(&settings, 0, sizeof settings);
    memset(procs, 0, sizeof procs);
    proc_count = 0;
    size = n;
    port = free_port(NULL);
    dice_of_jobs = ++jobs;
    over = (way)(test_random(&dice_of_jobs) % 3);
    settings.group.timeout_ms = 20000 * LONGER;
    settings.init_timeout_ms = 20000 * LONGER;
}

#if defined(__SANITIZE_ADDRESS__)
int __lsan_do_recoverable_leak_check(void);
#else
static int __lsan_do_recoverable_leak_check(void) {
    return 0;
}
#endif

static uint32_t spawn(uint32_t rank, rank_main func) {
    process *p = &procs[proc_count];
    int fd[2];
    if (proc_count == MAX_PROCS || pipe(fd) != 0) abort();
    fflush(stdout);
    p->pid = fork();
    if (p->pid == 0) {
        int code;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGALRM, SIG_DFL);
        dup2(fd[1], 1);
        dup2(fd[1], 2);
        close(fd[0]);
        close(fd[1]);
        for (uint32_t i = 0; i < proc_count; ++i)
            close(procs[i].pipe);
        me = &shared->of[proc_count];
        test__now.failed_checks = 0;
        code = func(rank);
        if (code == 0 && __lsan_do_recoverable_leak_check()) code = EXIT_CHECK;
        fflush(NULL);
        _exit(test__now.failed_checks ? EXIT_CHECK : code);
    }
    close(fd[1]);
    fcntl(fd[0], F_SETFL, O_NONBLOCK);
    p->pipe = fd[0];
    return proc_count++;
}

static void spawn_all(rank_main func) {
    for (uint32_t r = 0; r < size; ++r)
        spawn(r, func);
}

static void kill_process(uint32_t i, int signal_number) {
    if (signal_number == SIGKILL) procs[i].expect = -SIGKILL;
    kill(procs[i].pid, signal_number);
}

/* Read what there is; the end of its output is the end of a process. */
static void drain(process *p) {
    char text[4096];
    ssize_t n;
    int status = 0;
    while ((n = read(p->pipe, text, sizeof text)) > 0) {
        p->out = (char *)realloc(p->out, p->used + (size_t)n + 1);
        memcpy(p->out + p->used, text, (size_t)n);
        p->used += (size_t)n;
        p->out[p->used] = 0;
    }
    if (n < 0) return;
    waitpid(p->pid, &status, 0);
    p->ended = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
    p->over = true;
    close(p->pipe);
}

/* Wait for all; true when everybody ended as expected in time. */
static bool finish(uint32_t limit_ms) {
    const uint64_t soon_ns = 3000000000u * (uint64_t)TEST_LATE;
    uint64_t deadline = test_now_ns() + (uint64_t)limit_ms * TEST_LATE * 1000000u;
    bool ok = true, late = false;
    for (;;) {
        struct pollfd fds[MAX_PROCS];
        nfds_t n = 0;
        for (uint32_t i = 0; i < proc_count; ++i)
            if (!procs[i].over) fds[n++] = (struct pollfd){.fd = procs[i].pipe, .events = POLLIN};
        if (!n) break;
        poll(fds, n, 20);
        for (uint32_t i = 0; i < proc_count; ++i)
            if (!procs[i].over) {
                drain(&procs[i]);
                /* the others may wait for it */
                if (procs[i].over && procs[i].ended != procs[i].expect
                    && deadline > test_now_ns() + soon_ns)
                    deadline = test_now_ns() + soon_ns;
            }
        if (late || test_now_ns() < deadline) continue;
        late = true;
        for (uint32_t i = 0; i < proc_count; ++i)
            if (!procs[i].over) {
                test_check(false, test__now.name, 0,
                    "process %u did not end in time; it was killed in phase %u", i,
                    seen(&shared->of[i].phase));
                kill(procs[i].pid, SIGKILL);
            }
    }
    for (uint32_t i = 0; i < proc_count; ++i) {
        process *p = &procs[i];
        /* a sanitizer may complain and go on */
        const bool complaint = p->used && strstr(p->out, "Sanitizer") != NULL;
        if (p->ended != p->expect || late || complaint) {
            ok = test_check(false, test__now.name, 0, "process %u ended with %d, not %d", i,
                p->ended, p->expect);
            if (p->used) printf("  ---- output of process %u ----\n%s", i, p->out);
        }
        free(p->out);
        p->out = NULL;
    }
    return ok && !late;
}

/* Until every process but `except` is in this phase; false at the time limit. */
static bool await_phase(uint32_t phase, uint32_t except, uint32_t limit_ms) {
    const uint64_t deadline = test_now_ns() + (uint64_t)limit_ms * TEST_LATE * 1000000u;
    for (uint32_t i = 0; i < proc_count; ++i)
        while (i != except && seen(&shared->of[i].phase) < phase) {
            if (test_now_ns() > deadline)
                return test_check(false, test__now.name, 0,
                    "process %u is still in phase %u, not %u", i, seen(&shared->of[i].phase),
                    phase);
            test_sleep_ms(1);
        }
    return true;
}

#define NOBODY UINT32_MAX

/* ---- >>harness: in a child ------------------------------------------------------------------- */

static cdp_group *world;

/* Keep the first failure, with the time at which it was known. */
static cdp_status note(cdp_status st) {
    if (st < 0 && !me->error_ns) {
        me->error = *cdp_last_error();
        me->error_ns = test_now_ns();
    }
    return st;
}

static cdp_status begin_call(void) {
    me->began_ns = test_now_ns();
    return CDP_OK;
}
#define CALL(call) (begin_call(), note(call))

static cdp_status join(uint32_t rank) {
    settings.group.rank = rank;
    settings.no_shared_memory = over == OVER_TCP || (over == OVER_BOTH && rank % 3 == 1);
    settings.group.world_size = size;
    settings.master_port = port;
    if (CALL(cdp_init(&settings, &world)) != CDP_OK) {
        world = NULL;
        printf("init: %s\n", cdp_last_error()->text);
        return me->error.status;
    }
    me->joined_ns = test_now_ns();
    tell(&me->phase, 1);
    return CDP_OK;
}

static bool must(cdp_status st, const char *what) {
    note(st);
    return test_check(st == CDP_OK, test__now.name, 0, "%s: %s: %s", what, cdp_status_name(st),
        cdp_last_error()->text);
}

static void leave(void) {
    cdp_group_destroy(world);
    world = NULL;
}

/* Meet in shared memory, without the library. */
static void meet(uint32_t n) {
    const uint32_t mine = __atomic_fetch_add(&shared->arrived, 1, __ATOMIC_ACQ_REL),
                   until = (mine / n + 1) * n;
    while (seen(&shared->arrived) < until)
        usleep(100);
}

static uint64_t hash_of(const void *data, size_t bytes) {
    const unsigned char *p = (const unsigned char *)data;
    uint64_t h = 14695981039346656037u, w;
    size_t i = 0;
    for (; i + 8 <= bytes; i += 8) {
        memcpy(&w, p + i, 8);
        h = (h ^ w) * 1099511628211u;
    }
    for (; i < bytes; ++i)
        h = (h ^ p[i]) * 1099511628211u;
    return h;
}

/* ---- >>hello --------------------------------------------------------------------------------- */

static int hello_rank(uint32_t rank) {
    uint32_t x = rank + 1;
    if (join(rank) != CDP_OK) return EXIT_INIT;
    T_EQ(rank, cdp_rank(world));
    T_EQ(size, cdp_size(world));
    must(cdp_barrier(world), "barrier");
    must(cdp_allreduce(world, NULL, &x, 1, CDP_DTYPE_I32, CDP_REDUCE_SUM), "allreduce");
    T_EQ(size * (size + 1) / 2, x);
    leave();
    return 0;
}

TEST(hello) {
    static const uint32_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 16};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        job(sizes[i]);
        spawn_all(hello_rank);
        if (!finish(5000)) return;
    }
}

static int late_rank(uint32_t rank) {
    if (rank == 2) test_sleep_ms(1000);
    return hello_rank(rank);
}

TEST(hello_late_rank) {
    job(4);
    spawn_all(late_rank);
    finish(5000);
}

/* The others first, the rank that serves the store 300 ms later. */
static int late_zero(uint32_t rank) {
    if (rank == 0) test_sleep_ms(300);
    return hello_rank(rank);
}

TEST(hello_rank_0_comes_last) {
    job(4);
    spawn_all(late_zero);
    finish(5000);
}

TEST(hello_ten_jobs_at_once) {
    job(3);
    for (uint32_t j = 0; j < 10; ++j) {
        port = free_port(NULL);
        spawn_all(hello_rank);
    }
    finish(10000);
}

/* Ten jobs one after the other on one port, at once after each other. */
TEST(hello_same_port_again) {
    job(3);
    const uint16_t same = port;
    for (uint32_t j = 0; j < 10; ++j) {
        job(3);
        port = same;
        spawn_all(hello_rank);
        if (!finish(5000)) return;
    }
}

/* ---- >>collectives against a serial reference ------------------------------------------------ */

/* Rank r's element i: small whole numbers, exact in every dtype; none negative in u8, and no sum
   of 16 ranks wraps. */
static int64_t element(cdp_dtype t, uint32_t rank, uint64_t i, uint32_t salt) {
    const int64_t v = (int64_t)((i * 5 + rank * 11 + salt * 3 + (i >> 5)) & 15);
    return t == CDP_DTYPE_U8 ? v : v - 7;
}

static void put(cdp_dtype t, void *at, uint64_t i, double v) {
    if (t == CDP_DTYPE_F32) ((float *)at)[i] = (float)v;
    if (t == CDP_DTYPE_F64) ((double *)at)[i] = v;
    if (t == CDP_DTYPE_I32) ((int32_t *)at)[i] = (int32_t)v;
    if (t == CDP_DTYPE_I64) ((int64_t *)at)[i] = (int64_t)v;
    if (t == CDP_DTYPE_U8) ((uint8_t *)at)[i] = (uint8_t)v;
}

static double get(cdp_dtype t, const void *at, uint64_t i) {
    if (t == CDP_DTYPE_F32) return (double)((const float *)at)[i];
    if (t == CDP_DTYPE_F64) return ((const double *)at)[i];
    if (t == CDP_DTYPE_I32) return ((const int32_t *)at)[i];
    if (t == CDP_DTYPE_I64) return (double)((const int64_t *)at)[i];
    return ((const uint8_t *)at)[i];
}

static void fill(cdp_dtype t, void *at, uint64_t count, uint32_t rank, uint32_t salt) {
    for (uint64_t i = 0; i < count; ++i)
        put(t, at, i, (double)element(t, rank, i, salt));
}

static double reduced(cdp_dtype t, cdp_reduce_op op, uint64_t i, uint32_t salt) {
    int64_t v = element(t, 0, i, salt);
    for (uint32_t r = 1; r < size; ++r) {
        const int64_t x = element(t, r, i, salt);
        if (op == CDP_REDUCE_MIN)
            v = x < v ? x : v;
        else if (op == CDP_REDUCE_MAX)
            v = x > v ? x : v;
        else
            v += x;
    }
    if (op != CDP_REDUCE_AVG) return (double)v;
    if (t == CDP_DTYPE_F32) return (double)((float)v / (float)size);
    if (t == CDP_DTYPE_F64) return (double)v / (double)size;
    return (double)((2 * v + (v < 0 ? -1 : 1) * (int64_t)size) / (2 * (int64_t)size));
}

static bool sweep_async; /* start, look or poll until done, instead of waiting in the call */

static cdp_status run(cdp_request rq) {
    cdp_work w;
    cdp_status st = cdp_start(world, &rq, &w);
    if (st != CDP_OK) return st;
    if (!sweep_async) return cdp_work_wait(w);
    if (settings.group.no_thread)
        while (cdp_work_test(w) == CDP_PENDING && cdp_poll(world, 1000) == CDP_OK) {
        }
    else
        for (uint32_t i = 0; (st = cdp_work_test(w)) == CDP_PENDING && i < 50; ++i)
            usleep(i);
    return cdp_work_wait(w); /* says the same, or waits for the rest */
}

/* Guards behind every buffer: nobody writes past the end. */
#define GUARD 64u
static void guard(void *buffer, uint64_t bytes) {
    memset((char *)buffer + bytes, 0x5c, GUARD);
}
static bool guarded(const void *buffer, uint64_t bytes) {
    for (uint32_t i = 0; i < GUARD; ++i)
        if (((const unsigned char *)buffer)[bytes + i] != 0x5c) return false;
    return true;
}

static bool same_bits_everywhere(const void *data, uint64_t bytes) {
    uint64_t h[16] = {0}, mine = hash_of(data, bytes);
    if (!must(cdp_allgather(world, &mine, h, 1, CDP_DTYPE_I64), "hashes")) return false;
    for (uint32_t r = 0; r < size; ++r)
        if (!test_check(h[r] == mine, test__now.name, 0, "rank %u has other bits than this one", r))
            return false;
    return true;
}

static void check_allreduce(
    uint32_t rank, cdp_dtype t, cdp_reduce_op op, uint64_t count, bool in_place, uint32_t salt) {
    const uint64_t bytes = count * cdp_dtype_size(t);
    void *in = malloc(bytes + GUARD), *out = malloc(bytes + GUARD);
    guard(out, bytes);
    fill(t, in_place ? out : in, count, rank, salt);
    if (must(run((cdp_request){.kind = CDP_COLL_ALLREDUCE,
                 .in = in_place ? NULL : in,
                 .out = out,
                 .count = count,
                 .dtype = t,
                 .op = op}),
            "allreduce")) {
        for (uint64_t i = 0; i < count; ++i)
            if (get(t, out, i) != reduced(t, op, i, salt)) {
                test_check(false, test__now.name, 0,
                    "allreduce of %llu x %s %s over %u ranks: element %llu is %g, not %g",
                    (unsigned long long)count, cdp_dtype_name(t), cdp_reduce_name(op), size,
                    (unsigned long long)i, get(t, out, i), reduced(t, op, i, salt));
                break;
            }
        T(guarded(out, bytes));
    }
    free(in);
    free(out);
}

static void check_broadcast(
    uint32_t rank, cdp_dtype t, uint64_t count, uint32_t root, uint32_t salt) {
    const uint64_t bytes = count * cdp_dtype_size(t);
    void *data = malloc(bytes + GUARD);
    memset(data, 0xee, bytes);
    guard(data, bytes);
    if (rank == root) fill(t, data, count, root, salt);
    if (must(
            run((cdp_request){
                .kind = CDP_COLL_BROADCAST, .out = data, .count = count, .dtype = t, .root = root}),
            "broadcast")) {
        for (uint64_t i = 0; i < count; ++i)
            if (!test_check(get(t, data, i) == (double)element(t, root, i, salt), test__now.name, 0,
                    "broadcast of %llu x %s from %u: element %llu is wrong",
                    (unsigned long long)count, cdp_dtype_name(t), root, (unsigned long long)i))
                break;
        T(guarded(data, bytes));
    }
    free(data);
}

static void check_allgather(
    uint32_t rank, cdp_dtype t, uint64_t count, bool in_place, uint32_t salt) {
    const uint64_t bytes = count * cdp_dtype_size(t);
    void *in = malloc(bytes + 1), *out = malloc(bytes * size + GUARD);
    memset(out, 0xee, bytes * size);
    guard(out, bytes * size);
    fill(t, in_place ? (char *)out + rank * bytes : in, count, rank, salt);
    if (must(run((cdp_request){.kind = CDP_COLL_ALLGATHER,
                 .in = in_place ? NULL : in,
                 .out = out,
                 .count = count,
                 .dtype = t}),
            "allgather")) {
        bool ok = true;
        for (uint32_t r = 0; r < size && ok; ++r)
            for (uint64_t i = 0; i < count && ok; ++i)
                ok = test_check(get(t, out, r * count + i) == (double)element(t, r, i, salt),
                    test__now.name, 0, "allgather of %llu x %s: element %llu of rank %u is wrong",
                    (unsigned long long)count, cdp_dtype_name(t), (unsigned long long)i, r);
        T(guarded(out, bytes * size));
    }
    free(in);
    free(out);
}

/* Nobody leaves a barrier before everybody has come to it. */
static void check_barrier(uint32_t times) {
    for (uint32_t k = 1; k <= times; ++k) {
        __atomic_add_fetch(&shared->arrived, 1, __ATOMIC_ACQ_REL);
        must(run((cdp_request){.kind = CDP_COLL_BARRIER}), "barrier");
        T(seen(&shared->arrived) >= k * size);
    }
}

static int sweep_rank(uint32_t rank) {
    const uint64_t counts[] = {0, 1, size - 1, size, size + 1, 1000, 20011};
    uint32_t salt = 0;
    if (join(rank) != CDP_OK) return EXIT_INIT;
    check_barrier(10);
    for (cdp_dtype t = CDP_DTYPE_F32; t <= CDP_DTYPE_U8; ++t)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; ++c) {
            for (cdp_reduce_op op = CDP_REDUCE_SUM; op <= CDP_REDUCE_MAX; ++op, ++salt)
                /* a sanitizer sees each operation with some of the counts and dtypes */
                if (!TEST_SLOW || (uint32_t)op % 4 == (c + (uint32_t)t) % 4)
                    check_allreduce(rank, t, op, counts[c], (salt & 1) != 0, salt);
            ++salt;
            check_broadcast(rank, t, counts[c], salt % size, salt);
            check_allgather(rank, t, counts[c], (salt & 1) != 0, salt);
            if (test__now.failed_checks) return EXIT_CHECK;
        }
    leave();
    return 0;
}

static const uint32_t all_sizes[] = {1, 2, 3, 4, 5, 7, 8};

static void sweep(const uint32_t *sizes, size_t n, bool async, cdp_tcp_desc d) {
    for (size_t i = 0; i < n; ++i) {
        job(sizes[i]);
        settings.group.no_thread = d.group.no_thread;
        settings.group.no_spin = d.group.no_spin;
        settings.group.small_bytes = d.group.small_bytes;
        settings.group.piece_bytes = d.group.piece_bytes;
        settings.connections = d.connections;
        sweep_async = async;
        spawn_all(sweep_rank);
        if (!finish(20000)) return;
    }
}
#define SWEEP(sizes, async, ...) \
    sweep((sizes), sizeof(sizes) / sizeof *(sizes), (async), (cdp_tcp_desc){__VA_ARGS__})

static const uint32_t some_sizes[] = {2, 3, 4}, more_sizes[] = {1, 5, 8}, odd_sizes[] = {2, 3, 7};

TEST(collectives) {
    SWEEP(all_sizes, false, .group.rank = 0);
}
TEST(collectives_async) {
    SWEEP(more_sizes, true, .group.rank = 0);
}
TEST(collectives_no_thread) {
    SWEEP(some_sizes, false, .group.no_thread = true);
}
TEST(collectives_no_thread_polled) {
    SWEEP(more_sizes, true, .group.no_thread = true);
}
TEST(collectives_no_spin) {
    SWEEP(some_sizes, true, .group.no_spin = true);
}
TEST(collectives_all_large) {
    SWEEP(all_sizes, false, .group.small_bytes = 1, .group.piece_bytes = 1000);
}
TEST(collectives_all_small) {
    SWEEP(odd_sizes, false, .group.small_bytes = 1u << 30, .group.piece_bytes = 777);
}

TEST(collectives_several_connections) {
    SWEEP(odd_sizes, true, .connections = 3);
}

/* 300000 elements, over the limit where the ring takes over. */
static int large_rank(uint32_t rank) {
    uint32_t salt = 5;
    if (join(rank) != CDP_OK) return EXIT_INIT;
    for (cdp_dtype t = CDP_DTYPE_F32; t <= CDP_DTYPE_U8; ++t) {
        if (TEST_SLOW && t != CDP_DTYPE_F32 && t != CDP_DTYPE_U8) continue;
        check_allreduce(
            rank, t, (cdp_reduce_op)(CDP_REDUCE_SUM + salt % 4), 300000, (salt & 1) != 0, salt);
        ++salt;
        check_broadcast(rank, t, 300000, salt % size, salt);
        if (t == CDP_DTYPE_F32 || t == CDP_DTYPE_U8)
            check_allgather(rank, t, 300000, (salt & 1) != 0, salt);
    }
    leave();
    return 0;
}

TEST(collectives_of_300000) {
    static const uint32_t sizes[] = {2, 3, 4, 8};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        job(sizes[i]);
        spawn_all(large_rank);
        if (!finish(20000)) return;
    }
}

static int huge_rank(uint32_t rank) {
    if (join(rank) != CDP_OK) return EXIT_INIT;
    /* a sanitizer sees the same in 12 MiB: more than one slice of everything */
    check_allreduce(rank, CDP_DTYPE_F32, CDP_REDUCE_SUM, (TEST_SLOW ? 3u : 16u) << 20, true, 1);
    leave();
    return 0;
}

TEST(collectives_of_64_mib) {
    for (uint32_t k = 1; k <= 3; k += 2) {
        job(5 - k);
        settings.connections = k;
        spawn_all(huge_rank);
        if (!finish(20000)) return;
    }
}

/* Floats whose sum depends on the order: every rank must still have the same bits, and the same
   as in the last run. */
static int bits_rank(uint32_t rank) {
    const uint64_t count = size == 4 ? 300000 : 20011;
    float *x = (float *)malloc(count * sizeof *x);
    uint64_t state = 77 + rank;
    if (join(rank) != CDP_OK) return EXIT_INIT;
    for (uint32_t k = 0; k < 2; ++k) {
        for (uint64_t i = 0; i < count; ++i)
            x[i] = (float)((double)(int64_t)test_random(&state) / 3e15) * (i % 7 ? 1.0f : 1e-6f);
        for (cdp_reduce_op op = CDP_REDUCE_SUM; op <= CDP_REDUCE_MAX; ++op) {
            float *y = (float *)malloc(count * sizeof *y);
            must(cdp_allreduce(world, x, y, k ? count : 1000, CDP_DTYPE_F32, op), "allreduce");
            same_bits_everywhere(y, (k ? count : 1000) * sizeof *y);
            me->number[0] = me->number[0] * 31 + hash_of(y, 1000 * sizeof *y);
            free(y);
        }
    }
    free(x);
    leave();
    return 0;
}

TEST(collectives_same_bits) {
    for (size_t i = 1; i < sizeof all_sizes / sizeof *all_sizes; ++i) {
        uint64_t before = 0;
        way first = over;
        for (uint32_t again = 0; again < 2; ++again) {
            job(all_sizes[i]);
            if (again) over = first; /* other links, other orders */
            first = over;
            spawn_all(bits_rank);
            if (!finish(10000)) return;
            T(!again || before == shared->of[0].number[0]);
            before = shared->of[0].number[0];
        }
    }
}

/* Many in flight, waited for in another order, from two threads. */
#define FLIGHT 40u

typedef struct flight {
    cdp_work work[FLIGHT];
    cdp_status status[FLIGHT];
} flight;

static void *flight_waiter(void *arg) {
    flight *f = (flight *)arg;
    for (uint32_t k = 0; k < FLIGHT; k += 2)
        f->status[k] = cdp_work_wait(f->work[k]);
    return NULL;
}

static int flight_rank(uint32_t rank) {
    static int64_t data[FLIGHT][3000];
    if (join(rank) != CDP_OK) return EXIT_INIT;
    for (uint32_t again = 0; again < 3; ++again) {
        flight f;
        pthread_t waiter;
        for (uint32_t k = 0; k < FLIGHT; ++k) {
            const uint64_t count = 1 + k * 75;
            fill(CDP_DTYPE_I64, data[k], count, rank, k);
            must(cdp_allreduce_async(
                     world, NULL, data[k], count, CDP_DTYPE_I64, CDP_REDUCE_SUM, &f.work[k]),
                "start");
        }
        pthread_create(&waiter, NULL, flight_waiter, &f);
        for (uint32_t k = FLIGHT; k-- > 0;)
            if (k & 1) f.status[k] = cdp_work_wait(f.work[k]);
        pthread_join(waiter, NULL);
        for (uint32_t k = 0; k < FLIGHT; ++k) {
            T_EQ(CDP_OK, f.status[k]);
            for (uint64_t i = 0; i < 1 + k * 75; i += 37)
                T_EQ(reduced(CDP_DTYPE_I64, CDP_REDUCE_SUM, i, k), data[k][i]);
        }
    }
    leave();
    return 0;
}

TEST(collectives_many_in_flight) {
    for (size_t i = 0; i < sizeof some_sizes / sizeof *some_sizes; ++i) {
        job(some_sizes[i]);
        spawn_all(flight_rank);
        if (!finish(10000)) return;
    }
}

/* ---- >>ddp ----------------------------------------------------------------------------------- */

#define PARAMS 9u
static const uint64_t param_counts[PARAMS] = {7, 1000, 0, 1, 4096, 333, 20000, 5, 2500};

/* Whole numbers, so that the mean over 2, 4 or 8 ranks is exact; over 3 it is the same quotient
   as in the reference. */
static double grad_value(uint32_t rank, uint32_t step, uint32_t p, uint64_t i) {
    return (double)((i * 3 + rank * 7 + step * 5 + p) % 64) - 20;
}

static void ddp_check(
    const char *what, cdp_dtype t, const void *grad, uint32_t p, uint32_t first, uint32_t last) {
    for (uint64_t i = 0; i < param_counts[p]; ++i) {
        double sum = 0, want;
        for (uint32_t r = 0; r < size; ++r)
            for (uint32_t s = first; s <= last; ++s)
                sum += grad_value(r, s, p, i);
        want = t == CDP_DTYPE_F32 ? (double)((float)sum / (float)size) : sum / size;
        if (!test_check(get(t, grad, i) == want, test__now.name, 0,
                "%s: gradient %u[%llu] is %g, not %g", what, p, (unsigned long long)i,
                get(t, grad, i), want))
            return;
    }
}

static int ddp_rank(uint32_t rank) {
    cdp_param params[PARAMS];
    cdp_ddp *ddp;
    void *own[PARAMS];
    if (join(rank) != CDP_OK) return EXIT_INIT;
    memset(params, 0, sizeof params);
    for (uint32_t p = 0; p < PARAMS; ++p) {
        const cdp_dtype t = p % 4 == 3 ? CDP_DTYPE_F64 : CDP_DTYPE_F32;
        params[p].data = calloc(param_counts[p] + 1, 8);
        own[p] = p % 3 == 1 ? calloc(param_counts[p] + 1, 8) : NULL;
        params[p].grad = own[p];
        params[p].count = param_counts[p];
        params[p].dtype = t;
        for (uint64_t i = 0; i < param_counts[p]; ++i)
            put(t, params[p].data, i, (double)(rank * 100 + p + i % 10));
    }
    if (!must(cdp_ddp_create(&(cdp_ddp_desc){.group = world,
                                 .params = params,
                                 .param_count = PARAMS,
                                 .first_bucket_bytes = 1024,
                                 .bucket_bytes = 20000},
                  &ddp),
            "ddp_create"))
        return EXIT_CALL;
    T(cdp_ddp_stats_of(ddp).bucket_count >= 4);
    for (uint32_t p = 0; p < PARAMS; ++p)
        for (uint64_t i = 0; i < param_counts[p]; ++i)
            if (!T_EQ(p + i % 10, get(params[p].dtype, params[p].data, i))) break; /* rank 0's */
    for (uint32_t step = 0; step < 12; ++step) {
        /* 0: alone; 1, 2 stay local, 3 sends the sum of 1 .. 3 */
        const bool local = step % 4 == 1 || step % 4 == 2;
        const uint32_t first = step % 4 == 3 ? step - 2 : step;
        must(cdp_ddp_no_sync(ddp, local), "no_sync");
        must(cdp_ddp_backward_begin(ddp), "backward_begin");
        for (uint32_t k = 0; k < PARAMS; ++k) {
            /* ranks may be ready in different orders */
            const uint32_t p = rank % 2 && step % 3 == 0 ? k : PARAMS - 1 - k;
            void *grad = own[p] ? own[p] : cdp_ddp_grad(ddp, p);
            for (uint64_t i = 0; i < param_counts[p]; ++i)
                put(params[p].dtype, grad, i,
                    grad_value(rank, step, p, i)
                        + (step % 4 >= 2 ? get(params[p].dtype, grad, i) : 0));
            must(cdp_ddp_ready(ddp, p), "ready");
        }
        must(cdp_ddp_backward_end(ddp), "backward_end");
        for (uint32_t p = 0; p < PARAMS && !local; ++p)
            ddp_check(own[p] ? "own" : "bucket", params[p].dtype,
                own[p] ? own[p] : cdp_ddp_grad(ddp, p), p, first, step);
        if (test__now.failed_checks) return EXIT_CHECK;
    }
    cdp_ddp_destroy(ddp);
    for (uint32_t p = 0; p < PARAMS; ++p) {
        free(params[p].data);
        free(own[p]);
    }
    leave();
    return 0;
}

TEST(ddp_is_the_serial_mean) {
    for (size_t i = 0; i < sizeof all_sizes / sizeof *all_sizes; ++i)
        for (uint32_t no_thread = 0; no_thread < 2; ++no_thread) {
            job(all_sizes[i]);
            settings.group.no_thread = no_thread;
            spawn_all(ddp_rank);
            if (!finish(10000)) return;
        }
}

/* ---- >>kill ---------------------------------------------------------------------------------- */

typedef enum moment {
    FIRST,
    FIRST_RACE,
    LARGE,
    BETWEEN,
    AT_REST,
    BACKWARD,
    MOMENTS
} moment;
/* what a survivor does once it knows */
typedef enum farewell {
    DESTROY,
    EXIT,
    LINGER,
    FAREWELLS
} farewell;

static moment when;
static farewell how;
static uint32_t victim;

/* A survivor that has an error: tell the parent, then leave as programs do. */
static int survive(void) {
    printf("%s\n", me->error.text);
    if (how == LINGER) test_sleep_ms(100);
    if (how == EXIT) exit(0); /* main() returned the result of cdp_print_error() */
    leave();
    return 0;
}

static cdp_status backward_until_broken(void) {
    static float w[4][5000];
    cdp_param params[4] = {{.name = "a", .data = w[0], .count = 5000},
        {.name = "b", .data = w[1], .count = 5000}, {.name = "c", .data = w[2], .count = 5000},
        {.name = "d", .data = w[3], .count = 5000}};
    cdp_ddp *ddp;
    cdp_status st = CALL(cdp_ddp_create(&(cdp_ddp_desc){.group = world,
                                            .params = params,
                                            .param_count = 4,
                                            .first_bucket_bytes = 1000,
                                            .bucket_bytes = 1000},
        &ddp));
    if (st != CDP_OK) return st;
    tell(&me->phase, 2);
    while (st == CDP_OK) {
        st = CALL(cdp_ddp_backward_begin(ddp));
        for (uint32_t p = 4; st == CDP_OK && p-- > 0;)
            st = CALL(cdp_ddp_ready(ddp, p));
        if (st == CDP_OK) st = CALL(cdp_ddp_backward_end(ddp));
    }
    cdp_ddp_destroy(ddp);
    return st;
}

static uint64_t large_count = (TEST_SLOW ? 1u : 4u) << 20;

static int mortal(uint32_t rank) {
    const uint64_t count = when == LARGE ? large_count : 1000;
    float *x = (float *)calloc(count, sizeof *x);
    cdp_status st = join(rank);
    if (st == CDP_OK && when == FIRST && rank == victim) {
        tell(&me->phase, 2);
        for (;;)
            pause();
    }
    if (st == CDP_OK && when == BACKWARD) st = backward_until_broken();
    if (st == CDP_OK && when == AT_REST) {
        st = CALL(cdp_barrier(world));
        tell(&me->phase, 2);
        while (seen(&shared->go) != 1)
            usleep(500);
    }
    while (st == CDP_OK) {
        if (when != LARGE || me->number[0]) tell(&me->phase, 2); /* LARGE: every link is in use */
        st = CALL(cdp_allreduce(world, NULL, x, count, CDP_DTYPE_F32, CDP_REDUCE_SUM));
        ++me->number[0];
        if (when == BETWEEN) usleep(5000);
    }
    free(x);
    return survive();
}

/* Every survivor has blamed `dead`, by number and in words, within the limit after `since`. */
static void check_blame(uint32_t dead, uint64_t since_ns, const char *situation) {
    for (uint32_t i = 0; i < proc_count; ++i) {
        const report *r = &shared->of[i];
        char name[16];
        const double ms = (double)(r->error_ns - since_ns) / 1e6;
        if (i == dead || procs[i].expect < 0) continue;
        snprintf(name, sizeof name, "rank %u", dead);
        test_check(r->error_ns && r->error.status == CDP_ERR_PEER_LOST
                && r->error.peer == (int32_t)dead && strstr(r->error.text, name)
                && ms < DETECT_MS * TEST_LATE,
            test__now.name, 0, "%s, rank %u died: rank %u reports %s, blames %d, after %.0f ms: %s",
            situation, dead, i, cdp_status_name(r->error.status), (int)r->error.peer, ms,
            r->error.text);
    }
}

static void kill_at(moment m, farewell f, uint32_t k, const char *situation) {
    uint64_t since;
    job(4);
    when = m;
    how = f;
    victim = k;
    spawn_all(mortal);
    if (!await_phase(m == FIRST_RACE ? 1 : 2, NOBODY, 10000)) {
        finish(100);
        return;
    }
    if (m == FIRST)
        test_sleep_ms(30);
    else if (m != AT_REST)
        usleep((useconds_t)(test_random(&dice) % (m == FIRST_RACE ? 2000 : 60000)));
    since = test_now_ns();
    kill_process(k, SIGKILL);
    if (m == AT_REST) { /* the others call something only later */
        test_sleep_ms(100);
        since = test_now_ns();
        tell(&shared->go, 1);
    }
    finish(5000);
    check_blame(k, since, situation);
}

static void kill_each(moment m, uint32_t times, const char *situation) {
    for (uint32_t i = 0; i < times && test__now.failed_checks < 8; ++i)
        for (uint32_t k = 0; k < 4; ++k)
            kill_at(m, (farewell)((i + k) % FAREWELLS), k, situation);
}

TEST(kill_in_first_collective) {
    kill_each(FIRST, 2, "in the first collective");
}
TEST(kill_around_first_collective) {
    kill_each(FIRST_RACE, 3, "around the first collective");
}
TEST(kill_in_large_allreduce) {
    kill_each(LARGE, 2, "in a large allreduce");
}
TEST(kill_between_operations) {
    kill_each(BETWEEN, 2, "between operations");
}
TEST(kill_at_rest) {
    kill_each(AT_REST, 2, "while nobody called anything");
}
TEST(kill_in_backward) {
    kill_each(BACKWARD, 2, "in a backward pass");
}

/* Two die at once: every survivor blames one of them. */
TEST(kill_two) {
    for (uint32_t times = 0; times < 6; ++times) {
        const uint32_t a = (uint32_t)(test_random(&dice) % 5),
                       b = (a + 1 + (uint32_t)(test_random(&dice) % 4)) % 5;
        uint64_t since;
        job(5);
        when = times % 2 ? LARGE : BETWEEN;
        how = (farewell)(times % FAREWELLS);
        spawn_all(mortal);
        await_phase(2, NOBODY, 10000);
        since = test_now_ns();
        kill_process(a, SIGKILL);
        kill_process(b, SIGKILL);
        finish(5000);
        for (uint32_t i = 0; i < 5; ++i) {
            const report *r = &shared->of[i];
            if (i == a || i == b) continue;
            test_check(r->error.status == CDP_ERR_PEER_LOST
                    && (r->error.peer == (int32_t)a || r->error.peer == (int32_t)b)
                    && r->error_ns - since < DETECT_MS * TEST_LATE * 1000000ull,
                test__now.name, 0,
                "ranks %u and %u died: rank %u reports %s, blames %d, after %.0f ms: %s", a, b, i,
                cdp_status_name(r->error.status), (int)r->error.peer,
                (double)(r->error_ns - since) / 1e6, r->error.text);
        }
    }
}

/* Killed while the job starts. Whoever had met it blames it at once; if it never came, the
   deadline names it. */
static int starter(uint32_t rank) {
    float x = 1;
    cdp_status st = join(rank);
    while (st == CDP_OK)
        st = CALL(cdp_allreduce(world, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    return survive();
}

TEST(kill_while_starting) {
    const uint32_t init_ms = 150 * TEST_LATE; /* the start alone takes that on a busy machine */
    uint32_t lost = 0, never = 0;
    for (uint32_t i = 0; i < 12; i += TEST_SLOW ? 3 : 1) { /* each rank, and each delay */
        const uint32_t k = i % 4;
        uint64_t since, delay_us;
        char name[16], host[32];
        job(4);
        how = (farewell)(i / 4 % FAREWELLS);
        settings.init_timeout_ms = init_ms;
        spawn_all(starter);
        delay_us = 0;
        if (i >= 4) delay_us = test_random(&dice) % (i < 8 ? 10000 : 50000);
        usleep((useconds_t)delay_us);
        since = test_now_ns();
        kill_process(k, SIGKILL);
        finish(5000);
        snprintf(name, sizeof name, "rank %u", k);
        snprintf(host, sizeof host, "127.0.0.1:%u", port);
        for (uint32_t r = 0; r < 4; ++r) {
            const report *p = &shared->of[r];
            const double ms = (double)(p->error_ns - since) / 1e6;
            const bool timed_out = p->error.status == CDP_ERR_TIMEOUT,
                       named = p->error.peer == (int32_t)k && strstr(p->error.text, name);
            if (r == k) continue;
            lost += !timed_out;
            never += timed_out;
            test_check(p->error_ns
                    && (named || (k == 0 && timed_out && strstr(p->error.text, host))) &&
                    /* rank 0 is the store */
                    (timed_out || p->error.status == CDP_ERR_PEER_LOST
                        || (k == 0 && p->error.status == CDP_ERR_STORE))
                    && ms < (timed_out ? init_ms * 1.1 : 0)
                            + (timed_out ? 400 : DETECT_MS) * TEST_LATE,
                test__now.name, 0,
                "rank %u died %llu us after the start (it %s): rank %u reports %s, blames %d, "
                "after %.0f ms: %s",
                k, (unsigned long long)delay_us,
                shared->of[k].joined_ns ? "had joined" : "had not joined", r,
                cdp_status_name(p->error.status), (int)p->error.peer, ms, p->error.text);
        }
        if (test__now.failed_checks > 8) return;
    }
    printf("  %u survivors saw it end, %u waited for one that had never come\n", lost, never);
}

/* ---- >>stop: a process that lives and does not move ------------------------------------------ */

TEST(stopped_rank) {
    const uint32_t limit_ms = TEST_SLOW ? 4000 : 1000;
    uint32_t right = 0, reports = 0;
    /* far below the deadline, also beside other programs and where all stand still for a while */
    large_count = TEST_SLOW ? 1u << 18 : 1u << 20;
    for (uint32_t i = 0; i < 4 && test__now.failed_checks < 8; ++i) {
        const uint32_t k = i % 4;
        job(4);
        when = i < 2 ? BETWEEN : LARGE;
        how = (farewell)(i % FAREWELLS);
        settings.group.timeout_ms = limit_ms;
        spawn_all(mortal);
        await_phase(2, NOBODY, 10000);
        usleep((useconds_t)(test_random(&dice) % 30000));
        kill_process(k, SIGSTOP);
        for (uint32_t r = 0; r < 4; ++r) /* until the others have reported */
            for (uint32_t t = 0; r != k && t < 200 * TEST_LATE
                 && !__atomic_load_n(&shared->of[r].error_ns, __ATOMIC_ACQUIRE);
                 ++t)
                test_sleep_ms(10);
        kill_process(k, SIGKILL);
        finish(5000);
        for (uint32_t r = 0; r < 4; ++r) {
            const report *p = &shared->of[r];
            const double ms = (double)(p->error_ns - p->began_ns) / 1e6;
            if (r == k) continue;
            ++reports;
            right += p->error.peer == (int32_t)k;
            /* whoever is told of the failure may have called later than the rank whose deadline
               it was */
            test_check(p->error.status == CDP_ERR_TIMEOUT && p->error.peer >= 0
                    && (TEST_SLOW || p->error.peer != (int32_t)r) && strstr(p->error.text, "rank ")
                    && (ms > limit_ms * 0.8 || strstr(p->error.text, "told by"))
                    && ms < limit_ms * 1.1 + 400 * TEST_LATE,
                test__now.name, 0,
                "rank %u was stopped: rank %u reports %s, blames %d, after %.0f ms: %s", k, r,
                cdp_status_name(p->error.status), (int)p->error.peer, ms, p->error.text);
        }
    }
    large_count = 4u << 20;
    printf("  %u of %u reports name the stopped rank\n", right, reports);
    /* Under a sanitizer waits are long enough to be noted for others, and the note of a rank
       that got on and was stopped then misleads. */
    test_check(TEST_SLOW ? right * 2 >= reports : right == reports, test__now.name, 0,
        "%u of %u reports name another rank than the stopped one", reports - right, reports);
}

/* A rank that is stopped for a while and goes on is no failure. */
static int napper(uint32_t rank) {
    float x[1000] = {0};
    if (join(rank) != CDP_OK) return EXIT_INIT;
    for (uint32_t i = 0; i < 100; ++i) {
        must(cdp_allreduce(world, NULL, x, 1000, CDP_DTYPE_F32, CDP_REDUCE_SUM), "allreduce");
        tell(&me->phase, 2);
        usleep(1000);
    }
    leave();
    return 0;
}

TEST(stopped_and_continued) {
    job(4);
    spawn_all(napper);
    await_phase(2, NOBODY, 5000);
    kill_process(2, SIGSTOP);
    test_sleep_ms(400);
    kill_process(2, SIGCONT);
    finish(5000);
}

/* ---- >>abort --------------------------------------------------------------------------------- */

static int entries(const char *dir) {
    return test__entries(dir);
}

static void *nothing(void *arg) {
    return arg;
}

/* A sanitizer starts a thread of its own with the first one that a process starts. */
static int threads_now(void) {
    pthread_t t;
    pthread_create(&t, NULL, nothing, NULL);
    pthread_join(t, NULL);
    for (int i = 0, n = 0; i < 20 && n != entries("/proc/self/task"); ++i, test_sleep_ms(1))
        n = entries("/proc/self/task");
    return entries("/proc/self/task");
}

/* A joined thread may be listed for a moment longer. */
static void nothing_left(int fds, int threads) {
    for (int i = 0; i < 200 && entries("/proc/self/task") > threads; ++i)
        test_sleep_ms(5);
    T_EQ(fds, entries("/proc/self/fd"));
    T_EQ(threads, entries("/proc/self/task"));
}

static uint32_t abort_delay_us;

static void *aborter(void *arg) {
    uint64_t before;
    usleep(abort_delay_us);
    before = test_now_ns();
    cdp_group_abort(world, (const char *)arg);
    me->number[1] = before;
    me->number[2] = test_now_ns() - before;
    return NULL;
}

static char abort_reason[] = "the loss is not a number, step 1234";

/* The same when all ranks have done what must succeed. */
static void *late_aborter(void *arg) {
    const uint64_t until = test_until_ns(5000);
    for (uint32_t r = 0; r < size; ++r)
        while (seen(&shared->of[r].phase) < 2 && test_now_ns() < until)
            usleep(1000);
    abort_delay_us = 50000;
    return aborter(arg);
}

/* Rank `victim` aborts from a second thread while its first one and all others wait; the last
   rank never comes. */
static int abort_rank(uint32_t rank) {
    const int fds = entries("/proc/self/fd"), threads = threads_now();
    pthread_t t;
    cdp_status st = CDP_OK;
    static float x[100000];
    if (join(rank) != CDP_OK) return EXIT_INIT;
    must(cdp_allreduce(world, NULL, x, 10, CDP_DTYPE_F32, CDP_REDUCE_SUM), "first");
    tell(&me->phase, 2);
    if (rank == victim) pthread_create(&t, NULL, late_aborter, abort_reason);
    if (rank == size - 1) {
        while (CALL(cdp_group_status(world)) == CDP_OK)
            usleep(1000); /* it looks now and then */
    } else {
        while (st == CDP_OK)
            st = CALL(cdp_allreduce(world, NULL, x, 100000, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    }
    if (rank == victim) pthread_join(t, NULL);
    T_EQ(CDP_ERR_ABORTED, cdp_barrier(world)); /* it stays broken, and says so at once */
    leave();
    nothing_left(fds, threads);
    return 0;
}

TEST(abort_while_all_wait) {
    for (uint32_t i = 0; i < 8; ++i) {
        job(4);
        settings.group.no_spin = i >= 4;
        victim = i % 4;
        spawn_all(abort_rank);
        finish(5000);
        T_WITHIN(100, shared->of[victim].number[2]);
        for (uint32_t r = 0; r < 4; ++r) {
            const report *p = &shared->of[r];
            const double ms = (double)(int64_t)(p->error_ns - shared->of[victim].number[1]) / 1e6;
            test_check(p->error.status == CDP_ERR_ABORTED && strstr(p->error.text, abort_reason)
                    && ms < 1000.0 * TEST_LATE,
                test__now.name, 0, "rank %u aborted: rank %u reports %s after %.0f ms: %s", victim,
                r, cdp_status_name(p->error.status), ms, p->error.text);
        }
    }
}

/* Again and again: join, work, break at any moment (also while others are still joining), leave.
   --long: 10,000 aborts. */
static bool long_runs;
/* under a sanitizer the starts alone would take the time allowed */
#define SHORT_CYCLES (TEST_SLOW ? 40u : 200u)
#define CYCLES (long_runs ? 10000u : SHORT_CYCLES)

static int64_t in_use; /* allocations of the library */

static void *held_alloc(void *user, uint64_t bytes) {
    void *p = cdp_os_default()->alloc(user, bytes);
    if (p) __atomic_add_fetch(&in_use, 1, __ATOMIC_RELAXED);
    return p;
}
static void held_free(void *user, void *p) {
    if (p) __atomic_sub_fetch(&in_use, 1, __ATOMIC_RELAXED);
    cdp_os_default()->release(user, p);
}

static int cycle_rank(uint32_t rank) {
    static float x[20000];
    uint64_t state = rank + shared->of[0].number[7];
    int fds = 0, threads = 0;
    uint64_t slowest = 0;
    cdp_os os = *cdp_os_default();
    os.alloc = held_alloc;
    os.release = held_free;
    settings.group.os = &os;
    for (uint32_t i = 0; i < CYCLES; ++i) {
        const bool breaks = (i + rank) % 3 == 0;
        char job_name[32];
        pthread_t t;
        cdp_status st = CDP_OK;
        if (i == 5) { /* by now everything that is made once has been made */
            fds = entries("/proc/self/fd");
            threads = threads_now();
        }
        snprintf(job_name, sizeof job_name, "cycle%u", i);
        settings.job = job_name;
        settings.group.no_thread = i % 5 == 4;
        meet(size);
        if (join(rank) != CDP_OK) { /* another rank was faster, and has already given up */
            /* it had no processor for longer than rank 0 waits with its store */
            if (cdp_last_error()->status == CDP_ERR_STORE && cdp_last_error()->peer == 0)
                ++me->number[5];
            else if (!T_EQ(CDP_ERR_ABORTED, cdp_last_error()->status))
                _exit(EXIT_CHECK);
            if (!T_EQ(0, in_use)) _exit(EXIT_CHECK);
            meet(size);
            continue;
        }
        if (breaks) {
            abort_delay_us = (uint32_t)(test_random(&state) % 3000);
            pthread_create(&t, NULL, aborter, abort_reason);
        }
        while (st == CDP_OK)
            st = cdp_allreduce(world, NULL, x, 20000, CDP_DTYPE_F32, CDP_REDUCE_SUM);
        if (!test_check(st == CDP_ERR_ABORTED, test__now.name, 0, "cycle %u: %s: %s", i,
                cdp_status_name(st), cdp_last_error()->text))
            _exit(EXIT_CHECK);
        if (breaks) {
            pthread_join(t, NULL);
            if (me->number[2] > slowest) slowest = me->number[2];
            ++me->number[3];
        }
        leave();
        if (!T_EQ(0, in_use)) _exit(EXIT_CHECK);
        meet(size);
    }
    T_WITHIN(100, slowest);
    me->number[4] = slowest;
    T(me->number[5] <= 1 + CYCLES / 1000);
    nothing_left(fds, threads);
    return 0;
}

TEST(abort_cycles) {
    job(3);
    shared->of[0].number[7] = test_random(&dice);
    spawn_all(cycle_rank);
    finish(long_runs ? 3000000 : 30000);
    for (uint32_t r = 0; r < 3; ++r)
        printf("  rank %u: %llu aborts at random points, the slowest returned after %.2f ms; no "
               "memory, descriptor or thread left\n",
            r, (unsigned long long)shared->of[r].number[3], (double)shared->of[r].number[4] / 1e6);
}

/* ---- >>mismatch: ranks that call different things -------------------------------------------- */

typedef struct difference {
    const char *what;
    cdp_request usual, other;
    const char *text_usual, *text_other; /* both must be in everybody's text */
} difference;

static const difference *differs;
static uint32_t odd_one; /* who calls `other` */
static uint32_t patience_ms = 1200;
static double buffer_a[200000], buffer_b[200000];

static int differing_rank(uint32_t rank) {
    cdp_request rq = rank == odd_one ? differs->other : differs->usual;
    cdp_work w;
    cdp_status st = join(rank);
    if (st != CDP_OK) return EXIT_INIT;
    st = CALL(cdp_barrier(world)); /* a faster rank may already have seen the difference */
    rq.in = rq.kind == CDP_COLL_BARRIER || rq.kind == CDP_COLL_BROADCAST ? NULL : buffer_a;
    rq.out = rq.kind == CDP_COLL_BARRIER ? NULL : buffer_b;
    /* who is done with the first may hear of it in the next */
    for (uint32_t i = 0; st == CDP_OK && i < 3; ++i) {
        me->began_ns = test_now_ns();
        st = note(cdp_start(world, &rq, &w));
        if (st == CDP_OK) st = note(cdp_work_wait(w));
        rq = differs->usual;
        rq.in = rq.kind == CDP_COLL_BARRIER || rq.kind == CDP_COLL_BROADCAST ? NULL : buffer_a;
        rq.out = rq.kind == CDP_COLL_BARRIER ? NULL : buffer_b;
    }
    if (st == CDP_OK) CALL(cdp_barrier(world)); /* a root that only sent hears of it here */
    printf("%s\n", cdp_last_error()->text);
    leave();
    return 0;
}

static void mismatch(const difference *d, uint32_t n, uint32_t odd) {
    differs = d;
    odd_one = odd;
    job(n);
    settings.group.timeout_ms = patience_ms * LONGER;
    spawn_all(differing_rank);
    finish(8000);
    for (uint32_t r = 0; r < size; ++r) {
        const report *p = &shared->of[r];
        test_check(p->error.status == CDP_ERR_MISMATCH && strstr(p->error.text, differs->text_usual)
                && strstr(p->error.text, differs->text_other),
            test__now.name, 0, "%s, %u ranks, rank %u differs: rank %u reports %s: %s",
            differs->what, size, odd_one, r, cdp_status_name(p->error.status), p->error.text);
    }
}

static const uint32_t mismatch_worlds[] = {2, 3, 4, 5};

TEST(mismatched_calls) {
    static const difference differences[] = {
        {"kind", {.kind = CDP_COLL_ALLREDUCE, .count = 100},
            {.kind = CDP_COLL_ALLGATHER, .count = 100}, "allreduce #2 of 100 x f32",
            "allgather #2 of 100 x f32"},
        {"barrier", {.kind = CDP_COLL_ALLREDUCE, .count = 100}, {.kind = CDP_COLL_BARRIER},
            "allreduce #2", "barrier #2"},
        {"count", {.kind = CDP_COLL_ALLREDUCE, .count = 100},
            {.kind = CDP_COLL_ALLREDUCE, .count = 101}, "of 100 x f32", "of 101 x f32"},
        {"large count", {.kind = CDP_COLL_ALLREDUCE, .count = 100000},
            {.kind = CDP_COLL_ALLREDUCE, .count = 50}, "of 100000 x f32", "of 50 x f32"},
        {"dtype", {.kind = CDP_COLL_ALLREDUCE, .count = 100},
            {.kind = CDP_COLL_ALLREDUCE, .count = 100, .dtype = CDP_DTYPE_I32}, "x f32", "x i32"},
        {"op", {.kind = CDP_COLL_ALLREDUCE, .count = 100},
            {.kind = CDP_COLL_ALLREDUCE, .count = 100, .op = CDP_REDUCE_MAX}, "sum", "max"},
        {"broadcast count", {.kind = CDP_COLL_BROADCAST, .count = 100},
            {.kind = CDP_COLL_BROADCAST, .count = 90}, "of 100 x", "of 90 x"},
    };
    for (size_t d = 0; d < sizeof differences / sizeof *differences; ++d)
        for (size_t w = 0; w < 4 && test__now.failed_checks < 8; ++w)
            mismatch(&differences[d], mismatch_worlds[w],
                (uint32_t)(test_random(&dice) % mismatch_worlds[w]));
}

/* Ranks that disagree about who sends: nobody may send, or two may. Then it is noticed when
   somebody waits long, and the others may be further by then. */
TEST(mismatched_roots) {
    static const difference root = {"root", {.kind = CDP_COLL_BROADCAST, .count = 100},
        {.kind = CDP_COLL_BROADCAST, .count = 100, .root = 1}, "broadcast", "from rank "};
    static const uint32_t worlds[] = {2, 2, 3, 4, 5}, odds[] = {0, 1, 2, 3, 0};
    for (size_t i = 0; i < sizeof odds / sizeof *odds; i += TEST_SLOW ? 2 : 1)
        mismatch(&root, worlds[i], odds[i]);
    /* nobody sends: noticed long before the deadline */
    patience_ms = 60000;
    mismatch(&root, 2, 0);
    for (uint32_t r = 0; r < size; ++r)
        T_WITHIN(2500, shared->of[r].error_ns - shared->of[r].began_ns);
    patience_ms = 1200;
}

static int joiner(uint32_t rank) {
    if (join(rank) == CDP_OK) leave();
    return 0;
}

static int joiner_small_bytes(uint32_t rank) {
    settings.group.small_bytes = 1000;
    return joiner(rank);
}

static int joiner_piece_bytes(uint32_t rank) {
    settings.group.piece_bytes = 1000;
    return joiner(rank);
}

static int joiner_world_4(uint32_t rank) {
    size = 4;
    return joiner(rank);
}

/* Everybody has this status, with every one of these words in the text. */
static void check_all(
    const char *what, cdp_status status, const char *word, const char *second, double limit_ms) {
    for (uint32_t i = 0; i < proc_count; ++i) {
        const report *p = &shared->of[i];
        const double ms = (double)(p->error_ns - p->began_ns) / 1e6;
        test_check(p->error_ns && p->error.status == status && strstr(p->error.text, word)
                && strstr(p->error.text, second) && ms < limit_ms * TEST_LATE,
            test__now.name, 0, "%s: process %u reports %s after %.0f ms: %s", what, i,
            p->error_ns ? cdp_status_name(p->error.status) : "nothing", ms, p->error.text);
    }
}

TEST(mismatched_settings) {
    job(3);
    spawn(0, joiner);
    spawn(1, joiner);
    spawn(2, joiner_small_bytes);
    finish(5000);
    check_all("small_bytes", CDP_ERR_MISMATCH, "small_bytes", "rank 2", 1000);
    job(3);
    spawn(0, joiner);
    spawn(1, joiner_piece_bytes);
    spawn(2, joiner);
    finish(5000);
    check_all("piece_bytes", CDP_ERR_MISMATCH, "piece_bytes", "rank 1", 1000);
    job(3);
    spawn(0, joiner);
    spawn(1, joiner);
    spawn(2, joiner_world_4);
    finish(5000);
    check_all("world size", CDP_ERR_MISMATCH, "WORLD_SIZE is 4", "3 on rank 0", 1000);
}

typedef struct model {
    const char *what;
    cdp_param usual[3], other[3];
    uint32_t count_other;
    const char *words[3];
} model;

static const model *models;

static int model_rank(uint32_t rank) {
    static double memory[3][64];
    cdp_param params[3];
    cdp_ddp *ddp = NULL;
    memcpy(params, rank == odd_one ? models->other : models->usual, sizeof params);
    for (uint32_t i = 0; i < 3; ++i)
        params[i].data = memory[i];
    if (join(rank) != CDP_OK) return EXIT_INIT;
    CALL(cdp_ddp_create(&(cdp_ddp_desc){.group = world,
                            .params = params,
                            .param_count = rank == odd_one ? models->count_other : 3},
        &ddp));
    printf("%s\n", cdp_last_error()->text);
    cdp_ddp_destroy(ddp);
    leave();
    return 0;
}

TEST(mismatched_models) {
    static const model different[] = {
        {"count",
            {{.name = "embed", .count = 8}, {.name = "hidden", .count = 16},
                {.name = "out", .count = 8}},
            {{.name = "embed", .count = 8}, {.name = "hidden", .count = 17},
                {.name = "out", .count = 9}},
            3, {"hidden", "16", "17"}},
        {"name",
            {{.name = "embed", .count = 8}, {.name = "hidden", .count = 16},
                {.name = "out", .count = 8}},
            {{.name = "embed", .count = 8}, {.name = "hiddem", .count = 16},
                {.name = "out", .count = 8}},
            3, {"hidden", "hiddem", "1"}},
        {"dtype",
            {{.name = "embed", .count = 8}, {.name = "hidden", .count = 16},
                {.name = "out", .count = 8}},
            {{.name = "embed", .count = 8}, {.name = "hidden", .count = 16},
                {.name = "out", .count = 8, .dtype = CDP_DTYPE_F64}},
            3, {"out", "f32", "f64"}},
        {"number",
            {{.name = "embed", .count = 8}, {.name = "hidden", .count = 16},
                {.name = "out", .count = 8}},
            {{.name = "embed", .count = 8}, {.name = "hidden", .count = 16}}, 2, {"out", "3", "2"}},
    };
    static const uint32_t worlds[] = {2, 4};
    for (size_t d = 0; d < sizeof different / sizeof *different; ++d)
        for (size_t w = 0; w < sizeof worlds / sizeof *worlds; ++w) {
            models = &different[d];
            job(worlds[w]);
            odd_one = (uint32_t)(test_random(&dice) % size);
            spawn_all(model_rank);
            finish(5000);
            for (uint32_t r = 0; r < size; ++r) {
                const report *p = &shared->of[r];
                test_check(p->error.status == CDP_ERR_MISMATCH
                        && strstr(p->error.text, models->words[0])
                        && strstr(p->error.text, models->words[1])
                        && strstr(p->error.text, models->words[2]),
                    test__now.name, 0, "%s, %u ranks, rank %u differs: rank %u reports %s: %s",
                    models->what, size, odd_one, r,
                    p->error_ns ? cdp_status_name(p->error.status) : "nothing", p->error.text);
            }
        }
}

/* ---- >>leaving is not failing ---------------------------------------------------------------- */

static uint32_t last_call; /* what everybody does last */
static uint32_t leave_delay_us[8];
static uint32_t leave_how; /* bits: by exit(), without destroy, two per rank */

/* In order: work, one last operation, a pause of its own for each rank, gone. */
static int leaver(uint32_t rank) {
    const uint64_t large = 100000;
    static double x[100000], y[400000];
    cdp_work w[4];
    if (join(rank) != CDP_OK) return EXIT_INIT;
    if (last_call >= 6) must(cdp_barrier(world), "barrier");
    for (uint64_t i = 0; i < large; ++i)
        x[i] = rank;
    switch (last_call % 6) {
    case 0: must(cdp_barrier(world), "barrier"); break;
    case 1:
        must(cdp_allreduce(world, NULL, x, 10, CDP_DTYPE_F64, CDP_REDUCE_SUM), "allreduce");
        break;
    case 2:
        must(cdp_allreduce(world, NULL, x, large, CDP_DTYPE_F64, CDP_REDUCE_SUM), "allreduce");
        break;
    /* rank 0 is done when its bytes are with the system */
    case 3: must(cdp_broadcast(world, x, large, CDP_DTYPE_F64, 0), "broadcast"); break;
    case 4: must(cdp_allgather(world, x, y, large, CDP_DTYPE_F64), "allgather"); break;
    case 5:
        for (uint32_t i = 0; i < 4; ++i)
            must(cdp_broadcast_async(world, x, i % 2 ? large : 3, CDP_DTYPE_F64, i % size, &w[i]),
                "broadcast");
        for (uint32_t i = 0; i < 4; ++i)
            must(cdp_work_wait(w[i]), "broadcast");
        break;
    }
    if (last_call % 6 == 1 || last_call % 6 == 2)
        T(x[0] == size * (size - 1) / 2.0 && x[9] == x[0]);
    if (last_call % 6 == 3) T(x[0] == 0 && x[large - 1] == 0);
    if (test__now.failed_checks) return EXIT_CHECK;
    usleep(leave_delay_us[rank]);
    fflush(NULL);
    switch (leave_how >> rank * 2 & 3) {
    case 0: _exit(0);
    case 1: exit(0);
    default: leave(); return 0;
    }
}

static void leave_once(uint32_t n, uint32_t i) {
    job(n);
    last_call = i % 12;
    leave_how = (uint32_t)test_random(&dice);
    for (uint32_t r = 0; r < n; ++r)
        leave_delay_us[r] = i % 3 ? (uint32_t)(test_random(&dice) % 4000) : 0;
    spawn_all(leaver);
    if (!finish(5000)) printf("  (%u ranks, last call %u, leaving %x)\n", n, last_call, leave_how);
    for (uint32_t r = 0; r < n; ++r)
        test_check(!procs[r].used, test__now.name, 0,
            "rank %u of %u said something while leaving (last call %u, leaving %x)", r, n,
            last_call, leave_how);
}

TEST(leaving_is_no_failure) {
    for (uint32_t i = 0; i < (TEST_SLOW ? 20 : 200) && test__now.failed_checks < 8; ++i)
        leave_once(2 + i % 3, i);
}

/* Rank 0, which served the store, leaves first; what the others still have to do needs
   connections that do not exist yet. */
TEST(leaving_rank_0_first) {
    for (uint32_t i = 0; i < 10 && test__now.failed_checks < 8; ++i) {
        job(i % 2 ? 8 : 5);
        last_call = i % 4 < 2 ? 3 : 2;
        leave_how = (uint32_t)test_random(&dice) & ~3u;
        memset(leave_delay_us, 0, sizeof leave_delay_us);
        spawn_all(leaver);
        if (!finish(5000))
            printf("  (%u ranks, last call %u, leaving %x)\n", size, last_call, leave_how);
    }
}

/* ---- >>bad starts ---------------------------------------------------------------------------- */

typedef struct bad_env {
    const char *name, *value; /* one variable that differs from what is right; NULL: not set */
    const char *word;         /* in the text, besides the variable's name */
} bad_env;

static int env_rank(uint32_t rank) {
    static const bad_env bad[] = {
        {"RANK", NULL, "is not set"},
        {"RANK", "", "is not set"},
        {"RANK", "two", "'two'"},
        {"RANK", "1x", "'1x'"},
        {"RANK", "-1", "'-1'"},
        {"RANK", " 1", "' 1'"},
        {"RANK", "2", "WORLD_SIZE is 2"},
        {"RANK", "3", "WORLD_SIZE is 2"},
        {"RANK", "99999999999999999999", "9999"},
        {"RANK", "4294967297", "4294967297"},
        {"WORLD_SIZE", NULL, "is not set"},
        {"WORLD_SIZE", "0", "'0'"},
        {"WORLD_SIZE", "-1", "'-1'"},
        {"WORLD_SIZE", "abc", "'abc'"},
        {"WORLD_SIZE", "2.0", "'2.0'"},
        {"MASTER_PORT", NULL, "is not set"},
        {"MASTER_PORT", "0", "'0'"},
        {"MASTER_PORT", "65536", "'65536'"},
        {"MASTER_PORT", "http", "'http'"},
        {"MASTER_PORT", "-5", "'-5'"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
        cdp_status st;
        setenv("RANK", "1", 1);
        setenv("WORLD_SIZE", "2", 1);
        setenv("MASTER_ADDR", "127.0.0.1", 1);
        setenv("MASTER_PORT", "29999", 1);
        if (bad[i].value)
            setenv(bad[i].name, bad[i].value, 1);
        else
            unsetenv(bad[i].name);
        st = cdp_init_from_env(NULL, &world);
        test_check(st == CDP_ERR_INVALID && !world && strstr(cdp_last_error()->text, bad[i].name)
                && strstr(cdp_last_error()->text, bad[i].word),
            test__now.name, 0, "%s=%s: %s: %s", bad[i].name,
            bad[i].value ? bad[i].value : "(not set)", cdp_status_name(st), cdp_last_error()->text);
    }
    (void)rank;
    return 0;
}

TEST(start_with_bad_variables) {
    job(2);
    spawn(1, env_rank);
    finish(5000);
}

static int nowhere_rank(uint32_t rank) {
    /* an empty label: no name server is asked, which may take its time */
    settings.master_addr = "no-such-host..invalid";
    join(rank);
    return 0;
}

TEST(start_with_unknown_host) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
        job(2);
        settings.init_timeout_ms = 1000;
        spawn(rank, nowhere_rank);
        finish(20000);
        test_check(shared->of[0].error.status < CDP_OK
                && strstr(shared->of[0].error.text, "no-such-host..invalid"),
            test__now.name, 0, "rank %u: %s: %s", rank, cdp_status_name(shared->of[0].error.status),
            shared->of[0].error.text);
    }
}

/* The third rank never comes, so that both claimants are there together. */
TEST(start_with_a_rank_twice) {
    for (uint32_t i = 0; i < 4; ++i) {
        job(3);
        settings.init_timeout_ms = 2000 * LONGER;
        spawn(0, joiner);
        spawn(1, joiner);
        if (i & 1) test_sleep_ms(30);
        spawn(1, joiner);
        finish(5000);
        check_all("two processes with rank 1", CDP_ERR_MISMATCH, "two processes claim rank 1",
            "127.0.0.1:", 1500);
    }
    job(2); /* rank 0 twice: the port is taken */
    settings.init_timeout_ms = 1000 * LONGER;
    spawn(0, joiner);
    test_sleep_ms(100);
    spawn(0, joiner);
    finish(5000);
    T_EQ(CDP_ERR_IO, shared->of[1].error.status);
    T_EQ(EADDRINUSE, shared->of[1].error.sys_errno);
    T_EQ(CDP_ERR_TIMEOUT, shared->of[0].error.status);
}

TEST(start_on_a_taken_port) {
    int listener;
    char host[32];
    job(2);
    port = free_port(&listener);
    snprintf(host, sizeof host, "127.0.0.1:%u", port);
    spawn(0, joiner);
    finish(5000);
    close(listener);
    check_all("a taken port", CDP_ERR_IO, host, "Address already in use", 500);
    T_EQ(EADDRINUSE, shared->of[0].error.sys_errno);
}

/* Something that is no store listens at the master port. */
typedef enum foreign {
    HTTP,
    SILENT,
    GARBAGE,
    CLOSES,
    ONE_BYTE,
    FOREIGN_COUNT
} foreign;
static foreign foreign_kind;
static int foreign_listener;

static int foreign_server(uint32_t rank) {
    (void)rank;
    for (;;) {
        static const char http[] = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; "
                                   "charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request";
        unsigned char junk[4096];
        const int fd = accept(foreign_listener, NULL, NULL);
        uint64_t state = 42;
        if (fd < 0) break;
        for (size_t i = 0; i < sizeof junk; ++i)
            junk[i] = (unsigned char)test_random(&state);
        if (foreign_kind == HTTP && write(fd, http, sizeof http - 1) < 0) close(fd);
        if (foreign_kind == GARBAGE && write(fd, junk, sizeof junk) < 0) close(fd);
        if (foreign_kind == ONE_BYTE && write(fd, junk, 1) < 0) close(fd);
        /* the others stay open and say nothing more */
        if (foreign_kind == HTTP || foreign_kind == CLOSES) close(fd);
    }
    return EXIT_CALL;
}

TEST(start_with_a_foreign_server) {
    for (foreign_kind = HTTP; foreign_kind < FOREIGN_COUNT; ++foreign_kind) {
        const report *p = &shared->of[0];
        char host[32];
        double ms;
        job(2);
        settings.init_timeout_ms = 600 * LONGER;
        port = free_port(&foreign_listener);
        snprintf(host, sizeof host, "127.0.0.1:%u", port);
        spawn(1, joiner);
        spawn(0, foreign_server);
        close(foreign_listener);
        for (uint32_t t = 0;
             t < 300 * TEST_LATE && !__atomic_load_n(&p->error_ns, __ATOMIC_ACQUIRE); ++t)
            test_sleep_ms(10);
        kill_process(1, SIGKILL);
        finish(1000);
        ms = (double)(p->error_ns - p->began_ns) / 1e6;
        test_check(p->error_ns && p->error.status < CDP_OK && strstr(p->error.text, host)
                && ms < (600 * 1.1 + 300) * TEST_LATE,
            test__now.name, 0, "foreign server %u: %s after %.0f ms: %s", foreign_kind,
            p->error_ns ? cdp_status_name(p->error.status) : "nothing", ms, p->error.text);
    }
}

TEST(start_with_nobody_there) {
    char host[32];
    job(2);
    settings.init_timeout_ms = 600 * LONGER;
    snprintf(host, sizeof host, "127.0.0.1:%u", port);
    spawn(1, joiner);
    finish(5000);
    check_all("nobody listens", CDP_ERR_TIMEOUT, host, "refused", 600 * 1.1 + 300);
    T(shared->of[0].error_ns - shared->of[0].began_ns > 480000000u * LONGER);
}

TEST(start_without_one_rank) {
    for (uint32_t missing = 1; missing < 4; missing += 2) {
        /* what is kept of it to find out who is missing is as long as a machine stands still */
        const uint32_t ms = TEST_SLOW ? 6000 : 2400;
        job(4);
        settings.init_timeout_ms = ms;
        for (uint32_t r = 0; r < 4; ++r)
            if (r != missing) spawn(r, joiner);
        finish(5000);
        check_all("a rank is missing", CDP_ERR_TIMEOUT, missing == 1 ? "rank 1" : "rank 3", "",
            ms * 1.1 + 300);
        for (uint32_t i = 0; i < 3; ++i)
            T_EQ(missing, shared->of[i].error.peer);
    }
}

/* A store that holds these settings of a rank 0 that is no process of this test. */
static int store_with(const uint8_t *config, uint64_t bytes, uint32_t rank) {
    cdp_store_server *server;
    cdp_store *store;
    (void)rank;
    if (!must(cdp_store_server_create(&(cdp_store_server_desc){.port = port}, &server), "server"))
        return EXIT_CALL;
    if (!must(
            cdp_tcp_store_create(&(cdp_tcp_store_desc){.host = "127.0.0.1", .port = port}, &store),
            "client"))
        return EXIT_CALL;
    must(cdp_store_set(store, "cdp/config", config, bytes), "set");
    while (seen(&shared->of[1].phase) == 0)
        test_sleep_ms(1);
    cdp_store_destroy(store);
    cdp_store_server_destroy(server);
    return 0;
}

static int future_store(uint32_t rank) {
    const uint8_t config[40] = {CDP_WIRE_VERSION + 1, 0, 0, 0, 2};
    return store_with(config, sizeof config, rank);
}

static int present_rank(uint32_t rank) {
    join(rank);
    tell(&me->phase, 1);
    return 0;
}

/* The same version on a processor with another byte order. */
static int other_order_store(uint32_t rank) {
    uint8_t config[CDP__CONFIG_BYTES] = {CDP_WIRE_VERSION, 0, 0, 0, 2};
    config[3] = (uint8_t)(3 - cdp__byte_order());
    return store_with(config, sizeof config, rank);
}

TEST(start_with_another_byte_order) {
    const report *p = &shared->of[1];
    job(2);
    settings.init_timeout_ms = 3000 * LONGER;
    spawn(0, other_order_store);
    spawn(1, present_rank);
    finish(5000);
    test_check(p->error.status == CDP_ERR_MISMATCH && p->error.peer == 0
            && strstr(p->error.text, "byte order"),
        test__now.name, 0, "%s: %s", cdp_status_name(p->error.status), p->error.text);
}

TEST(start_with_another_version) {
    const report *p = &shared->of[1];
    job(2);
    settings.init_timeout_ms = 3000 * LONGER;
    spawn(0, future_store);
    spawn(1, present_rank);
    finish(5000);
    test_check(p->error.status == CDP_ERR_MISMATCH && p->error.peer == 0
            && strstr(p->error.text, "version"),
        test__now.name, 0, "%s: %s", cdp_status_name(p->error.status), p->error.text);
}

/* Rank 0 leaves at once after a failure; the others stay, and ask later what happened. */
static int leaver_after_failure(uint32_t rank) {
    uint64_t began;
    if (join(rank) != CDP_OK) return EXIT_INIT;
    must(cdp_barrier(world), "barrier");
    meet(size); /* nobody is in that barrier any more */
    if (rank == 1) cdp_group_abort(world, "enough");
    if (rank != 2) me->number[1] = note(cdp_barrier(world)) == CDP_ERR_ABORTED;
    if (rank != 0) test_sleep_ms(500);
    /* rank 2 calls when rank 0 has left */
    if (rank == 2) me->number[1] = note(cdp_barrier(world)) == CDP_ERR_ABORTED;
    began = test_now_ns();
    leave();
    me->number[0] = (test_now_ns() - began) / 1000000;
    return 0;
}

/* The shortest of several, since a busy machine makes any of them longer. */
TEST(leaving_after_a_failure_takes_no_time) {
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < 6; ++i) {
        job(3);
        spawn_all(leaver_after_failure);
        if (!finish(5000)) return;
        least = shared->of[0].number[0] < least ? shared->of[0].number[0] : least;
        for (uint32_t r = 0; r < 3; ++r)
            test_check(shared->of[r].number[1] && strstr(shared->of[r].error.text, "enough"),
                test__now.name, 0, "rank %u: %s: %s", r,
                cdp_status_name(shared->of[r].error.status), shared->of[r].error.text);
    }
    test_check(
        least < 150, test__now.name, 0, "rank 0 needs %llu ms to leave", (unsigned long long)least);
}

/* A timer interrupts each rank wherever it is, in the library too, and aborts after a while. */
static uint32_t ticks; /* (atomic): the signal may come to any thread */

static void on_tick(int sig) {
    (void)sig;
    if (__atomic_add_fetch(&ticks, 1, __ATOMIC_SEQ_CST) > 200)
        cdp_group_abort(world, "the timer went off");
}

static int aborts_in_a_handler(uint32_t rank) {
    struct sigaction act;
    const struct itimerval each = {{0, 500}, {0, 500}};
    cdp_status st = CDP_OK;
    float x[16] = {0};
    if (join(rank) != CDP_OK) return EXIT_INIT;
    memset(&act, 0, sizeof act);
    act.sa_handler = on_tick;
    sigaction(SIGALRM, &act, NULL);
    setitimer(ITIMER_REAL, &each, NULL);
    while (st == CDP_OK)
        st = cdp_allreduce(world, NULL, x, 16, CDP_DTYPE_F32, CDP_REDUCE_SUM);
    me->number[0] = note(st) == CDP_ERR_ABORTED;
    setitimer(ITIMER_REAL, &(const struct itimerval){{0, 0}, {0, 0}}, NULL);
    leave();
    return 0;
}

TEST(abort_in_a_signal_handler) {
    for (uint32_t i = 0; i < 6; ++i) {
        job(2);
        spawn_all(aborts_in_a_handler);
        if (!finish(8000)) return;
        for (uint32_t r = 0; r < 2; ++r)
            test_check(shared->of[r].number[0] && strstr(shared->of[r].error.text, "went off"),
                test__now.name, 0, "rank %u: %s: %s", r,
                cdp_status_name(shared->of[r].error.status), shared->of[r].error.text);
    }
}

/* ---- >>restart: ranks that meet their predecessors in a store ----------------------------- */

/* A store that outlives the ranks, as that of torchrun's agent does: until so many ranks have done
   what they came for. */
static uint32_t to_come;

static int agent_store(uint32_t rank) {
    const uint64_t limit_ns = test_now_ns() + 15000000000u * (uint64_t)TEST_LATE;
    cdp_store_server *server;
    (void)rank;
    if (!must(cdp_store_server_create(&(cdp_store_server_desc){.port = port}, &server), "server"))
        return EXIT_CALL;
    tell(&me->phase, 1);
    while (seen(&shared->arrived) < to_come && test_now_ns() < limit_ns)
        test_sleep_ms(1);
    cdp_store_server_destroy(server);
    return 0;
}

static const char *restart_count; /* what the agent of the next rank says */
static bool doomed;               /* the next rank stays until it is killed */

static int agent_rank(uint32_t rank) {
    cdp_tcp_desc d = settings;
    char text[3][16];
    uint32_t x = rank + 1;
    snprintf(text[0], sizeof text[0], "%u", rank);
    snprintf(text[1], sizeof text[1], "%u", size);
    snprintf(text[2], sizeof text[2], "%u", port);
    setenv("RANK", text[0], 1);
    setenv("WORLD_SIZE", text[1], 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", text[2], 1);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    setenv("TORCHELASTIC_RESTART_COUNT", restart_count, 1);
    d.no_shared_memory = over == OVER_TCP;
    if (CALL(cdp_init_from_env(&d, &world)) == CDP_OK) {
        tell(&me->phase, 1);
        must(cdp_allreduce(world, NULL, &x, 1, CDP_DTYPE_I32, CDP_REDUCE_SUM), "allreduce");
        T_EQ(size * (size + 1) / 2, x);
        tell(&me->phase, 2);
        while (doomed)
            pause();
        leave();
    } else {
        printf("init: %s\n", cdp_last_error()->text);
    }
    __atomic_fetch_add(&shared->arrived, 1, __ATOMIC_ACQ_REL);
    return me->error_ns ? EXIT_INIT : 0;
}

static uint32_t start_agent_rank(uint32_t rank, const char *count, bool dies) {
    restart_count = count;
    doomed = dies;
    return spawn(rank, agent_rank);
}

/* An agent waits for the end of what it kills. */
static void kill_agent_rank(uint32_t i) {
    kill_process(i, SIGKILL);
    while (!procs[i].over) {
        drain(&procs[i]);
        test_sleep_ms(1);
    }
}

static void start_agent_store(uint32_t ranks, uint32_t most) {
    job(ranks);
    settings.init_timeout_ms = 5000 * LONGER;
    to_come = most;
    spawn(0, agent_store);
    await_phase(1, NOBODY, 5000);
}

/* Only the agent that saw the failure counts it. Whoever comes first in the second round meets
   what the first one left. */
TEST(restart_under_two_agents) {
    for (uint32_t first = 0; first < 2; ++first) {
        start_agent_store(2, 2);
        start_agent_rank(0, "0", true);
        start_agent_rank(1, "0", true);
        if (!await_phase(2, 0, 5000)) return;
        kill_agent_rank(1);
        kill_agent_rank(2);
        start_agent_rank(first, first ? "1" : "0", false);
        test_sleep_ms(200);
        start_agent_rank(1 - first, first ? "0" : "1", false);
        if (!finish(8000)) return;
    }
}

/* Rank 0 is killed before rank 1 comes, and both start with the same count. */
TEST(restart_of_rank_0_before_rank_1_came) {
    for (uint32_t first = 0; first < 2; ++first) {
        start_agent_store(2, 2);
        start_agent_rank(0, "0", true);
        test_sleep_ms(300 * LONGER);
        kill_agent_rank(1);
        start_agent_rank(first, "0", false);
        test_sleep_ms(200);
        start_agent_rank(1 - first, "0", false);
        if (!finish(8000)) return;
    }
}

/* OK means that every rank was reached: a record of a rank 0 that has ended is none. */
TEST(start_against_a_rank_0_that_has_ended) {
    const report *p = &shared->of[2];
    start_agent_store(2, 1);
    start_agent_rank(0, "0", true);
    test_sleep_ms(300 * LONGER);
    kill_agent_rank(1);
    settings.init_timeout_ms = 1000 * LONGER;
    procs[start_agent_rank(1, "0", false)].expect = EXIT_INIT;
    finish(8000);
    /* or the store sees the end of rank 0 only after rank 1 has begun, and tells it */
    test_check(p->error.peer == 0
            && ((p->error.status == CDP_ERR_TIMEOUT
                    && strstr(p->error.text, "no process listens at its address 127.0.0.1:"))
                || (p->error.status == CDP_ERR_PEER_LOST
                    && strstr(p->error.text, "rank 0 ended while the job was starting"))),
        test__now.name, 0, "%s: %s", cdp_status_name(p->error.status), p->error.text);
}

/* The name of a rank's key of the start whose config is in the store. */
static bool name_of_key(cdp_store *store, char key[64], const char *what, uint32_t rank) {
    void *config;
    uint64_t bytes;
    if (!must(cdp_store_get(store, "cdp/config", &config, &bytes, 5000), "get")) return false;
    snprintf(key, 64, "cdp/%llx/%s/%u",
        (unsigned long long)cdp__get_u64((const uint8_t *)config + 24), what, rank);
    cdp_store_free(store, config);
    return true;
}

/* PyTorch's stores know no last wills: what a rank 1 that has ended left there stays. */
static int ghost(uint32_t rank) {
    static const char nobody[] = "0123456789abcdef 127.0.0.1:9"; /* where nobody listens */
    cdp_store *store;
    char key[64];
    if (!must(
            cdp_tcp_store_create(&(cdp_tcp_store_desc){.host = "127.0.0.1", .port = port}, &store),
            "client")
        || !name_of_key(store, key, "claim", rank))
        return EXIT_CALL;
    must(cdp_store_set(store, key, nobody, strlen(nobody)), "set");
    cdp_store_destroy(store);
    tell(&me->phase, 1);
    return 0;
}

TEST(restart_of_one_rank_while_others_wait) {
    start_agent_store(2, 2);
    start_agent_rank(0, "0", false);
    spawn(1, ghost);
    while (!seen(&shared->of[2].phase))
        test_sleep_ms(1);
    start_agent_rank(1, "0", false);
    finish(8000);
}

/* A job key that one side alone has: cdp_init says so, on both sides of it. */
static bool has_key;

static int keyed_rank(uint32_t rank) {
    settings.external_store = true;
    settings.job_key = has_key ? "0123456789abcdef" : NULL;
    if (join(rank) == CDP_OK) leave();
    __atomic_fetch_add(&shared->arrived, 1, __ATOMIC_ACQ_REL);
    return 0;
}

TEST(start_with_a_key_on_one_side) {
    for (uint32_t i = 0; i < 2; ++i) {
        start_agent_store(2, 2);
        has_key = i == 0;
        spawn(0, keyed_rank);
        has_key = i == 1;
        spawn(1, keyed_rank);
        finish(8000);
        for (uint32_t r = 0; r < 2; ++r) {
            const report *p = &shared->of[1 + r];
            test_check(p->error.status == CDP_ERR_MISMATCH
                    && strstr(p->error.text,
                        i ? "rank 0 has no job key, but this rank has one"
                          : "rank 0 has a job key, but this rank has none")
                    && p->error_ns - p->began_ns < 1000000000u * (uint64_t)TEST_LATE,
                test__now.name, 0, "rank %u: %s: %s", r, cdp_status_name(p->error.status),
                p->error.text);
        }
    }
}

/* What a process of PyTorch leaves in the store when it sets up a Gloo group: the names are those
   that were recorded from it, of both generations. */
static const char *gloo_key;

static int gloo_rank(uint32_t rank) {
    cdp_store *store;
    char key[64];
    if (!must(
            cdp_tcp_store_create(&(cdp_tcp_store_desc){.host = "127.0.0.1", .port = port}, &store),
            "client"))
        return EXIT_CALL;
    snprintf(key, sizeof key, gloo_key, rank);
    must(cdp_store_set(store, key, "host", 4), "set");
    cdp_store_destroy(store);
    return 0;
}

static void hear_of_gloo(cdp_log_level level, const char *text, int32_t rank, void *user) {
    (void)rank;
    (void)user;
    if (level == CDP_LOG_WARN && strstr(text, "is a process of PyTorch") && !me->number[0])
        me->number[0] = test_now_ns();
}

static int rank_beside_gloo(uint32_t rank) {
    settings.external_store = true;
    settings.group.logger.func = hear_of_gloo;
    if (join(rank) == CDP_OK) leave();
    __atomic_fetch_add(&shared->arrived, 1, __ATOMIC_ACQ_REL);
    return 0;
}

/* A rank of cdp and one of Gloo would wait for each other without a word. */
TEST(start_beside_a_rank_of_gloo) {
    static const char *const keys[] = {"default_pg/0//cpu//0/rank_%u", "default_pg/0/0/rank_%u"};
    for (uint32_t rank = 0; rank < 2; ++rank) {
        const report *p = &shared->of[1];
        char text[64];
        start_agent_store(2, 1);
        settings.init_timeout_ms = 4000 * (TEST_SLOW ? 3 : 1);
        spawn(rank, rank_beside_gloo);
        gloo_key = keys[rank];
        spawn(1 - rank, gloo_rank);
        finish(8000);
        snprintf(text, sizeof text, "rank %u is a process of PyTorch", 1 - rank);
        test_check(p->error.status == CDP_ERR_TIMEOUT && strstr(p->error.text, text)
                && p->error.peer == (int32_t)(1 - rank) && p->number[0]
                && p->number[0] - p->began_ns < 2000000000u * (uint64_t)TEST_LATE,
            test__now.name, 0, "rank %u, said after %lld ms: %s: %s", rank,
            (long long)(p->number[0] - p->began_ns) / 1000000, cdp_status_name(p->error.status),
            p->error.text);
    }
}

/* Both live: the second is refused, and the first goes on. */
TEST(start_with_rank_0_twice_in_a_foreign_store) {
    const report *p = &shared->of[2];
    start_agent_store(2, 3);
    start_agent_rank(0, "0", false);
    test_sleep_ms(200 * LONGER);
    procs[start_agent_rank(0, "0", false)].expect = EXIT_INIT;
    test_sleep_ms(200 * LONGER);
    start_agent_rank(1, "0", false);
    finish(8000);
    test_check(p->error.status == CDP_ERR_MISMATCH
            && strstr(p->error.text, "two processes claim rank 0: one listens at 127.0.0.1:"),
        test__now.name, 0, "%s: %s", cdp_status_name(p->error.status), p->error.text);
}

/* ---- >>strangers ----------------------------------------------------------------------------- */

/* The job: it begins when the strangers have come, so that its connections are made among
   theirs. */
static int worker(uint32_t rank) {
    uint64_t end;
    if (join(rank) != CDP_OK) return EXIT_INIT;
    tell(&me->phase, 2);
    while (seen(&shared->go) == 0)
        usleep(500);
    end = test_now_ns() + 500000000u;
    for (uint32_t more = 1; more;) { /* rank 0 says when it is enough */
        int64_t x[64];
        for (uint32_t i = 0; i < 64; ++i)
            x[i] = rank;
        if (!must(cdp_allreduce(world, NULL, x, 64, CDP_DTYPE_I64, CDP_REDUCE_SUM), "allreduce"))
            return EXIT_CALL;
        for (uint32_t i = 0; i < 64; ++i)
            T_EQ(size * (size - 1) / 2, x[i]);
        check_allreduce(rank, CDP_DTYPE_F32, CDP_REDUCE_SUM, 30000, true, (uint32_t)me->number[0]);
        if (test__now.failed_checks) return EXIT_CHECK;
        ++me->number[0];
        more = test_now_ns() < end;
        if (!must(cdp_broadcast(world, &more, 1, CDP_DTYPE_I32, 0), "broadcast")) return EXIT_CALL;
    }
    leave();
    return 0;
}

static int call_at(const cdp_addr *a) {
    struct sockaddr_in s = {.sin_family = AF_INET, .sin_port = htons(a->port)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(&s.sin_addr, a->ip, 4);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&s, sizeof s) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

static void say(int fd, const void *data, size_t bytes) {
    /* they may have hung up already */
    if (fd >= 0 && send(fd, data, bytes, MSG_NOSIGNAL) < 0) return;
}

typedef enum stranger_kind {
    SAYS_GARBAGE,
    HALF_A_HELLO,
    SAYS_NOTHING,
    COMES_AND_GOES,
    WRONG_HELLOS,
    FLOODS,
    STRANGERS
} stranger_kind;
static stranger_kind stranger_is;

static void wrong_hellos(const cdp_addr *at, uint32_t to) {
    cdp__hello h = {.type = CDP__HELLO,
        .version = CDP_WIRE_VERSION + 1,
        .world_size = size,
        .from = size - 1,
        .to = to};
    uint8_t raw[CDP__HELLO_BYTES], answer[CDP__HELLO_BYTES];
    struct timeval limit = {.tv_sec = 2 * LONGER};
    int fd = call_at(at);
    cdp__hello_encode(&h, raw);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    say(fd, raw, sizeof raw);
    T_EQ(sizeof answer, recv(fd, answer, sizeof answer, MSG_WAITALL));
    T(cdp__hello_decode(answer, &h) && h.type == CDP__REFUSED && h.refusal == CDP__REFUSE_VERSION
        && h.version == CDP_WIRE_VERSION);
    /* nobody learns the name of the job here */
    for (uint32_t i = 0; i < CDP__JOB_BYTES; ++i)
        T_EQ(0, h.job[i]);
    close(fd);
    h = (cdp__hello){.type = CDP__HELLO,
        .version = CDP_WIRE_VERSION,
        .order = (uint8_t)cdp__byte_order(),
        .world_size = size,
        .from = size - 1,
        .to = to};
    cdp__hello_encode(&h, raw);
    fd = call_at(at);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    say(fd, raw, sizeof raw);
    T_EQ(sizeof answer, recv(fd, answer, sizeof answer, MSG_WAITALL));
    T(cdp__hello_decode(answer, &h) && h.type == CDP__REFUSED && h.refusal == CDP__REFUSE_JOB);
    close(fd);
}

static int stranger(uint32_t rank) {
    cdp_store *store;
    cdp_addr at[9];
    uint64_t state = test_now_ns();
    uint32_t held = 20;
    if (stranger_is == FLOODS) held = 0;
    if (stranger_is == SAYS_NOTHING) held = 150;
    (void)rank;
    if (!must(
            cdp_tcp_store_create(&(cdp_tcp_store_desc){.host = "127.0.0.1", .port = port}, &store),
            "store"))
        return EXIT_CALL;
    for (uint32_t r = 0; r < size; ++r) {
        char key[64];
        void *value;
        uint64_t bytes;
        if (!name_of_key(store, key, "addr", r)
            || !must(cdp_store_get(store, key, &value, &bytes, 2000), "get")
            || !T(cdp__addr_parse((const char *)value + CDP__PLACE_BYTES, &at[r])))
            return EXIT_CALL;
        cdp_store_free(store, value);
    }
    cdp_store_destroy(store);
    at[size] = at[0];
    at[size].port = port; /* and the store */
    for (uint32_t r = 0; r < size && stranger_is == WRONG_HELLOS; ++r)
        wrong_hellos(&at[r], r);
    for (uint32_t i = 0; i < held * (size + 1); ++i) {
        unsigned char junk[3000];
        const int fd = call_at(&at[i % (size + 1)]);
        for (size_t k = 0; k < sizeof junk; ++k)
            junk[k] = (unsigned char)test_random(&state);
        if (stranger_is == SAYS_GARBAGE) say(fd, junk, sizeof junk);
        if (stranger_is == HALF_A_HELLO) say(fd, "cdp-link\1\0\0\0\1", 11 + i % 3);
        if (stranger_is == COMES_AND_GOES || stranger_is == WRONG_HELLOS) close(fd);
    } /* what was not closed stays open until this process ends */
    tell(&shared->go, 1);
    for (uint32_t i = 0; i < 3000 && stranger_is == FLOODS; ++i) {
        const int fd = call_at(&at[i % (size + 1)]);
        if (i % 3 == 0) say(fd, "GET / HTTP/1.1\r\n\r\n", 18);
        if (fd >= 0) close(fd);
    }
    while (seen(&shared->of[0].phase) < 9)
        test_sleep_ms(5);
    return 0;
}

static int worker_then_say(uint32_t rank) {
    const int code = worker(rank);
    tell(&me->phase, 9);
    return code;
}

TEST(strangers) {
    for (stranger_is = SAYS_GARBAGE; stranger_is < STRANGERS; ++stranger_is) {
        job(4);
        spawn_all(worker_then_say);
        if (await_phase(2, NOBODY, 5000)) spawn(0, stranger);
        if (!finish(10000)) printf("  (strangers of kind %u)\n", stranger_is);
        /* the job went on meanwhile; how far, says nothing under a sanitizer */
        else
            T(shared->of[0].number[0] > (TEST_SLOW ? 0 : 20 / TEST_SLACK));
    }
}

/* A second start on the port of a job that runs: it waits for the next one, and the job goes on. */
static int intruder(uint32_t rank) {
    settings.init_timeout_ms = 1000 * LONGER;
    if (join(rank) == CDP_OK) leave();
    tell(&me->phase, 9);
    if (victim == rank)
        for (;;)
            pause(); /* killed, with whatever it has left behind */
    return 0;
}

static int intruder_world_4(uint32_t rank) {
    size = 4;
    return intruder(rank);
}

TEST(start_into_a_running_job) {
    for (uint32_t i = 0; i < 4; ++i) {
        uint32_t late;
        job(3);
        victim = NOBODY;
        spawn_all(worker_then_say);
        await_phase(2, NOBODY, 5000);
        tell(&shared->go, 1);
        test_sleep_ms(100);
        if (i == 2) victim = i % 3;
        late = spawn(i % 3, i == 3 ? intruder_world_4 : intruder);
        if (i == 2) { /* and it is killed at any moment of its start */
            usleep((useconds_t)(test_random(&dice) % 3000));
            kill_process(late, SIGKILL);
        }
        if (!finish(5000))
            printf("  (intruder %u: %s)\n", i, shared->of[late].error.text);
        else if (i != 2)
            test_check(shared->of[late].error.status == (i % 3 ? CDP_ERR_TIMEOUT : CDP_ERR_IO),
                test__now.name, 0, "intruder %u: %s: %s", i,
                cdp_status_name(shared->of[late].error.status), shared->of[late].error.text);
    }
}

/* The machine gives rank 0 few descriptors, and strangers at the store want them all. */
static int poor_worker(uint32_t rank) {
    const struct rlimit few = {64, 64};
    if (rank == 0) setrlimit(RLIMIT_NOFILE, &few);
    return worker_then_say(rank);
}

static int crowd(uint32_t rank) {
    const cdp_addr at = {.family = 4, .ip = {127, 0, 0, 1}, .port = port};
    (void)rank;
    for (uint32_t i = 0; i < 200; ++i)
        call_at(&at);
    tell(&shared->go, 1);
    while (seen(&shared->of[0].phase) < 9)
        test_sleep_ms(5);
    return 0;
}

TEST(strangers_take_all_descriptors) {
    job(3);
    settings.group.timeout_ms = 3000 * LONGER;
    spawn_all(poor_worker);
    if (await_phase(2, NOBODY, 5000)) spawn(0, crowd);
    finish(10000);
}

/* ---- >>desync: one rank falls out of step; tests/sim/desync.c does more of this -------------- */

typedef enum astray {
    LATE,
    CRASHED,
    STOPPED,
    SKIPPED,
    EXTRA,
    REORDERED,
    TORN_DOWN,
    WRONG_COUNT,
    WRONG_DTYPE,
    WRONG_ROOT,
    ASTRAY
} astray;
static const char *const astray_names[ASTRAY] = {"late", "crashed", "stopped", "skipped one",
    "one too many", "wrong order", "torn down", "wrong count", "wrong dtype", "wrong root"};
static astray astray_how;
static uint32_t astray_rank, astray_at;

/* Operation i of everybody; no two have the same length. */
static cdp_status step_of(uint32_t i, uint64_t more, cdp_dtype t, uint32_t other_root) {
    static const cdp_coll_kind kinds[] = {CDP_COLL_ALLREDUCE, CDP_COLL_BROADCAST, CDP_COLL_REDUCE,
        CDP_COLL_ALLGATHER, CDP_COLL_SCATTER, CDP_COLL_GATHER, CDP_COLL_ALLTOALL,
        CDP_COLL_REDUCE_SCATTER};
    static float in[8 * 4000], out[8 * 4000];
    cdp_request rq = {.kind = kinds[i % 8],
        .in = in,
        .out = out,
        .count = 1000 + 7 * i + more,
        .dtype = t,
        .root = (i + other_root) % size};
    cdp_work w;
    cdp_status st = CALL(cdp_start(world, &rq, &w));
    return st == CDP_OK ? note(cdp_work_wait(w)) : st;
}

static int astray_main(uint32_t rank) {
    const bool odd = rank == astray_rank;
    cdp_status st = join(rank);
    for (uint32_t i = 0; i < 16 && st == CDP_OK; ++i) {
        if (!odd || i != astray_at) {
            st = step_of(i, 0, CDP_DTYPE_F32, 0);
            continue;
        }
        switch (astray_how) {
        case LATE:
            test_sleep_ms(settings.group.timeout_ms * 5 / 2);
            st = step_of(i, 0, CDP_DTYPE_F32, 0);
            break;
        case CRASHED: raise(SIGKILL); break;
        case STOPPED: raise(SIGSTOP); break;
        case SKIPPED: break;
        case EXTRA:
            st = step_of(i + 17, 0, CDP_DTYPE_F32, 0);
            if (st == CDP_OK) st = step_of(i, 0, CDP_DTYPE_F32, 0);
            break;
        case REORDERED:
            st = step_of(i + 1, 0, CDP_DTYPE_F32, 0);
            if (st == CDP_OK) st = step_of(i++, 0, CDP_DTYPE_F32, 0);
            break;
        case TORN_DOWN: leave(); return 0;
        case WRONG_COUNT: st = step_of(i, 1, CDP_DTYPE_F32, 0); break;
        case WRONG_DTYPE: st = step_of(i, 0, CDP_DTYPE_I32, 0); break;
        default: st = step_of(i, 0, CDP_DTYPE_F32, 1); break;
        }
    }
    if (st == CDP_OK) st = CALL(cdp_barrier(world));
    leave();
    return 0;
}

TEST(out_of_step) {
    const uint32_t tries = TEST_SLOW ? ASTRAY : 2 * ASTRAY;
    uint32_t right = 0;
    for (uint32_t k = 0; k < tries; ++k) {
        const uint32_t n = 2 + (uint32_t)(test_random(&dice) % 5);
        bool named = true;
        job(n);
        settings.group.timeout_ms = 600 * LONGER;
        astray_how = (astray)(k % ASTRAY);
        astray_rank = (uint32_t)(test_random(&dice) % n);
        astray_at = 2 + (uint32_t)(test_random(&dice) % 10);
        if (astray_how == WRONG_ROOT)
            while (astray_at % 8 != 1 && astray_at % 8 != 2 && astray_at % 8 != 4
                && astray_at % 8 != 5)
                ++astray_at;
        spawn_all(astray_main);
        if (astray_how == CRASHED || astray_how == STOPPED) procs[astray_rank].expect = -SIGKILL;
        /* until the others have reported */
        for (uint32_t r = 0; r < n && astray_how == STOPPED; ++r)
            for (uint32_t t = 0; r != astray_rank && t < 200 * TEST_LATE
                 && !__atomic_load_n(&shared->of[r].error_ns, __ATOMIC_ACQUIRE);
                 ++t)
                test_sleep_ms(10);
        if (astray_how == STOPPED) kill_process(astray_rank, SIGKILL);
        finish(8000);
        for (uint32_t r = 0; r < n; ++r) {
            const report *p = &shared->of[r];
            const double ms = (double)(p->error_ns - p->began_ns) / 1e6;
            char calls[32];
            bool ok;
            snprintf(calls, sizeof calls, "rank %u calls ", astray_rank);
            if (r == astray_rank) continue;
            ok = p->error.peer == (int32_t)astray_rank
                || (p->error.status == CDP_ERR_MISMATCH && strstr(p->error.text, calls));
            test_check(p->error_ns && ms < settings.group.timeout_ms * 1.1 + 400 * TEST_LATE,
                test__now.name, 0,
                "%s: rank %u of %u, operation %u: rank %u reports %s after %.0f ms: %s",
                astray_names[astray_how], astray_rank, n, astray_at, r,
                cdp_status_name(p->error.status), ms, p->error.text);
            if (!ok)
                printf("  %s: rank %u of %u, operation %u: rank %u blames %d: %s\n",
                    astray_names[astray_how], astray_rank, n, astray_at, r, (int)p->error.peer,
                    p->error.text);
            named = named && ok;
        }
        right += named;
    }
    printf("  the right rank is named in %u of %u jobs\n", right, tries);
    test_check(right + 1 >= tries, test__now.name, 0,
        "the right rank is named in only %u of %u jobs", right, tries);
}

/* ---- >>cost: waiting takes no processor time ------------------------------------------------- */

static int waiter(uint32_t rank) {
    struct timespec a, b;
    if (join(rank) != CDP_OK) return EXIT_INIT;
    must(cdp_barrier(world), "barrier");
    if (rank == size - 1) test_sleep_ms(long_runs ? 10000 : 2000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    must(cdp_barrier(world), "barrier");
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    me->number[0] = (uint64_t)((b.tv_sec - a.tv_sec) * 1000000 + (b.tv_nsec - a.tv_nsec) / 1000);
    leave();
    return 0;
}

TEST(waiting_costs_nothing) {
    const uint32_t n = long_runs ? 9 : 5;
    uint64_t most = 0;
    job(n);
    over = OVER_MEMORY; /* sockets wait in the same poll */
    spawn_all(waiter);
    finish(long_runs ? 40000 : 8000);
    for (uint32_t r = 0; r + 1 < n; ++r)
        most = shared->of[r].number[0] > most ? shared->of[r].number[0] : most;
    printf("  %u ranks: %u seconds of waiting took at most %.1f ms of processor time each\n", n - 1,
        long_runs ? 10 : 2, (double)most / 1e3);
    T(most < 60000u * TEST_SLACK);
}

/* ---- >>main ---------------------------------------------------------------------------------- */

/* ---- >>silence and death -------------------------------------------------------------------- */

/* A rank that computes for longer than a dead machine may be silent, while a peer has sent it more
   than the buffers of the sockets hold. */
#define COMPUTES_MS (TEST_SLOW ? 3000u : 34000u) /* a sanitizer sees the same in less */
static int32_t small_buffers(int32_t fd) {
    const int bytes = 4096;
    if (fd >= 0) (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    if (fd >= 0) (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    return fd;
}
static int32_t small_accept(void *user, int32_t fd, cdp_addr *from) {
    return small_buffers(cdp_os_default()->net.accept_next(user, fd, from));
}
static int32_t small_connect(void *user, const cdp_addr *to) {
    return small_buffers(cdp_os_default()->net.connect_to(user, to));
}

static int computing_rank(uint32_t rank) {
    const uint64_t count = 1 << 15; /* slow through such buffers */
    static cdp_os os;
    float *x = (float *)calloc(count, sizeof *x);
    os = *cdp_os_default();
    os.net.accept_next = small_accept;
    os.net.connect_to = small_connect;
    settings.group.os = &os;
    over = OVER_TCP;
    settings.group.no_thread = rank == 1; /* nobody reads there meanwhile */
    if (!x || join(rank) != CDP_OK) return EXIT_INIT;
    must(cdp_barrier(world), "barrier"); /* they are connected */
    if (rank == 1) test_sleep_ms(COMPUTES_MS);
    if (rank == 0)
        must(cdp_send(world, x, count, CDP_DTYPE_F32, 1, 7), "send");
    else
        must(cdp_recv(world, x, count, CDP_DTYPE_F32, 0, 7), "recv");
    leave();
    free(x);
    return 0;
}

TEST(a_rank_that_computes_is_not_lost) {
    job(2);
    settings.group.timeout_ms = 120000;
    spawn_all(computing_rank);
    finish(COMPUTES_MS + 15000);
}

/* Rank 1 has forked, as loaders of data do, and dies; its child lives on and keeps every
   descriptor.
   number[0]: the child. */
static int forking_rank(uint32_t rank) {
    float x = 1;
    if (join(rank) != CDP_OK) return EXIT_INIT;
    must(cdp_allreduce(world, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM), "allreduce");
    if (rank == 1) {
        const pid_t child = fork();
        if (child == 0) {
            close(1);
            close(2);
            test_sleep_ms(20000);
            _exit(0);
        }
        me->number[0] = (uint64_t)child;
        me->error_ns = test_now_ns();
        _exit(0);
    }
    T_EQ(CDP_ERR_PEER_LOST, CALL(cdp_recv(world, &x, 1, CDP_DTYPE_F32, 1, 0)));
    T_EQ(1, me->error.peer);
    leave();
    return 0;
}

TEST(a_child_does_not_hide_a_death) {
    for (int way_of = 0; way_of < 2; ++way_of) {
        job(2);
        over = way_of ? OVER_MEMORY : OVER_TCP;
        spawn_all(forking_rank);
        finish(15000);
        if (shared->of[1].number[0]) kill((pid_t)shared->of[1].number[0], SIGKILL);
        T(shared->of[0].error_ns != 0);
        T_WITHIN(DETECT_MS, shared->of[0].error_ns - shared->of[1].error_ns);
    }
}

/* Rank 0, which serves the store, loses its link to rank 1 and ends as soon as it has the error.
   Rank 1 sends late: it has time to read what rank 0 has left there, and names the same cause. */
static uint32_t late_sends_ms;

static int64_t send_late(void *user, int32_t fd, const cdp_iov *iov, uint32_t n) {
    if (seen(&late_sends_ms)) test_sleep_ms(seen(&late_sends_ms));
    return cdp_os_default()->net.send_iov(user, fd, iov, n);
}

static int host_of_a_cause(uint32_t rank) {
    cdp_os os = *cdp_os_default();
    os.net.send_iov = send_late;
    settings.group.os = &os;
    settings.group.no_thread = true;
    if (join(rank) != CDP_OK) return EXIT_INIT;
    if (!must(cdp_barrier(world), "barrier")) return EXIT_CALL;
    meet(2);
    if (rank == 0) {
        test_sleep_ms(20); /* rank 1 waits by then */
        cdp__link_lose(
            &((cdp__mesh *)world->w->transport.self)->links[1], CDP_ERR_PEER_LOST, ECONNABORTED);
    } else {
        tell(&late_sends_ms, 10);
    }
    T_EQ(CDP_ERR_PEER_LOST, CALL(cdp_barrier(world)));
    T_EQ(0, me->error.origin);
    T_EQ(ECONNABORTED, me->error.sys_errno);
    printf("%s\n", cdp_last_error()->text);
    return 0;
}

TEST(a_cause_is_read_before_its_store_ends) {
    for (int i = 0; i < 3; ++i) {
        job(2);
        over = OVER_TCP;
        spawn_all(host_of_a_cause);
        finish(8000);
    }
}

/* Rank 1 never comes: the others have their answer when init_timeout_ms is over. */
static int punctual_rank(uint32_t rank) {
    join(rank);
    me->number[0] = test_now_ns() - me->began_ns;
    return 0;
}

TEST(init_ends_by_its_deadline) {
    job(3);
    settings.init_timeout_ms = 4000;
    spawn(0, punctual_rank);
    spawn(2, punctual_rank);
    finish(8000);
    for (int i = 0; i < 2; ++i) {
        T_EQ(CDP_ERR_TIMEOUT, shared->of[i].error.status);
        T_EQ(1, shared->of[i].error.peer);
        test_check(shared->of[i].number[0] <= 4400000000u * (TEST_SLOW ? TEST_SLACK : 1), __FILE__,
            __LINE__, "4 s took %.0f ms", (double)shared->of[i].number[0] / 1e6);
    }
}

/* Somebody connects to a rank's port and closes, as fast as the machine allows, from two
   processes. */
static int flooding_stranger(uint32_t rank) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct linger hard = {1, 0};
    (void)rank;
    while (!seen(&shared->go))
        test_sleep_ms(1);
    a.sin_port = htons((uint16_t)shared->of[0].number[1]);
    while (seen(&shared->go) == 1) {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (fd < 0) continue;
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        (void)!connect(fd, (struct sockaddr *)&a, sizeof a);
        ++me->number[0];
        close(fd);
    }
    return 0;
}

static int flooded_rank(uint32_t rank) {
    const uint64_t until = test_now_ns() + 3000000000u;
    float x = 1;
    if (rank >= 2) return flooding_stranger(rank);
    size = 2;
    over = OVER_TCP;
    if (join(rank) != CDP_OK) return EXIT_INIT;
    if (rank == 0) {
        me->number[1] = port;
        tell(&shared->go, 1);
    }
    do {
        const uint64_t began = test_now_ns();
        x = test_now_ns() < until; /* all go on, or none */
        if (!must(cdp_allreduce(world, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_MIN), "allreduce"))
            break;
        if (test_now_ns() - began > me->number[2]) me->number[2] = test_now_ns() - began;
        ++me->number[3];
    } while (x != 0);
    tell(&shared->go, 2);
    leave();
    return 0;
}

TEST(a_flood_of_strangers_stops_nobody) {
    job(4);
    settings.group.timeout_ms = 5000 * LONGER;
    spawn_all(flooded_rank);
    finish(20000);
    printf("  %llu connections and %llu operations in 3 s, the longest %.1f ms\n",
        (unsigned long long)(shared->of[2].number[0] + shared->of[3].number[0]),
        (unsigned long long)shared->of[0].number[3], (double)shared->of[0].number[2] / 1e6);
    T(shared->of[2].number[0] + shared->of[3].number[0] > 1000);
    T(shared->of[0].number[3] > 10);
    T_WITHIN(500, shared->of[0].number[2]);
}

static const test_case cases[] = {
    {"hello", hello, 30},
    {"hello_late_rank", hello_late_rank, 10},
    {"hello_rank_0_comes_last", hello_rank_0_comes_last, 10},
    {"hello_ten_jobs_at_once", hello_ten_jobs_at_once, 20},
    {"hello_same_port_again", hello_same_port_again, 30},
    {"collectives", collectives, 60},
    {"collectives_async", collectives_async, 60},
    {"collectives_no_thread", collectives_no_thread, 60},
    {"collectives_no_thread_polled", collectives_no_thread_polled, 60},
    {"collectives_no_spin", collectives_no_spin, 60},
    {"collectives_all_large", collectives_all_large, 60},
    {"collectives_all_small", collectives_all_small, 60},
    {"collectives_several_connections", collectives_several_connections, 120},
    {"collectives_of_300000", collectives_of_300000, 60},
    {"collectives_of_64_mib", collectives_of_64_mib, 60},
    {"collectives_same_bits", collectives_same_bits, 60},
    {"collectives_many_in_flight", collectives_many_in_flight, 60},
    {"ddp_is_the_serial_mean", ddp_is_the_serial_mean, 60},
    {"kill_in_first_collective", kill_in_first_collective, 60},
    {"kill_around_first_collective", kill_around_first_collective, 60},
    {"kill_in_large_allreduce", kill_in_large_allreduce, 60},
    {"kill_between_operations", kill_between_operations, 60},
    {"kill_at_rest", kill_at_rest, 60},
    {"kill_in_backward", kill_in_backward, 60},
    {"kill_two", kill_two, 60},
    {"kill_while_starting", kill_while_starting, 90},
    {"stopped_rank", stopped_rank, 60},
    {"stopped_and_continued", stopped_and_continued, 20},
    {"abort_while_all_wait", abort_while_all_wait, 60},
    {"abort_cycles", abort_cycles, 60},
    {"mismatched_calls", mismatched_calls, 90},
    {"mismatched_roots", mismatched_roots, 90},
    {"mismatched_settings", mismatched_settings, 30},
    {"mismatched_models", mismatched_models, 30},
    {"leaving_is_no_failure", leaving_is_no_failure, 90},
    {"leaving_rank_0_first", leaving_rank_0_first, 30},
    {"leaving_after_a_failure_takes_no_time", leaving_after_a_failure_takes_no_time, 60},
    {"abort_in_a_signal_handler", abort_in_a_signal_handler, 60},
    {"start_with_bad_variables", start_with_bad_variables, 20},
    {"start_with_unknown_host", start_with_unknown_host, 60},
    {"start_with_a_rank_twice", start_with_a_rank_twice, 30},
    {"start_on_a_taken_port", start_on_a_taken_port, 20},
    {"start_with_a_foreign_server", start_with_a_foreign_server, 30},
    {"start_with_nobody_there", start_with_nobody_there, 20},
    {"start_without_one_rank", start_without_one_rank, 30},
    {"restart_under_two_agents", restart_under_two_agents, 60},
    {"restart_of_rank_0_before_rank_1_came", restart_of_rank_0_before_rank_1_came, 60},
    {"start_against_a_rank_0_that_has_ended", start_against_a_rank_0_that_has_ended, 30},
    {"restart_of_one_rank_while_others_wait", restart_of_one_rank_while_others_wait, 30},
    {"start_with_rank_0_twice_in_a_foreign_store", start_with_rank_0_twice_in_a_foreign_store, 30},
    {"start_with_a_key_on_one_side", start_with_a_key_on_one_side, 30},
    {"start_beside_a_rank_of_gloo", start_beside_a_rank_of_gloo, 30},
    {"start_with_another_version", start_with_another_version, 20},
    {"start_with_another_byte_order", start_with_another_byte_order, 20},
    {"a_rank_that_computes_is_not_lost", a_rank_that_computes_is_not_lost, 80},
    {"a_child_does_not_hide_a_death", a_child_does_not_hide_a_death, 60},
    {"a_cause_is_read_before_its_store_ends", a_cause_is_read_before_its_store_ends, 30},
    {"init_ends_by_its_deadline", init_ends_by_its_deadline, 20},
    {"a_flood_of_strangers_stops_nobody", a_flood_of_strangers_stops_nobody, 40},
    {"start_into_a_running_job", start_into_a_running_job, 30},
    {"strangers", strangers, 60},
    {"strangers_take_all_descriptors", strangers_take_all_descriptors, 20},
    {"out_of_step", out_of_step, 90},
    {"waiting_costs_nothing", waiting_costs_nothing, 20},
};
#define CASES (sizeof cases / sizeof *cases)

int main(int argc, char **argv) {
    unsigned long times = 1;
    int words = 1;
    for (int i = 1; i < argc; ++i) {
        if (strcmp(argv[i], "--list") == 0) {
            for (size_t c = 0; c < CASES; ++c)
                puts(cases[c].name);
            return 0;
        }
        if (strcmp(argv[i], "--repeat") == 0 && i + 1 < argc)
            times = strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--long") == 0)
            long_runs = true;
        else
            argv[words++] = argv[i];
    }
    shared = (struct shared *)mmap(
        NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 2;
    dice = test_now_ns() ^ (uint64_t)getpid() << 32;
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGALRM, test__out_of_time);
    signal(SIGPIPE, SIG_IGN);
    while (times--)
        for (size_t c = 0; c < CASES; ++c)
            if (test__chosen(cases, c, CASES, words, argv)) {
                test_case one = cases[c];
                if (long_runs) one.limit_s *= 20;
                test__run(&one);
            }
    printf("%u passed, %u failed\n", test__now.passed, test__now.failed);
    return test__now.failed ? 1 : 0;
}
