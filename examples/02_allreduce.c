/*  02_allreduce.c - every rank brings an array, every rank gets the mean.

    You learn: the collective operation that training is made of, blocking and in the background.

        gcc -O2 examples/02_allreduce.c -o allreduce -pthread -lm
        ./cdprun -n 4 ./allreduce                                                                */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"
#include "help.h"
#include <stdio.h>

#define COUNT 1000000

static float gradient[COUNT], other[COUNT];

int main(int argc, char **argv) {
    if (help(argc, argv,
            "02_allreduce: the mean of an array over all ranks; each says whether it is right.\n"
            "usage: cdprun -n 4 ./allreduce"))
        return 0;
    cdp_group *world;
    cdp_work work;
    if (cdp_init_from_env(NULL, &world) != CDP_OK) return cdp_print_error(stderr);
    const uint32_t rank = cdp_rank(world), size = cdp_size(world);

    /* In place (the input is NULL), and waiting for the result. */
    for (int i = 0; i < COUNT; ++i)
        gradient[i] = (float)(rank + 1);
    if (cdp_allreduce(world, NULL, gradient, COUNT, CDP_DTYPE_F32, CDP_REDUCE_AVG) != CDP_OK)
        return cdp_print_error(stderr);

    /* The same without waiting: start it, compute something else, then collect it. `other` is
       the library's meanwhile. */
    for (int i = 0; i < COUNT; ++i)
        other[i] = (float)(rank + 1);
    if (cdp_allreduce_async(world, NULL, other, COUNT, CDP_DTYPE_F32, CDP_REDUCE_AVG, &work)
        != CDP_OK)
        return cdp_print_error(stderr);
    double sum = 0;
    for (int i = 0; i < COUNT; ++i)
        sum += gradient[i];
    if (cdp_work_wait(work) != CDP_OK) return cdp_print_error(stderr);

    const float expected = (float)(size + 1) / 2;
    const int right =
        sum / COUNT == (double)expected && gradient[0] == expected && other[COUNT - 1] == expected;
    printf("rank %u: the mean of 1 .. %u is %g, expected %g: %s\n", rank, size, (double)other[0],
        (double)expected, right ? "right" : "WRONG");

    cdp_group_destroy(world);
    return right ? 0 : 1;
}
