/* base/build.h - the version and the compiler, as numbers and as text

   Knows: the macros that compilers define. Promises: one text, put together by the compiler. */
#ifndef CDP_SRC_BASE_BUILD_H
#define CDP_SRC_BASE_BUILD_H

#include "version.h"
#include "config.h"
#include "built_with_api.h"
#include "build_api.h"
#include "compiler.h"

#define CDP__QUOTED(...) #__VA_ARGS__
#define CDP__QUOTE(...) CDP__QUOTED(__VA_ARGS__)
#define CDP__VERSION_TEXT         \
    CDP__QUOTE(CDP_VERSION_MAJOR) \
    "." CDP__QUOTE(CDP_VERSION_MINOR) "." CDP__QUOTE(CDP_VERSION_PATCH)

#if defined(CDP_NO_LOG_STRINGS)
#define CDP__BUILD CDP__VERSION_TEXT
#else
#ifdef __cplusplus
#define CDP__LANGUAGE "C++ " CDP__QUOTE(__cplusplus)
#else
#define CDP__LANGUAGE "C " CDP__QUOTE(__STDC_VERSION__)
#endif
#if defined(UINTPTR_MAX) && UINTPTR_MAX > 0xffffffffu
#define CDP__WIDTH "64 bits"
#else
#define CDP__WIDTH "32 bits"
#endif
#ifdef CDP_STATIC
#define CDP__BUILT_WITH "CDP_STATIC"
#else
#define CDP__BUILT_WITH CDP__QUOTE(cdp_built_with)
#endif
#define CDP__BUILD                                                                       \
    "cdp " CDP__VERSION_TEXT                                                             \
    ", wire version " CDP__QUOTE(CDP_WIRE_VERSION) ", " CDP__COMPILER ", " CDP__LANGUAGE \
                                                   ", " CDP__WIDTH ", " CDP__BUILT_WITH
#endif

CDP_API uint32_t cdp_version(void) {
    return CDP_VERSION;
}

CDP_API const char *cdp_build(void) {
    return CDP__BUILD;
}

#endif /* CDP_SRC_BASE_BUILD_H */
