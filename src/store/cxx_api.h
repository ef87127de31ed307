/* store/cxx_api.h - descs by reference in C++ */
#ifndef CDP_SRC_STORE_CXX_API_H
#define CDP_SRC_STORE_CXX_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "interface_api.h"
#include "desc_api.h"

#ifdef __cplusplus
extern "C++" { /* also where a program includes the header in extern "C" */
#ifndef CDP_NO_HASH_STORE
inline cdp_status cdp_hash_store_create(const cdp_hash_store_desc &desc, cdp_store **out) {
    return cdp_hash_store_create(&desc, out);
}
#endif
#ifndef CDP_NO_CUSTOM_STORE
inline cdp_status cdp_custom_store_create(const cdp_custom_store_desc &desc, cdp_store **out) {
    return cdp_custom_store_create(&desc, out);
}
#endif
#ifndef CDP_NO_FILE_STORE
inline cdp_status cdp_file_store_create(const cdp_file_store_desc &desc, cdp_store **out) {
    return cdp_file_store_create(&desc, out);
}
#endif
inline cdp_status cdp_tcp_store_create(const cdp_tcp_store_desc &desc, cdp_store **out) {
    return cdp_tcp_store_create(&desc, out);
}
#ifndef CDP_NO_STORE_SERVER
inline cdp_status cdp_store_server_create(
    const cdp_store_server_desc &desc, cdp_store_server **out) {
    return cdp_store_server_create(&desc, out);
}
#endif
} /* extern "C++" */
#endif

#endif /* CDP_SRC_STORE_CXX_API_H */
