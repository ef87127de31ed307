/* tcp/cxx_api.h - descs by reference in C++ */
#ifndef CDP_SRC_TCP_CXX_API_H
#define CDP_SRC_TCP_CXX_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../group/group_api.h"
#include "desc_api.h"
#include "create_api.h"

#ifdef __cplusplus
extern "C++" { /* also where a program includes the header in extern "C" */
inline cdp_status cdp_init(const cdp_tcp_desc &desc, cdp_group **out) {
    return cdp_init(&desc, out);
}
#ifndef CDP_NO_ENV
inline cdp_status cdp_init_url(const char *url, const cdp_tcp_desc &desc, cdp_group **out) {
    return cdp_init_url(url, &desc, out);
}
#endif
#ifndef CDP_NO_FRAMES
inline cdp_status cdp_init_start(const cdp_tcp_desc &desc, cdp_starting **out) {
    return cdp_init_start(&desc, out);
}
#endif
#ifndef CDP_NO_ENV
inline cdp_status cdp_init_from_env(const cdp_tcp_desc &desc, cdp_group **out) {
    return cdp_init_from_env(&desc, out);
}
#endif
} /* extern "C++" */
#endif

#endif /* CDP_SRC_TCP_CXX_API_H */
