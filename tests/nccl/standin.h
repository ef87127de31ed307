/*  standin.h - a stand-in for the CUDA runtime, NCCL and NVRTC, so that cdp_nccl.h can be tested on
    any machine

    It is NOT the real thing: no GPU, no NVIDIA library and none of their code is involved, and
    figures of speed that come from it mean nothing. It is a model, written from NVIDIA's public
    documentation, of those parts of their behaviour that a program can get wrong. build.sh makes
    shared libraries with the real ones' names from standin_*.c.

    What it models, and how mistakes show
        device memory   no host code can touch it (it is mapped without any right): that ends in
                        SIGSEGV. Work on memory that was freed, or is on another device, or was
                        never device memory, is a fault: see standin_faults(). New memory is full of
                        0xcb, freed memory of 0xdd.
        pages           2 MiB each; work on pages that are not mapped, or to which nobody has access
                        yet, is a fault
        streams         each is a thread that sleeps a random while before each item, so what is not
                        ordered runs in any order
        events, graphs  nodes of a graph run side by side, as soon as those that they depend on have
                        run
        capture         what is not allowed meanwhile is refused and spoils the capture, also from
                        other threads
        NCCL            communicators between threads and processes, over a file that is shared;
                        ranks that call different things hang until somebody aborts; non-blocking
                        communicators do say ncclInProgress
        NVRTC           hands the source to gcc as C, and runs the kernel for each of its threads in
                        turn; so it only knows kernels that are C: no includes, no shared memory, no
                        __syncthreads

    Settings are numbers with names. STANDIN="delay_us=0,devices=4" in the environment sets them at
    the start. */
#ifndef STANDIN_INCLUDED
#define STANDIN_INCLUDED

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STANDIN_API __attribute__((visibility("default")))

/* delay_us  items of streams begin after a random time up to this, sometimes ten times this (200)
   seed      of all random numbers (1)
   devices   how many there are (4); 0: cudaErrorNoDevice
   driver    CUDA version of the driver (13000); 0: there is none, cudaErrorInsufficientDriver
   memory    bytes that cudaMalloc gives on each device (128 MiB)
   drop_wait k > 0: the k-th cudaStreamWaitEvent from now on does nothing; -1: none does. A planted
             defect.
   early_free 1: cudaFreeAsync frees at once. A planted defect.
   lazy      one in so many calls of non-blocking communicators is still in progress when it
             returns, and the first one always is (4); 0: none
   slow_init milliseconds that making a communicator takes at least (0)
   capability of all devices, 90 is 9.0 (90)
   pages     0: the driver has no functions of virtual memory for the devices (1)
   symmetric 0: ncclCommWindowRegister succeeds and gives no window, as the real one does where the
             GPUs of a communicator cannot reach each other's memory (1)
   refuse    what a communicator says, in place of ncclSuccess, when its ranks have met (0) */
STANDIN_API void standin_set(const char *name, long value);
STANDIN_API long standin_get(const char *name);

/* The nth call of `function` from now on (1: the next one) does nothing and returns `code`. nth
   0: none does any more. */
STANDIN_API void standin_fail(const char *function, int nth, int code);
/* Calls of a function so far. */
STANDIN_API long standin_calls(const char *function);

/* Mistakes of the user of the libraries so far; the first one in words. */
STANDIN_API int standin_faults(char *text, size_t size);
STANDIN_API void standin_forget_faults(void);

/* What is still there: "streams", "events", "bytes" of devices, "ranges" of addresses, "pinned"
   pieces of host memory, "graphs", "comms", "modules", "windows" of communicators. */
STANDIN_API long standin_left(const char *what);

/* (libnccl) Every communicator of rank `rank` in this process has the asynchronous error `code`
   from now on. */
STANDIN_API void standin_async_error(int rank, int code);

/* ---- between the libraries ---- */

typedef struct standin_stream standin_stream;
/* a place in a stream, or in a graph that is being captured */
typedef struct standin_point standin_point;
typedef struct standin_work {
    void (*run)(void *arg);  /* may block */
    void (*drop)(void *arg); /* afterwards; for a graph, when it is destroyed */
    void *arg;
    const char *name;
} standin_work;

/* counts; true: the caller must return *code */
STANDIN_API bool standin_call(const char *function, int *code);
STANDIN_API void standin_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
STANDIN_API void standin_sick(int device, int error); /* a device is broken for good */
/* NULL: there is no such stream */
STANDIN_API standin_stream *standin_find(void *stream, int device);
STANDIN_API int standin_device_of(standin_stream *s);
STANDIN_API bool standin_capturing(standin_stream *s);
STANDIN_API void standin_submit(standin_stream *s, const standin_work *w);
STANDIN_API standin_point *standin_here(standin_stream *s);
/* what follows in `s` waits for `p` */
STANDIN_API void standin_after(standin_stream *s, const standin_point *p);
STANDIN_API void standin_point_free(standin_point *p);
/* Where the bytes of device or pinned memory are for the stand-in itself; NULL, a fault and a
   sick device if there are none. */
STANDIN_API void *standin_bytes(const void *p, size_t bytes, int device, const char *why);
typedef struct standin_handle { /* memory of cuMemCreate */
    size_t bytes;
    int device, refs; /* refs: its owner, and where it is mapped */
} standin_handle;
STANDIN_API bool standin_range(void **out, size_t bytes, int device);
STANDIN_API bool standin_range_free(void *p, size_t bytes); /* nothing is mapped in it */
STANDIN_API standin_handle *standin_page(size_t bytes, int device);
STANDIN_API void standin_page_drop(standin_handle *h);
STANDIN_API bool standin_map(void *p, standin_handle *h);
STANDIN_API bool standin_pages(void *p, size_t bytes, bool unmap);
STANDIN_API bool standin_free(void *p); /* device memory, without waiting for what uses it */
STANDIN_API uint64_t standin_random(void);
STANDIN_API void standin_pause(void); /* the random delay */
STANDIN_API void standin_count(const char *what, long by);

/* ---- declarations of the real libraries: their own where STANDIN_REAL_HEADERS, else just what
   is needed ---- */

#ifdef STANDIN_REAL_HEADERS
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <nvrtc.h>
#else

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidMemcpyDirection = 21,
    cudaErrorInsufficientDriver = 35,
    cudaErrorInvalidDeviceFunction = 98,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidKernelImage = 200,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorInvalidPtx = 218,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorSymbolNotFound = 500,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchFailure = 719,
    cudaErrorNotSupported = 801,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorStreamCaptureUnmatched = 903,
    cudaErrorStreamCaptureUnjoined = 904,
    cudaErrorStreamCaptureIsolation = 905,
    cudaErrorStreamCaptureImplicit = 906,
    cudaErrorCapturedEvent = 907,
    cudaErrorStreamCaptureWrongThread = 908
} cudaError_t;
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
typedef struct CUgraphNode_st *cudaGraphNode_t;
typedef struct CUlib_st *cudaLibrary_t;
typedef struct CUkern_st *cudaKernel_t;
typedef void (*cudaHostFn_t)(void *);
enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum cudaMemoryType {
    cudaMemoryTypeUnregistered,
    cudaMemoryTypeHost,
    cudaMemoryTypeDevice,
    cudaMemoryTypeManaged
};
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal,
    cudaStreamCaptureModeThreadLocal,
    cudaStreamCaptureModeRelaxed
};
enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone,
    cudaStreamCaptureStatusActive,
    cudaStreamCaptureStatusInvalidated
};
enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMemoryPoolsSupported = 115
};
struct cudaPointerAttributes {
    enum cudaMemoryType type;
    int device;
    void *devicePointer, *hostPointer;
    long reserved[8]; /* CUDA 13 */
};
typedef struct {
    unsigned x, y, z;
} dim3;
#define cudaStreamNonBlocking 1
#define cudaEventDisableTiming 2

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef struct {
    char internal[128];
} ncclUniqueId;
typedef enum {
    ncclSuccess,
    ncclUnhandledCudaError,
    ncclSystemError,
    ncclInternalError,
    ncclInvalidArgument,
    ncclInvalidUsage,
    ncclRemoteError,
    ncclInProgress,
    ncclNumResults
} ncclResult_t;
typedef enum {
    ncclSum,
    ncclProd,
    ncclMax,
    ncclMin,
    ncclAvg,
    ncclNumOps,
    ncclMaxRedOp = 0x7fffffff
} ncclRedOp_t;
typedef enum {
    ncclInt8,
    ncclUint8,
    ncclInt32,
    ncclUint32,
    ncclInt64,
    ncclUint64,
    ncclFloat16,
    ncclFloat32,
    ncclFloat64,
    ncclBfloat16,
    ncclFloat8e4m3,
    ncclFloat8e5m2,
    ncclNumTypes
} ncclDataType_t;
typedef enum {
    ncclScalarDevice,
    ncclScalarHostImmediate
} ncclScalarResidence_t;
typedef struct ncclConfig_v22800 {
    size_t size;
    unsigned magic, version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs;
    const char *netName;
    int splitShare, trafficClass;
    const char *commName;
    int collnetEnable, CTAPolicy, shrinkShare, nvlsCTAs, nChannelsPerNetPeer, nvlinkCentricSched;
} ncclConfig_t;
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_SPLIT_NOCOLOR (-1)
#define NCCL_SHRINK_ABORT 1
#define NCCL_WIN_COLL_SYMMETRIC 1

typedef enum {
    NVRTC_SUCCESS = 0,
    NVRTC_ERROR_OUT_OF_MEMORY = 1,
    NVRTC_ERROR_INVALID_INPUT = 3,
    NVRTC_ERROR_INVALID_PROGRAM = 4,
    NVRTC_ERROR_COMPILATION = 6
} nvrtcResult;
typedef struct _nvrtcProgram *nvrtcProgram;
#endif

#endif
