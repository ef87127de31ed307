/* elastic_job.h - a training job over cdp_elastic.h for tests. Include after cdp_elastic.h.

   The state is what the samples add up to that were committed so far: w[i] is the sum of
   (sample + 1) * (i + 1). So it follows from now.samples alone, however many ranks there were in
   each step, if every sample counts exactly once. */
#ifndef ELASTIC_JOB_INCLUDED
#define ELASTIC_JOB_INCLUDED

#include "said.h"

enum {
    JOB_WEIGHTS = 1000,
    JOB_BATCH = 3
};

typedef struct job_member {
    /* set by the test */
    const char *name;
    cdp_elastic_desc desc;
    cdp_tcp_desc tcp;
    uint64_t steps; /* ends there; 0: `more` steps after the job had `want` ranks. Another process
                            may set it while the job runs, well ahead of it */
    uint32_t want, more; /* how many ranks the job has at its end */
    uint64_t leave_at;   /* step; 0: stays */
    uint64_t vanish_at;  /* step after which it is destroyed without a word; 0: never */
    uint64_t spoil_at;   /* step at which it gets a weight wrong; 0: never */
    uint32_t pace_ms;    /* pause in each step */
    void (*each)(struct job_member *m, cdp_elastic *e, const cdp_elastic_now *now);
    /* between the allreduce of a step and its commit */
    void (*between)(struct job_member *m, cdp_elastic *e, const cdp_elastic_now *now);
    /* before cdp_elastic_finish() */
    void (*at_end)(struct job_member *m, cdp_elastic *e, const cdp_elastic_now *now);
    uint64_t (*save)(void *user, void *data, uint64_t room); /* in place of job_save() */
    bool from_env;
    /* the outcome; another process may read it meanwhile */
    uint64_t changed_ns, working_ns; /* the last change was reported; its first allreduce ended */
    uint64_t mark_ns;                /* the test's own */
    cdp_elastic *e;                  /* of its process */
    cdp_status status;
    cdp_error error;
    cdp_elastic_now last;
    uint32_t changes, received, dropped, wrong;
    uint32_t answer; /* the test's own */
    uint64_t first_step, loads;
    uint64_t committed; /* steps; others may read it meanwhile */
    char history[4000];
    uint64_t w[JOB_WEIGHTS], grad[JOB_WEIGHTS];
    cdp_entry entries[2];
} job_member;

static uint64_t job_weight(uint64_t samples, uint64_t i) {
    return samples * (samples + 1) / 2 * (i + 1);
}

TEST_API void job_fill(job_member *m, uint64_t samples) {
    for (uint64_t i = 0; i < JOB_WEIGHTS; ++i)
        m->w[i] = job_weight(samples, i);
}

static void job_compare(job_member *m, uint64_t samples) {
    for (uint64_t i = 0; i < JOB_WEIGHTS; ++i)
        m->wrong += m->w[i] != job_weight(samples, i);
}

static void job_gradient(job_member *m, const cdp_elastic_now *now) {
    const uint64_t first = now->samples + (uint64_t)now->rank * JOB_BATCH;
    memset(m->grad, 0, sizeof m->grad);
    for (uint64_t s = first; s < first + JOB_BATCH; ++s)
        for (uint64_t i = 0; i < JOB_WEIGHTS; ++i)
            m->grad[i] += (s + 1) * (i + 1);
}

static uint64_t job_save(void *user, void *data, uint64_t room) {
    job_member *m = (job_member *)user;
    if (room >= 8) memcpy(data, &m->w[0], 8);
    return 8;
}

static cdp_status job_load(void *user, const void *data, uint64_t bytes) {
    job_member *m = (job_member *)user;
    ++m->loads;
    if (bytes != 8 || memcmp(data, &m->w[0], 8) != 0) ++m->wrong;
    return CDP_OK;
}

static void job_desc(job_member *m) {
    m->entries[0].name = "lower";
    m->entries[0].data = m->w;
    m->entries[0].count = 400;
    m->entries[0].dtype = CDP_DTYPE_U64;
    m->entries[1] = m->entries[0];
    m->entries[1].name = "upper";
    m->entries[1].data = m->w + 400;
    m->entries[1].count = JOB_WEIGHTS - 400;
    m->desc.tcp = &m->tcp;
    m->desc.entries = m->entries;
    m->desc.entry_count = 2;
    m->desc.batch = JOB_BATCH;
    m->desc.save = m->save ? m->save : job_save;
    if (!m->desc.load) m->desc.load = job_load;
    m->desc.user = m;
    if (!m->desc.join_ms) m->desc.join_ms = 20000;
    if (!m->desc.grow_ms) m->desc.grow_ms = 20;
    if (!m->tcp.group.timeout_ms) m->tcp.group.timeout_ms = 20000;
}

/* A step; false: it counts nowhere here. */
static bool job_step(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    cdp_status st;
    job_gradient(m, now);
    if (m->pace_ms) test_sleep_ms(m->pace_ms);
    st = cdp_allreduce(now->group, NULL, m->grad, JOB_WEIGHTS, CDP_DTYPE_U64, CDP_REDUCE_SUM);
    if (st == CDP_OK && m->between) m->between(m, e, now);
    if (st != CDP_OK || cdp_elastic_commit(e) != CDP_OK) {
        ++m->dropped;
        return false;
    }
    __atomic_store_n(&m->committed, now->step + 1, __ATOMIC_RELEASE);
    if (now->changed) m->working_ns = test_now_ns();
    for (uint64_t i = 0; i < JOB_WEIGHTS; ++i)
        m->w[i] += m->grad[i];
    if (m->spoil_at && now->step + 1 == m->spoil_at) ++m->w[1];
    return true;
}

static cdp_status job_loop(job_member *m, cdp_elastic *e) {
    cdp_elastic_now now;
    uint64_t end = UINT64_MAX;
    cdp_status st;
    while ((st = cdp_elastic_next(e, &now)) == CDP_OK) {
        if (now.changed && !m->changes++) m->first_step = now.step;
        if (now.changed && !m->steps && now.size == m->want) end = now.step + m->more;
        if (now.changed) m->changed_ns = test_now_ns();
        m->received += now.received;
        m->last = now;
        if (!m->spoil_at) job_compare(m, now.samples);
        if (now.stable > now.step || now.stable + 1 < now.step) ++m->wrong;
        if (m->steps) end = __atomic_load_n(&m->steps, __ATOMIC_ACQUIRE);
        if (now.step >= end && m->at_end) m->at_end(m, e, &now);
        if (now.step >= end) return cdp_elastic_finish(e);
        if (m->leave_at && now.step >= m->leave_at) cdp_elastic_leave(e, "seen enough");
        if (m->vanish_at && now.step >= m->vanish_at) return CDP_OK;
        if (m->each) m->each(m, e, &now);
        (void)job_step(m, e, &now);
    }
    return st;
}

static void job_run(job_member *m) {
    cdp_elastic *e = NULL;
    cdp_status st;
    job_desc(m);
    st = m->from_env ? cdp_elastic_create_from_env(&m->desc, &e) : cdp_elastic_create(&m->desc, &e);
    m->e = e;
    if (st == CDP_OK) st = job_loop(m, e);
    m->error = *cdp_last_error();
    m->status = st;
    if (e) (void)cdp_elastic_history(e, m->history, sizeof m->history);
    cdp_elastic_destroy(e);
}

/* What a step costs besides its operations, one reading of the clock for each call: in a job of
   this rank alone, `desc` but for its store. */
TEST_API void job_times_steps(const cdp_elastic_desc *desc) {
    cdp_elastic_desc d = *desc;
    cdp_elastic *e;
    cdp_elastic_now now;
    uint64_t begun, best = UINT64_MAX;
    OK(cdp_hash_store_create(NULL, &d.store));
    OK(cdp_elastic_create(&d, &e));
    for (uint32_t round = 0; round < 20; ++round) {
        begun = test_cpu_ns();
        for (uint32_t i = 0; i < 10000; ++i)
            if (cdp_elastic_next(e, &now) != CDP_OK || cdp_elastic_commit(e) != CDP_OK) abort();
        begun = test_cpu_ns() - begun;
        if (begun < best) best = begun;
    }
    printf("    cdp_elastic_next and cdp_elastic_commit: %.0f ns together\n", (double)best / 10000);
    if (!TEST_SLOW) T(best < 10000 * 1000);
    OK(cdp_elastic_finish(e));
    cdp_elastic_destroy(e);
    cdp_store_destroy(d.store);
}

#endif
