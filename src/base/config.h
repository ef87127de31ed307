/* base/config.h - macros that a program may set */
#ifndef CDP_SRC_BASE_CONFIG_H
#define CDP_SRC_BASE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* No system: the program passes a cdp_os of its own, and the default one is left out with all that
   it is made of. */
#ifdef CDP_NO_OS
#undef CDP_NO_STDIO
#undef CDP_NO_FILES
#undef CDP_NO_THREADS
#undef CDP_NO_SHARED_MEMORY
#define CDP_NO_STDIO
#define CDP_NO_FILES
#define CDP_NO_THREADS
#define CDP_NO_SHARED_MEMORY
#endif

/* Channels move offered bodies as messages do. */
#ifdef CDP_NO_MESSAGES
#undef CDP_NO_CHANNELS
#define CDP_NO_CHANNELS
#endif

/* They compute with f64. */
#ifdef CDP_ONLY_F32
#undef CDP_NO_HOOKS
#undef CDP_NO_CLIP
#undef CDP_NO_TRAINING
#define CDP_NO_HOOKS
#define CDP_NO_CLIP
#define CDP_NO_TRAINING
#endif

/* The parts of training need it. */
#ifdef CDP_NO_DDP
#undef CDP_NO_HOOKS
#undef CDP_NO_AVERAGER
#undef CDP_NO_TRACE
#undef CDP_NO_SPARSE
#undef CDP_NO_JOIN
#undef CDP_NO_CLIP
#undef CDP_NO_VERIFY
#define CDP_NO_HOOKS
#define CDP_NO_AVERAGER
#define CDP_NO_TRACE
#define CDP_NO_SPARSE
#define CDP_NO_JOIN
#define CDP_NO_CLIP
#define CDP_NO_VERIFY
#endif

#ifndef CDP_API
#if defined(CDP_STATIC) && (defined(__GNUC__) || defined(__clang__))
#define CDP_API __attribute__((__unused__)) static
#elif defined(CDP_STATIC)
#define CDP_API static
#else
#define CDP_API extern
#endif
#endif

#if defined(__GNUC__) || defined(__clang__)
#define CDP_MUST_CHECK __attribute__((warn_unused_result))
#define CDP__KEPT __attribute__((__used__)) /* though nothing uses it */
#else
#define CDP_MUST_CHECK
#define CDP__KEPT
#endif
/* Where uint32_t is a long, as on many boards, the check would complain of every %u. */
#if (defined(__GNUC__) || defined(__clang__)) && !defined(CDP_NO_OS)
#define CDP_FORMAT_CHECK __attribute__((format(printf, 4, 5)))
#else
#define CDP_FORMAT_CHECK
#endif

/* A desc's timeout_ms: 0 means the default, this means never. */
#define CDP_NO_TIMEOUT 0xffffffffu

/* Bytes of cdp_error.text, at least 64. */
#ifndef CDP_ERROR_TEXT
#define CDP_ERROR_TEXT 512
#endif

/* The tables in memory that two ranks share; see LIMITS. */
#ifndef CDP_SLOTS
#define CDP_SLOTS 8u
#endif
#ifndef CDP_SLOT_BYTES
#define CDP_SLOT_BYTES 4096u
#endif
#ifndef CDP_EXPOSURES
#define CDP_EXPOSURES 32u
#endif
#if CDP_SLOTS < 1 || CDP_SLOTS > 16 || CDP_EXPOSURES < 1 || CDP_EXPOSURES > 1024
#error "cdp.h: CDP_SLOTS must be 1 to 16, CDP_EXPOSURES 1 to 1024"
#endif
#if CDP_SLOT_BYTES < 64 || CDP_SLOT_BYTES > 32768 || CDP_SLOT_BYTES % 64
#error "cdp.h: CDP_SLOT_BYTES must be 64 to 32768, a multiple of 64"
#endif

#endif /* CDP_SRC_BASE_CONFIG_H */
