/* A cdp_os whose watches come from a poll function of the program, cdp_os_use_poll(): here it is
   select(2), as a system without epoll and poll(2) would have it. */
#define CDP_IMPLEMENTATION
#define CDP_OS_POLL
#include "cdp_tcp.h"
#include "ranks.h"
#include "ports.h"

#include <errno.h>
#include <sys/select.h>

/* What the poll function does and has seen; user of the os. */
typedef struct seen {
    uint32_t calls, most; /* most: descriptors in one call */
    int32_t fail;         /* nonzero: returned instead of waiting */
    uint64_t deadline_ns; /* of the last call */
} seen;

static int32_t select_fill(const cdp_poll_fd *fds, uint32_t count, fd_set *sets) {
    int32_t top = -1;
    for (int k = 0; k < 3; ++k)
        FD_ZERO(&sets[k]);
    for (uint32_t i = 0; i < count; ++i) {
        if (fds[i].fd < 0 || fds[i].fd >= FD_SETSIZE) return -EINVAL;
        if (fds[i].wanted & CDP_IO_READ) FD_SET(fds[i].fd, &sets[0]);
        if (fds[i].wanted & CDP_IO_WRITE) FD_SET(fds[i].fd, &sets[1]);
        FD_SET(fds[i].fd, &sets[2]);
        if (top < fds[i].fd) top = fds[i].fd;
    }
    return top + 1;
}

static int32_t by_select(
    void *user, cdp_poll_fd *fds, uint32_t count, uint64_t deadline_ns, void *room) {
    seen *s = (seen *)user;
    const uint64_t now = cdp_os_default()->now_ns(NULL);
    const uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
    struct timeval t = {(time_t)(left / 1000000000u), (suseconds_t)(left / 1000 % 1000000)};
    fd_set sets[3];
    const int32_t top = select_fill(fds, count, sets);
    int n;
    if (count) memset(room, 0xee, count * (size_t)CDP_POLL_ROOM); /* all of it may be used */
    __atomic_add_fetch(&s->calls, 1, __ATOMIC_SEQ_CST);
    if (count > __atomic_load_n(&s->most, __ATOMIC_SEQ_CST))
        __atomic_store_n(&s->most, count, __ATOMIC_SEQ_CST);
    __atomic_store_n(&s->deadline_ns, deadline_ns, __ATOMIC_SEQ_CST);
    if (s->fail || top < 0) return s->fail ? s->fail : top;
    n = select(top, &sets[0], &sets[1], &sets[2], deadline_ns == UINT64_MAX ? NULL : &t);
    if (n < 0) return errno == EINTR || errno == EBADF ? 0 : -errno; /* EBADF: closed meanwhile */
    for (uint32_t i = 0; n && i < count; ++i)
        fds[i].ready = (FD_ISSET(fds[i].fd, &sets[0]) ? CDP_IO_READ : 0)
            | (FD_ISSET(fds[i].fd, &sets[1]) ? CDP_IO_WRITE : 0);
    return n;
}

/* Every descriptor is ready for everything, and says so whatever is wanted. */
static int32_t all_ready(
    void *user, cdp_poll_fd *fds, uint32_t count, uint64_t deadline_ns, void *room) {
    seen *s = (seen *)user;
    (void)deadline_ns;
    (void)room;
    s->most = count;
    for (uint32_t i = 0; i < count; ++i)
        fds[i].ready = CDP_IO_READ | CDP_IO_WRITE | CDP_IO_END;
    return (int32_t)count;
}

static int32_t first_broken(
    void *user, cdp_poll_fd *fds, uint32_t count, uint64_t deadline_ns, void *room) {
    const int32_t r = all_ready(user, fds, count, deadline_ns, room);
    fds[0].ready |= CDP_IO_ERROR;
    return r;
}

static cdp_os os_of(seen *s, cdp_poll_func *func, bool threads) {
    cdp_os os = *counted_os();
    memset(s, 0, sizeof *s);
    os.user = s; /* the functions of the default os do not look at it */
    memset(&os.shared, 0, sizeof os.shared);
    if (!threads) {
        memset(&os.threads, 0, sizeof os.threads);
        os.net.wake_open = NULL; /* nobody else could wake anybody */
        os.net.wake_set = NULL;
        os.net.wake_clear = NULL;
    }
    cdp_os_use_poll(&os, func);
    return os;
}

/* ---- groups ---- */

typedef struct job {
    uint32_t n;
    cdp_starting *starting[RANKS_MAX];
    cdp_group *group[RANKS_MAX];
} job;

/* Starts all ranks in this thread. */
static bool job_open(job *j, uint32_t n, const cdp_os *os, bool no_thread) {
    uint32_t left = n;
    cdp_tcp_desc d;
    memset(&d, 0, sizeof d);
    memset(j, 0, sizeof *j);
    j->n = d.group.world_size = n;
    d.group.no_thread = no_thread;
    d.group.os = os;
    d.group.timeout_ms = d.init_timeout_ms = 20000 * TEST_LATE;
    d.master_port = free_port();
    for (uint32_t r = 0; r < n; ++r) {
        d.group.rank = r;
        if (!T_EQ(CDP_OK, cdp_init_start(&d, &j->starting[r]))) return false;
    }
    while (left)
        for (uint32_t r = 0; r < n; ++r) {
            cdp_status st;
            if (!j->starting[r]) continue;
            st = cdp_init_poll(j->starting[r], 200, &j->group[r]);
            if (st == CDP_PENDING) continue;
            j->starting[r] = NULL;
            --left;
            if (!T_EQ(CDP_OK, st)) return false;
        }
    return true;
}

static void job_close(job *j) {
    for (uint32_t r = 0; r < j->n; ++r) {
        cdp_init_cancel(j->starting[r]);
        if (j->group[r]) cdp_group_destroy(j->group[r]);
    }
    memset(j, 0, sizeof *j);
}

#define MANY 100000u

static cdp_error failed; /* of the rank that failed first */

/* All ranks add up; returns the first failure, or CDP_OK. */
static cdp_status job_adds(job *j) {
    float *x = (float *)malloc((size_t)j->n * MANY * sizeof *x);
    cdp_work w[RANKS_MAX];
    cdp_status first = CDP_OK;
    for (uint32_t r = 0; r < j->n; ++r) {
        for (uint32_t i = 0; i < MANY; ++i)
            x[r * MANY + i] = (float)(r + 1);
        T_EQ(CDP_OK,
            cdp_allreduce_async(
                j->group[r], NULL, x + r * MANY, MANY, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w[r]));
    }
    for (uint32_t left = j->n; left && first >= CDP_OK;) {
        left = 0;
        for (uint32_t r = 0; r < j->n && first >= CDP_OK; ++r) {
            const cdp_status st = cdp_work_poll(w[r], 200);
            left += st == CDP_PENDING;
            if (st < CDP_OK) first = st;
        }
    }
    if (first == CDP_OK)
        for (uint32_t r = 0; r < j->n; ++r)
            T_EQ(j->n * (j->n + 1) / 2, x[r * MANY + MANY - 1]);
    if (first < CDP_OK) failed = *cdp_last_error();
    if (first < CDP_OK) job_close(j); /* the other ranks still use the memory */
    free(x);
    return first;
}

TEST(ranks_without_threads_use_a_poll_function) {
    for (uint32_t n = 1; n <= 3; ++n) {
        seen s;
        const cdp_os os = os_of(&s, by_select, false);
        job j;
        if (job_open(&j, n, &os, true)) T_EQ(CDP_OK, job_adds(&j));
        job_close(&j);
        if (n > 1) T(s.calls > 0);
        if (n > 1) T(s.most >= n - 1);
        T_EQ(0, counted.held);
    }
}

TEST(progress_threads_use_a_poll_function) {
    for (int no_thread = 0; no_thread < 2; ++no_thread) {
        seen s;
        const cdp_os os = os_of(&s, by_select, true);
        job j;
        if (job_open(&j, 3, &os, no_thread)) T_EQ(CDP_OK, job_adds(&j));
        job_close(&j);
        T(s.calls > 0);
        T_EQ(0, counted.held);
    }
}

TEST(an_error_of_the_poll_function_ends_a_group) {
    seen s;
    const cdp_os os = os_of(&s, by_select, false);
    job j;
    if (job_open(&j, 2, &os, true)) {
        s.fail = -EINVAL;
        T_EQ(CDP_ERR_IO, job_adds(&j));
        T_TEXT("cannot wait for", failed.text);
        T_EQ(EINVAL, failed.sys_errno);
    }
    job_close(&j);
    T_EQ(0, counted.held);
}

/* ---- watches ---- */

static void *watch_of(const cdp_os *os, uint32_t count) {
    void *w = NULL;
    if (!T_EQ(0, os->net.watch_open(os, &w))) return NULL;
    for (uint32_t i = 0; i < count; ++i)
        T_EQ(0, os->net.watch_add(os, w, (int32_t)i, CDP_IO_READ, (void *)((uintptr_t)i + 1)));
    return w;
}

static void watch_end(const cdp_os *os, void *w) {
    os->net.watch_close(os, w);
    T_EQ(0, counted.held);
}

TEST(a_wait_without_descriptors_ends_at_its_deadline) {
    seen s;
    const cdp_os os = os_of(&s, by_select, false);
    void *w = watch_of(&os, 0);
    const uint64_t start = os.now_ns(NULL), until = start + 20000000u;
    cdp_ready r;
    T_EQ(0, os.net.watch_wait(os.user, w, &r, 1, 0));
    T_EQ(0, os.net.watch_wait(os.user, w, &r, 1, start - 1));
    T(s.deadline_ns == start - 1);
    while (os.now_ns(NULL) < until)
        T_EQ(0, os.net.watch_wait(os.user, w, &r, 1, until));
    T(s.deadline_ns == until && s.most == 0 && s.calls >= 3);
    watch_end(&os, w);
}

TEST(more_descriptors_than_select_takes_are_an_error) {
    seen s;
    const cdp_os os = os_of(&s, by_select, false);
    void *w = watch_of(&os, FD_SETSIZE + 1);
    cdp_ready r;
    T_EQ(-EINVAL, os.net.watch_wait(os.user, w, &r, 1, 0));
    T_EQ(FD_SETSIZE + 1, s.most);
    watch_end(&os, w);
}

/* The adapter itself has no limit: each is reported once, as many at a time as there is room. */
TEST(a_thousand_descriptors_are_reported_once) {
    seen s;
    const cdp_os os = os_of(&s, all_ready, false);
    void *w = watch_of(&os, 1025);
    bool had[1025] = {false};
    cdp_ready r[64];
    uint32_t total = 0;
    int32_t n;
    while ((n = os.net.watch_wait(os.user, w, r, 64, 0)) > 0 && total < 2000) {
        T_EQ(1025, s.most);
        for (int32_t i = 0; i < n; ++i, ++total) {
            const uintptr_t at = (uintptr_t)r[i].owner - 1;
            T(at < 1025 && !had[at]);
            had[at] = true;
            T_EQ(CDP_IO_READ, r[i].got); /* the other bits were not wanted */
        }
    }
    T_EQ(0, n);
    T_EQ(1025, total);
    os.net.watch_used_up(os.user, w, 1000, CDP_IO_READ);
    T_EQ(1, os.net.watch_wait(os.user, w, r, 64, 0));
    T(r[0].owner == (void *)(uintptr_t)1001);
    watch_end(&os, w);
}

TEST(a_broken_descriptor_is_reported_once) {
    seen s;
    const cdp_os os = os_of(&s, first_broken, false);
    void *w = watch_of(&os, 2);
    cdp_ready r[2];
    T_EQ(2, os.net.watch_wait(os.user, w, r, 2, 0));
    T_EQ(CDP_IO_READ | CDP_IO_ERROR, r[0].got);
    os.net.watch_used_up(os.user, w, 0, CDP_IO_READ);
    T_EQ(1, os.net.watch_wait(os.user, w, r, 2, 0)); /* descriptor 1 is the first one now */
    T_EQ(1, s.most);
    T(r[0].owner == (void *)(uintptr_t)2 && (r[0].got & CDP_IO_ERROR));
    watch_end(&os, w);
}

TEST(memory_that_is_missing_is_an_error) {
    seen s;
    const cdp_os os = os_of(&s, all_ready, false);
    void *w = NULL;
    cdp_ready r;
    counted.fail_at = 1;
    T_EQ(-ENOMEM, os.net.watch_open(&os, &w));
    T_EQ(0, os.net.watch_open(&os, &w));
    counted.fail_at = counted.calls + 1;
    T_EQ(-ENOMEM, os.net.watch_add(&os, w, 0, CDP_IO_READ, NULL));
    T_EQ(0, os.net.watch_add(&os, w, 0, CDP_IO_READ, NULL));
    counted.fail_at = counted.calls + 2; /* the second of two pieces */
    T_EQ(-ENOMEM, os.net.watch_wait(os.user, w, &r, 1, 0));
    T_EQ(1, os.net.watch_wait(os.user, w, &r, 1, 0));
    watch_end(&os, w);
}

/* ---- an os that is not whole ---- */

#define MEMBER(m) \
    { #m, offsetof(cdp_os, m) }
static const struct {
    const char *name;
    size_t at;
} required[] = {MEMBER(alloc), MEMBER(release), MEMBER(now_ns), MEMBER(random), MEMBER(net.resolve),
    MEMBER(net.listen_at), MEMBER(net.accept_next), MEMBER(net.connect_to),
    MEMBER(net.connect_result), MEMBER(net.send_iov), MEMBER(net.recv_iov), MEMBER(net.close_fd),
    MEMBER(net.local_addr), MEMBER(net.watch_close), MEMBER(net.watch_add),
    MEMBER(net.watch_change), MEMBER(net.watch_remove), MEMBER(net.watch_wait),
    MEMBER(net.wake_set), MEMBER(net.wake_clear), MEMBER(threads.join), MEMBER(threads.yield),
    MEMBER(threads.mutex_create), MEMBER(threads.mutex_destroy), MEMBER(threads.mutex_lock),
    MEMBER(threads.mutex_unlock), MEMBER(threads.cond_create), MEMBER(threads.cond_destroy),
    MEMBER(threads.cond_wait), MEMBER(threads.cond_broadcast)};

static void refuses(cdp_status st, const char *name) {
    T_EQ(CDP_ERR_INVALID, st);
    T_TEXT(name, cdp_last_error()->text);
}

TEST(a_function_that_is_missing_is_named) {
    for (uint32_t i = 0; i < sizeof required / sizeof *required; ++i) {
        const char *const name = required[i].name;
        seen s;
        cdp_os os = os_of(&s, by_select, true);
        memset((char *)&os + required[i].at, 0, sizeof(void (*)(void)));
        const cdp_tcp_desc init = {.group = {.world_size = 1, .os = &os}};
        const cdp_group_desc group = {.world_size = 1, .os = &os};
        const cdp_store_server_desc server = {.os = &os};
        const cdp_tcp_store_desc client = {.host = "127.0.0.1", .port = 1, .os = &os};
        cdp_group *g = NULL;
        cdp_store_server *t = NULL;
        cdp_store *c = NULL;
        refuses(cdp_init(&init, &g), name);
        refuses(cdp_group_create(&group, &g), name);
        refuses(cdp_store_server_create(&server, &t), name);
        refuses(cdp_tcp_store_create(&client, &c), name);
        T(!g && !t && !c);
    }
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"ranks_without_threads_use_a_poll_function", ranks_without_threads_use_a_poll_function,
            60},
        {"progress_threads_use_a_poll_function", progress_threads_use_a_poll_function, 60},
        {"an_error_of_the_poll_function_ends_a_group", an_error_of_the_poll_function_ends_a_group,
            60},
        {"a_wait_without_descriptors_ends_at_its_deadline",
            a_wait_without_descriptors_ends_at_its_deadline, 30},
        {"more_descriptors_than_select_takes_are_an_error",
            more_descriptors_than_select_takes_are_an_error, 30},
        {"a_thousand_descriptors_are_reported_once", a_thousand_descriptors_are_reported_once, 30},
        {"a_broken_descriptor_is_reported_once", a_broken_descriptor_is_reported_once, 30},
        {"memory_that_is_missing_is_an_error", memory_that_is_missing_is_an_error, 30},
        {"a_function_that_is_missing_is_named", a_function_that_is_missing_is_named, 30},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
