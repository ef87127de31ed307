/* gpu.h - what tests call of CUDA, loaded at run time, so that they compile anywhere; with the
   stand-in, its controls, too. Include after test.h. */
#ifndef GPU_INCLUDED
#define GPU_INCLUDED

#include <dlfcn.h>

/* clang-format off: one row a line */
#define GPU_CALLS(X)                                                \
    X(cudaGetDeviceCount, (int *))                                  \
    X(cudaGetDevice, (int *))                                       \
    X(cudaSetDevice, (int))                                         \
    X(cudaDeviceSynchronize, (void))                                \
    X(cudaMalloc, (void **, size_t))                                \
    X(cudaFree, (void *))                                           \
    X(cudaMallocHost, (void **, size_t))                            \
    X(cudaFreeHost, (void *))                                       \
    X(cudaMallocManaged, (void **, size_t, unsigned))               \
    X(cudaMallocAsync, (void **, size_t, void *))                   \
    X(cudaFreeAsync, (void *, void *))                              \
    X(cudaMemcpy, (void *, const void *, size_t, int))              \
    X(cudaMemcpyAsync, (void *, const void *, size_t, int, void *)) \
    X(cudaMemset, (void *, int, size_t))                            \
    X(cudaMemsetAsync, (void *, int, size_t, void *))               \
    X(cudaGetLastError, (void))                                     \
    X(cudaStreamCreateWithFlags, (void **, unsigned))               \
    X(cudaStreamDestroy, (void *))                                  \
    X(cudaStreamSynchronize, (void *))                              \
    X(cudaStreamQuery, (void *))                                    \
    X(cudaStreamWaitEvent, (void *, void *, unsigned))              \
    X(cudaLaunchHostFunc, (void *, void (*)(void *), void *))       \
    X(cudaEventCreateWithFlags, (void **, unsigned))                \
    X(cudaEventDestroy, (void *))                                   \
    X(cudaEventRecord, (void *, void *))                            \
    X(cudaEventQuery, (void *))                                     \
    X(cudaEventSynchronize, (void *))                               \
    X(cudaEventElapsedTime, (float *, void *, void *))              \
    X(cudaStreamBeginCapture, (void *, int))                        \
    X(cudaStreamEndCapture, (void *, void **))                      \
    X(cudaGraphInstantiate, (void **, void *, unsigned long long))  \
    X(cudaGraphLaunch, (void *, void *))                            \
    X(cudaGraphExecDestroy, (void *))                               \
    X(cudaGraphDestroy, (void *))                                   \
    X(cudaRuntimeGetVersion, (int *))                               \
    X(cudaDriverGetVersion, (int *))
/* clang-format on */
#define GPU_DECLARE(name, args) static int(*gpu_##name) args __attribute__((unused));
GPU_CALLS(GPU_DECLARE)

static void (*standin_set)(const char *, long) __attribute__((unused));
static long (*standin_get)(const char *) __attribute__((unused));
static void (*standin_fail)(const char *, int, int) __attribute__((unused));
static long (*standin_calls)(const char *) __attribute__((unused));
static int (*standin_faults)(char *, size_t) __attribute__((unused));
static void (*standin_forget_faults)(void) __attribute__((unused));
static long (*standin_left)(const char *) __attribute__((unused));
static void (*standin_async_error)(int, int) __attribute__((unused));

enum {
    GPU_TO_DEVICE = 1,
    GPU_TO_HOST = 2,
    GPU_NON_BLOCKING = 1,
    GPU_NO_TIMING = 2
};

/* NULL, or what is missing. */
TEST_API const char *gpu_load(void) {
    static const char *const names[] = {
        "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so"};
    void *lib = NULL, *nccl;
    for (size_t i = 0; i < sizeof names / sizeof *names && !lib; ++i)
        lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!lib) return "libcudart";
#define GPU_LOAD(name, args)                   \
    *(void **)&gpu_##name = dlsym(lib, #name); \
    if (!gpu_##name) return #name;
    GPU_CALLS(GPU_LOAD)
    *(void **)&standin_set = dlsym(lib, "standin_set");
    if (!standin_set) return NULL;
    *(void **)&standin_get = dlsym(lib, "standin_get");
    *(void **)&standin_fail = dlsym(lib, "standin_fail");
    *(void **)&standin_calls = dlsym(lib, "standin_calls");
    *(void **)&standin_faults = dlsym(lib, "standin_faults");
    *(void **)&standin_forget_faults = dlsym(lib, "standin_forget_faults");
    *(void **)&standin_left = dlsym(lib, "standin_left");
    nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (nccl) *(void **)&standin_async_error = dlsym(nccl, "standin_async_error");
    return NULL;
}

#define GPU(call) T_EQ(0, gpu_##call)

/* Device memory of the current device with a copy of `bytes` bytes of `from` (NULL: with 0x5a). */
TEST_API void *gpu_new(const void *from, uint64_t bytes) {
    void *p = NULL;
    if (gpu_cudaMalloc(&p, bytes ? bytes : 1) != 0) abort();
    if (from) {
        if (gpu_cudaMemcpy(p, from, bytes, GPU_TO_DEVICE) != 0) abort();
    } else if (gpu_cudaMemset(p, 0x5a, bytes ? bytes : 1) != 0 || gpu_cudaDeviceSynchronize()) {
        abort();
    }
    return p;
}
TEST_API void gpu_get(void *to, const void *from, uint64_t bytes) {
    T_EQ(0, gpu_cudaMemcpy(to, from, bytes, GPU_TO_HOST));
}

/* gpu_load() for a program that needs the stand-in. False: says why, as the end of the program. */
TEST_API bool standin_loads(void) {
    const char *const missing = gpu_load();
    if (!missing && standin_set) return true;
    printf("  the stand-in does not load: %s\nnot ok load\n0 passed, 1 failed\n",
        missing ? missing : "this is no stand-in");
    return false;
}

#endif
