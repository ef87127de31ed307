/* Memory that ranks of one machine share: rings between two processes, how links come to use
   them, and what happens when that is not possible or a peer writes nonsense. */
#define _FILE_OFFSET_BITS 64 /* on 32-bit machines: files longer than memory */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "test.h"
#include "ports.h"
#include "group_memory.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* ---- rings between two processes ---- */

typedef struct side {
    cdp__shared *s;
    int32_t bell; /* our own */
    uint64_t state, sent, got, total;
    uint32_t most; /* bytes of one piece */
    uint64_t slept;
} side;

static uint8_t byte_at(uint64_t i, bool maker) {
    return (uint8_t)((i * 2654435761u >> 13) + (maker ? 1 : 7));
}

static void side_step(side *d, bool maker, bool *moved) {
    static uint8_t out[100000], in[100000];
    cdp_iov v[3];
    int64_t r;
    uint64_t n = cdp__min(1 + test_random(&d->state) % d->most, d->total - d->sent),
             first = n ? test_random(&d->state) % (n + 1) : 0;
    for (uint64_t i = 0; i < n; ++i)
        out[i] = byte_at(d->sent + i, maker);
    v[0].data = out;
    v[0].bytes = first;
    v[1].data = NULL;
    v[1].bytes = 0;
    v[2].data = out + first;
    v[2].bytes = n - first;
    r = n ? cdp__line_move(&d->s->line, v, 3, true) : 0;
    T(r >= 0 && (uint64_t)r <= n);
    d->sent += (uint64_t)r;
    *moved = r > 0;
    n = 1 + test_random(&d->state) % d->most;
    v[0].data = in;
    v[0].bytes = n;
    r = cdp__line_move(&d->s->line, v, 1, false);
    T(r >= 0 && (uint64_t)r <= n);
    for (int64_t i = 0; i < r; ++i)
        if (in[i] != byte_at(d->got + (uint64_t)i, !maker)) {
            test_check(false, __FILE__, __LINE__, "byte %llu is wrong",
                (unsigned long long)(d->got + (uint64_t)i));
            exit(9);
        }
    d->got += (uint64_t)r;
    *moved = *moved || r > 0;
}

static void side_run(side *d, bool maker) {
    while (d->sent < d->total || d->got < d->total) {
        bool moved;
        side_step(d, maker, &moved);
        if (moved) continue;
        if (!cdp__shared_doze(d->s)) {
            struct pollfd p = {d->bell, POLLIN, 0};
            if (poll(&p, 1, 30000) != 1) {
                test_check(false, __FILE__, __LINE__,
                    "nobody woke this side: sent %llu, got %llu of %llu",
                    (unsigned long long)d->sent, (unsigned long long)d->got,
                    (unsigned long long)d->total);
                exit(9);
            }
            cdp_os_default()->net.wake_clear(NULL, d->bell);
            ++d->slept;
        }
        cdp__shared_awake(d->s);
    }
}

static void hammer(uint64_t room, uint32_t most, uint64_t total) {
    const cdp_os *os = cdp_os_default();
    const int32_t memory = os->shared.create(NULL, cdp__shared_size(room));
    int32_t bells[2][2];
    pid_t child;
    int status = 0;
    if (!T(memory >= 0) || !T(os->net.wake_open(NULL, bells[0]) == 0)
        || !T(os->net.wake_open(NULL, bells[1]) == 0))
        return;
    fflush(stdout);
    child = fork();
    for (int me = 0; me < 2; ++me) {
        side d = {.bell = bells[me][0], .state = room + (uint64_t)me, .total = total, .most = most};
        if (me == (child == 0)) continue; /* the child is 0 */
        d.s = cdp__shared_open(os, dup(memory), me == 0);
        if (!T(d.s != NULL)) break;
        T_EQ(room, d.s->line.size);
        d.s->bell = dup(bells[1 - me][1]);
        side_run(&d, me == 0);
        cdp__shared_close(d.s);
        if (child)
            printf("  ring of %llu bytes: %llu bytes each way, slept %llu times\n",
                (unsigned long long)room, (unsigned long long)total, (unsigned long long)d.slept);
    }
    if (!child) _exit(test__now.failed_checks ? 9 : 0);
    waitpid(child, &status, 0);
    T_EQ(0, status);
    close(memory);
    close(bells[0][0]);
    close(bells[1][0]);
}

TEST(two_processes_hammer_rings) {
    const uint64_t part = TEST_SLOW ? 16 : 1;
    hammer(64, 1, (30 << 10) / part);
    hammer(64, 100, (1 << 20) / part);
    hammer(1024, 3000, (4 << 20) / part);
    hammer(256 * 1024, 100000, (64 << 20) / part);
}

/* ---- links: ranks are threads here ---- */

typedef struct member {
    pthread_t id;
    cdp_tcp_desc desc;
    void (*body)(struct member *m);
    cdp_group *g;
    cdp_status status;
    cdp_error error;
    char described[8192];
} member;

#define RANKS_MAX 8u
static member members[RANKS_MAX];
static uint32_t met;

static void meet(uint32_t n) {
    const uint32_t until = (__atomic_fetch_add(&met, 1, __ATOMIC_SEQ_CST) / n + 1) * n;
    while (__atomic_load_n(&met, __ATOMIC_SEQ_CST) < until)
        test_sleep_ms(1);
}

static void *member_main(void *p) {
    member *m = (member *)p;
    m->status = cdp_init(&m->desc, &m->g);
    if (m->status == CDP_OK) m->body(m);
    m->error = *cdp_last_error();
    cdp_group_destroy(m->g);
    return NULL;
}

/* `like` has what all have in common; per_rank (may be NULL) changes it for one. */
static void job(uint32_t n, const cdp_tcp_desc *like, void (*per_rank)(cdp_tcp_desc *d),
    void (*body)(member *m)) {
    const uint16_t port = free_port();
    met = 0;
    memset(members, 0, sizeof members);
    for (uint32_t r = 0; r < n; ++r) {
        members[r].desc = *like;
        members[r].desc.group.rank = r;
        members[r].desc.group.world_size = n;
        members[r].desc.master_port = port;
        members[r].desc.init_timeout_ms = 20000 * TEST_SLACK;
        if (!members[r].desc.group.timeout_ms)
            members[r].desc.group.timeout_ms = 20000 * TEST_SLACK;
        members[r].body = body;
        if (per_rank) per_rank(&members[r].desc);
        pthread_create(&members[r].id, NULL, member_main, &members[r]);
    }
    for (uint32_t r = 0; r < n; ++r)
        pthread_join(members[r].id, NULL);
    for (uint32_t r = 0; r < n; ++r)
        test_check(members[r].status == CDP_OK, __FILE__, __LINE__, "rank %u: %s", r,
            members[r].error.text);
}

static cdp__link *link_of(member *m, uint32_t peer) {
    return &((cdp__mesh *)m->g->w->transport.self)->links[peer];
}

static void describe_all(member *m) {
    const uint32_t n = m->desc.group.world_size;
    uint32_t *all = (uint32_t *)calloc(2 * n, sizeof *all), me = m->desc.group.rank;
    for (uint32_t i = 0; i < 20; ++i) {
        m->status = cdp_alltoall(m->g, all, all + n, 1, CDP_DTYPE_U32);
        if (m->status == CDP_OK) m->status = cdp_allgather(m->g, &me, all, 1, CDP_DTYPE_U32);
        for (uint32_t r = 0; r < n && m->status == CDP_OK; ++r)
            T_EQ(r, all[r]);
    }
    free(all);
    cdp_describe(m->g, m->described, sizeof m->described);
    if (m->status == CDP_OK) m->status = cdp_barrier(m->g);
}

static uint32_t count_of(const char *part, const char *text) {
    uint32_t n = 0;
    while ((text = strstr(text, part)) != NULL) {
        ++n;
        ++text;
    }
    return n;
}

static void odd_ones_refuse(cdp_tcp_desc *d) {
    d->no_shared_memory = d->group.rank % 2;
}

TEST(links_say_what_they_are) {
    cdp_tcp_desc like = {0};
    job(4, &like, NULL, describe_all);
    for (uint32_t r = 0; r < 4; ++r)
        T_EQ(3, count_of("memory, 256 KiB each way, beside TCP, 127.0.0.1:", members[r].described));
    like.job_key = "0123456789abcdef";
    like.ring_bytes = 64 * 1024;
    like.group.no_thread = true;
    job(3, &like, NULL, describe_all);
    for (uint32_t r = 0; r < 3; ++r)
        T_EQ(2, count_of("memory, 64 KiB each way, beside TCP, 127.0.0.1:", members[r].described));
    for (uint32_t r = 0; r < 3; ++r)
        T_EQ(2, count_of(", key proved", members[r].described));
    job(4, &like, odd_ones_refuse, describe_all);
    for (uint32_t r = 0; r < 4; ++r)
        T_EQ(r % 2 ? 0 : 1, count_of("KiB each way, beside TCP", members[r].described));
}

/* ---- it cannot be set up ---- */

typedef enum trouble {
    T_CREATE,
    T_MAP_MAKER,
    T_MAP_OTHER,
    T_LAYOUT, /* the other process was built with other tables */
    T_WAIT,
    T_CONNECT,
    T_SEND_MAKER,
    T_RECV_OTHER,
    T_SEND_OTHER,
    TROUBLES
} trouble;
static trouble now;
static uint32_t warned;

static int32_t no_create(void *user, uint64_t bytes) {
    return now == T_CREATE ? -ENOMEM : cdp_os_default()->shared.create(user, bytes);
}
static void *no_map(void *user, int32_t fd, bool writable, uint64_t *bytes) {
    cdp__pair *at = now == T_MAP_MAKER
        ? NULL
        : (cdp__pair *)cdp_os_default()->shared.map(user, fd, writable, bytes);
    if (at && at->proof[0] && now == T_LAYOUT) at->layout += 1ull << 32;
    if (!at || now != T_MAP_OTHER || !at->proof[0]) return at;
    cdp_os_default()->shared.unmap(user, at, *bytes);
    return NULL;
}
static int32_t no_pass_open(void *user, const uint8_t name[12], bool waits) {
    if (now == T_WAIT && waits) return -EMFILE;
    if (now == T_CONNECT && !waits) return -ECONNREFUSED; /* as from another network namespace */
    return cdp_os_default()->shared.pass_open(user, name, waits);
}
static int32_t no_pass(void *user, int32_t fd, int32_t *fds, uint32_t n, bool sending) {
    if (now == T_SEND_MAKER && sending && n == 2) return -ETOOMANYREFS;
    if (now == T_SEND_OTHER && sending && n == 1) return -ETOOMANYREFS;
    if (now == T_RECV_OTHER && !sending && n == 2) {
        if (cdp_os_default()->shared.pass(user, fd, fds, n, sending) >= 0) {
            close(fds[0]);
            close(fds[1]);
        }
        return -EMFILE;
    }
    return cdp_os_default()->shared.pass(user, fd, fds, n, sending);
}
static void count_warnings(cdp_log_level level, const char *text, int32_t rank, void *user) {
    (void)rank;
    (void)user;
    if (level == CDP_LOG_WARN && strstr(text, "no shared memory with rank"))
        __atomic_add_fetch(&warned, 1, __ATOMIC_SEQ_CST);
    else if (level <= CDP_LOG_WARN)
        printf("  %s\n", text);
}

TEST(without_memory_it_goes_over_tcp) {
    cdp_os os = *cdp_os_default();
    cdp_tcp_desc like = {.group.os = &os, .group.logger = {.func = count_warnings}};
    os.shared.create = no_create;
    os.shared.map = no_map;
    os.shared.pass_open = no_pass_open;
    os.shared.pass = no_pass;
    for (now = T_CREATE; now < TROUBLES; now = (trouble)(now + 1)) {
        warned = 0;
        like.group.no_thread = now % 2;
        job(3, &like, NULL, describe_all);
        for (uint32_t r = 0; r < 3; ++r)
            T_EQ(0, count_of("KiB each way, beside TCP", members[r].described));
        test_check(warned >= 1 && warned <= 3, __FILE__, __LINE__,
            "trouble %d: %u warnings of 3 ranks", (int)now, warned);
    }
    os = *cdp_os_default(); /* an os that knows no such memory: nothing to say */
    os.shared.create = NULL;
    os.shared.map = NULL;
    os.shared.pass_open = NULL;
    warned = 0;
    job(3, &like, NULL, describe_all);
    T_EQ(0, warned);
}

/* Rank 1 reaches rank 0, and when it passes memory to it, that rank has left. */
static int asked_to_leave, has_left;
static int32_t pass_open_too_late(void *user, const uint8_t name[12], bool waits) {
    const uint64_t until = test_until_ns(10000);
    if (waits) return cdp_os_default()->shared.pass_open(user, name, waits);
    __atomic_store_n(&asked_to_leave, 1, __ATOMIC_SEQ_CST);
    while (test_now_ns() < until && !__atomic_load_n(&has_left, __ATOMIC_SEQ_CST))
        test_sleep_ms(1);
    return cdp_os_default()->shared.pass_open(user, name, waits);
}

static void first_reaches_who_leaves(member *m) {
    const uint64_t until = test_until_ns(10000);
    float x = 1;
    if (m->desc.group.rank == 1) {
        T(cdp_allreduce(m->g, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM) < 0);
        return;
    }
    while (test_now_ns() < until && !__atomic_load_n(&asked_to_leave, __ATOMIC_SEQ_CST))
        test_sleep_ms(1);
    cdp_group_destroy(m->g);
    m->g = NULL;
    __atomic_store_n(&has_left, 1, __ATOMIC_SEQ_CST);
}

TEST(memory_that_cannot_be_shared_with_a_rank_that_has_left_is_no_news) {
    cdp_os os = *cdp_os_default();
    cdp_tcp_desc like = {.group.os = &os, .group.logger = {.func = count_warnings}};
    os.shared.pass_open = pass_open_too_late;
    like.group.timeout_ms = 3000;
    warned = 0;
    asked_to_leave = has_left = 0;
    job(2, &like, NULL, first_reaches_who_leaves);
    T(asked_to_leave && has_left);
    T_EQ(0, warned);
}

/* In a child, since limits are those of a process. */
static void limited(int what, rlim_t limit) {
    int status;
    fflush(stdout);
    const pid_t child = fork();
    if (!child) {
        cdp_tcp_desc like = {.ring_bytes = 8 << 20, .group.logger = {.func = count_warnings}};
        struct rlimit l = {limit, limit};
        alarm(60 * TEST_SLACK);
        if (setrlimit(what, &l) != 0) _exit(8);
        job(2, &like, NULL, describe_all);
        T_EQ(0,
            count_of("KiB each way, beside TCP", members[0].described)
                + count_of("KiB each way, beside TCP", members[1].described));
        T(warned >= 1);
        _exit(test__now.failed_checks ? 9 : 0);
    }
    waitpid(child, &status, 0);
    T_EQ(0, status);
}

/* The last descriptor does not find room at once. */
static uint32_t full_tables;
static int32_t full_pass(void *user, int32_t fd, int32_t *fds, uint32_t n, bool sending) {
    if (n == 1 && !sending && __atomic_fetch_sub(&full_tables, 1, __ATOMIC_SEQ_CST) - 1 < 20)
        return -EMFILE;
    return cdp_os_default()->shared.pass(user, fd, fds, n, sending);
}

TEST(a_full_table_of_descriptors_is_waited_for) {
    cdp_os os = *cdp_os_default();
    cdp_tcp_desc like = {.group.os = &os};
    os.shared.pass = full_pass;
    full_tables = 20;
    job(3, &like, NULL, describe_all);
    T(full_tables >= 20);
    for (uint32_t r = 0; r < 3; ++r)
        T_EQ(2, count_of("KiB each way, beside TCP", members[r].described));
}

TEST(sizes_of_rings_are_checked) {
    static const uint64_t wrong[] = {1, 63, (1u << 30) + 1, UINT64_MAX};
    cdp_group *g;
    for (uint32_t i = 0; i < 4; ++i) {
        const cdp_tcp_desc d = {.group.world_size = 1, .ring_bytes = wrong[i]};
        T_EQ(CDP_ERR_INVALID, cdp_init(&d, &g));
        T_TEXT("ring_bytes", cdp_last_error()->text);
    }
}

TEST(limits_of_the_system_are_no_crash) {
    limited(RLIMIT_FSIZE, 4 << 20);
}

/* Memory whose size can change is not taken: whoever has it could make a signal out of it. */
TEST(only_sealed_memory_is_mapped) {
    const cdp_os *os = cdp_os_default();
    uint64_t bytes = 0;
    FILE *f = tmpfile();
    const int fd = f ? fileno(f) : -1, sealed = os->shared.create(NULL, 10000);
    void *at = os->shared.map(NULL, sealed, true, &bytes);
    T(fd >= 0 && ftruncate(fd, 100000) == 0 && !os->shared.map(NULL, fd, true, &bytes));
    T(sealed >= 0 && at && bytes == 10000);
    T(ftruncate(sealed, 100) != 0 && ftruncate(sealed, 20000) != 0);
    T(os->shared.create(NULL, UINT64_MAX) < 0);
    memset(at, 1, 10000);
    os->shared.unmap(NULL, at, bytes);
    close(sealed);
    if (f) fclose(f);
}

/* A process with longer addresses may pass more than can be seen from here; what is seen of it
   would be less than its size. */
TEST(memory_beyond_the_address_space_is_not_mapped) {
    const int fd = (int)syscall(SYS_memfd_create, "cdp", 3u);
    uint64_t bytes = 0;
    void *at;
    if (sizeof(void *) > 4 || fd < 0 || ftruncate(fd, (off_t)((1ull << 32) + 8192)) != 0
        || fcntl(fd, 1033, 7) != 0) {
        test_skip("only where addresses are shorter than lengths of files");
    } else {
        at = cdp_os_default()->shared.map(NULL, fd, false, &bytes);
        T(!at || bytes <= SIZE_MAX);
        if (at) cdp_os_default()->shared.unmap(NULL, at, bytes);
    }
    if (fd >= 0) close(fd);
}

/* Somebody else knocks where memory is awaited: descriptors of all kinds, or none. */
static int32_t stranger_pass_open(void *user, const uint8_t name[12], bool waits) {
    const int32_t fd = cdp_os_default()->shared.pass_open(user, name, waits);
    for (int k = 0; waits && k < 3; ++k) {
        const int32_t at = cdp_os_default()->shared.pass_open(user, name, false);
        int32_t fds[2] = {cdp_os_default()->shared.create(NULL, k == 0 ? 100 : 600000), 2};
        if (k < 2) T(cdp_os_default()->shared.pass(user, at, fds, 2, true) > 0);
        close(fds[0]);
        close(at);
    }
    return fd;
}

TEST(strangers_are_not_taken) {
    cdp_os os = *cdp_os_default();
    cdp_tcp_desc like = {.group.os = &os};
    os.shared.pass_open = stranger_pass_open;
    job(3, &like, NULL, describe_all);
    for (uint32_t r = 0; r < 3; ++r)
        T_EQ(2, count_of("KiB each way, beside TCP", members[r].described));
}

/* ---- large messages are read where they lie ---- */

static uint32_t reads, read_fails;

static int32_t counting_read(
    void *user, int32_t pid, const uint64_t *from, const cdp_iov *to, uint32_t n) {
    if (n > 1) __atomic_add_fetch(&reads, 1, __ATOMIC_SEQ_CST);
    return read_fails ? -EPERM : cdp_os_default()->shared.read_process(user, pid, from, to, n);
}

static void large_ones(member *m) {
    const uint32_t n = m->desc.group.world_size;
    const uint64_t count = 300001;
    uint32_t *x = (uint32_t *)calloc(count, 4), *y = (uint32_t *)calloc(count * n, 4);
    for (uint32_t k = 0; k < 5 && m->status == CDP_OK; ++k) {
        for (uint64_t i = 0; i < count; ++i)
            x[i] = (uint32_t)(i * 2654435761u) + m->desc.group.rank + k;
        m->status = cdp_allgather(m->g, x, y, count, CDP_DTYPE_U32);
        for (uint32_t r = 0; r < n; ++r)
            for (uint64_t i = 0; i < count
                 && T(m->status != CDP_OK
                     || y[r * count + i] == (uint32_t)(i * 2654435761u) + r + k);
                 ++i) {
            }
        if (m->status == CDP_OK)
            m->status = cdp_allreduce(m->g, NULL, x, count, CDP_DTYPE_U32, CDP_REDUCE_SUM);
        for (uint64_t i = 0; i < count
             && T(m->status != CDP_OK
                 || x[i] == n * ((uint32_t)(i * 2654435761u) + k) + n * (n - 1) / 2);
             ++i) {
        }
    }
    for (uint32_t r = 0; r < n; ++r) /* no loan outlives its message */
        for (uint32_t i = 0; r != m->desc.group.rank && i < CDP_EXPOSURES && link_of(m, r)->shared;
             ++i)
            T(!(link_of(m, r)->shared->line.state[i] & CDP__EXPOSED));
    free(x);
    free(y);
}

static bool reading_works(void) { /* not under every emulator */
    uint8_t there = 1, here = 0;
    const uint64_t from = (uint64_t)(uintptr_t)&there;
    const cdp_iov to = {&here, 1};
    const cdp_os *os = cdp_os_default();
    return os->shared.read_process
        && os->shared.read_process(NULL, (int32_t)getpid(), &from, &to, 1) == 0;
}

static bool can_read(void) {
    const bool can = reading_works();
    if (!can) test_skip("this system does not let a process read another one's memory");
    return can;
}

TEST(large_messages_are_read_where_they_lie) {
    cdp_os os = *cdp_os_default();
    cdp_tcp_desc like = {.group.os = &os, .group.expose_bytes = 128 * 1024};
    os.shared.read_process = counting_read;
    if (!can_read()) return;
    job(3, &like, NULL, large_ones);
    T(reads > 20);
    like.group.expose_bytes = UINT64_MAX;
    reads = 0;
    job(3, &like, NULL, large_ones);
    T_EQ(0, reads);
    like.group.expose_bytes = 1;
    read_fails = 1; /* not permitted: found out when links are made */
    job(3, &like, odd_ones_refuse, large_ones);
    job(3, &like, NULL, large_ones);
    T_EQ(0, reads);
    read_fails = 0;
    os.shared.read_process = NULL;
    job(3, &like, NULL, large_ones);
}

/* ---- who is where ---- */

static uint32_t hosts_seen[6];

static void compare_hosts(member *m) {
    cdp_transport *t = &m->g->w->transport;
    m->status = cdp_barrier(m->g);
    for (uint32_t r = 0; r < m->desc.group.world_size; ++r)
        T_EQ(hosts_seen[r], t->topology.host(t->self, r));
}

static uint64_t other_host(void *user) {
    return cdp_os_default()->shared.host_id(user) ^ 2;
}
static uint64_t no_host(void *user) {
    (void)user;
    return 0;
}

static void three_places(cdp_tcp_desc *d) {
    static cdp_os other, none;
    const uint32_t r = d->group.rank;
    if (r == 0) { /* before any thread looks at them */
        other = none = *cdp_os_default();
        other.shared.host_id = other_host;
        none.shared.host_id = no_host;
    }
    if (r % 3 == 1) d->group.os = &other;
    if (r == 3) d->no_shared_memory = true;
    if (r == 5) d->group.os = &none;
}

TEST(ranks_know_who_is_on_one_host) {
    const uint32_t one[6] = {0, 0, 0, 0, 0, 0}, several[6] = {0, 1, 0, 2, 1, 3};
    cdp_tcp_desc like = {.group.timeout_ms = 20000};
    memcpy(hosts_seen, one, sizeof one);
    job(6, &like, NULL, compare_hosts);
    memcpy(hosts_seen, several, sizeof several);
    job(6, &like, three_places, compare_hosts);
}

/* What is lent is given to this peer and in this length alone, and void when it has been
   recalled. */
static void lend_and_recall(member *m) {
    static uint8_t lent[CDP__FRESH_BYTES], got[100000];
    static uint64_t token;
    cdp_transport *t = &m->g->w->transport;
    const uint32_t peer = 1 - m->desc.group.rank;
    m->status = cdp_barrier(m->g);
    if (!T(link_of(m, peer)->shared != NULL)) return;
    cdp__enter(m->g); /* its thread uses the link, too */
    if (m->desc.group.rank == 0) {
        uint64_t all[CDP_EXPOSURES + 1];
        uint32_t k = 0;
        memset(lent, 7, sizeof lent);
        while (
            k <= CDP_EXPOSURES && t->remote.expose(t->self, peer, lent, sizeof lent, true, &all[k]))
            ++k;
        T_EQ(CDP_EXPOSURES, k);
        T(t->remote.try_revoke(t->self, peer, all[--k])); /* nobody has read it */
        while (k > 1)
            t->remote.revoke(t->self, peer, all[--k]);
        token = all[0];
    }
    cdp__leave(m->g);
    meet(2);
    cdp__enter(m->g);
    if (m->desc.group.rank == 1) {
        T_EQ(60000, t->remote.get(t->self, 0, token, sizeof lent - 60000, got, 60000));
        T(got[0] == 7 && got[59999] == 7 && got[60000] == 0);
        T_EQ(0, t->remote.get(t->self, 0, token, sizeof lent - 59999, got, 60000));
        T_EQ(0, t->remote.get(t->self, 0, token, UINT64_MAX, got, 60000));
        T_EQ(0, t->remote.get(t->self, 0, token + (1ull << 32), 0, got, 1));
        T_EQ(0, t->remote.get(t->self, 0, token + 4, 0, got, 1));
        T_EQ(0, t->remote.get(t->self, 0, token + 8, 0, got, 1));
        T_EQ(0, t->remote.get(t->self, 0, UINT64_MAX, 0, got, 1));
    }
    cdp__leave(m->g);
    meet(2);
    cdp__enter(m->g);
    if (m->desc.group.rank == 0) {
        T(!t->remote.try_revoke(t->self, peer, token)); /* it has been read from */
        t->remote.revoke(t->self, peer, token);
    }
    cdp__leave(m->g);
    meet(2);
    cdp__enter(m->g);
    if (m->desc.group.rank == 1) {
        T_EQ(0, t->remote.get(t->self, 0, token, 0, got, 1));
        /* as if it were lent, from nowhere */
        link_of(m, 0)->shared->line.in->exposed[0].state = (uint32_t)token;
        link_of(m, 0)->shared->line.in->exposed[0].at = 4096;
        T_EQ(CDP_ERR_IO, t->remote.get(t->self, 0, token, 0, got, 1));
        link_of(m, 0)->shared->line.in->exposed[0].at = (uint64_t)(uintptr_t)lent;
        T_EQ(1, t->remote.get(t->self, 0, token, 0, got, 1));
        link_of(m, 0)->shared->proof[0] ^= 1; /* another process has its number */
        T_EQ(CDP_ERR_PEER_LOST, t->remote.get(t->self, 0, token, 0, got, 1));
        T_EQ(0, cdp_last_error()->peer);
    }
    cdp__leave(m->g);
    meet(2);
}

TEST(loans_are_for_one_and_end) {
    cdp_tcp_desc like = {0};
    if (can_read()) job(2, &like, NULL, lend_and_recall);
}

/* It is permitted when links are made, and not any more when it is needed: then it is sent. */
static void large_ones_in_vain(member *m) {
    m->status = cdp_barrier(m->g);
    meet(m->desc.group.world_size);
    if (m->desc.group.rank == 0) __atomic_store_n(&read_fails, 1, __ATOMIC_SEQ_CST);
    meet(m->desc.group.world_size);
    if (m->status == CDP_OK) large_ones(m);
    /* nor will it be tried again */
    for (uint32_t r = 0; r < m->desc.group.world_size; ++r)
        T(r == m->desc.group.rank || !(link_of(m, r)->shared->mine->reads & CDP__READS_ANY));
}

TEST(what_cannot_be_read_is_sent) {
    cdp_os os = *cdp_os_default();
    cdp_tcp_desc like = {.group.os = &os, .group.expose_bytes = 128 * 1024};
    os.shared.read_process = counting_read;
    for (uint32_t n = 2; n <= 4 && can_read(); ++n) {
        read_fails = reads = 0;
        job(n, &like, NULL, large_ones_in_vain);
        T(reads > 0);
    }
    read_fails = 0;
}

/* What a rank brings is read from 64 KiB on, what it passes on only from 256 KiB on. */
static void not_so_large_ones(member *m) {
    const uint32_t n = m->desc.group.world_size, count = 16384;
    uint32_t *x = (uint32_t *)calloc(2 * count, 4), *y = (uint32_t *)calloc(2 * count, 4);
    for (uint32_t k = 0; k < 40 && m->status == CDP_OK; ++k) { /* who is late is sent it */
        for (uint32_t i = 0; i < 2 * count; ++i)
            x[i] = i + k + (n == 2 || m->desc.group.rank == 0 ? 0 : 7);
        m->status = n == 2 ? cdp_alltoall(m->g, x, y, count, CDP_DTYPE_U32)
                           : cdp_broadcast(m->g, x, 2 * count, CDP_DTYPE_U32, 0);
        for (uint32_t i = 0; i < 2 * count
             && T(m->status != CDP_OK
                 || (n == 2 ? y[i] == i % count + m->desc.group.rank * count + k : x[i] == i + k));
             ++i) {
        }
    }
    free(x);
    free(y);
}

TEST(what_is_brought_is_read_earlier) {
    cdp_os os = *cdp_os_default();
    cdp_tcp_desc like = {.group.os = &os};
    os.shared.read_process = counting_read;
    if (!can_read()) return;
    reads = 0;
    job(2, &like, NULL, not_so_large_ones);
    T(reads > 0);
    reads = 0;
    job(3, &like, NULL, not_so_large_ones);
    T_EQ(0, reads);
}

/* ---- memory of a group ---- */

static uint32_t mappings(void);
static bool blind; /* nothing of a peer's group can be mapped */

static void *map_or_not(void *user, int32_t fd, bool writable, uint64_t *bytes) {
    return !writable && blind ? NULL : cdp_os_default()->shared.map(user, fd, writable, bytes);
}

static uint32_t views_of(member *m) {
    uint32_t n = 0;
    cdp__enter(m->g); /* its thread may be letting some go */
    for (uint32_t r = 0; r < m->desc.group.world_size; ++r)
        for (uint32_t i = 0; r != m->desc.group.rank && i < CDP_SEGMENTS; ++i)
            n += link_of(m, r)->shared && link_of(m, r)->shared->mappings[i].at;
    cdp__leave(m->g);
    return n;
}

static bool in_segment(member *m, const void *p) {
    return cdp__mesh_segment((const cdp__mesh *)m->g->w->transport.self, p, 1) != NULL;
}

static void group_memory(member *m) {
    const uint32_t n = m->desc.group.world_size;
    const uint64_t count = 300001;
    const uint32_t seen =
        !blind && m->desc.group.expose_bytes != UINT64_MAX && m->desc.group.os->shared.create;
    uint32_t *x = (uint32_t *)memory_of_group(m->g, count * 4),
             *y = (uint32_t *)memory_of_group(m->g, count * 4 * n);
    T(x && y && (uintptr_t)x % 64 == 0 && (uintptr_t)y % 64 == 0);
    for (uint32_t k = 0; k < 5 && m->status == CDP_OK; ++k) {
        /* also what does not begin where it was allocated, and uneven parts */
        const uint64_t at = k % 3;
        for (uint64_t i = 0; i < count; ++i)
            x[i] = (uint32_t)(i * 2654435761u) + m->desc.group.rank + k;
        m->status = cdp_allgather(m->g, x + at, y, count - at, CDP_DTYPE_U32);
        /* from there, too */
        if (m->status == CDP_OK)
            m->status = cdp_allgather(m->g, NULL, y, count - at, CDP_DTYPE_U32);
        for (uint32_t r = 0; r < n; ++r)
            for (uint64_t i = at; i < count
                 && T(m->status != CDP_OK
                     || y[r * (count - at) + i - at] == (uint32_t)(i * 2654435761u) + r + k);
                 ++i) {
            }
        if (m->status == CDP_OK)
            m->status = k % 2
                ? cdp_allreduce(m->g, x + at, y + at, count - at, CDP_DTYPE_U32, CDP_REDUCE_SUM)
                : cdp_allreduce(m->g, NULL, x + at, count - at, CDP_DTYPE_U32, CDP_REDUCE_SUM);
        for (uint64_t i = at; i < count
             && T(m->status != CDP_OK
                 || (k % 2 ? y : x)[i] == n * ((uint32_t)(i * 2654435761u) + k) + n * (n - 1) / 2);
             ++i) {
        }
    }
    cdp_describe(m->g, m->described, sizeof m->described);
    T_EQ(seen ? (n - 1) : 0, count_of(" KiB of its group memory mapped here", m->described));
    T_EQ(seen ? 2 * (n - 1) : 0, views_of(m));
    T_EQ(m->desc.group.expose_bytes != UINT64_MAX && m->desc.group.os->shared.create,
        in_segment(m, x));
    meet(n); /* what is freed is let go by the peers, which do nothing but wait */
    cdp_group_free(m->g, y);
    cdp_group_free(m->g, x);
    T(!in_segment(m, x));
    meet(n);
    for (uint32_t i = 0;
         i < 5000 && __atomic_load_n(&m->status, __ATOMIC_RELAXED) == CDP_OK && views_of(m); ++i) {
        if (m->desc.group.no_thread) cdp_poll(m->g, 0);
        test_sleep_ms(1);
    }
    T_EQ(0, views_of(m));
    if (m->status == CDP_OK) m->status = cdp_barrier(m->g);
}

TEST(group_memory_is_in_view) {
    cdp_os os = *cdp_os_default();
    cdp_tcp_desc like = {.group.os = &os};
    os.shared.map = map_or_not;
    os.shared.read_process = counting_read;
    reads = 0;
    job(2, &like, NULL, group_memory);
    like.group.no_thread = true;
    job(4, &like, NULL, group_memory);
    T_EQ(0, reads);
    blind = true; /* it goes on by other ways */
    job(3, &like, NULL, group_memory);
    T(reads > 0 || !reading_works());
    os.shared.read_process = NULL;
    job(3, &like, NULL, group_memory);
    blind = false;
    like.group.expose_bytes = UINT64_MAX;
    job(2, &like, NULL, group_memory);
    like.group.expose_bytes = 0;
    os = *cdp_os_default();
    os.shared.create = NULL;
    job(2, &like, NULL, group_memory);
    T_EQ(0, mappings());
}

/* ---- what is freed goes back ---- */

#define IN_VIEW (64u << 20) /* unmapping takes a thousand steps */

/* The progress thread of rank 1 unmaps the first part of what rank 0 has freed, and goes on when
   rank 1 calls something. */
static uint32_t parts;
static void unmap_with_a_caller(void *user, void *at, uint64_t bytes) {
    const uint64_t until = test_until_ns(5000);
    if (bytes == CDP__STEP_BYTES && __atomic_add_fetch(&parts, 1, __ATOMIC_SEQ_CST) == 1)
        while (!__atomic_load_n(&members[1].g->w->lock_waiters, __ATOMIC_SEQ_CST)
            && T(test_now_ns() < until))
            sched_yield();
    cdp_os_default()->shared.unmap(user, at, bytes);
}

static int freed_file = -1;
static int32_t create_and_keep(void *user, uint64_t bytes) {
    const int32_t fd = cdp_os_default()->shared.create(user, bytes);
    if (bytes == IN_VIEW && fd >= 0) freed_file = dup(fd);
    return fd;
}

/* Rank 0 frees what rank 1 has in view. (Until the link is there, bytes are sent.) */
static void frees_what_is_in_view(member *m, void (*then)(member *m)) {
    static bool in_view;
    uint8_t *x = (uint8_t *)(m->desc.group.rank ? malloc(IN_VIEW) : memory_of_group(m->g, IN_VIEW));
    memset(x, m->desc.group.rank ? 0 : 7, IN_VIEW);
    if (m->desc.group.rank) in_view = false;
    meet(2);
    for (uint32_t k = 0; !in_view && m->status == CDP_OK && T(k < 1000); ++k) {
        m->status = cdp_broadcast(m->g, x, IN_VIEW, CDP_DTYPE_U8, 0);
        T(m->status != CDP_OK || x[IN_VIEW - 1] == 7);
        meet(2);
        if (m->desc.group.rank) in_view = views_of(m) > 0;
        meet(2);
    }
    if (m->desc.group.rank) {
        then(m);
        free(x);
    } else {
        cdp_group_free(m->g, x);
        meet(2);
    }
    meet(2);
}

static void calls_meanwhile(member *m) {
    const uint64_t until = test_until_ns(10000);
    while (!__atomic_load_n(&parts, __ATOMIC_SEQ_CST) && T(test_now_ns() < until))
        sched_yield();
    T_EQ(CDP_OK, cdp_group_status(m->g));
    T(__atomic_load_n(&parts, __ATOMIC_SEQ_CST) < IN_VIEW / CDP__STEP_BYTES);
    meet(2);
}

static void unmaps_with_calls(member *m) {
    frees_what_is_in_view(m, calls_meanwhile);
}

/* A thread that unmaps memory does not sleep between its steps, and lets others have the lock. */
TEST(unmapping_keeps_no_caller_waiting) {
    cdp_os os = *cdp_os_default();
    cdp_tcp_desc like = {.group.os = &os};
    if (!os.shared.unmap_parts) {
        test_skip("memory is unmapped in one step");
        return;
    }
    os.shared.unmap = unmap_with_a_caller;
    parts = 0;
    job(2, &like, NULL, unmaps_with_calls);
    T(parts > 0);
}

static void still_in_view(member *m) {
    struct stat s;
    meet(2); /* rank 0 has freed it; this rank has called nothing since */
    T_EQ(1, views_of(m));
    T(freed_file >= 0 && fstat(freed_file, &s) == 0 && s.st_size == IN_VIEW && s.st_blocks == 0);
    close(freed_file);
    freed_file = -1;
}

/* An emulator of another processor may not pass the request on. */
static bool system_gives_back(void) {
    const cdp_os *os = cdp_os_default();
    const int32_t fd = os->shared.create(os->user, 1 << 20);
    uint64_t bytes = 0;
    void *at = fd >= 0 ? os->shared.map(os->user, fd, true, &bytes) : NULL;
    struct stat s;
    bool gives = false;
    if (at) {
        memset(at, 1, (size_t)bytes);
        gives = madvise(at, (size_t)bytes, MADV_REMOVE) == 0 && fstat(fd, &s) == 0 && !s.st_blocks;
        os->shared.unmap(os->user, at, bytes);
    }
    if (fd >= 0) close(fd);
    return gives;
}

static void frees_at_once(member *m) {
    frees_what_is_in_view(m, still_in_view);
}

/* What is freed goes back to the system then, not when the last peer unmaps it: peers may not call
   anything for long, and the last of them would give back all of it in one call. */
TEST(freed_memory_goes_back_at_once) {
    cdp_os os = *cdp_os_default();
    cdp_tcp_desc like = {.group.os = &os, .group.no_thread = true};
    if (!os.shared.empty || !system_gives_back()) {
        test_skip("the system cannot give back memory that is mapped");
        return;
    }
    os.shared.create = create_and_keep;
    job(2, &like, NULL, frees_at_once);
    T_EQ(-1, freed_file);
}

static bool no_more;
static int32_t create_no_more(void *user, uint64_t bytes) {
    return no_more ? -ENOMEM : cdp_os_default()->shared.create(user, bytes);
}

static void small_and_many(member *m) {
    enum {
        N = 3000
    };
    static void *all[2][N];
    void **p = all[m->desc.group.rank];
    const uint32_t before = mappings();
    meet(2);
    for (uint32_t i = 0; i < N; ++i)
        memset(p[i] = memory_of_group(m->g, i % 1000), 1, i % 1000);
    meet(2);
    T(mappings() - before <= 2 * 2); /* 1.5 MB each */
    meet(2);
    for (uint32_t i = 0; i < N; ++i)
        cdp_group_free(m->g, p[(i * 7) % N]);
    meet(2);
    T_EQ(before, mappings());
    meet(2);
    /* what is beyond is other memory */
    for (uint32_t i = 0; i < CDP_SEGMENTS + 3; ++i)
        T((p[i] = memory_of_group(m->g, CDP__SEGMENT_BYTES))
            && in_segment(m, p[i]) == (i < CDP_SEGMENTS));
    for (uint32_t i = 0; i < CDP_SEGMENTS + 3; ++i)
        cdp_group_free(m->g, p[i]);
    meet(2);
    no_more = true;
    meet(2);
    T(m->status == CDP_OK && (p[0] = memory_of_group(m->g, 100000)) && !in_segment(m, p[0]));
    cdp_group_free(m->g, p[0]);
    T(!memory_of_group(m->g, UINT64_MAX - 3) && cdp_last_error()->status == CDP_ERR_NOMEM);
}

TEST(small_group_memory_shares_segments) {
    cdp_os os = *cdp_os_default();
    cdp_tcp_desc like = {.group.os = &os};
    os.shared.create = create_no_more;
    job(2, &like, NULL, small_and_many);
    no_more = false;
}

/* Each rank's loan in one group is to be read after the other's in another group. */
static void crosswise(member *m) {
    const uint32_t all[2] = {0, 1}, me = m->desc.group.rank;
    cdp_group *g[2];
    for (uint32_t i = 0; i < 2; ++i)
        T_EQ(CDP_OK, cdp_group_new(m->g, all, 2, &g[i]));
    for (uint32_t bytes = 64 << 10; bytes <= 1 << 20; bytes *= 4) {
        uint8_t *x = (uint8_t *)memory_of_group(m->g, bytes),
                *y = (uint8_t *)memory_of_group(m->g, bytes);
        memset(x, (int)me + 1, bytes);
        if (m->status == CDP_OK) m->status = cdp_broadcast(g[me], x, bytes, CDP_DTYPE_U8, me);
        if (m->status == CDP_OK)
            m->status = cdp_broadcast(g[1 - me], y, bytes, CDP_DTYPE_U8, 1 - me);
        for (uint32_t i = 0; i < bytes && T(y[i] == 2 - me); ++i) {
        }
        if (m->status == CDP_OK) m->status = cdp_barrier(m->g);
        cdp_group_free(m->g, x);
        cdp_group_free(m->g, y);
    }
    for (uint32_t i = 0; i < 2; ++i)
        cdp_group_destroy(g[i]);
}

TEST(loans_that_nobody_reads_are_sent) {
    cdp_tcp_desc like = {.group.timeout_ms = 10000 * TEST_SLACK};
    job(2, &like, NULL, crosswise);
    like.group.no_thread = true;
    job(2, &like, NULL, crosswise);
}

/* ---- faults: ranks are processes ---- */

#define VIEWED (1u << 19) /* floats: 2 MiB */
static int victim_signal;

static int process_main(uint32_t rank, uint32_t n, uint16_t at) {
    cdp_tcp_desc d = {.group.rank = rank,
        .group.world_size = n,
        .master_port = at,
        .group.timeout_ms = 1000 * TEST_SLACK,
        .init_timeout_ms = 20000 * TEST_SLACK,
        .group.logger = {.level = CDP_LOG_SILENT}};
    cdp_group *g;
    cdp_status st = cdp_init(&d, &g);
    float *x = st == CDP_OK ? (float *)memory_of_group(g, VIEWED * 4) : NULL,
          *y = st == CDP_OK ? (float *)memory_of_group(g, VIEWED * 4) : NULL;
    if (!x || !y) return 3;
    for (uint32_t k = 0; st == CDP_OK; ++k) {
        for (uint32_t i = 0; i < VIEWED; ++i)
            x[i] = (float)(rank + k % 100);
        st = cdp_allreduce(g, x, y, VIEWED, CDP_DTYPE_F32, CDP_REDUCE_SUM);
        for (uint32_t i = 0; i < VIEWED && st == CDP_OK; ++i)
            if (y[i] != (float)(n * (k % 100) + n * (n - 1) / 2)) return 4;
        if (k == 3) (void)!write(9, "", 1);
    }
    if (cdp_last_error()->peer != 1
        || st != (victim_signal == SIGKILL ? CDP_ERR_PEER_LOST : CDP_ERR_TIMEOUT))
        return fprintf(stderr, "  rank %u: %s\n", rank, cdp_last_error()->text) ? 5 : 0;
    cdp_group_destroy(g);
    return 0;
}

static void fault(uint32_t n, int sig, uint32_t after_us) {
    const uint16_t at = free_port();
    pid_t pids[RANKS_MAX] = {0};
    int ready[2], status;
    char byte;
    if (!T(pipe(ready) == 0)) return;
    victim_signal = sig;
    fflush(stdout);
    for (uint32_t r = 0; r < n; ++r)
        if (!(pids[r] = fork())) {
            alarm(60 * TEST_SLACK);
            dup2(ready[1], 9);
            _exit(process_main(r, n, at));
        }
    close(ready[1]);
    /* everybody sees everybody's */
    for (uint32_t r = 0; r < n; ++r)
        T(read(ready[0], &byte, 1) == 1);
    usleep(after_us);
    kill(pids[1], sig);
    for (uint32_t r = 0; r < n; ++r) {
        if (r == 1) continue;
        waitpid(pids[r], &status, 0);
        test_check(status == 0, __FILE__, __LINE__,
            "rank %u of %u, signal %d after %u us: status %x", r, n, sig, after_us,
            (unsigned)status);
    }
    kill(pids[1], SIGKILL);
    waitpid(pids[1], &status, 0);
    close(ready[0]);
}

TEST(a_rank_whose_memory_is_in_view_dies_or_stops) {
    uint64_t state = 5;
    for (uint32_t i = 0; i < (TEST_SLOW ? 4 : 20) && !test__now.failed_checks; ++i)
        fault(2 + i % 3, SIGKILL, (uint32_t)(test_random(&state) % 20000));
    fault(3, SIGSTOP, 1000);
}

/* A place whose segment is replaced while the peer looks through all of them; and a place that
   is none. */
static cdp__side *replaces;

static int32_t pass_and_replace(void *user, int32_t fd, int32_t *fds, uint32_t n, bool sending) {
    if (!sending && replaces) replaces->segments[5] = 2;
    return cdp_os_default()->shared.pass(user, fd, fds, n, sending);
}

TEST(a_segment_takes_the_place_of_another) {
    cdp_os os = *cdp_os_default();
    int pair[2], memory[2];
    uint64_t bytes;
    cdp__shared *s = cdp__shared_open(&os, os.shared.create(NULL, cdp__shared_size(1024)), true);
    if (!T(s != NULL) || !T(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0)) return;
    s->pass = pair[0];
    for (uint32_t i = 0; i < 2; ++i) {
        memory[i] = os.shared.create(NULL, 4096);
        uint8_t *at = (uint8_t *)os.shared.map(NULL, memory[i], true, &bytes);
        memset(at, (int)i + 1, 4096);
        os.shared.unmap(NULL, at, bytes);
        T(os.shared.pass(NULL, pair[1], &memory[i], 1, true) >= 0);
        close(memory[i]);
        os.shared.pass = pass_and_replace;
        s->theirs->segments[5] = 1; /* as the peer does; the second time it is about to change it */
        replaces = i ? s->theirs : NULL;
        /* 6: there is none, so it looks for news */
        const uint8_t *v = cdp__shared_map(s, i ? 6 : 5, 0, i ? 1 : 4096);
        T(i ? !v : v && v[4095] == 1);
    }
    replaces = NULL;
    const uint8_t *v = cdp__shared_map(s, 5, 0, 4096);
    T(v && v[0] == 2);
    T(!cdp__shared_map(s, 5, 1, 4096) && !cdp__shared_map(s, 5, UINT64_MAX, 4096)
        && !cdp__shared_map(s, 5, 0, UINT64_MAX));
    T(!cdp__shared_map(s, UINT32_MAX, 0, 1) && !cdp__shared_map(s, CDP_SEGMENTS, 0, 1));
    cdp__shared_close(s);
    close(pair[1]);
}

/* ---- nonsense ---- */

static uint32_t nonsense;

/* Without regard for whoever reads it at the same time, as whoever overwrites what is not its
   own. */
__attribute__((no_sanitize_thread)) static void nonsense_into(
    const cdp__link *l, cdp__shared *s, uint32_t number) {
    uint64_t state = nonsense;
    cdp__eager_slot *next =
        &s->line.out->eager.slots.place[cdp__eager_place(CDP__WORLD_CHANNEL, number)];
    switch (nonsense % 9) {
    case 0: s->line.out->ring.head += s->line.size + 1; break;
    case 1: s->line.out->ring.head -= 1; break;
    case 2: s->line.in->ring.tail += 1; break;
    case 3: s->line.in->ring.tail -= s->line.size + 1; break;
    case 4: s->line.out->ring.head = test_random(&state); break;
    case 5: s->line.in->ring.tail = test_random(&state); break;
    case 6: T(send(l->io.fd, "x", 1, MSG_NOSIGNAL) == 1); break;
    case 7: /* the next frame, longer than its place */
        next->number = number;
        next->channel = CDP__WORLD_CHANNEL;
        next->bytes = 65535;
        __atomic_add_fetch(&next->serial, 1, __ATOMIC_RELEASE);
        break;
    default: /* everything that is shared, and what a process writes afterwards */
        for (uint64_t i = 0; i < s->bytes; ++i)
            ((uint8_t *)s->pair)[i] = (uint8_t)test_random(&state);
        break;
    }
}

static void write_nonsense(member *m) {
    static float x[3][300000];
    m->status = cdp_barrier(m->g);
    meet(3);
    if (m->desc.group.rank == 2) { /* to rank 0 */
        cdp__link *l = link_of(m, 0);
        cdp__shared *s = l->shared;
        if (T(s != NULL)) nonsense_into(l, s, m->g->streams[0].put);
    }
    meet(3);
    if (m->desc.group.rank == 2) {
        test_sleep_ms(100);
        return; /* what it says itself does not count */
    }
    for (uint32_t i = 0; i < 50 && m->status == CDP_OK; ++i)
        m->status =
            cdp_allreduce(m->g, NULL, x[m->desc.group.rank], 300000, CDP_DTYPE_F32, CDP_REDUCE_SUM);
    if (m->status == CDP_OK) return;
    m->error = *cdp_last_error();
    test_check(m->error.peer == 2
            && (m->error.status == CDP_ERR_MISMATCH || m->error.status == CDP_ERR_PEER_LOST),
        __FILE__, __LINE__, "nonsense %u: rank %u: %s: %s", nonsense, m->desc.group.rank,
        cdp_status_name(m->error.status), m->error.text);
    m->status = CDP_OK;
    ++m->desc.group.records;
}

TEST(nonsense_of_a_peer_is_named) {
    cdp_tcp_desc like = {.group.timeout_ms = 3000, .group.logger = {.level = CDP_LOG_SILENT}};
    for (nonsense = 0; nonsense < 27 && !test__now.failed_checks; ++nonsense) {
        job(3, &like, NULL, write_nonsense);
        test_check(members[0].desc.group.records && members[1].desc.group.records, __FILE__,
            __LINE__, "nonsense %u was not noticed", nonsense);
    }
}

/* ---- sleeping ---- */

static void tiny_steps(member *m) {
    static uint8_t bytes[RANKS_MAX][5000];
    for (uint32_t i = 0; i < (TEST_SLOW ? 50 : 400) && m->status == CDP_OK; ++i) {
        m->status = cdp_allreduce(
            m->g, NULL, bytes[m->desc.group.rank], i % 7 ? 3 : 5000, CDP_DTYPE_U8, CDP_REDUCE_MAX);
        if (i % 50 == m->desc.group.rank) test_sleep_ms(1); /* now and then all others sleep */
    }
}

TEST(who_sleeps_is_woken) {
    for (uint32_t n = 2; n <= 8; n *= 2) {
        cdp_tcp_desc like = {
            .group.no_spin = true, .group.no_thread = n == 4, .ring_bytes = n == 8 ? 256 : 0};
        job(n, &like, NULL, tiny_steps);
    }
}

/* Nobody has a progress thread. One thread sleeps in a wait of its own when another one starts
   what does not fit into the ring. */
static uint64_t start_took_ns;

static void *waits_for_a_word(void *arg) {
    uint8_t x = 0;
    T_EQ(CDP_OK, cdp_recv((cdp_group *)arg, &x, 1, CDP_DTYPE_U8, 1, 2));
    return NULL;
}

static void start_beside(member *m) {
    static uint8_t x[2][3000000];
    cdp_work work;
    uint8_t y = 0;
    m->status = cdp_barrier(m->g);
    if (m->desc.group.rank == 0) {
        pthread_t t;
        uint64_t from;
        pthread_create(&t, NULL, waits_for_a_word, m->g);
        test_sleep_ms(50);
        from = test_now_ns();
        m->status = cdp_send_async(m->g, x[0], sizeof x[0], CDP_DTYPE_U8, 1, 1, &work);
        pthread_join(t, NULL);
        start_took_ns = test_now_ns() - from;
        m->status = cdp_work_wait(work);
    } else {
        test_sleep_ms(100);
        m->status = cdp_recv(m->g, x[1], sizeof x[1], CDP_DTYPE_U8, 0, 1);
        if (m->status == CDP_OK) m->status = cdp_send(m->g, &y, 1, CDP_DTYPE_U8, 0, 2);
    }
    if (m->status == CDP_OK) m->status = cdp_barrier(m->g);
}

TEST(who_sleeps_hears_of_a_start) {
    start_took_ns = UINT64_MAX;
    /* a machine that stands still for a while looks like it */
    for (uint32_t i = 0; i < 5 && start_took_ns > 500000000u; ++i) {
        cdp_tcp_desc like = {.group.no_thread = true};
        job(2, &like, NULL, start_beside);
    }
    T(start_took_ns <= 500000000u);
}

/* ---- nothing stays behind ---- */

static uint32_t mappings(void) {
    char line[400];
    uint32_t n = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && fgets(line, sizeof line, f))
        n += strstr(line, "memfd:cdp") != NULL;
    if (f) fclose(f);
    return n;
}

static void leave_at_once(member *m) { /* while links are being made */
    const uint32_t to = (m->desc.group.rank + 1) % m->desc.group.world_size;
    static const uint32_t x = 0; /* it is read until the group is destroyed */
    cdp_work w;
    m->status = cdp_send_async(m->g, &x, 1, CDP_DTYPE_U32, to, 1, &w);
    if (m->desc.group.rank == 1) cdp_group_abort(m->g, "enough");
    m->status = CDP_OK;
}

TEST(no_mapping_or_descriptor_is_left) {
    for (uint32_t i = 0; i < 30; ++i) {
        cdp_tcp_desc like = {.group.no_thread = i % 2,
            .group.timeout_ms = 2000,
            .group.logger = {.level = CDP_LOG_SILENT}};
        /* descriptors are counted by the harness */
        job(1 + i % 4, &like, NULL, i % 3 ? leave_at_once : describe_all);
        T_EQ(0, mappings());
    }
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"two_processes_hammer_rings", two_processes_hammer_rings, 60},
        {"links_say_what_they_are", links_say_what_they_are, 20},
        {"without_memory_it_goes_over_tcp", without_memory_it_goes_over_tcp, 30},
        {"memory_that_cannot_be_shared_with_a_rank_that_has_left_is_no_news",
            memory_that_cannot_be_shared_with_a_rank_that_has_left_is_no_news, 30},
        {"limits_of_the_system_are_no_crash", limits_of_the_system_are_no_crash, 60},
        {"only_sealed_memory_is_mapped", only_sealed_memory_is_mapped, 10},
        {"memory_beyond_the_address_space_is_not_mapped",
            memory_beyond_the_address_space_is_not_mapped, 20},
        {"strangers_are_not_taken", strangers_are_not_taken, 20},
        {"large_messages_are_read_where_they_lie", large_messages_are_read_where_they_lie, 60},
        {"ranks_know_who_is_on_one_host", ranks_know_who_is_on_one_host, 20},
        {"what_cannot_be_read_is_sent", what_cannot_be_read_is_sent, 30},
        {"what_is_brought_is_read_earlier", what_is_brought_is_read_earlier, 30},
        {"group_memory_is_in_view", group_memory_is_in_view, 60},
        {"unmapping_keeps_no_caller_waiting", unmapping_keeps_no_caller_waiting, 60},
        {"freed_memory_goes_back_at_once", freed_memory_goes_back_at_once, 60},
        {"small_group_memory_shares_segments", small_group_memory_shares_segments, 20},
        {"a_segment_takes_the_place_of_another", a_segment_takes_the_place_of_another, 20},
        {"loans_that_nobody_reads_are_sent", loans_that_nobody_reads_are_sent, 30},
        {"a_rank_whose_memory_is_in_view_dies_or_stops",
            a_rank_whose_memory_is_in_view_dies_or_stops, 120},
        {"a_full_table_of_descriptors_is_waited_for", a_full_table_of_descriptors_is_waited_for,
            20},
        {"sizes_of_rings_are_checked", sizes_of_rings_are_checked, 10},
        {"loans_are_for_one_and_end", loans_are_for_one_and_end, 10},
        {"nonsense_of_a_peer_is_named", nonsense_of_a_peer_is_named, 60},
        {"who_sleeps_is_woken", who_sleeps_is_woken, 30},
        {"who_sleeps_hears_of_a_start", who_sleeps_hears_of_a_start, 20},
        {"no_mapping_or_descriptor_is_left", no_mapping_or_descriptor_is_left, 60},
    };
    if (!cdp_os_default()->shared.create) {
        puts("SKIP: no shared memory on this system\n0 passed, 0 failed");
        return 0;
    }
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
