/* test_store_connections.c - connections to a store: how they begin (late and false servers,
   names, addresses, few descriptors), and how they end (last wills, orderly ends, kills) */
#define CDP_IMPLEMENTATION
#include "cdp_store.h"
#include "test.h"

#include "store_raw.h"
#include "ports.h"
#include <fcntl.h>
#include <sys/wait.h>

/* ---- wills and goodbyes ---------------------------------------------------------------------- */

static cdp_store *client_with_will(uint16_t port, const char *key, const char *value) {
    cdp_tcp_store_desc d = client_desc(port);
    cdp_store *s = NULL;
    d.will_key = key;
    d.will_value = bytes_of(value);
    OK(cdp_tcp_store_create(&d, &s));
    return s;
}

TEST(will) {
    static const char *const died[] = {"died"};
    cdp_store_server *s = server_open();
    const uint16_t port = cdp_store_server_port(s);
    cdp_store *c = client_open(port), *w;
    void *value;
    bool there;
    uint64_t start;
    int fd;
    w = client_with_will(port, "died", "rank 1");
    OK(cdp_store_set(w, "x", "y", 1));
    cdp_store_destroy(w); /* orderly: withdrawn */
    ST(cdp_store_wait(c, died, 1, 100), CDP_ERR_TIMEOUT);
    w = client_with_will(port, "died", "rank 2");
    ST(cdp_store_get(w, "never", &value, NULL, 10), CDP_ERR_TIMEOUT);
    start = now_ms();
    client_die(w);
    T(value_is(c, "died", "rank 2"));
    T(now_ms() - start <= 50 * TEST_LATE + TEST_STILL_MS);
    cdp_store_destroy(w);
    w = client_with_will(port, "died", "rank 3"); /* the first one counts */
    client_die(w);
    cdp_store_destroy(w);
    test_sleep_ms(30);
    T(value_is(c, "died", "rank 2"));
    OK(cdp_store_delete(c, "died", NULL));
    fd = raw_greeted(port); /* said twice: the later one; half a request after it changes nothing */
    raw_send(fd,
        "c0 01 00 00 00 00 00 00 00 'a' 01 00 00 00 00 00 00 00 'b' c0 05 00 00 00 00 00 00 00 "
        "'/died' 01 00 00 00 00 00 00 00 'z' 01 02 00");
    close(fd);
    T(value_is(c, "died", "z"));
    OK(cdp_store_delete(c, "died", NULL));
    fd = raw_greeted(port); /* withdrawn and closed in one go */
    raw_send(fd,
        "c0 05 00 00 00 00 00 00 00 '/died' 01 00 00 00 00 00 00 00 'q' c0 00 00 00 00 00 00 00 00 "
        "00 00 00 00 00 00 00 00");
    close(fd);
    fd = raw_greeted(port); /* killed by its own bad request */
    raw_send(fd, "c0 05 00 00 00 00 00 00 00 '/dead' 00 00 00 00 00 00 00 00 ff");
    T(raw_ends(fd));
    close(fd);
    T(value_is(c, "dead", ""));
    OK(cdp_store_check(c, died, 1, &there));
    T(!there);
    cdp_store_destroy(c);
    cdp_store_server_destroy(s);
}

/* A process that is really killed. */
TEST(will_of_a_killed_process) {
    cdp_store_server *s = server_open();
    cdp_store *c = client_open(cdp_store_server_port(s));
    const pid_t pid = fork();
    uint64_t start;
    if (pid == 0) {
        cdp_store *w = client_with_will(cdp_store_server_port(s), "died", "killed");
        void *value;
        if (cdp_store_set(w, "ready", "", 0) == CDP_OK
            && cdp_store_get(w, "never", &value, NULL, 0) == CDP_OK)
            _exit(1);
        _exit(0);
    }
    T(value_is(c, "ready", ""));
    test_sleep_ms(20);
    start = now_ms();
    kill(pid, SIGKILL);
    T(value_is(c, "died", "killed"));
    T(now_ms() - start <= 50 * TEST_LATE + TEST_STILL_MS);
    waitpid(pid, NULL, 0);
    cdp_store_destroy(c);
    cdp_store_server_destroy(s);
}

static void sees_off(bool withdrawn) {
    cdp_store_server_desc d = server_desc();
    cdp_store_server *s;
    cdp_store *w, *c;
    cdp_tcp_store_desc cd;
    cdp__loop loop;
    void *big = calloc(1, 8000000);
    cdp_store_request rq;
    const cdp_bytes key = bytes_of("big");
    cdp_bytes value;
    uint64_t start, took;
    OK(cdp__loop_open(&loop, cdp_os_default()));
    d.loop = &loop;
    OK(cdp_store_server_create(&d, &s));
    cd = client_desc(cdp_store_server_port(s));
    cd.loop = &loop;
    cd.will_key = "died";
    cd.will_value = bytes_of("early");
    OK(cdp_tcp_store_create(&cd, &w));
    value.data = big;
    value.bytes = 8000000;
    memset(&rq, 0, sizeof rq);
    rq.op = CDP_STORE_SET;
    rq.keys = &key;
    rq.values = &value;
    rq.key_count = 1;
    T(w->start(w->self, &rq) == CDP_PENDING); /* nobody drives the server */
    if (withdrawn) cdp__tcp_store_withdraw_last_will(w);
    start = now_ms();
    cdp_store_destroy(w);
    took = now_ms() - start;
    T(took <= 110 + 30 * TEST_LATE + TEST_STILL_MS);
    cd.will_key = NULL;
    OK(cdp_tcp_store_create(&cd, &c));
    if (took < 95) { /* a slow machine may need longer than a goodbye lasts */
        const char *died = "died", *sent = "big";
        bool there = true;
        OK(cdp_store_check(c, &died, 1, &there));
        T(!there);
        OK(cdp_store_check(c, &sent, 1, &there));
        T(there);
    }
    cdp_store_destroy(c);
    cdp_store_server_destroy(s);
    cdp__loop_close(&loop);
    free(big);
}

/* destroy() on a shared loop lets the server go on: what was half sent arrives, and the
   withdrawal of the will behind it. */
TEST(destroy_sees_off_what_was_sent) {
    sees_off(false);
}

/* The same where the program has withdrawn the will before, and that has not been sent. */
TEST(destroy_sees_off_the_withdrawal_of_a_will) {
    sees_off(true);
}

static void destroy_main(void *arg) {
    cdp_store_server_destroy((cdp_store_server *)arg);
}

/* A client that is still reading a large answer gets all of it from a server that is closed. */
TEST(destroy_sends_answers_to_the_end) {
    const cdp_os *os = cdp_os_default();
    cdp_store_server_desc d = server_desc();
    cdp_store_server *s;
    cdp_store *writer, *reader;
    void *big = calloc(1, 8000000), *thread;
    const cdp_bytes key = bytes_of("big");
    const char *name = "big";
    cdp_store_request rq;
    bool there = false;
    uint64_t start;
    OK(cdp_store_server_create(&d, &s));
    writer = client_open(cdp_store_server_port(s));
    reader = client_open(cdp_store_server_port(s));
    OK(cdp_store_set(writer, "big", big, 8000000));
    OK(cdp_store_check(writer, &name, 1, &there)); /* the server has it */
    memset(&rq, 0, sizeof rq);
    rq.op = CDP_STORE_GET;
    rq.keys = &key;
    rq.key_count = 1;
    T(reader->start(reader->self, &rq) == CDP_PENDING);
    test_sleep_ms(100); /* sockets are full now, and nobody reads */
    start = now_ms();
    thread = os->threads.start(os, destroy_main, s);
    test_sleep_ms(20);
    T_EQ(CDP_OK, reader->wait(reader->self, &rq, os->now_ns(NULL) + 5000000000u));
    T(rq.results && rq.results[0].bytes == 8000000);
    os->threads.join(os, thread);
    T(now_ms() - start <= 300 + 30 * TEST_LATE + TEST_STILL_MS);
    cdp_store_request_free(reader, &rq);
    cdp_store_destroy(reader);
    cdp_store_destroy(writer);
    free(big);
}

/* A server that stops as if its process had been stopped. */
static bool stopped;
static int32_t stopping_wait(
    void *user, void *watch, cdp_ready *out, uint32_t max_count, uint64_t deadline_ns) {
    const int32_t r = cdp_os_default()->net.watch_wait(user, watch, out, max_count, deadline_ns);
    while (__atomic_load_n(&stopped, __ATOMIC_ACQUIRE))
        test_sleep_ms(1);
    return r;
}

/* destroy() ends in time also when the server is deaf and a large value is half sent; the will
   then stands. */
TEST(destroy_is_bounded) {
    cdp_os os = *cdp_os_default();
    cdp_store_server_desc d = server_desc();
    cdp_store_server *s;
    cdp_store *w, *c;
    void *big = calloc(1, 8000000);
    cdp_store_request rq;
    const cdp_bytes key = bytes_of("big");
    cdp_bytes value;
    uint64_t start;
    os.net.watch_wait = stopping_wait;
    d.os = &os;
    OK(cdp_store_server_create(&d, &s));
    w = client_with_will(cdp_store_server_port(s), "died", "early");
    c = client_open(cdp_store_server_port(s));
    value.data = big;
    value.bytes = 8000000;
    memset(&rq, 0, sizeof rq);
    rq.op = CDP_STORE_SET;
    rq.keys = &key;
    rq.values = &value;
    rq.key_count = 1;
    __atomic_store_n(&stopped, true, __ATOMIC_RELEASE);
    OK(cdp_store_set(c, "wake", "", 0)); /* out of the poll in which it may be */
    test_sleep_ms(20);
    T(w->start(w->self, &rq) == CDP_PENDING);
    start = now_ms();
    cdp_store_destroy(w);
    T(now_ms() - start >= 90 && now_ms() - start <= 110 + 30 * TEST_LATE + TEST_STILL_MS);
    T_EQ(CDP_ERR_STATE, rq.status);
    __atomic_store_n(&stopped, false, __ATOMIC_RELEASE);
    T(value_is(c, "died", "early"));
    cdp_store_destroy(c);
    cdp_store_server_destroy(s);
    free(big);
}

TEST(orderly_shutdown) {
    cdp_store_server *s = server_open();
    const uint16_t port = cdp_store_server_port(s);
    cdp_store *c = client_open(port), *idle = client_open(port);
    getter g;
    const int waiting = raw_greeted(port), silent = raw_greeted(port);
    void *thread;
    memset(&g, 0, sizeof g);
    g.store = c;
    g.key = "never";
    thread = run_getter(&g);
    raw_send(waiting, "06 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 '/m'");
    raw_send(silent, "0d 01 00 00 00");
    T(raw_expect(silent, "01 00 00 00"));
    test_sleep_ms(300);
    cdp_store_server_destroy(s);
    cdp_os_default()->threads.join(cdp_os_default(), thread);
    T_EQ(CDP_ERR_STATE, g.status);
    T_TEXT("was closed by its host", g.text);
    T_TEXT("127.0.0.1:", g.text);
    T(raw_expect(waiting, "02"));
    T(raw_ends(waiting));
    T(raw_ends(silent));
    ST(cdp_store_set(c, "k", "v", 1), CDP_ERR_STATE);    /* the reason stays */
    ST(cdp_store_set(idle, "k", "v", 1), CDP_ERR_STATE); /* who did not wait has been told, too */
    TEXT("was closed by its host");
    cdp_store_destroy(c);
    cdp_store_destroy(idle);
    close(waiting);
    close(silent);
}

/* A server that is killed: no goodbye. */
TEST(server_killed) {
    int port_pipe[2];
    uint16_t port = 0;
    cdp_store *c, *late;
    getter g;
    void *thread;
    pid_t pid;
    T(pipe(port_pipe) == 0);
    pid = fork();
    if (pid == 0) {
        cdp_store_server *s = server_open();
        port = cdp_store_server_port(s);
        if (write(port_pipe[1], &port, sizeof port) != sizeof port) _exit(1);
        for (;;)
            pause();
    }
    T(read(port_pipe[0], &port, sizeof port) == sizeof port);
    c = client_open(port);
    late = client_open(port);
    memset(&g, 0, sizeof g);
    g.store = c;
    g.key = "never";
    thread = run_getter(&g);
    test_sleep_ms(50);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    cdp_os_default()->threads.join(cdp_os_default(), thread);
    T_EQ(CDP_ERR_STORE, g.status);
    T(g.ms <= 100 * TEST_LATE + TEST_STILL_MS);
    T_TEXT("is gone: its process crashed, was killed", g.text);
    T_TEXT("127.0.0.1:", g.text);
    ST(cdp_store_set(late, "k", "v", 1), CDP_ERR_STORE); /* also what has no answer notices */
    cdp_store_destroy(c);
    cdp_store_destroy(late);
    close(port_pipe[0]);
    close(port_pipe[1]);
}

/* ---- connecting ------------------------------------------------------------------------------ */

typedef struct late_server {
    uint16_t port;
    uint32_t after_ms;
    cdp_store_server *server;
} late_server;

static void late_server_main(void *arg) {
    late_server *l = (late_server *)arg;
    cdp_store_server_desc d = server_desc();
    d.port = l->port;
    test_sleep_ms(l->after_ms);
    OK(cdp_store_server_create(&d, &l->server));
}

TEST(connects_to_a_late_server) {
    late_server l;
    void *thread;
    cdp_store *c;
    uint64_t start;
    l.port = free_port();
    l.after_ms = 300;
    l.server = NULL;
    thread = cdp_os_default()->threads.start(cdp_os_default(), late_server_main, &l);
    start = now_ms();
    c = client_open(l.port);
    T(now_ms() - start >= 290 && now_ms() - start <= 700 * TEST_LATE);
    OK(cdp_store_set(c, "k", "v", 1));
    cdp_os_default()->threads.join(cdp_os_default(), thread);
    cdp_store_destroy(c);
    cdp_store_server_destroy(l.server);
}

static void cannot_connect(
    const char *host, uint16_t port, uint32_t ms, cdp_status status, const char *text) {
    cdp_tcp_store_desc d = client_desc(port);
    cdp_store *c;
    uint64_t start, tries, late = UINT64_MAX;
    char want[64];
    d.host = host;
    d.connect_timeout_ms = ms;
    /* the machine may be busy with something else */
    for (tries = 0; tries < 3 && late > ms + ms / 10 + 10; ++tries) {
        start = now_ms();
        ST(cdp_tcp_store_create(&d, &c), status);
        late = now_ms() - start;
    }
    T(c == NULL);
    TEXT(text);
    cdp__format(want, sizeof want, "%s:%u", host, port);
    if (port) TEXT(want);
    T(late <= ms + ms / 10 + 10 * TEST_LATE + TEST_STILL_MS);
}

/* Accepts connections and answers each with the same bytes, or none; then ends them, or keeps
   them. */
typedef struct false_server {
    int fd;
    const char *answer;
    bool keep, stop;
    uint16_t port;
    void *thread;
} false_server;

static void false_server_main(void *arg) {
    false_server *f = (false_server *)arg;
    int kept[100], n = 0;
    while (!__atomic_load_n(&f->stop, __ATOMIC_ACQUIRE)) {
        char sink[1000];
        uint8_t b[200];
        int fd;
        if (!raw_readable(f->fd, 5)) continue;
        fd = accept(f->fd, NULL, NULL);
        if (raw_readable(fd, 1000) && recv(fd, sink, sizeof sink, 0) > 0 && f->answer)
            raw_write(fd, b, hex(f->answer, b));
        if (f->keep && n < 100)
            kept[n++] = fd;
        else
            close(fd);
    }
    while (n)
        close(kept[--n]);
}

static void false_server_open(false_server *f, const char *answer, bool keep) {
    cdp_addr at, bound;
    memset(f, 0, sizeof *f);
    cdp__addr_parse("127.0.0.1", &at);
    f->fd = cdp_os_default()->net.listen_at(NULL, &at, &bound);
    f->port = bound.port;
    f->answer = answer;
    f->keep = keep;
    f->thread = cdp_os_default()->threads.start(cdp_os_default(), false_server_main, f);
}

static void false_server_close(false_server *f) {
    __atomic_store_n(&f->stop, true, __ATOMIC_RELEASE);
    cdp_os_default()->threads.join(cdp_os_default(), f->thread);
    close(f->fd);
}

TEST(cannot_connect_says_why) {
    false_server f;
    cdp_tcp_store_desc d = client_desc(0);
    cdp_store *c;
    cannot_connect("127.0.0.1", free_port(), 300, CDP_ERR_TIMEOUT, "Connection refused");
    TEXT("(errno 111)");
    TEXT("attempts");
    /* an empty label: no name server is asked, which may take its time */
    cannot_connect("no-such-host..invalid", 1234, 300, CDP_ERR_TIMEOUT, "the name has no address");
    ST(cdp_tcp_store_create(&d, &c), CDP_ERR_INVALID);
    d = client_desc(1);
    d.host = NULL;
    ST(cdp_tcp_store_create(&d, &c), CDP_ERR_INVALID);
    false_server_open(&f, "'HTTP/1.1 400 Bad Request'", false);
    cannot_connect(
        "127.0.0.1", f.port, 2000, CDP_ERR_STORE, "first bytes are 48 54 54 50 2f 31 2e 31");
    false_server_close(&f);
    false_server_open(&f, "'SSH'", true);
    cannot_connect("127.0.0.1", f.port, 2000, CDP_ERR_STORE, "first bytes are 53 53 48 (hex)");
    false_server_close(&f);
    false_server_open(&f, NULL, true);
    cannot_connect("127.0.0.1", f.port, 300, CDP_ERR_TIMEOUT, "nothing answers");
    false_server_close(&f);
    false_server_open(&f, NULL, false);
    cannot_connect("127.0.0.1", f.port, 300, CDP_ERR_TIMEOUT, "Connection reset");
    cannot_connect("127.0.0.1", f.port, 9000, CDP_ERR_STORE, "closes every connection");
    false_server_close(&f);
}

/* Answers as a store of this library does that is closed at that very moment, then as one that is
   there. */
typedef struct closing_server {
    int fd;
    uint32_t closed, times;
} closing_server;

static void closing_server_main(void *arg) {
    closing_server *f = (closing_server *)arg;
    for (uint32_t i = 0; i <= f->times; ++i) {
        uint8_t got[64];
        const int fd = raw_readable(f->fd, 5000 * (int)TEST_SLACK) ? accept(f->fd, NULL, NULL) : -1;
        if (fd < 0 || !raw_read(fd, got, 37)) return;
        raw_write(fd, got + 6, 4);
        /* the first one says half of it */
        if (i) raw_write(fd, i < f->times ? "\0\2" : "\0", i < f->times ? 2 : 1);
        f->closed += i < f->times;
        if (i == f->times) (void)raw_ends(fd);
        close(fd);
    }
}

/* The answer to the greeting and the announcement of the end come in one piece: the client tries
   again, as it does when nobody listens. So it does when only half of the answer came. */
TEST(connects_while_a_store_is_closed) {
    closing_server f = {-1, 0, 3};
    cdp_addr at, bound;
    void *thread;
    cdp_tcp_store_desc d;
    cdp_store *c = NULL;
    cdp__addr_parse("127.0.0.1", &at);
    f.fd = cdp_os_default()->net.listen_at(NULL, &at, &bound);
    thread = cdp_os_default()->threads.start(cdp_os_default(), closing_server_main, &f);
    d = client_desc(bound.port);
    OK(cdp_tcp_store_create(&d, &c));
    T(c && ((cdp__client *)c->self)->is_cdp);
    cdp_store_destroy(c);
    cdp_os_default()->threads.join(cdp_os_default(), thread);
    T_EQ(3, f.closed);
    close(f.fd);
}

TEST(cannot_listen_says_why) {
    cdp_store_server *s = server_open(), *t;
    cdp_store_server_desc d = server_desc();
    FILE *comm = fopen("/proc/self/comm", "r");
    char name[20] = "", want[48];
    T(comm && fscanf(comm, "%19s", name) == 1);
    if (comm) fclose(comm);
    d.port = cdp_store_server_port(s);
    ST(cdp_store_server_create(&d, &t), CDP_ERR_IO);
    cdp__format(want, sizeof want, "127.0.0.1:%u", d.port);
    TEXT(want);
    snprintf(want, sizeof want, "(%s) has this port", name);
    TEXT(want);
    TEXT("(errno 98)");
    T_EQ(98, cdp_last_error()->sys_errno);
    d.host = "192.0.2.1";
    d.port = 0;
    ST(cdp_store_server_create(&d, &t), CDP_ERR_IO);
    TEXT("192.0.2.1:0");
    d.host = "no-such-host..invalid";
    ST(cdp_store_server_create(&d, &t), CDP_ERR_IO);
    TEXT("no-such-host..invalid");
    d.host = NULL;
    d.has_listen_fd = true;
    d.listen_fd = -1;
    ST(cdp_store_server_create(&d, &t), CDP_ERR_INVALID);
    ST(cdp_store_server_create(NULL, &t), CDP_ERR_INVALID);
    ST(cdp_store_server_poll(s, 0), CDP_ERR_STATE);
    cdp_store_server_destroy(s);
    cdp_store_server_destroy(NULL);
}

/* Names, IPv6, addresses as structs, a listening socket that somebody else made and left
   blocking. */
TEST(addresses) {
    static const char *const hosts[] = {"127.0.0.1", "localhost", "::1", "[::1]", "127.0.0.2"};
    uint32_t i;
    for (i = 0; i < sizeof hosts / sizeof *hosts; ++i) {
        cdp_store_server_desc d = server_desc();
        cdp_tcp_store_desc cd;
        cdp_store_server *s;
        cdp_store *c;
        d.host = hosts[i];
        /* no IPv6 here */
        if (cdp_store_server_create(&d, &s) != CDP_OK && strchr(hosts[i], ':')) continue;
        cd = client_desc(cdp_store_server_port(s));
        cd.host = hosts[i];
        OK(cdp_tcp_store_create(&cd, &c));
        OK(cdp_store_set(c, "k", "v", 1));
        cdp_store_destroy(c);
        /* exactly there and nowhere else */
        if (i == 4) cannot_connect("127.0.0.1", cd.port, 100, CDP_ERR_TIMEOUT, "refused");
        cdp_store_server_destroy(s);
    }
}

/* An os on which some calls do what the machine's rarely do. */
static uint32_t accepts_to_fail;
static int deaf_pipe[2];

static int32_t failing_accept(void *user, int32_t fd, cdp_addr *from) {
    if (accepts_to_fail && accepts_to_fail--) return -EMFILE;
    return cdp_os_default()->net.accept_next(user, fd, from);
}

/* Somebody who refuses, somebody who never answers, an address that cannot be reached at all,
   and at last the server. */
static int32_t four_addresses(void *user, const char *host, uint16_t port, cdp_addr *out,
    uint32_t max, uint64_t deadline_ns) {
    static const char *const at[] = {"127.0.0.3", "127.0.0.4", "127.0.0.5", "127.0.0.1"};
    uint32_t i;
    (void)user;
    (void)deadline_ns;
    T(max >= 4 && strcmp(host, "store.example") == 0);
    for (i = 0; i < 4; ++i) {
        T(cdp__addr_parse(at[i], &out[i]));
        out[i].port = port;
    }
    return 4;
}

static int32_t connect_to_one_of_four(void *user, const cdp_addr *to) {
    if (to->ip[3] == 4) return dup(deaf_pipe[0]); /* the reading end never becomes writable */
    if (to->ip[3] == 5) return -ENETUNREACH;
    return cdp_os_default()->net.connect_to(user, to);
}

TEST(accept_runs_out_of_descriptors) {
    cdp_os os = *cdp_os_default();
    cdp_store_server_desc d = server_desc();
    cdp_store_server *s;
    cdp_store *c;
    const uint64_t start = now_ms();
    os.net.accept_next = failing_accept;
    d.os = &os;
    accepts_to_fail = 2;
    OK(cdp_store_server_create(&d, &s));
    c = client_open(cdp_store_server_port(s));
    T(now_ms() - start >= 190 && now_ms() - start <= 300 * TEST_LATE);
    OK(cdp_store_set(c, "k", "v", 1));
    cdp_store_destroy(c);
    cdp_store_server_destroy(s);
}

static int32_t nobody_answers(void *user, const char *host, uint16_t port, cdp_addr *out,
    uint32_t max, uint64_t deadline_ns) {
    (void)user;
    (void)host;
    (void)port;
    (void)out;
    (void)max;
    (void)deadline_ns;
    return -EAGAIN;
}

static int32_t no_such_name_then_nothing(void *user, const char *host, uint16_t port, cdp_addr *out,
    uint32_t max, uint64_t deadline_ns) {
    static uint32_t calls;
    (void)user;
    (void)host;
    (void)port;
    (void)out;
    (void)max;
    if (calls++ == 0) return -ENOENT;
    while (cdp_os_default()->now_ns(NULL) < deadline_ns)
        test_sleep_ms(1);
    return -ETIMEDOUT;
}

/* A name is asked for again at every attempt, the last time perhaps just before the end. */
TEST(the_last_question_for_a_name_hides_no_answer) {
    cdp_os os = *cdp_os_default();
    cdp_tcp_store_desc d = client_desc(1234);
    cdp_store *c;
    os.net.resolve = no_such_name_then_nothing;
    d.host = "store.example";
    d.os = &os;
    d.connect_timeout_ms = 300;
    ST(cdp_tcp_store_create(&d, &c), CDP_ERR_TIMEOUT);
    TEXT("the name has no address");
    T(!strstr(cdp_last_error()->text, "No such file"));
}

static int32_t one_address_in_time(void *user, const char *host, uint16_t port, cdp_addr *out,
    uint32_t max, uint64_t deadline_ns) {
    (void)user;
    (void)host;
    (void)max;
    if (cdp_os_default()->now_ns(NULL) >= deadline_ns) return -ETIMEDOUT;
    cdp__addr_parse("127.0.0.1", out);
    out->port = port;
    return 1;
}

/* What a wait does that timed out at a server of the old dialect, long after the time to connect
   was over. */
TEST(a_new_connection_asks_for_no_name) {
    cdp_os os = *cdp_os_default();
    cdp_store_server *s = server_open();
    cdp_tcp_store_desc d = client_desc(cdp_store_server_port(s));
    cdp_store *c;
    os.net.resolve = one_address_in_time;
    d.host = "store.example";
    d.os = &os;
    d.connect_timeout_ms = 1000;
    OK(cdp_tcp_store_create(&d, &c));
    cdp__client *client = (cdp__client *)c->self;
    test_sleep_ms(1100);
    cdp_lock_acquire(&client->lock);
    cdp__client_reconnect(client);
    cdp_lock_release(&client->lock);
    OK(cdp_store_set(c, "k", "v", 1));
    cdp_store_destroy(c);
    cdp_store_server_destroy(s);
}

TEST(a_resolver_without_an_answer) {
    cdp_os os = *cdp_os_default();
    cdp_tcp_store_desc d = client_desc(1234);
    cdp_store_server_desc s = server_desc();
    cdp_store_server *server;
    cdp_store *c;
    os.net.resolve = nobody_answers;
    d.host = s.host = "store.example";
    d.os = s.os = &os;
    d.connect_timeout_ms = 100;
    ST(cdp_tcp_store_create(&d, &c), CDP_ERR_TIMEOUT);
    TEXT("the name was not resolved in that time: use an address");
    TEXT("(errno 11)");
    ST(cdp_store_server_create(&s, &server), CDP_ERR_IO);
    TEXT("no address of the name \"store.example\" was found");
    TEXT("(errno 11)");
}

TEST(all_addresses_of_a_name) {
    cdp_os os = *cdp_os_default();
    cdp_store_server *s = server_open();
    cdp_tcp_store_desc d = client_desc(cdp_store_server_port(s));
    cdp_store *c;
    T(pipe(deaf_pipe) == 0);
    os.net.resolve = four_addresses;
    os.net.connect_to = connect_to_one_of_four;
    d.host = "store.example";
    d.os = &os;
    OK(cdp_tcp_store_create(&d, &c));
    T(strstr(((cdp__client *)c->self)->name, "store.example")
        && strstr(((cdp__client *)c->self)->name, "(127.0.0.1:"));
    OK(cdp_store_set(c, "k", "v", 1));
    cdp_store_destroy(c);
    d.connect_timeout_ms = 100;
    ST(cdp_tcp_store_create(&d, &c), CDP_ERR_TIMEOUT);
    TEXT("store.example");
    TEXT("nothing comes back");
    cdp_store_server_destroy(s);
    close(deaf_pipe[0]);
    close(deaf_pipe[1]);
}

/* Its store has a timeout of minutes, and its server has ended. */
TEST(a_clone_may_have_a_deadline_of_its_own) {
    cdp_store_server_desc sd;
    cdp_store_server *server;
    cdp_tcp_store_desc cd;
    cdp_store *s, *view, *clone = NULL;
    memset(&sd, 0, sizeof sd);
    memset(&cd, 0, sizeof cd);
    T_EQ(CDP_OK, cdp_store_server_create(&sd, &server));
    cd.host = "127.0.0.1";
    cd.port = cdp_store_server_port(server);
    T_EQ(CDP_OK, cdp_tcp_store_create(&cd, &s));
    T_EQ(CDP_OK, cdp_prefix_store_create(s, "a", &view));
    T_EQ(CDP_OK, cdp__store_clone_within(view, 5000, &clone));
    cdp_store_destroy(clone);
    cdp_store_server_destroy(server);
    T_EQ(CDP_ERR_TIMEOUT, cdp__store_clone_within(s, 100, &clone));
    T_EQ(CDP_ERR_TIMEOUT, cdp__store_clone_within(view, 100, &clone));
    T(!clone && cdp_store_timeout(s) >= 60000);
    cdp_store_destroy(view);
    cdp_store_destroy(s);
}

int main(int argc, char **argv) {
#define CASE(name, seconds) \
    { #name, name, seconds }
    static const test_case cases[] = {
        CASE(a_clone_may_have_a_deadline_of_its_own, 20),
        CASE(will, 20),
        CASE(will_of_a_killed_process, 10),
        CASE(destroy_sees_off_the_withdrawal_of_a_will, 20),
        CASE(destroy_sees_off_what_was_sent, 20),
        CASE(destroy_sends_answers_to_the_end, 20),
        CASE(destroy_is_bounded, 20),
        CASE(orderly_shutdown, 10),
        CASE(server_killed, 10),
        CASE(connects_to_a_late_server, 10),
        CASE(cannot_connect_says_why, 30),
        CASE(connects_while_a_store_is_closed, 20),
        CASE(cannot_listen_says_why, 10),
        CASE(addresses, 20),
        CASE(accept_runs_out_of_descriptors, 10),
        CASE(a_resolver_without_an_answer, 20),
        CASE(the_last_question_for_a_name_hides_no_answer, 20),
        CASE(a_new_connection_asks_for_no_name, 20),
        CASE(all_addresses_of_a_name, 20),
    };
    return store_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
