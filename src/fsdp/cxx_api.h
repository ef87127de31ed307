/* fsdp/cxx_api.h - descs by reference in C++ */
#ifndef CDP_SRC_FSDP_CXX_API_H
#define CDP_SRC_FSDP_CXX_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "fsdp_api.h"

#ifdef __cplusplus
extern "C++" { /* also where a program includes the header in extern "C" */
inline cdp_status cdp_fsdp_create(const cdp_fsdp_desc &desc, cdp_fsdp **out) {
    return cdp_fsdp_create(&desc, out);
}
inline cdp_status cdp_fsdp_preview(const cdp_fsdp_desc &desc, uint32_t rank, cdp_fsdp_stats *out) {
    return cdp_fsdp_preview(&desc, rank, out);
}
inline cdp_status cdp_fsdp_preview_times(
    const cdp_fsdp_desc &desc, uint32_t rank, const cdp_fsdp_speed &speed, cdp_fsdp_times *out) {
    return cdp_fsdp_preview_times(&desc, rank, &speed, out);
}
inline cdp_status cdp_fsdp_range(const cdp_fsdp_desc &desc, uint32_t unit, bool frozen,
    uint32_t ranks, uint32_t rank, uint64_t *start, uint64_t *end) {
    return cdp_fsdp_range(&desc, unit, frozen, ranks, rank, start, end);
}
} /* extern "C++" */
#endif

#endif /* CDP_SRC_FSDP_CXX_API_H */
