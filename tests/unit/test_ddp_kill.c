/* A rank of a training job dies between two of its calls, whichever these are: every other rank
   gets an error that names it, soon. Real processes over TCP; the parent has no threads. */
#define _GNU_SOURCE
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "test.h"
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum {
    RANKS = 3,
    N = 4,
    COUNT = 3000,
    ROWS = 30,
    STEPS = 3
};
typedef enum mode {
    PLAIN,
    HOOKED,
    UNEVEN,
    MODES
} mode;

static struct {
    /* how many places there are to die at, as a run without deaths has counted them */
    uint32_t points;
    uint64_t death_ns;
    struct {
        cdp_status status;
        int32_t peer;
        uint64_t error_ns;
        char text[512];
    } of[RANKS];
} * shared;

static uint32_t rank, victim, die_at, at; /* die_at 0: nobody dies */
static float data[N][COUNT];
static cdp_group *world;
static cdp_ddp *ddp;

static void point(void) {
    ++at;
    if (rank != victim || at != die_at) return;
    shared->death_ns = test_now_ns();
    raise(SIGKILL);
}
/* A call, with a place to die before it. */
#define CALL(expr) (point(), st == CDP_OK ? (void)(st = (expr)) : (void)0)

static cdp_status update(void *user, uint32_t i, const cdp_optimizer_part *part, void *values,
    const void *grad, double scale) {
    (void)user;
    (void)i;
    (void)part;
    (void)grad;
    (void)scale;
    ((float *)values)[0] += 1;
    return CDP_OK;
}

static cdp_status create_optimizer(cdp_optimizer **out) {
    cdp_optimizer_desc d;
    memset(&d, 0, sizeof d);
    d.ddp = ddp;
    d.update = update;
    d.deferred = true;
    return cdp_optimizer_create(&d, out);
}

static cdp_status create(mode m) {
    cdp_param params[N];
    static float running;
    cdp_buffer buffer;
    cdp_ddp_desc d;
    memset(params, 0, sizeof params);
    memset(&buffer, 0, sizeof buffer);
    memset(&d, 0, sizeof d);
    for (int i = 0; i < N; ++i) {
        params[i].data = data[i];
        params[i].count = COUNT;
        params[i].rows = ROWS;
    }
    params[0].sparse = m == UNEVEN;
    buffer.data = &running;
    buffer.count = 1;
    d.group = world;
    d.params = params;
    d.param_count = N;
    d.buffers = &buffer;
    d.buffer_count = 1;
    d.first_bucket_bytes = d.bucket_bytes = 4;
    d.find_unused = m == PLAIN;
    d.rebuild = m == HOOKED;
    d.join = m == UNEVEN;
    return cdp_ddp_create(&d, &ddp);
}

static cdp_status hook(void) {
    cdp_hook_desc d;
    cdp_hook h;
    cdp_status st;
    memset(&d, 0, sizeof d);
    d.kind = CDP_HOOK_QUANTIZE;
    st = cdp_hook_create(&d, &h);
    return st == CDP_OK ? cdp_ddp_set_hook(ddp, &h) : st;
}

static cdp_status train(mode m) {
    static const uint32_t rows[2] = {3, 7};
    static float values[2 * COUNT / ROWS];
    const uint32_t steps = m == UNEVEN && rank == 2 ? 1 : STEPS;
    cdp_status st = CDP_OK;
    cdp_optimizer *optimizer = NULL;
    cdp_averager average;
    memset(&average, 0, sizeof average);
    CALL(create(m));
    average.ddp = ddp;
    if (m == HOOKED) CALL(hook());
    if (m == PLAIN) CALL(create_optimizer(&optimizer));
    for (uint32_t step = 0; step < steps; ++step) {
        const bool sync = m != PLAIN || step != 1;
        CALL(cdp_ddp_no_sync(ddp, !sync));
        CALL(cdp_ddp_forward_begin(ddp));
        CALL(cdp_ddp_backward_begin(ddp));
        for (uint32_t i = N; i-- > 0;) {
            if (m == PLAIN && i == 2 && rank == 1 && sync)
                CALL(cdp_ddp_unused(ddp, i));
            else if (m == UNEVEN && i == 0)
                CALL(cdp_ddp_ready_rows(ddp, i, rows, 2, values));
            else
                CALL(cdp_ddp_ready(ddp, i));
        }
        CALL(cdp_ddp_backward_end(ddp));
        if (m == HOOKED) CALL(cdp_averager_step(&average));
        if (m == PLAIN && sync) CALL(cdp_optimizer_step(optimizer, 1));
    }
    if (m == UNEVEN) CALL(cdp_ddp_join(ddp));
    CALL(cdp_barrier(world));
    return st;
}

static int rank_main(mode m, uint16_t port) {
    cdp_tcp_desc d;
    cdp_status st;
    memset(&d, 0, sizeof d);
    d.group.rank = rank;
    d.group.world_size = RANKS;
    d.master_port = port;
    d.group.timeout_ms = d.init_timeout_ms = 20000 * (TEST_SLOW ? TEST_SLACK : 1u);
    st = cdp_init(&d, &world);
    if (st != CDP_OK) {
        fprintf(stderr, "rank %u: %s\n", rank, cdp_last_error()->text);
        return 2;
    }
    st = train(m);
    shared->of[rank].status = st;
    if (st != CDP_OK) {
        shared->of[rank].peer = cdp_last_error()->peer;
        shared->of[rank].error_ns = test_now_ns();
        snprintf(
            shared->of[rank].text, sizeof shared->of[rank].text, "%.500s", cdp_last_error()->text);
    }
    if (rank == 0) shared->points = at;
    point(); /* the last: nobody needs this rank any more */
    cdp_ddp_destroy(ddp);
    cdp_group_destroy(world);
    return 0;
}

static uint16_t free_port(uint64_t *dice) {
    for (;;) {
        const uint16_t port = (uint16_t)(10000 + test_random(dice) % 22000);
        struct sockaddr_in a;
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        memset(&a, 0, sizeof a);
        a.sin_family = AF_INET;
        a.sin_port = htons(port);
        a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        const bool ok = bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 1) == 0;
        close(fd);
        if (ok) return port;
    }
}

/* One job; true when every rank ended as it should in time. */
static bool job(mode m, uint16_t port) {
    const uint64_t deadline = test_now_ns() + 15000000000u * (uint64_t)TEST_SLACK;
    pid_t pid[RANKS];
    bool ok = true;
    memset(shared, 0, sizeof *shared);
    fflush(stdout);
    for (uint32_t r = 0; r < RANKS; ++r) {
        pid[r] = fork();
        if (pid[r] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            rank = r;
            at = 0;
            _exit(rank_main(m, port));
        }
    }
    for (uint32_t r = 0; r < RANKS; ++r) {
        int status = 0;
        pid_t got;
        while ((got = waitpid(pid[r], &status, WNOHANG)) == 0 && test_now_ns() < deadline)
            usleep(500);
        if (got == 0) {
            kill(pid[r], SIGKILL);
            waitpid(pid[r], &status, 0);
        }
        const bool died = die_at && r == victim;
        ok = test_check(got != 0
                     && (died ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                              : WIFEXITED(status) && WEXITSTATUS(status) == 0),
                 __FILE__, __LINE__, "mode %d, rank %u dies at %u: rank %u %s, status %d", (int)m,
                 victim, die_at, r, got ? "ended wrongly" : "did not end", status)
            && ok;
    }
    return ok;
}

static void deaths(mode m) {
    uint64_t dice = (uint64_t)getpid() * 1000003u + (uint64_t)m, slowest = 0;
    uint32_t last, killed = 0;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    die_at = 0;
    if (!job(m, free_port(&dice)) || !T_EQ(CDP_OK, shared->of[0].status)) return;
    last = shared->points;
    T(last > 20);
    for (uint32_t k = 1; k <= last && test__now.failed_checks < 5; ++k) {
        die_at = k;
        victim = m == UNEVEN ? k % 2 : k % RANKS; /* rank 2 has fewer calls there */
        if (!job(m, free_port(&dice))) break;
        ++killed;
        for (uint32_t r = 0; r < RANKS; ++r) {
            char name[16];
            if (r == victim) continue;
            snprintf(name, sizeof name, "rank %u", victim);
            test_check(shared->of[r].status == CDP_ERR_PEER_LOST
                    && shared->of[r].peer == (int32_t)victim && strstr(shared->of[r].text, name),
                __FILE__, __LINE__, "mode %d, rank %u died at %u: rank %u says %s, blames %d: %s",
                (int)m, victim, k, r, cdp_status_name(shared->of[r].status),
                (int)shared->of[r].peer, shared->of[r].text);
            T_WITHIN(1000, shared->of[r].error_ns - shared->death_ns);
            if (shared->of[r].error_ns > shared->death_ns + slowest)
                slowest = shared->of[r].error_ns - shared->death_ns;
        }
    }
    printf("  %u deaths, the slowest was known after %.1f ms\n", killed, (double)slowest / 1e6);
    munmap(shared, sizeof *shared);
}

TEST(death_between_plain_calls) {
    deaths(PLAIN);
}
TEST(death_between_calls_with_a_hook) {
    deaths(HOOKED);
}
TEST(death_between_calls_with_uneven_inputs) {
    deaths(UNEVEN);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"death_between_plain_calls", death_between_plain_calls, 200},
        {"death_between_calls_with_a_hook", death_between_calls_with_a_hook, 200},
        {"death_between_calls_with_uneven_inputs", death_between_calls_with_uneven_inputs, 200},
    };
#if TEST_OWN_THREADS
    (void)cases;
    printf("SKIP test_ddp_kill: ThreadSanitizer does not follow processes that are forked and "
           "killed\n0 passed, 0 failed\n");
    return 0;
#endif
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
