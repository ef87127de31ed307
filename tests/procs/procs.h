/*  procs.h - jobs whose ranks are real processes and talk over real sockets. Include after
    cdp_tcp.h.

    The parent stays without threads: it forks the ranks, reads one pipe from each, kills whom a
    case wants dead, and kills everybody at the deadline. What a rank has to tell goes into memory
    that all share, so that the parent can also read what a killed rank had said. Output is shown
    only of ranks that did not end as expected.

    A program of it takes words: [--list] [--repeat N] [--long] [WORD...]
        WORD      only cases whose name contains one
        --long    abort_cycles and waiting_costs_nothing take their time */
#ifndef PROCS_INCLUDED
#define PROCS_INCLUDED

#include "test.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>

/* ---- memory that all processes share ---------------------------------------------- */

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

TEST_API uint32_t seen(const uint32_t *p) {
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
TEST_API void tell(uint32_t *p, uint32_t v) {
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

/* ---- processes -------------------------------------------------------------------- */

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
TEST_API int listen_at(uint16_t at) {
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(at), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 512) == 0) return fd;
    close(fd);
    return -1;
}

TEST_API uint16_t free_port(int *listener) {
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
TEST_API void job(uint32_t n) {
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
TEST_API int __lsan_do_recoverable_leak_check(void) {
    return 0;
}
#endif

TEST_API uint32_t spawn(uint32_t rank, rank_main func) {
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

TEST_API void spawn_all(rank_main func) {
    for (uint32_t r = 0; r < size; ++r)
        spawn(r, func);
}

TEST_API void kill_process(uint32_t i, int signal_number) {
    if (signal_number == SIGKILL) procs[i].expect = -SIGKILL;
    kill(procs[i].pid, signal_number);
}

/* Read what there is; the end of its output is the end of a process. */
TEST_API void drain(process *p) {
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
TEST_API bool finish(uint32_t limit_ms) {
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
TEST_API bool await_phase(uint32_t phase, uint32_t except, uint32_t limit_ms) {
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

/* ---- in a child ------------------------------------------------------------------- */

static cdp_group *world;

/* Keep the first failure, with the time at which it was known. */
TEST_API cdp_status note(cdp_status st) {
    if (st < 0 && !me->error_ns) {
        me->error = *cdp_last_error();
        me->error_ns = test_now_ns();
    }
    return st;
}

TEST_API cdp_status begin_call(void) {
    me->began_ns = test_now_ns();
    return CDP_OK;
}
#define CALL(call) (begin_call(), note(call))

TEST_API cdp_status join(uint32_t rank) {
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

TEST_API bool must(cdp_status st, const char *what) {
    note(st);
    return test_check(st == CDP_OK, test__now.name, 0, "%s: %s: %s", what, cdp_status_name(st),
        cdp_last_error()->text);
}

TEST_API void leave(void) {
    cdp_group_destroy(world);
    world = NULL;
}

/* Meet in shared memory, without the library. */
TEST_API void meet(uint32_t n) {
    const uint32_t mine = __atomic_fetch_add(&shared->arrived, 1, __ATOMIC_ACQ_REL),
                   until = (mine / n + 1) * n;
    while (seen(&shared->arrived) < until)
        usleep(100);
}

TEST_API uint64_t hash_of(const void *data, size_t bytes) {
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

TEST_API int joiner(uint32_t rank) {
    if (join(rank) == CDP_OK) leave();
    return 0;
}

/* Everybody has this status, with every one of these words in the text. */
TEST_API void check_all(
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

/* The name of a rank's key of the start whose config is in the store. */
TEST_API bool name_of_key(cdp_store *store, char key[64], const char *what, uint32_t rank) {
    void *config;
    uint64_t bytes;
    if (!must(cdp_store_get(store, "cdp/config", &config, &bytes, 5000), "get")) return false;
    snprintf(key, 64, "cdp/%llx/%s/%u",
        (unsigned long long)cdp__get_u64((const uint8_t *)config + 24), what, rank);
    cdp_store_free(store, config);
    return true;
}

TEST_API uint32_t victim; /* the rank to which it happens */

/* ---- the words of a program ---- */

static bool long_runs;

TEST_API int procs_main(int argc, char **argv, const test_case *cases, size_t count) {
    unsigned long times = 1;
    int words = 1;
    for (int i = 1; i < argc; ++i) {
        if (strcmp(argv[i], "--list") == 0) {
            for (size_t c = 0; c < count; ++c)
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
        for (size_t c = 0; c < count; ++c)
            if (test__chosen(&cases[c], words, argv)) {
                test_case one = cases[c];
                if (long_runs) one.limit_s *= 20;
                test__run(&one);
            }
    printf("%u passed, %u failed\n", test__now.passed, test__now.failed);
    return test__now.failed ? 1 : 0;
}

#endif
