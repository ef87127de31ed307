/* test_elastic_calls.c - what the program's functions do; calls while an epoch ends; memory, stores
   and the environment */
#define CDP__ELASTIC_PIECE 1000u /* bytes: the entries of a job move in several pieces */
#define CDP__ELASTIC_LEAST_PIECE 300u
#define CDP__ELASTIC_BLOCK 130u
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "own.h"

#include "cdp_elastic.h"

#include "ports.h"
#include "elastic_threads.h"

/* ---- what the program's own functions do ---- */

static cdp_status connected_fails(void *user, const cdp_elastic_now *now) {
    ++((job_member *)user)->mark_ns;
    (void)now;
    cdp_error_set(CDP_ERR_IO, -1, 0, "%s", "no such file");
    return CDP_ERR_IO;
}
static cdp_status connected_is_silent(void *user, const cdp_elastic_now *now) {
    ++((job_member *)user)->mark_ns;
    (void)now;
    return CDP_ERR_PEER_LOST;
}
static cdp_status load_fails(void *user, const void *data, uint64_t bytes) {
    ++((job_member *)user)->mark_ns;
    (void)data;
    (void)bytes;
    return CDP_ERR_TIMEOUT;
}

static void leave_in_epoch_3(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    (void)m;
    if (now->epoch >= 3) cdp_elastic_leave(e, "the newcomer is gone");
}

/* A newcomer's function fails with what would be a loss in an operation: once, and for good. The
   other one goes on without it long before timeout_ms. `in_epoch`: else it fails before it is taken
   in, and the other one does not notice. */
static void a_newcomer_fails(cdp_status want, const char *words, bool in_epoch) {
    pthread_t t[2];
    for (uint32_t i = 0; i < 2; ++i)
        members[i].tcp.group.timeout_ms = 100000 * TEST_SLACK;
    if (in_epoch) members[0].each = leave_in_epoch_3;
    members[0].pace_ms = 2;
    members[0].steps = UINT64_MAX;
    members[1].steps = 1;
    t[0] = go(&members[0]);
    wait_for_epoch(1);
    t[1] = go(&members[1]);
    pthread_join(t[1], NULL);
    if (!in_epoch) cdp_elastic_leave(members[0].e, "the newcomer is gone");
    pthread_join(t[0], NULL);
    if (!in_epoch) T_EQ(1, members[0].last.epoch);
    T_EQ(want, members[1].status);
    T_EQ(want, members[1].error.status);
    T_TEXT(words, members[1].error.text);
    T_EQ(1, members[1].mark_ns);
    ended(&members[0], CDP_ERR_STATE);
    T_EQ(1, members[0].last.size);
    cdp_store_destroy(shared);
}

TEST(an_error_of_a_function_of_the_program_is_final) {
    job_begin();
    members[1].desc.connected = connected_fails;
    a_newcomer_fails(CDP_ERR_IO, "no such file", false);
    job_begin();
    members[1].desc.connected = connected_is_silent;
    a_newcomer_fails(CDP_ERR_PEER_LOST, "connected() of cdp_elastic_desc returned", false);
    job_begin();
    members[1].desc.load = load_fails;
    a_newcomer_fails(CDP_ERR_TIMEOUT, "load() of cdp_elastic_desc returned", true);
}

static void end_epoch(uint64_t k, cdp_group *group) {
    char key[40];
    snprintf(key, sizeof key, "elastic/e/%llu/alarm", (unsigned long long)k);
    OK(cdp_store_set(shared, key, "again", 5));
    wait_for_failure(group);
}

static cdp_group *attached;

/* Two epochs end before they run. What was made of a group ends in the next call. */
static cdp_status attach(void *user, const cdp_elastic_now *now) {
    (void)user;
    if (now->epoch == 3) test_sleep_ms(1000); /* destroying a failed group takes up to 0.7 s */
    if (attached) T_EQ(CDP_ERR_ABORTED, cdp_group_status(attached));
    attached = now->group;
    if (now->epoch < 4) end_epoch(now->epoch, now->group);
    return CDP_OK;
}

TEST(a_group_lives_until_the_next_one_was_connected) {
    job_begin();
    attached = NULL;
    members[0].desc.connected = attach;
    members[0].steps = 5;
    run_all(1);
    ended(&members[0], CDP_OK);
    T(members[0].last.epoch >= 4);
    cdp_store_destroy(shared);
}

enum {
    LATE_MS = 500
};

static cdp_status connected_takes_long(void *user, const cdp_elastic_now *now) {
    (void)user;
    if (now->epoch > 1) return CDP_OK;
    test_sleep_ms((2 * LATE_MS + 100) * TEST_SLACK);
    if (now->rank == 0) OK(cdp_store_set(shared, "elastic/e/1/alarm", "late", 4));
    wait_for_failure(now->group);
    return CDP_OK;
}

/* Longer than join_ms and a request of the store together; then a turn begins, and has its time. */
TEST(a_turn_may_begin_late_in_a_call) {
    job_begin();
    set_all(2, 2, 2, 5, 0);
    for (uint32_t i = 0; i < 2; ++i) {
        members[i].desc.join_ms = LATE_MS * TEST_SLACK;
        members[i].tcp.group.timeout_ms = LATE_MS * TEST_SLACK;
        members[i].desc.connected = connected_takes_long;
    }
    run_all(2);
    for (uint32_t i = 0; i < 2; ++i)
        ended(&members[i], CDP_OK);
    cdp_store_destroy(shared);
}

/* ---- calls while an epoch ends ---- */

/* The thread that watches is in epoch 2; the program still is in epoch 1. */
static void agree_in_an_old_epoch(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    bool all = true;
    if (now->epoch == 1 && now->step == 3) {
        if (now->rank == 0) OK(cdp_elastic_alarm(e, "rank 0 asks"));
        wait_for_own_epoch(e, 2);
        if (now->rank) return;
        OK(cdp_elastic_agree(e, true, &all));
        T(!all);
    } else if (now->epoch == 2 && now->changed) {
        OK(cdp_elastic_agree(e, true, &all));
        T(all);
        ++m->mark_ns;
    }
}

TEST(ranks_count_their_agreements_alike) {
    const char *first = "elastic/agree/2/1", *second = "elastic/agree/2/2";
    bool there = false;
    job_begin();
    set_all(2, 2, 2, 10, 0);
    for (uint32_t i = 0; i < 2; ++i)
        members[i].each = agree_in_an_old_epoch;
    run_all(2);
    for (uint32_t i = 0; i < 2; ++i)
        ended(&members[i], CDP_OK);
    if (members[0].mark_ns && members[1].mark_ns) {
        OK(cdp_store_check(shared, &first, 1, &there));
        T(there);
        OK(cdp_store_check(shared, &second, 1, &there));
        T(!there);
    }
    cdp_store_destroy(shared);
}

/* Rank 1 gives its part of the operation and receives nothing; rank 0 has the result. */
static struct {
    cdp_os os;
    bool on, answered;
} deaf;

static int64_t recv_or_not(void *user, int32_t fd, const cdp_iov *iov, uint32_t n) {
    if (__atomic_load_n(&deaf.on, __ATOMIC_SEQ_CST)) return 0;
    return cdp_os_default()->net.recv_iov(user, fd, iov, n);
}

static void answer_alike(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    bool all = false;
    if (m->answer || now->step != 3) return;
    const uint64_t until = test_until_ns(5000);
    if (m == &members[1]) __atomic_store_n(&deaf.on, true, __ATOMIC_SEQ_CST);
    OK(cdp_elastic_agree(e, true, &all));
    m->answer = all ? 2 : 1;
    if (m == &members[1]) {
        __atomic_store_n(&deaf.answered, true, __ATOMIC_SEQ_CST);
        return;
    }
    OK(cdp_elastic_alarm(e, "rank 1 hears nothing"));
    while (!__atomic_load_n(&deaf.answered, __ATOMIC_SEQ_CST) && test_now_ns() < until)
        test_sleep_ms(2);
    __atomic_store_n(&deaf.on, false, __ATOMIC_SEQ_CST);
}

TEST(who_has_no_result_agrees_with_who_has_one) {
    job_begin();
    memset(&deaf, 0, sizeof deaf);
    deaf.os = *cdp_os_default();
    deaf.os.net.recv_iov = recv_or_not;
    set_all(2, 2, 2, 10, 0);
    for (uint32_t i = 0; i < 2; ++i) {
        members[i].tcp.no_shared_memory = true;
        members[i].tcp.group.timeout_ms = 20000 * TEST_SLACK;
        members[i].each = answer_alike;
    }
    members[1].tcp.group.os = &deaf.os;
    run_all(2);
    for (uint32_t i = 0; i < 2; ++i)
        ended(&members[i], CDP_OK);
    T(deaf.answered);
    T_EQ(2, members[0].answer);
    T_EQ(2, members[1].answer);
    cdp_store_destroy(shared);
}

/* A newcomer was decided; who asks to leave holds all there is. */
static void leave_when_joined(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    if (now->step < 5 || now->epoch != 1) return;
    m->each = NULL;
    wait_for_own_epoch(e, 2);
    cdp_elastic_leave(e, "scaling down");
}

TEST(the_only_source_leaves_after_it_was_received) {
    pthread_t t[2];
    job_begin();
    members[0].each = leave_when_joined;
    members[0].steps = UINT64_MAX;
    members[0].pace_ms = 2;
    members[1].steps = 40;
    t[0] = go(&members[0]);
    wait_for_epoch(1);
    t[1] = go(&members[1]);
    for (uint32_t i = 0; i < 2; ++i)
        pthread_join(t[i], NULL);
    ended(&members[0], CDP_ERR_STATE);
    T_TEXT("this process left: scaling down", members[0].error.text);
    T(members[1].status == CDP_OK && !members[1].wrong && members[1].received >= 1);
    cdp_store_destroy(shared);
}

static cdp_elastic *lonely;

static void tell_elastic(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    (void)m;
    (void)now;
    __atomic_store_n(&lonely, e, __ATOMIC_SEQ_CST);
}

/* Below min_ranks nobody waits for this process: it need not wait for join_ms. */
TEST(who_waits_for_newcomers_may_leave) {
    pthread_t t[2];
    job_begin();
    set_all(2, 2, 2, UINT64_MAX, 1);
    for (uint32_t i = 0; i < 2; ++i)
        members[i].desc.join_ms = 1000000;
    members[0].each = tell_elastic;
    members[1].leave_at = 5;
    t[0] = go(&members[0]);
    t[1] = go(&members[1]);
    pthread_join(t[1], NULL);
    test_sleep_ms(300);
    cdp_elastic_leave(__atomic_load_n(&lonely, __ATOMIC_SEQ_CST), "enough");
    pthread_join(t[0], NULL);
    ended(&members[0], CDP_ERR_STATE);
    T_TEXT("this process left: enough", members[0].error.text);
    cdp_store_destroy(shared);
}

TEST(an_id_is_used_once) {
    cdp_elastic *e, *same;
    cdp_elastic_now now;
    cdp_elastic_desc d = {0};
    OK(cdp_hash_store_create(NULL, &shared));
    d.store = shared;
    d.settle_ms = 1;
    d.id = "00112233445566778899aabbccddeeff";
    OK(cdp_elastic_create(&d, &e));
    REFUSED(CDP_ERR_INVALID, "was used before", cdp_elastic_create(&d, &same));
    for (uint32_t i = 0; i < 3; ++i) { /* nobody says that the first one is gone */
        OK(cdp_elastic_next(e, &now));
        T_EQ(1, now.epoch);
        OK(cdp_elastic_commit(e));
        test_sleep_ms(20);
    }
    cdp_elastic_destroy(e);
    REFUSED(CDP_ERR_INVALID, "was used before", cdp_elastic_create(&d, &e));
    cdp_store_destroy(shared);
}

static _Thread_local bool no_memory;

static void *alloc_or_not(void *user, uint64_t bytes) {
    return no_memory ? NULL : cdp_os_default()->alloc(user, bytes);
}

static void *run_short_of_memory(void *p) {
    job_member *m = (job_member *)p;
    cdp_os os = *cdp_os_default();
    cdp_elastic *e;
    cdp_elastic_now now;
    os.alloc = alloc_or_not;
    m->tcp.group.os = &os;
    job_desc(m);
    OK(cdp_elastic_create(&m->desc, &e));
    no_memory = true;
    T_EQ(CDP_ERR_NOMEM, cdp_elastic_next(e, &now));
    T_EQ(CDP_ERR_NOMEM, cdp_last_error()->status);
    no_memory = false;
    cdp_elastic_destroy(e);
    return NULL;
}

/* It fails before there is a group that could tell. */
TEST(who_cannot_connect_lets_the_others_go_on) {
    pthread_t t[2];
    job_begin();
    for (uint32_t i = 0; i < 2; ++i) {
        members[i].desc.max_ranks = 2;
        members[i].desc.settle_ms = 20000 * TEST_SLACK;
        members[i].tcp.group.timeout_ms = 100000 * TEST_SLACK;
        members[i].steps = 5;
    }
    t[0] = go(&members[0]);
    wait_for_key("elastic/join/in"); /* so that it is rank 0, and holds the state */
    if (pthread_create(&t[1], NULL, run_short_of_memory, &members[1]) != 0) abort();
    pthread_join(t[0], NULL);
    pthread_join(t[1], NULL);
    ended(&members[0], CDP_OK);
    T_EQ(1, members[0].last.size);
    cdp_store_destroy(shared);
}

/* Whichever allocation fails: an error, nothing is left, and nobody waits. */
/* A member and a newcomer in a trial; each is a thread. */
typedef struct tried {
    pthread_t id;
    cdp_tcp_desc desc;
    cdp_elastic e;
    pthread_barrier_t *both;
} tried;

static _Thread_local bool counts_waits;
static uint32_t waits_of_stop;

static int32_t watched_wait(
    void *user, void *watch, cdp_ready *out, uint32_t max_count, uint64_t deadline_ns) {
    if (counts_waits && deadline_ns > cdp_os_default()->now_ns(user)) ++waits_of_stop;
    return cdp_os_default()->net.watch_wait(user, watch, out, max_count, deadline_ns);
}

static void *tried_main(void *p) {
    tried *t = (tried *)p;
    cdp__elastic_trial *const tr = &t->e.trial;
    t->e.os = t->desc.group.os;
    tr->newcomers = 1;
    if (!OK(cdp_init(&t->desc, &tr->group))) return NULL;
    if (!OK(cdp__elastic_trial_exchange(&t->e)) || !OK(cdp_work_wait(tr->work))) return NULL;
    if (t->desc.group.rank == 0) OK(cdp_barrier_async(tr->group, &tr->work));
    counts_waits = t->desc.group.rank == 0;
    if (counts_waits) cdp__elastic_trial_stop(&t->e);
    counts_waits = false;
    pthread_barrier_wait(t->both);
    cdp__elastic_trial_stop(&t->e);
    T(tr->group == NULL);
    return NULL;
}

/* The newcomer of a trial has stopped answering, and the epoch ends. */
TEST(a_trial_ends_without_a_wait) {
    static tried t[2];
    const uint16_t port = free_port();
    cdp_os os = *cdp_os_default();
    pthread_barrier_t both;
    memset(t, 0, sizeof t);
    waits_of_stop = 0;
    os.net.watch_wait = watched_wait;
    pthread_barrier_init(&both, NULL, 2);
    for (uint32_t r = 0; r < 2; ++r) {
        t[r].both = &both;
        t[r].desc.group.rank = r;
        t[r].desc.group.world_size = 2;
        t[r].desc.group.os = &os;
        t[r].desc.group.no_thread = true;
        t[r].desc.no_shared_memory = true;
        t[r].desc.master_port = port;
        if (pthread_create(&t[r].id, NULL, tried_main, &t[r]) != 0) abort();
    }
    for (uint32_t r = 0; r < 2; ++r)
        pthread_join(t[r].id, NULL);
    T_EQ(0, waits_of_stop);
    pthread_barrier_destroy(&both);
}

TEST(out_of_memory_at_any_point) {
    uint32_t refused = 0;
    for (int64_t n = 1; n < 400; ++n) {
        cdp_elastic_desc d = {0};
        cdp_tcp_desc tcp = {0};
        cdp_elastic *e = NULL;
        cdp_elastic_now now;
        cdp_status st;
        OK(cdp_hash_store_create(NULL, &shared));
        tcp.group.os = counted_os();
        tcp.group.timeout_ms = 3000;
        tcp.group.logger.level = CDP_LOG_SILENT;
        counted.fail_at = n;
        d.store = shared;
        d.tcp = &tcp;
        d.settle_ms = 1;
        d.join_ms = 3000;
        st = cdp_elastic_create(&d, &e);
        if (st == CDP_OK) st = cdp_elastic_next(e, &now);
        if (st == CDP_OK) st = cdp_elastic_finish(e);
        refused += st == CDP_ERR_NOMEM;
        test_check(st == CDP_OK || st == CDP_ERR_NOMEM || st == CDP_ERR_IO, __FILE__, __LINE__,
            "allocation %d: %s: %s", (int)n, cdp_status_name(st), cdp_last_error()->text);
        cdp_elastic_destroy(e);
        if (!T_EQ(0, counted.held)) printf("  after allocation %d failed\n", (int)n);
        cdp_store_destroy(shared);
        if (counted.calls < n) break;
    }
    T(refused > 10);
}

/* Of every single byte, and of two sign bits that meet in one lane. */
TEST(the_hash_of_contents_tells_changes_apart) {
    static uint8_t data[1003];
    for (uint32_t i = 0; i < sizeof data; ++i)
        data[i] = (uint8_t)(i * 7);
    const uint64_t hash = cdp__elastic_hash(1, data, sizeof data);
    for (uint32_t i = 0; i < sizeof data; ++i) {
        data[i] ^= 0x80;
        T(cdp__elastic_hash(1, data, sizeof data) != hash);
        for (uint32_t k = i + 32; k < sizeof data; k += 32) {
            data[k] ^= 0x80;
            T(cdp__elastic_hash(1, data, sizeof data) != hash);
            data[k] ^= 0x80;
        }
        data[i] ^= 0x80;
    }
    /* the second word of a lane's step and the first one of its next step, each bit */
    for (uint32_t p = 0; p + 136 <= 896; p += 16)
        for (uint32_t bit = 0; bit < 64; ++bit) {
            data[p + 8 + bit / 8] ^= (uint8_t)(1u << bit % 8);
            data[p + 128 + bit / 8] ^= (uint8_t)(1u << bit % 8);
            T(cdp__elastic_hash(1, data, sizeof data) != hash);
            data[p + 8 + bit / 8] ^= (uint8_t)(1u << bit % 8);
            data[p + 128 + bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
    T(cdp__elastic_hash(1, data, sizeof data) == hash);
    T(cdp__elastic_hash(2, data, sizeof data) != hash);
    T(cdp__elastic_hash(1, data, sizeof data - 1) != hash);
}

/* In pieces of any size, of which blocks may be parts; and a source hashes all at once. */
TEST(a_hash_does_not_depend_on_how_data_arrives) {
    static uint8_t data[30 * CDP__ELASTIC_BLOCK + 77];
    uint64_t all = 5;
    cdp__elastic_reading whole = {&all, data, sizeof data, 0, 0, 0};
    for (uint32_t i = 0; i < sizeof data; ++i)
        data[i] = (uint8_t)(i * 7 ^ i >> 8);
    cdp__elastic_hash_to(&whole, sizeof data);
    T(whole.done == sizeof data && all != 5);
    for (uint64_t piece = 7; piece < 2 * sizeof data; piece = piece * 5 / 2) {
        uint64_t hash = 5;
        cdp__elastic_reading r = {&hash, data, sizeof data, 0, 0, 0};
        for (r.begin = 0; r.begin < sizeof data; r.begin += piece) {
            r.piece = cdp__min(sizeof data - r.begin, piece);
            for (uint64_t there = 0; there < r.piece; there += 1 + r.piece / 3) {
                cdp__elastic_arrived(&r, there);
                T(r.done <= r.begin + there); /* nothing is read that is not there */
            }
            cdp__elastic_arrived(&r, UINT64_MAX);
        }
        T(r.done == sizeof data && hash == all);
    }
}

/* What a step costs besides its operations. */
TEST(the_patience_of_a_call_ends_with_it) {
    cdp_elastic_desc d = {0};
    cdp_elastic *e;
    cdp_elastic_now now;
    OK(cdp_hash_store_create(NULL, &shared));
    d.store = shared;
    OK(cdp_elastic_create(&d, &e));
    T_EQ(0, e->patient_ns);
    OK(cdp_elastic_next(e, &now));
    T_EQ(0, e->patient_ns);
    OK(cdp_elastic_finish(e));
    T_EQ(0, e->patient_ns);
    cdp_elastic_destroy(e);
    cdp_store_destroy(shared);
}

TEST(next_and_commit_cost_little) {
    const cdp_elastic_desc d = {0};
    job_times_steps(&d);
}

/* A hash store has no clones: who polls it waits for it until join_ms all the same, while steps go
   on; other calls do not. */
TEST(who_polls_a_store_without_clones_waits_until_join_ms) {
    cdp_tcp_desc tcp = {0};
    cdp_elastic_desc d = {0};
    cdp_elastic *e;
    OK(cdp_hash_store_create(NULL, &shared));
    tcp.group.timeout_ms = 100;
    d.store = shared;
    d.tcp = &tcp;
    d.join_ms = 7000;
    OK(cdp_elastic_create(&d, &e));
    T_EQ(7000 * CDP__MS, cdp__elastic_store_limit(e, e->watched, 0));
    T_EQ(100 * CDP__MS, cdp__elastic_store_limit(e, e->store, 0));
    cdp_elastic_destroy(e);
    cdp_store_destroy(shared);
}

/* Over a store server, whose clients have clones for the thread that watches; and by variables. */
TEST(a_job_from_the_environment) {
    cdp_store_server_desc sd = {0};
    cdp_store_server *server;
    cdp_elastic *e;
    cdp_elastic_desc d = {0};
    cdp_elastic_now now;
    char port[12];
    OK(cdp_store_server_create(&sd, &server));
    snprintf(port, sizeof port, "%u", cdp_store_server_port(server));
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("CDP_ELASTIC", "3:1", 1);
    REFUSED(CDP_ERR_INVALID, "CDP_ELASTIC is \"3:1\"", cdp_elastic_create_from_env(&d, &e));
    setenv("CDP_ELASTIC", "1:4", 1);
    REFUSED(CDP_ERR_INVALID, "MASTER_PORT \"\"; start the program with `cdprun",
        cdp_elastic_create_from_env(&d, &e));
    setenv("MASTER_PORT", port, 1);
    /* a launcher under which rank 0 would have to serve the store says so at once */
    setenv("TORCHELASTIC_USE_AGENT_STORE", "False", 1);
    unsetenv("CDP_ELASTIC");
    REFUSED(CDP_ERR_INVALID, "`cdprun --stay`", cdp_elastic_create_from_env(&d, &e));
    setenv("CDP_ELASTIC", "1:4", 1);
    OK(cdp_elastic_create_from_env(NULL, &e));
    OK(cdp_elastic_next(e, &now));
    OK(cdp_elastic_commit(e));
    OK(cdp_elastic_alarm(e, "again"));
    const uint64_t until = test_until_ns(5000);
    while (now.epoch == 1 && test_now_ns() < until) {
        OK(cdp_elastic_next(e, &now));
        test_sleep_ms(5);
    }
    T(now.epoch >= 2);
    T_EQ(1, now.step);
    OK(cdp_elastic_finish(e));
    cdp_elastic_destroy(e);
    cdp_store_server_destroy(server);
}

TEST(a_store_that_ends_ends_the_job) {
    cdp_store_server_desc sd = {0};
    cdp_store_server *server;
    cdp_tcp_store_desc cd = {0};
    cdp_store *store;
    cdp_elastic *e;
    cdp_elastic_desc d = {0};
    cdp_elastic_now now;
    cdp_status st = CDP_OK;
    OK(cdp_store_server_create(&sd, &server));
    cd.host = "127.0.0.1";
    cd.port = cdp_store_server_port(server);
    cd.logger.level = CDP_LOG_SILENT;
    OK(cdp_tcp_store_create(&cd, &store));
    d.store = store;
    OK(cdp_elastic_create(&d, &e));
    OK(cdp_elastic_next(e, &now));
    cdp_store_server_destroy(server);
    const uint64_t until = test_until_ns(5000);
    while (st == CDP_OK && test_now_ns() < until) {
        st = cdp_elastic_next(e, &now);
        test_sleep_ms(5);
    }
    T(st == CDP_ERR_STORE || st == CDP_ERR_STATE);
    cdp_elastic_destroy(e);
    cdp_store_destroy(store);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"out_of_memory_at_any_point", out_of_memory_at_any_point, 120},
        {"the_patience_of_a_call_ends_with_it", the_patience_of_a_call_ends_with_it, 10},
        {"next_and_commit_cost_little", next_and_commit_cost_little, 40},
        {"an_error_of_a_function_of_the_program_is_final",
            an_error_of_a_function_of_the_program_is_final, 40},
        {"a_group_lives_until_the_next_one_was_connected",
            a_group_lives_until_the_next_one_was_connected, 40},
        {"a_turn_may_begin_late_in_a_call", a_turn_may_begin_late_in_a_call, 40},
        {"ranks_count_their_agreements_alike", ranks_count_their_agreements_alike, 40},
        {"who_has_no_result_agrees_with_who_has_one", who_has_no_result_agrees_with_who_has_one,
            40},
        {"the_only_source_leaves_after_it_was_received",
            the_only_source_leaves_after_it_was_received, 40},
        {"who_waits_for_newcomers_may_leave", who_waits_for_newcomers_may_leave, 40},
        {"an_id_is_used_once", an_id_is_used_once, 40},
        {"who_cannot_connect_lets_the_others_go_on", who_cannot_connect_lets_the_others_go_on, 40},
        {"a_trial_ends_without_a_wait", a_trial_ends_without_a_wait, 40},
        {"the_hash_of_contents_tells_changes_apart", the_hash_of_contents_tells_changes_apart, 40},
        {"a_hash_does_not_depend_on_how_data_arrives", a_hash_does_not_depend_on_how_data_arrives,
            40},
        {"who_polls_a_store_without_clones_waits_until_join_ms",
            who_polls_a_store_without_clones_waits_until_join_ms, 10},
        {"a_job_from_the_environment", a_job_from_the_environment, 40},
        {"a_store_that_ends_ends_the_job", a_store_that_ends_ends_the_job, 40},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
