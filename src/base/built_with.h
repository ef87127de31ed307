/* base/built_with.h - the function that says which macros the implementation was compiled with

   Knows: nothing but its name. Promises: it is there, once, unless all functions are private. */
#ifndef CDP_SRC_BASE_BUILT_WITH_H
#define CDP_SRC_BASE_BUILT_WITH_H

#include "built_with_api.h"

#if !defined(CDP_STATIC)
CDP_API void cdp_built_with(void) {
}
#endif

#endif /* CDP_SRC_BASE_BUILT_WITH_H */
