/* base/basics.h - headers of the system, and small helpers

   Knows: headers of the system. Promises: small helpers for all sections. */
#ifndef CDP_SRC_BASE_BASICS_H
#define CDP_SRC_BASE_BASICS_H

#include "config.h"
#include "../os/os_api.h"
#include "compiler.h"
#include "helpers.h"

#ifdef CDP_NO_OS
/* nothing of a system */
#elif defined(_WIN32)
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <winsock2.h> /* before windows.h, always */
#include <ws2tcpip.h>
#include <windows.h>
#include <bcrypt.h>
#else
#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>
#ifndef CDP_NO_FILES
#include <stdio.h> /* rename() */
#include <sys/file.h>
#include <sys/stat.h>
#endif
#ifndef CDP_NO_THREADS
#include <pthread.h>
#include <sched.h>
#endif
#endif
#include <errno.h>
#include <stdarg.h>
#ifndef CDP_NO_OS
#include <time.h>
#endif
#ifdef __SSE2__
#include <emmintrin.h>
#endif
#ifndef CDP_NO_STDIO
#include <stdio.h>
#endif

#if !defined(CDP_NO_OS) && !defined(_WIN32) \
    && (!defined(CLOCK_MONOTONIC) || !defined(AI_NUMERICHOST))
#error "cdp.h: a system header came first under -std=c11: define _DEFAULT_SOURCE above it"
#endif

/* How this build computes with floating-point numbers, for cdp_describe(). Ranks agree in every bit
   whatever it says, since a sum is computed once and passed on or in one order everywhere as long
   as all ranks run one build; builds that differ in this may differ in the last bit. Some compilers
   fuse products and sums without defining __FP_FAST_FMA, so macros of the processor are checked,
   too. */
#if (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__ > 0) || defined(__FAST_MATH__) \
    || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || defined(_M_FP_FAST)
#define CDP__ARITHMETIC                                                                          \
    "fast-math (-Ofast, or parts of it): other builds may get other last bits, and NaNs may be " \
    "lost"
#elif FLT_EVAL_METHOD != 0
#define CDP__ARITHMETIC "wider than the types (x87): other builds may get other last bits"
#elif defined(__FP_FAST_FMAF) || defined(__FP_FAST_FMA) || defined(__FMA__) || defined(__FMA4__) \
    || defined(__ARM_FEATURE_FMA) || defined(__powerpc__) || defined(__riscv_flen)               \
    || defined(__s390__)
#define CDP__ARITHMETIC "IEEE 754; products and sums may be fused unless -ffp-contract=off"
#else
#define CDP__ARITHMETIC "IEEE 754, each operation rounded"
#endif

#define CDP__MS 1000000ull /* nanoseconds */
#define CDP__NEVER UINT64_MAX
#define CDP__MANY 64u   /* how many descriptors are served before the next look */
#define CDP__IOV_MAX 8u /* pieces of one call for a socket */

/* The files of the library, as numbers for cdp_error.file. Each file redefines CDP__HERE where
   its implementation begins. */
enum {
    CDP__FILE_NONE,
    CDP__FILE_CORE,
    CDP__FILE_STORE,
    CDP__FILE_TCP,
    CDP__FILE_NCCL,
    CDP__FILE_DTENSOR,
    CDP__FILE_RPC,
    CDP__FILE_MEM,
    CDP__FILE_ELASTIC,
    CDP__FILE_LAUNCH
};
#define CDP__HERE CDP__FILE_CORE

/* As memcpy, but bypasses the caches where the processor can: for data too large to stay in them
   anyway. Call cdp__copied_past() before another thread may read the copy. */
#ifdef __SSE2__
CDP__PRIVATE void cdp__copy_past(uint8_t *to, const uint8_t *from, uint64_t bytes) {
    uint64_t i;
    if (((uintptr_t)to | bytes) % 16) {
        memcpy(to, from, (size_t)bytes);
        return;
    }
    for (i = 0; i < bytes; i += 16)
        _mm_stream_si128((__m128i *)(void *)(to + i),
            _mm_loadu_si128((const __m128i *)(const void *)(from + i)));
}
CDP__PRIVATE void cdp__copied_past(void) {
    _mm_sfence();
}
#else
CDP__PRIVATE void cdp__copy_past(uint8_t *to, const uint8_t *from, uint64_t bytes) {
    memcpy(to, from, (size_t)bytes);
}
CDP__PRIVATE void cdp__copied_past(void) {
}
#endif

/* The deadline `ms` milliseconds from now; CDP__NEVER for CDP_NO_TIMEOUT. */
CDP__PRIVATE uint64_t cdp__deadline(const cdp_os *os, uint32_t ms) {
    return ms == CDP_NO_TIMEOUT ? CDP__NEVER : os->now_ns(os->user) + ms * CDP__MS;
}

CDP__PRIVATE void cdp__sleep_until(const cdp_os *os, uint64_t deadline_ns) {
    if (os->sleep_until) os->sleep_until(os->user, deadline_ns);
}

CDP__PRIVATE void *cdp__alloc(const cdp_os *os, uint64_t bytes) {
    return os->alloc(os->user, bytes ? bytes : 1);
}

CDP__PRIVATE CDP__ONE_COPY void *cdp__alloc_zero(const cdp_os *os, uint64_t bytes) {
    void *p = cdp__alloc(os, bytes);
    if (p) memset(p, 0, (size_t)bytes);
    return p;
}

CDP__PRIVATE void cdp__free(const cdp_os *os, void *p) {
    os->release(os->user, p); /* which accepts NULL */
}

/* What this thread's next request for a backend's memory is for: the label that cdp_allocator
   gets. */
CDP__PRIVATE const char **cdp__purpose(void) {
    static CDP__THREAD_LOCAL const char *text;
    return &text;
}

#endif /* CDP_SRC_BASE_BASICS_H */
