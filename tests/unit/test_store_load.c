/* cdp_store.h under load and in wrong hands: what one client asks for must not keep the others, or
   the training rank whose loop serves them, from going on; strangers cost a bounded share. */
#define CDP_IMPLEMENTATION
#include "cdp_store.h"
#include "test.h"

#include "store_raw.h"

#include <sys/resource.h>

/* A server on a loop that somebody else runs, as that of a rank: the time of its longest turn. */
typedef struct turns {
    cdp_store_server *s;
    cdp__loop loop;
    uint64_t longest_ns, count;
    bool stop;
    void *thread;
} turns;

static void turns_main(void *arg) {
    turns *t = (turns *)arg;
    while (!__atomic_load_n(&t->stop, __ATOMIC_ACQUIRE)) {
        struct timespec before, after;
        uint64_t ns;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
        (void)cdp_store_server_poll(t->s, test_now_ns() + 5 * CDP__MS);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
        ns = (uint64_t)(after.tv_sec - before.tv_sec) * 1000000000u + (uint64_t)after.tv_nsec
            - (uint64_t)before.tv_nsec;
        if (ns > t->longest_ns) t->longest_ns = ns;
        ++t->count;
    }
}

static void turns_open(turns *t, cdp_store_server_desc d) {
    memset(t, 0, sizeof *t);
    OK(cdp__loop_open(&t->loop, cdp_os_default()));
    d.loop = &t->loop;
    d.no_thread = true;
    OK(cdp_store_server_create(&d, &t->s));
    t->thread = cdp_os_default()->threads.start(cdp_os_default(), turns_main, t);
}

static void turns_pause(turns *t) {
    __atomic_store_n(&t->stop, true, __ATOMIC_RELEASE);
    if (t->thread) cdp_os_default()->threads.join(cdp_os_default(), t->thread);
    t->thread = NULL;
    t->stop = false;
}

static void turns_go_on(turns *t) {
    t->thread = cdp_os_default()->threads.start(cdp_os_default(), turns_main, t);
}

static void turns_close(turns *t) {
    turns_pause(t);
    cdp_store_server_destroy(t->s);
    cdp__loop_close(&t->loop);
}

/* Milliseconds of processor time: the clock of the wall says what else this machine does. */
static bool short_turns(const turns *t, uint32_t ms) {
    return test_check(t->longest_ns <= ms * 1000000ull * TEST_LATE, __FILE__, __LINE__,
        "the longest of %llu turns took %.1f ms", (unsigned long long)t->count,
        (double)t->longest_ns / 1e6);
}

/* n requests that wait for "/k", of `each` times that key; the last of them is complete. */
static void wait_often(int fd, uint32_t n, uint32_t each) {
    const size_t bytes = 9 + 10 * (size_t)each;
    uint8_t *p = (uint8_t *)malloc(bytes);
    p[0] = CDP__OP_WAIT;
    cdp__put_u64(p + 1, each);
    for (uint32_t i = 0; i < each; ++i) {
        cdp__put_u64(p + 9 + 10 * (size_t)i, 2);
        memcpy(p + 17 + 10 * (size_t)i, "/k", 2);
    }
    while (n--)
        T(raw_write(fd, p, bytes));
    free(p);
}

/* Many waits for one key, while another client watches it. Every command on the key walked through
   all of them, and all were woken at once. */
TEST(waits_on_one_key) {
    enum {
        CONNS = 10,
        EACH = 20000
    };
    turns t;
    cdp_store *c;
    int fds[CONNS], old;
    const uint64_t start = now_ms();
    turns_open(&t, server_desc());
    c = client_open(cdp_store_server_port(t.s));
    old = raw_open(cdp_store_server_port(t.s));
    raw_send(old, "07 02 00 00 00 00 00 00 00 '/k'");
    T(raw_expect(old, "03"));
    for (int i = 0; i < CONNS; ++i) {
        fds[i] = raw_greeted(cdp_store_server_port(t.s));
        wait_often(fds[i], 1, EACH);
        raw_send(fds[i], "0d 01 00 00 00");
        T(raw_expect(fds[i], "01 00 00 00"));
    }
    OK(cdp_store_set(c, "k", "v", 1));
    for (int i = 0; i < CONNS; ++i)
        T(raw_expect(fds[i], "00"));
    /* and those whose connection ends instead */
    OK(cdp_store_delete(c, "k", NULL));
    for (int i = 0; i < CONNS; ++i) {
        wait_often(fds[i], 1, EACH);
        raw_send(fds[i], "0d 01 00 00 00");
        T(raw_expect(fds[i], "01 00 00 00"));
        close(fds[i]);
    }
    OK(cdp_store_set(c, "other", "v", 1));
    T(value_is(c, "other", "v"));
    close(old);
    cdp_store_destroy(c);
    turns_pause(&t);
    T(now_ms() - start <= 3000 * TEST_LATE);
    short_turns(&t, 5);
    turns_go_on(&t);
    turns_close(&t);
}

/* A connection that waits for more than one request can name is closed. */
TEST(waits_have_a_limit) {
    cdp_store_server_desc d = server_desc();
    cdp_store_server *s;
    int fd;
    d.max_list = 1000;
    OK(cdp_store_server_create(&d, &s));
    fd = raw_greeted(cdp_store_server_port(s));
    wait_often(fd, 1, 1000);
    raw_send(fd, "0d 01 00 00 00");
    T(raw_expect(fd, "01 00 00 00"));
    wait_often(fd, 1, 1);
    T(raw_ends(fd));
    close(fd);
    cdp_store_server_destroy(s);
}

static uint64_t resident_bytes(void) {
    char text[128] = "";
    unsigned long long all = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f) {
        if (fgets(text, sizeof text, f)) sscanf(text, "%llu %llu", &all, &resident);
        fclose(f);
    }
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* The limit holds for what the waiters really take. */
TEST(memory_is_what_the_limit_says) {
    enum {
        LIMIT = 64 << 20
    };
    cdp_store_server_desc d = server_desc();
    cdp_store_server *s;
    int fds[64], n = 0;
    uint64_t before, after;
    if (TEST_SLOW) {
        test_skip("memory of a sanitizer is not that of a program");
        return;
    }
    d.max_total_bytes = LIMIT;
    OK(cdp_store_server_create(&d, &s));
    before = resident_bytes();
    for (; n < 64; ++n) {
        uint8_t four[4];
        fds[n] = raw_greeted(cdp_store_server_port(s));
        wait_often(fds[n], 1, 100000);
        raw_send(fds[n], "0d 01 00 00 00");
        if (!raw_read(fds[n], four, 4)) break;
    }
    after = resident_bytes();
    T(n >= 4 && n < 64); /* the limit was reached */
    test_check(after - before <= LIMIT + LIMIT / 8, __FILE__, __LINE__, "%.1f MiB of %d",
        (double)(after - before) / 1048576, LIMIT >> 20);
    for (int i = 0; i <= n && i < 64; ++i)
        close(fds[i]);
    cdp_store_server_destroy(s);
}

/* As raw_read, from a buffer: a system call for each key would take most of the time. */
static bool list_read(int fd, uint8_t *dst, uint64_t n) {
    static uint8_t room[65536];
    static size_t at, used;
    while (n) {
        const size_t part = n < used - at ? (size_t)n : used - at;
        memcpy(dst, room + at, part);
        at += part;
        dst += part;
        n -= part;
        if (n) {
            const ssize_t r = raw_readable(fd, 60000) ? recv(fd, room, sizeof room, 0) : -1;
            if (r <= 0) return false;
            at = 0;
            used = (size_t)r;
        }
    }
    return true;
}

/* Reads a LIST_KEYS to its end; returns how many keys with a slash there were, and how many of the
   `want` keys /0000000 ... were missing. */
static uint32_t read_list(int fd, uint32_t want, uint32_t *missing) {
    uint8_t head[8], key[64];
    uint32_t got = 0;
    uint8_t *seen = (uint8_t *)calloc(want, 1);
    T(list_read(fd, head, 8));
    uint64_t n = cdp__get_u64(head);
    while (n--) {
        if (!T(list_read(fd, head, 8)) || !T(cdp__get_u64(head) < sizeof key)) break;
        const uint64_t bytes = cdp__get_u64(head);
        if (!T(list_read(fd, key, bytes))) break;
        key[bytes] = 0;
        if (bytes == 8 && key[0] == '/') {
            const unsigned long at = strtoul((const char *)key + 1, NULL, 10);
            if (at < want) T(!seen[at]++);
        }
        got += bytes && key[0] == '/';
    }
    *missing = 0;
    for (uint32_t i = 0; i < want; ++i)
        *missing += !seen[i];
    free(seen);
    return got;
}

/* Keys "PREFIX0000000" and so on with empty values, a thousand at a time. */
static void set_many(cdp_store *c, const char *prefix, uint32_t from, uint32_t n) {
    static char text[1000][24];
    static const char *keys[1000];
    static cdp_bytes values[1000];
    for (uint32_t i = 0; i < n; i += 1000) {
        for (uint32_t k = 0; k < 1000; ++k) {
            snprintf(text[k], sizeof text[k], "%s%07u", prefix, from + i + k);
            keys[k] = text[k];
        }
        if (!OK(cdp_store_multi_set(c, keys, values, 1000))) return;
    }
}

/* A list of very many keys is sent in pieces. What was there all the time is in it, although keys
   come and go, and the map grows, in between. */
TEST(list_of_many_keys) {
    enum {
        KEYS = 200000
    };
    turns t;
    cdp_store *c;
    char key[16];
    uint32_t missing, got;
    const int small = 65536;
    int fd;
    turns_open(&t, server_desc());
    c = client_open(cdp_store_server_port(t.s));
    cdp_store_set_timeout(c, 2000 * TEST_SLACK * test__scale());
    set_many(c, "", 0, KEYS);
    T(value_is(c, "0199999", ""));
    turns_pause(&t);
    t.longest_ns = 0; /* the growth of the map is another matter */
    turns_go_on(&t);
    fd = raw_greeted(cdp_store_server_port(t.s));
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    T(raw_send(fd, "11"));
    got = read_list(fd, KEYS, &missing);
    T_EQ(KEYS, got);
    T_EQ(0, missing);
    turns_pause(&t);
    short_turns(&t, 5);
    turns_go_on(&t);
    T(raw_send(fd, "11"));
    T(raw_readable(fd, 5000 * (int)TEST_SLACK)); /* it has begun, and a full socket stops it */
    set_many(c, "new", 0, 100000);
    for (uint32_t i = 0; i < 1000; ++i) {
        snprintf(key, sizeof key, "%07u", i * 7);
        OK(cdp_store_delete(c, key, NULL));
    }
    got = read_list(fd, KEYS, &missing);
    T(got > KEYS / 2 && got <= KEYS && missing <= 1000);
    T(raw_send(fd, "11"));
    got = read_list(fd, KEYS, &missing);
    T_EQ(KEYS - 1000 + 100000, got);
    T_EQ(1000, missing);
    close(fd);
    cdp_store_destroy(c);
    turns_close(&t);
}

/* A clock on which the 300 ms of a destruction are five minutes. */
static uint64_t slow_clock(void *user) {
    (void)user;
    return cdp_os_default()->now_ns(NULL) / 1000;
}

static void destroy_main(void *arg) {
    cdp_store_server_destroy((cdp_store_server *)arg);
}

/* A client that still reads a list of keys gets all of it from a server that is being closed, also
   where that is more than one turn of the server's work and more than sockets hold. */
TEST(destroy_sends_lists_to_the_end) {
    enum {
        KEYS = 200000
    };
    cdp_os os = *cdp_os_default();
    cdp_store_server_desc d = server_desc();
    cdp_store_server *s;
    cdp_store *c;
    const int small = 65536;
    uint32_t missing;
    void *thread;
    int fd;
    os.now_ns = slow_clock;
    d.os = &os;
    OK(cdp_store_server_create(&d, &s));
    c = client_open(cdp_store_server_port(s));
    cdp_store_set_timeout(c, 2000 * TEST_SLACK * test__scale());
    set_many(c, "a_longer_prefix_", 0, KEYS);
    T(value_is(c, "a_longer_prefix_0199999", ""));
    fd = raw_greeted(cdp_store_server_port(s));
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    T(raw_send(fd, "11"));
    T(raw_readable(fd, 5000 * (int)TEST_SLACK)); /* it has begun */
    thread = os.threads.start(&os, destroy_main, s);
    T_EQ(KEYS, read_list(fd, KEYS, &missing));
    os.threads.join(&os, thread);
    close(fd);
    cdp_store_destroy(c);
}

/* One client that sends as fast as it can and reads its answers must not hold the loop. */
TEST(a_fast_client_shares_the_loop) {
    enum {
        N = 300000
    };
    turns t;
    uint8_t *many = (uint8_t *)malloc(N), *answers = (uint8_t *)malloc(8 * 1024);
    int fd;
    memset(many, CDP__OP_NUM_KEYS, N);
    turns_open(&t, server_desc());
    fd = raw_greeted(cdp_store_server_port(t.s));
    for (uint32_t sent = 0, read = 0; read < N;) {
        const uint32_t n = N - sent < 1024 ? N - sent : 1024;
        if (n && !T(raw_write(fd, many, n))) break;
        sent += n;
        if (!T(raw_read(fd, answers, 8 * 1024 < 8 * (N - read) ? 8 * 1024 : 8 * (N - read)))) break;
        read += 1024 < N - read ? 1024 : N - read;
    }
    close(fd);
    turns_pause(&t);
    short_turns(&t, 5);
    turns_go_on(&t);
    turns_close(&t);
    free(many);
    free(answers);
}

static bool descriptors(uint32_t n) {
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0) return false;
    if (r.rlim_cur >= n) return true;
    r.rlim_cur = n;
    return r.rlim_max >= n && setrlimit(RLIMIT_NOFILE, &r) == 0;
}

/* More strangers than may be there at a time connect and say nothing: clients still come in, and
   the loop is not slowed down by looking at all of them. */
TEST(idle_strangers) {
    enum {
        STRANGERS = 1500,
        ROUNDS = 2000
    };
    static int fds[STRANGERS];
    cdp_store_server_desc d = server_desc();
    cdp_tcp_store_desc cd;
    turns t;
    cdp_store *c = NULL;
    uint64_t start, alone, beside;
    if (!descriptors(2 * STRANGERS + 64)) {
        test_skip("too few descriptors are allowed");
        return;
    }
    d.job_key = "0123456789abcdef0123";
    turns_open(&t, d);
    cd = client_desc(cdp_store_server_port(t.s));
    cd.job_key = d.job_key;
    OK(cdp_tcp_store_create(&cd, &c));
    start = test_now_ns();
    for (int i = 0; i < ROUNDS; ++i)
        OK(cdp_store_add(c, "n", 1, NULL));
    alone = test_now_ns() - start;
    for (int i = 0; i < STRANGERS; ++i)
        fds[i] = raw_open(cdp_store_server_port(t.s));
    test_sleep_ms(200); /* all that fit are accepted, and silent for long enough */
    start = test_now_ns();
    for (int i = 0; i < ROUNDS; ++i)
        OK(cdp_store_add(c, "n", 1, NULL));
    beside = test_now_ns() - start;
    cdp_store_destroy(c);
    turns_pause(&t);
    T(t.s->fresh_count <= CDP__SERVER_MAX_FRESH);
    turns_go_on(&t);
    test_check(beside <= 3 * alone * TEST_LATE / 2 + (20 + TEST_STILL_MS) * CDP__MS, __FILE__,
        __LINE__, "%d requests took %.1f ms, beside strangers %.1f ms", ROUNDS, (double)alone / 1e6,
        (double)beside / 1e6);
    /* one more client: the oldest stranger makes room when it has had a second */
    start = now_ms();
    OK(cdp_tcp_store_create(&cd, &c));
    T(now_ms() - start <= 1500 * TEST_LATE);
    OK(cdp_store_add(c, "n", 1, NULL));
    cdp_store_destroy(c);
    for (int i = 0; i < STRANGERS; ++i)
        if (fds[i] >= 0) close(fds[i]);
    turns_close(&t);
}

/* A stranger that is looked at only now and then is served all the same. */
TEST(a_parked_client_is_heard) {
    turns t;
    int fd;
    turns_open(&t, server_desc());
    fd = raw_open(cdp_store_server_port(t.s));
    for (const char *p = "\0\xce\xf7\x85\x3c\x0d\x01\x02\x03\x04", *end = p + 10; p < end; ++p) {
        test_sleep_ms(50);
        T(raw_write(fd, p, 1));
    }
    T(raw_expect(fd, "01 02 03 04"));
    close(fd);
    turns_close(&t);
}

typedef struct flood {
    uint16_t port;
    bool stop;
    uint32_t count;
} flood;

static void flood_main(void *arg) {
    flood *f = (flood *)arg;
    while (!__atomic_load_n(&f->stop, __ATOMIC_ACQUIRE)) {
        const int fd = raw_open(f->port);
        if (fd < 0) continue;
        close(fd);
        ++f->count;
    }
}

/* Connections that come and go as fast as they can. */
TEST(flood_of_connections) {
    turns t;
    flood f = {0, false, 0};
    cdp_store *c;
    void *thread;
    turns_open(&t, server_desc());
    f.port = cdp_store_server_port(t.s);
    c = client_open(f.port);
    thread = cdp_os_default()->threads.start(cdp_os_default(), flood_main, &f);
    for (int i = 0; i < 200; ++i) {
        OK(cdp_store_add(c, "n", 1, NULL));
        test_sleep_ms(2);
    }
    __atomic_store_n(&f.stop, true, __ATOMIC_RELEASE);
    cdp_os_default()->threads.join(cdp_os_default(), thread);
    T(f.count > 50);
    cdp_store_destroy(c);
    turns_pause(&t);
    short_turns(&t, 5);
    turns_go_on(&t);
    turns_close(&t);
}

static cdp_status no_descriptor(void *user, void *dst, uint64_t bytes) {
    (void)dst;
    (void)bytes;
    if (!__atomic_load_n((const bool *)user, __ATOMIC_RELAXED))
        return cdp_os_default()->random(NULL, dst, bytes);
    return cdp_error_set(CDP_ERR_IO, -1, EMFILE, "cannot open the device");
}

/* An os whose random bytes need a descriptor, and none is left: clients can still prove themselves,
   with nonces that differ. */
TEST(nonces_without_descriptors) {
    bool none = false;
    cdp_os os = *cdp_os_default();
    cdp_store_server_desc d = server_desc();
    cdp_tcp_store_desc cd;
    cdp_store_server *s;
    cdp_store *c = NULL;
    uint8_t hello[32], first[32], second[32];
    int fds[2];
    os.user = &none;
    os.random = no_descriptor;
    d.os = &os;
    d.job_key = "0123456789abcdef0123";
    OK(cdp_store_server_create(&d, &s));
    __atomic_store_n(&none, true, __ATOMIC_RELAXED);
    cd = client_desc(cdp_store_server_port(s));
    cd.job_key = d.job_key;
    OK(cdp_tcp_store_create(&cd, &c));
    cdp_store_destroy(c);
    memset(hello, 0, sizeof hello);
    memcpy(hello, "cdp-key1\1", 9);
    for (int i = 0; i < 2; ++i) {
        fds[i] = raw_open(cdp_store_server_port(s));
        raw_write(fds[i], hello, sizeof hello);
    }
    T(raw_read(fds[0], first, sizeof first) && raw_read(fds[1], second, sizeof second));
    T(memcmp(first, "cdp-key2", 8) == 0 && memcmp(first + 16, second + 16, 16) != 0);
    close(fds[0]);
    close(fds[1]);
    cdp_store_server_destroy(s);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"waits_on_one_key", waits_on_one_key, 60},
        {"waits_have_a_limit", waits_have_a_limit, 20},
        {"memory_is_what_the_limit_says", memory_is_what_the_limit_says, 60},
        {"list_of_many_keys", list_of_many_keys, 120},
        {"destroy_sends_lists_to_the_end", destroy_sends_lists_to_the_end, 120},
        {"a_fast_client_shares_the_loop", a_fast_client_shares_the_loop, 60},
        {"idle_strangers", idle_strangers, 60},
        {"a_parked_client_is_heard", a_parked_client_is_heard, 20},
        {"flood_of_connections", flood_of_connections, 60},
        {"nonces_without_descriptors", nonces_without_descriptors, 20},
    };
    signal(SIGPIPE, SIG_IGN);
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
