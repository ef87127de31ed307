/* base/helpers.h - small helpers that need no system (pure)

   Knows: headers of C. Promises: no state. The files that cdp_dtensor.h shares with cdp.h include
   this one, and not >>base/basics. */
#ifndef CDP_SRC_BASE_HELPERS_H
#define CDP_SRC_BASE_HELPERS_H

#include "config.h"
#include "compiler.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifndef CDP_ASSERT
#if defined(CDP_NO_LOG_STRINGS) && !defined(NDEBUG)
#define CDP_ASSERT(x) ((x) ? (void)0 : abort())
#else
#include <assert.h>
#define CDP_ASSERT(x) assert(x)
#endif
#endif

/* False in builds whose errors and logs have no texts: there nothing is found out that only a text
   would say. */
#ifdef CDP_NO_LOG_STRINGS
#define CDP__TEXTS false
#else
#define CDP__TEXTS true
#endif

/* The text of an abort: this, and the reason. Who passes a reason on to another group takes off
   what stands before it (pipeline/state.h). */
#define CDP__ABORTED "aborted: "

/* 0 in a desc means "the default". */
#define cdp__def(value, fallback) ((value) ? (value) : (fallback))

CDP__PRIVATE uint64_t cdp__min(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}
CDP__PRIVATE uint64_t cdp__max(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

#endif /* CDP_SRC_BASE_HELPERS_H */
