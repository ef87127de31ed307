/* store_raw.h - what the tests of stores share: checks of calls, sockets that say what no client
   would, servers and clients with usual settings. Include it after cdp_store.h and test.h. */
#ifndef STORE_RAW_INCLUDED
#define STORE_RAW_INCLUDED

#include <sys/ioctl.h>

/* A call that must succeed, or must end with one status. */
#define OK(call) ended((call), CDP_OK, #call, __LINE__)
#define ST(call, status) ended((call), (status), #call, __LINE__)
#define TEXT(part) T_TEXT(part, cdp_last_error()->text)

TEST_API bool ended(cdp_status got, cdp_status want, const char *what, int line) {
    return test_check(got == want, __FILE__, line, "%s: %s: %s", what, cdp_status_name(got),
        got < 0 ? cdp_last_error()->text : "");
}

TEST_API uint64_t now_ms(void) {
    return test_now_ns() / 1000000u;
}

/* "01 02 ff" to bytes; 'text' in single quotes stands for its characters. */
TEST_API uint32_t hex(const char *s, uint8_t *out) {
    uint32_t n = 0;
    while (*s) {
        if (*s == '\'') {
            for (++s; *s && *s != '\''; ++s)
                out[n++] = (uint8_t)*s;
            if (*s) ++s;
        } else if (*s == ' ') {
            ++s;
        } else {
            out[n++] = (uint8_t)(cdp__addr_hex(s[0]) << 4 | cdp__addr_hex(s[1]));
            s += 2;
        }
    }
    return n;
}

TEST_API cdp_bytes bytes_of(const char *s) {
    cdp_bytes b;
    b.data = s;
    b.bytes = strlen(s);
    return b;
}

/* A plain blocking socket, to say what no client would. */
TEST_API int raw_open(uint16_t port) {
    struct sockaddr_in a;
    const int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* each write is a segment */
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET;
    a.sin_port = htons(port);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

TEST_API bool raw_write(int fd, const void *data, size_t n) {
    const char *p = (const char *)data;
    while (n) {
        const ssize_t r = send(fd, p, n, MSG_NOSIGNAL);
        if (r <= 0) return false;
        p += r;
        n -= (size_t)r;
    }
    return true;
}

TEST_API bool raw_send(int fd, const char *s) {
    uint8_t b[4096];
    return raw_write(fd, b, hex(s, b));
}

TEST_API bool raw_readable(int fd, int ms) {
    struct pollfd p;
    p.fd = fd;
    p.events = POLLIN;
    p.revents = 0;
    return poll(&p, 1, ms) == 1;
}

/* Until an answer has begun to come and no more of it comes, since nobody reads: the server sent
   what the sockets hold. Also ends where the connection has. */
TEST_API void raw_full(int fd) {
    const uint64_t until = test_until_ns(5000);
    uint64_t since = test_now_ns();
    for (int here = 0, before = 0; test_now_ns() < until; before = here) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        (void)!poll(&p, 1, 10);
        if (p.revents & (POLLHUP | POLLERR) || ioctl(fd, FIONREAD, &here) != 0) return;
        if (!here || here != before) since = test_now_ns();
        if (test_now_ns() - since > 12000000ull * TEST_LATE) return;
        test_sleep_ms(5);
    }
}

TEST_API bool raw_read(int fd, void *dst, size_t n) {
    char *p = (char *)dst;
    while (n) {
        const ssize_t r = raw_readable(fd, 5000 * (int)TEST_SLACK) ? recv(fd, p, n, 0) : -1;
        if (r <= 0) return false;
        p += r;
        n -= (size_t)r;
    }
    return true;
}

TEST_API bool raw_expect(int fd, const char *s) {
    uint8_t want[4096], got[4096];
    const uint32_t n = hex(s, want);
    uint32_t i;
    if (raw_read(fd, got, n) && memcmp(got, want, n) == 0) return true;
    printf("     wanted %s, got", s);
    for (i = 0; i < n && i < 32; ++i)
        printf(" %02x", got[i]);
    printf("\n");
    return false;
}

/* The other side ends the connection, without another byte. */
TEST_API bool raw_ends(int fd) {
    char c;
    return raw_readable(fd, 5000 * (int)TEST_SLACK) && recv(fd, &c, 1, 0) <= 0;
}

TEST_API int raw_greeted(uint16_t port) {
    const int fd = raw_open(port);
    raw_send(fd, "00 ce f7 85 3c");
    return fd;
}

TEST_API cdp_store_server_desc server_desc(void) {
    cdp_store_server_desc d;
    memset(&d, 0, sizeof d);
    d.logger.level = CDP_LOG_SILENT;
    return d;
}

TEST_API cdp_store_server *server_open(void) {
    const cdp_store_server_desc d = server_desc();
    cdp_store_server *s = NULL;
    OK(cdp_store_server_create(&d, &s));
    return s;
}

TEST_API cdp_tcp_store_desc client_desc(uint16_t port) {
    cdp_tcp_store_desc d;
    memset(&d, 0, sizeof d);
    d.host = "127.0.0.1";
    d.port = port;
    d.timeout_ms = 10000;
    d.logger.level = CDP_LOG_SILENT;
    return d;
}

TEST_API cdp_store *client_open(uint16_t port) {
    const cdp_tcp_store_desc d = client_desc(port);
    cdp_store *s = NULL;
    OK(cdp_tcp_store_create(&d, &s));
    return s;
}

TEST_API bool value_is(cdp_store *s, const char *key, const char *want) {
    void *value;
    uint64_t bytes;
    bool ok;
    if (cdp_store_get(s, key, &value, &bytes, 2000) != CDP_OK) {
        printf("     %s\n", cdp_last_error()->text);
        return false;
    }
    ok = bytes == strlen(want) && memcmp(value, want, (size_t)bytes) == 0
        && ((char *)value)[bytes] == 0;
    if (!ok) printf("     %s is \"%s\", not \"%s\"\n", key, (char *)value, want);
    cdp_store_free(s, value);
    return ok;
}

TEST_API void poll_server(cdp_store_server *s, int times) {
    while (times-- > 0)
        (void)cdp_store_server_poll(s, cdp_os_default()->now_ns(NULL) + CDP__MS);
}

/* As if its process had been killed. */
TEST_API void client_die(cdp_store *s) {
    shutdown(((cdp__client *)s->self)->io.fd, SHUT_RDWR);
}

typedef struct getter {
    cdp_store *store;
    const char *key;
    uint32_t timeout_ms;
    cdp_status status;
    char text[200];
    uint64_t ms;
} getter;

TEST_API void getter_main(void *arg) {
    getter *g = (getter *)arg;
    const uint64_t start = now_ms();
    void *value = NULL;
    g->status = cdp_store_get(g->store, g->key, &value, NULL, g->timeout_ms);
    g->ms = now_ms() - start;
    cdp__format(g->text, sizeof g->text, "%s",
        g->status == CDP_OK ? (const char *)value : cdp_last_error()->text);
    cdp_store_free(g->store, value);
}

TEST_API void *run_getter(getter *g) {
    return cdp_os_default()->threads.start(cdp_os_default(), getter_main, g);
}

TEST_API void no_work(void *arg) {
    (void)arg;
}

/* test_main() of programs whose servers are threads. ThreadSanitizer's own thread begins with the
   first thread, and would be counted against the first test. */
TEST_API int store_main(int argc, char **argv, const test_case *cases, size_t count) {
    const cdp_os *os = cdp_os_default();
    signal(SIGPIPE, SIG_IGN);
    os->threads.join(os, os->threads.start(os, no_work, NULL));
    return test_main(argc, argv, cases, count);
}

#endif
