/* rpc/replies.h - public functions for answering requests

   Knows: requests that run or were kept. Promises: one answer per request, even after the rpc is
   destroyed. */
#ifndef CDP_SRC_RPC_REPLIES_H
#define CDP_SRC_RPC_REPLIES_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../message/transport_api.h"
#include "../base/compiler.h"
#include "../base/ended.h"
#include "../base/kept_error.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../message/stream.h"
#include "worker_api.h"
#include "calls_api.h"
#include "handler_api.h"
#include "state.h"
#include "send.h"
#include "requests.h"
#include "intake.h"
#include "life.h"

/* Checks that the request may be answered now. After OK the lock is held. */
CDP__PRIVATE cdp_status cdp__rpc_reply_begin(const char *name, cdp_rpc_request *request) {
    cdp__rpc_rq *rq = (cdp__rpc_rq *)(void *)request;
    cdp_rpc *rpc;
    if (!request) return cdp__missing(name, "request");
    if (cdp__ended(request))
        return cdp__fail(
            CDP_ERR_STATE, "%s: the rpc of this request was destroyed, and the request", name);
    rpc = request->rpc;
    if (cdp__rpc_forked(rpc, name)) return CDP_ERR_INVALID;
    cdp__rpc_lock(rpc);
    if (rq->stage == CDP__RPC_RUNNING || rq->stage == CDP__RPC_KEPT) return CDP_OK;
    cdp_lock_release(&rpc->lock);
    return cdp__fail(
        CDP_ERR_STATE, "%s: the request was replied to before; each has one reply", name);
}

/* After cdp_rpc_destroy() the answer is dropped. True: this is such a case. */
CDP__PRIVATE bool cdp__rpc_reply_late(cdp_rpc *rpc, cdp__rpc_rq *rq) {
    bool last;
    if (rpc->phase != CDP__RPC_SHUT || !rpc->kept) return false;
    last = !--rpc->kept;
    cdp__free(rpc->os, rq->buffer);
    cdp__free(rpc->os, rq->tensors);
    cdp__ended_add(rq);
    cdp__free(rpc->os, rq);
    cdp_lock_release(&rpc->lock);
    if (last) cdp__rpc_free(rpc);
    return true;
}

/* The results cannot be sent: reports that to the caller of the function, and to the program. */
CDP__PRIVATE cdp_status cdp__rpc_reply_failed(cdp_rpc *rpc, cdp__rpc_rq *rq, cdp_status st) {
    const cdp_error e = *cdp_last_error();
    cdp__rpc_answer_fail(rpc, rq, st, CDP_RAN_YES, 0, e.text);
    cdp__rpc_leave(rpc);
    return cdp__error_again(st, &e);
}

CDP_API cdp_status cdp_rpc_reply(cdp_rpc_request *request, const cdp_args *results) {
    cdp__rpc_rq *rq = (cdp__rpc_rq *)(void *)request;
    cdp_status st = cdp__rpc_reply_begin("cdp_rpc_reply", request);
    cdp_rpc *rpc;
    if (st != CDP_OK) return st;
    rpc = request->rpc;
    if (cdp__rpc_reply_late(rpc, rq)) return CDP_OK;
    st = cdp__rpc_results_check(rpc, "cdp_rpc_reply", results);
    if (st == CDP_OK && rq->makes) {
        cdp__rpc_value *v = rpc->extra[rq->makes].value;
        st = cdp__rpc_value_copy(rpc, v, results);
        if (st == CDP_OK) cdp__rpc_value_settle(rpc, v);
    }
    if (st == CDP_OK) st = cdp__rpc_answer(rpc, rq, rq->makes ? NULL : results);
    if (st != CDP_OK) return cdp__rpc_reply_failed(rpc, rq, st);
    cdp__rpc_leave(rpc);
    return CDP_OK;
}

CDP_API cdp_status cdp_rpc_reply_value(cdp_rpc_request *request, const cdp_value *value) {
    cdp__rpc_rq *rq = (cdp__rpc_rq *)(void *)request;
    cdp_status st = value ? cdp__rpc_reply_begin("cdp_rpc_reply_value", request)
                          : cdp__missing("cdp_rpc_reply_value", "value");
    cdp__rpc_value *v;
    cdp_rpc *rpc;
    bool lent;
    if (st != CDP_OK) return st;
    rpc = request->rpc;
    if (rpc->phase == CDP__RPC_SHUT && rpc->kept) {
        if (value->destroy) value->destroy(value->user, value->data);
        (void)cdp__rpc_reply_late(rpc, rq);
        return CDP_OK;
    }
    st = rq->makes ? cdp__rpc_args_check("cdp_rpc_reply_value", &value->plain) : CDP_OK;
    if (st != CDP_OK) return cdp__rpc_reply_failed(rpc, rq, st);
    if (rq->makes) {
        v = rpc->extra[rq->makes].value;
        st = cdp__rpc_value_keep(rpc, "cdp_rpc_reply_value", v, value);
        if (st != CDP_OK) return cdp__rpc_reply_failed(rpc, rq, st);
        cdp__rpc_value_settle(rpc, v);
        st = cdp__rpc_answer(rpc, rq, NULL);
        cdp__rpc_leave(rpc);
        return st;
    }
    st = cdp__rpc_results_check(rpc, "cdp_rpc_reply_value", &value->plain);
    v = st == CDP_OK ? cdp__rpc_value_make(rpc) : NULL;
    /* without `destroy`, the program would not learn when its memory is free */
    lent = value->destroy != NULL;
    if (v && lent) rpc->lends = &v->task;
    if (st == CDP_OK) st = v ? cdp__rpc_answer(rpc, rq, &value->plain) : CDP_ERR_NOMEM;
    lent = lent && !rpc->lends;
    rpc->lends = NULL;
    if (st != CDP_OK) {
        cdp__free(rpc->os, v);
        return cdp__rpc_reply_failed(rpc, rq, st);
    }
    v->value = *value;
    if (!lent) cdp__rpc_add_task(rpc, &v->task); /* its bytes were copied: destroy it */
    cdp__rpc_leave(rpc);
    return CDP_OK;
}

CDP_API cdp_status cdp_rpc_fail(cdp_rpc_request *request, int32_t code, const char *text) {
    cdp__rpc_rq *rq = (cdp__rpc_rq *)(void *)request;
    const cdp_status st = cdp__rpc_reply_begin("cdp_rpc_fail", request);
    cdp_rpc *rpc;
    if (st != CDP_OK) return st;
    rpc = request->rpc;
    if (cdp__rpc_reply_late(rpc, rq)) return CDP_OK;
    cdp__rpc_answer_fail(
        rpc, rq, CDP_ERR_REMOTE, CDP_RAN_YES, code, text ? text : "the function gave no reason");
    cdp__rpc_leave(rpc);
    return CDP_OK;
}

CDP_API bool cdp_rpc_cancelled(const cdp_rpc_request *request) {
    const cdp__rpc_rq *rq = (const cdp__rpc_rq *)(const void *)request;
    cdp_rpc *rpc;
    bool over;
    if (!request) return false;
    if (cdp__ended(request)) return true;
    rpc = request->rpc;
    if (cdp__rpc_forked(rpc, "cdp_rpc_cancelled")) return true;
    cdp__rpc_lock(rpc);
    over = rq->cancelled || rq->pub.deadline_ns <= cdp__now(rpc->os);
    cdp_lock_release(&rpc->lock);
    return over;
}

#endif /* CDP_SRC_RPC_REPLIES_H */
