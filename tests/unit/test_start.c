/* Starts that are polled: one thread brings all ranks together, looks of budget 0, and whatever is
   cancelled or fails leaves neither memory nor descriptors (test.h counts these). */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "ranks.h"
#include "ports.h"

typedef struct job {
    uint32_t n;
    cdp_starting *starting[RANKS_MAX];
    cdp_group *group[RANKS_MAX];
    cdp_status status[RANKS_MAX];
    cdp_error error[RANKS_MAX];
} job;

static cdp_tcp_desc desc_of(uint32_t n, uint16_t port) {
    cdp_tcp_desc d;
    memset(&d, 0, sizeof d);
    d.group.world_size = n;
    d.group.no_thread = true;
    d.group.os = counted_os();
    d.group.timeout_ms = 20000 * TEST_LATE;
    d.master_port = port;
    d.init_timeout_ms = 20000 * TEST_LATE;
    return d;
}

/* Starts ranks `from` to n - 1. */
static bool job_start(job *j, const cdp_tcp_desc *like, uint32_t from) {
    cdp_tcp_desc d = *like;
    memset(j, 0, sizeof *j);
    j->n = d.group.world_size;
    for (uint32_t r = from; r < j->n; ++r) {
        d.group.rank = r;
        j->status[r] = CDP_PENDING;
        if (!T_EQ(CDP_OK, cdp_init_start(&d, &j->starting[r]))) return false;
    }
    return true;
}

/* One look of every rank. True while some are starting. */
static bool job_look(job *j) {
    bool more = false;
    for (uint32_t r = 0; r < j->n; ++r) {
        if (!j->starting[r]) continue;
        j->status[r] = cdp_init_poll(j->starting[r], 0, &j->group[r]);
        if (j->status[r] == CDP_PENDING) {
            more = true;
            continue;
        }
        j->starting[r] = NULL;
        j->error[r] = *cdp_last_error();
    }
    if (more) test_sleep_ms(0);
    return more;
}

static void job_end(job *j) {
    for (uint32_t r = 0; r < j->n; ++r) {
        cdp_init_cancel(j->starting[r]);
        if (j->group[r]) cdp_group_destroy(j->group[r]);
    }
}

/* All ranks add up, and one thread lets them advance. */
static void job_adds(job *j, uint64_t count) {
    float *x[RANKS_MAX];
    cdp_work w[RANKS_MAX];
    bool more = true;
    for (uint32_t r = 0; r < j->n; ++r) {
        x[r] = (float *)malloc(count * sizeof(float));
        for (uint64_t i = 0; i < count; ++i)
            x[r][i] = (float)(r + 1);
        T_EQ(CDP_OK,
            cdp_allreduce_async(
                j->group[r], NULL, x[r], count, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w[r]));
    }
    while (more) {
        more = false;
        for (uint32_t r = 0; r < j->n; ++r) {
            const cdp_status st = cdp_work_poll(w[r], 0);
            if (!T(st >= CDP_OK)) return;
            more = more || st == CDP_PENDING;
        }
    }
    for (uint32_t r = 0; r < j->n; ++r) {
        T_EQ(j->n * (j->n + 1) / 2, x[r][count - 1]);
        free(x[r]);
    }
}

TEST(one_thread_starts_all_ranks) {
    for (uint32_t n = 1; n <= 5; n += 2) {
        cdp_tcp_desc d = desc_of(n, free_port());
        job j;
        d.no_shared_memory = n == 3;
        if (job_start(&j, &d, 0))
            while (job_look(&j)) {
            }
        for (uint32_t r = 0; r < n; ++r)
            T_EQ(CDP_OK, j.status[r]);
        job_adds(&j, 100000);
        job_end(&j);
        T_EQ(0, counted.held);
    }
}

TEST(starts_meet_in_a_file) {
    cdp_tcp_desc d = desc_of(3, 0);
    char path[64];
    job j;
    snprintf(path, sizeof path, "/tmp/cdp-start-%ld", (long)getpid());
    d.file = path;
    if (job_start(&j, &d, 0))
        while (job_look(&j)) {
        }
    for (uint32_t r = 0; r < 3; ++r)
        T_EQ(CDP_OK, j.status[r]);
    job_adds(&j, 1000);
    job_end(&j);
    T_EQ(0, counted.held);
}

/* What a process may leave behind; shared memory has descriptors here, and no names. */
typedef struct traces {
    int fds, threads;
} traces;

static traces traces_now(void) {
    const traces t = {test__entries("/proc/self/fd"), test__entries("/proc/self/task")};
    return t;
}

/* After any number of looks: nothing is left, and the same port is free again. */
TEST(a_cancelled_start_leaves_nothing) {
    const traces before = traces_now();
    cdp_tcp_desc d = desc_of(3, free_port());
    bool more = true;
    for (uint32_t looks = 0; more && looks < 4000; looks += 1 + looks / 8) {
        job j;
        d.group.os = counted_os();
        if (!job_start(&j, &d, 0)) return;
        more = true;
        for (uint32_t i = 0; more && i < looks; ++i)
            more = job_look(&j);
        job_end(&j);
        const traces now = traces_now();
        T_EQ(0, counted.held);
        T_EQ(before.fds, now.fds);
        T(now.threads <= before.threads);
    }
    T(!more); /* the last one was cancelled too late */
}

/* The same where ranks meet in a store of the program: whatever a cancelled start has left of its
   key there, the next start of the job finds its way. */
TEST(a_cancelled_start_spoils_no_store) {
    cdp_hash_store_desc h;
    cdp_store *store = NULL;
    bool more = true;
    memset(&h, 0, sizeof h);
    OK(cdp_hash_store_create(&h, &store));
    for (uint32_t looks = 0; more && looks < 1000; looks += 1 + looks / 8) {
        cdp_tcp_desc d = desc_of(3, 0);
        job j;
        d.store = store;
        if (!job_start(&j, &d, 0)) break;
        more = true;
        for (uint32_t i = 0; more && i < looks; ++i)
            more = job_look(&j);
        job_end(&j);
        T_EQ(0, counted.held);
        if (!job_start(&j, &d, 0)) break;
        while (job_look(&j)) {
        }
        for (uint32_t r = 0; r < 3; ++r)
            if (!T_EQ(CDP_OK, j.status[r])) printf("  %u looks: %s\n", looks, j.error[r].text);
        job_end(&j);
        T_EQ(0, counted.held);
    }
    T(!more);
    cdp_store_destroy(store);
}

/* Rank 0 has sent everything, and leaves in frames or at once; rank 1 has read nothing yet and gets
   it all. */
TEST(what_was_sent_arrives_after_leaving) {
    enum {
        COUNT = 8000
    };
    static float x[2][COUNT];
    for (uint32_t at_once = 0; at_once < 2; ++at_once) {
        cdp_tcp_desc d = desc_of(2, free_port());
        cdp_work w[2];
        cdp_status st = CDP_PENDING, left = CDP_PENDING;
        job j;
        d.no_shared_memory = true;
        if (!job_start(&j, &d, 0)) return;
        while (job_look(&j)) {
        }
        job_adds(&j, 100); /* the link is there */
        for (uint32_t k = 0; k < COUNT; ++k)
            x[0][k] = (float)k;
        for (uint32_t r = 0; r < 2; ++r)
            OK(cdp_broadcast_async(j.group[r], x[r], COUNT, CDP_DTYPE_F32, 0, &w[r]));
        while (cdp_work_poll(w[0], 0) == CDP_PENDING) {
        }
        left =
            cdp_group_leave(j.group[0], 0); /* rank 1 has not read: it waits, but 0.1 s at most */
        if (left == CDP_PENDING) REFUSED(CDP_ERR_STATE, "was destroyed", cdp_barrier(j.group[0]));
        if (at_once && left == CDP_PENDING) {
            cdp_group_destroy(j.group[0]);
            left = CDP_OK;
        }
        while (st == CDP_PENDING || left == CDP_PENDING) {
            if (left == CDP_PENDING) left = cdp_group_leave(j.group[0], 0);
            if (st == CDP_PENDING) st = cdp_work_poll(w[1], 0);
        }
        T_EQ(CDP_OK, left);
        T_EQ(CDP_OK, st);
        T_EQ(COUNT - 1, x[1][COUNT - 1]);
        j.group[0] = NULL;
        job_end(&j);
        T_EQ(0, counted.held);
    }
}

/* A client of rank 0's store does not read its answers: no frame of leaving waits for it, and
   neither does the last one, which closes the store. Returns the number of frames: 1 if the store
   had not begun to answer within `pause_ms`. */
static uint64_t frames_beside_a_client(uint32_t pause_ms) {
    enum {
        BYTES = 8 << 20
    };
    cdp_tcp_desc d = desc_of(2, free_port());
    cdp_tcp_store_desc cd = {.host = "127.0.0.1", .port = d.master_port, .timeout_ms = 20000};
    char *const value = (char *)calloc(1, BYTES);
    const cdp_bytes key = {"large", 5};
    cdp_store_request get;
    cdp_store *store = NULL;
    cdp_status st = CDP_PENDING;
    uint64_t longest = 0, frames = 0;
    job j;
    d.group.no_thread = false; /* serves the store while this thread is its client */
    if (!job_start(&j, &d, 0)) return 2;
    while (job_look(&j)) {
    }
    OK(cdp_tcp_store_create(&cd, &store));
    OK(cdp_store_set(store, "large", value, BYTES));
    memset(&get, 0, sizeof get);
    get.op = CDP_STORE_GET;
    get.keys = &key;
    get.key_count = 1;
    store->start(store->self, &get);
    test_sleep_ms(pause_ms); /* the answer fills the sockets */
    while (st == CDP_PENDING) {
        const uint64_t from = test_now_ns();
        st = cdp_group_leave(j.group[0], 100);
        longest = test_now_ns() - from > longest ? test_now_ns() - from : longest;
        ++frames;
    }
    T_EQ(CDP_OK, st);
    T_WITHIN(100, longest);
    store->cancel(store->self, &get);
    cdp_store_request_free(store, &get);
    cdp_store_destroy(store);
    free(value);
    j.group[0] = NULL;
    job_end(&j);
    return frames;
}

TEST(frames_of_leaving_do_not_wait_for_clients_of_the_store) {
    uint32_t pause_ms = 50;
    while (frames_beside_a_client(pause_ms) == 1 && pause_ms < 5000)
        pause_ms *= 4;
    T(pause_ms < 5000);
}

/* A program that leaves because of an error, and prints it then, prints that one: a rank that
   leaves reads that others have left, which is no error of its caller. */
TEST(leaving_keeps_the_last_error) {
    for (uint32_t in_frames = 0; in_frames < 2; ++in_frames) {
        cdp_tcp_desc d = desc_of(3, free_port());
        job j;
        d.no_shared_memory = true;
        if (!job_start(&j, &d, 0)) return;
        while (job_look(&j)) {
        }
        job_adds(&j, 100);
        for (uint32_t r = 0; r < 3; ++r) {
            REFUSED(
                CDP_ERR_INVALID, "cdp_send", cdp_send(j.group[r], NULL, 1, CDP_DTYPE_F32, 9, 0));
            const cdp_error before = *cdp_last_error();
            while (in_frames && cdp_group_leave(j.group[r], 0) == CDP_PENDING) {
            }
            if (!in_frames) cdp_group_destroy(j.group[r]);
            T_EQ(before.status, cdp_last_error()->status);
            T_TEXT(before.text, cdp_last_error()->text);
            j.group[r] = NULL;
        }
        job_end(&j);
    }
}

/* Groups that leave others of their world behind wait for nobody: one look is enough. */
TEST(derived_groups_leave_with_one_look) {
    enum {
        GROUPS = 40
    };
    static const uint32_t both[2] = {0, 1};
    cdp_tcp_desc d = desc_of(2, free_port());
    cdp_group *part[2][GROUPS];
    cdp_status st[2] = {CDP_PENDING, CDP_PENDING};
    job j;
    if (!job_start(&j, &d, 0)) return;
    while (job_look(&j)) {
    }
    job_adds(&j, 1000);
    T_EQ(CDP_OK, cdp_group_leave(NULL, 0));
    for (uint32_t r = 0; r < 2; ++r)
        for (uint32_t i = 0; i < GROUPS; ++i)
            OK(cdp_group_new(j.group[r], both, 2, &part[r][i]));
    for (uint32_t r = 0; r < 2; ++r)
        for (uint32_t i = 0; i < GROUPS; ++i)
            T_EQ(CDP_OK, cdp_group_leave(part[r][i], 0));
    while (st[0] == CDP_PENDING || st[1] == CDP_PENDING)
        for (uint32_t r = 0; r < 2; ++r)
            if (st[r] == CDP_PENDING) st[r] = cdp_group_leave(j.group[r], 0);
    T_EQ(CDP_OK, st[0]);
    T_EQ(CDP_OK, st[1]);
    T_EQ(0, counted.held);
}

/* After a failure: the peer that has not looked since learns the cause. */
TEST(leaving_in_frames_tells_the_cause) {
    cdp_tcp_desc d = desc_of(2, free_port());
    cdp_status st[2] = {CDP_PENDING, CDP_PENDING};
    cdp_work w[2];
    float x[2] = {1, 2};
    job j;
    if (!job_start(&j, &d, 0)) return;
    while (job_look(&j)) {
    }
    job_adds(&j, 1000);
    OK(cdp_allreduce_async(j.group[1], NULL, &x[1], 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w[1]));
    cdp_group_abort(j.group[0], "the player has quit");
    while (st[0] == CDP_PENDING || st[1] == CDP_PENDING) {
        if (st[0] == CDP_PENDING) st[0] = cdp_group_leave(j.group[0], 0);
        if (st[1] == CDP_PENDING) st[1] = cdp_work_poll(w[1], 0);
    }
    T_EQ(CDP_OK, st[0]);
    REFUSED(CDP_ERR_ABORTED, "the player has quit", cdp_group_status(j.group[1]));
    j.group[0] = NULL;
    job_end(&j);
    T_EQ(0, counted.held);
}

/* One rank changes its mind: the others are told, in good time. */
TEST(others_hear_of_a_cancelled_start) {
    for (uint32_t who = 0; who < 3; ++who) {
        cdp_tcp_desc d = desc_of(4, free_port()); /* rank 3 never comes */
        const uint64_t from = test_now_ns();
        job j;
        if (!job_start(&j, &d, 0)) return;
        cdp_init_cancel(j.starting[3]);
        j.starting[3] = NULL;
        for (uint32_t i = 0; i < 300; ++i) {
            (void)job_look(&j);
            test_sleep_ms(1);
        }
        cdp_init_cancel(j.starting[who]);
        j.starting[who] = NULL;
        while (job_look(&j)) {
        }
        T_WITHIN(8000, test_now_ns() - from);
        for (uint32_t r = 0; r < 3; ++r) {
            if (r == who) continue;
            T(j.status[r] < CDP_OK);
            T_EQ(who, j.error[r].peer);
        }
        job_end(&j);
        T_EQ(0, counted.held);
    }
}

/* A rank that does not come: the same error as cdp_init() has. */
TEST(a_start_ends_by_its_deadline) {
    cdp_tcp_desc d = desc_of(2, free_port());
    cdp_group *g;
    job j;
    d.init_timeout_ms = 300;
    if (!job_start(&j, &d, 1)) return; /* rank 0 never comes */
    while (job_look(&j)) {
    }
    T(j.status[1] == CDP_ERR_TIMEOUT || j.status[1] == CDP_ERR_STORE);
    d.group.rank = 1;
    T_EQ(j.status[1], cdp_init(&d, &g));
    T_EQ(0, counted.held);
    d.master_port = free_port();
    d.init_timeout_ms = 300 * TEST_SLACK; /* rank 0 has time to find out who is missing */
    if (!job_start(&j, &d, 0)) return;
    cdp_init_cancel(j.starting[1]);
    j.starting[1] = NULL;
    while (job_look(&j)) {
    }
    T_EQ(CDP_ERR_TIMEOUT, j.status[0]);
    T_EQ(1, j.error[0].peer);
    T_EQ(0, counted.held);
}

static uint64_t jump_ns; /* as if all processes had stood still for so long */

static uint64_t jumping_now(void *user) {
    return cdp_os_default()->now_ns(user) + jump_ns;
}

/* The machine stands still until the deadline: ranks ask the store all the same, which is well. */
/* A rank that has told the store why its start failed does not wait for ranks that start late: that
   is for the one that serves the store, and for those whose store is gone. */
TEST(a_start_that_failed_does_not_linger) {
    for (int round = 0; round < 6; ++round) {
        cdp_tcp_desc d = desc_of(3, free_port());
        uint64_t lingered = 0;
        job j;
        d.init_timeout_ms = 300 * TEST_SLACK;
        if (!job_start(&j, &d, 0)) return;
        cdp_init_cancel(j.starting[2]);
        j.starting[2] = NULL;
        while (job_look(&j) && j.starting[1] && j.starting[1]->mesh)
            if (j.starting[1]->mesh->watch_rq.status >= CDP_OK || j.starting[1]->mesh->part_ns)
                lingered |= j.starting[1]->mesh->linger_ns[1];
        while (job_look(&j)) {
        }
        T_EQ(0, lingered);
        job_end(&j);
        T_EQ(0, counted.held);
    }
}

TEST(a_start_that_stood_still_blames_who_is_missing) {
    cdp_tcp_desc d = desc_of(3, free_port());
    cdp_os os = *counted_os();
    job j;
    os.now_ns = jumping_now;
    d.group.os = &os;
    d.init_timeout_ms = 6000; /* waits of the system end by its own clock, so much later */
    jump_ns = 0;
    if (!job_start(&j, &d, 0)) return;
    cdp_init_cancel(j.starting[1]);
    j.starting[1] = NULL;
    const uint64_t until = test_until_ns(10000);
    while (test_now_ns() < until && !(j.starting[2]->mesh->join && j.starting[2]->mesh->join->keys))
        (void)job_look(&j);
    jump_ns = 6100 * CDP__MS;
    while (job_look(&j)) {
    }
    for (uint32_t r = 0; r < 3; r += 2) {
        T_EQ(CDP_ERR_TIMEOUT, j.status[r]);
        T_EQ(1, j.error[r].peer);
        T_TEXT("still waiting for rank 1", j.error[r].text);
    }
    job_end(&j);
    T_EQ(0, counted.held);
}

/* Rank 1 is stopped when it has published its address. Rank 2 has started, and gives up waiting for
   rank 0 long before that one would warn of rank 1: nobody blames rank 0, itself included. */
TEST(a_rank_that_is_stopped_while_others_finish_starting_is_blamed) {
    cdp_tcp_desc d = desc_of(3, free_port());
    job j;
    cdp_work work;
    cdp_status st = CDP_PENDING;
    bool more = true, stopped = false, begun = false;
    d.group.timeout_ms = 600; /* below the second after which ranks say for whom they wait */
    d.group.logger.level = CDP_LOG_SILENT;
    if (!job_start(&j, &d, 0)) return;
    while (more) {
        cdp_starting *late = j.starting[1];
        stopped = stopped || !late->mesh->join || late->mesh->join->with_values;
        if (stopped) j.starting[1] = NULL;
        more = job_look(&j);
        j.starting[1] = late;
        if (!j.group[2]) continue;
        if (!begun) begun = OK(cdp_barrier_async(j.group[2], &work));
        if (!begun) break;
        if (st == CDP_PENDING && (st = cdp_work_poll(work, 0)) != CDP_PENDING)
            j.error[2] = *cdp_last_error();
        more = more || st == CDP_PENDING;
    }
    T_EQ(CDP_ERR_TIMEOUT, st);
    T_EQ(CDP_ERR_TIMEOUT, j.status[0]);
    for (uint32_t r = 0; r < 3; r += 2) {
        T_EQ(1, j.error[r].peer);
        T_TEXT("rank 1 does not answer", j.error[r].text);
    }
    job_end(&j);
    T_EQ(0, counted.held);
}

/* How many lines at level WARN and INFO say that somebody is missing. */
static uint32_t missed_lines[CDP_LOG_DEBUG + 1];
static void count_missed(cdp_log_level level, const char *text, int32_t rank, void *user) {
    (void)rank;
    (void)user;
    if (strstr(text, "still waiting for rank 3")) ++missed_lines[level];
}

TEST(of_the_ranks_of_one_host_one_warns_that_a_rank_is_missing) {
    cdp_tcp_desc d = desc_of(4, free_port());
    job j;
    d.init_timeout_ms = 8000; /* the second warning would come after 12 s */
    d.group.logger.func = count_missed;
    d.group.logger.level = CDP_LOG_INFO;
    memset(missed_lines, 0, sizeof missed_lines);
    if (!job_start(&j, &d, 0)) return;
    cdp_init_cancel(j.starting[3]);
    j.starting[3] = NULL;
    while (job_look(&j)) {
    }
    for (uint32_t r = 0; r < 3; ++r) {
        T_EQ(CDP_ERR_TIMEOUT, j.status[r]);
        T_TEXT("still waiting for rank 3", j.error[r].text);
    }
    T_EQ(1, missed_lines[CDP_LOG_WARN]);
    T(missed_lines[CDP_LOG_INFO] >= 3); /* the first look of each */
    job_end(&j);
    T_EQ(0, counted.held);
}

/* A look is due every ten seconds: in an hour a rank that waits warns nine times, not 360. */
TEST(a_rank_that_waits_long_warns_more_and_more_rarely) {
    static cdp__mesh m;
    static cdp__join s;
    memset(missed_lines, 0, sizeof missed_lines);
    memset(&m, 0, sizeof m);
    memset(&s, 0, sizeof s);
    m.join = &s;
    m.desc.group.logger.func = count_missed;
    m.desc.group.logger.level = CDP_LOG_INFO;
    cdp__error(&s.why, CDP_ERR_TIMEOUT, 3, "after 1 ms still waiting for rank 3");
    for (uint32_t i = 0; i < 360; ++i) {
        const uint32_t before = missed_lines[CDP_LOG_WARN];
        cdp__join_log_missed(&m);
        if (i == 1 || i == 2 || i == 4) T_EQ(before + 1, missed_lines[CDP_LOG_WARN]);
        if (i == 3 || i == 5) T_EQ(before, missed_lines[CDP_LOG_WARN]);
    }
    T_EQ(9, missed_lines[CDP_LOG_WARN]);
}

/* Rank 1 publishes that it waits for rank `named`. */
static void publish_named(const job *j, int32_t named) {
    const cdp_transport *t = &j->group[1]->w->transport;
    uint8_t body[CDP__FAILURE_BYTES];
    cdp__failure_record r;
    cdp__failure_plain(&r, CDP_ERR_TIMEOUT, 1, named, "waits");
    t->failure.publish(t->self, body, cdp__failure_encode(&r, body));
}

/* Whom the store of rank 0 blames after some polls; -1: nobody. */
static int32_t named_in_store(const job *j) {
    const cdp__mesh *m = (const cdp__mesh *)j->group[0]->w->transport.self;
    char text[128];
    cdp__failure_record r;
    const cdp_bytes key = {text, (uint64_t)snprintf(text, sizeof text, "/%s", m->fail_key)};
    const cdp__kv_entry *v;
    for (int i = 0; i < 200; ++i) {
        for (uint32_t rank = 0; rank < 2; ++rank) {
            const cdp_transport *t = &j->group[rank]->w->transport;
            uint8_t first[CDP__FAILURE_MAX];
            (void)t->wait(t->self, NULL, 0);
            (void)t->failure.first(t->self, first, sizeof first); /* as a group that fails does */
        }
        test_sleep_ms(1);
    }
    v = cdp__kv_get(&m->server->kv, key);
    if (!v || !v->present || !T(cdp__failure_decode(v->value, v->value_bytes, 3, &r))) return -1;
    return r.end.named;
}

/* A rank that is still starting knows of a failure what the store says. So a rank that has learnt
   better whom all wait for says so there, if its own record is the one that the store has. */
TEST(a_corrected_cause_replaces_the_first_one_in_the_store) {
    const cdp_tcp_desc d = desc_of(3, free_port());
    job j;
    if (!job_start(&j, &d, 0)) return;
    while (job_look(&j)) {
    }
    T_EQ(-1, named_in_store(&j));
    publish_named(&j, 0);
    publish_named(&j, 2); /* before the first one has been answered */
    T_EQ(2, named_in_store(&j));
    publish_named(&j, 0);
    T_EQ(0, named_in_store(&j));
    publish_named(&j, 0);
    T_EQ(0, named_in_store(&j));
    publish_named(&j, 2);
    publish_named(&j, 1); /* two corrections at once */
    publish_named(&j, 0);
    T_EQ(0, named_in_store(&j));
    job_end(&j);
    T_EQ(0, counted.held);
}

static int32_t waits_left;

/* The wait number waits_left fails. */
static int32_t failing_wait(
    void *user, void *watch, cdp_ready *out, uint32_t max_count, uint64_t deadline_ns) {
    if (waits_left && !--waits_left) return -EBADF;
    return cdp_os_default()->net.watch_wait(user, watch, out, max_count, deadline_ns);
}

/* Between two looks of a start the program does what it likes: other calls of this thread may fail
   and set its last error. */
TEST(a_start_keeps_its_failure_between_two_looks) {
    cdp_os os = *cdp_os_default();
    os.net.watch_wait = failing_wait;
    for (int32_t at = 1; at < 6; ++at) {
        cdp_tcp_desc d = desc_of(1, free_port());
        cdp_starting *s = NULL;
        cdp_group *g = NULL;
        cdp_status st = CDP_PENDING;
        d.group.world_size = 2; /* the other one does not come */
        d.group.os = &os;
        d.init_timeout_ms = 300 * TEST_LATE;
        waits_left = at;
        if (!T_EQ(CDP_OK, cdp_init_start(&d, &s))) return;
        while (st == CDP_PENDING && waits_left) {
            st = cdp_init_poll(s, 0, &g);
            (void)cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0, "of another call");
        }
        while (st == CDP_PENDING) {
            (void)cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0, "of another call");
            st = cdp_init_poll(s, 1000, &g);
        }
        T_EQ(st, cdp_last_error()->status);
        T(!strstr(cdp_last_error()->text, "of another call"));
        if (T_EQ(CDP_ERR_IO, st)) T_EQ(EBADF, cdp_last_error()->sys_errno);
    }
}

TEST(a_start_refuses_what_cannot_work) {
    cdp_tcp_desc d = desc_of(2, free_port());
    cdp_starting *s = (cdp_starting *)&d;
    cdp_group *g = (cdp_group *)&d;
    T_EQ(CDP_ERR_INVALID, cdp_init_start(NULL, &s));
    T(!s);
    T_EQ(CDP_ERR_INVALID, cdp_init_start(&d, NULL));
    d.group.rank = 2;
    T_EQ(CDP_ERR_INVALID, cdp_init_start(&d, &s));
    T_EQ(CDP_ERR_INVALID, cdp_init_poll(NULL, 0, &g));
    cdp_init_cancel(NULL);
    for (int64_t i = 1; i < 40; ++i) {
        d = desc_of(2, d.master_port);
        d.group.rank = 1;
        counted.fail_at = i;
        if (cdp_init_start(&d, &s) == CDP_OK) break;
        T_EQ(CDP_ERR_NOMEM, cdp_last_error()->status);
        T(!s);
        T_EQ(0, counted.held);
    }
    cdp_init_cancel(s);
    T_EQ(0, counted.held);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"one_thread_starts_all_ranks", one_thread_starts_all_ranks, 60},
        {"starts_meet_in_a_file", starts_meet_in_a_file, 60},
        {"a_cancelled_start_leaves_nothing", a_cancelled_start_leaves_nothing, 120},
        {"a_cancelled_start_spoils_no_store", a_cancelled_start_spoils_no_store, 120},
        {"what_was_sent_arrives_after_leaving", what_was_sent_arrives_after_leaving, 60},
        {"leaving_keeps_the_last_error", leaving_keeps_the_last_error, 30},
        {"frames_of_leaving_do_not_wait_for_clients_of_the_store",
            frames_of_leaving_do_not_wait_for_clients_of_the_store, 60},
        {"derived_groups_leave_with_one_look", derived_groups_leave_with_one_look, 60},
        {"leaving_in_frames_tells_the_cause", leaving_in_frames_tells_the_cause, 60},
        {"others_hear_of_a_cancelled_start", others_hear_of_a_cancelled_start, 120},
        {"a_start_ends_by_its_deadline", a_start_ends_by_its_deadline, 60},
        {"a_rank_that_is_stopped_while_others_finish_starting_is_blamed",
            a_rank_that_is_stopped_while_others_finish_starting_is_blamed, 60},
        {"of_the_ranks_of_one_host_one_warns_that_a_rank_is_missing",
            of_the_ranks_of_one_host_one_warns_that_a_rank_is_missing, 60},
        {"a_rank_that_waits_long_warns_more_and_more_rarely",
            a_rank_that_waits_long_warns_more_and_more_rarely, 10},
        {"a_start_that_stood_still_blames_who_is_missing",
            a_start_that_stood_still_blames_who_is_missing, 60},
        {"a_start_that_failed_does_not_linger", a_start_that_failed_does_not_linger, 60},
        {"a_corrected_cause_replaces_the_first_one_in_the_store",
            a_corrected_cause_replaces_the_first_one_in_the_store, 60},
        {"a_start_keeps_its_failure_between_two_looks", a_start_keeps_its_failure_between_two_looks,
            120},
        {"a_start_refuses_what_cannot_work", a_start_refuses_what_cannot_work, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
