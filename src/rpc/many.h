/* rpc/many.h - one function on many ranks

   Knows: starts of calls, and waits for them. Promises: every call ends once, all by one deadline,
   also those that could not be started; a rank without room keeps no call of another rank; results
   are combined in the order of their calls, whichever came first. */
#ifndef CDP_SRC_RPC_MANY_H
#define CDP_SRC_RPC_MANY_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../group/group_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../base/kept_error.h"
#include "../dtype/dtype.h"
#include "../dtype/slices.h"
#include "../group/deferred.h"
#include "worker_api.h"
#include "calls_api.h"
#include "many_api.h"
#include "state.h"
#include "levels.h"
#include "calls.h"
#include "intake.h"
#include "waits.h"
#include "start.h"
#include "call_waits.h"

/* Calls that are started together. */
typedef struct cdp__rpc_many {
    cdp__rpc_task task; /* ends its use, in a callback */
    const cdp_os *os;
    cdp_rpc *rpc;
    cdp_call_desc desc;     /* of the call that is started now */
    cdp__rpc_starting like; /* what all have in common */
    const uint32_t *ranks;
    cdp_call *calls;
    uint32_t count;
    void (*release)(void *user); /* of the program */
    void *release_user;
    uint32_t uses;             /* the task, and each call that uses the memory of the arguments */
    uint32_t waiting, *waits;  /* those that have no room yet */
    uint32_t failures, *fails; /* those that were not started, and whose `done` was not called */
} cdp__rpc_many;

CDP__PRIVATE uint32_t cdp__rpc_many_rank(const cdp__rpc_many *m, uint32_t i) {
    return m->ranks ? m->ranks[i] : i;
}

/* Runs in a callback. */
CDP__PRIVATE void cdp__rpc_many_unuse(void *many) {
    cdp__rpc_many *m = (cdp__rpc_many *)many;
    if (cdp__atomic_sub_u32(&m->uses, 1, CDP__ACQ_REL)) return;
    if (m->release) m->release(m->release_user);
    cdp__free(m->os, m);
}

CDP__PRIVATE void cdp__rpc_many_end(cdp_rpc *rpc, cdp__rpc_task *task) {
    cdp__rpc_many *m = (cdp__rpc_many *)task;
    uint32_t i;
    for (i = 0; i < m->failures; ++i) {
        cdp__rpc_tell(rpc, &m->calls[m->fails[i]], m->desc.done, m->desc.user);
        cdp_lock_release(&rpc->lock);
    }
    cdp__rpc_many_unuse(m);
}

/* Ends a call that was not started, as the last error says. */
CDP__PRIVATE void cdp__rpc_many_failed(cdp__rpc_many *m, uint32_t i, const cdp_error *e) {
    cdp_rpc *rpc = m->rpc;
    cdp_call *call = &m->calls[i];
    const uint32_t to = cdp__rpc_many_rank(m, i);
    (void)cdp__fail_peer(e->status, cdp_world_rank_of(rpc->group, to), 0,
        "it was not started on rank %u (%s): %s", to, rpc->peers[to].name, e->text);
    call->status = e->status;
    call->ran = CDP_RAN_NO;
    call->error = *cdp_last_error();
    call->priv[CDP__CALL_RPC] = (uint64_t)(uintptr_t)rpc;
    call->priv[CDP__CALL_ID] = 0;
    call->priv[CDP__CALL_STAGE] = CDP__CALL_UNDER_WAY;
    if (m->desc.done)
        m->fails[m->failures++] = i;
    else
        cdp__rpc_publish(rpc, call);
}

CDP__PRIVATE void cdp__rpc_many_start(cdp__rpc_many *m, uint32_t i) {
    cdp__rpc_starting s = m->like;
    cdp_error e;
    m->desc.to = cdp__rpc_many_rank(m, i);
    s.call = &m->calls[i];
    if (m->release) (void)cdp__atomic_add_u32(&m->uses, 1, CDP__ACQ_REL);
    if (cdp__rpc_start_call(m->rpc, &s) == CDP_OK) return;
    e = *cdp_last_error();
    if (m->release) (void)cdp__atomic_sub_u32(&m->uses, 1, CDP__ACQ_REL);
    cdp__rpc_many_failed(m, i, &e);
}

/* True if the start of this call does not wait. */
CDP__PRIVATE bool cdp__rpc_many_fits(cdp__rpc_many *m, uint32_t i) {
    cdp__rpc_starting s = m->like;
    s.to = cdp__rpc_many_rank(m, i);
    return cdp__rpc_has_room(m->rpc, &s) || !cdp__rpc_waits_for_room(m->rpc);
}

CDP__PRIVATE bool cdp__rpc_many_room(cdp_rpc *rpc, void *arg) {
    cdp__rpc_many *m = (cdp__rpc_many *)arg;
    uint32_t k;
    (void)rpc;
    for (k = 0; k < m->waiting; ++k)
        if (cdp__rpc_many_fits(m, m->waits[k])) return true;
    return false;
}

/* Starts each call as soon as its rank has room. Lock held; released meanwhile. */
CDP__PRIVATE void cdp__rpc_many_run(cdp__rpc_many *m) {
    const uint64_t until = m->like.deadline_ns;
    uint32_t i, k;
    for (i = 0; i < m->count; ++i) {
        if (cdp__rpc_many_fits(m, i))
            cdp__rpc_many_start(m, i);
        else
            m->waits[m->waiting++] = i;
    }
    while (m->waiting) {
        const uint32_t waiting = m->waiting;
        cdp_status st;
        cdp_error e;
        cdp__rpc_leave(m->rpc); /* workers begin with what was started */
        cdp__rpc_lock(m->rpc);
        st = cdp__rpc_wait(m->rpc, cdp__rpc_many_room, m, until, until);
        e = *cdp_last_error();
        m->waiting = 0;
        for (k = 0; k < waiting; ++k) {
            i = m->waits[k];
            if (st < 0)
                cdp__rpc_many_failed(m, i, &e);
            else if (st == CDP_OK && !cdp__rpc_many_fits(m, i))
                m->waits[m->waiting++] = i;
            else
                cdp__rpc_many_start(m, i); /* after the deadline it ends there with TIMEOUT */
        }
    }
}

CDP__PRIVATE cdp__rpc_many *cdp__rpc_many_open(cdp_rpc *rpc, const cdp__rpc_starting *like,
    const uint32_t *ranks, uint32_t count, cdp_call *calls) {
    const uint64_t bytes = sizeof(cdp__rpc_many) + 2ull * count * sizeof(uint32_t);
    cdp__rpc_many *m = (cdp__rpc_many *)cdp__alloc_zero(rpc->os, bytes);
    if (!m) {
        (void)cdp__fail_nomem("calls", bytes);
        return NULL;
    }
    m->task.run = cdp__rpc_many_end;
    m->os = rpc->os;
    m->rpc = rpc;
    m->desc = *like->desc;
    m->release = m->desc.release;
    m->release_user = m->desc.release_user;
    if (m->release) m->desc.release = cdp__rpc_many_unuse;
    m->desc.release_user = m;
    m->like = *like;
    m->like.desc = &m->desc;
    m->ranks = ranks;
    m->calls = calls;
    m->count = count;
    m->uses = 1;
    m->waits = (uint32_t *)(void *)(m + 1);
    m->fails = m->waits + count;
    cdp__rpc_start_time(rpc, &m->like);
    cdp__rpc_start_measure(rpc, &m->like);
    return m;
}

/* What can be checked before any call is touched. */
CDP__PRIVATE cdp_status cdp__rpc_many_check(cdp_rpc *rpc, const char *name,
    const cdp_call_desc *desc, const uint32_t *ranks, uint32_t count) {
    uint32_t i;
    if (desc->on.rpc || desc->on.slot)
        return cdp__fail(CDP_ERR_INVALID,
            "%s: on of the desc is a value of one rank; start a call for each value", name);
    if (!ranks && count > rpc->ranks)
        return cdp__fail(CDP_ERR_INVALID,
            "%s: count is %u without a list of ranks; the group has ranks 0 to %u", name, count,
            rpc->ranks - 1);
    for (i = 0; ranks && i < count; ++i)
        if (ranks[i] >= rpc->ranks)
            return cdp__fail(CDP_ERR_INVALID, "%s: ranks[%u] is %u; the group has ranks 0 to %u",
                name, i, ranks[i], rpc->ranks - 1);
    return CDP_OK;
}

/* Starts them all, or none. Lock held; released meanwhile. */
CDP__PRIVATE cdp_status cdp__rpc_many_begin(
    cdp_rpc *rpc, cdp__rpc_starting *like, const uint32_t *ranks, uint32_t count, cdp_call *calls) {
    cdp_call_desc first = *like->desc;
    cdp__rpc_starting s = *like;
    cdp__rpc_many *m;
    cdp_status st = like->waits ? cdp__rpc_may_wait_for_call(rpc) : CDP_OK;
    if (st != CDP_OK) return st;
    first.to = ranks ? ranks[0] : 0;
    s.desc = &first;
    st = cdp__rpc_start_check(rpc, &s);
    if (st != CDP_OK) return st;
    m = cdp__rpc_many_open(rpc, like, ranks, count, calls);
    if (!m) return CDP_ERR_NOMEM;
    cdp__rpc_many_run(m);
    cdp__rpc_add_task(rpc, &m->task);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__rpc_many_named(const char *name, cdp_rpc *rpc,
    const cdp_call_desc *desc, const uint32_t *ranks, uint32_t count, cdp_call *calls, bool waits) {
    cdp__rpc_starting like;
    cdp_status st;
    uint32_t i;
    if (!rpc) return cdp__missing(name, "rpc");
    if (!desc) return cdp__missing(name, "desc");
    if (count && !calls) return cdp__missing(name, "calls");
    if (cdp__rpc_gone(rpc, name)) return CDP_ERR_INVALID;
    st = cdp__rpc_many_check(rpc, name, desc, ranks, count);
    for (i = 0; st == CDP_OK && i < count; ++i)
        st = cdp__rpc_call_ready(name, &calls[i]);
    if (st != CDP_OK || !count) return st;
    memset(&like, 0, sizeof like);
    like.name = name;
    like.desc = desc;
    like.waits = waits;
    if (desc->one_way) like.flags |= CDP__RPC_ONE_WAY;
    cdp__rpc_lock(rpc);
    st = cdp__rpc_many_begin(rpc, &like, ranks, count, calls);
    for (i = 0; st != CDP_OK && i < count; ++i)
        cdp__rpc_start_failed(&calls[i], st);
    cdp__rpc_leave(rpc);
    return st == CDP_OK && waits ? cdp_call_wait_many(calls, count) : st;
}

CDP_API cdp_status cdp_rpc_start_many(cdp_rpc *rpc, const cdp_call_desc *desc,
    const uint32_t *ranks, uint32_t count, cdp_call *calls) {
    return cdp__rpc_many_named("cdp_rpc_start_many", rpc, desc, ranks, count, calls, false);
}

CDP_API cdp_status cdp_rpc_call_many(cdp_rpc *rpc, const cdp_call_desc *desc, const uint32_t *ranks,
    uint32_t count, cdp_call *calls) {
    return cdp__rpc_many_named("cdp_rpc_call_many", rpc, desc, ranks, count, calls, true);
}

CDP_API cdp_status cdp_call_wait_many(cdp_call *calls, uint32_t count) {
    if (count && !calls) return cdp__missing("cdp_call_wait_many", "calls");
    return cdp__call_wait_each(NULL, calls, count);
}

#ifndef CDP_NO_REPRODUCIBLE
/* Where the result of a call is. NULL: it is not of this dtype and length, see the last error. */
CDP__PRIVATE const void *cdp__call_elements(
    const cdp_call *call, uint32_t i, cdp_dtype dtype, uint64_t bytes) {
    const bool tensor = call->tensor_count == 1;
    const cdp_dtype of = tensor ? call->tensors->dtype : dtype;
    const uint64_t has = tensor ? cdp__rpc_tensor_bytes(call->tensors) : call->bytes;
    if (call->tensor_count <= 1 && has == bytes && (of ? of : CDP_DTYPE_F32) == dtype)
        return tensor ? call->tensors->data : call->data;
    (void)cdp__fail(CDP_ERR_MISMATCH,
        "cdp_call_reduce_many: the result of calls[%u] has %llu bytes of dtype %d%s, and not the "
        "%llu of dtype %d that are asked for",
        i, (unsigned long long)has, (int)of, call->tensor_count > 1 ? " after several tensors" : "",
        (unsigned long long)bytes, (int)dtype);
    return NULL;
}

/* Checks everything before anything is written. */
CDP__PRIVATE cdp_status cdp__call_reduce_check(
    const cdp_call *calls, uint32_t call_count, cdp_dtype dtype, cdp_reduce_op op, uint64_t count) {
    const uint64_t size = cdp_dtype_size(dtype);
    uint32_t i;
    if (!call_count || !size || (uint32_t)op >= CDP_REDUCE_COUNT || count > (UINT64_MAX >> 8))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_call_reduce_many: %u calls, dtype %d, op %d, %llu elements; give one call or "
            "more, "
            "a dtype and an op",
            call_count, (int)dtype, (int)op, (unsigned long long)count);
    if (op == CDP_REDUCE_PREMUL_SUM || !cdp__reduce_exists(dtype, op))
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_call_reduce_many: op %d does not exist for results of dtype %d", (int)op,
            (int)dtype);
    for (i = 0; i < call_count; ++i) {
        if (!cdp__call_has_ended(&calls[i]))
            return cdp__fail(CDP_ERR_STATE,
                "cdp_call_reduce_many: calls[%u] has not ended, or has no result any more; "
                "cdp_call_wait_many() comes first",
                i);
        if (calls[i].status != CDP_OK) return cdp__error_again(calls[i].status, &calls[i].error);
    }
    for (i = 0; count && i < call_count; ++i)
        if (!cdp__call_elements(&calls[i], i, dtype, count * size)) return CDP_ERR_MISMATCH;
    return CDP_OK;
}

#define CDP__CALL_PIECE 4096u /* bytes of each result that are combined at once */
#endif

CDP_API cdp_status cdp_call_reduce_many(const cdp_call *calls, uint32_t call_count, cdp_dtype dtype,
    cdp_reduce_op op, void *out, uint64_t count) {
#ifndef CDP_NO_REPRODUCIBLE
    const uint64_t size = cdp_dtype_size(dtype), room = (uint64_t)call_count * CDP__CALL_PIECE;
    const cdp_os *os;
    uint8_t *pieces;
    uint64_t at, n;
    uint32_t i;
    cdp_status st;
    if (!calls) return cdp__missing("cdp_call_reduce_many", "calls");
    if (count && !out) return cdp__missing("cdp_call_reduce_many", "out");
    if (!op) op = CDP_REDUCE_SUM;
    if (!dtype) dtype = CDP_DTYPE_F32;
    st = cdp__call_reduce_check(calls, call_count, dtype, op, count);
    if (st != CDP_OK || !count) return st;
    os = (const cdp_os *)(uintptr_t)calls[0].priv[CDP__CALL_OS];
    pieces = (uint8_t *)cdp__alloc(os, room);
    if (!pieces) return cdp__fail_nomem("results of calls", room);
    for (at = 0; at < count; at += n) {
        n = cdp__min(count - at, CDP__CALL_PIECE / size);
        for (i = 0; i < call_count; ++i)
            memcpy(pieces + i * n * size,
                (const uint8_t *)cdp__call_elements(&calls[i], i, dtype, count * size) + at * size,
                (size_t)(n * size));
        cdp__slices_combine(dtype, op, cdp__reduced_as(dtype, op, (cdp_dtype)0), pieces, n,
            call_count, (uint8_t *)out + at * size, n);
    }
    cdp__free(os, pieces);
    return CDP_OK;
#else
    (void)calls;
    (void)call_count;
    (void)dtype;
    (void)op;
    (void)out;
    (void)count;
    return cdp__fail(CDP_ERR_UNSUPPORTED,
        "cdp_call_reduce_many: this program was built with CDP_NO_REPRODUCIBLE; build it without");
#endif
}

CDP_API void cdp_call_free_many(cdp_call *calls, uint32_t count) {
    uint32_t i;
    for (i = 0; calls && i < count; ++i)
        cdp_call_free(&calls[i]);
}

#endif /* CDP_SRC_RPC_MANY_H */
