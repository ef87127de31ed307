/* rpc.c - one side of rpc.sh: calls of cdp_rpc.h and bare messages, or bare sockets and memory

       gcc -O2 -I. tests/bench/rpc.c -o rpc -pthread -lm
       ./rpc cdp memory        calls between two processes of this machine, over shared memory
       ./rpc cdp tcp           the same over loopback TCP
       ./rpc bare memory       a process that spins on a word of shared memory answers another one
       ./rpc bare tcp          a process that reads from a socket answers another one

   Reads lines "OP BYTES MS" and answers each with the microseconds that one of these takes, the
   mean over MS milliseconds:
       message     there and back without a call: 8 bytes there, BYTES back
       call        a call of an INLINE function (bare: the same as message); BYTES is its result
       worker      a call of a function that a worker thread runs
       flight      16 calls (bare: messages) under way at a time
       echo        a call with an argument of BYTES bytes, which it returns
       copy        memcpy() of BYTES bytes, which this process alone does
   "-" says that this side has no such thing. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "cdp_rpc.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define MOST (64u << 20)
#define FLIGHT 16u

static uint8_t
    *data; /* MOST bytes, touched; of cdp: memory that the other rank can read in place */

static double now_us(void) {
    return (double)cdp_os_default()->now_ns(NULL) / 1000;
}
static void must(cdp_status st) {
    if (st == CDP_OK) return;
    cdp_print_error(stderr);
    _exit(1);
}
static void need(bool good, const char *what) {
    if (good) return;
    perror(what);
    _exit(1);
}

typedef struct order {
    char op[16];
    uint64_t bytes;
    double ms;
} order;

static bool next_order(order *o) {
    char line[100];
    unsigned long long bytes;
    if (!fgets(line, sizeof line, stdin)
        || sscanf(line, "%15s %llu %lf", o->op, &bytes, &o->ms) != 3 || bytes > MOST)
        return false;
    o->bytes = bytes;
    return true;
}
static bool is(const order *o, const char *op) {
    return strcmp(o->op, op) == 0;
}
static void answer(double us) {
    if (us > 0)
        printf("%.3f\n", us);
    else
        printf("-\n");
    fflush(stdout);
}

/* `one` again and again: microseconds for each; it gets true with the last one. */
static double mean(const order *o, void (*one)(void *user, const order *o, bool last), void *user) {
    const uint32_t often = o->bytes < 65536 ? 64 : 1; /* between two looks at the clock */
    const double from = now_us(), until = from + 1000 * o->ms;
    uint64_t n = 0;
    while (now_us() < until || n < 3 * often)
        for (uint32_t i = 0; i < often; ++i, ++n)
            one(user, o, false);
    const double took = now_us() - from;
    one(user, o, true);
    return took / (double)n;
}

static void copy_one(void *user, const order *o, bool last) {
    (void)last;
    memcpy(user, data, o->bytes);
    __asm__ volatile("" : : "r"(user) : "memory");
}
static double copies(const order *o) {
    uint8_t *to = (uint8_t *)malloc(MOST);
    double us;
    need(to != NULL, "malloc");
    memset(to, 1, MOST);
    us = mean(o, copy_one, to);
    free(to);
    return us;
}

/* ---- cdp ---- */

/* What travels before a measurement, and 8 bytes of it with each message. */
typedef struct request {
    uint64_t bytes;
    uint64_t last;
} request;

typedef struct world {
    cdp_group *g;
    cdp_rpc *rpc;
    cdp_call flight[FLIGHT];
    uint64_t flown;
} world;

static void message_one(void *user, const order *o, bool last) {
    world *w = (world *)user;
    const uint64_t more = !last;
    must(cdp_send(w->g, &more, 8, CDP_DTYPE_U8, 1, 1));
    must(cdp_recv(w->g, data, o->bytes, CDP_DTYPE_U8, 1, 1));
}
static void answer_messages(world *w, uint64_t bytes) {
    uint64_t more = 1;
    while (more) {
        must(cdp_recv(w->g, &more, 8, CDP_DTYPE_U8, 0, 1));
        must(cdp_send(w->g, data, bytes, CDP_DTYPE_U8, 0, 1));
    }
}

static volatile uint32_t over;
static void f_over(void *user, cdp_rpc_request *q) {
    (void)user;
    (void)q;
    over = 1;
}
static void f_echo(void *user, cdp_rpc_request *q) {
    cdp_iov iov = {(void *)(uintptr_t)q->data, q->bytes};
    const cdp_args results = {.iov = &iov, .iov_count = 1};
    (void)user;
    (void)cdp_rpc_reply(q, &results);
}
static void not_freed(void *user, void *bytes) {
    (void)user;
    (void)bytes;
}
static void f_result(void *user, cdp_rpc_request *q) {
    cdp_iov iov = {data, 0};
    const cdp_args results = {.iov = &iov, .iov_count = 1};
    (void)user;
    if (q->bytes == 8) memcpy(&iov.bytes, q->data, 8);
    const cdp_value value = {.plain = {.iov = &iov, .iov_count = 1}, .destroy = not_freed};
    if (iov.bytes > 65536)
        (void)cdp_rpc_reply_value(q, &value); /* the caller reads it in place */
    else
        (void)cdp_rpc_reply(q, &results);
}

static void call_of(world *w, const char *name, void *argument, uint64_t bytes) {
    cdp_iov iov = {argument, bytes};
    const cdp_call_desc d = {
        .to = 1, .function = cdp_rpc_id(name), .args = {.iov = &iov, .iov_count = bytes > 0}};
    cdp_call call = {0};
    must(cdp_rpc_call(w->rpc, &d, &call));
    cdp_call_free(&call);
}
static void call_one(void *user, const order *o, bool last) {
    uint64_t bytes = o->bytes;
    const char *name = is(o, "worker") ? "result_in_worker" : "result";
    if (last)
        call_of((world *)user, "over", NULL, 0);
    else
        call_of((world *)user, name, &bytes, bytes ? 8 : 0);
}
static void echo_one(void *user, const order *o, bool last) {
    if (last)
        call_of((world *)user, "over", NULL, 0);
    else
        call_of((world *)user, "echo", data, o->bytes);
}
static void flight_one(void *user, const order *o, bool last) {
    world *w = (world *)user;
    const cdp_call_desc d = {.to = 1, .function = cdp_rpc_id("result")};
    (void)o;
    for (uint32_t i = 0; i < (last ? FLIGHT : 1); ++i) {
        cdp_call *call = &w->flight[w->flown++ % FLIGHT];
        if (w->flown > FLIGHT) must(cdp_call_wait(call));
        cdp_call_free(call);
        if (!last) must(cdp_rpc_start(w->rpc, &d, call));
    }
    if (!last) return;
    w->flown = 0;
    memset(w->flight, 0, sizeof w->flight);
    call_of(w, "over", NULL, 0);
}

static double cdp_measure(world *w, const order *o) {
    request r = {o->bytes, 0};
    const bool call = is(o, "call") || is(o, "worker");
    if (is(o, "copy")) return copies(o);
    if (is(o, "message")) r.last = 1;
    if (!r.last && !call && !is(o, "flight") && !is(o, "echo")) return 0;
    must(cdp_send(w->g, &r, sizeof r, CDP_DTYPE_U8, 1, 2));
    if (r.last) return mean(o, message_one, w);
    if (call) return mean(o, call_one, w);
    return mean(o, is(o, "echo") ? echo_one : flight_one, w);
}

/* Rank 1 serves: it waits as a caller waits, and so looks before it sleeps. */
static void cdp_serve(world *w) {
    for (;;) {
        request r;
        must(cdp_recv(w->g, &r, sizeof r, CDP_DTYPE_U8, 0, 2));
        if (r.bytes == UINT64_MAX) return;
        if (r.last) {
            answer_messages(w, r.bytes);
            continue;
        }
        while (!over)
            (void)!cdp_rpc_serve(w->rpc, 1);
        over = 0;
    }
}

static void cdp_rank_main(uint32_t rank, uint16_t port, bool shared) {
    static const cdp_rpc_function functions[] = {
        {.name = "echo", .func = f_echo, .flags = CDP_RPC_INLINE},
        {.name = "result", .func = f_result, .flags = CDP_RPC_INLINE},
        {.name = "result_in_worker", .func = f_result},
        {.name = "over", .func = f_over, .flags = CDP_RPC_INLINE}};
    const cdp_tcp_desc t = {.group = {.rank = rank, .world_size = 2, .timeout_ms = CDP_NO_TIMEOUT},
        .master_port = port,
        .no_shared_memory = !shared};
    cdp_rpc_desc d = {
        .functions = functions, .function_count = 4, .workers = 1, .max_message_bytes = 2 * MOST};
    static world w;
    order o;
    must(cdp_init(&t, &d.group));
    w.g = d.group;
    need(cdp_group_alloc(w.g, MOST, (void **)&data) == CDP_OK, "cdp_group_alloc");
    memset(data, 1, MOST);
    must(cdp_rpc_create(&d, &w.rpc));
    if (rank == 1) {
        cdp_serve(&w);
    } else {
        const request end = {UINT64_MAX, 0};
        while (next_order(&o))
            answer(cdp_measure(&w, &o));
        must(cdp_send(w.g, &end, sizeof end, CDP_DTYPE_U8, 1, 2));
    }
    must(cdp_rpc_shutdown(w.rpc, 0));
    cdp_rpc_destroy(w.rpc);
    cdp_group_free(w.g, data);
    cdp_group_destroy(w.g);
}

static void cdp_side(bool shared) {
    const cdp_addr any = {.family = 4, .ip = {127, 0, 0, 1}};
    cdp_addr at;
    const int32_t fd = cdp_os_default()->net.listen_at(NULL, &any, &at);
    cdp_os_default()->net.close_fd(NULL, fd);
    if (fork() == 0) {
        cdp_rank_main(1, at.port, shared);
        _exit(0);
    }
    cdp_rank_main(0, at.port, shared);
    while (wait(NULL) > 0) {
    }
}

/* ---- bare sockets ---- */

static void write_all(int fd, const void *from, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes;) {
        const ssize_t n = write(fd, (const uint8_t *)from + at, bytes - at);
        need(n > 0, "write");
        at += (uint64_t)n;
    }
}
static bool read_all(int fd, void *to, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes;) {
        const ssize_t n = recv(fd, (uint8_t *)to + at, bytes - at, MSG_WAITALL);
        if (n == 0) return false;
        need(n > 0, "recv");
        at += (uint64_t)n;
    }
    return true;
}

/* Large buffers, and reads that return when all is there: the fastest that was found. */
static void socket_ready(int fd) {
    const int on = 1, bytes = 8 << 20;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}
static void socket_serve(int fd) {
    uint64_t bytes;
    while (read_all(fd, &bytes, 8))
        write_all(fd, data, bytes);
}
static void socket_one(void *user, const order *o, bool last) {
    const int fd = *(const int *)user;
    const uint64_t bytes = o->bytes ? o->bytes : 1;
    if (last) return;
    write_all(fd, &bytes, 8);
    (void)read_all(fd, data, bytes);
}
/* 16 requests in one write, 16 answers: as few system calls as can be. */
static void socket_flight(void *user, const order *o, bool last) {
    const int fd = *(const int *)user;
    const uint64_t ones[FLIGHT] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    (void)o;
    if (last) return;
    write_all(fd, ones, sizeof ones);
    (void)read_all(fd, data, FLIGHT);
}

static void socket_side(void) {
    const cdp_os *os = cdp_os_default();
    const cdp_addr any = {.family = 4, .ip = {127, 0, 0, 1}};
    struct sockaddr_in to = {.sin_family = AF_INET};
    cdp_addr at;
    const int listener = (int)os->net.listen_at(NULL, &any, &at);
    int fd;
    order o;
    fcntl(listener, F_SETFL, 0); /* it waits */
    if (fork() == 0) {
        fd = accept(listener, NULL, NULL);
        need(fd >= 0, "accept");
        socket_ready(fd);
        socket_serve(fd);
        _exit(0);
    }
    to.sin_port = htons(at.port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    need(connect(fd, (struct sockaddr *)&to, sizeof to) == 0, "connect");
    socket_ready(fd);
    while (next_order(&o)) {
        if (is(&o, "message") || is(&o, "call"))
            answer(mean(&o, socket_one, &fd));
        else if (is(&o, "flight"))
            answer(mean(&o, socket_flight, &fd) / FLIGHT);
        else
            answer(is(&o, "copy") ? copies(&o) : 0);
    }
    close(fd);
    wait(NULL);
}

/* ---- bare memory ---- */

/* Each word in a cache line of its own. The caller counts up what it asks for, the other one what
   it has answered; answers lie in memory that both see, and the caller copies them. */
typedef struct board {
    uint64_t asked, pad1[7], answered, pad2[7], end, pad3[7], up, pad4[7];
    uint8_t area[MOST];
} board;

/* Spins for a while, then lets others run: more processes than cores may be at work. */
static void pause_a_little(uint32_t *spins) {
    if (++*spins % 4096 == 0) sched_yield();
}
static void board_wait(const uint64_t *at, uint64_t least) {
    uint32_t spins = 0;
    while (__atomic_load_n(at, __ATOMIC_ACQUIRE) < least)
        pause_a_little(&spins);
}
static void board_serve(board *b) {
    uint64_t asked = 0;
    uint32_t spins = 0;
    while (!__atomic_load_n(&b->end, __ATOMIC_ACQUIRE)) {
        const uint64_t now = __atomic_load_n(&b->asked, __ATOMIC_ACQUIRE);
        if (now != asked)
            __atomic_store_n(&b->answered, asked = now, __ATOMIC_RELEASE);
        else if (!__atomic_load_n(&b->up, __ATOMIC_ACQUIRE))
            usleep(200); /* others are being measured */
        else
            pause_a_little(&spins);
    }
}
static void board_ask(board *b, uint64_t often) {
    __atomic_store_n(&b->asked, b->asked + often, __ATOMIC_RELEASE);
    board_wait(&b->answered, b->asked);
}
static void board_one(void *user, const order *o, bool last) {
    board *b = (board *)user;
    if (last) return;
    board_ask(b, 1);
    memcpy(data, b->area, o->bytes);
}
static void board_flight(void *user, const order *o, bool last) {
    (void)o;
    if (!last) board_ask((board *)user, FLIGHT);
}

static void memory_side(void) {
    board *b =
        (board *)mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    order o;
    need(b != MAP_FAILED, "mmap");
    if (fork() == 0) {
        memset(b->area, 1, MOST);
        board_serve(b);
        _exit(0);
    }
    while (next_order(&o)) {
        __atomic_store_n(&b->up, 1, __ATOMIC_RELEASE);
        usleep(1000);
        if (is(&o, "message") || is(&o, "call"))
            answer(mean(&o, board_one, b));
        else if (is(&o, "flight"))
            answer(mean(&o, board_flight, b) / FLIGHT);
        else
            answer(is(&o, "copy") ? copies(&o) : 0);
        __atomic_store_n(&b->up, 0, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&b->end, 1, __ATOMIC_RELEASE);
    wait(NULL);
}

int main(int argc, char **argv) {
    const bool cdp = argc == 3 && strcmp(argv[1], "cdp") == 0;
    const bool memory = argc == 3 && strcmp(argv[2], "memory") == 0;
    if (argc != 3 || (!cdp && strcmp(argv[1], "bare")) || (!memory && strcmp(argv[2], "tcp"))) {
        fprintf(stderr, "rpc cdp|bare memory|tcp; rpc.sh runs it\n");
        return 2;
    }
    if (!cdp) {
        data = (uint8_t *)malloc(MOST);
        need(data != NULL, "malloc");
        memset(data, 1, MOST);
    }
    if (cdp)
        cdp_side(memory);
    else if (memory)
        memory_side();
    else
        socket_side();
    return 0;
}
