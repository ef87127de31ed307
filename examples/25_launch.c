/*  25_launch.c - a program that starts four workers, watches them, and starts them again

    You learn: what a launcher is when it is a library.

        gcc -O2 examples/25_launch.c -o launch -pthread -lm
        ./launch

    Each worker is a copy of this process, joins the job and adds its number to those of the others.
    At the first start rank 2 kills itself; the agent sees it, ends the others and starts all again.
    The last lines say how each worker ended. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_launch.h"
#include "help.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static int work(void *user) {
    cdp_group *world;
    float sum = 0;
    (void)user;
    if (cdp_init_from_env(NULL, &world) != CDP_OK) return cdp_print_error(stderr);
    if (cdp_rank(world) == 2 && atoi(getenv("TORCHELASTIC_RESTART_COUNT")) == 0) raise(SIGKILL);
    sum = (float)cdp_rank(world);
    if (cdp_allreduce(world, NULL, &sum, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM) != CDP_OK)
        return cdp_print_error(stderr);
    printf("the ranks add up to %g\n", (double)sum);
    cdp_group_destroy(world);
    return 0;
}

int main(int argc, char **argv) {
    if (help(argc, argv,
            "25_launch: starts four workers, watches them, and starts them again.\n"
            "usage: ./launch"))
        return 0;
    const cdp_launch_desc desc = {
        .func = work, .workers = 4, .max_restarts = 3, .grace_ms = 1000, .poll_ms = 20};
    cdp_agent *agent;
    if (cdp_agent_start(&desc, &agent) != CDP_OK) return cdp_print_error(stderr);
    for (cdp_agent_state was = CDP_AGENT_INIT, now; was < CDP_AGENT_STOPPED; was = now) {
        if (cdp_agent_step(agent, 1000) != CDP_OK) return cdp_print_error(stderr);
        now = cdp_agent_state_of(agent);
        if (now != was) printf("the workers are %s\n", cdp_agent_state_name(now));
        fflush(stdout);
    }
    const cdp_launch_result *result = cdp_agent_result(agent);
    printf("after %u restarts:\n", result->restarts);
    for (uint32_t i = 0; i < result->count; ++i)
        printf(
            "rank %u ended with exit code %d\n", result->ends[i].rank, result->ends[i].exit_code);
    const bool well = result->state == CDP_AGENT_SUCCEEDED;
    cdp_agent_destroy(agent);
    return well ? 0 : 1;
}
