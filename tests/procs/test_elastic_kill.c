/* test_elastic_kill.c - jobs of cdp_elastic.h whose processes are killed, stopped and replaced

   Processes and the outcome of each: elastic_procs.h. */
#define _GNU_SOURCE
#define CDP_IMPLEMENTATION
#include "cdp_elastic.h"

#include "unit/elastic_procs.h"

#include <pthread.h>
#include <sys/resource.h>

/* A job of at least `min` and at most `n` members, who go on for `more` steps with `want` of them
   left. */
static void job_of(uint32_t min, uint32_t n, uint32_t want, uint32_t settle_ms, uint32_t more) {
    job_begin();
    for (uint32_t i = 0; i < MOST; ++i) {
        job.m[i].desc.min_ranks = min;
        job.m[i].desc.max_ranks = n;
        job.m[i].desc.settle_ms = settle_ms;
        job.m[i].want = want;
        job.m[i].more = more;
    }
}

/* `n` ranks; the job ends 20 steps after it has `want` of them. */
static void start_all(uint32_t n, uint32_t min, uint32_t want) {
    /* nobody may wait for settle_ms: all are there at the beginning, and the dead are known */
    job_of(min, n, want, 10000 * TEST_SLACK, 20);
    for (uint32_t i = 0; i < MOST; ++i)
        job.m[i].pace_ms = 1;
    for (uint32_t i = 0; i < n; ++i)
        (void)start();
    for (uint32_t i = 0; i < n; ++i)
        reaches(i, 10);
}

/* Kills these members (bits); all others go on without them. */
static void survive(uint32_t n, uint32_t dead) {
    uint32_t left = 0, before = 0;
    uint64_t killed, worst = 0;
    for (uint32_t i = 0; i < n; ++i)
        left += !(dead >> i & 1);
    start_all(n, left, left);
    killed = test_now_ns();
    for (uint32_t i = 0; i < n; ++i)
        if (dead >> i & 1) kill(job.pid[i], SIGKILL);
    for (uint32_t i = 0; i < n; ++i) {
        if (dead >> i & 1) {
            end_of(i);
            continue;
        }
        ended(i, CDP_OK);
        T_EQ(left, job.m[i].last.size);
        T_EQ(job.m[i].first_step, 0);
        if (job.m[i].working_ns - killed > worst) worst = job.m[i].working_ns - killed;
        for (before = 0; before < i; ++before)
            if (!(dead >> before & 1)) T_EQ(job.m[before].last.samples, job.m[i].last.samples);
    }
    printf("    %u of %u killed: %.1f ms to the first allreduce of the others\n", n - left, n,
        (double)worst / 1e6);
    T_WITHIN(900, worst); /* less than settle_ms: it was not waited for */
    job_end();
}

TEST(a_member_is_killed) {
    survive(3, 2);
}
TEST(the_last_member_is_killed) {
    survive(4, 8);
}
TEST(two_of_five_are_killed) {
    survive(5, 0x0a);
}
TEST(one_and_four_of_sixteen_are_killed) {
    survive(16, 0x80);
    survive(16, 0x1111);
}
TEST(all_but_one_are_killed) {
    survive(4, 0x0b);
}
/* Ranks follow tickets, so which process is rank 0 is not known here: each in turn. */
TEST(each_of_three_is_killed) {
    survive(3, 1);
    survive(3, 4);
}

TEST(a_killed_member_is_replaced) {
    uint32_t i, fresh;
    start_all(3, 3, UINT32_MAX);
    for (i = 0; i < 3; ++i)
        kill(job.pid[i], SIGSTOP); /* so that all learn of it at once */
    kill_one(1);
    for (i = 0; i < 3; i += 2)
        kill(job.pid[i], SIGCONT);
    job_end();

    start_all(3, 3, UINT32_MAX);
    for (i = 0; i < MOST; ++i) {
        job.m[i].more = 300;
        job.m[i].want = 3; /* counts in an epoch that is still to come */
    }
    kill_one(1);
    fresh = start();
    ended(0, CDP_OK);
    ended(2, CDP_OK);
    ended(fresh, CDP_OK);
    T_EQ(1, job.m[fresh].received);
    T_EQ(UINT32_MAX, job.m[fresh].last.old_rank);
    T_EQ(3, job.m[0].last.size);
    T_EQ(job.m[0].last.samples, job.m[fresh].last.samples);
    job_end();
}

static uint64_t die_while_sending(void *user, void *data, uint64_t room) {
    const job_member *m = (const job_member *)user;
    if (m->last.epoch > 0 && room) raise(SIGKILL); /* entries were sent, the blob was not */
    return job_save(user, data, room);
}

/* What came of its state is half of it, and counts for nothing. */
TEST(the_only_source_dies_while_it_sends) {
    job_begin();
    for (uint32_t i = 0; i < 2; ++i) {
        job.m[i].want = UINT32_MAX;
        job.m[i].pace_ms = 1;
        job.m[i].desc.settle_ms = 300;
        job.m[i].save = die_while_sending;
    }
    (void)start();
    reaches(0, 5);
    (void)start();
    end_of(0);
    ended(1, CDP_ERR_STATE);
    T_TEXT("that is left has state: start again from a checkpoint", job.m[1].error.text);
    T_EQ(0, job.m[1].last.epoch); /* it never ran a step */
    job_end();
}

static void linger(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    (void)e;
    m->loads = 1;
    if (now->step == 19)
        for (;;)
            pause();
}

/* Says when this process has called cdp_elastic_finish(). */
static struct {
    job_member *m;
    cdp_elastic *e;
} finishing;

static void *see_it_finish(void *unused) {
    const uint64_t until = test_until_ns(20000);
    bool ending = false;
    while (!ending && test_now_ns() < until) {
        cdp__elastic_lock(finishing.e);
        ending = finishing.e->place.ending;
        cdp__elastic_unlock(finishing.e);
        test_sleep_ms(1);
    }
    __atomic_store_n(&finishing.m->answer, ending, __ATOMIC_SEQ_CST);
    return unused;
}

static void watch_the_end(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    static pthread_t thread;
    if (now->step != 19) return;
    finishing.m = m;
    finishing.e = e;
    if (pthread_create(&thread, NULL, see_it_finish, NULL) != 0) abort();
    pthread_detach(thread);
}

/* Rank 0 waits in cdp_elastic_finish() for a member that dies before its last step is committed. */
TEST(a_member_dies_while_another_one_finishes) {
    job_begin();
    for (uint32_t i = 0; i < 2; ++i) {
        job.m[i].desc.min_ranks = 2;
        job.m[i].desc.max_ranks = 2;
        job.m[i].steps = 20;
    }
    job.m[0].each = watch_the_end;
    job.m[1].between = linger;
    (void)start();
    (void)start();
    reaches(0, 20);
    const uint64_t until = test_until_ns(20000);
    while (!__atomic_load_n(&job.m[0].answer, __ATOMIC_SEQ_CST) && test_now_ns() < until)
        test_sleep_ms(1);
    T(job.m[0].answer);
    kill_one(1);
    ended(0, CDP_OK);
    T_EQ(20u * 2 * JOB_BATCH, job.m[0].last.samples);
    T_EQ(20, job.m[0].last.step);
    job_end();
}

/* ---- a member dies at its n-th call of the network after an alarm ---- */

static struct {
    job_member *m;
    int32_t left;
    bool armed;
    cdp_os os;
} doom;

static void come_closer(void) {
    if (!__atomic_load_n(&doom.armed, __ATOMIC_SEQ_CST)) return;
    if (__atomic_sub_fetch(&doom.left, 1, __ATOMIC_SEQ_CST) < 0) raise(SIGKILL);
}
static int32_t doomed_accept(void *user, int32_t fd, cdp_addr *from) {
    come_closer();
    return cdp_os_default()->net.accept_next(user, fd, from);
}
static int32_t doomed_connect(void *user, const cdp_addr *to) {
    come_closer();
    return cdp_os_default()->net.connect_to(user, to);
}
static int64_t doomed_send(void *user, int32_t fd, const cdp_iov *iov, uint32_t n) {
    come_closer();
    return cdp_os_default()->net.send_iov(user, fd, iov, n);
}
static int64_t doomed_recv(void *user, int32_t fd, const cdp_iov *iov, uint32_t n) {
    come_closer();
    return cdp_os_default()->net.recv_iov(user, fd, iov, n);
}

static void arm(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    const uint64_t until = test_until_ns(10000);
    if (now->step != 10 || now->epoch != 1) return;
    /* who alone has a step, and dies while it sends its state, takes the job along */
    for (uint32_t i = 0; i < 3; ++i)
        while (__atomic_load_n(&job.m[i].committed, __ATOMIC_ACQUIRE) < 10 && test_now_ns() < until)
            test_sleep_ms(1);
    m->mark_ns = test_now_ns();
    __atomic_store_n(&doom.armed, true, __ATOMIC_SEQ_CST);
    OK(cdp_elastic_alarm(e, "a turn begins"));
}

/* All of them; the answer is 1 (no) or 2 (yes). */
static void agree_once(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    bool all = false;
    if (now->step != 10 || m->answer) return;
    if (m == doom.m) {
        m->mark_ns = test_now_ns();
        __atomic_store_n(&doom.armed, true, __ATOMIC_SEQ_CST);
    }
    if (OK(cdp_elastic_agree(e, true, &all))) m->answer = all ? 2 : 1;
}

static pid_t start_doomed(uint32_t after) {
    const uint32_t i = job.count++;
    job.pid[i] = fork_one();
    if (job.pid[i]) return job.pid[i];
    doom.m = &job.m[i];
    doom.left = (int32_t)after;
    doom.os = *cdp_os_default();
    doom.os.net.accept_next = doomed_accept;
    doom.os.net.connect_to = doomed_connect;
    doom.os.net.send_iov = doomed_send;
    doom.os.net.recv_iov = doomed_recv;
    doom.m->tcp.group.os = &doom.os;
    doom.m->tcp.no_shared_memory = true;
    if (!doom.m->each) doom.m->each = arm;
    job_run(doom.m);
    _exit(0);
}

static void wait_for_tickets(uint32_t n) {
    const uint64_t until = test_until_ns(10000);
    const char *key = "elastic/join/in";
    cdp_tcp_store_desc d = {0};
    cdp_store *store;
    void *data;
    uint64_t bytes = 0;
    d.host = "127.0.0.1";
    d.port = (uint16_t)atoi(getenv("MASTER_PORT"));
    if (!OK(cdp_tcp_store_create(&d, &store))) return;
    OK(cdp_store_wait(store, &key, 1, 10000 * TEST_SLACK));
    while (bytes < n * CDP__ELASTIC_RECORD_BYTES && test_now_ns() < until) {
        if (!OK(cdp_store_get(store, key, &data, &bytes, 10000 * TEST_SLACK))) break;
        cdp_store_free(store, data);
        test_sleep_ms(1);
    }
    T(bytes >= n * CDP__ELASTIC_RECORD_BYTES);
    cdp_store_destroy(store);
}

/* The member that died was the only one that had committed the step at which epoch 2 begins, and it
   died while it sent its state: the one loss that cdp_elastic.h documents. All others tell it. */
static bool took_the_state_along(uint32_t i) {
    const job_member *m = &job.m[i];
    char begins[80];
    snprintf(begins, sizeof begins, "{\"epoch\": 2, \"step\": %llu,",
        (unsigned long long)m->committed + 1);
    return m->status == CDP_ERR_STATE && !m->wrong && strstr(m->history, begins)
        && strstr(m->error.text, "no member of epoch 2 that is left has state");
}

/* All but the victim end with the same: CDP_OK, or they tell that the state is lost. */
static bool others_ended(uint32_t victim, uint32_t after) {
    uint32_t told = 0;
    for (uint32_t i = 0; i < 3; ++i)
        if (i != victim) end_of(i);
    for (uint32_t i = 0; i < 3; ++i)
        told += i != victim && took_the_state_along(i);
    if (told == 2) return false;
    for (uint32_t i = 0; i < 3; ++i)
        if (i != victim) test_check(ended(i, CDP_OK), __FILE__, __LINE__, "after %u calls", after);
    return true;
}

/* Returns how long the others took from the alarm to their first allreduce without it, in ms; -1:
   there was none, since it did not die before they had ended, or the state was lost with it. */
static int64_t die_at(uint32_t after, bool first, bool agree) {
    uint64_t worst = 0;
    const uint32_t victim = first ? 0 : 2;
    bool died;
    job_of(2, 3, 2, 300 * TEST_SLACK, 15);
    for (uint32_t i = 0; i < 3; ++i) {
        job.m[i].pace_ms = 1;
        job.m[i].tcp.group.timeout_ms = 10000;
        if (agree) job.m[i].each = agree_once;
    }
    for (uint32_t i = 0; i < 3; ++i) {
        if (i != victim)
            (void)start();
        else
            (void)start_doomed(after);
        if (i < 2) wait_for_tickets(i + 1); /* so that ranks follow numbers */
    }
    end_of(victim);
    died = test_check(job.m[victim].status == CDP_PENDING, __FILE__, __LINE__, "it ended: %s",
        job.m[victim].error.text);
    died = died && others_ended(victim, after);
    for (uint32_t i = 0; died && i < 3; ++i) {
        if (i == victim) continue;
        if (job.m[i].working_ns - job.m[victim].mark_ns > worst)
            worst = job.m[i].working_ns - job.m[victim].mark_ns;
    }
    if (agree)
        test_check(job.m[1].answer == job.m[first ? 2 : 0].answer, __FILE__, __LINE__,
            "after %u calls: answers %u and %u", after, job.m[1].answer,
            job.m[first ? 2 : 0].answer);
    job_end();
    return died ? (int64_t)(worst / 1000000) : -1;
}

static void die_at_each(bool first) {
    const char *more = getenv("MORE");
    const uint32_t step = more && more[0] ? 4 : 19;
    int64_t worst = 0;
    uint32_t runs = 0;
    for (uint32_t after = 0; after < 160; after += step) {
        const int64_t ms = die_at(after, first, false);
        if (ms > worst) worst = ms;
        ++runs;
    }
    printf("    %u kill points: at most %lld ms to the first allreduce of the others\n", runs,
        (long long)worst);
}

TEST(rank_0_dies_at_any_point_of_a_turn) {
    die_at_each(true);
}
TEST(a_member_dies_at_any_point_of_a_turn) {
    die_at_each(false);
}

/* Some of the others may have the result of the operation, and some may not. */
TEST(the_others_agree_when_a_member_dies) {
    for (uint32_t after = 0; after < 8; ++after) {
        (void)die_at(after, false, true);
        (void)die_at(after, true, true);
    }
}

/* It is as if its machine stood still: left out, and told so when it goes on. */
TEST(a_stopped_member_is_left_out) {
    /* settle_ms is for the one that stands still; the others come sooner, on a busy machine too */
    job_of(2, 3, 2, 500 * TEST_SLACK, 20);
    for (uint32_t i = 0; i < 3; ++i) {
        job.m[i].pace_ms = 1;
        job.m[i].tcp.group.timeout_ms = 500 * TEST_SLACK;
        (void)start();
    }
    for (uint32_t i = 0; i < 3; ++i)
        reaches(i, 10);
    kill(job.pid[1], SIGSTOP);
    ended(0, CDP_OK);
    ended(2, CDP_OK);
    T_EQ(2, job.m[0].last.size);
    kill(job.pid[1], SIGCONT);
    ended(1, CDP_ERR_STATE);
    T_TEXT("left out of epoch", job.m[1].error.text);
    job_end();
}

enum {
    EPOCHS = 1000,
    ANSWERS = 1000
};

static uint8_t (*answers)[ANSWERS]; /* of each cdp_elastic_agree(): 0 none yet; 1 no; 2 yes */

static cdp_status meet(void *user, const cdp_elastic_now *now) {
    (void)user;
    return cdp_barrier(now->group);
}

static cdp_status die_in_connected(void *user, const cdp_elastic_now *now) {
    (void)now;
    ((job_member *)user)->mark_ns = test_now_ns();
    raise(SIGKILL);
    return CDP_OK;
}

/* What connected() returns then is no error of the program. */
TEST(a_member_dies_while_others_are_in_connected) {
    job_of(2, 3, 2, 1000 * TEST_SLACK, 15);
    for (uint32_t i = 0; i < 3; ++i)
        job.m[i].desc.connected = i == 1 ? die_in_connected : meet;
    (void)start();
    wait_for_tickets(1); /* rank 0 has the state */
    (void)start();
    (void)start();
    end_of(1);
    T(job.m[1].mark_ns > 0);
    ended(0, CDP_OK);
    ended(2, CDP_OK);
    T_EQ(2, job.m[0].last.size);
    job_end();
}

/* Nobody has received anything yet, so the next one begins the job with what it came with. */
TEST(the_source_of_the_first_epoch_dies_before_it_sends) {
    job_of(2, 3, 2, 1000 * TEST_SLACK, 15);
    for (uint32_t i = 0; i < 3; ++i)
        job.m[i].desc.connected = i == 0 ? die_in_connected : meet;
    for (uint32_t i = 0; i < 3; ++i) {
        (void)start();
        wait_for_tickets(i + 1);
    }
    end_of(0);
    T(job.m[0].mark_ns > 0);
    ended(1, CDP_OK);
    ended(2, CDP_OK);
    T_EQ(2, job.m[1].last.size);
    T_EQ(0, job.m[1].first_step);
    T_EQ(0, job.m[1].received); /* from nobody: it is the source */
    T_EQ(1, job.m[2].received);
    job_end();
}

/* Its machine gives it no descriptors, in any epoch: it ends with that reason, and the others go on
   without it. */
TEST(a_rank_whose_system_refuses_ends_alone) {
    const struct rlimit few = {24, 24};
    job_of(7, 8, 7, 1000 * TEST_SLACK, 15);
    job.pid[job.count++] = fork_one();
    if (job.pid[0] == 0) {
        if (setrlimit(RLIMIT_NOFILE, &few) != 0) abort();
        job_run(&job.m[0]);
        _exit(0);
    }
    wait_for_tickets(1); /* it is rank 0, which needs most */
    for (uint32_t i = 1; i < 8; ++i)
        (void)start();
    ended(0, CDP_ERR_IO);
    T_TEXT("raise the limit (ulimit -n)", job.m[0].error.text);
    for (uint32_t i = 1; i < 8; ++i)
        ended(i, CDP_OK);
    T_EQ(7, job.m[1].last.size);
    job_end();
}

static int32_t connect_to_the_store_alone(void *user, const cdp_addr *to) {
    if (to->port != (uint16_t)atoi(getenv("MASTER_PORT"))) return -EHOSTUNREACH;
    return cdp_os_default()->net.connect_to(user, to);
}

/* As behind a firewall: both reach the store, and not each other. Epoch follows epoch, and none of
   them begins: that ends, too. */
TEST(members_that_do_not_reach_each_other_end) {
    cdp_os os = *cdp_os_default();
    job_begin();
    os.net.connect_to = connect_to_the_store_alone;
    for (uint32_t i = 0; i < 2; ++i) {
        job.m[i].tcp.group.os = &os;
        job.m[i].tcp.group.timeout_ms = 1500;
        job.m[i].tcp.no_shared_memory = true;
        job.m[i].desc.min_ranks = job.m[i].desc.max_ranks = 2;
        job.m[i].desc.settle_ms = 1000 * TEST_SLACK;
        job.m[i].desc.join_ms = 3000;
        job.m[i].want = 2;
    }
    const uint64_t begun = test_now_ns();
    (void)start();
    (void)start();
    ended(0, CDP_ERR_TIMEOUT);
    ended(1, CDP_ERR_TIMEOUT);
    const char *first = job.m[0].error.text, *second = job.m[1].error.text;
    const bool told = strstr(first, "no epoch began within join_ms, 3000 ms; the last one, epoch ")
        || strstr(second, "no epoch began within join_ms, 3000 ms; the last one, epoch ");
    test_check(told, __FILE__, __LINE__, "%s; %s", first, second);
    T_WITHIN(20000, test_now_ns() - begun);
    job_end();
}

enum {
    SHORT_JOIN_MS = 1000,
    SHORT_TIMEOUT_MS = 600
};

static cdp_status end_three_epochs(void *user, const cdp_elastic_now *now) {
    job_member *m = (job_member *)user;
    if (m->mark_ns++ >= 3) return CDP_OK;
    if (m->mark_ns < 3) test_sleep_ms((SHORT_TIMEOUT_MS - 200) * TEST_SLACK);
    cdp_group_abort(now->group, "not yet");
    return CDP_OK;
}

static void count_warnings(cdp_log_level level, const char *text, int32_t rank, void *user) {
    (void)level;
    (void)rank;
    ((job_member *)user)->answer += strstr(text, "did not begin, the next one tries") != NULL;
}

/* A newcomer comes almost at the end of join_ms, and three epochs with it do not begin. The time
   below min_ranks is not that of those epochs. */
TEST(a_late_replacement_needs_some_attempts) {
    job_begin();
    for (uint32_t i = 0; i < 3; ++i) {
        job.m[i].desc.min_ranks = job.m[i].desc.max_ranks = 2;
        job.m[i].desc.settle_ms = 10000 * TEST_SLACK;
        job.m[i].desc.join_ms = SHORT_JOIN_MS * TEST_SLACK;
        job.m[i].tcp.group.timeout_ms = SHORT_TIMEOUT_MS * TEST_SLACK;
        job.m[i].tcp.group.logger.level = CDP_LOG_WARN;
        job.m[i].tcp.group.logger.func = count_warnings;
        job.m[i].tcp.group.logger.user = &job.m[i];
        job.m[i].want = UINT32_MAX;
        job.m[i].more = 20;
        job.m[i].pace_ms = 1;
    }
    job.m[2].desc.connected = end_three_epochs;
    (void)start();
    (void)start();
    reaches(0, 10);
    reaches(1, 10);
    job.m[0].want = 2; /* counts in an epoch that is still to come */
    job.m[2].want = 2;
    kill_one(1);
    test_sleep_ms((SHORT_JOIN_MS - 100) * TEST_SLACK);
    (void)start();
    ended(0, CDP_OK);
    ended(2, CDP_OK);
    T_EQ(2, job.m[0].last.size);
    T_EQ(1, job.m[0].answer); /* from the third one on */
    job_end();
}

/* A newcomer does not wait join_ms for members that are all dead. */
static void all_members_die(bool waits) {
    job_begin();
    for (uint32_t i = 0; i < 3; ++i) {
        job.m[i].desc.min_ranks = job.m[i].desc.max_ranks = 2;
        job.m[i].want = UINT32_MAX;
        job.m[i].pace_ms = 1;
        job.m[i].desc.join_ms = 50000;
    }
    (void)start();
    (void)start();
    reaches(0, 5);
    reaches(1, 5);
    if (waits) {
        (void)start();
        wait_for_tickets(3);
    }
    kill(job.pid[0], SIGKILL);
    kill(job.pid[1], SIGKILL);
    end_of(0);
    end_of(1);
    const uint64_t begun = test_now_ns();
    if (!waits) (void)start();
    ended(2, CDP_ERR_STATE);
    T_TEXT("have ended, so nobody has the state of the job", job.m[2].error.text);
    T_WITHIN(5000, test_now_ns() - begun);
    job_end();
}

TEST(newcomers_are_told_that_nobody_is_left) {
    all_members_die(false);
    all_members_die(true); /* it came before they died, and waits as a spare */
}

/* Whoever gets an answer gets the one that all others get. */
static void agree_while_members_die(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    uint8_t before = 0;
    bool all;
    if (now->changed) m->mark_ns = 0;
    if (now->step % 4 || now->epoch >= EPOCHS || m->mark_ns >= ANSWERS) return;
    if (cdp_elastic_agree(e, true, &all) != CDP_OK) return;
    if (!__atomic_compare_exchange_n(&answers[now->epoch][m->mark_ns], &before, all ? 2 : 1, false,
            __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        m->wrong += before != (all ? 2 : 1);
    ++m->mark_ns;
}

/* Once all that live are in the job, they end at one step, which is still far ahead of them. */
static void end_together(void) {
    uint64_t last = 0;
    for (uint32_t i = 0; i < job.count; ++i)
        if (job.pid[i]) (void)reaches(i, 1);
    for (uint32_t i = 0; i < job.count; ++i)
        if (last_of(i)->step > last) last = last_of(i)->step;
    for (uint32_t i = 0; i < MOST; ++i)
        __atomic_store_n(&job.m[i].steps, last + 300, __ATOMIC_RELEASE);
}

/* Members die and come, at any point of turns and transfers. Two at least always live. */
static void churn(uint64_t seed, uint32_t changes) {
    uint32_t alive = 0, done = 0;
    uint64_t state = seed;
    answers = (uint8_t(*)[ANSWERS])mmap(
        NULL, EPOCHS * sizeof *answers, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (answers == MAP_FAILED) abort();
    job_begin();
    for (uint32_t i = 0; i < MOST; ++i) {
        /* the first epoch waits for it; in turns nobody does, for the dead are known */
        job.m[i].desc.settle_ms = 500 * TEST_SLACK;
        job.m[i].desc.join_ms = 20000 * TEST_SLACK;
        job.m[i].steps = UINT64_MAX; /* until all that shall happen has happened */
        job.m[i].desc.connected = meet;
        job.m[i].each = agree_while_members_die;
        job.m[i].pace_ms = 1;
        job.m[i].tcp.group.timeout_ms = 5000 * TEST_SLACK;
    }
    for (uint32_t i = 0; i < 4; ++i)
        (void)start();
    for (uint32_t i = 0; i < 4; ++i)
        reaches(i, 3);
    for (uint32_t c = 0; c < changes && job.count < MOST; ++c) {
        test_sleep_ms((uint32_t)(test_random(&state) % 120));
        alive = 0;
        for (uint32_t i = 0; i < job.count; ++i)
            alive += job.pid[i] && last_of(i)->epoch > 0;
        const uint32_t i = (uint32_t)(test_random(&state) % job.count);
        if (alive > 3 && job.pid[i] && last_of(i)->epoch > 0)
            kill_one(i);
        else
            (void)start();
    }
    end_together();
    for (uint32_t i = 0; i < job.count; ++i)
        if (job.pid[i]) done += ended(i, CDP_OK);
    test_check(
        done >= 2, __FILE__, __LINE__, "seed %llu: %u ended", (unsigned long long)seed, done);
    printf("    seed %llu: %u processes, %u lived to the end, in epoch %llu\n",
        (unsigned long long)seed, job.count, done,
        (unsigned long long)job.m[job.count - 1].last.epoch);
    job_end();
    munmap(answers, EPOCHS * sizeof *answers);
}

TEST(members_come_and_die) {
    const char *text = getenv("ELASTIC_SEED");
    const uint64_t seed = text ? strtoull(text, NULL, 10) : 1;
    churn(seed, 16);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"a_member_is_killed", a_member_is_killed, 60},
        {"the_last_member_is_killed", the_last_member_is_killed, 60},
        {"two_of_five_are_killed", two_of_five_are_killed, 60},
        {"one_and_four_of_sixteen_are_killed", one_and_four_of_sixteen_are_killed, 60},
        {"all_but_one_are_killed", all_but_one_are_killed, 60},
        {"each_of_three_is_killed", each_of_three_is_killed, 60},
        {"a_killed_member_is_replaced", a_killed_member_is_replaced, 60},
        {"the_only_source_dies_while_it_sends", the_only_source_dies_while_it_sends, 60},
        {"a_member_dies_while_another_one_finishes", a_member_dies_while_another_one_finishes, 60},
        {"rank_0_dies_at_any_point_of_a_turn", rank_0_dies_at_any_point_of_a_turn, 200},
        {"a_member_dies_at_any_point_of_a_turn", a_member_dies_at_any_point_of_a_turn, 200},
        {"the_others_agree_when_a_member_dies", the_others_agree_when_a_member_dies, 100},
        {"a_member_dies_while_others_are_in_connected", a_member_dies_while_others_are_in_connected,
            60},
        {"the_source_of_the_first_epoch_dies_before_it_sends",
            the_source_of_the_first_epoch_dies_before_it_sends, 60},
        {"a_rank_whose_system_refuses_ends_alone", a_rank_whose_system_refuses_ends_alone, 60},
        {"members_that_do_not_reach_each_other_end", members_that_do_not_reach_each_other_end, 60},
        {"a_late_replacement_needs_some_attempts", a_late_replacement_needs_some_attempts, 60},
        {"newcomers_are_told_that_nobody_is_left", newcomers_are_told_that_nobody_is_left, 60},
        {"a_stopped_member_is_left_out", a_stopped_member_is_left_out, 60},
        {"members_come_and_die", members_come_and_die, 120},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
