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
#include "../dtype/reduce.h"
#include "../text/format.h"
#include "mesh_api.h"
#include "layout_api.h"
#include "plan_api.h"
#include "kit.h"
#include "kernels.h"
#include "counter.h"
#include "grid.h"
#include "meshes.h"
#include "stages.h"

#define CDP__DT_TAG 0xcd700000u
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
    uint8_t *slab = p->scratch + f->at;
    for (uint32_t term = 0, got = f->first; term < terms; ++term) {
        if (term == f->own && term == 0) {
            cdp__dt_copy_run(&f->copy, p->scratch, cdp__dt_at(p, f->from));
        } else if (term == f->own) {
            cdp__dt_copy_combine(&f->copy, p->dtype, s->op, p->scratch, cdp__dt_at(p, f->from));
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

CDP__DT void cdp__dt_layout_words(const cdp_layout *l, uint64_t *w) {
    memset(w, 0, CDP__DT_LAYOUT_WORDS * sizeof *w);
    *w++ = (uint64_t)cdp__dt_dtype(l);
    *w++ = l->ndim;
    for (uint32_t d = 0; d < CDP_TENSOR_DIMS; ++d)
        *w++ = d < l->ndim ? l->shape[d] : 0;
    *w++ = l->mesh->count;
    for (uint32_t by = 0; by < l->mesh->desc.ndim; ++by, w += 6) {
        const cdp_place *p = &l->place[by];
        const uint64_t *starts = p->cut ? cdp__dt_cut_starts(l->mesh, p->cut) : NULL;
        w[0] = (uint64_t)p->kind;
        if (p->kind == CDP_PLACE_PARTIAL) w[2] = (uint64_t)cdp__dt_op(p);
        if (p->kind != CDP_PLACE_SHARD) continue;
        w[1] = cdp__dt_dim(l, by);
        w[3] = p->order;
        w[4] = p->block;
        if (starts) w[5] = cdp__dt_hash(starts, l->mesh->desc.shape[by] + 1ull);
    }
}

/* Names a word of a layout, like "shape[1]" or "place[0].dim". */
CDP__DT void cdp__dt_layout_word_name(uint32_t word, cdp__text *t) {
    static const char *const members[6] = {"kind", "dim", "op", "order", "block", "cut"};
    if (word < 2)
        cdp__text_add(t, "%s", word ? "ndim" : "dtype");
    else if (word < 2 + CDP_TENSOR_DIMS)
        cdp__text_add(t, "shape[%u]", word - 2);
    else if (word == 2 + CDP_TENSOR_DIMS)
        cdp__text_add(t, "the size of the mesh");
    else
        cdp__text_add(t, "place[%u].%s", (word - 3 - CDP_TENSOR_DIMS) / 6,
            members[(word - 3 - CDP_TENSOR_DIMS) % 6]);
}

/* Checks that all ranks run the same plan. Compares the kind of the run, and both layouts. */
CDP__DT cdp_status cdp__dt_plan_compare(cdp_plan *p) {
    uint64_t words[1 + 2 * CDP__DT_LAYOUT_WORDS], values[2];
    char name[48];
    uint32_t rank, word;
    const uint32_t n = 1 + 2 * CDP__DT_LAYOUT_WORDS;
    words[0] = (uint64_t)p->desc.kind << 34 | (uint64_t)p->desc.from_one << 33
        | (uint64_t)p->desc.to_one << 32 | (p->desc.from_one || p->desc.to_one ? p->desc.root : 0);
    cdp__dt_layout_words(&p->desc.from, words + 1);
    cdp__dt_layout_words(&p->desc.to, words + 1 + CDP__DT_LAYOUT_WORDS);
    cdp_status st = cdp__dt_agree(p->group, p->os, words, n, &rank, &word, values);
    if (st != CDP_OK || rank == CDP__DT_NONE) {
        p->compared = st == CDP_OK;
        return st;
    }
    cdp__text t = cdp__text_of(name, sizeof name);
    if (word == 0)
        cdp__text_add(&t, "kind, from_one, to_one or root");
    else if (word <= CDP__DT_LAYOUT_WORDS)
        cdp__text_add(&t, "from.");
    else
        cdp__text_add(&t, "to.");
    if (word) cdp__dt_layout_word_name((word - 1) % CDP__DT_LAYOUT_WORDS, &t);
    (void)cdp__text_end(&t);
    return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)rank, 0,
        "plan: ranks run different plans: %s is %llu on rank 0 and %llu on rank %u of the mesh",
        name, (unsigned long long)values[0], (unsigned long long)values[1], rank);
}

CDP__DT bool cdp__dt_overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes) {
    const uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return a_bytes && b_bytes && x < y + b_bytes && y < x + a_bytes;
}

CDP__DT bool cdp__dt_running(const cdp_plan *p) {
    return p->turns && cdp__atomic_load_u32(&p->turns->pending, CDP__ACQUIRE) != 0;
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

/* Checks the call; sets *ready if there is something to run. */
CDP__DT cdp_status cdp__dt_run_begin(cdp_plan *p, const void *in, void *out, bool *ready) {
    *ready = false;
    if (!p) return cdp__dt_missing("cdp_plan_run", "plan");
    if (!p->mesh->root->group)
        return cdp_error_set(CDP_ERR_STATE, -1, 0, "plan: its mesh is on paper; it cannot run");
    if (!p->group || p->node == CDP__DT_NONE) return CDP_OK;
    if (cdp__dt_running(p) && cdp_group_status(p->group) != CDP_OK)
        return cdp_group_status(p->group);
    if (cdp__dt_running(p))
        return cdp_error_set(CDP_ERR_STATE, -1, 0,
            "plan: its last asynchronous run is not done; wait for that work first");
    cdp_status st = cdp__dt_run_check(p, in, out);
    if (st == CDP_OK && !p->compared) st = cdp__dt_plan_compare(p);
    if (st != CDP_OK) return st;
    p->in = in;
    p->out = out;
    *ready = true;
    if (p->kind != CDP_COLL_NONE)
        cdp__dt_count(p->mesh->root->counter, p->kind, p->info.recv_bytes, p->backward);
    return CDP_OK;
}

CDP_API cdp_status cdp_plan_run(cdp_plan *p, const void *in, void *out) {
    bool ready;
    cdp_status st = cdp__dt_run_begin(p, in, out, &ready);
    for (uint32_t k = 0; st == CDP_OK && ready && k < p->phase_count; ++k)
        st = cdp__dt_phase_run(p, &p->phases[k]);
    return st;
}

#endif /* CDP_SRC_DTENSOR_RUNNER_H */
