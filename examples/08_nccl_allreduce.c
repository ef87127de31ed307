/*  08_nccl_allreduce.c - the mean of arrays on GPUs

    You learn: how a group gets a NCCL communicator. The calls are those of 02_allreduce.c, with
    device pointers.

        gcc -O2 examples/08_nccl_allreduce.c -o nccl_allreduce -pthread -lm
        ./cdprun -n 4 ./nccl_allreduce

    One rank per GPU. Needs neither nvcc nor NVIDIA's headers: CUDA and NCCL are loaded when it
    runs. Without a GPU, or without those libraries, each rank says so in one sentence and ends with
    exit code 77. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"
#include "../cdp_nccl.h"
#include "help.h"
#include <dlfcn.h>
#include <stdio.h>

#define COUNT 1000000
#define NO_GPU 77

/* The few functions of CUDA that this program calls itself; a program that has its headers
   includes cuda_runtime_api.h. */
static int (*set_device)(int), (*device_count)(int *), (*copy)(void *, const void *, size_t, int);
enum {
    ANY_DIRECTION = 4
};

static int cuda_load(void) {
    const char *const names[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"};
    void *lib = NULL;
    for (int i = 0; i < 3 && !lib; ++i)
        lib = dlopen(names[i], RTLD_NOW);
    if (!lib) return 0;
    *(void **)&set_device = dlsym(lib, "cudaSetDevice");
    *(void **)&device_count = dlsym(lib, "cudaGetDeviceCount");
    *(void **)&copy = dlsym(lib, "cudaMemcpy");
    return set_device && device_count && copy;
}

static float host[COUNT];

int main(int argc, char **argv) {
    if (help(argc, argv,
            "08_nccl_allreduce: the mean of arrays on GPUs; ends with 77 where there is none.\n"
            "usage: cdprun -n 2 ./nccl_allreduce"))
        return 0;
    cdp_group *world;
    cdp_launch place;
    float *x, *y;
    cdp_work work;
    int gpus = 0;
    if (cdp_init_from_env(NULL, &world) != CDP_OK || cdp_launch_read(NULL, NULL, &place) != CDP_OK)
        return cdp_print_error(stderr);
    const uint32_t rank = cdp_rank(world), size = cdp_size(world);

    if (cuda_load() && device_count(&gpus) == 0 && gpus > 0)
        set_device((int)place.local_rank % gpus);
    /* collective: when one rank cannot, all are told why */
    if (cdp_nccl_attach(world, NULL) != CDP_OK) {
        const cdp_status why = cdp_last_error()->status;
        printf("rank %u: no GPU to work on: %s\n", rank, cdp_last_error()->text);
        cdp_group_destroy(world);
        return why == CDP_ERR_UNSUPPORTED || why == CDP_ERR_INVALID ? NO_GPU : 1;
    }

    /* Memory from cdp_nccl_alloc is what NCCL likes best; any other of the GPU will do. */
    if (cdp_nccl_alloc(world, sizeof host, (void **)&x) != CDP_OK
        || cdp_nccl_alloc(world, sizeof host, (void **)&y) != CDP_OK)
        return cdp_print_error(stderr);
    for (int i = 0; i < COUNT; ++i)
        host[i] = (float)(rank + 1);
    if (copy(x, host, sizeof host, ANY_DIRECTION) != 0) return 1;

    /* Nothing here waits for the GPU: operations and copies stand behind each other in the
       stream of the caller. */
    if (cdp_allreduce_async(world, x, y, COUNT, CDP_DTYPE_F32, CDP_REDUCE_SUM, &work) != CDP_OK
        || cdp_work_wait(work) != CDP_OK)
        return cdp_print_error(stderr);
    if (cdp_allreduce(world, NULL, x, COUNT, CDP_DTYPE_F32, CDP_REDUCE_MAX) != CDP_OK)
        return cdp_print_error(stderr);

    const float sum = (float)(size * (size + 1) / 2);
    /* this waits: it is the host that wants the numbers */
    int right = copy(host, y, sizeof host, ANY_DIRECTION) == 0;
    for (int i = 0; i < COUNT; ++i)
        right = right && host[i] == sum;
    right = copy(host, x, sizeof host, ANY_DIRECTION) == 0 && right;
    for (int i = 0; i < COUNT; ++i)
        right = right && host[i] == (float)size;
    printf("rank %u: the sum of 1 .. %u over NCCL %u is %g: %s\n", rank, size,
        cdp_nccl_version(world), (double)sum, right ? "right" : "WRONG");

    cdp_nccl_free(world, x);
    cdp_nccl_free(world, y);
    cdp_group_destroy(world);
    return right ? 0 : 1;
}
