/* rpc/create.h - creates an rpc

   Knows: the steps of creation. Promises: a failed creation leaves nothing behind. */
#ifndef CDP_SRC_RPC_CREATE_H
#define CDP_SRC_RPC_CREATE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../group/group_api.h"
#include "../base/basics.h"
#include "../base/kept_error.h"
#include "../base/text.h"
#include "worker_api.h"
#include "alive.h"
#include "state.h"
#include "life.h"
#include "optimizer.h"

CDP_API cdp_status cdp_rpc_create(const cdp_rpc_desc *desc, cdp_rpc **out) {
    cdp_rpc *rpc;
    uint32_t *ranks, r;
    cdp_status st;
    if (!out) return cdp__missing("cdp_rpc_create", "out");
    *out = NULL;
    if (!desc) return cdp__missing("cdp_rpc_create", "desc");
    st = cdp__rpc_desc_check(desc);
    if (st != CDP_OK) return st;
    st = cdp_group_status(desc->group);
    if (st != CDP_OK) return st;
    rpc = (cdp_rpc *)cdp__alloc_zero(cdp_group_desc_of(desc->group)->os, sizeof *rpc);
    if (!rpc) return cdp__fail_nomem("an rpc", sizeof *rpc);
    rpc->desc = *desc;
    rpc->os = cdp_group_desc_of(desc->group)->os;
    rpc->rank = cdp_rank(desc->group);
    rpc->ranks = cdp_size(desc->group);
    cdp__rpc_defaults(rpc);
    cdp__rpc_builtins(rpc);
    st = cdp__rpc_memory(rpc);
    ranks = (uint32_t *)cdp__alloc(rpc->os, rpc->ranks * sizeof *ranks);
    if (!ranks && st == CDP_OK) st = cdp__fail_nomem("a list of ranks", rpc->ranks * 4u);
    for (r = 0; ranks && r < rpc->ranks; ++r)
        ranks[r] = r;
    if (st == CDP_OK) st = cdp_group_new(desc->group, ranks, rpc->ranks, &rpc->group);
    if (st == CDP_OK) st = cdp_group_new(desc->group, ranks, rpc->ranks, &rpc->sums);
    cdp__free(rpc->os, ranks);
    if (st == CDP_OK && !cdp__rpc_enlist(rpc))
        st = cdp__fail(CDP_ERR_BUSY,
            "cdp_rpc_create: this process has %u rpcs already; destroy one", CDP__RPCS_MAX);
    if (st == CDP_OK) st = cdp__rpc_exchange(rpc);
    if (st == CDP_OK) st = cdp__rpc_open(rpc);
    if (st != CDP_OK) {
        const cdp_error e = *cdp_last_error();
        if (rpc->lock.os) cdp__rpc_stop_workers(rpc);
        cdp__rpc_free_groups(rpc);
        cdp__rpc_delist(rpc);
        cdp__rpc_free_parts(rpc);
        cdp__rpc_free(rpc);
        return cdp__error_again(st, &e);
    }
    *out = rpc;
    return CDP_OK;
}

#endif /* CDP_SRC_RPC_CREATE_H */
