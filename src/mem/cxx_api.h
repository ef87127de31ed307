/* mem/cxx_api.h - descs by reference in C++ */
#ifndef CDP_SRC_MEM_CXX_API_H
#define CDP_SRC_MEM_CXX_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "desc_api.h"
#include "allocator_api.h"
#include "record_api.h"
#include "pools_api.h"

#ifdef __cplusplus
extern "C++" { /* also where a program includes the header in extern "C" */
inline cdp_status cdp_mem_create(const cdp_mem_desc &desc, cdp_mem **out) {
    return cdp_mem_create(&desc, out);
}
inline cdp_status cdp_mem_record(cdp_mem *mem, const cdp_mem_record_desc &desc) {
    return cdp_mem_record(mem, &desc);
}
inline cdp_status cdp_mem_pool_create(
    cdp_mem *mem, const cdp_mem_pool_desc &desc, cdp_mem_pool **out) {
    return cdp_mem_pool_create(mem, &desc, out);
}
} /* extern "C++" */
#endif

#endif /* CDP_SRC_MEM_CXX_API_H */
