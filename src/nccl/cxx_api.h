/* nccl/cxx_api.h - descs by reference in C++ */
#ifndef CDP_SRC_NCCL_CXX_API_H
#define CDP_SRC_NCCL_CXX_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../group/group_api.h"
#include "desc_api.h"
#include "create_api.h"
#include "../ddp/hooks_api.h"

#ifdef __cplusplus
extern "C++" { /* also where a program includes the header in extern "C" */
inline cdp_status cdp_nccl_attach(cdp_group *group, const cdp_nccl_desc &desc) {
    return cdp_nccl_attach(group, &desc);
}
#ifndef CDP_NO_HOOKS
inline cdp_status cdp_nccl_hook_create(cdp_group *group, const cdp_hook_desc &desc, cdp_hook *out) {
    return cdp_nccl_hook_create(group, &desc, out);
}
#endif
} /* extern "C++" */
#endif

#endif /* CDP_SRC_NCCL_CXX_API_H */
