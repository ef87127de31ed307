/*  12_actors.c - one agent and many observers: the agent answers all of them at once (a batch)

    You learn: how a function answers a request later (CDP_RPC_LATER), without a waiting thread, and
    how one function is called on many ranks (cdp_rpc_call_many).

        gcc -O2 examples/12_actors.c -o actors -pthread -lm
        cdprun -n 4 ./actors

    The agent hands each observer a reference to itself and starts an episode there. Observers run
    on ranks of their own and ask the agent for their next action. The agent keeps each request
    until all observers have asked, and then answers them together. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"

#include "../cdp_rpc.h"

#include "help.h"
#include <stdio.h>

#define STEPS 50
#define MOST 64

typedef struct agent {
    uint32_t observers, waiting, batches, asked;
    cdp_rpc_request *requests[MOST];
} agent;

static int fail(const char *what) {
    fprintf(stderr, "%s: ", what);
    return cdp_print_error(stderr);
}

/* On the agent: {where the observer stands} -> {where it should go}. max_running 1, so that
   nothing in here needs a lock. */
static void select_action(void *user, cdp_rpc_request *request) {
    agent *a = (agent *)request->on->data;
    (void)user;
    a->requests[a->waiting++] = request;
    ++a->asked;
    if (a->waiting < a->observers) return;
    a->waiting = 0;
    ++a->batches; /* before the answers: the last one may end the program's count */
    for (uint32_t i = 0; i < a->observers; ++i) {
        int64_t at, action;
        memcpy(&at, a->requests[i]->data, sizeof at);
        action = at > 0 ? -1 : 1; /* towards 0 */
        cdp_iov iov = {.data = &action, .bytes = sizeof action};
        const cdp_args results = {.iov = &iov, .iov_count = 1};
        cdp_rpc_reply(a->requests[i], &results);
    }
}

/* On an observer: runs an episode with the agent that the first argument refers to; returns the
   sum of its rewards. */
static void run_episode(void *user, cdp_rpc_request *request) {
    int64_t at = 10 * (int64_t)cdp_rank((cdp_group *)user), reward = 0;
    for (int step = 0; step < STEPS; ++step) {
        cdp_call call = {0};
        cdp_iov iov = {.data = &at, .bytes = sizeof at};
        const cdp_call_desc ask = {.on = request->rrefs[0],
            .function = cdp_rpc_id("select_action"),
            .args = {.iov = &iov, .iov_count = 1}};
        int64_t action = 0;
        if (cdp_rpc_call(request->rpc, &ask, &call) != CDP_OK) {
            cdp_rpc_fail(request, 1, cdp_last_error()->text);
            cdp_call_free(&call);
            return;
        }
        memcpy(&action, call.data, sizeof action);
        cdp_call_free(&call);
        at += action;
        reward += at >= -1 && at <= 1;
    }
    cdp_iov iov = {.data = &reward, .bytes = sizeof reward};
    const cdp_args results = {.iov = &iov, .iov_count = 1};
    cdp_rpc_reply(request, &results);
}

static int play(cdp_rpc *rpc, uint32_t ranks) {
    agent a = {.observers = ranks - 1};
    const cdp_value value = {.data = &a};
    cdp_call calls[MOST];
    uint32_t observers[MOST];
    cdp_rref self;
    bool right = true;
    memset(calls, 0, sizeof calls);
    for (uint32_t i = 0; i < a.observers; ++i)
        observers[i] = 1 + i;
    if (cdp_rref_create(rpc, &value, "agent", &self) != CDP_OK) return fail("agent");
    const cdp_call_desc episode = {
        .function = cdp_rpc_id("run_episode"), .args = {.rrefs = &self, .rref_count = 1}};
    if (cdp_rpc_call_many(rpc, &episode, observers, a.observers, calls) != CDP_OK)
        return fail("run_episode");
    for (uint32_t i = 0; i < a.observers; ++i) {
        int64_t reward;
        memcpy(&reward, calls[i].data, sizeof reward);
        printf("observer %u: %d of %d steps at the goal\n", observers[i], (int)reward, STEPS);
        right = right && reward == STEPS - (10 * (int64_t)observers[i] - 1) + 1;
    }
    cdp_call_free_many(calls, a.observers);
    right = right && a.batches == STEPS && a.asked == STEPS * a.observers;
    printf("%u questions, answered in %u batches of %u: %s\n", a.asked, a.batches, a.observers,
        right ? "right" : "wrong");
    cdp_rref_drop(self);
    return right ? 0 : 1;
}

int main(int argc, char **argv) {
    if (help(argc, argv,
            "12_actors: an agent answers the questions of observers in batches.\n"
            "usage: cdprun -n 4 ./actors"))
        return 0;
    cdp_rpc_function functions[] = {
        {.name = "select_action", .func = select_action, .flags = CDP_RPC_LATER, .max_running = 1},
        {.name = "run_episode", .func = run_episode}};
    cdp_rpc_desc desc = {.functions = functions, .function_count = 2};
    cdp_rpc *rpc;
    int result = 0;
    if (cdp_init_from_env(NULL, &desc.group) != CDP_OK) return cdp_print_error(stderr);
    if (cdp_size(desc.group) < 2 || cdp_size(desc.group) > 6) {
        fprintf(stderr, "this needs 2 to 6 ranks: cdprun -n 4 ./actors\n");
        return 1;
    }
    functions[1].user = desc.group;
    if (cdp_rpc_create(&desc, &rpc) != CDP_OK) return fail("create");
    if (cdp_rank(desc.group) == 0) result = play(rpc, cdp_size(desc.group));
    if (cdp_rpc_shutdown(rpc, 0) != CDP_OK) return fail("shutdown"); /* observers serve in here */
    cdp_rpc_destroy(rpc);
    cdp_group_destroy(desc.group);
    return result;
}
