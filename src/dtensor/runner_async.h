/* dtensor/runner_async.h - phases that start one another

   Knows: phases and works. Promises: all phases take their place in the group's order at the
   call. */
#ifndef CDP_SRC_DTENSOR_RUNNER_ASYNC_H
#define CDP_SRC_DTENSOR_RUNNER_ASYNC_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../group/works_api.h"
#include "../group/group_calls.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "../base/kept_error.h"
#include "../base/ended.h"
#include "plan_api.h"
#include "kit.h"
#include "kernels.h"
#include "meshes.h"
#include "stages.h"
#include "scratch.h"
#include "planner.h"
#include "runner.h"

CDP__DT void cdp__dt_wide_free(cdp_plan *p) {
    for (uint32_t k = 0; p->wide && k < p->phase_count; ++k) {
        cdp__dt_free(p->os, p->wide[k].send_count);
        if (p->mesh) cdp__dt_retire(p->mesh->root, p->link, p->wide[k].out);
    }
    cdp__dt_free(p->os, p->wide);
    p->wide = NULL;
    if (p->turns && p->mesh && cdp__atomic_load_u32(&p->turns->pending, CDP__ACQUIRE)) {
        p->turns->retirement.next = cdp__dt_run_link(p)->retired;
        cdp__dt_run_link(p)->retired = &p->turns->retirement;
    } else {
        cdp__dt_free(p->os, p->turns);
    }
    p->turns = NULL;
}

CDP__DT void cdp__dt_phases_free(cdp_plan *p) {
    cdp__dt_acts_free(p);
    for (uint32_t k = 0; k < p->phase_count; ++k) {
        cdp__dt_free(p->os, p->phases[k].send);
        cdp__dt_free(p->os, p->phases[k].fold);
    }
    cdp__dt_free(p->os, p->phases);
    cdp__dt_free(p->os, p->list);
}

CDP_API void cdp_plan_destroy(cdp_plan *p) {
    if (!p || cdp__dt_alive(p, "cdp_plan_destroy", "plan") != CDP_OK) return;
    cdp__ended_add(p);
    if (cdp__dt_mesh_ended(p->mesh)) {
        (void)cdp__dt_mesh_refused(&p->desc.from, "cdp_plan_destroy");
        p->mesh = NULL; /* what it has of the group stays there */
    }
    cdp__dt_plan_release(p);
    if (p->mesh) cdp__dt_scratch_give(p, true);
    cdp__dt_wide_free(p);
    cdp__dt_phases_free(p);
    cdp__dt_stages_free(p);
    cdp__dt_free(p->os, p);
}

/* Places pieces in a row that is ordered by peer; returns its length. */
CDP__DT uint64_t cdp__dt_wide_row(const cdp__dt_piece *x, uint32_t n, uint32_t nodes, uint64_t elem,
    uint64_t *count, uint64_t *at) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < n; ++i)
        count[x[i].peer] += x[i].elements * elem;
    for (uint32_t peer = 0; peer < nodes; ++peer) {
        uint64_t next = total;
        for (uint32_t i = 0; count[peer] && i < n; ++i)
            if (x[i].peer == peer) {
                at[i] = next;
                next += x[i].elements * elem;
            }
        total = next;
    }
    return total;
}

CDP__DT cdp_status cdp__dt_wide_phase(cdp_plan *p, const cdp__dt_phase *ph, cdp__dt_wide *w) {
    const uint64_t words = 2ull * p->nodes + ph->sends + ph->recvs;
    w->send_count = (uint64_t *)cdp__dt_alloc(p->os, words * 8);
    if (!w->send_count) return cdp__dt_nomem("an asynchronous plan", words * 8);
    w->recv_count = w->send_count + p->nodes;
    w->send_at = w->recv_count + p->nodes;
    w->recv_at = w->send_at + ph->sends;
    w->out_bytes =
        cdp__dt_wide_row(ph->send, ph->sends, p->nodes, p->elem, w->send_count, w->send_at);
    w->in_bytes =
        cdp__dt_wide_row(ph->recv, ph->recvs, p->nodes, p->elem, w->recv_count, w->recv_at);
    w->out = (uint8_t *)cdp__dt_group_memory(p->group, w->out_bytes + w->in_bytes + 128);
    if (!w->out) return cdp__dt_nomem("an asynchronous plan", w->out_bytes + w->in_bytes);
    /* a separate address even if nothing is sent */
    w->in = w->out + ((w->out_bytes + 64) & ~(uint64_t)63);
    return CDP_OK;
}

CDP__DT cdp_status cdp__dt_wide_make(cdp_plan *p) {
    cdp_status st = CDP_OK;
    if (p->turns) return CDP_OK;
    p->wide = (cdp__dt_wide *)cdp__dt_alloc(p->os, p->phase_count * sizeof *p->wide);
    if (!p->wide) return cdp__dt_nomem("an asynchronous plan", p->phase_count * sizeof *p->wide);
    for (uint32_t k = p->acts ? 0 : 1; st == CDP_OK && k < p->phase_count; ++k)
        st = cdp__dt_wide_phase(p, &p->phases[k], &p->wide[k]);
    cdp__dt_turns *turns = (cdp__dt_turns *)cdp__dt_alloc(p->os, sizeof *turns);
    if (st == CDP_OK && !turns) st = cdp__dt_nomem("an asynchronous plan", sizeof *turns);
    for (uint32_t k = 0; turns && k < CDP__DT_TURNS; ++k) {
        turns->turn[k].all = turns;
        turns->turn[k].phase = k;
    }
    if (turns) turns->plan = p;
    p->turns = turns;
    if (st != CDP_OK) cdp__dt_wide_free(p);
    return st;
}

CDP__DT void cdp__dt_wide_pack(cdp_plan *p, uint32_t k) {
    const cdp__dt_phase *ph = &p->phases[k];
    cdp__dt_pack(p, ph);
    cdp__dt_locals(p, ph);
    for (uint32_t i = 0; i < ph->sends; ++i) {
        const cdp__dt_piece *x = &ph->send[i];
        const uint8_t *from = cdp__dt_at(p, x->direct ? x->from : CDP__DT_SCRATCH) + x->at;
        memcpy(p->wide[k].out + p->wide[k].send_at[i], from, (size_t)(x->elements * p->elem));
    }
}

CDP__DT void cdp__dt_wide_unpack(cdp_plan *p, uint32_t k) {
    const cdp__dt_phase *ph = &p->phases[k];
    for (uint32_t i = 0; i < ph->recvs; ++i) {
        const cdp__dt_piece *x = &ph->recv[i];
        const uint8_t *from = p->wide[k].in + p->wide[k].recv_at[i];
        uint8_t *to = cdp__dt_at(p, x->direct ? x->to : CDP__DT_SCRATCH) + x->at;
        if (x->rows)
            cdp__dt_copy_run(&x->copy, cdp__dt_at(p, x->to), from);
        else
            memcpy(to, from, (size_t)(x->elements * p->elem));
    }
}

/* Step number k of a plan is done, as a step of cdp__dt_turn_done(). */
CDP__DT void cdp__dt_act_done(cdp_plan *p, uint32_t k) {
    const cdp__dt_act *a = &p->acts[k];
    if (a->phase != CDP__DT_NONE) {
        cdp__dt_wide_unpack(p, a->phase);
        cdp__dt_finish(p, &p->phases[a->phase]);
    }
    cdp__dt_act_finish(p, a);
    if (k + 1 < p->act_count && a[1].phase != CDP__DT_NONE) cdp__dt_wide_pack(p, a[1].phase);
}

/* Called when the messages of a phase are done, in the thread that makes progress. */
CDP__DT cdp_status cdp__dt_turn_done(void *user, cdp_status status) {
    const cdp__dt_turn *turn = (const cdp__dt_turn *)user;
    const uint32_t k = turn->phase;
    if (status == CDP_OK) {
        cdp_plan *p = turn->all->plan;
        if (p->acts) {
            cdp__dt_act_done(p, k);
        } else {
            if (k) cdp__dt_wide_unpack(p, k);
            if (!p->single.kind) cdp__dt_finish(p, &p->phases[k]);
            if (k + 1 < p->phase_count) cdp__dt_wide_pack(p, k + 1);
        }
    }
    (void)cdp__atomic_sub_u32(&turn->all->pending, 1, CDP__ACQ_REL);
    return CDP_OK;
}

/* Starts phase k > 0 after `before` (empty: at once). */
CDP__DT cdp_status cdp__dt_wide_start(cdp_plan *p, uint32_t k, cdp_work before, cdp_work *work) {
    const cdp__dt_wide *w = &p->wide[k];
    cdp_request rq;
    memset(&rq, 0, sizeof rq);
    rq.kind = CDP_COLL_ALLTOALL;
    rq.in = w->out;
    rq.out = w->in;
    rq.dtype = CDP_DTYPE_U8;
    rq.in_counts = w->send_count;
    rq.out_counts = w->recv_count;
    if (before.seq) return cdp_start_after(p->group, &rq, before, work);
    return cdp_start(p->group, &rq, work);
}

/* Starts the collective that the plan is. */
CDP__DT cdp_status cdp__dt_single_start(const cdp_plan *p, cdp_work *work) {
    cdp_request rq;
    memset(&rq, 0, sizeof rq);
    rq.kind = p->single.kind;
    rq.in = p->in;
    rq.out = p->out;
    rq.count = p->single.count;
    rq.dtype = p->dtype;
    rq.op = p->stages[0].op;
    return cdp_start(cdp__dt_run_link(p)->group, &rq, work);
}

/* Starts the first phase, or the collective that the plan is; *work stays empty if there is no
   message. */
CDP__DT cdp_status cdp__dt_first_start(cdp_plan *p, cdp_work *work) {
    if (p->single.kind) return cdp__dt_single_start(p, work);
    cdp__dt_pack(p, &p->phases[0]);
    const cdp_status st = cdp__dt_post(p, &p->phases[0], work);
    if (st == CDP_OK) cdp__dt_locals(p, &p->phases[0]);
    return st;
}

/* Starts step k after `before` (empty: at once). */
CDP__DT cdp_status cdp__dt_act_start(cdp_plan *p, uint32_t k, cdp_work before, cdp_work *work) {
    const cdp__dt_act *a = &p->acts[k];
    if (a->phase != CDP__DT_NONE) return cdp__dt_wide_start(p, a->phase, before, work);
    const cdp_request rq = cdp__dt_act_request(p, a);
    cdp_group *group = cdp__dt_act_group(p, a);
    return before.seq ? cdp_start_after(group, &rq, before, work) : cdp_start(group, &rq, work);
}

/* The same as cdp__dt_chain(), of steps. All messages are collectives. */
CDP__DT cdp_status cdp__dt_act_chain(cdp_plan *p, cdp_work *work) {
    cdp_status st = CDP_OK;
    cdp_work step;
    if (p->act_count && p->acts[0].phase != CDP__DT_NONE) cdp__dt_wide_pack(p, p->acts[0].phase);
    for (uint32_t k = 0; st == CDP_OK && k < p->act_count; ++k) {
        st = cdp__dt_act_start(p, k, *work, &step);
        if (st != CDP_OK) return st;
        *work = step;
        (void)cdp__atomic_add_u32(&p->turns->pending, 1, CDP__ACQ_REL);
        st = cdp_work_then(step, cdp__dt_turn_done, &p->turns->turn[k], work);
        if (st != CDP_OK) (void)cdp__atomic_sub_u32(&p->turns->pending, 1, CDP__ACQ_REL);
    }
    return st;
}

CDP__DT cdp_status cdp__dt_chain(cdp_plan *p, cdp_work *work) {
    const uint32_t phases = p->single.kind ? 1 : p->phase_count;
    cdp_work step;
    cdp_status st = cdp__dt_first_start(p, &step);
    if (st != CDP_OK) return st;
    for (uint32_t k = 0; st == CDP_OK; ++k) {
        *work = step;
        (void)cdp__atomic_add_u32(&p->turns->pending, 1, CDP__ACQ_REL);
        if (step.seq)
            st = cdp_work_then(step, cdp__dt_turn_done, &p->turns->turn[k], work);
        else
            st = cdp__dt_turn_done(&p->turns->turn[k], CDP_OK);
        if (st != CDP_OK) (void)cdp__atomic_sub_u32(&p->turns->pending, 1, CDP__ACQ_REL);
        if (st != CDP_OK || k + 1 == phases) return st;
        st = cdp__dt_wide_start(p, k + 1, *work, &step);
    }
    return st;
}

/* Asynchronous runs have no windows, which would all need memory of their own: builds the phases
   again without. */
CDP__DT cdp_status cdp__dt_plan_whole(cdp_plan *p) {
    cdp_plan old;
    if (!p || cdp__ended(p) || !p->windows || p->whole || cdp__dt_mesh_ended(p->mesh))
        return CDP_OK;
    old = *p;
    p->whole = true;
    p->phases = NULL;
    p->list = NULL;
    p->acts = NULL;
    p->act_count = p->info.calls = 0;
    p->phase_count = p->info.messages = 0;
    p->scratch_used = p->info.send_bytes = p->info.recv_bytes = p->info.copied_bytes = 0;
    const cdp_status st = cdp__dt_plan_build(p);
    cdp__dt_phases_free(st == CDP_OK ? &old : p);
    if (st != CDP_OK) *p = old;
    return st;
}

CDP_API cdp_status cdp_plan_run_async(cdp_plan *p, const void *in, void *out, cdp_work *work) {
    bool ready;
    if (!work) return cdp__dt_missing("cdp_plan_run_async", "work");
    cdp_status st = cdp__dt_plan_whole(p);
    if (st == CDP_OK) st = cdp__dt_run_begin(p, in, out, &ready);
    work->group = st == CDP_OK && p->group ? cdp__dt_run_link(p)->group : NULL;
    work->seq = 0;
    if (st != CDP_OK || !ready) return st;
    st = cdp__dt_wide_make(p);
    const bool made = st == CDP_OK;
    if (made) st = p->acts ? cdp__dt_act_chain(p, work) : cdp__dt_chain(p, work);
    cdp__dt_scratch_give(p, false);
    if (!made) return st;
    if (st != CDP_OK && p->acts) return cdp__dt_acts_break(p, st);
    if (st != CDP_OK && cdp_group_status(work->group) == CDP_OK) {
        const cdp_error why = *cdp_last_error();
        cdp_group_abort(cdp__dt_run_link(p)->group, why.text);
        st = cdp__error_again(st, &why);
    }
    return st;
}

#endif /* CDP_SRC_DTENSOR_RUNNER_ASYNC_H */
