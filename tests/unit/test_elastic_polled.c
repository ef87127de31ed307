/* test_elastic_polled.c - jobs of cdp_elastic.h without threads: processes arrive and decide in
   their calls. It runs as it is, and with CDP_NO_THREADS. Processes and the outcome of each:
   elastic_procs.h. */
#define _GNU_SOURCE
#define CDP_IMPLEMENTATION
#include "cdp_elastic.h"

#include "elastic_procs.h"

enum {
    SETTLE_MS = 2000 /* 1500, and 500 for a step */
};

static void alone(uint32_t from, uint32_t to, uint32_t settle_ms) {
    for (uint32_t i = from; i < to; ++i) {
        job.m[i].tcp.group.no_thread = true;
        job.m[i].desc.settle_ms = settle_ms;
        job.m[i].pace_ms = 1;
    }
}

/* `n` ranks that are all there at the beginning. The dead are known: nobody waits for settle_ms. */
static void begin(uint32_t n, uint32_t min) {
    job_begin();
    alone(0, MOST, 10000 * TEST_SLACK);
    for (uint32_t i = 0; i < MOST; ++i) {
        job.m[i].desc.min_ranks = min;
        job.m[i].desc.max_ranks = n;
        job.m[i].more = 20;
        job.m[i].want = UINT32_MAX;
    }
}

static void start_n(uint32_t n) {
    for (uint32_t i = 0; i < n; ++i)
        (void)start();
    for (uint32_t i = 0; i < n; ++i)
        reaches(i, 5);
}

static void agree_each_step(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    bool all = false;
    if (now->step >= 20) return;
    m->wrong += !OK(cdp_elastic_agree(e, now->rank != 1 || now->step % 2, &all));
    m->wrong += all != (now->step % 2 != 0);
    m->wrong += !OK(cdp_elastic_poll(e));
}

TEST(four_train_and_agree) {
    begin(4, 4);
    for (uint32_t i = 0; i < 4; ++i) {
        job.m[i].steps = 60;
        job.m[i].each = agree_each_step;
    }
    start_n(4);
    for (uint32_t i = 0; i < 4; ++i) {
        ended(i, CDP_OK);
        T_EQ(60u * 4 * JOB_BATCH, job.m[i].last.samples);
    }
    job_end();
}

TEST(one_leaves_and_the_others_go_on) {
    begin(3, 2);
    for (uint32_t i = 0; i < 3; ++i)
        job.m[i].want = 2;
    job.m[1].leave_at = 8;
    start_n(3);
    ended(0, CDP_OK);
    ended(1, CDP_ERR_STATE);
    T_TEXT("this process left: seen enough", job.m[1].error.text);
    ended(2, CDP_OK);
    T_EQ(2, job.m[0].last.size);
    T_EQ(job.m[0].last.samples, job.m[2].last.samples);
    job_end();
}

/* The others go on without it within a time that is far below settle_ms. */
static void kill_and_go_on(uint32_t n, uint32_t dead) {
    uint64_t killed, worst = 0;
    begin(n, n - 1);
    for (uint32_t i = 0; i < n; ++i)
        job.m[i].want = n - 1;
    start_n(n);
    killed = test_now_ns();
    kill_one(dead);
    for (uint32_t i = 0; i < n; ++i) {
        if (i == dead) continue;
        ended(i, CDP_OK);
        T_EQ(n - 1, job.m[i].last.size);
        T_EQ(0, job.m[i].first_step);
        if (job.m[i].working_ns - killed > worst) worst = job.m[i].working_ns - killed;
    }
    printf("    1 of %u killed: %.1f ms to the first allreduce of the others\n", n,
        (double)worst / 1e6);
    T_WITHIN(3000, worst);
    job_end();
}

TEST(any_of_three_is_killed) {
    for (uint32_t i = 0; i < 3; ++i)
        kill_and_go_on(3, i);
}

TEST(one_of_eight_is_killed) {
    kill_and_go_on(8, 3);
}

TEST(a_killed_one_is_replaced) {
    uint32_t fresh;
    begin(3, 3);
    for (uint32_t i = 0; i < MOST; ++i)
        job.m[i].more = 300;
    start_n(3);
    for (uint32_t i = 0; i < MOST; ++i)
        job.m[i].want = 3; /* counts in an epoch that is still to come */
    kill_one(1);
    fresh = start();
    ended(0, CDP_OK);
    ended(2, CDP_OK);
    ended(fresh, CDP_OK);
    T_EQ(1, job.m[fresh].received);
    T_EQ(UINT32_MAX, job.m[fresh].last.old_rank);
    T_EQ(job.m[0].last.samples, job.m[fresh].last.samples);
    job_end();
}

/* Rank 0 looks for it in its calls. */
TEST(one_more_comes) {
    begin(3, 2);
    alone(0, MOST, SETTLE_MS); /* the first epoch does not wait for the third */
    for (uint32_t i = 0; i < 3; ++i)
        job.m[i].want = 3;
    start_n(2);
    (void)start();
    for (uint32_t i = 0; i < 3; ++i) {
        ended(i, CDP_OK);
        T_EQ(3, job.m[i].last.size);
    }
    T_TEXT("1 newcomer waits", job.m[0].history);
    T_EQ(1, job.m[2].received);
    job_end();
}

/* Some have a thread, and some have none. */
TEST(threads_and_none_in_one_job) {
    begin(4, 3);
    for (uint32_t i = 0; i < 4; i += 2)
        job.m[i].tcp.group.no_thread = false;
    for (uint32_t i = 0; i < 4; ++i)
        job.m[i].want = 3;
    start_n(4);
    kill_one(3);
    for (uint32_t i = 0; i < 3; ++i) {
        ended(i, CDP_OK);
        T_EQ(3, job.m[i].last.size);
    }
    job_end();
}

/* ---- a rank that computes for long, while another one begins a turn ---- */

static bool polls;

static void compute_for_long(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    const uint64_t begun = test_now_ns();
    cdp_status st = CDP_OK;
    if (now->step != 10 || now->epoch != 1) return;
    if (m == &job.m[0]) {
        /* not before the other one computes: else it would see the alarm first */
        while (!__atomic_load_n(&job.m[1].mark_ns, __ATOMIC_ACQUIRE)
            && test_now_ns() - begun < 1000000000u)
            test_sleep_ms(1);
        m->wrong += !OK(cdp_elastic_alarm(e, "a turn begins"));
        while (st == CDP_OK) {
            st = cdp_elastic_poll(e);
            test_sleep_ms(1);
        }
        m->wrong += st != CDP_ERR_ABORTED;
    } else if (m == &job.m[1]) {
        __atomic_store_n(&m->mark_ns, begun, __ATOMIC_RELEASE);
        while (st == CDP_OK && test_now_ns() - begun < 2500000000u) {
            test_sleep_ms(polls ? 50 : 2500);
            if (polls) st = cdp_elastic_poll(e);
        }
        if (polls)
            m->wrong +=
                st != CDP_ERR_ABORTED || !strstr(cdp_last_error()->text, "call cdp_elastic_next()");
    }
}

static void run_long(bool with_polls) {
    begin(3, 2);
    alone(0, 3, 1500);
    polls = with_polls;
    for (uint32_t i = 0; i < 3; ++i) {
        job.m[i].steps = 40;
        job.m[i].each = compute_for_long;
    }
    start_n(3);
}

TEST(one_that_is_away_is_left_out) {
    const char *at;
    unsigned ms = 0;
    run_long(false);
    ended(0, CDP_OK);
    ended(2, CDP_OK);
    T_EQ(2, job.m[0].last.size);
    ended(1, CDP_ERR_STATE);
    T_TEXT("left out of epoch 2 (a turn begins)", job.m[1].error.text);
    T_TEXT("ms, and settle_ms is 1500; without threads make it longer", job.m[1].error.text);
    at = strstr(job.m[1].error.text, "called nothing of cdp_elastic.h for ");
    if (T(at != NULL))
        T(sscanf(at + 36, "%u", &ms) == 1 && ms >= 2500 && ms < 2500 + 1000 * TEST_SLACK);
    job_end();
}

TEST(one_that_polls_stays) {
    run_long(true);
    for (uint32_t i = 0; i < 3; ++i) {
        ended(i, CDP_OK);
        T_EQ(3, job.m[i].last.size);
    }
    T_TEXT("a turn begins", job.m[1].history);
    job_end();
}

enum {
    AWAY_MS = 4000
};

/* Not rank 0, which alone has the state. */
static cdp_status away_in_connected(void *user, const cdp_elastic_now *now) {
    const uint64_t begun = test_now_ns();
    uint64_t *mark = &job.m[0].mark_ns;
    if (now->epoch > 1) return CDP_OK;
    ((job_member *)user)->answer = now->rank;
    if (now->rank == 2) {
        __atomic_store_n(mark, begun, __ATOMIC_RELEASE);
        test_sleep_ms(AWAY_MS);
    } else if (now->rank == 1) {
        while (!__atomic_load_n(mark, __ATOMIC_ACQUIRE) && test_now_ns() - begun < 10000000000u)
            test_sleep_ms(1);
        cdp_group_abort(now->group, "a turn begins");
    }
    return CDP_OK;
}

/* The time of a function of the program is time away, too: the text says so. */
TEST(one_that_is_away_in_connected_is_left_out) {
    begin(3, 2);
    alone(0, 3, 1600);
    for (uint32_t i = 0; i < 3; ++i) {
        job.m[i].steps = 40;
        job.m[i].desc.connected = away_in_connected;
        (void)start();
    }
    for (uint32_t i = 0; i < 3; ++i) {
        const char *text = job.m[i].error.text, *at;
        unsigned ms = 0;
        end_of(i);
        ended(i, job.m[i].answer == 2 ? CDP_ERR_STATE : CDP_OK);
        if (job.m[i].answer != 2) {
            T_EQ(2, job.m[i].last.size);
            continue;
        }
        T_TEXT("left out of epoch 2", text);
        at = strstr(text, "called nothing of cdp_elastic.h for ");
        test_check(at && sscanf(at + 36, "%u", &ms) == 1 && ms >= AWAY_MS
                && ms < AWAY_MS + 1000 * TEST_SLACK,
            __FILE__, __LINE__, "%s", text);
    }
    job_end();
}

/* ---- the epoch ends before its source sends ---- */

static cdp_status end_before_sending(void *user, const cdp_elastic_now *now) {
    const uint64_t begun = test_now_ns();
    job_member *m = (job_member *)user;
    if (now->epoch > 1) return CDP_OK;
    if (now->rank) {
        __atomic_store_n(&job.m[0].mark_ns, begun, __ATOMIC_RELEASE);
        return CDP_OK;
    }
    while (!__atomic_load_n(&job.m[0].mark_ns, __ATOMIC_ACQUIRE)
        && test_now_ns() - begun < 10000000000u)
        test_sleep_ms(1);
    test_sleep_ms(100 * TEST_SLACK); /* the other one waits for its state now */
    m->wrong += !OK(cdp_elastic_alarm(m->e, "the source does not send"));
    while (cdp_elastic_poll(m->e) == CDP_OK && test_now_ns() - begun < 20000000000u)
        test_sleep_ms(1);
    return CDP_OK;
}

/* A receiver waits no longer than the epoch lasts, which is far less than timeout_ms. */
static void end_of_a_transfer(bool with_thread) {
    const uint64_t begun = test_now_ns();
    begin(2, 2);
    for (uint32_t i = 0; i < 2; ++i) {
        job.m[i].tcp.group.no_thread = !with_thread;
        job.m[i].tcp.group.timeout_ms = 10000 * TEST_SLACK;
        job.m[i].desc.join_ms = 20000 * TEST_SLACK;
        job.m[i].desc.connected = end_before_sending;
        job.m[i].steps = 5;
        (void)start();
    }
    for (uint32_t i = 0; i < 2; ++i) {
        ended(i, CDP_OK);
        T_EQ(2, job.m[i].last.epoch);
        T_TEXT("the source does not send", job.m[i].history);
    }
    T_WITHIN(3000, test_now_ns() - begun);
    job_end();
}

TEST(a_receiver_waits_no_longer_than_the_epoch_lasts) {
    end_of_a_transfer(false);
    end_of_a_transfer(true);
}

/* ---- one process ---- */

static uint32_t threads_started;

static void *start_none(const cdp_os *os, void (*func)(void *arg), void *arg) {
    (void)os;
    (void)func;
    (void)arg;
    ++threads_started;
    return NULL;
}

TEST(settle_ms_has_no_default) {
    cdp_os os = *cdp_os_default();
    cdp_tcp_desc tcp = {.group = {.no_thread = true}};
    cdp_elastic_desc d = {.tcp = &tcp};
    cdp_elastic *e;
    cdp_store *store;
    OK(cdp_hash_store_create(NULL, &store));
    d.store = store;
    REFUSED(CDP_ERR_INVALID, "settle_ms has no default; set it to 1500 more than the longest time",
        cdp_elastic_create(&d, &e));
    d.settle_ms = 1499;
    REFUSED(CDP_ERR_INVALID, "settle_ms is 1499; without threads", cdp_elastic_create(&d, &e));
    d.settle_ms = 0;
    tcp.group.no_thread = false;
    tcp.group.os = &os;
    memset(&os.threads, 0, sizeof os.threads);
    REFUSED(CDP_ERR_INVALID, "an os that has none", cdp_elastic_create(&d, &e));
    T(!e);
    cdp_store_destroy(store);
}

static cdp_elastic *polled;
static uint32_t polls_in_connected;

/* As in a step. */
static cdp_status poll_in_connected(void *user, const cdp_elastic_now *now) {
    (void)user;
    (void)now;
    ++polls_in_connected;
    return cdp_elastic_poll(polled);
}

/* Changes of a job of one rank: an alarm from this thread, and leaving. */
static void one_rank(const cdp_tcp_desc *tcp) {
    cdp_elastic_desc d = {
        .tcp = tcp, .settle_ms = 1500, .max_ranks = 1, .connected = poll_in_connected};
    cdp_elastic_now now;
    cdp_elastic *e;
    cdp_store *store;
    bool all = false;
    polls_in_connected = 0;
    OK(cdp_hash_store_create(NULL, &store));
    d.store = store;
    OK(cdp_elastic_create(&d, &e));
    OK(cdp_elastic_poll(e)); /* nothing has ended yet */
    polled = e;
    OK(cdp_elastic_next(e, &now));
    T_EQ(1, polls_in_connected);
    OK(cdp_elastic_poll(e));
    OK(cdp_elastic_agree(e, true, &all));
    T(all);
    OK(cdp_elastic_commit(e));
    OK(cdp_elastic_alarm(e, "again"));
    test_sleep_ms(2);
    REFUSED(CDP_ERR_ABORTED, "call cdp_elastic_next()", cdp_elastic_commit(e));
    for (uint32_t i = 0; i < 5; ++i) { /* also when epoch 2 is there */
        REFUSED(CDP_ERR_ABORTED, "call cdp_elastic_next()", cdp_elastic_poll(e));
        test_sleep_ms(2);
    }
    OK(cdp_elastic_next(e, &now));
    T_EQ(2, polls_in_connected);
    T(now.changed && now.epoch == 2 && now.step == 1);
    T_TEXT("again", now.cause);
    cdp_elastic_leave(e, "enough");
    REFUSED(CDP_ERR_STATE, "this process left: enough", cdp_elastic_next(e, &now));
    REFUSED(CDP_ERR_STATE, "this process left: enough", cdp_elastic_poll(e));
    cdp_elastic_destroy(e);
    cdp_store_destroy(store);
}

/* A time away counts for as long as it can be why a turn left this process out. */
TEST(a_time_away_is_forgotten) {
    cdp_tcp_desc tcp = {.group = {.no_thread = true}};
    cdp_elastic_desc d = {.tcp = &tcp, .settle_ms = 1500, .max_ranks = 1};
    cdp_elastic *e;
    cdp_elastic_now now;
    cdp_store *store;
    OK(cdp_hash_store_create(NULL, &store));
    d.store = store;
    OK(cdp_elastic_create(&d, &e));
    OK(cdp_elastic_next(e, &now));
    e->looked_ns -= 1000000 * CDP__MS;
    OK(cdp_elastic_poll(e));
    T(e->away_ns >= 1000000 * CDP__MS);
    test_sleep_ms(2);
    OK(cdp_elastic_poll(e));
    T(e->away_ns >= 1000000 * CDP__MS);
    e->back_ns -= d.settle_ms * CDP__MS;
    test_sleep_ms(2);
    OK(cdp_elastic_poll(e));
    T(e->away_ns < 1000000 * CDP__MS);
    OK(cdp_elastic_finish(e));
    cdp_elastic_destroy(e);
    cdp_store_destroy(store);
}

TEST(no_thread_is_started) {
    cdp_os os = *cdp_os_default();
    cdp_tcp_desc tcp = {.group = {.no_thread = true, .os = &os}};
    threads_started = 0;
    os.threads.start = start_none;
    one_rank(&tcp);
    T_EQ(0, threads_started);
    tcp.group.no_thread = false;
    memset(&os.threads, 0, sizeof os.threads);
    one_rank(&tcp);
}

TEST(too_few_wait_without_threads) {
    cdp_tcp_desc tcp = {.group = {.no_thread = true}};
    cdp_elastic_desc d = {.tcp = &tcp, .settle_ms = 1500, .min_ranks = 2, .join_ms = 300};
    const uint64_t begun = test_now_ns(), busy = test_cpu_ns();
    cdp_elastic *e;
    cdp_store *store;
    OK(cdp_hash_store_create(NULL, &store));
    d.store = store;
    REFUSED(CDP_ERR_TIMEOUT, "1 processes came within join_ms", cdp_elastic_create(&d, &e));
    T(test_now_ns() - begun >= 300000000u);
    T(test_cpu_ns() - busy < 150000000u); /* it sleeps: also over a store without locks */
    cdp_store_destroy(store);
}

TEST(next_and_commit_cost_little) {
    const cdp_tcp_desc tcp = {.group = {.no_thread = true}};
    const cdp_elastic_desc d = {.tcp = &tcp, .settle_ms = 1500, .max_ranks = 1};
    job_times_steps(&d);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"four_train_and_agree", four_train_and_agree, 60},
        {"one_leaves_and_the_others_go_on", one_leaves_and_the_others_go_on, 60},
        {"any_of_three_is_killed", any_of_three_is_killed, 60},
        {"one_of_eight_is_killed", one_of_eight_is_killed, 60},
        {"a_killed_one_is_replaced", a_killed_one_is_replaced, 60},
        {"one_more_comes", one_more_comes, 60},
        {"threads_and_none_in_one_job", threads_and_none_in_one_job, 60},
        {"one_that_is_away_is_left_out", one_that_is_away_is_left_out, 60},
        {"one_that_polls_stays", one_that_polls_stays, 60},
        {"one_that_is_away_in_connected_is_left_out", one_that_is_away_in_connected_is_left_out,
            60},
        {"a_receiver_waits_no_longer_than_the_epoch_lasts",
            a_receiver_waits_no_longer_than_the_epoch_lasts, 60},
        {"settle_ms_has_no_default", settle_ms_has_no_default, 10},
        {"a_time_away_is_forgotten", a_time_away_is_forgotten, 20},
        {"no_thread_is_started", no_thread_is_started, 20},
        {"too_few_wait_without_threads", too_few_wait_without_threads, 20},
        {"next_and_commit_cost_little", next_and_commit_cost_little, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
