/* mem/cuda.h - device memory of the CUDA runtime, loaded on demand

   Knows: the functions of the CUDA runtime that a source needs; the library is loaded when the
   first source is made. Promises: every call leaves the current device and the capture mode as
   they were, and no error of its own in CUDA. */
#ifndef CDP_SRC_MEM_CUDA_H
#define CDP_SRC_MEM_CUDA_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../os/libraries.h"
#include "source_api.h"

/* clang-format off */
#define CDP__MEM_CUDA(X) \
    X(cudaRuntimeGetVersion, (int *)) \
    X(cudaGetDeviceCount, (int *)) \
    X(cudaGetDevice, (int *)) \
    X(cudaSetDevice, (int)) \
    X(cudaGetLastError, (void)) \
    X(cudaMalloc, (void **, size_t)) \
    X(cudaFree, (void *)) \
    X(cudaMemGetInfo, (size_t *, size_t *)) \
    X(cudaEventCreateWithFlags, (void **, unsigned)) \
    X(cudaEventDestroy, (void *)) \
    X(cudaEventRecord, (void *, void *)) \
    X(cudaEventQuery, (void *)) \
    X(cudaStreamIsCapturing, (void *, int *)) \
    X(cudaStreamSynchronize, (void *)) \
    X(cudaThreadExchangeStreamCaptureMode, (int *))
/* clang-format on */
#define CDP__MEM_CUDA_MEMBER(name, parameters) int(*name) parameters;
#define CDP__MEM_CUDA_NAME(name, parameters) #name,

enum {
    CDP__MEM_CUDA_NOMEM = 2,
    CDP__MEM_CUDA_NO_DRIVER = 35,
    CDP__MEM_CUDA_NO_DEVICE = 100,
    CDP__MEM_CUDA_NOT_READY = 600,
    CDP__MEM_CUDA_NO_TIMING = 2,
    CDP__MEM_CUDA_RELAXED = 2
};

typedef struct cdp__mem_cuda_calls {
    CDP__MEM_CUDA(CDP__MEM_CUDA_MEMBER)
    const char *(*cudaGetErrorString)(int);
} cdp__mem_cuda_calls;

typedef struct cdp__mem_cuda {
    cdp__mem_cuda_calls f;
    int device;
    char name[16];
} cdp__mem_cuda;

/* The caller's state before a call into CUDA: its device, and its capture mode. */
typedef struct cdp__mem_cuda_turn {
    int device, mode;
} cdp__mem_cuda_turn;

CDP__PRIVATE void cdp__mem_cuda_enter(const cdp__mem_cuda *u, cdp__mem_cuda_turn *t) {
    t->device = u->device;
    t->mode = CDP__MEM_CUDA_RELAXED;
    (void)u->f.cudaGetDevice(&t->device);
    if (t->device != u->device) (void)u->f.cudaSetDevice(u->device);
    (void)u->f.cudaThreadExchangeStreamCaptureMode(&t->mode);
}

/* After a failure, also clears the error that CUDA would otherwise return from the next
   unrelated call. */
CDP__PRIVATE void cdp__mem_cuda_leave(const cdp__mem_cuda *u, cdp__mem_cuda_turn *t, int code) {
    if (code) (void)u->f.cudaGetLastError();
    (void)u->f.cudaThreadExchangeStreamCaptureMode(&t->mode);
    if (t->device != u->device) (void)u->f.cudaSetDevice(t->device);
}

CDP__PRIVATE cdp_status cdp__mem_cuda_error(const cdp__mem_cuda *u, const char *call, int code) {
    const cdp_status st = code == CDP__MEM_CUDA_NOMEM ? CDP_ERR_NOMEM : CDP_ERR_IO;
    return cdp__fail(st, "%s on device %d: %s (CUDA error %d)", call, u->device,
        u->f.cudaGetErrorString(code), code);
}

/* Ends a call into CUDA that returned `code`. */
CDP__PRIVATE cdp_status cdp__mem_cuda_done(
    const cdp__mem_cuda *u, cdp__mem_cuda_turn *t, const char *call, int code) {
    cdp__mem_cuda_leave(u, t, code);
    return code ? cdp__mem_cuda_error(u, call, code) : CDP_OK;
}

CDP__PRIVATE cdp_status cdp__mem_cuda_reserve(void *user, uint64_t bytes, void **out) {
    const cdp__mem_cuda *const u = (const cdp__mem_cuda *)user;
    cdp__mem_cuda_turn t;
    cdp__mem_cuda_enter(u, &t);
    return cdp__mem_cuda_done(u, &t, "cudaMalloc", u->f.cudaMalloc(out, (size_t)bytes));
}

CDP__PRIVATE cdp_status cdp__mem_cuda_release(void *user, void *at, uint64_t bytes) {
    const cdp__mem_cuda *const u = (const cdp__mem_cuda *)user;
    cdp__mem_cuda_turn t;
    (void)bytes;
    cdp__mem_cuda_enter(u, &t);
    return cdp__mem_cuda_done(u, &t, "cudaFree", u->f.cudaFree(at));
}

CDP__PRIVATE cdp_status cdp__mem_cuda_info(void *user, uint64_t *free_bytes, uint64_t *total) {
    const cdp__mem_cuda *const u = (const cdp__mem_cuda *)user;
    cdp__mem_cuda_turn t;
    size_t left = 0, all = 0;
    int code;
    cdp__mem_cuda_enter(u, &t);
    code = u->f.cudaMemGetInfo(&left, &all);
    *free_bytes = left;
    *total = all;
    return cdp__mem_cuda_done(u, &t, "cudaMemGetInfo", code);
}

CDP__PRIVATE cdp_status cdp__mem_cuda_event_create(void *user, void **event) {
    const cdp__mem_cuda *const u = (const cdp__mem_cuda *)user;
    cdp__mem_cuda_turn t;
    cdp__mem_cuda_enter(u, &t);
    return cdp__mem_cuda_done(u, &t, "cudaEventCreateWithFlags",
        u->f.cudaEventCreateWithFlags(event, CDP__MEM_CUDA_NO_TIMING));
}

CDP__PRIVATE void cdp__mem_cuda_event_destroy(void *user, void *event) {
    const cdp__mem_cuda *const u = (const cdp__mem_cuda *)user;
    cdp__mem_cuda_turn t;
    int code;
    cdp__mem_cuda_enter(u, &t);
    code = u->f.cudaEventDestroy(event);
    cdp__mem_cuda_leave(u, &t, code);
}

CDP__PRIVATE cdp_status cdp__mem_cuda_event_record(void *user, void *event, void *stream) {
    const cdp__mem_cuda *const u = (const cdp__mem_cuda *)user;
    cdp__mem_cuda_turn t;
    cdp__mem_cuda_enter(u, &t);
    return cdp__mem_cuda_done(u, &t, "cudaEventRecord", u->f.cudaEventRecord(event, stream));
}

CDP__PRIVATE cdp_status cdp__mem_cuda_event_query(void *user, void *event) {
    const cdp__mem_cuda *const u = (const cdp__mem_cuda *)user;
    cdp__mem_cuda_turn t;
    int code;
    cdp__mem_cuda_enter(u, &t);
    code = u->f.cudaEventQuery(event);
    if (code != CDP__MEM_CUDA_NOT_READY) return cdp__mem_cuda_done(u, &t, "cudaEventQuery", code);
    cdp__mem_cuda_leave(u, &t, code);
    return CDP_PENDING;
}

/* If CUDA cannot tell, the stream counts as not captured. */
CDP__PRIVATE bool cdp__mem_cuda_capturing(void *user, void *stream) {
    const cdp__mem_cuda *const u = (const cdp__mem_cuda *)user;
    int state = 0;
    const int code = u->f.cudaStreamIsCapturing(stream, &state);
    if (code) (void)u->f.cudaGetLastError();
    return !code && state;
}

CDP__PRIVATE void cdp__mem_cuda_destroy(void *user) {
    cdp__free(cdp_os_default(), user);
}

#define CDP__MEM_CUDA_FILES                                                           \
    "libcudart.so.13 libcudart.so.12 libcudart.so.11.0 libcudart.so cudart64_13.dll " \
    "cudart64_12.dll cudart64_110.dll"

/* Opens the given file; or the program itself, if it contains CUDA; or the first of the usual
   names. */
CDP__PRIVATE void *cdp__mem_cuda_file(const char *file) {
    const char *at = CDP__MEM_CUDA_FILES;
    char name[64];
    void *lib;
    if (file) return cdp__library_open(file);
    lib = cdp__library_open(NULL);
    if (lib && cdp__library_find(lib, "cudaMalloc")) return lib;
    if (lib) cdp__library_close(lib);
    for (lib = NULL; *at && !lib;) {
        uint32_t n = 0;
        while (*at && *at != ' ')
            name[n++] = *at++;
        while (*at == ' ')
            ++at;
        name[n] = 0;
        lib = cdp__library_open(name);
    }
    return lib;
}

/* Loads the library, which then stays loaded. */
CDP__PRIVATE cdp_status cdp__mem_cuda_load(cdp__mem_cuda *u, const char *file) {
    static const char *const names[] = {CDP__MEM_CUDA(CDP__MEM_CUDA_NAME) "cudaGetErrorString"};
    void *const lib = cdp__mem_cuda_file(file);
    uint32_t i;
    if (!lib)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_mem_source_cuda: no CUDA runtime: looked for %s; install it, add its folder to "
            "LD_LIBRARY_PATH, or name the file",
            file ? file : CDP__MEM_CUDA_FILES);
    for (i = 0; i < sizeof names / sizeof *names; ++i) {
        void *const function = cdp__library_find(lib, names[i]);
        if (!function)
            return cdp__fail(CDP_ERR_UNSUPPORTED,
                "cdp_mem_source_cuda: the CUDA runtime has no function %s; 11.8 is the least",
                names[i]);
        memcpy((char *)&u->f + i * sizeof function, &function, sizeof function);
    }
    return CDP_OK;
}
#undef CDP__MEM_CUDA_MEMBER
#undef CDP__MEM_CUDA_NAME

CDP__PRIVATE cdp_status cdp__mem_cuda_device(cdp__mem_cuda *u) {
    int count = 0;
    int code = u->f.cudaGetDeviceCount(&count);
    if (!code && count) code = u->f.cudaGetDevice(&u->device);
    if (!code && count) return CDP_OK;
    (void)u->f.cudaGetLastError();
    if (!code || code == CDP__MEM_CUDA_NO_DEVICE || code == CDP__MEM_CUDA_NO_DRIVER)
        return cdp__fail(CDP_ERR_UNSUPPORTED, "cdp_mem_source_cuda: no GPU here: %s",
            code ? u->f.cudaGetErrorString(code) : "no device");
    return cdp__mem_cuda_error(u, "cudaGetDevice", code);
}

/* Fills in all but the functions of pages. */
CDP__PRIVATE void cdp__mem_cuda_source(cdp__mem_cuda *u, cdp_mem_source *out) {
    cdp__format(u->name, sizeof u->name, "cuda:%d", u->device);
    out->user = u;
    out->name = u->name;
    out->device = (uint32_t)u->device;
    out->reserve = cdp__mem_cuda_reserve;
    out->release = cdp__mem_cuda_release;
    out->info = cdp__mem_cuda_info;
    out->event_create = cdp__mem_cuda_event_create;
    out->event_destroy = cdp__mem_cuda_event_destroy;
    out->event_record = cdp__mem_cuda_event_record;
    out->event_query = cdp__mem_cuda_event_query;
    out->capturing = cdp__mem_cuda_capturing;
    out->destroy = cdp__mem_cuda_destroy;
}

#endif /* CDP_SRC_MEM_CUDA_H */
