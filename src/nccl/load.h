/* nccl/load.h - loads the libraries and looks up their functions

   Knows: names and types of functions of CUDA, NCCL and NVRTC. Promises: a missing library or
   function is an error that names it. */
#ifndef CDP_SRC_NCCL_LOAD_H
#define CDP_SRC_NCCL_LOAD_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../os/libraries.h"
#include "desc_api.h"

#include <limits.h>
#ifdef CDP_NCCL_LINK
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <nvrtc.h>
#endif

/* Types of these libraries: opaque here; with CDP_NCCL_LINK theirs, so that the compiler checks
   the table below. */
#ifdef CDP_NCCL_LINK
typedef cudaError_t cdp__cu_error;
typedef cudaStream_t cdp__cu_stream;
typedef cudaEvent_t cdp__cu_event;
typedef enum cudaDeviceAttr cdp__cu_attr;
typedef enum cudaMemcpyKind cdp__cu_copy;
typedef enum cudaStreamCaptureStatus cdp__cu_capture;
typedef enum cudaStreamCaptureMode cdp__cu_mode;
typedef struct cudaPointerAttributes cdp__cu_pointer;
typedef cudaHostFn_t cdp__cu_host_fn;
typedef ncclResult_t cdp__nc_result;
typedef ncclComm_t cdp__nc_comm;
typedef ncclUniqueId cdp__nc_id;
typedef ncclConfig_t cdp__nc_config;
typedef ncclDataType_t cdp__nc_type;
typedef ncclRedOp_t cdp__nc_op;
typedef ncclScalarResidence_t cdp__nc_residence;
#if NCCL_VERSION_CODE >= 22700
typedef ncclWindow_t cdp__nc_window;
#else
typedef void *cdp__nc_window;
#endif
typedef nvrtcResult cdp__rtc_result;
typedef nvrtcProgram cdp__rtc_program;
#else
typedef int cdp__cu_error;
typedef struct CUstream_st *cdp__cu_stream;
typedef struct CUevent_st *cdp__cu_event;
typedef int cdp__cu_attr;
typedef int cdp__cu_copy;
typedef int cdp__cu_capture;
typedef int cdp__cu_mode;
typedef struct cdp__cu_pointer {
    int type, device;
    void *device_pointer, *host_pointer;
    long reserved[8]; /* empty before CUDA 13 */
} cdp__cu_pointer;
typedef void (*cdp__cu_host_fn)(void *user);
typedef int cdp__nc_result;
typedef struct ncclComm *cdp__nc_comm;
typedef struct cdp__nc_id {
    char bytes[128];
} cdp__nc_id;
typedef struct cdp__nc_config cdp__nc_config;
typedef int cdp__nc_type;
typedef int cdp__nc_op;
typedef int cdp__nc_residence;
typedef void *cdp__nc_window;
typedef int cdp__rtc_result;
typedef struct _nvrtcProgram *cdp__rtc_program;
#endif

/* A configuration as NCCL 2.18 defines it; later versions accept the shorter one and fill in the
   rest. */
typedef struct cdp__nc_settings {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster, min_ctas, max_ctas;
    const char *net;
    int split_share;
} cdp__nc_settings;

enum {
    CDP__CU_NOT_READY = 600,
    CDP__CU_NOMEM = 2,
    CDP__CU_NO_DEVICE = 100,
    CDP__CU_NO_DRIVER = 35,
    CDP__CU_NON_BLOCKING = 1,
    CDP__CU_NO_TIMING = 2,
    CDP__CU_DEVICE_MEMORY = 2,
    CDP__CU_MANAGED_MEMORY = 3,
    CDP__CU_COPY_ANY = 4,
    CDP__CU_RELAXED = 2,
    CDP__CU_MAJOR = 75,
    CDP__CU_MINOR = 76,
    CDP__NC_CUDA = 1,
    CDP__NC_INVALID = 4,
    CDP__NC_USAGE = 5,
    CDP__NC_REMOTE = 6,
    CDP__NC_IN_PROGRESS = 7,
    CDP__NC_TIMEOUT = 8,
    CDP__NC_SUM = 0,
    CDP__NC_PRODUCT = 1,
    CDP__NC_MAX = 2,
    CDP__NC_MIN = 3,
    CDP__NC_AVG = 4,
    CDP__NC_HOST_SCALAR = 1,
    CDP__NC_SHRINK_ABORT = 1,
    CDP__NC_WINDOW_SYMMETRIC = 1
};
#ifdef CDP_NCCL_LINK
typedef char cdp__nccl_numbers_agree[(int)cudaErrorNotReady == CDP__CU_NOT_READY
            && (int)cudaErrorMemoryAllocation == CDP__CU_NOMEM
            && (int)cudaErrorNoDevice == CDP__CU_NO_DEVICE
            && (int)cudaErrorInsufficientDriver == CDP__CU_NO_DRIVER
            && cudaStreamNonBlocking == CDP__CU_NON_BLOCKING
            && cudaEventDisableTiming == CDP__CU_NO_TIMING
            && (int)cudaMemoryTypeDevice == CDP__CU_DEVICE_MEMORY
            && (int)cudaMemoryTypeManaged == CDP__CU_MANAGED_MEMORY
            && (int)cudaMemcpyDefault == CDP__CU_COPY_ANY
            && (int)cudaStreamCaptureModeRelaxed == CDP__CU_RELAXED
            && (int)cudaDevAttrComputeCapabilityMajor == CDP__CU_MAJOR
            && (int)cudaDevAttrComputeCapabilityMinor == CDP__CU_MINOR
            && (int)ncclUnhandledCudaError == CDP__NC_CUDA
            && (int)ncclInvalidArgument == CDP__NC_INVALID && (int)ncclInvalidUsage == CDP__NC_USAGE
            && (int)ncclRemoteError == CDP__NC_REMOTE && (int)ncclInProgress == CDP__NC_IN_PROGRESS
            && (int)ncclSum == CDP__NC_SUM && (int)ncclProd == CDP__NC_PRODUCT
            && (int)ncclMax == CDP__NC_MAX && (int)ncclMin == CDP__NC_MIN
            && (int)ncclAvg == CDP__NC_AVG && (int)ncclScalarHostImmediate == CDP__NC_HOST_SCALAR
#if NCCL_VERSION_CODE >= 22700
            && NCCL_WIN_COLL_SYMMETRIC == CDP__NC_WINDOW_SYMMETRIC
#endif
            && sizeof(ncclConfig_t) >= sizeof(cdp__nc_settings)
            && offsetof(ncclConfig_t, splitShare) == offsetof(cdp__nc_settings, split_share)
            && offsetof(ncclConfig_t, netName) == offsetof(cdp__nc_settings, net)
            && offsetof(ncclConfig_t, blocking) == offsetof(cdp__nc_settings, blocking)
        ? 1
        : -1];
#endif

/* X(name, result, parameters): functions of the CUDA runtime, of NCCL, of newer NCCL versions,
   of NVRTC, of the CUDA driver. */
/* clang-format off: one row a line */
#define CDP__CUDART(X)                                                                \
    X(cudaRuntimeGetVersion, cdp__cu_error, (int *))                                  \
    X(cudaGetDeviceCount, cdp__cu_error, (int *))                                     \
    X(cudaGetDevice, cdp__cu_error, (int *))                                          \
    X(cudaSetDevice, cdp__cu_error, (int))                                            \
    X(cudaDeviceGetAttribute, cdp__cu_error, (int *, cdp__cu_attr, int))              \
    X(cudaGetErrorString, const char *, (cdp__cu_error))                              \
    X(cudaGetLastError, cdp__cu_error, (void))                                        \
    X(cudaStreamCreateWithPriority, cdp__cu_error, (cdp__cu_stream *, unsigned, int)) \
    X(cudaStreamDestroy, cdp__cu_error, (cdp__cu_stream))                             \
    X(cudaStreamWaitEvent, cdp__cu_error, (cdp__cu_stream, cdp__cu_event, unsigned))  \
    X(cudaStreamIsCapturing, cdp__cu_error, (cdp__cu_stream, cdp__cu_capture *))      \
    X(cudaStreamSynchronize, cdp__cu_error, (cdp__cu_stream))                         \
    X(cudaEventCreateWithFlags, cdp__cu_error, (cdp__cu_event *, unsigned))           \
    X(cudaEventRecord, cdp__cu_error, (cdp__cu_event, cdp__cu_stream))                \
    X(cudaEventQuery, cdp__cu_error, (cdp__cu_event))                                 \
    X(cudaEventDestroy, cdp__cu_error, (cdp__cu_event))                               \
    X(cudaMalloc, cdp__cu_error, (void **, size_t))                                   \
    X(cudaFree, cdp__cu_error, (void *))                                              \
    X(cudaMemcpyAsync, cdp__cu_error,                                                 \
        (void *, const void *, size_t, cdp__cu_copy, cdp__cu_stream))                 \
    X(cudaMemsetAsync, cdp__cu_error, (void *, int, size_t, cdp__cu_stream))          \
    X(cudaPointerGetAttributes, cdp__cu_error, (cdp__cu_pointer *, const void *))     \
    X(cudaLaunchHostFunc, cdp__cu_error, (cdp__cu_stream, cdp__cu_host_fn, void *))   \
    X(cudaThreadExchangeStreamCaptureMode, cdp__cu_error, (cdp__cu_mode *))
/* clang-format on */
/* clang-format off: one row a line */
#define CDP__NCCL(X)                                                                               \
    X(ncclGetVersion, cdp__nc_result, (int *))                                                     \
    X(ncclGetErrorString, const char *, (cdp__nc_result))                                          \
    X(ncclGetLastError, const char *, (cdp__nc_comm))                                              \
    X(ncclGetUniqueId, cdp__nc_result, (cdp__nc_id *))                                             \
    X(ncclCommInitRankConfig, cdp__nc_result,                                                      \
        (cdp__nc_comm *, int, cdp__nc_id, int, cdp__nc_config *))                                  \
    X(ncclCommFinalize, cdp__nc_result, (cdp__nc_comm))                                            \
    X(ncclCommDestroy, cdp__nc_result, (cdp__nc_comm))                                             \
    X(ncclCommAbort, cdp__nc_result, (cdp__nc_comm))                                               \
    X(ncclCommGetAsyncError, cdp__nc_result, (cdp__nc_comm, cdp__nc_result *))                     \
    X(ncclGroupStart, cdp__nc_result, (void))                                                      \
    X(ncclGroupEnd, cdp__nc_result, (void))                                                        \
    X(ncclCommSplit, cdp__nc_result, (cdp__nc_comm, int, int, cdp__nc_comm *, cdp__nc_config *))   \
    X(ncclAllReduce, cdp__nc_result,                                                               \
        (const void *, void *, size_t, cdp__nc_type, cdp__nc_op, cdp__nc_comm, cdp__cu_stream))    \
    X(ncclBroadcast, cdp__nc_result,                                                               \
        (const void *, void *, size_t, cdp__nc_type, int, cdp__nc_comm, cdp__cu_stream))           \
    X(ncclReduce, cdp__nc_result,                                                                  \
        (const void *, void *, size_t, cdp__nc_type, cdp__nc_op, int, cdp__nc_comm,                \
            cdp__cu_stream))                                                                       \
    X(ncclAllGather, cdp__nc_result,                                                               \
        (const void *, void *, size_t, cdp__nc_type, cdp__nc_comm, cdp__cu_stream))                \
    X(ncclReduceScatter, cdp__nc_result,                                                           \
        (const void *, void *, size_t, cdp__nc_type, cdp__nc_op, cdp__nc_comm, cdp__cu_stream))    \
    X(ncclSend, cdp__nc_result,                                                                    \
        (const void *, size_t, cdp__nc_type, int, cdp__nc_comm, cdp__cu_stream))                   \
    X(ncclRecv, cdp__nc_result, (void *, size_t, cdp__nc_type, int, cdp__nc_comm, cdp__cu_stream)) \
    X(ncclRedOpCreatePreMulSum, cdp__nc_result,                                                    \
        (cdp__nc_op *, void *, cdp__nc_type, cdp__nc_residence, cdp__nc_comm))                     \
    X(ncclRedOpDestroy, cdp__nc_result, (cdp__nc_op, cdp__nc_comm))
/* clang-format on */
/* clang-format off: one row a line */
#define CDP__NCCL_NEWER(X)                                                       \
    X(ncclMemAlloc, cdp__nc_result, (void **, size_t))                           \
    X(ncclMemFree, cdp__nc_result, (void *))                                     \
    X(ncclCommRegister, cdp__nc_result, (cdp__nc_comm, void *, size_t, void **)) \
    X(ncclCommDeregister, cdp__nc_result, (cdp__nc_comm, void *))                \
    X(ncclCommWindowRegister, cdp__nc_result,                                    \
        (cdp__nc_comm, void *, size_t, cdp__nc_window *, int))                   \
    X(ncclCommWindowDeregister, cdp__nc_result, (cdp__nc_comm, cdp__nc_window))  \
    X(ncclCommShrink, cdp__nc_result,                                            \
        (cdp__nc_comm, int *, int, cdp__nc_comm *, cdp__nc_config *, int))       \
    X(ncclCommRevoke, cdp__nc_result, (cdp__nc_comm, int))                       \
    X(ncclCommGetUniqueId, cdp__nc_result, (cdp__nc_comm, cdp__nc_id *))         \
    X(ncclCommGrow, cdp__nc_result,                                              \
        (cdp__nc_comm, int, const cdp__nc_id *, int, cdp__nc_comm *, cdp__nc_config *))
/* clang-format on */
/* clang-format off: one row a line */
#define CDP__NVRTC(X)                                                                     \
    X(nvrtcCreateProgram, cdp__rtc_result,                                                \
        (cdp__rtc_program *, const char *, const char *, int, const char *const *,        \
            const char *const *))                                                         \
    X(nvrtcDestroyProgram, cdp__rtc_result, (cdp__rtc_program *))                         \
    X(nvrtcCompileProgram, cdp__rtc_result, (cdp__rtc_program, int, const char *const *)) \
    X(nvrtcGetCUBINSize, cdp__rtc_result, (cdp__rtc_program, size_t *))                   \
    X(nvrtcGetCUBIN, cdp__rtc_result, (cdp__rtc_program, char *))                         \
    X(nvrtcGetProgramLogSize, cdp__rtc_result, (cdp__rtc_program, size_t *))              \
    X(nvrtcGetProgramLog, cdp__rtc_result, (cdp__rtc_program, char *))                    \
    X(nvrtcGetErrorString, const char *, (cdp__rtc_result))
/* clang-format on */
/* clang-format off: one row a line */
#define CDP__CUDA_DRIVER(X)                                                            \
    X(cuModuleLoadData, int, (void **, const void *))                                  \
    X(cuModuleUnload, int, (void *))                                                   \
    X(cuModuleGetFunction, int, (void **, void *, const char *))                       \
    X(cuLaunchKernel, int,                                                             \
        (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
            cdp__cu_stream, void **, void **))
/* clang-format on */

#define CDP__MEMBER(name, result, parameters) result(*name) parameters;
#define CDP__NAME(name, result, parameters) #name,
#define CDP__ONE(name, result, parameters) +1

/* Function pointers, in the order of the names above; one table per process. */
typedef struct cdp__nccl_calls {
    CDP__CUDART(CDP__MEMBER)
    CDP__NCCL(CDP__MEMBER)
    CDP__NCCL_NEWER(CDP__MEMBER)
    CDP__NVRTC(CDP__MEMBER)
    CDP__CUDA_DRIVER(CDP__MEMBER)
} cdp__nccl_calls;

typedef enum cdp__nccl_part {
    CDP__PART_CUDART,
    CDP__PART_NCCL,
    CDP__PART_NEWER,
    CDP__PART_NVRTC,
    CDP__PART_DRIVER,
    CDP__PART_COUNT
} cdp__nccl_part;

typedef struct cdp__nccl_library {
    cdp__nccl_calls f;
    bool loaded[CDP__PART_COUNT];
    uint32_t turn; /* held by the thread that loads (atomic) */
    int cuda, nccl;
} cdp__nccl_library;

CDP__PRIVATE cdp__nccl_library *cdp__nccl_lib(void) {
    static cdp__nccl_library lib;
    return &lib;
}

typedef struct cdp__nccl_part_info {
    const char *what, *files; /* file names in order of preference, each followed by a blank */
    const char *advice;
    uint32_t first, count; /* its functions in the table */
} cdp__nccl_part_info;

CDP__PRIVATE cdp__nccl_part_info cdp__nccl_part_of(cdp__nccl_part part) {
    static const uint32_t counts[CDP__PART_COUNT] = {0 CDP__CUDART(CDP__ONE), 0 CDP__NCCL(CDP__ONE),
        0 CDP__NCCL_NEWER(CDP__ONE), 0 CDP__NVRTC(CDP__ONE), 0 CDP__CUDA_DRIVER(CDP__ONE)};
    static const char *const what[CDP__PART_COUNT] = {
        "the CUDA runtime", "NCCL", "NCCL", "NVRTC", "the CUDA driver"};
    static const char *const files[CDP__PART_COUNT] = {
        "libcudart.so.13 libcudart.so.12 libcudart.so.11.0 libcudart.so ",
        "libnccl.so.2 libnccl.so ", "libnccl.so.2 libnccl.so ",
        "libnvrtc.so.13 libnvrtc.so.12 libnvrtc.so.11.2 libnvrtc.so ", "libcuda.so.1 "};
    static const char *const advice[CDP__PART_COUNT] = {
        "cudart", "nccl", "nccl", "nvrtc", "driver"};
    cdp__nccl_part_info info;
    uint32_t i;
    info.what = what[part];
    info.files = files[part];
    info.advice = advice[part];
    info.count = counts[part];
    for (info.first = 0, i = 0; i < (uint32_t)part; ++i)
        info.first += counts[i];
    return info;
}

/* Opens the given file or, without one, the first of the usual names. If the program itself
   contains the library, opens the program. */
CDP__PRIVATE void *cdp__nccl_find_file(
    const cdp__nccl_part_info *info, const char *file, const char *probe) {
    char name[64];
    const char *at;
    void *lib = cdp__library_open(file);
    if (file || (lib && cdp__library_find(lib, probe))) return lib;
    if (lib) cdp__library_close(lib);
    for (lib = NULL, at = info->files; *at && !lib; ++at) {
        uint32_t n = 0;
        for (; *at != ' '; ++at)
            name[n++] = *at;
        name[n] = 0;
        lib = cdp__library_open(name);
    }
    return lib;
}

/* Loads the functions of a part. They stay loaded until the process ends. */
CDP__PRIVATE CDP__COLD cdp_status cdp__nccl_load_part(
    cdp__nccl_library *l, cdp__nccl_part part, const char *file) {
    static const char *const names[] = {CDP__CUDART(CDP__NAME) CDP__NCCL(CDP__NAME)
            CDP__NCCL_NEWER(CDP__NAME) CDP__NVRTC(CDP__NAME) CDP__CUDA_DRIVER(CDP__NAME)};
    const cdp__nccl_part_info info = cdp__nccl_part_of(part);
    void *lib, *function;
    uint32_t i;
    if (l->loaded[part]) return CDP_OK;
    lib = cdp__nccl_find_file(
        &info, file, names[part == CDP__PART_NEWER ? info.first - 1 : info.first]);
    if (!lib)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "%s is not here: looked for %s; install it, add its folder to LD_LIBRARY_PATH, or name "
            "the file in desc.%s",
            info.what, file ? file : info.files, info.advice);
    for (i = info.first; i < info.first + info.count; ++i) {
        function = cdp__library_find(lib, names[i]);
        if (!function && part != CDP__PART_NEWER)
            return cdp__fail(CDP_ERR_UNSUPPORTED,
                "%s has no function %s: it is too old (NCCL 2.18 and CUDA 11.8 are the least); "
                "install a newer one",
                info.what, names[i]);
        /* all members are function pointers */
        memcpy((char *)&l->f + i * sizeof function, &function, sizeof function);
    }
    l->loaded[part] = true;
    return CDP_OK;
}

#ifdef CDP_NCCL_LINK
#define CDP__TAKE(name, result, parameters) l->f.name = name;
CDP__PRIVATE void cdp__nccl_link(cdp__nccl_library *l) {
    CDP__CUDART(CDP__TAKE)
    CDP__NCCL(CDP__TAKE)
    CDP__NVRTC(CDP__TAKE)
    l->loaded[CDP__PART_CUDART] = l->loaded[CDP__PART_NCCL] = l->loaded[CDP__PART_NVRTC] = true;
#if NCCL_VERSION_CODE >= 21900
    l->f.ncclMemAlloc = ncclMemAlloc;
    l->f.ncclMemFree = ncclMemFree;
    l->f.ncclCommRegister = ncclCommRegister;
    l->f.ncclCommDeregister = ncclCommDeregister;
#endif
#if NCCL_VERSION_CODE >= 22700
    l->f.ncclCommShrink = ncclCommShrink;
    l->f.ncclCommWindowRegister = ncclCommWindowRegister;
    l->f.ncclCommWindowDeregister = ncclCommWindowDeregister;
#endif
#if NCCL_VERSION_CODE >= 22809
    l->f.ncclCommRevoke = ncclCommRevoke;
#endif
#if NCCL_VERSION_CODE >= 23000
    l->f.ncclCommGetUniqueId = ncclCommGetUniqueId;
    l->f.ncclCommGrow = ncclCommGrow;
#endif
    l->loaded[CDP__PART_NEWER] = true;
}
#undef CDP__TAKE
#endif
#undef CDP__MEMBER
#undef CDP__NAME
#undef CDP__ONE

CDP__PRIVATE cdp_status cdp__nccl_load_now(
    cdp__nccl_library *l, const cdp_nccl_desc *d, bool kernels) {
    cdp_status st;
#ifdef CDP_NCCL_LINK
    cdp__nccl_link(l);
#endif
    if (kernels) {
        st = cdp__nccl_load_part(l, CDP__PART_NVRTC, d->nvrtc);
        return st == CDP_OK ? cdp__nccl_load_part(l, CDP__PART_DRIVER, d->driver) : st;
    }
    st = cdp__nccl_load_part(l, CDP__PART_CUDART, d->cudart);
    if (st == CDP_OK) st = cdp__nccl_load_part(l, CDP__PART_NCCL, d->nccl);
    if (st == CDP_OK) st = cdp__nccl_load_part(l, CDP__PART_NEWER, d->nccl);
    if (st != CDP_OK) return st;
    if (!l->nccl
        && (l->f.cudaRuntimeGetVersion(&l->cuda) != 0 || l->f.ncclGetVersion(&l->nccl) != 0))
        return cdp__fail(CDP_ERR_IO, "the CUDA runtime or NCCL cannot say which version it is");
    if (l->cuda < 11080)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "the CUDA runtime that was found is %d.%d; 11.8 is the least", l->cuda / 1000,
            l->cuda / 10 % 100);
    if (l->nccl < 21800)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "the NCCL that was found is %d.%d.%d; 2.18 is the least", l->nccl / 10000,
            l->nccl / 100 % 100, l->nccl % 100);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__nccl_load(const cdp_os *os, const cdp_nccl_desc *d, bool kernels) {
    cdp__nccl_library *l = cdp__nccl_lib();
    cdp_status st;
    while (cdp__atomic_swap_u32(&l->turn, 1, CDP__ACQUIRE))
        cdp__sleep_until(os, os->now_ns(os->user) + CDP__MS);
    st = cdp__nccl_load_now(l, d, kernels);
    cdp__atomic_store_u32(&l->turn, 0, CDP__RELEASE);
    return st;
}

#define cdp__nc (cdp__nccl_lib()->f)

#endif /* CDP_SRC_NCCL_LOAD_H */
