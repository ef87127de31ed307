/*  01_hello.c - the smallest program: every rank prints its number.

    You learn: how a process joins a job, and how it leaves.

        gcc -O2 examples/01_hello.c -o hello -pthread -lm
        gcc -O2 tools/cdprun.c -o cdprun -pthread -lm
        ./cdprun -n 4 ./hello                                                                    */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"
#include "help.h"
#include <stdio.h>

int main(int argc, char **argv) {
    if (help(argc, argv,
            "01_hello: every rank prints its number.\n"
            "usage: cdprun -n 4 ./hello"))
        return 0;
    cdp_group *world; /* RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say who we are */
    if (cdp_init_from_env(NULL, &world) != CDP_OK) return cdp_print_error(stderr);

    printf("rank %u of %u is here\n", cdp_rank(world), cdp_size(world));
    /* nobody passes before all have come */
    if (cdp_barrier(world) != CDP_OK) return cdp_print_error(stderr);
    if (cdp_rank(world) == 0) printf("all %u ranks have met\n", cdp_size(world));

    cdp_group_destroy(world);
    return 0;
}
