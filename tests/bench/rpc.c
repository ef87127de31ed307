/* rpc.c - a call of cdp_rpc.h beside a bare message there and back, in one run, in turns

       gcc -O2 -I. tests/bench/rpc.c -o rpc -pthread -lm && ./rpc

   Two processes of this machine, over shared memory and over TCP. Each line: the median of rounds
   that take turns, in microseconds, and the median of the rounds' ratios. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "cdp_rpc.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#define ROUNDS 21

static double now_us(void) {
    return (double)cdp_os_default()->now_ns(NULL) / 1000;
}
static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(double *x) {
    qsort(x, ROUNDS, sizeof *x, by_value);
    return x[ROUNDS / 2];
}
static void must(cdp_status st) {
    if (st == CDP_OK) return;
    cdp_print_error(stderr);
    _exit(1);
}

static uint8_t data[1 << 20];

static void f_echo(void *user, cdp_rpc_request *request) {
    cdp_iov iov = {(void *)(uintptr_t)request->data, request->bytes};
    const cdp_args results = {.iov = &iov, .iov_count = 1};
    (void)user;
    (void)cdp_rpc_reply(request, &results);
}

/* There and back, n times: microseconds for each. */
static double messages(cdp_group *g, uint32_t n, uint64_t bytes) {
    const uint32_t me = cdp_rank(g), other = 1 - me;
    const double from = now_us();
    for (uint32_t i = 0; i < n; ++i) {
        if (me == 0) must(cdp_send(g, data, bytes, CDP_DTYPE_U8, other, 1));
        must(cdp_recv(g, data, bytes, CDP_DTYPE_U8, other, 1));
        if (me == 1) must(cdp_send(g, data, bytes, CDP_DTYPE_U8, other, 1));
    }
    return (now_us() - from) / n;
}

static double calls(cdp_rpc *rpc, const char *name, uint32_t n, uint64_t bytes) {
    cdp_iov iov = {data, bytes};
    const cdp_call_desc d = {
        .to = 1, .function = cdp_rpc_id(name), .args = {.iov = &iov, .iov_count = bytes > 0}};
    const double from = now_us();
    for (uint32_t i = 0; i < n; ++i) {
        cdp_call call = {0};
        must(cdp_rpc_call(rpc, &d, &call));
        cdp_call_free(&call);
    }
    return (now_us() - from) / n;
}

/* 16 at a time */
static double pipelined(cdp_rpc *rpc, uint32_t n) {
    static cdp_call flight[16];
    const cdp_call_desc d = {.to = 1, .function = cdp_rpc_id("echo")};
    const double from = now_us();
    for (uint32_t i = 0; i < n; ++i) {
        cdp_call *call = &flight[i % 16];
        if (i >= 16) must(cdp_call_wait(call));
        cdp_call_free(call);
        must(cdp_rpc_start(rpc, &d, call));
    }
    for (uint32_t i = 0; i < 16; ++i) {
        must(cdp_call_wait(&flight[i]));
        cdp_call_free(&flight[i]);
    }
    return (now_us() - from) / n;
}

static volatile uint32_t over;
static void f_over(void *user, cdp_rpc_request *request) {
    (void)user;
    (void)request;
    over = 1;
}

/* Rank 1 serves: it waits as a caller waits, and so looks before it sleeps. */
static void serve_round(cdp_rpc *rpc) {
    while (!over)
        (void)!cdp_rpc_serve(rpc, 1);
    over = 0;
}
static void end_round(cdp_rpc *rpc) {
    (void)calls(rpc, "over", 1, 0);
}

static void measure(cdp_group *g, cdp_rpc *rpc, const char *how, uint64_t bytes, uint32_t n) {
    double m[ROUNDS], c[ROUNDS], w[ROUNDS], p[ROUNDS], r[ROUNDS];
    for (uint32_t i = 0; i < ROUNDS; ++i) {
        must(cdp_barrier(g));
        m[i] = messages(g, n, bytes ? bytes : 1);
        must(cdp_barrier(g));
        if (cdp_rank(g) == 1) {
            serve_round(rpc);
            continue;
        }
        c[i] = calls(rpc, "echo", n, bytes);
        w[i] = calls(rpc, "echo_in_worker", n, bytes);
        p[i] = bytes ? 0 : pipelined(rpc, n);
        r[i] = c[i] / m[i];
        end_round(rpc);
    }
    if (cdp_rank(g) == 1) return;
    printf("%-14s %8llu B  message %8.2f us   INLINE call %8.2f us   ratio %5.2f   worker %8.2f us",
        how, (unsigned long long)bytes, median(m), median(c), median(r), median(w));
    if (!bytes) printf("   16 in flight: %.0f calls/s", 1e6 / median(p));
    printf("\n");
}

static void rank_main(uint32_t rank, uint16_t port, bool shared) {
    static const cdp_rpc_function functions[] = {
        {.name = "echo", .func = f_echo, .flags = CDP_RPC_INLINE},
        {.name = "echo_in_worker", .func = f_echo},
        {.name = "over", .func = f_over, .flags = CDP_RPC_INLINE}};
    const cdp_tcp_desc t = {
        .group = {.rank = rank, .world_size = 2}, .master_port = port, .no_shared_memory = !shared};
    cdp_rpc_desc d = {.functions = functions, .function_count = 3, .workers = 1};
    const char *how = shared ? "shared memory" : "TCP";
    cdp_rpc *rpc;
    must(cdp_init(&t, &d.group));
    must(cdp_rpc_create(&d, &rpc));
    measure(d.group, rpc, how, 0, 2000);
    measure(d.group, rpc, how, 4096, 1000);
    measure(d.group, rpc, how, 60000, 200);
    measure(d.group, rpc, how, 1 << 20, 20);
    must(cdp_rpc_shutdown(rpc, 0));
    cdp_rpc_destroy(rpc);
    cdp_group_destroy(d.group);
}

int main(void) {
    for (uint32_t shared = 2; shared-- > 0;) {
        const cdp_addr any = {.family = 4, .ip = {127, 0, 0, 1}};
        cdp_addr at;
        const int32_t fd = cdp_os_default()->net.listen_at(NULL, &any, &at);
        cdp_os_default()->net.close_fd(NULL, fd);
        fflush(stdout);
        for (uint32_t rank = 0; rank < 2; ++rank)
            if (fork() == 0) {
                rank_main(rank, at.port, shared);
                fflush(stdout);
                _exit(0);
            }
        while (wait(NULL) > 0) {
        }
    }
    return 0;
}
