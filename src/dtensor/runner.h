/* dtensor/runner.h - runs a plan

   Knows: phases. Promises: sends and receives of a phase are one batch, so the order of messages
   never blocks a rank; ranks that run different plans get an error. */
#ifndef CDP_SRC_DTENSOR_RUNNER_H
#define CDP_SRC_DTENSOR_RUNNER_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../group/messages_api.h"
#include "../group/backend_api.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "../base/kept_error.h"
#include "../dtype/reduce.h"
#include "mesh_api.h"
#include "layout_api.h"
#include "plan_api.h"
#include "kit.h"
#include "kernels.h"
#include "counter.h"
#include "grid.h"
#include "meshes.h"
#include "stages.h"
#include "scratch.h"
#include "acts.h"
#include "planner.h"
#include "plan_words.h"

/* All ranks run a phase at the same time, so its messages may wait for their receivers. Shorter
   ones are faster through the link. */
#define CDP__DT_RENDEZVOUS_BYTES (128u * 1024u)

CDP__DT uint8_t *cdp__dt_at(const cdp_plan *p, cdp__dt_memory memory) {
    if (memory == CDP__DT_IN) return (uint8_t *)(uintptr_t)p->in;
    return memory == CDP__DT_OUT ? (uint8_t *)p->out : p->scratch;
}

CDP__DT void cdp__dt_copy_piece(const cdp_plan *p, const cdp__dt_piece *x) {
    cdp__dt_copy_run(&x->copy, cdp__dt_at(p, x->to), cdp__dt_at(p, x->from));
}

CDP__DT void cdp__dt_pack(const cdp_plan *p, const cdp__dt_phase *ph) {
    if (ph->zero && ph->zero_bytes)
        memset(cdp__dt_at(p, ph->zero_in) + ph->zero_at, 0, (size_t)ph->zero_bytes);
    for (uint32_t i = 0; i < ph->sends; ++i)
        if (!ph->send[i].direct && !ph->send[i].again) cdp__dt_copy_piece(p, &ph->send[i]);
}

/* Reduces a slab: adds one contribution after the other, in the order of coordinates. */
CDP__DT void cdp__dt_fold_run(const cdp_plan *p, const cdp__dt_phase *ph, const cdp__dt_fold *f) {
    const cdp__dt_stage *s = &p->stages[ph->stage];
    const uint32_t terms = s->pair.from.terms;
    uint8_t *at = cdp__dt_at(p, f->to), *slab = at + f->at;
    for (uint32_t term = 0, got = f->first; term < terms; ++term) {
        if (term == f->own && term == 0) {
            cdp__dt_copy_run(&f->copy, at, cdp__dt_at(p, f->from));
        } else if (term == f->own) {
            cdp__dt_copy_combine(&f->copy, p->dtype, s->op, at, cdp__dt_at(p, f->from));
        } else {
            const uint8_t *in = p->scratch + ph->recv[got++].at;
            if (term == 0)
                memcpy(slab, in, (size_t)(f->elements * p->elem));
            else
                cdp__reduce(p->dtype, s->op, false, slab, in, f->elements);
        }
    }
    if (s->divisor > 1) cdp__divide(p->dtype, slab, f->elements, (uint32_t)s->divisor);
}

/* A message has arrived: copies it to its place, unless it was received there. */
CDP__DT void cdp__dt_unpack(const cdp_plan *p, const cdp__dt_piece *x) {
    if (!x->direct && !x->rows) cdp__dt_copy_piece(p, x);
}

CDP__DT void cdp__dt_finish(const cdp_plan *p, const cdp__dt_phase *ph) {
    for (uint32_t i = 0; i < ph->folds; ++i)
        cdp__dt_fold_run(p, ph, &ph->fold[i]);
    for (uint32_t i = 0; i < ph->recvs; ++i)
        cdp__dt_unpack(p, &ph->recv[i]);
}

CDP__DT void cdp__dt_locals(const cdp_plan *p, const cdp__dt_phase *ph) {
    for (uint32_t i = 0; i < ph->locals; ++i)
        cdp__dt_copy_piece(p, &ph->here[i]);
}

CDP__DT void cdp__dt_transfer(
    const cdp_plan *p, cdp_transfer *t, const cdp__dt_piece *x, bool receive) {
    const cdp__dt_memory tensor = receive ? x->to : x->from;
    const cdp__dt_memory memory = x->direct || x->rows ? tensor : CDP__DT_SCRATCH;
    memset(t, 0, sizeof *t);
    t->receive = receive;
    t->data = cdp__dt_at(p, memory) + x->at;
    t->count = x->elements;
    t->dtype = p->dtype;
    t->peer = x->peer;
    t->tag = CDP__DT_TAG;
    t->rendezvous = !receive && x->elements * p->elem >= CDP__DT_RENDEZVOUS_BYTES;
    if (!x->rows) return;
    t->row = x->copy.run / p->elem;
    t->step = x->copy.to_step[0] / p->elem;
}

/* Starts the messages of a phase; *work stays empty if there are none. */
CDP__DT cdp_status cdp__dt_post(cdp_plan *p, const cdp__dt_phase *ph, cdp_work *work) {
    uint32_t n = 0, i;
    work->group = p->group;
    work->seq = 0;
    for (i = 0; i < ph->recvs; ++i)
        cdp__dt_transfer(p, &p->list[n++], &ph->recv[i], true);
    for (i = 0; i < ph->sends; ++i)
        cdp__dt_transfer(p, &p->list[n++], &ph->send[i], false);
    return n ? cdp_batch(p->group, p->list, n, work) : CDP_OK;
}

CDP__DT cdp_status cdp__dt_phase_run(cdp_plan *p, const cdp__dt_phase *ph) {
    cdp_work work;
    cdp__dt_pack(p, ph);
    cdp_status st = cdp__dt_post(p, ph, &work);
    if (st != CDP_OK) return st;
    cdp__dt_locals(p, ph);
    if (work.seq) st = cdp_work_wait(work);
    if (st == CDP_OK) cdp__dt_finish(p, ph);
    return st;
}

CDP__DT bool cdp__dt_overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes) {
    const uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return a_bytes && b_bytes && x < y + b_bytes && y < x + a_bytes;
}

CDP__DT cdp_status cdp__dt_run_check(cdp_plan *p, const void *in, void *out) {
    const cdp_backend *backend = cdp_group_backend(p->mesh->root->group);
    if (p->in_bytes && !in) return cdp__dt_missing("cdp_plan_run", "in");
    if (p->out_bytes && !out) return cdp__dt_missing("cdp_plan_run", "out");
    if (!(p->identity && in == out) && cdp__dt_overlap(in, p->in_bytes, out, p->out_bytes))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "plan: in and out overlap; use separate memory (in place works only if nothing moves)");
    if (backend
        && ((in && backend->owns(backend->self, in)) || (out && backend->owns(backend->self, out))))
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "plan: device memory cannot be packed yet; copy it to host memory first");
    return CDP_OK;
}

/* Checks the call; sets *ready if there is something to run. Then cdp__dt_scratch_give() must
   follow. */
CDP__DT cdp_status cdp__dt_run_begin(cdp_plan *p, const void *in, void *out, bool *ready) {
    *ready = false;
    if (cdp__dt_alive(p, "cdp_plan_run", "plan") != CDP_OK) return cdp_last_error()->status;
    if (!cdp__dt_has_mesh(&p->desc.from))
        return cdp__dt_mesh_refused(&p->desc.from, "cdp_plan_run");
    if (!cdp__dt_has_mesh(&p->desc.to)) return cdp__dt_mesh_refused(&p->desc.to, "cdp_plan_run");
    if (!p->mesh->root->group)
        return cdp_error_set(CDP_ERR_STATE, -1, 0, "plan: its mesh is on paper; it cannot run");
    if (!p->group || p->node == CDP__DT_NONE) return CDP_OK;
    const cdp_status failed = cdp_group_status(cdp__dt_run_link(p)->group);
    if (failed == CDP_ERR_STATE) return failed; /* of another process, see cdp__dt_link_here() */
    if (cdp__dt_running(p) && failed != CDP_OK) return failed;
    if (cdp__dt_running(p))
        return cdp_error_set(CDP_ERR_STATE, -1, 0,
            "plan: its last asynchronous run is not done; wait for that work first");
    cdp_status st = cdp__dt_plan_refused(&p->desc, cdp__dt_run_check(p, in, out));
    if (st == CDP_OK && !p->compared) st = cdp__dt_plan_compare(p);
    if (st == CDP_OK) st = cdp__dt_scratch_take(p);
    if (st != CDP_OK) return st;
    p->in = in;
    p->out = out;
    *ready = true;
    if (p->kind != CDP_COLL_NONE)
        cdp__dt_count(p->mesh->root->counter, p->kind, p->info.recv_bytes, p->backward);
    return CDP_OK;
}

/* The collective that the plan is, as a call of its group. */
CDP__DT cdp_status cdp__dt_single_run(const cdp_plan *p) {
    const uint64_t n = p->single.count;
    cdp_group *g = cdp__dt_run_link(p)->group;
    const cdp_reduce_op op = p->stages[0].op;
    if (p->single.kind == CDP_COLL_ALLREDUCE)
        return cdp_allreduce(g, p->in, p->out, n, p->dtype, op);
    if (p->single.kind == CDP_COLL_REDUCE_SCATTER)
        return cdp_reduce_scatter(g, p->in, p->out, n, p->dtype, op);
    return cdp_allgather(g, p->in, p->out, n, p->dtype);
}

/* The call that a step is. */
CDP__DT cdp_request cdp__dt_act_request(const cdp_plan *p, const cdp__dt_act *a) {
    cdp_request rq;
    memset(&rq, 0, sizeof rq);
    rq.kind = a->kind;
    rq.in = cdp__dt_at(p, a->from) + a->from_at;
    rq.out = cdp__dt_at(p, a->to) + a->to_at;
    rq.count = a->count;
    rq.dtype = p->dtype;
    if (a->kind == CDP_COLL_ALLREDUCE || a->kind == CDP_COLL_REDUCE_SCATTER) rq.op = a->op;
    if (a->kind == CDP_COLL_REDUCE_SCATTER) rq.in_counts = a->counts;
    if (a->kind == CDP_COLL_ALLGATHER) rq.out_counts = a->counts;
    return rq;
}

/* A step is done: what is left to do with its result. */
CDP__DT void cdp__dt_act_finish(const cdp_plan *p, const cdp__dt_act *a) {
    if (a->phase == CDP__DT_NONE && a->divisor > 1)
        cdp__divide(p->dtype, cdp__dt_at(p, a->to) + a->to_at, a->count, a->divisor);
}

CDP__DT cdp_status cdp__dt_act_run(cdp_plan *p, const cdp__dt_act *a) {
    cdp_work work;
    if (a->phase != CDP__DT_NONE) return cdp__dt_phase_run(p, &p->phases[a->phase]);
    const cdp_request rq = cdp__dt_act_request(p, a);
    cdp_status st = cdp_start(cdp__dt_act_group(p, a), &rq, &work);
    if (st == CDP_OK) st = cdp_work_wait(work);
    if (st == CDP_OK) cdp__dt_act_finish(p, a);
    return st;
}

/* Breaks the groups of a plan of which one step has failed: ranks of other rows wait for this one
   in theirs. */
CDP__DT cdp_status cdp__dt_acts_break(const cdp_plan *p, cdp_status st) {
    const cdp_error why = *cdp_last_error();
    for (uint32_t k = 0; k < p->act_count; ++k) {
        cdp_group *group = cdp__dt_act_group(p, &p->acts[k]);
        if (cdp_group_status(group) == CDP_OK) cdp_group_abort(group, why.text);
    }
    if (cdp_group_status(p->group) == CDP_OK) cdp_group_abort(p->group, why.text);
    return cdp__error_again(st, &why);
}

CDP__DT cdp_status cdp__dt_acts_run(cdp_plan *p) {
    cdp_status st = CDP_OK;
    for (uint32_t k = 0; k < p->act_count; ++k) {
        st = cdp__dt_act_run(p, &p->acts[k]);
        if (st != CDP_OK) return cdp__dt_acts_break(p, st);
    }
    return st;
}

CDP_API cdp_status cdp_plan_run(cdp_plan *p, const void *in, void *out) {
    bool ready;
    cdp_status st = cdp__dt_run_begin(p, in, out, &ready);
    if (st == CDP_OK && ready && p->single.kind) return cdp__dt_single_run(p);
    if (st == CDP_OK && ready && p->acts) {
        st = cdp__dt_acts_run(p);
        cdp__dt_scratch_give(p, false);
        return st;
    }
    for (uint32_t k = 0; st == CDP_OK && ready && k < p->phase_count; ++k)
        st = cdp__dt_phase_run(p, &p->phases[k]);
    if (ready) cdp__dt_scratch_give(p, false);
    return st;
}

#endif /* CDP_SRC_DTENSOR_RUNNER_H */
