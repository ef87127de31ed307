/* fsdp/rebind.h - shards move to another group of ranks

   Knows: shards of the layout before, records of all ranks. Promises: what a rank holds stays as
   it is until all ranks have what is new; a rank that does not know whether others go on keeps
   both. */
#ifndef CDP_SRC_FSDP_REBIND_H
#define CDP_SRC_FSDP_REBIND_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../group/messages_api.h"
#include "../group/works_api.h"
#include "../base/compiler.h"
#include "../base/ended.h"
#include "../base/helpers.h"
#include "../dtype/norms.h"
#include "fsdp_api.h"
#include "checks.h"
#include "holders.h"
#include "state.h"
#include "agree.h"
#include "gather.h"
#include "copies.h"
#include "step.h"
#include "create.h"

/* One change, on one rank. */
typedef struct cdp__fsdp_change {
    cdp_group *group;
    cdp_fsdp *old; /* NULL: it holds nothing that counts */
    cdp__fsdp_record own, *all;
    cdp__fsdp_verdict verdict;
} cdp__fsdp_change;

CDP__PRIVATE cdp__fsdp_record cdp__fsdp_describe(const cdp_fsdp *f, uint64_t wanted) {
    cdp__fsdp_record r;
    memset(&r, 0, sizeof r);
    r.wanted = wanted;
    if (!f) return r;
    r.layout = f->layout;
    r.ranks = f->ranks;
    r.rank = f->rank;
    r.copies = f->image_count - 1;
    r.distance = f->distance;
    r.seen = f->seen;
    r.turn = f->turn;
    r.updates = f->step;
    r.optim_step = f->desc.optim ? f->desc.optim->step : 0;
    r.scale = f->info.scale;
    if (f->entered) r.flags |= CDP__FSDP_READY;
    if (f->ended) r.flags |= CDP__FSDP_ENDED;
    if (f->torn) r.flags |= CDP__FSDP_TORN;
    if (f->filled) r.flags |= CDP__FSDP_FILLED;
    if (f->ended ? !cdp__fsdp_will_update(f) : f->left_out) r.flags |= CDP__FSDP_LEFT_OUT;
    if (!f->pending) return r;
    r.pending = f->pending->layout;
    r.pending_ranks = f->pending->ranks;
    r.pending_copies = f->pending->image_count - 1;
    r.pending_rank = f->pending->rank;
    return r;
}

CDP__PRIVATE cdp_status cdp__fsdp_judge_records(const cdp__fsdp_verdict *v) {
    if (!v->layout)
        return cdp_error_set(CDP_ERR_STATE, -1, 0,
            "cdp_fsdp_rebind: no rank of the new group holds a shard; create without desc.receive, "
            "and load what was saved");
    if (v->impossible)
        return cdp_error_set(CDP_ERR_STATE, -1, 0,
            "cdp_fsdp_rebind: the ranks cannot reach turn %llu, which the program says counts; "
            "pass what cdp_elastic_next() says, or CDP_FSDP_AGREE",
            (unsigned long long)v->turn);
    if (v->lost == CDP__FSDP_NONE) return CDP_OK;
    return cdp_error_set(CDP_ERR_STATE, (int32_t)v->lost, 0,
        "cdp_fsdp_rebind: of %u ranks before, all that held the shard of rank %u are gone (it had "
        "%u copies); load what was saved, and raise desc.copies to survive so many deaths",
        v->ranks, v->lost, v->copies);
}

/* All ranks learn what each one holds. */
CDP__PRIVATE cdp_status cdp__fsdp_meet(cdp__fsdp_change *c) {
    const uint32_t n = cdp_size(c->group);
    cdp_status st = cdp_allgather(c->group, &c->own, c->all, sizeof c->own, CDP_DTYPE_U8);
    if (st != CDP_OK) return st;
    cdp__fsdp_resolve(c->all, n, &c->verdict);
    if (c->old) c->old->seen = c->verdict.seen + 1;
    return cdp__fsdp_judge_records(&c->verdict);
}

/* Goes on with the layout that others use already, or forgets it. */
CDP__PRIVATE void cdp__fsdp_choose_layout(cdp_fsdp *f, uint32_t which) {
    cdp_fsdp *next = f->pending;
    if (!next) return;
    f->pending = NULL;
    if (which == 2) {
        const cdp_fsdp was = *f;
        *f = *next;
        *next = was;
        f->seen = was.seen;
        f->failed = was.failed;
        memcpy(f->cause, was.cause, sizeof f->cause);
    }
    cdp_fsdp_destroy(next);
}

/* Nobody has the scale of the step that counts, so nobody has used it: it is computed anew, each
   shard by the first rank that has its gradient. */
CDP__PRIVATE cdp_status cdp__fsdp_find_scale(cdp__fsdp_change *c, const cdp_fsdp_desc *d) {
    cdp__fsdp_verdict *v = &c->verdict;
    double sums[2] = {0, 0};
    uint32_t shard, i;
    cdp_status st;
    for (shard = 0; shard < v->ranks && c->old; ++shard) {
        const uint32_t image = cdp__fsdp_holds(&c->own, v, shard);
        double q;
        for (i = 0; cdp__fsdp_holds(&c->all[i], v, shard) == CDP__FSDP_NONE; ++i) {
        }
        if (i != cdp_rank(c->group)) continue;
        q = cdp__norm_of(CDP_DTYPE_F32, CDP__NORM_SQUARES, c->old->images[image].means,
            c->old->images[image].mean_count);
        if (q - q != 0) sums[1] = 1;
        sums[0] += q;
    }
    st = cdp_allreduce(c->group, NULL, sums, 2, CDP_DTYPE_F64, CDP_REDUCE_SUM);
    if (st != CDP_OK) return st;
    v->left_out = sums[1] != 0 && (d->skip_nonfinite || d->max_norm > 0);
    if (v->left_out) {
        --v->updates;
        --v->optim_step;
    }
    if (!c->old) return CDP_OK;
    c->old->info.found_inf = sums[1] != 0;
    cdp__fsdp_judge(c->old, sums[0]);
    v->scale = c->old->info.scale;
    return CDP_OK;
}

/* Makes the update of a step that counts, if this rank lacks it. */
CDP__PRIVATE cdp_status cdp__fsdp_catch_up(cdp__fsdp_change *c, const cdp_fsdp_desc *d) {
    const cdp__fsdp_verdict *v = &c->verdict;
    const cdp__fsdp_role role = cdp__fsdp_role_of(&c->own, v);
    cdp_fsdp *f = c->old;
    cdp_status st = CDP_OK;
    uint32_t i;
    if (f) cdp__fsdp_choose_layout(f, cdp__fsdp_has_layout(&c->own, v->layout));
    if (role == CDP__FSDP_RECEIVES) c->old = f = NULL;
    if (v->unknown) st = cdp__fsdp_find_scale(c, d);
    if (st != CDP_OK || role != CDP__FSDP_UPDATES) return st;
    f->info.scale = v->scale;
    for (i = 0; i < f->held_pieces; ++i) {
        f->pieces[i].scale = v->scale;
        f->pieces[i].step = f->step + 1;
    }
    if (!v->left_out) st = cdp__fsdp_update(f);
    if (st != CDP_OK) return st;
    f->turn = v->turn;
    f->left_out = v->left_out;
    f->entered = f->ended = false;
    return CDP_OK;
}

/* ---- moves ---- */

enum {
    CDP__FSDP_BATCH = 64 /* transfers at a time */
};

typedef struct cdp__fsdp_porter {
    cdp_fsdp *next;
    const cdp__fsdp_change *change;
    cdp__fsdp_mover mover;
    cdp_transfer list[CDP__FSDP_BATCH];
    uint32_t count;
} cdp__fsdp_porter;

/* All ranks see one order of stretches, and each takes part in some of them in that order, so
   nobody waits in a circle. */
CDP__PRIVATE cdp_status cdp__fsdp_flush(cdp__fsdp_porter *p) {
    cdp_work work;
    cdp_status st = CDP_OK;
    if (p->count) st = cdp_batch(p->next->reductions, p->list, p->count, &work);
    if (p->count && st == CDP_OK) st = cdp__fsdp_await(p->next, work);
    p->count = 0;
    return st;
}

/* Array `k` of a shard: its states, then its values. */
CDP__PRIVATE float *cdp__fsdp_array(const cdp_fsdp *f, uint32_t image, uint32_t k, uint64_t at) {
    const cdp__fsdp_image *m = &f->images[image];
    return (k < cdp__fsdp_states(&f->desc) ? m->states[k] : m->values) + at;
}

CDP__PRIVATE void cdp__fsdp_carry(
    cdp__fsdp_porter *p, const cdp__fsdp_piece_move *v, float *from, float *to, uint32_t rank) {
    cdp_transfer t;
    memset(&t, 0, sizeof t);
    if (v->from == v->to) {
        memcpy(to, from, (size_t)(v->count * sizeof *to));
        return;
    }
    t.receive = v->to == rank;
    t.data = t.receive ? to : from;
    t.count = v->count;
    t.peer = t.receive ? v->from : v->to;
    p->list[p->count++] = t;
    if (t.receive) p->next->stats.moved_bytes += t.count * sizeof *to;
}

/* One stretch, if this rank sends or receives it: values, and of trainable ones the states. */
CDP__PRIVATE cdp_status cdp__fsdp_carry_all(
    cdp__fsdp_porter *p, const cdp__fsdp_piece_move *v, uint32_t unit, uint32_t frozen) {
    cdp_fsdp *const next = p->next, *const old = p->change->old;
    const uint32_t states = cdp__fsdp_states(&next->desc), me = next->rank;
    const uint64_t new_start =
        p->mover.new_cuts[cdp__fsdp_held(p->mover.ranks, p->mover.distance, v->to, v->image)];
    uint64_t out = 0, in = 0;
    uint32_t k, image = 0;
    cdp_status st = CDP_OK;
    if (v->from != me && v->to != me) return CDP_OK;
    if (p->count + states + 1 > CDP__FSDP_BATCH) st = cdp__fsdp_flush(p);
    if (st != CDP_OK) return st;
    if (v->from == me) {
        image = cdp__fsdp_holds(&p->change->own, &p->change->verdict, v->shard);
        out = cdp__fsdp_place(old, unit, frozen, image) + v->first - p->mover.old_cuts[v->shard];
    }
    if (v->to == me) in = cdp__fsdp_place(next, unit, frozen, v->image) + v->first - new_start;
    for (k = frozen ? states : 0; k <= states; ++k)
        cdp__fsdp_carry(p, v, v->from == me ? cdp__fsdp_array(old, image, k, out) : NULL,
            v->to == me ? cdp__fsdp_array(next, v->image, k, in) : NULL, me);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__fsdp_open_mover(cdp__fsdp_porter *p) {
    const cdp__fsdp_change *c = p->change;
    cdp_fsdp *const next = p->next;
    const uint64_t old = c->verdict.ranks, ranks = next->ranks;
    uint32_t i;
    p->mover.records = c->all;
    p->mover.verdict = &c->verdict;
    p->mover.ranks = next->ranks;
    p->mover.copies = next->image_count - 1;
    p->mover.distance = next->distance;
    p->mover.old_cuts = (uint64_t *)cdp__fsdp_alloc(next, (old + 1) * sizeof(uint64_t));
    p->mover.new_cuts = (uint64_t *)cdp__fsdp_alloc(next, (ranks + 1) * sizeof(uint64_t));
    p->mover.sent = (uint64_t *)cdp__fsdp_alloc(next, ranks * sizeof(uint64_t));
    p->mover.member = (uint32_t *)cdp__fsdp_alloc(next, old * sizeof(uint32_t));
    if (!p->mover.old_cuts || !p->mover.new_cuts || !p->mover.sent || !p->mover.member)
        return cdp__fsdp_nomem("moving shards", (old + ranks) * 16);
    memset(p->mover.member, 0xff, (size_t)(old * sizeof(uint32_t)));
    for (i = 0; i < ranks; ++i) {
        const uint32_t was = cdp__fsdp_old_rank(&c->all[i], &c->verdict);
        if (was != CDP__FSDP_NONE) p->mover.member[was] = i;
    }
    return CDP_OK;
}

/* Fills the shards of `next`. */
CDP__PRIVATE cdp_status cdp__fsdp_move_shards(cdp_fsdp *next, const cdp__fsdp_change *c) {
    cdp__fsdp_porter p;
    cdp__fsdp_piece_move v;
    uint32_t unit, k;
    cdp_status st;
    memset(&p, 0, sizeof p);
    p.next = next;
    p.change = c;
    st = cdp__fsdp_vote(c->group, cdp__fsdp_open_mover(&p));
    for (unit = 0; unit < next->unit_count && st == CDP_OK; ++unit)
        for (k = 0; k < 2 && st == CDP_OK; ++k) {
            cdp__fsdp_move_range(&p.mover, &next->list, unit, k == 1);
            while (st == CDP_OK && cdp__fsdp_next_move(&p.mover, &v))
                st = cdp__fsdp_carry_all(&p, &v, unit, k);
        }
    if (st == CDP_OK) st = cdp__fsdp_flush(&p);
    cdp__fsdp_free(next, p.mover.old_cuts);
    cdp__fsdp_free(next, p.mover.new_cuts);
    cdp__fsdp_free(next, p.mover.sent);
    cdp__fsdp_free(next, p.mover.member);
    next->filled = st == CDP_OK;
    return st == CDP_OK ? cdp__fsdp_cast(next) : st;
}

/* ---- the change ---- */

/* Fills `next`, which has its settings alone. OK: all ranks have all, and this one may use it.
   *complete: it has all itself, but may not know whether others do. */
CDP__PRIVATE cdp_status cdp__fsdp_change_to(
    cdp__fsdp_change *c, cdp_fsdp *next, const cdp_fsdp_desc *d, bool *complete) {
    const cdp__fsdp_verdict *v = &c->verdict;
    cdp_status st = cdp__fsdp_meet(c);
    if (st == CDP_OK) st = cdp__fsdp_vote(c->group, cdp__fsdp_catch_up(c, d));
    if (st == CDP_OK) st = cdp__fsdp_open(next, d);
    if (st == CDP_OK) st = cdp__fsdp_move_shards(next, c);
    if (st != CDP_OK) return st;
    next->layout = next->seen = v->seen + 1;
    next->turn = v->turn;
    next->step = v->updates;
    next->left_out = v->left_out;
    next->info.scale = v->scale;
    if (d->optim) d->optim->step = v->optim_step;
    *complete = true;
    return cdp__fsdp_vote(c->group, CDP_OK);
}

/* `old` NULL: a newcomer. */
CDP__PRIVATE cdp_status cdp__fsdp_join_group(
    cdp_fsdp *old, cdp_fsdp *next, const cdp_fsdp_desc *d, uint64_t wanted, bool *complete) {
    cdp__fsdp_change c;
    cdp_status st;
    memset(&c, 0, sizeof c);
    *complete = false;
    c.group = d->group;
    c.old = old;
    c.own = cdp__fsdp_describe(old, wanted);
    c.all = (cdp__fsdp_record *)cdp__fsdp_alloc(next, cdp_size(d->group) * sizeof c.own);
    st = c.all ? CDP_OK : cdp__fsdp_nomem("records", cdp_size(d->group) * sizeof c.own);
    st = cdp__fsdp_vote(d->group, st);
    if (st == CDP_OK) st = cdp__fsdp_change_to(&c, next, d, complete);
    cdp__fsdp_free(next, c.all);
    return st;
}

CDP__PRIVATE cdp_status cdp__fsdp_join(cdp_fsdp *next, const cdp_fsdp_desc *d) {
    bool complete;
    return cdp__fsdp_join_group(NULL, next, d, CDP_FSDP_AGREE, &complete);
}

/* The desc of the new layout. */
CDP__PRIVATE cdp_fsdp_desc cdp__fsdp_desc_for(
    const cdp_fsdp *f, cdp_group *group, cdp_fsdp_unit *units) {
    cdp_fsdp_desc d = f->desc;
    uint32_t i;
    for (i = 0; i < f->unit_count; ++i) {
        units[i].name = f->units[i].name;
        units[i].keep = f->units[i].keep;
        units[i].uses = f->units[i].uses;
    }
    d.group = group;
    d.units = units;
    d.unit_count = f->unit_count;
    d.receive = true;
    if (!f->own_divisor) d.divisor = 0;
    return d;
}

/* Ends what is in flight. A healthy group ends it by itself. */
CDP__PRIVATE void cdp__fsdp_calm(cdp_fsdp *f) {
    cdp_status st = CDP_OK;
    uint32_t i;
    for (i = 0; i < f->unit_count; ++i) {
        const cdp__fsdp_unit *u = &f->units[i];
        if (u->gathering && st != CDP_PENDING) st = cdp_work_wait_for(u->gather, 500);
        if (u->forwarding && st != CDP_PENDING) st = cdp_work_wait_for(u->forward, 500);
    }
    for (i = 0; i < f->flights && st != CDP_PENDING; ++i)
        st = cdp_work_wait_for(f->flight[i].work, 500);
    if (st == CDP_PENDING) {
        cdp_group_abort(f->gathers, "cdp_fsdp_rebind has left this group");
        cdp_group_abort(f->reductions, "cdp_fsdp_rebind has left this group");
        if (f->buddies) cdp_group_abort(f->buddies, "cdp_fsdp_rebind has left this group");
    }
    cdp__fsdp_settle(f);
    cdp__fsdp_free_caches(f);
    if (f->failed != CDP_OK) return;
    (void)cdp_error_set(CDP_ERR_STATE, -1, 0, "cdp_fsdp_rebind has not ended; call it again");
    (void)cdp__fsdp_broken(f, CDP_ERR_STATE);
}

CDP__PRIVATE void cdp__fsdp_adopt(cdp_fsdp *f, cdp_fsdp *next) {
    const cdp_fsdp was = *f;
    *f = *next;
    *next = was;
    f->desc.units = NULL;
    cdp_fsdp_destroy(next);
}

CDP__PRIVATE cdp_status cdp__fsdp_rebind(cdp_fsdp *f, cdp_group *group, uint64_t turn) {
    cdp_fsdp *next = (cdp_fsdp *)cdp__fsdp_alloc(f, sizeof *next);
    cdp_fsdp_unit *units =
        (cdp_fsdp_unit *)cdp__fsdp_alloc(f, f->unit_count * sizeof(cdp_fsdp_unit));
    const cdp_os *os = cdp_group_desc_of(group)->os;
    bool complete = false;
    cdp_status st;
    if (next && units) {
        const cdp_fsdp_desc d = cdp__fsdp_desc_for(f, group, units);
        cdp__fsdp_settings(next, os, &d);
        st = cdp__fsdp_share_loss(next, cdp__fsdp_join_group(f, next, &d, turn, &complete));
    } else
        st = cdp__fsdp_vote(group, cdp__fsdp_nomem("the struct", sizeof *next));
    if (st == CDP_OK)
        cdp__fsdp_adopt(f, next);
    else if (complete)
        f->pending = next;
    else if (next && units)
        cdp_fsdp_destroy(next);
    else
        cdp__fsdp_free(f, next);
    cdp__fsdp_free(f, units);
    return st;
}

CDP_API cdp_status cdp_fsdp_rebind(cdp_fsdp *f, cdp_group *group, uint64_t turn) {
    cdp_status st = cdp__fsdp_alive(f, "cdp_fsdp_rebind");
    if (st == CDP_OK && !group) st = cdp__fsdp_missing("cdp_fsdp_rebind", "group");
    if (st == CDP_OK) st = cdp_group_status(group);
    if (st != CDP_OK) return st;
    if (f->desc.replicate || f->desc.norm_group)
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_fsdp_rebind: not offered with desc.replicate or desc.norm_group; save, and "
            "restore on the new groups");
    cdp__fsdp_calm(f);
    return cdp__fsdp_rebind(f, group, turn);
}

CDP_API uint64_t cdp_fsdp_turn(const cdp_fsdp *f) {
    return f && !cdp__ended(f) ? f->turn : 0;
}

/* ---- creation ---- */

CDP_API cdp_status cdp_fsdp_create(const cdp_fsdp_desc *d, cdp_fsdp **out) {
    const cdp_os *os;
    cdp_fsdp *f = NULL;
    cdp_status st;
    if (!out) return cdp__fsdp_missing("cdp_fsdp_create", "out");
    *out = NULL;
    if (!d || !d->group) return cdp__fsdp_missing("cdp_fsdp_create", d ? "desc.group" : "desc");
    st = cdp_group_status(d->group);
    if (st != CDP_OK) return st;
    os = cdp_group_desc_of(d->group)->os;
    st = cdp__fsdp_check("cdp_fsdp_create", d);
    if (st == CDP_OK) f = (cdp_fsdp *)os->alloc(os->user, sizeof *f);
    if (st == CDP_OK && !f) st = cdp__fsdp_nomem("the struct", sizeof *f);
    if (!f) return cdp__fsdp_vote_wide(d, cdp__fsdp_vote(d->group, st));
    cdp__fsdp_settings(f, os, d);
    st = d->receive ? cdp__fsdp_join(f, d) : cdp__fsdp_open(f, d);
    if (st == CDP_OK) {
        *out = f;
        return CDP_OK;
    }
    st = cdp__fsdp_share_loss(f, st);
    cdp_fsdp_destroy(f);
    return st;
}

#endif /* CDP_SRC_FSDP_REBIND_H */
