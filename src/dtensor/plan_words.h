/* dtensor/plan_words.h - plans as numbers that ranks compare

   Knows: layouts, meshes and plans. Promises: what means the same has the same numbers; ranks with
   different plans are told the first difference, and the group stays usable. */
#ifndef CDP_SRC_DTENSOR_PLAN_WORDS_H
#define CDP_SRC_DTENSOR_PLAN_WORDS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../group/messages_api.h"
#include "../group/works_api.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "../base/kept_error.h"
#include "../text/format.h"
#include "mesh_api.h"
#include "layout_api.h"
#include "plan_api.h"
#include "kit.h"
#include "grid.h"
#include "meshes.h"
#include "stages.h"

#define CDP__DT_TAG 0xcd700000u /* of all messages of plans */

/* The words of a layout: its tensor, its mesh, and some for each placement. */
#define CDP__DT_AT_SHAPE 2u
#define CDP__DT_AT_MESH (CDP__DT_AT_SHAPE + CDP_TENSOR_DIMS) /* ndim, host_ranks */
#define CDP__DT_AT_SIZES (CDP__DT_AT_MESH + 2u)
#define CDP__DT_AT_NAMES (CDP__DT_AT_SIZES + CDP_MESH_DIMS)
#define CDP__DT_AT_RANKS (CDP__DT_AT_NAMES + CDP_MESH_DIMS)
#define CDP__DT_AT_PLACES (CDP__DT_AT_RANKS + 1u)

/* The numbers of a layout in its simplest form. Names, ranks and cuts are hashes. */
CDP__DT void cdp__dt_layout_words(const cdp_layout *layout, uint64_t *w) {
    const cdp_layout plain = cdp__dt_plain(layout), *l = &plain;
    const cdp_mesh *m = l->mesh;
    memset(w, 0, CDP__DT_LAYOUT_WORDS * sizeof *w);
    w[0] = (uint64_t)l->dtype;
    w[1] = l->ndim;
    for (uint32_t d = 0; d < l->ndim; ++d)
        w[CDP__DT_AT_SHAPE + d] = l->shape[d];
    w[CDP__DT_AT_MESH] = m->desc.ndim;
    w[CDP__DT_AT_MESH + 1] = m->desc.host_ranks;
    w[CDP__DT_AT_RANKS] = m->ranks_hash;
    for (uint32_t by = 0; by < m->desc.ndim; ++by) {
        const cdp_place *p = &l->place[by];
        const uint64_t *starts = p->cut ? cdp__dt_cut_starts(m, p->cut) : NULL;
        uint64_t *x = w + CDP__DT_AT_PLACES + CDP__DT_PLACE_WORDS * by;
        w[CDP__DT_AT_SIZES + by] = m->desc.shape[by];
        w[CDP__DT_AT_NAMES + by] = m->name_hash[by];
        x[0] = (uint64_t)p->kind;
        if (p->kind == CDP_PLACE_PARTIAL) x[2] = (uint64_t)cdp__dt_op(p);
        if (p->kind != CDP_PLACE_SHARD) continue;
        x[1] = cdp__dt_dim(l, by);
        x[3] = p->order;
        x[4] = p->block;
        if (starts) x[5] = cdp__dt_hash(starts, m->desc.shape[by] + 1ull);
    }
}

/* Names a word of a layout, like "shape[1]" or "place[0].dim". True: its values are numbers of the
   program, and not hashes. */
CDP__DT bool cdp__dt_layout_word_name(uint32_t word, cdp__text *t) {
    static const char *const members[CDP__DT_PLACE_WORDS] = {
        "kind", "dim", "op", "order", "block", "cut"};
    const uint32_t at = word < CDP__DT_AT_PLACES ? 0 : word - CDP__DT_AT_PLACES;
    const uint32_t member = at % CDP__DT_PLACE_WORDS;
    if (word < CDP__DT_AT_SHAPE)
        cdp__text_add(t, "%s", word ? "ndim" : "dtype");
    else if (word < CDP__DT_AT_MESH)
        cdp__text_add(t, "shape[%u]", word - CDP__DT_AT_SHAPE);
    else if (word < CDP__DT_AT_SIZES)
        cdp__text_add(t, "mesh.%s", word == CDP__DT_AT_MESH ? "ndim" : "host_ranks");
    else if (word < CDP__DT_AT_NAMES)
        cdp__text_add(t, "mesh.shape[%u]", word - CDP__DT_AT_SIZES);
    else if (word < CDP__DT_AT_RANKS)
        cdp__text_add(t, "mesh.names[%u]", word - CDP__DT_AT_NAMES);
    else if (word < CDP__DT_AT_PLACES)
        cdp__text_add(t, "mesh.ranks");
    else
        cdp__text_add(t, "place[%u].%s", at / CDP__DT_PLACE_WORDS, members[member]);
    if (word >= CDP__DT_AT_PLACES) return member < 5;
    return word < CDP__DT_AT_NAMES;
}

/* The error for ranks `a` and `b`; values: NULL if these would say nothing. */
CDP__DT cdp_status cdp__dt_words_differ(
    const char *what, const uint64_t *values, const char *name, uint32_t a, uint32_t b) {
    if (!values)
        return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)b, 0,
            "%s: %s is not the same on ranks %u and %u", what, name, a, b);
    return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)b, 0,
        "%s: %s is %llu on rank %u and %llu on rank %u", what, name, (unsigned long long)values[0],
        a, (unsigned long long)values[1], b);
}

/* The words of a plan: how it moves, its two layouts, and how many stages it has. */
CDP__DT void cdp__dt_plan_words(const cdp_plan_desc *d, uint64_t stages, uint64_t *w) {
    const bool one = d->from_one || d->to_one;
    w[0] = (uint64_t)d->kind << 34 | (uint64_t)d->from_one << 33 | (uint64_t)d->to_one << 32
        | (one ? d->root : 0);
    cdp__dt_layout_words(&d->from, w + 1);
    cdp__dt_layout_words(&d->to, w + 1 + CDP__DT_LAYOUT_WORDS);
    w[CDP__DT_KEY_WORDS - 1] = stages;
}

CDP__DT bool cdp__dt_plan_word_name(uint32_t word, cdp__text *t) {
    if (word == 0) cdp__text_add(t, "kind, from_one, to_one or root");
    if (word == CDP__DT_KEY_WORDS - 1)
        cdp__text_add(t, "the steps, as a number that follows from desc.net,");
    if (word == 0 || word == CDP__DT_KEY_WORDS - 1) return true;
    cdp__text_add(t, word <= CDP__DT_LAYOUT_WORDS ? "from." : "to.");
    return cdp__dt_layout_word_name((word - 1) % CDP__DT_LAYOUT_WORDS, t);
}

/* What all ranks compare by one number each: the plan, and the meshes in it. */
typedef struct cdp__dt_sums {
    uint64_t plan, mesh;
    bool same, same_mesh;
} cdp__dt_sums;

CDP__DT void cdp__dt_sums_of(const uint64_t *words, cdp__dt_sums *s) {
    const uint64_t *from = words + 1, *to = from + CDP__DT_LAYOUT_WORDS;
    const uint32_t count = CDP__DT_AT_PLACES - CDP__DT_AT_MESH;
    memset(s, 0, sizeof *s);
    s->plan = cdp__dt_hash(words, CDP__DT_KEY_WORDS);
    s->mesh = cdp__dt_hash(from + CDP__DT_AT_MESH, count) * 31
        + cdp__dt_hash(to + CDP__DT_AT_MESH, count);
}

/* Finds out whether all ranks of the group have the same numbers. The messages are those of plans:
   a rank that runs another plan at this time, which was compared long ago, takes one of them and
   finds that it is none of its own. */
CDP__DT cdp_status cdp__dt_same_everywhere(cdp_group *g, cdp__dt_sums *s) {
    const uint32_t n = cdp_size(g), me = cdp_rank(g);
    uint64_t range[4] = {s->plan, s->plan, s->mesh, s->mesh}, got[4];
    cdp_status st = CDP_OK;
    for (uint64_t step = 1; st == CDP_OK && step < n; step *= 2) {
        st = cdp_sendrecv(g, range, 4, (uint32_t)((me + step) % n), got, 4,
            (uint32_t)((me + n - step) % n), CDP_DTYPE_U64, CDP__DT_TAG);
        for (uint32_t k = 0; k < 4; k += 2) {
            range[k] = cdp__min(range[k], got[k]);
            range[k + 1] = cdp__max(range[k + 1], got[k + 1]);
        }
    }
    s->same = range[0] == range[1];
    s->same_mesh = range[2] == range[3];
    return st;
}

/* An allreduce in the group of a plan, and one in that of each dimension of its meshes, which are
   there to differ from all collectives of plans. A rank that runs such a plan, which was compared
   long ago, takes no message of cdp__dt_same_everywhere(): it meets one of these. */
typedef struct cdp__dt_meeting {
    cdp_group *all, *group; /* of the plan; that of this meeting */
    cdp_work met, spread;   /* spread: all ranks of the plan are told of a failure */
    uint32_t over;          /* atomic: it is not to fail the plan any more */
    uint64_t sums[3];
} cdp__dt_meeting;

typedef struct cdp__dt_meetings {
    uint32_t count;
    cdp__dt_meeting meeting[2 * CDP_MESH_DIMS + 1];
} cdp__dt_meetings;

/* Called when a meeting is done, in the thread that makes progress. What has failed in the group of
   a dimension fails the group of the plan, in which all ranks wait, for the same cause. */
CDP__DT cdp_status cdp__dt_meeting_done(void *user, cdp_status status) {
    cdp__dt_meeting *x = (cdp__dt_meeting *)user;
    cdp_request rq;
    cdp_work told;
    if (status == CDP_OK || x->group == x->all) return CDP_OK;
    if (cdp__atomic_load_u32(&x->over, CDP__ACQUIRE)) return CDP_OK;
    memset(&rq, 0, sizeof rq);
    rq.kind = CDP_COLL_BARRIER;
    const cdp_status st = cdp_start_after(x->all, &rq, x->met, &told);
    (void)st; /* refused: the group of the plan has failed already */
    return CDP_OK;
}

CDP__DT cdp_status cdp__dt_meeting_start(
    cdp__dt_meetings *all, const cdp_plan *p, cdp_group *group) {
    for (uint32_t k = 0; k < all->count; ++k)
        if (all->meeting[k].group == group) return CDP_OK;
    cdp__dt_meeting *x = &all->meeting[all->count++];
    x->all = p->group;
    x->group = group;
    const cdp_status st =
        cdp_allreduce_async(group, x->sums, x->sums, 3, CDP_DTYPE_U64, CDP_REDUCE_BXOR, &x->met);
    return st == CDP_OK ? cdp_work_then(x->met, cdp__dt_meeting_done, x, &x->spread) : st;
}

CDP__DT cdp_status cdp__dt_meetings_start(cdp__dt_meetings *all, const cdp_plan *p) {
    const cdp_mesh *meshes[2];
    memset(all, 0, sizeof *all);
    meshes[0] = p->mesh;
    meshes[1] = p->desc.to.mesh;
    cdp_status st = cdp__dt_meeting_start(all, p, p->group);
    for (uint32_t k = 0; k < (cdp__dt_mesh_same(meshes[0], meshes[1]) ? 1u : 2u); ++k)
        for (uint32_t d = 0; st == CDP_OK && d < meshes[k]->desc.ndim; ++d)
            if (meshes[k]->link[d] && cdp__dt_link_usable(meshes[k], d))
                st = cdp__dt_meeting_start(all, p, meshes[k]->link[d]->group);
    return st;
}

/* Breaks the group of a meeting: for the cause for which the group of the plan has failed, if that
   has. */
CDP__DT void cdp__dt_meeting_break(
    const cdp__dt_meeting *x, const cdp__dt_meeting *first, const char *why) {
    cdp_request rq;
    cdp_work told;
    memset(&rq, 0, sizeof rq);
    rq.kind = CDP_COLL_BARRIER;
    const bool same = x != first && cdp_group_status(x->all) != CDP_OK
        && cdp_start_after(x->group, &rq, first->met, &told) == CDP_OK;
    if (!same) cdp_group_abort(x->group, why);
}

/* Waits for the meetings, whose memory ends here. `broken`: they may not come, so what is still to
   come breaks its group. */
CDP__DT cdp_status cdp__dt_meetings_end(cdp__dt_meetings *all, cdp_status st, bool broken) {
    const cdp_error why = *cdp_last_error();
    for (uint32_t k = 0; k < all->count; ++k) {
        cdp__dt_meeting *x = &all->meeting[k];
        if (broken) cdp__atomic_store_u32(&x->over, 1, CDP__RELEASE);
        if (broken && x->met.seq && cdp_work_test(x->met) == CDP_PENDING)
            cdp__dt_meeting_break(x, &all->meeting[0], why.text);
        const cdp_status met = x->met.seq ? cdp_work_wait(x->met) : CDP_OK;
        const cdp_status spread = x->spread.seq ? cdp_work_wait(x->spread) : CDP_OK;
        (void)spread; /* `met` says what went wrong */
        if (!broken && st == CDP_OK) st = met;
    }
    if (st == CDP_OK || !broken) return st;
    return cdp__error_again(st, &why);
}

/* Names the first difference; *st stays OK if there is none. */
CDP__DT cdp_status cdp__dt_plan_differs(const cdp_plan *p, const uint64_t *words) {
    uint64_t values[2];
    char name[80];
    uint32_t rank, word;
    const cdp_status st =
        cdp__dt_agree(p->group, p->os, words, CDP__DT_KEY_WORDS, &rank, &word, values);
    if (st != CDP_OK || rank == CDP__DT_NONE) return st;
    cdp__text t = cdp__text_of(name, sizeof name);
    const bool plain = cdp__dt_plan_word_name(word, &t);
    (void)cdp__text_end(&t);
    return cdp__dt_words_differ("plan: ranks run different plans", plain ? values : NULL, name,
        p->link->ranks[0], p->link->ranks[rank]);
}

/* What ranks choose by predicted times: how many stages there are, and in a bit each, which are
   collectives. */
CDP__DT uint64_t cdp__dt_form(const cdp_plan *p) {
    uint64_t form = p->stage_count;
    for (uint32_t k = 0; p->calls && k < p->stage_count; ++k) {
        const cdp__dt_stage *s = &p->stages[k];
        if (s->single.kind || s->sum.terms) form |= 1ull << (8 + k);
    }
    return form;
}

/* Checks that all ranks run the same plan. */
CDP__DT cdp_status cdp__dt_plan_compare(cdp_plan *p) {
    uint64_t words[CDP__DT_KEY_WORDS];
    cdp__dt_meetings meetings;
    cdp__dt_sums sums;
    cdp__dt_plan_words(&p->desc, cdp__dt_form(p), words);
    cdp__dt_sums_of(words, &sums);
    cdp_status st = cdp__dt_meetings_start(&meetings, p);
    if (st == CDP_OK) st = cdp__dt_same_everywhere(p->group, &sums);
    const bool failed = st != CDP_OK;
    if (st == CDP_OK && !sums.same) st = cdp__dt_plan_differs(p, words);
    st = cdp__dt_meetings_end(&meetings, st, failed || !sums.same_mesh);
    if (st == CDP_OK) p->compared = sums.same;
    return st;
}

#endif /* CDP_SRC_DTENSOR_PLAN_WORDS_H */
