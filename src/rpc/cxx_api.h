/* rpc/cxx_api.h - descs by reference in C++ */
#ifndef CDP_SRC_RPC_CXX_API_H
#define CDP_SRC_RPC_CXX_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "worker_api.h"
#include "calls_api.h"

#ifdef __cplusplus
inline cdp_status cdp_rpc_create(const cdp_rpc_desc &desc, cdp_rpc **out) {
    return cdp_rpc_create(&desc, out);
}
inline cdp_status cdp_rpc_start(cdp_rpc *rpc, const cdp_call_desc &desc, cdp_call *call) {
    return cdp_rpc_start(rpc, &desc, call);
}
inline cdp_status cdp_rpc_call(cdp_rpc *rpc, const cdp_call_desc &desc, cdp_call *call) {
    return cdp_rpc_call(rpc, &desc, call);
}
#endif

#endif /* CDP_SRC_RPC_CXX_API_H */
