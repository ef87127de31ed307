/* elastic_threads.h - jobs of cdp_elastic.h whose ranks are threads of this process, over TCP on
   this machine. Include after cdp_elastic.h. */
#ifndef ELASTIC_THREADS_INCLUDED
#define ELASTIC_THREADS_INCLUDED

#include "elastic_job.h"
#include "ranks.h"

#include <pthread.h>

enum {
    MOST = 6
};

static cdp_store *shared;
static job_member members[MOST];

TEST_API void *run_main(void *p) {
    job_run((job_member *)p);
    return NULL;
}

TEST_API void job_begin(void) {
    memset(members, 0, sizeof members);
    OK(cdp_hash_store_create(NULL, &shared));
    for (uint32_t i = 0; i < MOST; ++i)
        members[i].desc.store = shared;
}

TEST_API pthread_t go(job_member *m) {
    pthread_t t;
    if (pthread_create(&t, NULL, run_main, m) != 0) abort();
    return t;
}

TEST_API void run_all(uint32_t n) {
    pthread_t t[MOST];
    for (uint32_t i = 0; i < n; ++i)
        t[i] = go(&members[i]);
    for (uint32_t i = 0; i < n; ++i)
        pthread_join(t[i], NULL);
}

TEST_API bool ended(const job_member *m, cdp_status want) {
    return test_check(m->status == want && !m->wrong, __FILE__, __LINE__,
        "member %u: %s, %u wrong: %s\n%s", (unsigned)(m - members), cdp_status_name(m->status),
        m->wrong, m->error.text, m->history);
}

TEST_API void wait_for_key(const char *key) {
    OK(cdp_store_wait(shared, &key, 1, 20000 * TEST_SLACK));
}

TEST_API void wait_for_epoch(uint32_t k) {
    char key[40];
    snprintf(key, sizeof key, "elastic/e/%u", k);
    wait_for_key(key);
}

/* Until the thread that watches has taken over the decision that makes epoch k. */
TEST_API void wait_for_own_epoch(cdp_elastic *e, uint32_t k) {
    const uint64_t until = test_until_ns(5000);
    char words[40], history[4000];
    bool there = false;
    snprintf(words, sizeof words, "\"epoch\": %u,", k);
    while (!there && test_now_ns() < until) {
        (void)cdp_elastic_history(e, history, sizeof history);
        there = strstr(history, words) != NULL;
        if (!there) test_sleep_ms(2);
    }
    T(there);
}

TEST_API void wait_for_failure(cdp_group *group) {
    const uint64_t until = test_until_ns(5000);
    while (cdp_group_status(group) == CDP_OK && test_now_ns() < until)
        test_sleep_ms(2);
    T(cdp_group_status(group) != CDP_OK);
}

TEST_API void wait_for_steps(const job_member *m, uint64_t committed) {
    const uint64_t until = test_until_ns(20000);
    while (__atomic_load_n(&m->committed, __ATOMIC_ACQUIRE) < committed && test_now_ns() < until)
        test_sleep_ms(1);
    T(__atomic_load_n(&m->committed, __ATOMIC_ACQUIRE) >= committed);
}

/* Of the first n members: how many ranks there are, steps (0: see job_member), ms for each step. */
TEST_API void set_all(uint32_t n, uint32_t min, uint32_t max, uint64_t steps, uint32_t pace_ms) {
    for (uint32_t i = 0; i < n; ++i) {
        members[i].desc.min_ranks = min;
        members[i].desc.max_ranks = max;
        members[i].steps = steps;
        members[i].pace_ms = pace_ms;
    }
}

#endif
