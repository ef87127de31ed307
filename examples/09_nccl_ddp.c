/*  09_nccl_ddp.c - training with parameters and gradients on GPUs

    You learn: DDP in the order of a CUDA stream. All ranks together learn y = 1 + 2 x.

        gcc -O2 examples/09_nccl_ddp.c -o nccl_ddp -pthread -lm
        ./cdprun -n 4 ./nccl_ddp

    cdp_ddp_create() finds out from the pointers that parameters are on a GPU; the calls are those
    of any other DDP. So that this file needs no nvcc, the host computes the model and copies it;
    in your program, kernels in the same stream take the place of the copies. Without a GPU, or
    without CUDA and NCCL, each rank says so in one sentence and ends with exit code 77. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"
#include "../cdp_nccl.h"
#include "help.h"
#include <dlfcn.h>
#include <stdio.h>

#define STEPS 200
#define NO_GPU 77

static int (*set_device)(int), (*device_count)(int *), (*create_stream)(void **, unsigned),
    (*destroy_stream)(void *), (*wait_for_stream)(void *);
static int (*get_memory)(void **, size_t), (*free_memory)(void *),
    (*copy_async)(void *, const void *, size_t, int, void *);
enum {
    ANY_DIRECTION = 4,
    NON_BLOCKING = 1
};

static int cuda_load(void) {
    const char *const names[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"};
    void *lib = NULL;
    for (int i = 0; i < 3 && !lib; ++i)
        lib = dlopen(names[i], RTLD_NOW);
    if (!lib) return 0;
    *(void **)&set_device = dlsym(lib, "cudaSetDevice");
    *(void **)&device_count = dlsym(lib, "cudaGetDeviceCount");
    *(void **)&create_stream = dlsym(lib, "cudaStreamCreateWithFlags");
    *(void **)&destroy_stream = dlsym(lib, "cudaStreamDestroy");
    *(void **)&wait_for_stream = dlsym(lib, "cudaStreamSynchronize");
    *(void **)&get_memory = dlsym(lib, "cudaMalloc");
    *(void **)&free_memory = dlsym(lib, "cudaFree");
    *(void **)&copy_async = dlsym(lib, "cudaMemcpyAsync");
    return set_device && device_count && create_stream && destroy_stream && wait_for_stream
        && get_memory && free_memory && copy_async;
}

static int failed(cdp_group *world, uint32_t rank) {
    const cdp_status why = cdp_last_error()->status;
    printf("rank %u: no GPU to work on: %s\n", rank, cdp_last_error()->text);
    cdp_group_destroy(world);
    return why == CDP_ERR_UNSUPPORTED || why == CDP_ERR_INVALID ? NO_GPU : 1;
}

int main(int argc, char **argv) {
    if (help(argc, argv,
            "09_nccl_ddp: training with parameters on GPUs; ends with 77 where there is none.\n"
            "usage: cdprun -n 2 ./nccl_ddp"))
        return 0;
    cdp_group *world;
    cdp_launch place;
    cdp_ddp *ddp;
    void *stream = NULL;
    float *w, host[2] = {0, 0}, g[2];
    int gpus = 0;
    if (cdp_init_from_env(NULL, &world) != CDP_OK || cdp_launch_read(NULL, NULL, &place) != CDP_OK)
        return cdp_print_error(stderr);
    const uint32_t rank = cdp_rank(world);

    /* This rank's GPU, and a stream for its work: that stream is all that DDP has to know. */
    if (cuda_load() && device_count(&gpus) == 0 && gpus > 0
        && set_device((int)place.local_rank % gpus) == 0)
        create_stream(&stream, NON_BLOCKING);
    const cdp_nccl_desc nccl = {.stream = stream};
    if (cdp_nccl_attach(world, &nccl) != CDP_OK) return failed(world, rank);

    if (get_memory((void **)&w, sizeof host) != 0
        || copy_async(w, host, sizeof host, ANY_DIRECTION, stream) != 0)
        return 1;
    const cdp_param params[] = {{.name = "w", .data = w, .count = 2}};
    const cdp_ddp_desc desc = {.group = world, .params = params, .param_count = 1};
    if (cdp_ddp_create(&desc, &ddp) != CDP_OK) return cdp_print_error(stderr);
    float *gradient = (float *)cdp_ddp_grad(ddp, 0); /* on the GPU, in the bucket */

    for (int step = 0; step < STEPS; ++step) {
        const float x = (float)((step * 7 + (int)rank * 3) % 10) / 10,
                    error = host[0] + host[1] * x - (1 + 2 * x);
        if (cdp_ddp_backward_begin(ddp) != CDP_OK) return cdp_print_error(stderr);
        g[0] = error;
        g[1] = error * x;
        /* "the kernel" */
        if (copy_async(gradient, g, sizeof g, ANY_DIRECTION, stream) != 0) return 1;
        cdp_ddp_ready(ddp, 0);
        if (cdp_ddp_backward_end(ddp) != CDP_OK) return cdp_print_error(stderr);
        /* What comes next in the stream finds the mean over all ranks; the host waits here only
           because it is the optimizer. */
        if (copy_async(g, gradient, sizeof g, ANY_DIRECTION, stream) != 0
            || wait_for_stream(stream) != 0)
            return 1;
        host[0] -= 0.5f * g[0];
        host[1] -= 0.5f * g[1];
        if (copy_async(w, host, sizeof host, ANY_DIRECTION, stream) != 0) return 1;
    }
    if (cdp_ddp_verify(ddp) != CDP_OK) return cdp_print_error(stderr);
    const int learned = host[0] > 0.98f && host[0] < 1.02f && host[1] > 1.95f && host[1] < 2.05f;
    printf("rank %u on GPU %d: y = %.3f + %.3f x: %s\n", rank, (int)place.local_rank % gpus,
        (double)host[0], (double)host[1], learned ? "learned" : "WRONG");

    cdp_ddp_destroy(ddp);
    cdp_group_destroy(world);
    free_memory(w);
    destroy_stream(stream);
    return learned ? 0 : 1;
}
