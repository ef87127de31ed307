/* pipeline/cxx_api.h - descs by reference in C++ */
#ifndef CDP_SRC_PIPELINE_CXX_API_H
#define CDP_SRC_PIPELINE_CXX_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "schedule_api.h"
#include "driver_api.h"

#ifdef __cplusplus
extern "C++" { /* also where a program includes the header in extern "C" */
inline cdp_status cdp_schedule_create(const cdp_schedule_desc &desc, cdp_schedule **out) {
    return cdp_schedule_create(&desc, out);
}
inline cdp_status cdp_pipeline_create(const cdp_pipeline_desc &desc, cdp_pipeline **out) {
    return cdp_pipeline_create(&desc, out);
}
inline cdp_status cdp_schedule_choose(
    const cdp_pipe_choice_desc &desc, uint32_t *cuts, cdp_pipe_cost *costs, cdp_pipe_choice *out) {
    return cdp_schedule_choose(&desc, cuts, costs, out);
}
inline cdp_status cdp_schedule_deadlock(const cdp_schedule *schedule, const cdp_pipe_wire &wire) {
    return cdp_schedule_deadlock(schedule, &wire);
}
} /* extern "C++" */
#endif

#endif /* CDP_SRC_PIPELINE_CXX_API_H */
