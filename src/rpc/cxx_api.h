/* rpc/cxx_api.h - descs by reference in C++ */
#ifndef CDP_SRC_RPC_CXX_API_H
#define CDP_SRC_RPC_CXX_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "worker_api.h"
#include "calls_api.h"
#include "many_api.h"
#include "references_api.h"
#include "gradients_api.h"
#include "optimizer_api.h"

#ifdef __cplusplus
extern "C++" { /* also where a program includes the header in extern "C" */
inline cdp_status cdp_rpc_create(const cdp_rpc_desc &desc, cdp_rpc **out) {
    return cdp_rpc_create(&desc, out);
}
inline cdp_status cdp_rpc_start(cdp_rpc *rpc, const cdp_call_desc &desc, cdp_call *call) {
    return cdp_rpc_start(rpc, &desc, call);
}
inline cdp_status cdp_rpc_call(cdp_rpc *rpc, const cdp_call_desc &desc, cdp_call *call) {
    return cdp_rpc_call(rpc, &desc, call);
}
inline cdp_status cdp_rpc_start_many(cdp_rpc *rpc, const cdp_call_desc &desc, const uint32_t *ranks,
    uint32_t count, cdp_call *calls) {
    return cdp_rpc_start_many(rpc, &desc, ranks, count, calls);
}
inline cdp_status cdp_rpc_call_many(cdp_rpc *rpc, const cdp_call_desc &desc, const uint32_t *ranks,
    uint32_t count, cdp_call *calls) {
    return cdp_rpc_call_many(rpc, &desc, ranks, count, calls);
}
inline cdp_status cdp_rpc_remote(cdp_rpc *rpc, const cdp_call_desc &desc, cdp_rref *out) {
    return cdp_rpc_remote(rpc, &desc, out);
}
inline cdp_status cdp_ctx_op(cdp_ctx *ctx, const cdp_ctx_op_desc &desc) {
    return cdp_ctx_op(ctx, &desc);
}
inline cdp_status cdp_ctx_backward(cdp_ctx *ctx, const cdp_backward_desc &desc) {
    return cdp_ctx_backward(ctx, &desc);
}
inline cdp_status cdp_dist_optim_create(const cdp_optim_desc &desc, cdp_dist_optim **out) {
    return cdp_dist_optim_create(&desc, out);
}
} /* extern "C++" */
#endif

#endif /* CDP_SRC_RPC_CXX_API_H */
