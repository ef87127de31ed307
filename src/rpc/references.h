/* rpc/references.h - public functions for references

   Knows: handles. Promises: the use of a dropped handle is noticed. */
#ifndef CDP_SRC_RPC_REFERENCES_H
#define CDP_SRC_RPC_REFERENCES_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "worker_api.h"
#include "calls_api.h"
#include "references_api.h"
#include "alive.h"
#include "table.h"
#include "forks.h"
#include "packets.h"
#include "state.h"
#include "pools.h"
#include "send.h"
#include "requests.h"
#include "intake.h"
#include "waits.h"
#include "facts.h"
#include "start.h"

CDP_API cdp_status cdp_rref_create(
    cdp_rpc *rpc, const cdp_value *value, const char *label, cdp_rref *out) {
    cdp__rpc_value *v;
    cdp_status st = CDP_OK;
    char *name;
    uint32_t slot;
    if (!out) return cdp__missing("cdp_rref_create", "out");
    if (!rpc) return cdp__missing("cdp_rref_create", "rpc");
    if (!value) return cdp__missing("cdp_rref_create", "value");
    memset(out, 0, sizeof *out);
    if (cdp__rpc_gone(rpc, "cdp_rref_create")) return CDP_ERR_INVALID;
    if (cdp__rpc_args_check("cdp_rref_create", &value->plain) != CDP_OK) return CDP_ERR_INVALID;
    v = cdp__rpc_value_make(rpc);
    name = cdp__rpc_text_copy(rpc, label);
    if (!v || (label && !name)) {
        cdp__free(rpc->os, v);
        cdp__free(rpc->os, name);
        return cdp__fail_nomem("a value", sizeof *v);
    }
    v->settled = true;
    cdp__rpc_lock(rpc);
    if (rpc->phase != CDP__RPC_OPEN)
        st = cdp__fail(CDP_ERR_STATE, "cdp_rref_create: the rpc was shut down");
    else if (!cdp__rpc_reserve(rpc, 1))
        st = cdp__fail(CDP_ERR_BUSY,
            "cdp_rref_create: the table of references is full (max_rrefs of the desc is %u)",
            rpc->desc.max_rrefs);
    if (st == CDP_OK) st = cdp__rpc_value_keep(rpc, "cdp_rref_create", v, value);
    if (st == CDP_OK) {
        slot = cdp__ref_create(&rpc->refs, cdp__rpc_number(rpc));
        rpc->extra[slot].value = v;
        rpc->extra[slot].label = name;
        *out = cdp__rpc_rref(rpc, slot);
    } else {
        cdp__free(rpc->os, v);
        cdp__free(rpc->os, name);
    }
    cdp__rpc_leave(rpc);
    return st;
}

/* OK: the rpc of this reference can be used; else the reason is this thread's last error. */
CDP__PRIVATE cdp_status cdp__rref_usable(const char *name, cdp_rref rref) {
    if (!rref.rpc) return cdp__missing(name, "rref.rpc");
    if (!cdp__rpc_exists(rref.rpc))
        return cdp__fail(
            CDP_ERR_STATE, "%s: the rpc of this reference was destroyed, and the reference", name);
    return cdp__rpc_forked(rref.rpc, name) ? CDP_ERR_INVALID : CDP_OK;
}

CDP_API void cdp_rref_keep(cdp_rref rref) {
    uint32_t slot;
    if (!rref.rpc || cdp__rref_usable("cdp_rref_keep", rref) != CDP_OK) return;
    cdp__rpc_lock(rref.rpc);
    slot = cdp__rpc_slot(rref.rpc, "cdp_rref_keep", rref);
    if (slot) ++rref.rpc->refs.at[slot].handles;
    cdp_lock_release(&rref.rpc->lock);
}

CDP_API void cdp_rref_drop(cdp_rref rref) {
    uint32_t slot;
    if (!rref.rpc || cdp__rref_usable("cdp_rref_drop", rref) != CDP_OK) return;
    cdp__rpc_lock(rref.rpc);
    slot = cdp__rpc_slot(rref.rpc, "cdp_rref_drop", rref);
    if (slot) cdp__ref_drop(&rref.rpc->refs, slot);
    cdp__rpc_leave(rref.rpc);
}

CDP__PRIVATE cdp_status cdp__rref_copy(
    const char *name, cdp_rref rref, uint32_t timeout_ms, cdp_call *call, bool waits) {
    cdp__rpc_starting s;
    cdp_call_desc d;
    cdp_status st = cdp__rref_usable(name, rref);
    if (st != CDP_OK) return st;
    if (!call) return cdp__missing(name, "call");
    memset(&d, 0, sizeof d);
    memset(&s, 0, sizeof s);
    d.on = rref;
    d.timeout_ms = timeout_ms;
    s.name = name;
    s.desc = &d;
    s.call = call;
    s.waits = waits;
    s.flags = CDP__RPC_FETCH;
    return cdp__rpc_start_any(rref.rpc, &s);
}

CDP_API cdp_status cdp_rref_fetch(cdp_rref rref, uint32_t timeout_ms, cdp_call *call) {
    return cdp__rref_copy("cdp_rref_fetch", rref, timeout_ms, call, false);
}

CDP_API cdp_status cdp_rref_to_here(cdp_rref rref, uint32_t timeout_ms, cdp_call *call) {
    return cdp__rref_copy("cdp_rref_to_here", rref, timeout_ms, call, true);
}

CDP__PRIVATE bool cdp__rpc_value_ready(cdp_rpc *rpc, void *arg) {
    const uint32_t slot = *(uint32_t *)arg;
    return rpc->extra[slot].value->settled;
}

CDP_API cdp_status cdp_rref_local(
    cdp_rref rref, uint32_t type, uint32_t timeout_ms, cdp_value *out) {
    cdp_rpc *rpc = rref.rpc;
    const cdp__rpc_value *v;
    cdp_status st = CDP_OK;
    uint64_t until;
    uint32_t slot;
    if (!out) return cdp__missing("cdp_rref_local", "out");
    st = cdp__rref_usable("cdp_rref_local", rref);
    if (st != CDP_OK) return st;
    cdp__rpc_lock(rpc);
    slot = cdp__rpc_slot(rpc, "cdp_rref_local", rref);
    if (!slot) st = cdp_last_error()->status;
    if (slot && rpc->refs.at[slot].kind != CDP__REF_OWNER) {
        st = cdp__fail(CDP_ERR_STATE,
            "cdp_rref_local: the value is on rank %u (%s), this is rank %u (%s); use "
            "cdp_rref_to_here(), or a call with .on",
            rpc->refs.at[slot].rank, rpc->peers[rpc->refs.at[slot].rank].name, rpc->rank,
            rpc->peers[rpc->rank].name);
        slot = 0;
    }
    if (slot) {
        ++rpc->refs.at[slot].handles;
        cdp__rpc_raise(rpc, slot, cdp__rpc_inside() + 1);
        until = cdp__rpc_until(rpc, cdp__def(timeout_ms, rpc->desc.timeout_ms));
        st = cdp__rpc_wait(rpc, cdp__rpc_value_ready, &slot, until, until);
        v = rpc->extra[slot].value;
        if (st == CDP_PENDING)
            st = cdp__fail(CDP_ERR_TIMEOUT, "cdp_rref_local: the value was not made in time");
        else if (st == CDP_OK && v->failed)
            st = cdp__fail(
                v->failed, "cdp_rref_local: %s", v->why ? v->why : "its value was not made");
        else if (st == CDP_OK && type && v->value.type != type)
            st = cdp__fail(CDP_ERR_INVALID,
                "cdp_rref_local: the value has type %u, not %u; ask for the type of its cdp_value",
                v->value.type, type);
        if (st == CDP_OK)
            *out = v->value;
        else
            cdp__ref_drop(&rpc->refs, slot);
    }
    cdp__rpc_leave(rpc);
    return st;
}

CDP_API void cdp_rref_unpin(cdp_rref rref) {
    cdp_rref_drop(rref);
}

CDP__PRIVATE bool cdp__rpc_not_pending(cdp_rpc *rpc, void *arg) {
    const cdp__ref *r = &rpc->refs.at[*(uint32_t *)arg];
    return r->kind != CDP__REF_USER || !r->handles || r->state != CDP__REF_PENDING;
}

CDP_API cdp_status cdp_rref_confirmed(cdp_rref rref, uint32_t timeout_ms) {
    cdp_rpc *rpc = rref.rpc;
    cdp_status st = CDP_OK;
    uint32_t slot;
    st = cdp__rref_usable("cdp_rref_confirmed", rref);
    if (st != CDP_OK) return st;
    cdp__rpc_lock(rpc);
    slot = cdp__rpc_slot(rpc, "cdp_rref_confirmed", rref);
    if (!slot) st = cdp_last_error()->status;
    if (slot) {
        ++rpc->refs.at[slot].handles;
        if (!cdp__rpc_not_pending(rpc, &slot))
            st = timeout_ms ? cdp__rpc_wait(
                     rpc, cdp__rpc_not_pending, &slot, cdp__rpc_until(rpc, timeout_ms), CDP__NEVER)
                            : CDP_PENDING;
        /* another thread may have shut the rpc down, which drops what is left */
        slot = cdp__rpc_slot(rpc, "cdp_rref_confirmed", rref);
        if (!slot) st = cdp_last_error()->status;
    }
    if (slot) {
        if (rpc->refs.at[slot].state == CDP__REF_BROKEN)
            st = cdp__fail_peer(rpc->extra[slot].broken,
                cdp_world_rank_of(rpc->group, rpc->refs.at[slot].rank), 0,
                "the reference to a value of rank %u (%s) is broken: that rank is lost, has no "
                "such value any more, or its table of references is full",
                rpc->refs.at[slot].rank, rpc->peers[rpc->refs.at[slot].rank].name);
        cdp__ref_drop(&rpc->refs, slot);
    }
    cdp__rpc_leave(rpc);
    return st;
}

CDP_API cdp_status cdp_rref_info_of(cdp_rref rref, cdp_rref_info *out) {
    cdp_rpc *rpc = rref.rpc;
    cdp_status st;
    uint32_t slot;
    if (!out) return cdp__missing("cdp_rref_info_of", "out");
    memset(out, 0, sizeof *out);
    st = cdp__rref_usable("cdp_rref_info_of", rref);
    if (st != CDP_OK) return st;
    cdp__rpc_lock(rpc);
    slot = cdp__rpc_slot(rpc, "cdp_rref_info_of", rref);
    if (slot) {
        const cdp__ref *r = &rpc->refs.at[slot];
        out->is_owner = r->kind == CDP__REF_OWNER;
        out->rid = r->rid;
        out->fid = out->is_owner ? 0 : r->key;
        out->owner = r->rank;
        out->handles = r->handles;
        out->holds = out->is_owner ? 0 : r->count;
        out->forks = out->is_owner ? r->count : 0;
        out->label = rpc->extra[slot].label;
        out->parent = r->parent == CDP__REF_NONE ? r->rank : r->parent;
        out->status = cdp__rpc_slot_status(rpc, slot);
        if (out->is_owner) out->type = rpc->extra[slot].value->value.type;
    }
    cdp_lock_release(&rpc->lock);
    return slot ? CDP_OK : CDP_ERR_STATE;
}

#endif /* CDP_SRC_RPC_REFERENCES_H */
