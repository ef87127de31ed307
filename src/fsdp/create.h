/* fsdp/create.h - making and ending

   Knows: descs, groups. Promises: nothing is left behind where creation fails; all memory of later
   steps is allocated here, but for what the text of cdp_fsdp.h names. */
#ifndef CDP_SRC_FSDP_CREATE_H
#define CDP_SRC_FSDP_CREATE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../base/compiler.h"
#include "../base/ended.h"
#include "../base/helpers.h"
#include "../text/format.h"
#include "fsdp_api.h"
#include "cxx_api.h"
#include "cuts.h"
#include "checks.h"
#include "paper.h"
#include "state.h"
#include "agree.h"
#include "gather.h"
#include "copies.h"
#include "reduce.h"
#include "step.h"
#include "picture.h"

/* A copy of a name, or of "<what><i>" if there is none. */
CDP__PRIVATE char *cdp__fsdp_name(
    const cdp_fsdp *f, const char *name, const char *what, uint32_t i) {
    char fallback[32], *copy;
    cdp__text t = cdp__text_of(fallback, sizeof fallback);
    cdp__text_add(&t, "%s%u", what, i);
    if (!name) name = fallback;
    copy = (char *)cdp__fsdp_alloc(f, strlen(name) + 1);
    if (copy) memcpy(copy, name, strlen(name) + 1);
    return copy;
}

/* The tables, without memory for elements. */
CDP__PRIVATE cdp_status cdp__fsdp_open_tables(cdp_fsdp *f, const cdp_fsdp_desc *d) {
    const uint64_t bytes = d->param_count * sizeof *f->params;
    uint32_t i;
    bool named = true;
    f->params = (cdp_fsdp_param *)cdp__fsdp_alloc(f, bytes);
    f->offset = (uint64_t *)cdp__fsdp_alloc(f, d->param_count * sizeof *f->offset);
    f->units = (cdp__fsdp_unit *)cdp__fsdp_alloc(f, f->unit_count * sizeof *f->units);
    f->slots = (cdp__fsdp_slot *)cdp__fsdp_alloc(f, f->unit_count * sizeof *f->slots);
    f->counts = (uint64_t *)cdp__fsdp_alloc(f, 2ull * f->unit_count * f->ranks * sizeof *f->counts);
    f->pieces = (cdp_fsdp_piece *)cdp__fsdp_alloc(
        f, d->param_count * (uint64_t)f->image_count * sizeof *f->pieces);
    f->parts = (uint64_t *)cdp__fsdp_alloc(f, f->ranks * sizeof *f->parts);
    if (!f->params || !f->offset || !f->units || !f->slots || !f->counts || !f->pieces || !f->parts)
        return cdp__fsdp_nomem("the tables", bytes);
    for (i = 0; i < 2 && d->events; ++i) {
        f->spans[i].events =
            (cdp__fsdp_event *)cdp__fsdp_alloc(f, d->events * sizeof(cdp__fsdp_event));
        if (!f->spans[i].events)
            return cdp__fsdp_nomem("events", d->events * sizeof(cdp__fsdp_event));
    }
    for (i = 0; i < d->param_count; ++i) {
        f->params[i] = d->params[i];
        f->params[i].name = cdp__fsdp_name(f, d->params[i].name, "param", i);
        named = named && f->params[i].name;
    }
    for (i = 0; i < f->unit_count; ++i) {
        cdp__fsdp_unit *u = &f->units[i];
        u->name = cdp__fsdp_name(f, d->units && d->unit_count ? d->units[i].name : NULL, "unit", i);
        u->keep = cdp__fsdp_keeps(d, i);
        u->uses = cdp__fsdp_uses(d, i);
        u->slot = u->pool = u->event = CDP__FSDP_NONE;
        u->expected = 1;
        named = named && u->name;
    }
    return named ? CDP_OK : cdp__fsdp_nomem("names", bytes);
}

/* Cuts both ranges of a unit. */
CDP__PRIVATE void cdp__fsdp_cut_unit(cdp_fsdp *f, uint32_t unit) {
    const uint32_t first = cdp__fsdp_first(&f->list, unit), end = cdp__fsdp_end(&f->list, unit);
    uint32_t k, r, i;
    for (k = 0; k < 2; ++k) {
        cdp__fsdp_range *g = &f->units[unit].range[k];
        cdp__fsdp_walk w = cdp__fsdp_walk_of(&f->list, unit, k == 1);
        uint64_t from = 0, at = 0;
        g->counts = f->counts + (2ull * unit + k) * f->ranks;
        g->total = w.total;
        for (r = 0; r < f->ranks; ++r) {
            const uint64_t to = cdp__fsdp_cut(&w, f->ranks, r + 1);
            g->counts[r] = to - from;
            if (r == f->rank) g->start = from;
            from = to;
        }
        g->own = g->counts[f->rank];
        for (i = first; i < end; ++i)
            if (f->params[i].unit == unit && f->params[i].frozen == (k == 1)) {
                f->offset[i] = at;
                at += cdp__fsdp_count(&f->params[i]);
            }
        f->value_count += g->own;
        if (k) continue;
        f->mean_count += g->own;
        f->most = cdp__max(f->most, g->total);
        if (!cdp__fsdp_owns_gradients(&f->desc, unit))
            f->most_shared = cdp__max(f->most_shared, g->total);
    }
}

/* Memory of the shards, and each unit's place in it: trainable ones of all units first, so that
   what belongs to gradients is one stretch. */
CDP__PRIVATE cdp_status cdp__fsdp_open_shards(cdp_fsdp *f) {
    uint64_t at[2], size = cdp__fsdp_size_of(f->desc.compute);
    uint32_t i, k;
    f->values = (float *)cdp__fsdp_memory(f, f->value_count * 4, &f->stats.shard_bytes);
    f->means = (float *)cdp__fsdp_memory(f, f->mean_count * 4, &f->stats.shard_bytes);
    if (size == 2)
        f->copies = (uint8_t *)cdp__fsdp_memory(f, f->value_count * 2, &f->stats.copy_bytes);
    if (!f->values || !f->means || (size == 2 && !f->copies)) return CDP_ERR_NOMEM;
    for (k = 0; k < cdp__fsdp_states(&f->desc); ++k) {
        f->states[k] = (float *)cdp__fsdp_alloc(f, f->mean_count * 4);
        if (!f->states[k]) return cdp__fsdp_nomem("optimizer state", f->mean_count * 4);
        f->stats.state_bytes += f->mean_count * 4;
        f->stats.total_bytes += f->mean_count * 4;
    }
    at[0] = 0;
    at[1] = f->mean_count;
    for (i = 0; i < f->unit_count; ++i) {
        cdp__fsdp_unit *u = &f->units[i];
        u->mean = f->means + at[0];
        for (k = 0; k < cdp__fsdp_states(&f->desc); ++k)
            u->state[k] = f->states[k] + at[0];
        for (k = 0; k < 2; ++k) {
            u->range[k].value = f->values + at[k];
            if (f->copies) u->range[k].copy = f->copies + at[k] * size;
            at[k] += u->range[k].own;
        }
    }
    return CDP_OK;
}

/* Slots, and memory of whole gradients. */
CDP__PRIVATE cdp_status cdp__fsdp_open_slots(cdp_fsdp *f) {
    cdp__fsdp_sizes sizes = cdp__fsdp_sizes_of(&f->desc, &f->list, f->unit_count);
    uint32_t i, k, shared = 0, trained = 0, slot, all;
    cdp_status st = CDP_OK;
    for (i = 0; i < f->unit_count && st == CDP_OK; ++i) {
        cdp__fsdp_unit *u = &f->units[i];
        const uint64_t bytes = cdp__fsdp_slot_bytes(f, u);
        const uint32_t before = u->keep ? 0 : cdp__fsdp_alike(&sizes, i, f->unit_count, &all);
        if (bytes && before < cdp__fsdp_slots_for(&f->desc, before + 1))
            st = cdp__fsdp_add_slot(f, bytes, &slot);
        if (!u->range[0].total) continue;
        ++trained;
        if (!cdp__fsdp_owns_gradients(&f->desc, i))
            ++shared;
        else if (st == CDP_OK)
            st = cdp__fsdp_give_own(f, u);
    }
    for (k = 0; k < CDP__FSDP_FLIGHTS && st == CDP_OK; ++k) {
        if (k < shared)
            f->pool[k] = (float *)cdp__fsdp_memory(f, f->most_shared * 4, &f->stats.gradient_bytes);
        if (k < trained && cdp__fsdp_size_of(f->desc.reduce) == 2)
            f->narrow[k] = (uint8_t *)cdp__fsdp_memory(f, f->most * 2, &f->stats.scratch_bytes);
        if ((k < shared && !f->pool[k])
            || (k < trained && cdp__fsdp_size_of(f->desc.reduce) == 2 && !f->narrow[k]))
            st = CDP_ERR_NOMEM;
    }
    return st;
}

/* The part of parameter `param` that a range of elements of its unit holds. */
CDP__PRIVATE uint64_t cdp__fsdp_overlap(
    const cdp_fsdp *f, uint32_t param, uint64_t start, uint64_t count, uint64_t *first) {
    const uint64_t begin = f->offset[param], end = begin + cdp__fsdp_count(&f->params[param]);
    const uint64_t low = cdp__max(begin, start), high = cdp__min(end, start + count);
    *first = low > begin ? cdp__min(low, end) - begin : 0;
    return high > low ? high - low : 0;
}

/* The piece of a parameter in one of the shards that this rank holds. */
CDP__PRIVATE void cdp__fsdp_open_piece(cdp_fsdp *f, uint32_t image, uint32_t i) {
    cdp_fsdp_piece *p = &f->pieces[f->held_pieces];
    const cdp__fsdp_image *m = &f->images[image];
    const uint32_t unit = f->params[i].unit, frozen = f->params[i].frozen;
    const uint64_t *const counts = f->units[unit].range[frozen].counts;
    uint64_t start = 0, at;
    uint32_t k;
    for (k = 0; k < m->shard; ++k)
        start += counts[k];
    p->count = cdp__fsdp_overlap(f, i, start, counts[m->shard], &p->first);
    if (!p->count) return;
    p->param = i;
    at = cdp__fsdp_place(f, unit, frozen, image) + f->offset[i] + p->first - start;
    p->data = m->values + at;
    for (k = 0; k < CDP_FSDP_STATES && !frozen; ++k)
        p->state[k] = m->states[k] ? m->states[k] + at : NULL;
    p->grad = frozen ? NULL : m->means + at;
    ++f->held_pieces;
}

CDP__PRIVATE void cdp__fsdp_open_pieces(cdp_fsdp *f) {
    uint32_t image, unit, i;
    for (image = 0; image < f->image_count; ++image) {
        for (unit = 0; unit < f->unit_count; ++unit) {
            const uint32_t end = cdp__fsdp_end(&f->list, unit);
            for (i = cdp__fsdp_first(&f->list, unit); i < end; ++i)
                if (f->params[i].unit == unit) cdp__fsdp_open_piece(f, image, i);
        }
        if (!image) f->piece_count = f->held_pieces;
    }
}

/* ---- first values, saving and restoring ---- */

/* Moves pieces of one parameter between their owners and `root`. */
CDP__PRIVATE cdp_status cdp__fsdp_move(
    cdp_fsdp *f, cdp_coll_kind kind, uint32_t param, float *own, float *whole, uint32_t root) {
    const cdp__fsdp_unit *u = &f->units[f->params[param].unit];
    const cdp__fsdp_range *r = &u->range[f->params[param].frozen];
    const bool gathers = kind == CDP_COLL_GATHER, here = f->rank == root;
    uint64_t at = 0, first;
    cdp_work work;
    cdp_request rq;
    uint32_t i;
    cdp_status st;
    for (i = 0; i < f->ranks; ++i) {
        f->parts[i] = cdp__fsdp_overlap(f, param, at, r->counts[i], &first);
        at += r->counts[i];
    }
    memset(&rq, 0, sizeof rq);
    rq.kind = kind;
    rq.root = root;
    rq.in = own;
    rq.out = own;
    if (gathers) {
        rq.out = here ? whole : NULL;
        rq.out_counts = f->parts;
    } else {
        rq.in = here ? whole : NULL;
        rq.in_counts = f->parts;
    }
    st = cdp_start(f->gathers, &rq, &work);
    return st == CDP_OK ? cdp__fsdp_await(f, work) : st;
}

/* Where this rank's elements of a parameter are, in its values or one of its states. */
CDP__PRIVATE float *cdp__fsdp_own(cdp_fsdp *f, uint32_t param, uint32_t state) {
    cdp__fsdp_unit *u = &f->units[f->params[param].unit];
    const cdp__fsdp_range *r = &u->range[f->params[param].frozen];
    float *const base = state == CDP_FSDP_VALUES ? r->value : u->state[state];
    uint64_t first;
    if (!cdp__fsdp_overlap(f, param, r->start, r->own, &first)) return base;
    return base + (f->offset[param] + first - r->start);
}

/* Gives one parameter its first values. */
CDP__PRIVATE cdp_status cdp__fsdp_init_param(cdp_fsdp *f, const cdp_fsdp_desc *d, uint32_t i) {
    const cdp__fsdp_range *r = &f->units[f->params[i].unit].range[f->params[i].frozen];
    float *const own = cdp__fsdp_own(f, i, CDP_FSDP_VALUES);
    uint64_t first, count = cdp__fsdp_overlap(f, i, r->start, r->own, &first);
    if (!cdp__fsdp_count(&d->params[i])) return CDP_OK;
    if (f->params[i].init && d->own_init)
        memcpy(own, d->params[i].init + first, (size_t)(count * sizeof *own));
    else if (f->params[i].init)
        return cdp__fsdp_move(
            f, CDP_COLL_SCATTER, i, own, (float *)(uintptr_t)d->params[i].init, 0);
    else if (d->fill && count)
        d->fill(d->user, i, first, count, own);
    return CDP_OK;
}

/* Whether rank 0 has first values of its own decides for all ranks: one number per parameter. */
CDP__PRIVATE cdp_status cdp__fsdp_init(cdp_fsdp *f, const cdp_fsdp_desc *d, uint8_t *given) {
    cdp_status st = CDP_OK;
    uint32_t i;
    for (i = 0; i < d->param_count; ++i)
        given[i] = d->params[i].init != NULL;
    if (!d->own_init) st = cdp_broadcast(f->gathers, given, d->param_count, CDP_DTYPE_U8, 0);
    for (i = 0; i < d->param_count && st == CDP_OK; ++i) {
        static const float some = 0;
        f->params[i].init = given[i] ? &some : NULL; /* only whether there are any */
        st = cdp__fsdp_init_param(f, d, i);
        f->params[i].init = NULL;
    }
    if (st == CDP_OK && d->replicate && !d->own_init && f->value_count)
        st = cdp_broadcast(f->replicas, f->values, f->value_count, CDP_DTYPE_F32, 0);
    if (st == CDP_OK) st = cdp__fsdp_refill(f);
    return st == CDP_OK ? cdp__fsdp_cast(f) : st;
}

CDP__PRIVATE cdp_status cdp__fsdp_may_move(
    cdp_fsdp *f, const char *call, uint32_t param, uint32_t state, const void *values, bool here) {
    const cdp_status st = cdp__fsdp_may_change(f, call, false);
    if (st != CDP_OK) return st;
    if (param >= f->desc.param_count
        || (state != CDP_FSDP_VALUES
            && (state >= cdp__fsdp_states(&f->desc) || f->params[param].frozen)))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "%s: there is no parameter %u, or it has no state %u", call, param, state);
    if (here && !values && cdp__fsdp_count(&f->params[param]))
        return cdp__fsdp_missing(call, "values");
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__fsdp_check_root(const cdp_fsdp *f, const char *call, uint32_t root) {
    const cdp_status st = cdp__fsdp_alive(f, call);
    if (st != CDP_OK || root < f->ranks) return st;
    return cdp_error_set(
        CDP_ERR_INVALID, -1, 0, "%s: root %u is no rank of %u", call, root, f->ranks);
}

CDP_API cdp_status cdp_fsdp_save(
    cdp_fsdp *f, uint32_t param, uint32_t state, float *values, uint32_t root) {
    cdp_status st = cdp__fsdp_check_root(f, "cdp_fsdp_save", root);
    if (st == CDP_OK)
        st = cdp__fsdp_may_move(f, "cdp_fsdp_save", param, state, values, f->rank == root);
    if (st != CDP_OK || !cdp__fsdp_count(&f->params[param])) return st;
    st = cdp__fsdp_move(f, CDP_COLL_GATHER, param, cdp__fsdp_own(f, param, state), values, root);
    return cdp__fsdp_broken(f, st);
}

/* This rank's shard has other values: what was made of it is old. */
CDP__PRIVATE cdp_status cdp__fsdp_changed(cdp_fsdp *f, cdp_status st) {
    if (st == CDP_OK) st = cdp__fsdp_cast(f);
    if (st == CDP_OK) cdp__fsdp_forget_slots(f);
    f->filled = false; /* until the next step ends: many parameters are restored at a time */
    return cdp__fsdp_broken(f, st);
}

CDP_API cdp_status cdp_fsdp_restore(
    cdp_fsdp *f, uint32_t param, uint32_t state, const float *values, uint32_t root) {
    cdp_status st = cdp__fsdp_check_root(f, "cdp_fsdp_restore", root);
    if (st == CDP_OK)
        st = cdp__fsdp_may_move(f, "cdp_fsdp_restore", param, state, values, f->rank == root);
    if (st != CDP_OK || !cdp__fsdp_count(&f->params[param])) return st;
    st = cdp__fsdp_arrive_all(f);
    if (st == CDP_OK)
        st = cdp__fsdp_move(f, CDP_COLL_SCATTER, param, cdp__fsdp_own(f, param, state),
            (float *)(uintptr_t)values, root);
    return cdp__fsdp_changed(f, st);
}

CDP_API cdp_status cdp_fsdp_loaded(cdp_fsdp *f) {
    cdp_status st = cdp__fsdp_alive(f, "cdp_fsdp_loaded");
    if (st == CDP_OK) st = cdp__fsdp_may_change(f, "cdp_fsdp_loaded", false);
    if (st != CDP_OK) return st;
    return cdp__fsdp_changed(f, cdp__fsdp_arrive_all(f));
}

CDP_API uint32_t cdp_fsdp_piece_count(const cdp_fsdp *f) {
    return f && !cdp__ended(f) ? f->piece_count : 0;
}

CDP_API cdp_fsdp_piece cdp_fsdp_piece_at(const cdp_fsdp *f, uint32_t index) {
    cdp_fsdp_piece none;
    memset(&none, 0, sizeof none);
    return f && !cdp__ended(f) && index < f->piece_count ? f->pieces[index] : none;
}

CDP_API cdp_fsdp_stats cdp_fsdp_stats_of(const cdp_fsdp *f) {
    cdp_fsdp_stats none;
    memset(&none, 0, sizeof none);
    return f && !cdp__ended(f) ? f->stats : none;
}

/* ---- life ---- */

CDP__PRIVATE void cdp__fsdp_settle(cdp_fsdp *f) {
    uint32_t i;
    for (i = 0; f->units && i < f->unit_count; ++i)
        if (f->units[i].gathering) (void)!cdp_work_wait(f->units[i].gather);
    for (i = 0; f->units && i < f->unit_count; ++i)
        if (f->units[i].forwarding) (void)!cdp_work_wait(f->units[i].forward);
    for (i = 0; i < f->flights; ++i)
        (void)!cdp_work_wait(f->flight[i].work);
}

/* Frees what follows from shards: slots, and whole gradients. */
CDP__PRIVATE void cdp__fsdp_free_caches(cdp_fsdp *f) {
    uint32_t i;
    cdp__fsdp_forget_slots(f);
    for (i = 0; i < f->slot_count; ++i)
        cdp_group_free(f->gathers, f->slots[i].memory);
    for (i = 0; f->units && i < f->unit_count; ++i) {
        cdp__fsdp_unit *u = &f->units[i];
        const bool labelled = u->grad || u->reducing;
        cdp_group_free(f->gathers, u->own_grad);
        u->own_grad = u->grad = NULL;
        u->gathering = u->forwarding = false;
        u->reducing = 0;
        if (labelled) cdp__fsdp_label_gradients(f, u);
    }
    for (i = 0; i < CDP__FSDP_FLIGHTS; ++i) {
        cdp_group_free(f->gathers, f->pool[i]);
        cdp_group_free(f->gathers, f->narrow[i]);
        f->pool[i] = NULL;
        f->narrow[i] = NULL;
    }
    f->slot_count = f->flights = f->under_way = 0;
}

CDP__PRIVATE void cdp__fsdp_free_all(cdp_fsdp *f) {
    cdp_group *const g = f->gathers;
    uint32_t i;
    cdp__fsdp_free_caches(f);
    cdp__fsdp_free_images(f);
    for (i = 0; f->units && i < f->unit_count; ++i)
        cdp__fsdp_free(f, f->units[i].name);
    for (i = 0; f->params && i < f->desc.param_count; ++i)
        cdp__fsdp_free(f, (void *)(uintptr_t)f->params[i].name);
    for (i = 0; i < CDP_FSDP_STATES; ++i)
        cdp__fsdp_free(f, f->states[i]);
    cdp_group_free(g, f->values);
    cdp_group_free(g, f->means);
    cdp_group_free(g, f->copies);
    cdp__fsdp_free(f, f->params);
    cdp__fsdp_free(f, f->offset);
    cdp__fsdp_free(f, f->units);
    cdp__fsdp_free(f, f->pieces);
    cdp__fsdp_free(f, f->slots);
    cdp__fsdp_free(f, f->counts);
    cdp__fsdp_free(f, f->parts);
    cdp__fsdp_free(f, f->spans[0].events);
    cdp__fsdp_free(f, f->spans[1].events);
    cdp__fsdp_free(f, f->record);
    cdp__fsdp_free(f, f->next_record);
    cdp__fsdp_free(f, f);
}

CDP_API void cdp_fsdp_abort(cdp_fsdp *f, const char *reason) {
    if (!f || cdp__ended(f)) return;
    cdp__fsdp_abort_groups(f, reason);
    cdp_fsdp_abort(f->pending, reason);
    (void)cdp_error_set(
        CDP_ERR_ABORTED, -1, 0, CDP__ABORTED "%s", reason && *reason ? reason : "no reason given");
    (void)cdp__fsdp_broken(f, CDP_ERR_ABORTED);
}

CDP_API void cdp_fsdp_destroy(cdp_fsdp *f) {
    cdp_group *gathers;
    if (!f || cdp__ended(f)) return;
    cdp__ended_add(f);
    cdp_fsdp_destroy(f->pending);
    cdp__fsdp_settle(f);
    cdp_group_destroy(f->reductions);
    cdp_group_destroy(f->replicas);
    cdp_group_destroy(f->norms);
    cdp_group_destroy(f->buddies);
    gathers = f->gathers;
    cdp__fsdp_free_all(f);
    cdp_group_destroy(gathers); /* its memory goes with it */
}

/* A group of the same ranks. */
CDP__PRIVATE cdp_status cdp__fsdp_twin(const cdp_fsdp *f, cdp_group *of, cdp_group **out) {
    const uint32_t n = cdp_size(of);
    uint32_t *ranks = (uint32_t *)cdp__fsdp_alloc(f, n * sizeof *ranks), i;
    cdp_status st;
    if (!ranks) return cdp__fsdp_nomem("groups", n * sizeof *ranks);
    for (i = 0; i < n; ++i)
        ranks[i] = i;
    st = cdp_group_new(of, ranks, n, out);
    cdp__fsdp_free(f, ranks);
    return st;
}

CDP__PRIVATE cdp_status cdp__fsdp_open_groups(cdp_fsdp *f) {
    const cdp_fsdp_desc *d = &f->desc;
    cdp_status st = cdp__fsdp_twin(f, d->group, &f->gathers);
    if (st == CDP_OK) st = cdp__fsdp_twin(f, d->group, &f->reductions);
    if (st == CDP_OK && d->replicate) st = cdp__fsdp_twin(f, d->replicate, &f->replicas);
    if (st == CDP_OK && d->norm_group) st = cdp__fsdp_twin(f, d->norm_group, &f->norms);
    if (st == CDP_OK && f->image_count > 1) st = cdp__fsdp_twin(f, d->group, &f->buddies);
    if (st == CDP_OK && f->buddies)
        st = cdp_group_reserve(
            f->buddies, 2 * CDP_FSDP_COPIES * (uint32_t)cdp__min(64, f->unit_count));
    return st;
}

/* All that needs memory, without another rank. */
CDP__PRIVATE cdp_status cdp__fsdp_open_own(cdp_fsdp *f, uint8_t **given) {
    cdp_status st = cdp__fsdp_open_groups(f);
    uint32_t i;
    for (i = 0; i < f->unit_count; ++i)
        cdp__fsdp_cut_unit(f, i);
    if (st == CDP_OK) st = cdp__fsdp_open_shards(f);
    if (st == CDP_OK) st = cdp__fsdp_open_images(f);
    if (st == CDP_OK) st = cdp__fsdp_open_slots(f);
    *given = (uint8_t *)cdp__fsdp_alloc(f, f->desc.param_count);
    return st != CDP_OK || *given ? st : cdp__fsdp_nomem("first values", f->desc.param_count);
}

/* The ranks of desc.group agree already; those of the others do. What fails in norm_group is known
   to all ranks, so nobody votes in replicate then, where one of them may be missing. */
CDP__PRIVATE cdp_status cdp__fsdp_vote_wide(const cdp_fsdp_desc *d, cdp_status st) {
    if (d->norm_group) st = cdp__fsdp_vote(d->norm_group, st);
    if (st != CDP_OK && d->norm_group) return st;
    return d->replicate ? cdp__fsdp_vote(d->replicate, st) : st;
}

/* In a group that was never used, a rank that waits learns only after a second that another one has
   left; in one that was used, at once. */
CDP__PRIVATE cdp_status cdp__fsdp_use_groups(cdp_fsdp *f) {
    cdp_status st = cdp_barrier(f->gathers);
    if (st == CDP_OK) st = cdp_barrier(f->reductions);
    if (st == CDP_OK && f->replicas) st = cdp_barrier(f->replicas);
    if (st == CDP_OK && f->buddies) st = cdp_barrier(f->buddies);
    return st == CDP_OK && f->norms ? cdp_barrier(f->norms) : st;
}

CDP__PRIVATE cdp_status cdp__fsdp_open(cdp_fsdp *f, const cdp_fsdp_desc *d) {
    uint8_t *given = NULL;
    cdp_status st = cdp__fsdp_open_tables(f, d);
    f->desc.params = f->params;
    st = cdp__fsdp_vote(d->group, st);
    if (st == CDP_OK) st = cdp__fsdp_agree(f, d->group);
    st = cdp__fsdp_vote_wide(&f->desc, st);
    if (st != CDP_OK) return st;
    f->list = cdp__fsdp_list_of(&f->desc);
    if (d->replicate) st = cdp__fsdp_vote(d->group, cdp__fsdp_agree(f, d->replicate));
    if (st == CDP_OK) st = cdp__fsdp_open_own(f, &given);
    st = cdp__fsdp_vote_wide(d, cdp__fsdp_vote(d->group, st));
    if (st == CDP_OK) st = cdp__fsdp_use_groups(f);
    if (st == CDP_OK) {
        cdp__fsdp_open_pieces(f);
        f->stats.largest_share = cdp__fsdp_largest_share(&f->list, f->unit_count, f->ranks);
        f->desc.units = NULL; /* the caller's */
        f->spans[1].begin_ns = f->begin_ns = cdp__fsdp_now(f);
        if (!d->receive) st = cdp__fsdp_init(f, d, given);
    }
    cdp__fsdp_free(f, given);
    return st;
}

/* What may be said without memory. */
CDP__PRIVATE void cdp__fsdp_settings(cdp_fsdp *f, const cdp_os *os, const cdp_fsdp_desc *d) {
    cdp__ended_remove(f);
    memset(f, 0, sizeof *f);
    f->os = os;
    f->desc = *d;
    f->desc.compute = cdp__def(d->compute, CDP_DTYPE_F32);
    f->desc.reduce = cdp__def(d->reduce, CDP_DTYPE_F32);
    f->ranks = cdp_size(d->group);
    f->rank = cdp_rank(d->group);
    f->unit_count = cdp__fsdp_unit_count(d);
    f->distance = cdp__def(d->copy_distance, 1u);
    f->image_count = 1 + cdp__fsdp_copies(d->copies, f->distance, f->ranks);
    f->layout = f->seen = 1;
    f->turn = d->turn;
    f->own_divisor = d->divisor != 0;
    if (!f->own_divisor)
        f->desc.divisor = (double)f->ranks * (d->replicate ? cdp_size(d->replicate) : 1);
    f->last = CDP__FSDP_NONE;
    f->loss_scale = f->info.scale = 1;
}

#endif /* CDP_SRC_FSDP_CREATE_H */
