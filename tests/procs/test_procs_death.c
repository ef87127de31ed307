/*  test_procs_death.c - what processes report, and when, of a rank that dies, stops, aborts or
    leaves

        gcc -O2 -g -std=gnu11 -I. -Itests tests/procs/test_procs_death.c -o t -pthread -lm
        ./t [--list] [--repeat N] [--long] [WORD...]        see procs.h */
#define _GNU_SOURCE
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "procs.h"

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

static const test_case cases[] = {
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
    {"leaving_is_no_failure", leaving_is_no_failure, 90},
    {"leaving_rank_0_first", leaving_rank_0_first, 30},
    {"a_rank_that_computes_is_not_lost", a_rank_that_computes_is_not_lost, 80},
    {"a_child_does_not_hide_a_death", a_child_does_not_hide_a_death, 60},
    {"a_cause_is_read_before_its_store_ends", a_cause_is_read_before_its_store_ends, 30},
};

int main(int argc, char **argv) {
    return procs_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
