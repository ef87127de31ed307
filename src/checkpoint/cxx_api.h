/* checkpoint/cxx_api.h - descs by reference in C++ */
#ifndef CDP_SRC_CHECKPOINT_CXX_API_H
#define CDP_SRC_CHECKPOINT_CXX_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "checkpoint_api.h"

#ifdef __cplusplus
extern "C++" { /* also where a program includes the header in extern "C" */
inline cdp_status cdp_ckpt_create(const cdp_ckpt_desc &desc, cdp_ckpt **out) {
    return cdp_ckpt_create(&desc, out);
}
inline cdp_status cdp_ckpt_preview(const cdp_ckpt_desc &desc, cdp_ckpt_info *out) {
    return cdp_ckpt_preview(&desc, out);
}
} /* extern "C++" */
#endif

#endif /* CDP_SRC_CHECKPOINT_CXX_API_H */
