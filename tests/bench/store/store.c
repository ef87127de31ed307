/*  Stores under load: ours, PyTorch's and Redis, by the same client.

        store serve [KEY]                          our server; prints its port and serves until stdin ends
        store NAME PROTOCOL PORT PID JOINS [KEY]   measure the server there; PROTOCOL: cdp, old (PyTorch 1.13), resp (Redis)

    What is measured: joins (connect, handshake, a set and a get, connection kept), memory of the server for each idle connection,
    requests per second and their latency with one client, with 50, and with one beside all the idle ones. A request is an
    addition to a counter, which all of them answer. */
#define CDP_IMPLEMENTATION
#include "cdp_store.h"
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/resource.h>

typedef enum protocol {
    CDP,
    OLD,
    RESP
} protocol;

static protocol speaks;
static uint16_t port;
static uint8_t key[CDP__AUTH_BYTES];
static bool keyed;

static void die(const char *what) {
    fprintf(stderr, "store bench: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now_s(void) {
    return (double)cdp_os_default()->now_ns(NULL) / 1e9;
}

static int dial(void) {
    struct sockaddr_in a;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET;
    a.sin_port = htons(port);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static void say(int fd, const void *p, size_t n) {
    if (send(fd, p, n, MSG_NOSIGNAL) != (ssize_t)n) die("send");
}

static void hear(int fd, uint8_t *p, size_t n) {
    while (n) {
        const ssize_t r = recv(fd, p, n, 0);
        if (r <= 0) die("recv");
        p += r;
        n -= (size_t)r;
    }
}

/* Requests as bytes */

static size_t put_str(uint8_t *p, const char *s) {
    cdp__put_u64(p, strlen(s));
    memcpy(p + 8, s, strlen(s));
    return 8 + strlen(s);
}

static size_t put_add(uint8_t *p) {
    if (speaks == RESP)
        return (size_t)sprintf((char *)p, "*3\r\n$6\r\nINCRBY\r\n$2\r\n/n\r\n$1\r\n1\r\n");
    p[0] = speaks == OLD ? 3 : CDP__OP_ADD;
    cdp__put_u64(p + 1 + put_str(p + 1, "/n"), 1);
    return 1 + 10 + 8;
}

/* Whether the answer to an addition is complete. */
static bool added(const uint8_t *p, size_t n) {
    return speaks == RESP ? n > 1 && p[n - 1] == '\n' : n == 8;
}

static void greet(int fd) {
    uint8_t b[64] = {CDP__OP_VALIDATE, 0xce, 0xf7, 0x85, 0x3c, CDP__OP_PING, 1, 2, 3, 4};
    if (keyed) { /* blocking, so the pump of the library is not of use here */
        cdp__auth a;
        memset(&a, 0, sizeof a);
        if (cdp__auth_open(&a, cdp_os_default(), key, false, CDP__AUTH_STORE, CDP__AUTH_NO_ANSWER)
            != CDP_OK)
            die("random");
        for (int i = 0; i < 2; ++i) {
            say(fd, a.out, sizeof a.out);
            hear(fd, a.in, sizeof a.in);
            a.got = sizeof a.in;
            if (cdp__auth_read(&a) < 0) die("key");
        }
    }
    /* which has no handshake; that of the new protocol is a ping, so Redis is asked for one, too */
    if (speaks == OLD) return;
    if (speaks == RESP)
        say(fd, "PING\r\n", 6);
    else
        say(fd, b, 10);
    hear(fd, b, speaks == RESP ? 7 : 4);
}

static void set_and_get(int fd) {
    uint8_t b[200];
    size_t n = 0;
    if (speaks == RESP) {
        n = (size_t)sprintf((char *)b,
            "*3\r\n$3\r\nSET\r\n$2\r\n/k\r\n$5\r\nvalue\r\n*2\r\n$3\r\nGET\r\n$2\r\n/k\r\n");
        say(fd, b, n);
        hear(fd, b, 5 + 11);
        return;
    }
    b[n++] = speaks == OLD ? 0 : CDP__OP_SET;
    n += put_str(b + n, "/k");
    n += put_str(b + n, "value");
    b[n++] = speaks == OLD ? CDP__OP_OLD_GET : CDP__OP_GET;
    n += put_str(b + n, "/k");
    say(fd, b, n);
    hear(fd, b, 13);
}

/* Joins */

static uint64_t server_kib(int pid) {
    char line[200], path[40];
    unsigned long kib = 0;
    FILE *f;
    sprintf(path, "/proc/%d/status", pid);
    f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmRSS: %lu kB", &kib) == 1) break;
    if (f) fclose(f);
    return kib;
}

static int *idle;
static uint32_t idle_count;

static void joins(const char *name, uint32_t n, int pid) {
    const uint64_t before = server_kib(pid);
    const double start = now_s();
    double took;
    idle = (int *)malloc(n * sizeof *idle);
    for (idle_count = 0; idle_count < n; ++idle_count) {
        idle[idle_count] = dial();
        greet(idle[idle_count]);
        set_and_get(idle[idle_count]);
    }
    took = now_s() - start;
    printf("%-12s %6u joins: %7.0f per second; server memory for each that then is idle: %5.0f "
           "bytes\n",
        name, n, n / took, (double)(server_kib(pid) - before) * 1024 / n);
    fflush(stdout);
}

/* Requests: `n` clients, each with one request on its way. */

static int compare(const void *a, const void *b) {
    return *(const float *)a < *(const float *)b ? -1 : *(const float *)a > *(const float *)b;
}

typedef struct asker {
    int fd;
    size_t got;
    double asked;
    uint8_t in[64];
} asker;

static void requests(const char *name, const char *what, uint32_t n, double seconds) {
    const int e = epoll_create1(EPOLL_CLOEXEC);
    asker *a = (asker *)calloc(n, sizeof *a);
    float *us = (float *)malloc((4u << 20) * sizeof *us);
    uint8_t rq[64];
    const size_t bytes = put_add(rq);
    uint32_t done = 0, i;
    double start, end;
    for (i = 0; i < n; ++i) {
        struct epoll_event ev;
        a[i].fd = dial();
        greet(a[i].fd);
        ev.events = EPOLLIN;
        ev.data.ptr = &a[i];
        epoll_ctl(e, EPOLL_CTL_ADD, a[i].fd, &ev);
    }
    start = now_s();
    end = start + seconds;
    for (i = 0; i < n; ++i) {
        a[i].asked = now_s();
        say(a[i].fd, rq, bytes);
    }
    while (done < (4u << 20)) {
        struct epoll_event ev[64];
        const int k = n == 1 ? 1 : epoll_wait(e, ev, 64, 1000);
        const double now = now_s();
        if (now > end) break;
        for (int j = 0; j < k; ++j) {
            asker *c = n == 1 ? a : (asker *)ev[j].data.ptr;
            const ssize_t r = recv(c->fd, c->in + c->got, sizeof c->in - c->got, 0);
            if (r <= 0) die("recv");
            c->got += (size_t)r;
            if (!added(c->in, c->got)) continue;
            c->got = 0;
            us[done++] = (float)((now_s() - c->asked) * 1e6);
            c->asked = now_s();
            say(c->fd, rq, bytes);
        }
    }
    qsort(us, done, sizeof *us, compare);
    printf("%-12s %-28s %8.0f requests per second, p50 %6.1f us, p99 %7.1f us\n", name, what,
        done / (now_s() - start), (double)us[done / 2], (double)us[(uint64_t)done * 99 / 100]);
    fflush(stdout);
    for (i = 0; i < n; ++i)
        close(a[i].fd);
    close(e);
    free(a);
    free(us);
}

static int serve(const char *secret) {
    cdp_store_server_desc d = {.job_key = secret};
    cdp_store_server *s;
    if (cdp_store_server_create(&d, &s) != CDP_OK) return cdp_print_error(stderr);
    printf("%u\n", cdp_store_server_port(s));
    fflush(stdout);
    while (getchar() != EOF) {
    }
    cdp_store_server_destroy(s);
    return 0;
}

int main(int argc, char **argv) {
    struct rlimit r;
    uint32_t n;
    char alone[40], many[40];
    const char *seconds = getenv("STORE_SECONDS");
    const double s = seconds ? atof(seconds) : 2;
    getrlimit(RLIMIT_NOFILE, &r);
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
    if (argc > 1 && !strcmp(argv[1], "serve")) return serve(argc > 2 ? argv[2] : NULL);
    if (argc < 6) return 2;
    n = (uint32_t)atoi(argv[5]);
    sprintf(alone, "one, beside %u idle", n);
    sprintf(many, "50, beside %u idle", n);
    speaks = !strcmp(argv[2], "resp") ? RESP : !strcmp(argv[2], "old") ? OLD : CDP;
    port = (uint16_t)atoi(argv[3]);
    keyed = argc > 6;
    if (keyed) cdp__auth_key(argv[6], key);
    requests(argv[1], "one client", 1, s);
    requests(argv[1], "50 clients", 50, s);
    joins(argv[1], n, atoi(argv[4]));
    requests(argv[1], alone, 1, s);
    requests(argv[1], many, 50, s);
    return 0;
}
