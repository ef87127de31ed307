/* test_store_limits.c - what a store's server and client bear: many clients, slow readers,
   announced lengths, garbage, and memory that runs out at every allocation */
#define CDP_IMPLEMENTATION
#include "cdp_store.h"
#include "test.h"

#include "store_raw.h"
#include "ports.h"
#include <fcntl.h>
#include <sys/wait.h>

/* ---- limits ---------------------------------------------------------------------------------- */

static void *counted_alloc(void *user, uint64_t bytes);
static void counted_free(void *user, void *p);

/* Counts what is alive, and fails where a test wants it: at one allocation, or from one on. */
static uint64_t live_bytes(const uint64_t *bytes) {
    return __atomic_load_n(bytes, __ATOMIC_SEQ_CST);
}

typedef struct counter {
    uint64_t live, live_bytes, calls, fail_at;
    bool fail_on;
} counter;

static cdp_os counted_os(const cdp_os *base, counter *c) {
    cdp_os os = *base;
    os.user = c;
    os.alloc = counted_alloc;
    os.release = counted_free;
    return os;
}

static void *counted_alloc(void *user, uint64_t bytes) {
    counter *c = (counter *)user;
    const uint64_t call = __atomic_add_fetch(&c->calls, 1, __ATOMIC_SEQ_CST);
    uint8_t *p;
    if (c->fail_at && (call == c->fail_at || (c->fail_on && call > c->fail_at))) return NULL;
    p = (uint8_t *)cdp_os_default()->alloc(NULL, bytes + 64);
    memcpy(p, &bytes, sizeof bytes);
    memset(p + 64, 0xa5, (size_t)bytes); /* nobody may count on zeros */
    __atomic_add_fetch(&c->live, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&c->live_bytes, bytes, __ATOMIC_SEQ_CST);
    return p + 64;
}

static void counted_free(void *user, void *p) {
    counter *c = (counter *)user;
    uint64_t bytes;
    if (!p) return;
    memcpy(&bytes, (uint8_t *)p - 64, sizeof bytes);
    __atomic_sub_fetch(&c->live, 1, __ATOMIC_SEQ_CST);
    __atomic_sub_fetch(&c->live_bytes, bytes, __ATOMIC_SEQ_CST);
    cdp_os_default()->release(NULL, (uint8_t *)p - 64);
}

/* Announcing much costs the server nothing before it arrives. */
TEST(announced_lengths_cost_nothing) {
    counter count = {0, 0, 0, 0, false};
    const cdp_os os = counted_os(cdp_os_default(), &count);
    cdp_store_server_desc d = server_desc();
    cdp_store_server *s;
    int fds[50], i;
    uint64_t before;
    d.os = &os;
    d.no_thread = true;
    OK(cdp_store_server_create(&d, &s));
    for (i = 0; i < 50; ++i) {
        fds[i] = raw_greeted(cdp_store_server_port(s));
        poll_server(s, 1);
    }
    poll_server(s, 2);
    before = live_bytes(&count.live_bytes);
    for (i = 0; i < 50; ++i)
        raw_send(fds[i], "01 02 00 00 00 00 00 00 00 2f 6b 00 00 80 00 00 00 00 00 01 02 03");
    poll_server(s, 5);
    T(live_bytes(&count.live_bytes) - before <= 50 * 256);
    for (i = 0; i < 50; ++i)
        close(fds[i]);
    poll_server(s, 5);
    cdp_store_server_destroy(s);
    T_EQ(0, count.live);
}

/* Idle connections, most of which wait for a key. */
TEST(many_clients) {
    enum {
        N = 400
    };
    counter count = {0, 0, 0, 0, false};
    const cdp_os os = counted_os(cdp_os_default(), &count);
    cdp_store_server_desc d = server_desc();
    cdp_store_server *s;
    cdp_store *c;
    int fds[N], i;
    uint64_t before;
    d.os = &os;
    OK(cdp_store_server_create(&d, &s));
    c = client_open(cdp_store_server_port(s));
    before = live_bytes(&count.live_bytes);
    for (i = 0; i < N; ++i) {
        fds[i] = raw_greeted(cdp_store_server_port(s));
        raw_send(fds[i], "0d 01 00 00 00");
        if (i % 4) raw_send(fds[i], "06 01 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 '/go'");
    }
    for (i = 0; i < N; ++i)
        T(raw_expect(fds[i], "01 00 00 00"));
    for (i = 0; i < 200 && live_bytes(&count.live_bytes) == before; ++i)
        test_sleep_ms(1);
    /* of 2048 allowed; the poll set has its share */
    T((live_bytes(&count.live_bytes) - before) / N <= 1024);
    T(!raw_readable(fds[1], 30));
    OK(cdp_store_set(c, "go", "", 0));
    for (i = 0; i < N; ++i)
        if (i % 4) T(raw_expect(fds[i], "00"));
    for (i = 0; i < N; ++i)
        close(fds[i]);
    cdp_store_destroy(c);
    cdp_store_server_destroy(s);
    T_EQ(0, count.live);
}

TEST(limits_of_the_server) {
    cdp_store_server_desc d = server_desc();
    cdp_store_server *s;
    cdp_store *c, *other;
    static uint8_t big[1000];
    uint32_t i, n = 0;
    int a, b, e;
    d.max_clients = 3;
    d.max_total_bytes = 400000;
    d.max_value_bytes = 1000;
    d.handshake_timeout_ms = 1000; /* longer than a machine stands still */
    OK(cdp_store_server_create(&d, &s));
    c = client_open(cdp_store_server_port(s));
    a = raw_greeted(cdp_store_server_port(s));
    b = raw_open(cdp_store_server_port(s)); /* says nothing */
    test_sleep_ms(30);
    /* one too many: who has been silent for longest makes room */
    e = raw_open(cdp_store_server_port(s));
    T(raw_ends(b));
    T(!raw_readable(e, 50));
    T(raw_ends(e)); /* after the handshake's time */
    close(b);
    close(e);
    b = raw_greeted(cdp_store_server_port(s));
    raw_send(b, "0d 01 00 00 00");
    T(raw_expect(b, "01 00 00 00"));
    e = raw_open(cdp_store_server_port(s)); /* nobody is silent */
    T(raw_ends(e));
    close(b);
    close(e);
    test_sleep_ms(50);
    T(!raw_readable(a, 0)); /* who has greeted may stay silent */
    other = client_open(cdp_store_server_port(s));
    for (i = 0; i < 1000 && cdp_store_append(other, "log", big, 300) == CDP_OK; ++i)
        OK(cdp_store_add(c, "n", 1, NULL));
    T(i >= 3 && i < 50); /* the bytes are gone at once, the bad news comes a little later */
    cdp_store_destroy(other);
    other = client_open(cdp_store_server_port(s));
    for (i = 0; i < 1000; ++i) { /* until the map is full */
        char key[16];
        cdp__format(key, sizeof key, "k%u", i);
        if (cdp_store_set(other, key, big, 900) != CDP_OK) break;
        n += cdp_store_add(c, "n", 1, NULL) == CDP_OK;
    }
    T(i > 200 && i < 450 && n == i); /* the other client can still count */
    cdp_store_destroy(other);
    OK(cdp_store_delete(c, "k1", NULL));
    OK(cdp_store_set(c, "k1", big, 900));
    close(a);
    cdp_store_destroy(c);
    cdp_store_server_destroy(s);
}

/* A reader that does not read: what it asked for piles up to a limit, the others do not notice;
   then it gets everything, or its connection ends. */
static void slow_reader(uint64_t max_reply) {
    enum {
        SIZE = 100000,
        TIMES = 300
    };
    static const char get[] = "03 02 00 00 00 00 00 00 00 '/v'";
    cdp_store_server_desc d = server_desc();
    cdp_store_server *s;
    cdp_store *c;
    uint8_t *value = (uint8_t *)calloc(1, SIZE), *got = (uint8_t *)malloc(SIZE + 8), req[16];
    const uint32_t n = hex(get, req);
    uint32_t i;
    int fd;
    d.max_reply_bytes = max_reply;
    OK(cdp_store_server_create(&d, &s));
    c = client_open(cdp_store_server_port(s));
    value[SIZE - 1] = 7;
    OK(cdp_store_set(c, "v", value, SIZE));
    fd = raw_greeted(cdp_store_server_port(s));
    for (i = 0; i < TIMES; ++i)
        raw_write(fd, req, n);
    test_sleep_ms(50);
    OK(cdp_store_add(c, "n", 1, NULL));
    for (i = 0; i < TIMES; ++i) {
        if (!T(raw_read(fd, got, SIZE + 8))) break;
        T(cdp__get_u64(got) == SIZE && memcmp(got + 8, value, SIZE) == 0);
    }
    close(fd);
    /* One request, an answer of 30 MB: now the limit counts. */
    fd = raw_greeted(cdp_store_server_port(s));
    raw_send(fd, "0a 2c 01 00 00 00 00 00 00");
    for (i = 0; i < TIMES; ++i)
        raw_write(fd, req + 1, n - 1);
    raw_full(fd);
    for (i = 0; i < TIMES && raw_read(fd, got, SIZE + 8); ++i) {
    }
    T(max_reply ? i < TIMES : i == TIMES);
    OK(cdp_store_add(c, "n", 1, NULL));
    close(fd);
    cdp_store_destroy(c);
    cdp_store_server_destroy(s);
    free(value);
    free(got);
}

TEST(slow_readers) {
    slow_reader(0);
    slow_reader(1000000);
}

/* Random bytes, well-formed beginnings with random ends, connections that come and go: the
   others are served. */
TEST(garbage) {
    cdp_store_server *s = server_open();
    cdp_store *c = client_open(cdp_store_server_port(s));
    uint64_t seed = 1;
    uint32_t i, k;
    for (i = 0; i < 400; ++i) {
        uint8_t b[300];
        const int fd =
            i % 4 ? raw_greeted(cdp_store_server_port(s)) : raw_open(cdp_store_server_port(s));
        const uint32_t n = (uint32_t)(test_random(&seed) % sizeof b);
        for (k = 0; k < n; ++k)
            b[k] = (uint8_t)(test_random(&seed) % (i % 3 ? 20 : 256) % (k % 9 ? 3 + i % 250 : 256));
        raw_write(fd, b, n);
        if (i % 2) {
            struct linger now;
            now.l_onoff = 1;
            now.l_linger = 0;
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now); /* a reset instead of an end */
        }
        close(fd);
        if (i % 20 == 0) OK(cdp_store_add(c, "n", 1, NULL));
    }
    cdp_store_destroy(c);
    cdp_store_server_destroy(s);
}

/* ---- out of memory --------------------------------------------------------------------------- */

/* Server, client, prefix and hash store in one thread on one os. Any allocation may fail; every
   call ends in time. */
static void everything(const cdp_os *os) {
    static const char *const keys[] = {"a", "b", "c"};
    static uint8_t big[70000];
    const cdp_bytes set[] = {{"1", 1}, {"22", 2}, {big, sizeof big}};
    cdp__loop loop;
    cdp_store_server_desc sd = server_desc();
    cdp_hash_store_desc hd;
    cdp_tcp_store_desc cd;
    cdp_store_server *server = NULL;
    cdp_store *stores[4] = {NULL, NULL, NULL, NULL};
    uint32_t i;
    memset(&hd, 0, sizeof hd);
    hd.os = os;
    hd.timeout_ms = 50;
    if (cdp__loop_open(&loop, os) != CDP_OK) return;
    sd.os = os;
    sd.loop = &loop;
    if (cdp_store_server_create(&sd, &server) == CDP_OK) {
        cd = client_desc(cdp_store_server_port(server));
        cd.os = os;
        cd.loop = &loop;
        cd.timeout_ms = 50;
        cd.will_key = "will";
        cd.will_value = bytes_of("v");
        if (cdp_tcp_store_create(&cd, &stores[0]) != CDP_OK)
            T(cdp_last_error()->status < 0 && !stores[0]);
        if (stores[0] && cdp_prefix_store_create(stores[0], "p", &stores[1]) != CDP_OK)
            T(!stores[1]);
        if (stores[1] && cdp_tcp_store_create(&cd, &stores[2]) != CDP_OK) T(!stores[2]);
    }
    if (cdp_hash_store_create(&hd, &stores[3]) != CDP_OK) T(!stores[3]);
    for (i = 0; i < 4; ++i) {
        cdp_store *s = stores[i];
        void *value;
        cdp_bytes values[3];
        int64_t n;
        bool flag;
        if (!s) continue;
        (void)!cdp_store_set(s, "k", "v", 1);
        if (cdp_store_get(s, "k", &value, NULL, 0) == CDP_OK)
            T(strcmp((const char *)value, "v") == 0);
        cdp_store_free(s, value);
        (void)!cdp_store_add(s, "n", 1, &n);
        (void)!cdp_store_append(s, "k", "w", 1);
        if (cdp_store_compare_set(s, "cas", "", 0, "x", 1, &value, NULL) == CDP_OK)
            T(strcmp((const char *)value, "x") == 0);
        cdp_store_free(s, value);
        (void)!cdp_store_multi_set(s, keys, set, 3);
        if (cdp_store_multi_get(s, keys, 3, values, &value, 0) == CDP_OK)
            T(values[2].bytes == sizeof big);
        cdp_store_free(s, value);
        (void)!cdp_store_wait(s, keys, 3, 5);
        (void)!cdp_store_get(s, "missing", &value, NULL, 5);
        (void)!cdp_store_check(s, keys, 3, &flag);
        (void)!cdp_store_delete(s, "k", &flag);
        (void)!cdp_store_num_keys(s, &n);
    }
    if (stores[2]) client_die(stores[2]);
    if (server) (void)cdp_store_server_poll(server, 0);
    cdp_store_destroy(stores[3]);
    cdp_store_destroy(stores[2]);
    cdp_store_destroy(stores[1]);
    cdp_store_destroy(stores[0]);
    cdp_store_server_destroy(server);
    cdp__loop_close(&loop);
}

static void fail_everywhere(bool on, uint64_t step_size) {
    counter c = {0, 0, 0, 0, false};
    const cdp_os os = counted_os(cdp_os_default(), &c);
    uint64_t total, i;
    everything(&os);
    total = c.calls;
    T(total > 50 && total < 1000);
    T_EQ(0, c.live);
    for (i = 1; i <= total; i += step_size) {
        uint64_t start = now_ms();
        memset(&c, 0, sizeof c);
        c.fail_at = i;
        c.fail_on = on;
        everything(&os);
        if (!T(c.live == 0))
            printf("     allocation %llu: %llu are left\n", (unsigned long long)i,
                (unsigned long long)c.live);
        if (!T(now_ms() - start <= 1500 * TEST_LATE))
            printf("     allocation %llu: %llu ms\n", (unsigned long long)i,
                (unsigned long long)(now_ms() - start));
    }
}

TEST(one_allocation_fails) {
    fail_everywhere(false, 1);
}
TEST(all_allocations_fail) {
    fail_everywhere(true, 3);
}

static bool send_slowly;

/* Returns when the answer has arrived, as if this thread had been preempted. */
static int64_t slow_send(void *user, int32_t fd, const cdp_iov *v, uint32_t n) {
    const int64_t r = cdp_os_default()->net.send_iov(user, fd, v, n);
    if (send_slowly) test_sleep_ms(50);
    return r;
}

/* There is no memory for an answer that is there before the call begins to wait: it says so. */
TEST(no_memory_for_an_answer_that_comes_at_once) {
    counter c = {0, 0, 0, 0, false};
    cdp_os os = counted_os(cdp_os_default(), &c);
    cdp_store_server_desc sd = server_desc();
    cdp_store_server *s;
    cdp_tcp_store_desc cd;
    cdp_store *store;
    void *value = NULL;
    uint32_t failed = 0;
    os.net.send_iov = slow_send;
    if (!T_EQ(CDP_OK, cdp_store_server_create(&sd, &s))) return;
    cd = client_desc(cdp_store_server_port(s));
    cd.os = &os;
    if (!T_EQ(CDP_OK, cdp_tcp_store_create(&cd, &store))) return;
    T_EQ(CDP_OK, cdp_store_set(store, "k", "v", 1));
    send_slowly = true;
    for (uint32_t i = 1; i < 10; ++i) {
        (void)cdp_error_set(CDP_ERR_STATE, -1, 0, "the error of an earlier call");
        c.fail_at = c.calls + i;
        if (cdp_store_get(store, "k", &value, NULL, 0) == CDP_OK) break;
        T_EQ(CDP_ERR_NOMEM, cdp_last_error()->status);
        T_TEXT("out of memory", cdp_last_error()->text);
        ++failed;
    }
    send_slowly = false;
    T(failed >= 2 && value);
    cdp_store_free(store, value);
    cdp_store_destroy(store);
    cdp_store_server_destroy(s);
    T_EQ(0, c.live);
}

/* With threads the order of allocations is not the same each time, so this only shows that
   nothing crashes or leaks. */
TEST(allocations_fail_with_threads) {
    counter c = {0, 0, 0, 0, false};
    const cdp_os os = counted_os(cdp_os_default(), &c);
    uint64_t i;
    for (i = 1; i < 60; ++i) {
        cdp_store_server_desc sd = server_desc();
        cdp_store_server *s;
        memset(&c, 0, sizeof c);
        c.fail_at = i;
        sd.os = &os;
        if (cdp_store_server_create(&sd, &s) == CDP_OK) {
            cdp_tcp_store_desc cd = client_desc(cdp_store_server_port(s));
            cdp_store *store;
            void *value = NULL;
            cd.os = &os;
            cd.timeout_ms = 100;
            if (cdp_tcp_store_create(&cd, &store) == CDP_OK) {
                (void)!cdp_store_set(store, "k", "v", 1);
                (void)!cdp_store_get(store, "k", &value, NULL, 0);
                cdp_store_free(store, value);
                (void)!cdp_store_get(store, "missing", &value, NULL, 1);
                cdp_store_destroy(store);
            }
            cdp_store_server_destroy(s);
        }
        T_EQ(0, c.live);
    }
}

int main(int argc, char **argv) {
#define CASE(name, seconds) \
    { #name, name, seconds }
    static const test_case cases[] = {
        CASE(announced_lengths_cost_nothing, 10),
        CASE(many_clients, 30),
        CASE(limits_of_the_server, 20),
        CASE(slow_readers, 60),
        CASE(garbage, 30),
        CASE(one_allocation_fails, 120),
        CASE(no_memory_for_an_answer_that_comes_at_once, 60),
        CASE(all_allocations_fail, 120),
        CASE(allocations_fail_with_threads, 60),
    };
    return store_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
