/* launch/cxx_api.h - descs by reference in C++ */
#ifndef CDP_SRC_LAUNCH_CXX_API_H
#define CDP_SRC_LAUNCH_CXX_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "launch_api.h"
#include "spawn_api.h"

#ifdef __cplusplus
extern "C++" { /* also where a program includes the header in extern "C" */
inline cdp_status cdp_agent_start(const cdp_launch_desc &desc, cdp_agent **out) {
    return cdp_agent_start(&desc, out);
}
inline cdp_status cdp_spawn(
    cdp_spawn_func func, void *user, uint32_t n, const cdp_spawn_desc &desc) {
    return cdp_spawn(func, user, n, &desc);
}
} /* extern "C++" */
#endif

#endif /* CDP_SRC_LAUNCH_CXX_API_H */
