/* test_quorum.c - a store on several servers, whose hosts die

   Processes are forked; what they found is in memory that all share. The orders of messages are in
   tests/sim/quorum.c. */
#define _GNU_SOURCE
#define CDP_IMPLEMENTATION
#include "cdp_elastic.h"

#include "ports.h"
#include "elastic_job.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum {
    MOST = 8
};

typedef struct shared {
    job_member m[MOST];
    uint32_t served, counted, unsure, over;
    cdp_status status[MOST];
    char text[MOST][600];
} shared;

static shared *all;
static pid_t pid[MOST];
static char servers[200];
static uint16_t ports[MOST];

static void begin(uint32_t count) {
    char *at = servers;
    all = (shared *)mmap(
        NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) abort();
    memset(pid, 0, sizeof pid);
    for (uint32_t i = 0; i < count; ++i) {
        ports[i] = free_port();
        at += sprintf(at, "%s127.0.0.1:%u", i ? "," : "", ports[i]);
    }
}

static void end(void) {
    for (uint32_t i = 0; i < MOST; ++i)
        if (pid[i]) {
            kill(pid[i], SIGKILL);
            waitpid(pid[i], NULL, 0);
        }
    munmap(all, sizeof *all);
}

static cdp_quorum_store_desc desc_of(uint32_t serve) {
    cdp_quorum_store_desc d = {0};
    d.servers = servers;
    d.serve = serve;
    d.connect_timeout_ms = 20000;
    d.logger.level = CDP_LOG_SILENT;
    return d;
}

static void start(uint32_t i, void (*body)(uint32_t i)) {
    const pid_t parent = getpid();
    fflush(stdout);
    pid[i] = fork();
    if (pid[i] < 0) abort();
    if (pid[i]) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(9);
    body(i);
    _exit(0);
}

static void kill_one(uint32_t i) {
    kill(pid[i], SIGKILL);
    waitpid(pid[i], NULL, 0);
    pid[i] = 0;
}

static bool until(const uint32_t *at, uint32_t want) {
    const uint64_t limit = test_until_ns(20000);
    while (__atomic_load_n(at, __ATOMIC_SEQ_CST) < want && test_now_ns() < limit)
        test_sleep_ms(1);
    return T(__atomic_load_n(at, __ATOMIC_SEQ_CST) >= want);
}

static void serve_only(uint32_t i) {
    const cdp_quorum_store_desc d = desc_of(i + 1);
    cdp_store *s;
    all->status[i] = cdp_quorum_store_create(&d, &s);
    snprintf(all->text[i], sizeof all->text[i], "%s", cdp_last_error()->text);
    if (all->status[i] != CDP_OK) return;
    __atomic_add_fetch(&all->served, 1, __ATOMIC_SEQ_CST);
    for (;;)
        pause();
}

TEST(all_calls_of_a_store) {
    begin(3);
    for (uint32_t i = 0; i < 3; ++i)
        start(i, serve_only);
    const cdp_quorum_store_desc d = desc_of(0);
    cdp_store *s;
    if (!T_EQ(CDP_OK, cdp_quorum_store_create(&d, &s))) return;
    void *value;
    uint64_t bytes;
    int64_t sum;
    bool there;
    const char *key = "k";
    T_EQ(CDP_OK, cdp_store_check(s, &key, 1, &there));
    T(!there);
    T_EQ(CDP_OK, cdp_store_set(s, "k", "one", 3));
    T_EQ(CDP_OK, cdp_store_append(s, "k", "two", 3));
    T_EQ(CDP_OK, cdp_store_get(s, "k", &value, &bytes, 1000));
    T_EQ(6, bytes);
    T_TEXT("onetwo", (const char *)value);
    cdp_store_free(s, value);
    T_EQ(CDP_OK, cdp_store_compare_set(s, "k", "other", 5, "x", 1, &value, &bytes));
    T_TEXT("onetwo", (const char *)value);
    cdp_store_free(s, value);
    T_EQ(CDP_OK, cdp_store_compare_set(s, "k", "onetwo", 6, "", 0, &value, &bytes));
    T_EQ(0, bytes);
    cdp_store_free(s, value);
    T_EQ(CDP_OK, cdp_store_delete(s, "k", &there));
    T(there);
    T_EQ(CDP_OK, cdp_store_delete(s, "k", &there));
    T(!there);
    for (int i = 0; i < 30; ++i)
        T_EQ(CDP_OK, cdp_store_add(s, "n", 2, &sum));
    T_EQ(60, sum);
    T_EQ(CDP_ERR_TIMEOUT, cdp_store_get(s, "absent", &value, &bytes, 30));
    cdp_store_destroy(s);
    end();
}

static void count_up(uint32_t i) {
    const cdp_quorum_store_desc d = desc_of(i < 3 ? i + 1 : 0);
    cdp_store *s;
    int64_t sum = 0;
    all->status[i] = cdp_quorum_store_create(&d, &s);
    __atomic_add_fetch(&all->served, 1, __ATOMIC_SEQ_CST);
    while (all->status[i] == CDP_OK && sum < 400) {
        all->status[i] = cdp_store_add(s, "n", 1, &sum);
        if (all->status[i] == CDP_OK) __atomic_add_fetch(&all->counted, 1, __ATOMIC_SEQ_CST);
        /* documented for a process that stood still while others changed the key often */
        if (all->status[i] == CDP_ERR_STORE && strstr(cdp_last_error()->text, "so often")) {
            __atomic_add_fetch(&all->unsure, 1, __ATOMIC_SEQ_CST);
            all->status[i] = CDP_OK;
        }
    }
    snprintf(all->text[i], sizeof all->text[i], "%s", cdp_last_error()->text);
    __atomic_add_fetch(&all->over, 1, __ATOMIC_SEQ_CST);
    for (;;)
        pause();
}

/* Each addition counts once, although others add at the same time and a server dies. */
TEST(a_server_is_killed_while_all_count) {
    begin(3);
    for (uint32_t i = 0; i < 5; ++i)
        start(i, count_up);
    until(&all->counted, 100);
    kill_one(0);
    until(&all->over, 4);
    const cdp_quorum_store_desc d = desc_of(0);
    cdp_store *s;
    int64_t sum = 0;
    if (T_EQ(CDP_OK, cdp_quorum_store_create(&d, &s))) {
        T_EQ(CDP_OK, cdp_store_add(s, "n", 0, &sum));
        /* the killed process may have added one of which it was not told */
        T((uint64_t)sum - all->counted <= 1 + (uint64_t)all->unsure);
        for (uint32_t i = 1; i < 5; ++i)
            if (!T_EQ(CDP_OK, all->status[i])) puts(all->text[i]);
        cdp_store_destroy(s);
    }
    end();
}

TEST(without_a_majority_it_says_so) {
    begin(3);
    for (uint32_t i = 0; i < 3; ++i)
        start(i, serve_only);
    cdp_quorum_store_desc d = desc_of(0);
    cdp_store *s;
    if (!T_EQ(CDP_OK, cdp_quorum_store_create(&d, &s))) return;
    T_EQ(CDP_OK, cdp_store_set(s, "k", "v", 1));
    kill_one(0);
    T_EQ(CDP_OK, cdp_store_set(s, "k", "w", 1));
    kill_one(2);
    T_EQ(CDP_ERR_STORE, cdp_store_set(s, "k", "x", 1));
    T_TEXT("there is no majority of the 3 servers", cdp_last_error()->text);
    cdp_store_destroy(s);
    end();
}

/* One that comes back has forgotten what it had promised: it is not used any more. */
TEST(a_server_that_forgot_is_not_used) {
    begin(3);
    for (uint32_t i = 0; i < 3; ++i)
        start(i, serve_only);
    until(&all->served, 3);
    kill_one(1);
    start(1, serve_only);
    until(&all->served, 4);
    cdp_quorum_store_desc d = desc_of(0);
    cdp_store *s;
    if (!T_EQ(CDP_OK, cdp_quorum_store_create(&d, &s))) return;
    T_EQ(CDP_OK, cdp_store_set(s, "k", "v", 1));
    kill_one(0);
    T_EQ(CDP_ERR_STORE, cdp_store_set(s, "k", "w", 1)); /* 2 is alone, 1 does not count */
    cdp_store_destroy(s);
    end();
}

/* A server alone, which looks for no others. */
static void serve_alone(uint32_t i) {
    cdp_store_server_desc d = {0};
    cdp_store_server *s;
    d.host = "127.0.0.1";
    d.port = ports[i];
    d.logger.level = CDP_LOG_SILENT;
    if (cdp_store_server_create(&d, &s) != CDP_OK) return;
    __atomic_add_fetch(&all->served, 1, __ATOMIC_SEQ_CST);
    for (;;)
        pause();
}

TEST(if_most_servers_forgot_creation_says_so_at_once) {
    begin(3);
    for (uint32_t i = 0; i < 3; ++i)
        start(i, serve_alone);
    cdp_quorum_store_desc d = desc_of(0);
    cdp_store *s;
    if (!T_EQ(CDP_OK, cdp_quorum_store_create(&d, &s))) return;
    cdp_store_destroy(s);
    for (uint32_t i = 0; i < 2; ++i) {
        kill_one(i);
        start(i, serve_alone);
    }
    until(&all->served, 5);
    d.connect_timeout_ms = 5000 * TEST_SLACK;
    T_EQ(CDP_ERR_MISMATCH, cdp_quorum_store_create(&d, &s));
    T_TEXT("2 of the 3 servers ended and came back without what they had", cdp_last_error()->text);
    end();
}

/* What no server could keep is refused before any is asked. */
TEST(keys_and_values_that_no_server_keeps_lose_no_server) {
    enum {
        KEY = 8189,
        VALUE = 8388304
    };
    char *key = (char *)malloc(KEY + 2), *value = (char *)calloc(1, VALUE + 1);
    cdp_quorum_store_desc d = desc_of(0);
    cdp_store *s;
    if (!T(key && value)) return;
    memset(key, 'k', KEY + 1);
    key[KEY + 1] = 0;
    begin(1);
    start(0, serve_alone);
    d.servers = servers;
    if (!T_EQ(CDP_OK, cdp_quorum_store_create(&d, &s))) return;
    T_EQ(CDP_ERR_INVALID, cdp_store_set(s, key, "v", 1));
    key[KEY] = 0;
    T_EQ(CDP_OK, cdp_store_set(s, key, "v", 1));
    T_EQ(CDP_ERR_INVALID, cdp_store_set(s, "k", value, VALUE + 1));
    T_EQ(CDP_OK, cdp_store_set(s, "k", value, VALUE));
    cdp_bytes zero = {"a\0b", 3}, one = {"1", 1};
    cdp_store_request rq = {0};
    rq.op = CDP_STORE_SET;
    rq.keys = &zero;
    rq.key_count = 1;
    rq.values = &one;
    T_EQ(CDP_ERR_INVALID, cdp_store_run(s, &rq, 1000));
    T_EQ(CDP_OK, cdp_store_set(s, "k", "v", 1));
    cdp_store_destroy(s);
    end();
    free(key);
    free(value);
}

/* A record of another program is never replaced, however often it is met. */
TEST(what_another_program_wrote_is_left_alone) {
    begin(1);
    start(0, serve_alone);
    cdp_quorum_store_desc d = desc_of(0);
    cdp_tcp_store_desc c = {0};
    cdp_store *s, *plain;
    void *held;
    uint64_t bytes;
    c.host = "127.0.0.1";
    c.port = ports[0];
    c.logger.level = CDP_LOG_SILENT;
    if (!T_EQ(CDP_OK, cdp_quorum_store_create(&d, &s))) return;
    if (!T_EQ(CDP_OK, cdp_tcp_store_create(&c, &plain))) return;
    T_EQ(CDP_OK, cdp_store_set(s, "k", "v", 1));
    T_EQ(CDP_OK, cdp_store_set(plain, "q/k", "foreign", 7));
    for (int i = 0; i < 3; ++i)
        T_EQ(CDP_ERR_STORE, cdp_store_set(s, "k", "w", 1));
    T_EQ(CDP_OK, cdp_store_get(plain, "q/k", &held, &bytes, 1000));
    T_TEXT("foreign", (const char *)held);
    cdp_store_free(plain, held);
    cdp_store_destroy(plain);
    cdp_store_destroy(s);
    end();
}

TEST(a_stopped_server_delays_nobody) {
    begin(3);
    for (uint32_t i = 0; i < 3; ++i)
        start(i, serve_only);
    cdp_quorum_store_desc d = desc_of(0);
    cdp_store *s;
    int64_t sum;
    if (!T_EQ(CDP_OK, cdp_quorum_store_create(&d, &s))) return;
    kill(pid[0], SIGSTOP);
    const uint64_t before = test_now_ns();
    for (int i = 0; i < 100; ++i)
        T_EQ(CDP_OK, cdp_store_add(s, "n", 1, &sum));
    T_WITHIN(3000, test_now_ns() - before);
    T_EQ(100, sum);
    kill(pid[0], SIGCONT);
    test_sleep_ms(20);
    kill_one(1); /* the one that was stopped catches up */
    for (int i = 0; i < 100; ++i)
        T_EQ(CDP_OK, cdp_store_add(s, "n", 1, &sum));
    T_EQ(200, sum);
    cdp_store_destroy(s);
    end();
}

TEST(mistakes_in_the_desc) {
    cdp_quorum_store_desc d = {0};
    cdp_store *s = NULL;
    T_EQ(CDP_ERR_INVALID, cdp_quorum_store_create(NULL, &s));
    T_EQ(CDP_ERR_INVALID, cdp_quorum_store_create(&d, NULL));
    T_EQ(CDP_ERR_INVALID, cdp_quorum_store_create(&d, &s));
    static const char *const bad[] = {
        "", "a", "a:", ":1", "a:1,", ",a:1", "a:70000", "a:0", "a:1,a:2,a:3,a:4,a:5,a:6"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        d.servers = bad[i];
        T_EQ(CDP_ERR_INVALID, cdp_quorum_store_create(&d, &s));
        T(!s);
    }
    d.servers = "127.0.0.1:9,127.0.0.1:10";
    d.serve = 3;
    T_EQ(CDP_ERR_INVALID, cdp_quorum_store_create(&d, &s));
    d.serve = 0;
    d.connect_timeout_ms = 50;
    T_EQ(CDP_ERR_TIMEOUT, cdp_quorum_store_create(&d, &s));
    T_TEXT("0 of the 2 servers answered within 50 ms", cdp_last_error()->text);
}

/* ---- jobs whose ranks serve the store ---- */

static void rank_body(uint32_t i) {
    job_member *m = &all->m[i];
    cdp_quorum_store_desc d = desc_of(i < 3 ? i + 1 : 0);
    char id[40], will[80];
    snprintf(id, sizeof id, "%032x", i + 1);
    snprintf(will, sizeof will, "elastic/gone/%s", id);
    d.will_key = will;
    d.will_value.data = "its process ended";
    d.will_value.bytes = 17;
    cdp_store *s;
    m->desc.id = id;
    m->status = cdp_quorum_store_create(&d, &s);
    if (m->status != CDP_OK) {
        m->error = *cdp_last_error();
        return;
    }
    m->desc.store = s;
    job_run(m);
    cdp_store_destroy(s);
}

static void start_job(uint32_t n, uint32_t left) {
    begin(3);
    for (uint32_t i = 0; i < MOST; ++i) {
        job_member *m = &all->m[i];
        m->status = CDP_PENDING;
        m->tcp.group.logger.level = CDP_LOG_SILENT;
        m->desc.min_ranks = left;
        m->desc.max_ranks = n;
        m->desc.settle_ms = 10000 * TEST_SLACK; /* nobody may wait for it */
        m->want = left;
        m->more = 20;
        m->pace_ms = 1;
    }
    for (uint32_t i = 0; i < n; ++i)
        start(i, rank_body);
}

static void reaches(uint32_t i, uint64_t step) {
    const uint64_t limit = test_until_ns(20000);
    while (__atomic_load_n(&all->m[i].committed, __ATOMIC_ACQUIRE) < step && test_now_ns() < limit)
        test_sleep_ms(1);
    T(all->m[i].committed >= step);
}

static void ended(uint32_t i, cdp_status want) {
    const job_member *m = &all->m[i];
    waitpid(pid[i], NULL, 0);
    pid[i] = 0;
    test_check(m->status == want && !m->wrong, __FILE__, __LINE__,
        "member %u: %s, %u wrong: %s\n%s", i, cdp_status_name(m->status), m->wrong, m->error.text,
        m->history);
}

static void goes_on_without(uint32_t n, uint32_t dead) {
    start_job(n, n - 1);
    for (uint32_t i = 0; i < n; ++i)
        reaches(i, 10);
    const uint64_t killed = test_now_ns();
    uint64_t worst = 0;
    kill_one(dead);
    for (uint32_t i = 0; i < n; ++i) {
        if (i == dead) continue;
        ended(i, CDP_OK);
        T_EQ(n - 1, all->m[i].last.size);
        T_EQ(all->m[dead ? 0 : 1].last.samples, all->m[i].last.samples);
        if (all->m[i].working_ns - killed > worst) worst = all->m[i].working_ns - killed;
    }
    printf("    %u of %u killed: %.1f ms to the first allreduce of the others\n", dead, n,
        (double)worst / 1e6);
    end();
}

TEST(a_job_goes_on_without_the_rank_that_served_the_store) {
    goes_on_without(4, 0);
    goes_on_without(3, 1);
}
TEST(a_job_goes_on_without_one_that_served_nothing) {
    goes_on_without(4, 3);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"all_calls_of_a_store", all_calls_of_a_store, 60},
        {"a_server_is_killed_while_all_count", a_server_is_killed_while_all_count, 60},
        {"without_a_majority_it_says_so", without_a_majority_it_says_so, 60},
        {"a_server_that_forgot_is_not_used", a_server_that_forgot_is_not_used, 60},
        {"if_most_servers_forgot_creation_says_so_at_once",
            if_most_servers_forgot_creation_says_so_at_once, 60},
        {"keys_and_values_that_no_server_keeps_lose_no_server",
            keys_and_values_that_no_server_keeps_lose_no_server, 60},
        {"what_another_program_wrote_is_left_alone", what_another_program_wrote_is_left_alone, 60},
        {"a_stopped_server_delays_nobody", a_stopped_server_delays_nobody, 60},
        {"mistakes_in_the_desc", mistakes_in_the_desc, 60},
        {"a_job_goes_on_without_the_rank_that_served_the_store",
            a_job_goes_on_without_the_rank_that_served_the_store, 60},
        {"a_job_goes_on_without_one_that_served_nothing",
            a_job_goes_on_without_one_that_served_nothing, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
