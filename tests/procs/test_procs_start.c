/*  test_procs_start.c - how processes start: bad settings, and ranks that are missing or come again

        gcc -O2 -g -std=gnu11 -I. -Itests tests/procs/test_procs_start.c -o t -pthread -lm
        ./t [--list] [--repeat N] [--long] [WORD...]        see procs.h */
#define _GNU_SOURCE
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "procs.h"

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

static const test_case cases[] = {
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
    {"init_ends_by_its_deadline", init_ends_by_its_deadline, 20},
};

int main(int argc, char **argv) {
    return procs_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
