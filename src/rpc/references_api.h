/* rpc/references_api.h - values that live on another rank */
#ifndef CDP_SRC_RPC_REFERENCES_API_H
#define CDP_SRC_RPC_REFERENCES_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "worker_api.h"
#include "calls_api.h"

/* This rank owns the value: one handle. `value` and `label` are copied. Errors: INVALID, NOMEM,
   BUSY (max_rrefs), STATE. */
CDP_MUST_CHECK CDP_API cdp_status cdp_rref_create(
    cdp_rpc *rpc, const cdp_value *value, const char *label, cdp_rref *out);
/* One handle more, or less: the last one gone, the reference is, too. {0}: nothing happens. Use
   of a reference that is gone is STATE. They never wait. Any thread. */
CDP_API void cdp_rref_keep(cdp_rref rref);
CDP_API void cdp_rref_drop(cdp_rref rref);
/* A copy of the value's `plain`, as the result of `call`; waits until the value is ready.
   Errors as for cdp_rpc_call(); what the function that was to make the value failed with. */
CDP_MUST_CHECK CDP_API cdp_status cdp_rref_to_here(
    cdp_rref rref, uint32_t timeout_ms, cdp_call *call);
/* The same, without waiting. */
CDP_MUST_CHECK CDP_API cdp_status cdp_rref_fetch(
    cdp_rref rref, uint32_t timeout_ms, cdp_call *call);
/* On the owner: the value itself, when it is ready, which stays until cdp_rref_unpin(). Errors:
   STATE (another rank owns it, the text names both), INVALID (type; 0 fits every one), TIMEOUT, or
   what the function that was to make it failed with. */
CDP_MUST_CHECK CDP_API cdp_status cdp_rref_local(
    cdp_rref rref, uint32_t type, uint32_t timeout_ms, cdp_value *out);
CDP_API void cdp_rref_unpin(cdp_rref rref);
/* OK: its owner knows this reference; PENDING: not yet, after timeout_ms (0: at once). PEER_LOST,
   BUSY: it cannot be used any more. */
CDP_MUST_CHECK CDP_API cdp_status cdp_rref_confirmed(cdp_rref rref, uint32_t timeout_ms);

typedef struct cdp_rref_info {
    uint64_t rid; /* the value: equal where it is the same one */
    uint64_t fid; /* this reference to it; 0 on the owner */
    uint32_t owner;
    uint32_t parent; /* the rank that it came from; the owner's own number: from there */
    uint32_t handles, holds, forks;
    bool is_owner;
    /* status of the value (on the owner) or of the reference (on other ranks). OK: it exists;
       PENDING: the value is being made, or the owner has not confirmed the reference yet; an error:
       it will never exist */
    cdp_status status;
    uint32_t type;     /* on the owner: of cdp_value */
    const char *label; /* valid as long as the reference; NULL: none */
} cdp_rref_info;
/* Errors: STATE (dropped). */
CDP_MUST_CHECK CDP_API cdp_status cdp_rref_info_of(cdp_rref rref, cdp_rref_info *out);

#endif /* CDP_SRC_RPC_REFERENCES_API_H */
