/*  10_parameter_server.c - a server owns the parameters; one of its trainers is killed

    You learn: remote calls and references, and what a server does when a client dies: it reports
    the death, releases what that trainer held, goes on with the others, and ends with them
    (.survivors).

        gcc -O2 examples/10_parameter_server.c -o parameter_server -pthread -lm
        ./parameter_server                  starts four processes itself

    The model is a line, y = w0 + w1 x, with w = 3, -2. A trainer fetches the parameters, computes a
    gradient on its own data, and has the server subtract it. Updates run one after the other
    (max_running 1); trainers do not wait for each other. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"

#include "../cdp_rpc.h"

#include "help.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#define RANKS 4
#define STEPS 400
#define DIES 3 /* this rank, after DIES_AT steps */
#define DIES_AT 50

typedef struct server {
    double w[2];
    uint32_t updates, lost;
    cdp_rref model;
} server;

static int fail(const char *what) {
    fprintf(stderr, "%s: ", what);
    return cdp_print_error(stderr);
}

/* ---- what the server does for others ---- */

static void get_model(void *user, cdp_rpc_request *request) {
    server *s = (server *)user;
    const cdp_args results = {.rrefs = &s->model, .rref_count = 1};
    cdp_rpc_reply(request, &results);
}

/* runs on the model: request->on */
static void subtract(void *user, cdp_rpc_request *request) {
    server *s = (server *)request->on->data;
    const double *gradient = (const double *)request->data;
    (void)user;
    s->w[0] -= gradient[0];
    s->w[1] -= gradient[1];
    ++s->updates;
}

static void lost(void *user, uint32_t rank, const cdp_error *why) {
    printf("rank %u is lost (%s); the others go on\n", rank, cdp_status_name(why->status));
    fflush(stdout);
    ++((server *)user)->lost;
}

static int serve(cdp_group *world) {
    server s = {.w = {0, 0}};
    cdp_iov iov = {.data = s.w, .bytes = sizeof s.w};
    const cdp_value model = {.data = &s, .plain = {.iov = &iov, .iov_count = 1}};
    const cdp_rpc_function functions[] = {{.name = "get_model", .func = get_model, .user = &s},
        {.name = "subtract", .func = subtract, .max_running = 1}};
    const cdp_rpc_desc desc = {.group = world,
        .name = "server",
        .functions = functions,
        .function_count = 2,
        .survivors = true,
        .lost = lost,
        .user = &s};
    cdp_rpc *rpc;
    cdp_rpc_stats left;
    if (cdp_rpc_create(&desc, &rpc) != CDP_OK) return fail("server");
    if (cdp_rref_create(rpc, &model, "model", &s.model) != CDP_OK) return fail("server");
    if (cdp_barrier(world) != CDP_OK) return fail("server");
    if (cdp_rpc_shutdown(rpc, 0) != CDP_OK) return fail("server"); /* serves the trainers */
    left = cdp_rpc_stats_of(rpc);
    printf("%u updates; w = %.3f, %.3f; references that others hold: %u\n", s.updates, s.w[0],
        s.w[1], (unsigned)left.forks);
    cdp_rref_drop(s.model);
    cdp_rpc_destroy(rpc);
    return left.forks || s.lost != 1 || fabs(s.w[0] - 3) > 0.05 || fabs(s.w[1] + 2) > 0.05;
}

/* ---- trainers ---- */

static int train(cdp_group *world) {
    const uint32_t rank = cdp_rank(world);
    const cdp_rpc_desc desc = {.group = world, .survivors = true};
    cdp_call call = {0};
    cdp_rref model;
    cdp_rpc *rpc;
    uint32_t server_rank;
    if (cdp_rpc_create(&desc, &rpc) != CDP_OK) return fail("trainer");
    if (cdp_barrier(world) != CDP_OK) return fail("trainer");
    server_rank = (uint32_t)cdp_rpc_rank_of(rpc, "server");
    const cdp_call_desc ask = {.to = server_rank, .function = cdp_rpc_id("get_model")};
    if (cdp_rpc_call(rpc, &ask, &call) != CDP_OK) return fail("get_model");
    model = call.rrefs[0];
    cdp_rref_keep(model);
    cdp_call_free(&call);
    for (int step = 0; step < STEPS; ++step) {
        double w[2], gradient[2] = {0, 0};
        cdp_iov iov = {.data = gradient, .bytes = sizeof gradient};
        const cdp_call_desc push = {
            .on = model, .function = cdp_rpc_id("subtract"), .args = {.iov = &iov, .iov_count = 1}};
        if (rank == DIES && step == DIES_AT) raise(SIGKILL);
        if (cdp_rref_to_here(model, 0, &call) != CDP_OK) return fail("to_here");
        memcpy(w, call.data, sizeof w);
        cdp_call_free(&call);
        for (int i = 0; i < 8; ++i) { /* a batch of this rank's data */
            const double x = ((step * 7 + i * 13 + (int)rank * 5) % 21) / 10.0 - 1;
            const double error = w[0] + w[1] * x - (3 - 2 * x);
            gradient[0] += 0.01 * error;
            gradient[1] += 0.01 * error * x;
        }
        if (cdp_rpc_call(rpc, &push, &call) != CDP_OK) return fail("subtract");
        cdp_call_free(&call);
    }
    cdp_rref_drop(model);
    if (cdp_rpc_shutdown(rpc, 0) != CDP_OK) return fail("trainer");
    cdp_rpc_destroy(rpc);
    return 0;
}

static int rank_main(uint32_t rank, uint16_t port) {
    const cdp_tcp_desc desc = {
        .group = {.rank = rank, .world_size = RANKS, .logger = {.level = CDP_LOG_ERROR}},
        .master_port = port,
        .init_timeout_ms = 20000};
    cdp_group *world;
    int result;
    if (cdp_init(&desc, &world) != CDP_OK) return fail("init");
    result = rank == 0 ? serve(world) : train(world);
    cdp_group_destroy(world);
    return result;
}

int main(int argc, char **argv) {
    if (help(argc, argv,
            "10_parameter_server: starts a server and three trainers, kills one, and says whether "
            "the model was learned.\n"
            "usage: ./parameter_server"))
        return 0;
    const cdp_addr any = {.family = 4, .ip = {127, 0, 0, 1}};
    cdp_addr at;
    pid_t ranks[RANKS];
    bool right = true;
    const int32_t fd = cdp_os_default()->net.listen_at(NULL, &any, &at); /* a free port */
    if (fd < 0) return 1;
    cdp_os_default()->net.close_fd(NULL, fd);
    for (uint32_t r = 0; r < RANKS; ++r) {
        ranks[r] = fork();
        if (ranks[r] == 0) {
            const int result = rank_main(r, at.port);
            fflush(stdout);
            _exit(result);
        }
    }
    for (uint32_t r = 0; r < RANKS; ++r) {
        int how = 0;
        waitpid(ranks[r], &how, 0);
        if (r == DIES)
            right = right && WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL;
        else
            right = right && WIFEXITED(how) && WEXITSTATUS(how) == 0;
    }
    printf("a trainer was killed, and the model was learned: %s\n", right ? "right" : "wrong");
    return right ? 0 : 1;
}
