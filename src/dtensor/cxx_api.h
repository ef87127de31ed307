/* dtensor/cxx_api.h - descs by reference in C++ */
#ifndef CDP_SRC_DTENSOR_CXX_API_H
#define CDP_SRC_DTENSOR_CXX_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "mesh_api.h"
#include "plan_api.h"
#include "dtensor_api.h"
#include "edge_api.h"
#include "tensor_parallel_api.h"
#include "context_parallel_api.h"
#include "local_map_api.h"

#ifdef __cplusplus
extern "C++" { /* also where a program includes the header in extern "C" */
inline cdp_status cdp_mesh_create(const cdp_mesh_desc &desc, cdp_mesh **out) {
    return cdp_mesh_create(&desc, out);
}
inline cdp_status cdp_plan_create(const cdp_plan_desc &desc, cdp_plan **out) {
    return cdp_plan_create(&desc, out);
}
inline cdp_status cdp_edge_create(const cdp_edge_desc &desc, cdp_edge **out) {
    return cdp_edge_create(&desc, out);
}
inline cdp_status cdp_dtensor_fill(cdp_dtensor *tensor, const cdp_fill &fill) {
    return cdp_dtensor_fill(tensor, &fill);
}
#ifndef CDP_NO_TENSOR_OPS
inline cdp_status cdp_tp_create(const cdp_tp_desc &desc, cdp_tp **out) {
    return cdp_tp_create(&desc, out);
}
inline cdp_status cdp_cp_create(const cdp_cp_desc &desc, cdp_cp **out) {
    return cdp_cp_create(&desc, out);
}
inline cdp_status cdp_local_map(const cdp_local_map_desc &desc) {
    return cdp_local_map(&desc);
}
#endif
inline cdp_status cdp_mesh_from_groups(
    const cdp_mesh_desc &desc, cdp_group *const *groups, cdp_mesh **out) {
    return cdp_mesh_from_groups(&desc, groups, out);
}
} /* extern "C++" */
#endif

#endif /* CDP_SRC_DTENSOR_CXX_API_H */
