/* group/cxx_api.h - descs by reference in C++ */
#ifndef CDP_SRC_GROUP_CXX_API_H
#define CDP_SRC_GROUP_CXX_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "hub_api.h"
#include "group_api.h"
#include "collectives_api.h"
#include "lists_api.h"
#include "../ddp/ddp_api.h"
#include "works_api.h"
#include "../channel/channel_api.h"
#include "../ddp/hooks_api.h"
#include "../ddp/optimizer_api.h"
#include "../ddp/norm_api.h"
#include "../train/loader_api.h"
#include "../train/leaves_api.h"
#include "../train/outer_api.h"
#include "../train/report_api.h"

#ifdef __cplusplus
extern "C++" { /* also where a program includes the header in extern "C" */
inline cdp_status cdp_group_create(const cdp_group_desc &desc, cdp_group **out) {
    return cdp_group_create(&desc, out);
}
#ifndef CDP_NO_GROUPS
inline cdp_status cdp_group_new_with(cdp_group *parent, const uint32_t *ranks, uint32_t count,
    const cdp_group_desc &own, cdp_group **out) {
    return cdp_group_new_with(parent, ranks, count, &own, out);
}
#endif
#ifndef CDP_NO_HUB
inline cdp_status cdp_hub_create(const cdp_hub_desc &desc, cdp_hub **out) {
    return cdp_hub_create(&desc, out);
}
#endif
#ifndef CDP_NO_DDP
inline cdp_status cdp_ddp_create(const cdp_ddp_desc &desc, cdp_ddp **out) {
    return cdp_ddp_create(&desc, out);
}
#endif
inline cdp_status cdp_start(cdp_group *group, const cdp_request &request, cdp_work *out) {
    return cdp_start(group, &request, out);
}
#ifndef CDP_NO_OBJECTS
inline cdp_status cdp_collective_lists(
    cdp_group *group, const cdp_request &request, const void *const *ins, void *const *outs) {
    return cdp_collective_lists(group, &request, ins, outs);
}
#endif
#if !defined(CDP_NO_DDP) && !defined(CDP_NO_FRAMES)
inline cdp_status cdp_ddp_create_start(const cdp_ddp_desc &desc, cdp_ddp **out) {
    return cdp_ddp_create_start(&desc, out);
}
#endif
#if !defined(CDP_NO_DDP) && !defined(CDP_NO_TRAINING)
inline cdp_status cdp_optimizer_create(const cdp_optimizer_desc &desc, cdp_optimizer **out) {
    return cdp_optimizer_create(&desc, out);
}
#endif
#ifndef CDP_NO_HOOKS
inline cdp_status cdp_hook_create(const cdp_hook_desc &desc, cdp_hook *out) {
    return cdp_hook_create(&desc, out);
}
#endif
#ifndef CDP_NO_CHANNELS
inline cdp_status cdp_channel_open(const cdp_channel_desc &desc, cdp_channel **out) {
    return cdp_channel_open(&desc, out);
}
#endif
#ifndef CDP_NO_CHAINS
inline cdp_status cdp_start_after(
    cdp_group *group, const cdp_request &request, cdp_work after, cdp_work *out) {
    return cdp_start_after(group, &request, after, out);
}
#endif
#if !defined(CDP_NO_DDP) && !defined(CDP_NO_CLIP)
inline cdp_status cdp_grads_norm(const cdp_norm_desc &desc, double *each, cdp_norm *out) {
    return cdp_grads_norm(&desc, each, out);
}
inline cdp_status cdp_grads_scale(const cdp_norm_desc &desc, double factor) {
    return cdp_grads_scale(&desc, factor);
}
#endif
#if !defined(CDP_NO_TRAINING) && !defined(CDP_NO_SAMPLER)
inline cdp_status cdp_loader_create(const cdp_loader_desc &desc, cdp_loader **out) {
    return cdp_loader_create(&desc, out);
}
#ifndef CDP_NO_FILES
inline cdp_status cdp_tokens_create(const cdp_tokens_desc &desc, cdp_tokens **out) {
    return cdp_tokens_create(&desc, out);
}
#endif
#endif
#if !defined(CDP_NO_DDP) && !defined(CDP_NO_TRAINING)
inline cdp_status cdp_leaves_create(const cdp_leaves_desc &desc, cdp_leaves **out) {
    return cdp_leaves_create(&desc, out);
}
#ifndef CDP_NO_AVERAGER
inline cdp_status cdp_outer_create(const cdp_outer_desc &desc, cdp_outer **out) {
    return cdp_outer_create(&desc, out);
}
#endif
#ifndef CDP_NO_TRACE
inline cdp_status cdp_report_create(const cdp_report_desc &desc, cdp_report **out) {
    return cdp_report_create(&desc, out);
}
#endif
#endif
} /* extern "C++" */
#endif

#endif /* CDP_SRC_GROUP_CXX_API_H */
