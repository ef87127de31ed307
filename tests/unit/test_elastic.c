/* test_elastic.c - how jobs begin, change and end; mistakes, settings that differ */
#define CDP__ELASTIC_PIECE 1000u /* bytes: the entries of a job move in several pieces */
#define CDP__ELASTIC_LEAST_PIECE 300u
#define CDP__ELASTIC_BLOCK 130u
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "own.h"

#include "cdp_elastic.h"

#include "ports.h"
#include "elastic_threads.h"

TEST(one_process_is_a_job) {
    job_begin();
    members[0].steps = 50;
    run_all(1);
    ended(&members[0], CDP_OK);
    T_EQ(50, members[0].last.step);
    T_EQ(50 * JOB_BATCH, members[0].last.samples);
    T_EQ(1, members[0].changes);
    cdp_store_destroy(shared);
}

TEST(four_begin_together) {
    job_begin();
    set_all(4, 4, 4, 40, 0);
    run_all(4);
    for (uint32_t i = 0; i < 4; ++i) {
        ended(&members[i], CDP_OK);
        T_EQ(40u * 4 * JOB_BATCH, members[i].last.samples);
        T_EQ(4, members[i].last.size);
        T(members[i].last.epoch <= 3); /* connecting may need another attempt */
    }
    cdp_store_destroy(shared);
}

/* From a checkpoint that only the first rank may have: the others receive it. */
TEST(the_first_rank_brings_the_state) {
    uint32_t received = 0;
    job_begin();
    set_all(3, 3, 3, 30, 0);
    for (uint32_t i = 0; i < 3; ++i) {
        members[i].desc.step = 10;
        members[i].desc.samples = 77;
        job_fill(&members[i], 77);
    }
    run_all(3);
    for (uint32_t i = 0; i < 3; ++i) {
        ended(&members[i], CDP_OK);
        T_EQ(10, members[i].first_step);
        T_EQ(77u + 20 * 3 * JOB_BATCH, members[i].last.samples);
        received += members[i].received;
        T_EQ(members[i].received, members[i].loads);
    }
    T_EQ(2, received);
    cdp_store_destroy(shared);
}

TEST(a_rank_leaves_and_the_others_go_on) {
    job_begin();
    set_all(3, 2, 3, 0, 1);
    for (uint32_t i = 0; i < 3; ++i) {
        members[i].want = 2;
        members[i].more = 20;
        members[i].desc.settle_ms = 400 * TEST_SLACK; /* so that all three are in the first epoch */
    }
    members[1].leave_at = 8;
    run_all(3);
    ended(&members[0], CDP_OK);
    ended(&members[1], CDP_ERR_STATE);
    T_TEXT("this process left: seen enough", members[1].error.text);
    ended(&members[2], CDP_OK);
    for (uint32_t i = 0; i < 3; i += 2) {
        T_EQ(2, members[i].last.size);
        T_TEXT("leaves: seen enough", members[i].history);
        T(members[i].last.old_rank != UINT32_MAX);
        T_TEXT("\"lost\": 1", members[i].history);
    }
    T_EQ(members[0].last.samples, members[2].last.samples);
    cdp_store_destroy(shared);
}

/* It says nothing but that it is destroyed: the program returned early. */
TEST(a_rank_that_is_destroyed_has_left) {
    job_begin();
    set_all(3, 2, 3, 0, 0);
    for (uint32_t i = 0; i < 3; ++i) {
        members[i].want = 2;
        members[i].more = 20;
        members[i].desc.settle_ms = 400 * TEST_SLACK;
    }
    members[0].vanish_at = 5;
    run_all(3);
    for (uint32_t i = 1; i < 3; ++i) {
        ended(&members[i], CDP_OK);
        T_EQ(2, members[i].last.size);
    }
    cdp_store_destroy(shared);
}

/* Rank 1 arrives between the operation of a step and its commit, while rank 0 commits it: the step
   counts, and rank 1 receives what it lacks. */
static void arrive_before_commit(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    const job_member *other = m == &members[0] ? &members[1] : &members[0];
    if (now->step != 5) return;
    m->between = NULL;
    if (now->rank != 1) return;
    wait_for_steps(other, 6);
    OK(cdp_elastic_alarm(e, "rank 1 is late"));
    wait_for_failure(now->group);
    /* it has arrived, so its commit does not count */
    wait_for_own_epoch(e, (uint32_t)now->epoch + 1);
}

TEST(a_member_that_is_behind_by_one_step_receives_it) {
    uint32_t received = 0, dropped = 0;
    job_begin();
    set_all(2, 2, 2, 12, 0);
    for (uint32_t i = 0; i < 2; ++i) {
        members[i].desc.settle_ms = 300 * TEST_SLACK; /* nobody is left out */
        members[i].between = arrive_before_commit;
    }
    run_all(2);
    for (uint32_t i = 0; i < 2; ++i) {
        ended(&members[i], CDP_OK);
        T_EQ(12u * 2 * JOB_BATCH, members[i].last.samples);
        T_TEXT("\"step\": 6", members[i].history);
        received += members[i].received;
        dropped += members[i].dropped > 0;
    }
    T(received >= 2); /* once in each epoch: the state of the first one is that of its rank 0 */
    T(dropped >= 1);
    cdp_store_destroy(shared);
}

static void newcomers_join(const char *job, uint32_t old, uint32_t fresh) {
    pthread_t t[MOST];
    const uint32_t n = old + fresh;
    job_begin();
    for (uint32_t i = 0; i < n; ++i) {
        members[i].desc.job = job;
        members[i].desc.min_ranks = old;
        /* the first epoch begins so long after the last of the old ones came, and a busy machine
           may let members arrive so late */
        members[i].desc.settle_ms = 300 * TEST_SLACK; /* well below join_ms */
        members[i].want = n;
        members[i].more = 15;
        members[i].pace_ms = 2;
    }
    for (uint32_t i = 0; i < old; ++i)
        t[i] = go(&members[i]);
    wait_for_steps(&members[0], 1);
    for (uint32_t i = old; i < n; ++i)
        t[i] = go(&members[i]);
    for (uint32_t i = 0; i < n; ++i)
        pthread_join(t[i], NULL);
    for (uint32_t i = 0; i < n; ++i) {
        ended(&members[i], CDP_OK);
        T_EQ(n, members[i].last.size);
        T_EQ(members[0].last.samples, members[i].last.samples);
        T_EQ(members[0].last.step, members[i].last.step);
        if (i >= old) T(members[i].first_step > 0 && members[i].received >= 1);
    }
    cdp_store_destroy(shared);
}

TEST(a_newcomer_is_taken_in) {
    newcomers_join(NULL, 2, 1);
}
TEST(a_newcomer_is_taken_in_by_a_job_of_the_longest_name) {
    newcomers_join("a job whose name is as long as may be: of 63 characters .......", 2, 1);
}
TEST(newcomers_receive_from_several_sources) {
    newcomers_join(NULL, 3, 2);
}

static void operator_asks(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    (void)e;
    if (now->epoch != 1 || now->step != 10) return;
    m->each = NULL;
    OK(cdp_store_set(shared, "elastic/e/1/alarm", "the operator asks", 17));
    wait_for_failure(now->group);
}

TEST(an_alarm_begins_an_epoch_with_the_same_members) {
    job_begin();
    set_all(2, 2, 2, 20, 0);
    members[1].each = operator_asks;
    for (uint32_t i = 0; i < 2; ++i)
        members[i].desc.settle_ms = 300 * TEST_SLACK; /* nobody is left out */
    run_all(2);
    for (uint32_t i = 0; i < 2; ++i) {
        ended(&members[i], CDP_OK);
        T(members[i].last.epoch >= 2);
        T_EQ(2, members[i].last.size);
        T_EQ(0, members[i].last.lost);
    }
    cdp_store_destroy(shared);
}

/* One rank computes while the others have begun a turn, are in the next epoch, and wait for it: for
   longer than the members have for connecting. */
static uint32_t computes;

static void compute_for_long(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    if (now->epoch != 1 || now->step != 5) return;
    m->each = NULL;
    if (now->rank == computes)
        test_sleep_ms(900);
    else
        OK(cdp_elastic_alarm(e, "while another rank computes"));
}

static void one_computes_for_long(uint32_t rank) {
    job_begin();
    set_all(2, 2, 2, 12, 0);
    computes = rank;
    for (uint32_t i = 0; i < 2; ++i) {
        members[i].desc.settle_ms = 300 * TEST_SLACK; /* nobody is left out */
        members[i].each = compute_for_long;
    }
    run_all(2);
    for (uint32_t i = 0; i < 2; ++i) {
        ended(&members[i], CDP_OK);
        T_EQ(2, members[i].last.epoch);
        T_EQ(0, members[i].last.lost);
    }
    cdp_store_destroy(shared);
}

TEST(a_rank_that_computes_for_long_begins_no_other_epoch) {
    one_computes_for_long(0);
}
TEST(rank_0_waits_for_a_rank_that_computes_for_long) {
    one_computes_for_long(1);
}

/* The rank of which is asked whether it lives; 0: there is no question. */
static int asked_rank(void) {
    const char *const key = "elastic/e/1/ask";
    bool there = false;
    void *data;
    uint64_t bytes;
    int rank;
    OK(cdp_store_check(shared, &key, 1, &there));
    if (!there) return 0;
    OK(cdp_store_get(shared, key, &data, &bytes, 1000));
    rank = atoi((const char *)data);
    cdp_store_free(shared, data);
    return rank;
}

static void answer_the_question(void) {
    bool there;
    OK(cdp_store_delete(shared, "elastic/e/1/ask", &there));
    T(there);
}

TEST(a_rank_that_lives_is_not_asked_again_at_once_and_the_next_one_is) {
    cdp_elastic *const e = (cdp_elastic *)calloc(1, sizeof *e);
    cdp__elastic_member m[3];
    cdp__elastic_decision d;
    cdp__elastic_doubt q;
    job_begin();
    memset(m, 0, sizeof m);
    memset(&d, 0, sizeof d);
    memset(&q, 0, sizeof q);
    d.epoch = 1;
    d.size = 3;
    d.members = m;
    e->os = cdp_os_default();
    e->store = shared;
    e->store_ms = 5000;
    e->desc.settle_ms = 5000;
    strcpy(e->job, "elastic");
    OK(cdp__elastic_doubts(e, &d, 0, &q));
    T_EQ(1, asked_rank());
    answer_the_question(); /* before rank 0 looks again */
    for (int i = 0; i < 3; ++i) {
        OK(cdp__elastic_doubts(e, &d, 0, &q));
        T_EQ(0, asked_rank());
    }
    OK(cdp_store_set(shared, "elastic/e/1/here/1", "1", 1));
    OK(cdp__elastic_doubts(e, &d, 0, &q));
    OK(cdp__elastic_doubts(e, &d, 0, &q));
    T_EQ(2, asked_rank());
    OK(cdp__elastic_doubts(e, &d, 0, &q));
    answer_the_question(); /* and it comes, and rank 1 is next again */
    OK(cdp_store_set(shared, "elastic/e/1/here/2", "1", 1));
    OK(cdp__elastic_doubts(e, &d, 0, &q));
    OK(cdp__elastic_doubts(e, &d, 0, &q));
    T_EQ(0, asked_rank());
    cdp_store_destroy(shared);
    free(e);
}

static void ask_for_an_epoch(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    if (now->step != 6 || now->rank != 1) return;
    m->each = NULL;
    OK(cdp_elastic_alarm(e, "rank 1 wants it"));
    wait_for_failure(now->group); /* or the job may be over before */
}

TEST(any_rank_can_end_an_epoch) {
    job_begin();
    set_all(3, 3, 3, 60, 0);
    for (uint32_t i = 0; i < 3; ++i) {
        members[i].desc.settle_ms = 300 * TEST_SLACK; /* nobody is left out */
        members[i].each = ask_for_an_epoch;
    }
    run_all(3);
    for (uint32_t i = 0; i < 3; ++i) {
        ended(&members[i], CDP_OK);
        T(members[i].last.epoch >= 2);
        T_TEXT("rank 1 wants it", members[i].history);
    }
    cdp_store_destroy(shared);
}

TEST(below_the_minimum_the_job_waits_and_then_ends) {
    job_begin();
    for (uint32_t i = 0; i < 2; ++i) {
        members[i].desc.min_ranks = 2;
        members[i].steps = 1000000;
        members[i].pace_ms = 1;
        members[i].desc.join_ms = 500 * TEST_SLACK;
    }
    members[1].leave_at = 5;
    const uint64_t start = test_now_ns();
    run_all(2);
    T_WITHIN(4000, test_now_ns() - start);
    ended(&members[0], CDP_ERR_TIMEOUT);
    T_TEXT("min_ranks is 2: nobody came within join_ms", members[0].error.text);
    cdp_store_destroy(shared);
}

/* Member 1 goes when member 0 has its last step and has not yet called cdp_elastic_finish(). */
static void let_the_other_be_done(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    const uint64_t until = test_until_ns(20000);
    (void)m;
    (void)e;
    if (now->step != 9) return;
    while (!__atomic_load_n(&members[0].answer, __ATOMIC_SEQ_CST) && test_now_ns() < until)
        test_sleep_ms(1);
}

static void arrive_before_finish(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    const uint64_t until = test_until_ns(20000);
    bool arrived = false;
    (void)now;
    __atomic_store_n(&m->answer, 1, __ATOMIC_SEQ_CST);
    while (!arrived && test_now_ns() < until) {
        cdp__elastic_lock(e);
        arrived = e->place.phase == CDP__ELASTIC_ARRIVED;
        cdp__elastic_unlock(e);
        test_sleep_ms(1);
    }
    T(arrived);
}

/* Below the minimum; newcomers would find nothing to do. */
TEST(who_has_all_steps_needs_no_newcomers) {
    job_begin();
    set_all(2, 2, 2, 10, 0);
    for (uint32_t i = 0; i < 2; ++i)
        members[i].desc.join_ms = 10000 * TEST_SLACK;
    members[0].at_end = arrive_before_finish;
    members[1].steps = 11;
    members[1].between = let_the_other_be_done;
    members[1].vanish_at = 10;
    run_all(2);
    ended(&members[0], CDP_OK);
    ended(&members[1], CDP_OK);
    T_EQ(1, members[0].answer);
    cdp_store_destroy(shared);
}

/* The time begins anew after a standstill, three times at most. */
TEST(a_process_that_stood_still_waits_once_more) {
    cdp__elastic_settle s = {1000 * CDP__MS, 1000 * CDP__MS, 0};
    T_EQ(0, cdp__elastic_waited_ms(&s, 1000 * CDP__MS, 200));
    s.due_ns = 1010 * CDP__MS;
    T_EQ(110, cdp__elastic_waited_ms(&s, 1110 * CDP__MS, 200)); /* late, by half of it */
    s.due_ns = 1120 * CDP__MS;
    for (uint64_t i = 0; i < CDP__ELASTIC_PAUSES; ++i) {
        T_EQ(0, cdp__elastic_waited_ms(&s, (2000 + 1000 * i) * CDP__MS, 200));
        s.due_ns = (2010 + 1000 * i) * CDP__MS;
        T_EQ(10, cdp__elastic_waited_ms(&s, s.due_ns, 200));
    }
    T_EQ(1000, cdp__elastic_waited_ms(&s, 5000 * CDP__MS, 200)); /* always late */
}

TEST(a_replacement_lets_a_job_below_its_minimum_go_on) {
    pthread_t t[3];
    job_begin();
    set_all(3, 2, 2, 40, 1);
    members[1].leave_at = 5;
    t[0] = go(&members[0]);
    t[1] = go(&members[1]);
    pthread_join(t[1], NULL);
    test_sleep_ms(300);
    t[2] = go(&members[2]);
    pthread_join(t[0], NULL);
    pthread_join(t[2], NULL);
    ended(&members[0], CDP_OK);
    ended(&members[1], CDP_ERR_STATE);
    ended(&members[2], CDP_OK);
    T_EQ(2, members[0].last.size);
    T_EQ(40, members[2].last.step);
    cdp_store_destroy(shared);
}

TEST(too_few_at_the_beginning) {
    job_begin();
    members[0].desc.min_ranks = 2;
    members[0].desc.join_ms = 1000; /* longer than a machine stands still */
    run_all(1);
    ended(&members[0], CDP_ERR_TIMEOUT);
    T_TEXT("1 processes came within join_ms, 1000 ms, and min_ranks is 2", members[0].error.text);
    /* its ticket counts for nobody later */
    members[1].steps = members[2].steps = 5;
    members[1].desc.min_ranks = members[2].desc.min_ranks = 2;
    pthread_t a = go(&members[1]), b = go(&members[2]);
    pthread_join(a, NULL);
    pthread_join(b, NULL);
    ended(&members[1], CDP_OK);
    ended(&members[2], CDP_OK);
    T_EQ(2, members[1].last.size);
    cdp_store_destroy(shared);
}

TEST(a_spare_waits_and_replaces_who_leaves) {
    pthread_t t[3];
    job_begin();
    set_all(3, 2, 2, 60, 3);
    members[1].leave_at = 30;
    t[0] = go(&members[0]);
    t[1] = go(&members[1]);
    wait_for_epoch(1);
    t[2] = go(&members[2]);
    for (uint32_t i = 0; i < 3; ++i)
        pthread_join(t[i], NULL);
    ended(&members[0], CDP_OK);
    ended(&members[1], CDP_ERR_STATE);
    ended(&members[2], CDP_OK);
    /* the spare caused no epoch while there was no room for it */
    const char *newcomers = strstr(members[0].history, " newcomer");
    T(!newcomers || !strstr(newcomers + 1, " newcomer"));
    T(members[2].first_step >= 29);
    cdp_store_destroy(shared);
}

TEST(a_job_that_is_over_takes_nobody_in) {
    job_begin();
    members[0].steps = members[1].steps = 5;
    run_all(1);
    ended(&members[0], CDP_OK);
    job_run(&members[1]);
    ended(&members[1], CDP_ERR_STATE);
    T_TEXT("the job \"elastic\" is over", members[1].error.text);
    cdp_store_destroy(shared);
}

TEST(settings_that_differ_are_named) {
    cdp_elastic *e;
    job_begin();
    members[0].steps = 5;
    run_all(1);
    for (uint32_t i = 1; i < 4; ++i)
        job_desc(&members[i]);
    members[1].desc.min_ranks = 2;
    REFUSED(CDP_ERR_MISMATCH, "here \"min_ranks 2\", there \"min_ranks 1\"",
        cdp_elastic_create(&members[1].desc, &e));
    members[2].entries[1].count = 599;
    REFUSED(CDP_ERR_MISMATCH, "here \"entry 1: upper, 599 x u64\", there \"entry 1: upper, 600 x ",
        cdp_elastic_create(&members[2].desc, &e));
    members[3].desc.entry_count = 1;
    REFUSED(CDP_ERR_MISMATCH, "here \"1 entries\"", cdp_elastic_create(&members[3].desc, &e));
    job_desc(&members[3]);
    members[3].tcp.mac = true;
    REFUSED(CDP_ERR_MISMATCH, "here \"mac: on\", there \"mac: off\"",
        cdp_elastic_create(&members[3].desc, &e));
    T(!e);
    cdp_store_destroy(shared);
}

/* Whose records these are is said, and under which key. */
TEST(a_key_of_another_program_is_named) {
    static const char *const keys[] = {"elastic/join/in", "elastic/e/1"};
    for (uint32_t i = 0; i < 2; ++i) {
        char garbage[2 * CDP__ELASTIC_HEAD_BYTES];
        cdp_elastic *e;
        cdp_elastic_desc d = {.join_ms = 20000};
        memset(garbage, 'x', sizeof garbage);
        job_begin();
        d.store = shared;
        OK(cdp_store_set(shared, keys[i], garbage, sizeof garbage));
        REFUSED(CDP_ERR_STORE, "another program writes to it", cdp_elastic_create(&d, &e));
        T_TEXT(keys[i], cdp_last_error()->text);
        cdp_store_destroy(shared);
    }
}

TEST(mistakes_are_refused) {
    cdp_elastic *e;
    cdp_elastic_now now;
    bool all;
    job_begin();
    cdp_elastic_desc d = {0};
    REFUSED(CDP_ERR_INVALID, "store is NULL", cdp_elastic_create(&d, &e));
    d.store = shared;
    d.id = "12";
    REFUSED(CDP_ERR_INVALID, "32 digits", cdp_elastic_create(&d, &e));
    d.id = NULL;
    d.min_ranks = 3;
    d.max_ranks = 2;
    REFUSED(CDP_ERR_INVALID, "max_ranks, 2, is below min_ranks, 3", cdp_elastic_create(&d, &e));
    d.min_ranks = d.max_ranks = 0;
    d.save = job_save;
    REFUSED(CDP_ERR_INVALID, "both save and load", cdp_elastic_create(&d, &e));
    d.save = NULL;
    d.entry_count = 1;
    REFUSED(CDP_ERR_INVALID, "entries is NULL", cdp_elastic_create(&d, &e));
    d.entry_count = 0;
    d.job = "";
    REFUSED(CDP_ERR_INVALID, "1 to 63", cdp_elastic_create(&d, &e));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_elastic_create(NULL, &e));
    REFUSED(CDP_ERR_INVALID, "NULL", cdp_elastic_commit(NULL));
    REFUSED(CDP_ERR_INVALID, "NULL", cdp_elastic_poll(NULL));
    REFUSED(CDP_ERR_INVALID, "is NULL", cdp_elastic_next(NULL, &now));
    REFUSED(CDP_ERR_INVALID, "is NULL", cdp_elastic_agree(NULL, true, &all));
    REFUSED(CDP_ERR_INVALID, "NULL", cdp_elastic_finish(NULL));
    REFUSED(CDP_ERR_INVALID, "NULL", cdp_elastic_alarm(NULL, NULL));
    T_EQ(0, cdp_elastic_history(NULL, NULL, 0));
    cdp_elastic_leave(NULL, NULL);
    cdp_elastic_destroy(NULL);
    d.job = NULL;
    OK(cdp_elastic_create(&d, &e));
    REFUSED(CDP_ERR_ABORTED, "call cdp_elastic_next", cdp_elastic_commit(e));
    OK(cdp_elastic_poll(e)); /* nothing has ended yet */
    REFUSED(CDP_ERR_STATE, "call cdp_elastic_next", cdp_elastic_agree(e, true, &all));
    OK(cdp_elastic_next(e, &now));
    T(now.changed && !now.received && now.old_rank == UINT32_MAX && now.size == 1);
    OK(cdp_elastic_poll(e));
    OK(cdp_elastic_next(e, &now));
    T(!now.changed);
    cdp_elastic_destroy(e);
    cdp_store_destroy(shared);
}

/* Ranks that call different things would do so again in the next epoch. */
static void call_another_count(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    uint64_t x[2] = {0, 0};
    (void)m;
    (void)e;
    if (now->step == 4)
        T(cdp_allreduce(now->group, NULL, x, 1 + now->rank, CDP_DTYPE_U64, CDP_REDUCE_SUM) < 0);
}

TEST(a_mistake_of_the_program_begins_no_epoch) {
    job_begin();
    for (uint32_t i = 0; i < 2; ++i) {
        members[i].desc.min_ranks = 2;
        members[i].steps = 20;
        members[i].each = call_another_count;
    }
    run_all(2);
    for (uint32_t i = 0; i < 2; ++i) {
        ended(&members[i], CDP_ERR_MISMATCH);
        T(members[i].last.epoch <= 3);
    }
    cdp_store_destroy(shared);
}

/* So that both have committed the same steps, and both are sources. */
static void wait_for_the_third(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    (void)m;
    (void)e;
    if (now->step == 10 && now->size == 2) wait_for_failure(now->group);
}

TEST(sources_whose_bits_differ_are_found) {
    pthread_t t[3];
    job_begin();
    for (uint32_t i = 0; i < 3; ++i) {
        members[i].desc.min_ranks = 2;
        members[i].want = 3;
        members[i].more = 5;
        members[i].pace_ms = 2;
        members[i].spoil_at = UINT64_MAX;             /* weights are not compared here */
        members[i].desc.settle_ms = 200 * TEST_SLACK; /* neither of the first two is left out */
    }
    members[1].spoil_at = 3;
    members[0].each = members[1].each = wait_for_the_third;
    t[0] = go(&members[0]);
    t[1] = go(&members[1]);
    /* the third comes when the bits differ */
    wait_for_steps(&members[1], 4);
    t[2] = go(&members[2]);
    for (uint32_t i = 0; i < 3; ++i)
        pthread_join(t[i], NULL);
    for (uint32_t i = 0; i < 3; ++i) {
        T_EQ(CDP_ERR_MISMATCH, members[i].status);
        T_TEXT("does not give the same bits on all ranks", members[i].error.text);
    }
    cdp_store_destroy(shared);
}

static void agree_each_step(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    bool all = false;
    OK(cdp_elastic_agree(e, true, &all));
    T(all);
    OK(cdp_elastic_agree(e, now->rank != 1 || now->step % 2, &all));
    T_EQ(now->step % 2, all);
    m->loads += all;
}

TEST(ranks_agree) {
    job_begin();
    for (uint32_t i = 0; i < 3; ++i) {
        members[i].desc.min_ranks = 3;
        members[i].steps = 10;
        members[i].each = agree_each_step;
    }
    run_all(3);
    for (uint32_t i = 0; i < 3; ++i)
        ended(&members[i], CDP_OK);
    cdp_store_destroy(shared);
}

/* ---- the same bits on any number of ranks ---- */

enum {
    LEAVES = 10, /* micro-batches of a step */
    LEAF_VALUES = 600
};

/* Parameters of each member, which are the state of the job. */
static float trained[MOST][LEAF_VALUES];

/* In (-1, 1), and sums round. */
static float leaf_number(uint64_t i) {
    const uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u, y = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
    return (float)((int64_t)(y >> 20) - (1ll << 43)) / 8.8e12f;
}

/* A global batch on this rank's part of it; false: it does not count. */
static bool leaf_step(job_member *m, cdp_leaves *leaves, float *grads, float *w, uint64_t step) {
    cdp_status st = CDP_PENDING;
    while (st == CDP_PENDING) {
        uint64_t leaf = 0;
        if (cdp_leaves_begin(leaves, &leaf) != CDP_OK) return false;
        for (uint64_t k = 0; k < LEAF_VALUES; ++k)
            grads[k] += leaf_number((step * LEAVES + leaf) * LEAF_VALUES + k) + 0.3f * w[k];
        if (m->vanish_at && step == m->vanish_at) return false; /* in the middle of a batch */
        st = cdp_leaves_end(leaves);
    }
    return st == CDP_OK;
}

static cdp_status leaf_loop(job_member *m, cdp_elastic *e) {
    float grads[LEAF_VALUES] = {0}, *w = trained[m - members];
    cdp_leaves_desc d = {.grads = grads, .count = LEAF_VALUES, .leaves = LEAVES};
    cdp_leaves *leaves = NULL;
    cdp_elastic_now now;
    uint64_t end = UINT64_MAX;
    cdp_status st;
    while ((st = cdp_elastic_next(e, &now)) == CDP_OK) {
        if (now.changed) {
            cdp_leaves_destroy(leaves);
            leaves = NULL;
            if (!m->changes++) m->first_step = now.step;
            /* after the change that the test is about */
            if (now.size == m->want && now.step > members[1].vanish_at) end = now.step + m->more;
        }
        m->last = now;
        if (m->steps) end = m->steps;
        if (now.step >= end) break;
        d.group = now.group;
        if (!leaves && cdp_leaves_create(&d, &leaves) != CDP_OK) continue;
        test_sleep_ms(m->pace_ms);
        const bool counts = leaf_step(m, leaves, grads, w, now.step);
        if (m->vanish_at && now.step == m->vanish_at) break;
        if (!counts || cdp_elastic_commit(e) != CDP_OK) continue;
        for (uint64_t k = 0; k < LEAF_VALUES; ++k)
            w[k] -= 0.1f * grads[k];
        __atomic_store_n(&m->committed, now.step + 1, __ATOMIC_RELEASE);
    }
    if (st == CDP_OK && !(m->vanish_at && now.step == m->vanish_at)) st = cdp_elastic_finish(e);
    cdp_leaves_destroy(leaves);
    return st;
}

/* A member whose loop is another one. */
static void *trains(void *arg, cdp_status (*loop)(job_member *m, cdp_elastic *e)) {
    job_member *m = arg;
    cdp_elastic *e = NULL;
    m->entries[0] = (cdp_entry){"w", trained[m - members], LEAF_VALUES, CDP_DTYPE_F32};
    m->desc.entries = m->entries;
    m->desc.entry_count = 1;
    m->desc.tcp = &m->tcp;
    m->desc.join_ms = 20000;
    m->desc.grow_ms = 20;
    m->desc.settle_ms = 300 * TEST_SLACK;
    m->tcp.group.timeout_ms = 20000;
    m->status = cdp_elastic_create(&m->desc, &e);
    if (m->status == CDP_OK) m->status = loop(m, e);
    m->error = *cdp_last_error();
    cdp_elastic_destroy(e);
    return NULL;
}

static void *leaf_main(void *arg) {
    return trains(arg, leaf_loop);
}

static void leaves_begin(void) {
    job_begin();
    for (uint32_t i = 0; i < MOST; ++i)
        for (uint64_t k = 0; k < LEAF_VALUES; ++k)
            trained[i][k] = leaf_number(k);
}

/* Three ranks, one of which dies within a global batch; a third one comes. Then one rank alone. */
TEST(a_job_whose_ranks_change_has_the_bits_of_one_whose_ranks_do_not) {
    static float changed[LEAF_VALUES];
    pthread_t t[4];
    uint64_t steps;
    leaves_begin();
    set_all(4, 2, 3, 0, 1);
    for (uint32_t i = 0; i < 4; ++i) {
        members[i].more = 6;
        members[i].want = 3;
    }
    members[1].vanish_at = 4;
    for (uint32_t i = 0; i < 3; ++i)
        if (pthread_create(&t[i], NULL, leaf_main, &members[i]) != 0) abort();
    wait_for_steps(&members[0], 5);
    if (pthread_create(&t[3], NULL, leaf_main, &members[3]) != 0) abort();
    for (uint32_t i = 0; i < 4; ++i)
        pthread_join(t[i], NULL);
    steps = members[0].last.step;
    for (uint32_t i = 0; i < 4; ++i) {
        if (i == 1) continue;
        ended(&members[i], CDP_OK);
        T_EQ(3, members[i].last.size);
        T_EQ(steps, members[i].last.step);
        T(memcmp(trained[0], trained[i], sizeof trained[0]) == 0);
    }
    T(members[3].first_step >= 5);
    memcpy(changed, trained[0], sizeof changed);
    cdp_store_destroy(shared);
    leaves_begin();
    members[0].steps = steps;
    leaf_main(&members[0]);
    ended(&members[0], CDP_OK);
    T_EQ(1, members[0].last.size);
    T(memcmp(changed, trained[0], sizeof changed) == 0);
    cdp_store_destroy(shared);
}

/* ---- training over slow networks ---- */

/* What each member trains alone, which is no state of the job; what ranks agreed on in the last
   step, and how often they had. */
static float alone[MOST][LEAF_VALUES], agreed[MOST][LEAF_VALUES];
static cdp_outer_stats outer_of[MOST];

static cdp_status outer_loop(job_member *m, cdp_elastic *e) {
    float *w = alone[m - members];
    const cdp_param p = {.data = w, .count = LEAF_VALUES};
    cdp_outer_desc d = {.params = &p, .param_count = 1, .period = 4, .lr = 1, .momentum = 0.5};
    cdp_outer *outer = NULL;
    cdp_elastic_now now;
    uint64_t end = UINT64_MAX;
    cdp_status st;
    while ((st = cdp_elastic_next(e, &now)) == CDP_OK) {
        d.group = now.group;
        if (now.changed
            && (outer ? cdp_outer_rebind(outer, now.group) : cdp_outer_create(&d, &outer))
                != CDP_OK)
            continue; /* the ranks change again */
        if (now.changed && !m->changes++) m->first_step = now.step;
        if (now.changed && now.size == m->want && now.step > members[1].vanish_at)
            end = now.step + m->more;
        m->last = now;
        if (now.step >= end) break;
        test_sleep_ms(m->pace_ms);
        for (uint64_t k = 0; k < LEAF_VALUES; ++k)
            w[k] += 0.1f * (leaf_number(k) * (float)(1 + now.rank) - w[k]);
        if (m->vanish_at && now.step == m->vanish_at) break;
        if (cdp_outer_step(outer) != CDP_OK || cdp_elastic_commit(e) != CDP_OK) continue;
        __atomic_store_n(&m->committed, now.step + 1, __ATOMIC_RELEASE);
    }
    if (st == CDP_OK && now.step >= end) {
        OK(cdp_outer_gather(outer, CDP_OUTER_PARAMS, 0, agreed[m - members], cdp_rank(now.group)));
        outer_of[m - members] = cdp_outer_stats_of(outer);
        st = cdp_elastic_finish(e);
    }
    cdp_outer_destroy(outer);
    return st;
}

static void *outer_main(void *arg) {
    return trains(arg, outer_loop);
}

/* Three ranks that agree every four steps, one of which dies between two means; a third one comes.
   The others go on from what they agreed on. */
TEST(outer_steps_go_on_in_a_job_whose_ranks_change) {
    pthread_t t[4];
    leaves_begin();
    set_all(4, 2, 3, 0, 1);
    for (uint32_t i = 0; i < 4; ++i) {
        members[i].more = 9;
        members[i].want = 3;
    }
    members[1].vanish_at = 10;
    for (uint32_t i = 0; i < 3; ++i)
        if (pthread_create(&t[i], NULL, outer_main, &members[i]) != 0) abort();
    wait_for_steps(&members[0], 13);
    if (pthread_create(&t[3], NULL, outer_main, &members[3]) != 0) abort();
    for (uint32_t i = 0; i < 4; ++i)
        pthread_join(t[i], NULL);
    for (uint32_t i = 0; i < 4; ++i) {
        if (i == 1) continue;
        ended(&members[i], CDP_OK);
        T_EQ(3, members[i].last.size);
        T_EQ(members[0].last.step, members[i].last.step);
        T_EQ(outer_of[0].rounds, outer_of[i].rounds);
        T(memcmp(agreed[0], agreed[i], sizeof agreed[0]) == 0);
    }
    T(outer_of[0].rounds >= 4); /* two of them at the end */
    T(members[3].first_step >= 13);
    cdp_store_destroy(shared);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"a_key_of_another_program_is_named", a_key_of_another_program_is_named, 60},
        {"one_process_is_a_job", one_process_is_a_job, 30},
        {"four_begin_together", four_begin_together, 30},
        {"the_first_rank_brings_the_state", the_first_rank_brings_the_state, 30},
        {"a_rank_leaves_and_the_others_go_on", a_rank_leaves_and_the_others_go_on, 40},
        {"a_rank_that_is_destroyed_has_left", a_rank_that_is_destroyed_has_left, 40},
        {"a_member_that_is_behind_by_one_step_receives_it",
            a_member_that_is_behind_by_one_step_receives_it, 40},
        {"a_newcomer_is_taken_in", a_newcomer_is_taken_in, 40},
        {"a_newcomer_is_taken_in_by_a_job_of_the_longest_name",
            a_newcomer_is_taken_in_by_a_job_of_the_longest_name, 40},
        {"newcomers_receive_from_several_sources", newcomers_receive_from_several_sources, 40},
        {"an_alarm_begins_an_epoch_with_the_same_members",
            an_alarm_begins_an_epoch_with_the_same_members, 40},
        {"a_rank_that_computes_for_long_begins_no_other_epoch",
            a_rank_that_computes_for_long_begins_no_other_epoch, 40},
        {"rank_0_waits_for_a_rank_that_computes_for_long",
            rank_0_waits_for_a_rank_that_computes_for_long, 40},
        {"a_rank_that_lives_is_not_asked_again_at_once_and_the_next_one_is",
            a_rank_that_lives_is_not_asked_again_at_once_and_the_next_one_is, 20},
        {"any_rank_can_end_an_epoch", any_rank_can_end_an_epoch, 40},
        {"below_the_minimum_the_job_waits_and_then_ends",
            below_the_minimum_the_job_waits_and_then_ends, 40},
        {"who_has_all_steps_needs_no_newcomers", who_has_all_steps_needs_no_newcomers, 60},
        {"a_process_that_stood_still_waits_once_more", a_process_that_stood_still_waits_once_more,
            10},
        {"a_replacement_lets_a_job_below_its_minimum_go_on",
            a_replacement_lets_a_job_below_its_minimum_go_on, 40},
        {"too_few_at_the_beginning", too_few_at_the_beginning, 40},
        {"a_spare_waits_and_replaces_who_leaves", a_spare_waits_and_replaces_who_leaves, 40},
        {"a_job_that_is_over_takes_nobody_in", a_job_that_is_over_takes_nobody_in, 40},
        {"settings_that_differ_are_named", settings_that_differ_are_named, 40},
        {"mistakes_are_refused", mistakes_are_refused, 40},
        {"a_mistake_of_the_program_begins_no_epoch", a_mistake_of_the_program_begins_no_epoch, 40},
        {"sources_whose_bits_differ_are_found", sources_whose_bits_differ_are_found, 40},
        {"ranks_agree", ranks_agree, 40},
        {"outer_steps_go_on_in_a_job_whose_ranks_change",
            outer_steps_go_on_in_a_job_whose_ranks_change, 60},
        {"a_job_whose_ranks_change_has_the_bits_of_one_whose_ranks_do_not",
            a_job_whose_ranks_change_has_the_bits_of_one_whose_ranks_do_not, 40},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
