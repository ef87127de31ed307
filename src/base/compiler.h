/* base/compiler.h - what differs between compilers

   Knows: gcc and clang, MSVC, other compilers of C11. Promises: the other sections contain no
   compiler extension, except >>base/config, whose macros the declarations need;
   tests/check_sources.sh checks that. */
#ifndef CDP_SRC_BASE_COMPILER_H
#define CDP_SRC_BASE_COMPILER_H

#include "config.h"

/* The text about an argument that is NULL: the function, then the argument or "desc.member". */
#define CDP__MISSING "%s: %s is NULL"

/* How private functions are declared. Tests define it as something else, see tests/linked.h. */
#ifndef CDP__PRIVATE
#if defined(__GNUC__) || defined(__clang__)
#define CDP__PRIVATE __attribute__((__unused__)) static
#else
#define CDP__PRIVATE static
#endif
#endif

/* Before a short loop: gcc -O3 unrolls it completely before it could vectorise it. */
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 8
#define CDP__SHORT_LOOP _Pragma("GCC unroll 1")
#else
#define CDP__SHORT_LOOP
#endif

#if defined(__GNUC__) || defined(__clang__)
#define CDP__RESTRICT __restrict__
#if defined(CDP_NO_OS) /* see CDP_FORMAT_CHECK */
#define CDP__PRINTF(f, a)
#elif defined(_WIN32) && !defined(__clang__)
#define CDP__PRINTF(f, a) __attribute__((format(gnu_printf, f, a)))
#else
#define CDP__PRINTF(f, a) __attribute__((format(printf, f, a)))
#endif
/* Keeps compilers from copying a function into each of its callers. Used only where measured copies
   cost most. */
#define CDP__ONE_COPY __attribute__((__noinline__))
/* Marks functions that run when something begins, ends, fails or is described, and not for each
   operation, message or request. Compilers optimize them for size, and keep them and all paths that
   lead to them apart from the rest; gcc also what only they call. A function that always calls one
   of them becomes one, too. So public functions are not marked: the training of a program that
   calls them before or after it, in its main(), would be optimized for size. */
#define CDP__COLD __attribute__((__cold__))
/* In a public function that always calls a cold one, before that call: so it does not become one
   itself, nor does the function that it is inlined into. */
#define CDP__NOT_COLD() __asm__ volatile("")
/* Marks functions that round every operation, whatever -ffp-contract says, and whose loops may
   compute both sides of a choice. clang fuses within one expression, so products are statements of
   their own; -ffp-contract=fast fuses these, too. */
#ifdef __clang__
#define CDP__EXACT
#else
#define CDP__EXACT __attribute__((__optimize__("fp-contract=off", "no-trapping-math")))
#endif
/* The square root of an f32 as one instruction: sqrtf() would need the mathematical library. */
#if !defined(__clang__) && defined(__SSE2__)
typedef float cdp__four_floats __attribute__((__vector_size__(16)));
CDP__PRIVATE float cdp__sqrt_of_first(float x) {
    cdp__four_floats v = {x, 0, 0, 0};
    v = __builtin_ia32_sqrtss(v);
    return v[0];
}
#define CDP__SQRTF(x) cdp__sqrt_of_first(x)
#endif
#define CDP__EXACT_INLINE CDP__EXACT __attribute__((__always_inline__)) inline
/* Marks functions that read any word of the stack. */
#define CDP__NO_ASAN __attribute__((no_sanitize_address))
/* The processor's count of ticks, at a constant rate; 0: there is none. */
#ifdef __x86_64__
#define cdp__ticks() ((uint64_t)__builtin_ia32_rdtsc())
#else
#define cdp__ticks() ((uint64_t)0)
#endif
#define cdp__return_address() __builtin_return_address(0)
#define cdp__frame_address() __builtin_frame_address(0)
/* With other compilers the C library's struct epoll_event does not have the kernel's layout. */
#ifdef __linux__
#define CDP__EPOLL
#endif
#else
#define CDP__RESTRICT
#define CDP__PRINTF(f, a)
#define CDP__ONE_COPY
#define CDP__COLD
#define CDP__NOT_COLD() ((void)0)
#define CDP__EXACT
#define CDP__EXACT_INLINE
#define CDP__NO_ASAN
#define cdp__ticks() ((uint64_t)0)
#define cdp__return_address() NULL
#define cdp__frame_address() NULL
#endif

#if defined(CDP_NO_THREADS)
#define CDP__THREAD_LOCAL
#elif defined(_MSC_VER) && !defined(__clang__)
#define CDP__THREAD_LOCAL __declspec(thread)
#elif defined(__GNUC__) || defined(__clang__)
#define CDP__THREAD_LOCAL __thread
#else
#define CDP__THREAD_LOCAL _Thread_local
#endif

/* The positions of the highest and the lowest bit that is set; n > 0. */
#if defined(__GNUC__) || defined(__clang__)
#define cdp__highest_bit(n) (63u - (uint32_t)__builtin_clzll(n))
#define cdp__lowest_bit(n) ((uint32_t)__builtin_ctzll(n))
#else
CDP__PRIVATE uint32_t cdp__highest_bit(uint64_t n) {
    uint32_t at = 0, step;
    for (step = 32; step; step /= 2) {
        if (!(n >> step)) continue;
        n >>= step;
        at += step;
    }
    return at;
}
CDP__PRIVATE uint32_t cdp__lowest_bit(uint64_t n) {
    return cdp__highest_bit(n & (~n + 1));
}
#endif

/* ---- atomic accesses

   Macros or functions, one for each type. add, sub and and return the new value. cas compares with
   *expected and replaces; if it returns false, it has set *expected to the value found. The orders
   have the meaning of C11's. */

#if defined(__GNUC__) || defined(__clang__)
#define CDP__RELAXED __ATOMIC_RELAXED
#define CDP__ACQUIRE __ATOMIC_ACQUIRE
#define CDP__RELEASE __ATOMIC_RELEASE
#define CDP__ACQ_REL __ATOMIC_ACQ_REL
#define CDP__SEQ_CST __ATOMIC_SEQ_CST
#define cdp__atomic_load_u16(from, order) __atomic_load_n(from, order)
#define cdp__atomic_load_u32(from, order) __atomic_load_n(from, order)
#define cdp__atomic_load_ptr(from, order) __atomic_load_n(from, order)
#define cdp__atomic_store_u32(to, value, order) __atomic_store_n(to, value, order)
#define cdp__atomic_swap_u32(at, value, order) __atomic_exchange_n(at, value, order)
#define cdp__atomic_add_u32(at, value, order) __atomic_add_fetch(at, value, order)
#define cdp__atomic_add_u64(at, value, order) __atomic_add_fetch(at, value, order)
#define cdp__atomic_sub_u32(at, value, order) __atomic_sub_fetch(at, value, order)
#define cdp__atomic_and_u32(at, value, order) __atomic_and_fetch(at, value, order)
#define cdp__atomic_cas_u32(at, expected, value, order, otherwise) \
    __atomic_compare_exchange_n(at, expected, value, false, order, otherwise)
#define cdp__atomic_cas_ptr(at, expected, value, order, otherwise) \
    __atomic_compare_exchange_n(at, expected, value, false, order, otherwise)
/* If no other thread or process reads this memory, 64-bit stores need not be atomic: small
   processors have no such store. */
#if defined(CDP_NO_THREADS) && defined(CDP_NO_SHARED_MEMORY)
#define cdp__atomic_load_u64(from, order) (*(from))
#define cdp__atomic_store_u64(to, value, order) ((void)(*(to) = (value)))
#else
#define cdp__atomic_load_u64(from, order) __atomic_load_n(from, order)
#define cdp__atomic_store_u64(to, value, order) __atomic_store_n(to, value, order)
#endif

#elif defined(_MSC_VER)
/* Aligned volatile accesses are atomic. On x86 only the compiler may change their order, and only
   a store may be overtaken by a later load: a store that is SEQ_CST is an exchange. */
#include <intrin.h>
#if defined(_M_ARM64) || defined(_M_ARM)
#define CDP__BARRIER() __dmb(0xb)
#else
#define CDP__BARRIER() _ReadWriteBarrier()
#endif
#define CDP__RELAXED 0
#define CDP__ACQUIRE 1
#define CDP__RELEASE 2
#define CDP__ACQ_REL 3
#define CDP__SEQ_CST 4

CDP__PRIVATE uint16_t cdp__atomic_load_u16(const volatile uint16_t *from, int order) {
    const uint16_t value = *from;
    (void)order;
    CDP__BARRIER();
    return value;
}
CDP__PRIVATE uint32_t cdp__atomic_load_u32(const volatile uint32_t *from, int order) {
    const uint32_t value = *from;
    (void)order;
    CDP__BARRIER();
    return value;
}
CDP__PRIVATE uint32_t cdp__atomic_swap_u32(volatile uint32_t *at, uint32_t value, int order) {
    (void)order;
    return (uint32_t)_InterlockedExchange((volatile long *)at, (long)value);
}
CDP__PRIVATE void cdp__atomic_store_u32(volatile uint32_t *to, uint32_t value, int order) {
    if (order == CDP__SEQ_CST) {
        (void)cdp__atomic_swap_u32(to, value, order);
        return;
    }
    CDP__BARRIER();
    *to = value;
}
CDP__PRIVATE uint32_t cdp__atomic_add_u32(volatile uint32_t *at, uint32_t value, int order) {
    (void)order;
    return (uint32_t)_InterlockedExchangeAdd((volatile long *)at, (long)value) + value;
}
CDP__PRIVATE uint32_t cdp__atomic_sub_u32(volatile uint32_t *at, uint32_t value, int order) {
    return cdp__atomic_add_u32(at, 0u - value, order);
}
CDP__PRIVATE uint32_t cdp__atomic_and_u32(volatile uint32_t *at, uint32_t value, int order) {
    (void)order;
    return (uint32_t)_InterlockedAnd((volatile long *)at, (long)value) & value;
}
CDP__PRIVATE bool cdp__atomic_cas_u32(
    volatile uint32_t *at, uint32_t *expected, uint32_t value, int order, int otherwise) {
    const uint32_t wanted = *expected;
    (void)order;
    (void)otherwise;
    *expected =
        (uint32_t)_InterlockedCompareExchange((volatile long *)at, (long)value, (long)wanted);
    return *expected == wanted;
}
/* Adds to a number of 64 bits, or replaces it; 32-bit x86 has this one instruction for both. */
CDP__PRIVATE uint64_t cdp__atomic_change_u64(volatile uint64_t *at, uint64_t value, bool add) {
    uint64_t was, is = *at;
    do {
        was = is;
        is = (uint64_t)_InterlockedCompareExchange64(
            (volatile __int64 *)at, (__int64)(add ? was + value : value), (__int64)was);
    } while (is != was);
    return add ? was + value : value;
}
#define cdp__atomic_add_u64(at, value, order) cdp__atomic_change_u64(at, value, true)
#ifdef _M_IX86
#define cdp__atomic_load_u64(from, order) \
    ((uint64_t)_InterlockedCompareExchange64((volatile __int64 *)(from), 0, 0))
#define cdp__atomic_store_u64(to, value, order) ((void)cdp__atomic_change_u64(to, value, false))
#else
CDP__PRIVATE uint64_t cdp__atomic_load_u64(const volatile uint64_t *from, int order) {
    const uint64_t value = *from;
    (void)order;
    CDP__BARRIER();
    return value;
}
CDP__PRIVATE void cdp__atomic_store_u64(volatile uint64_t *to, uint64_t value, int order) {
    (void)order; /* none is SEQ_CST */
    CDP__BARRIER();
    *to = value;
}
#endif
CDP__PRIVATE void *cdp__atomic_load_pointer(void *const volatile *from) {
    void *const value = *from;
    CDP__BARRIER();
    return value;
}
CDP__PRIVATE bool cdp__atomic_cas_pointer(void *volatile *at, void **expected, void *value) {
    void *const wanted = *expected;
    *expected = _InterlockedCompareExchangePointer(at, value, wanted);
    return *expected == wanted;
}
#define cdp__atomic_load_ptr(from, order) cdp__atomic_load_pointer((void *const volatile *)(from))
#define cdp__atomic_cas_ptr(at, expected, value, order, otherwise) \
    cdp__atomic_cas_pointer((void *volatile *)(at), (void **)(expected), value)

#elif defined(CDP_NO_THREADS) && defined(CDP_NO_SHARED_MEMORY)
/* One thread, and no other process: plain accesses are enough. */
#define CDP__PLAIN_ACCESSES
#define cdp__atomic_load_u16(from, order) (*(from))
#define cdp__atomic_load_u32(from, order) (*(from))
#define cdp__atomic_load_u64(from, order) (*(from))
#define cdp__atomic_load_ptr(from, order) (*(from))
#define cdp__atomic_store_u32(to, value, order) ((void)(*(to) = (value)))
#define cdp__atomic_store_u64(to, value, order) ((void)(*(to) = (value)))
#define cdp__atomic_add_u32(at, value, order) (*(at) += (value))
#define cdp__atomic_sub_u32(at, value, order) (*(at) -= (value))
#define cdp__atomic_and_u32(at, value, order) (*(at) &= (value))
#define cdp__atomic_swap_u32(at, value, order) cdp__plain_swap_u32(at, value)
#define cdp__atomic_cas_u32(at, expected, value, order, otherwise) \
    cdp__plain_cas_u32(at, expected, value)
#define cdp__atomic_cas_ptr(at, expected, value, order, otherwise) \
    cdp__plain_cas_ptr((void **)(at), (void **)(expected), value)
CDP__PRIVATE uint32_t cdp__plain_swap_u32(uint32_t *at, uint32_t value) {
    const uint32_t was = *at;
    *at = value;
    return was;
}
CDP__PRIVATE bool cdp__plain_cas_u32(uint32_t *at, uint32_t *expected, uint32_t value) {
    const bool same = *at == *expected;
    *expected = *at;
    if (same) *at = value;
    return same;
}
CDP__PRIVATE bool cdp__plain_cas_ptr(void **at, void **expected, void *value) {
    const bool same = *at == *expected;
    *expected = *at;
    if (same) *at = value;
    return same;
}

#elif defined(__cplusplus) || defined(__STDC_NO_ATOMICS__) || __STDC_VERSION__ < 201112L
#error "cdp.h: a compiler without atomics of C11: define CDP_NO_THREADS and CDP_NO_SHARED_MEMORY"
#else
#include <stdatomic.h>
#define CDP__RELAXED memory_order_relaxed
#define CDP__ACQUIRE memory_order_acquire
#define CDP__RELEASE memory_order_release
#define CDP__ACQ_REL memory_order_acq_rel
#define CDP__SEQ_CST memory_order_seq_cst
#define cdp__atomic_load_u16(from, order) \
    atomic_load_explicit((const _Atomic uint16_t *)(from), order)
#define cdp__atomic_load_u32(from, order) \
    atomic_load_explicit((const _Atomic uint32_t *)(from), order)
#define cdp__atomic_load_u64(from, order) \
    atomic_load_explicit((const _Atomic uint64_t *)(from), order)
#define cdp__atomic_load_ptr(from, order) atomic_load_explicit((void *_Atomic *)(from), order)
#define cdp__atomic_store_u32(to, value, order) \
    atomic_store_explicit((_Atomic uint32_t *)(to), value, order)
#define cdp__atomic_store_u64(to, value, order) \
    atomic_store_explicit((_Atomic uint64_t *)(to), value, order)
#define cdp__atomic_swap_u32(at, value, order) \
    atomic_exchange_explicit((_Atomic uint32_t *)(at), value, order)
#define cdp__atomic_add_u32(at, value, order) \
    (atomic_fetch_add_explicit((_Atomic uint32_t *)(at), value, order) + (value))
#define cdp__atomic_add_u64(at, value, order) \
    (atomic_fetch_add_explicit((_Atomic uint64_t *)(at), value, order) + (value))
#define cdp__atomic_sub_u32(at, value, order) \
    (atomic_fetch_sub_explicit((_Atomic uint32_t *)(at), value, order) - (value))
#define cdp__atomic_and_u32(at, value, order) \
    (atomic_fetch_and_explicit((_Atomic uint32_t *)(at), value, order) & (value))
#define cdp__atomic_cas_u32(at, expected, value, order, otherwise) \
    atomic_compare_exchange_strong_explicit(                       \
        (_Atomic uint32_t *)(at), expected, value, order, otherwise)
#define cdp__atomic_cas_ptr(at, expected, value, order, otherwise) \
    atomic_compare_exchange_strong_explicit(                       \
        (void *_Atomic *)(at), (void **)(expected), value, order, otherwise)
#endif

/* The compiler, for cdp_build(). */
#ifdef __clang__
#define CDP__COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define CDP__COMPILER "gcc " __VERSION__
#elif defined(_MSC_VER)
#define CDP__COMPILER "MSVC"
#else
#define CDP__COMPILER "another compiler"
#endif

#endif /* CDP_SRC_BASE_COMPILER_H */
