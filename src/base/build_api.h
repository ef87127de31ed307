/* base/build_api.h - which version is in the program, and how it was compiled */
#ifndef CDP_SRC_BASE_BUILD_API_H
#define CDP_SRC_BASE_BUILD_API_H

#include "config.h"

/* CDP_VERSION of the implementation: major * 10000 + minor * 100 + patch. It differs from the macro
   where a program was compiled with other headers than the library that it is linked to. Any
   thread; no errors. */
CDP_API uint32_t cdp_version(void);

/* Says in one line how the implementation was compiled, for reports of defects: "cdp 0.3.0, wire
   version 5, gcc 12.2.0, C 201112L, 64 bits", and the macros marked * in CONFIGURATION as
   cdp_built_with spells them. With CDP_NO_LOG_STRINGS the version alone. Static memory, never NULL.
   Any thread; no errors. */
CDP_API const char *cdp_build(void);

#endif /* CDP_SRC_BASE_BUILD_API_H */
