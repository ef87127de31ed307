/* elastic/cxx_api.h - descs by reference in C++ */
#ifndef CDP_SRC_ELASTIC_CXX_API_H
#define CDP_SRC_ELASTIC_CXX_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../group/group_api.h"
#include "elastic_api.h"
#include "quorum_api.h"

#ifdef __cplusplus
extern "C++" { /* also where a program includes the header in extern "C" */
inline cdp_status cdp_group_shrink(
    cdp_group *group, const cdp_shrink_desc &desc, uint64_t *steps, cdp_group **out) {
    return cdp_group_shrink(group, &desc, steps, out);
}
#ifndef CDP_NO_CUSTOM_STORE
inline cdp_status cdp_quorum_store_create(const cdp_quorum_store_desc &desc, cdp_store **out) {
    return cdp_quorum_store_create(&desc, out);
}
#endif
inline cdp_status cdp_elastic_create(const cdp_elastic_desc &desc, cdp_elastic **out) {
    return cdp_elastic_create(&desc, out);
}
inline cdp_status cdp_elastic_create_from_env(const cdp_elastic_desc &desc, cdp_elastic **out) {
    return cdp_elastic_create_from_env(&desc, out);
}
} /* extern "C++" */
#endif

#endif /* CDP_SRC_ELASTIC_CXX_API_H */
