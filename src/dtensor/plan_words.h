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
#include "../base/helpers.h"
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
        cdp__text_add(t, "the number of steps, which follows from desc.net,");
    if (word == 0 || word == CDP__DT_KEY_WORDS - 1) return true;
    cdp__text_add(t, word <= CDP__DT_LAYOUT_WORDS ? "from." : "to.");
    return cdp__dt_layout_word_name((word - 1) % CDP__DT_LAYOUT_WORDS, t);
}

/* Finds out whether all ranks of the group have the same number. The messages are those of plans:
   a rank that runs another plan at this time, which was compared long ago, takes one of them and
   finds that it is none of its own. If that plan is one collective, it takes no message: it meets
   the allreduce, which is only there to differ from all collectives of plans. */
CDP__DT cdp_status cdp__dt_same_everywhere(cdp_group *g, uint64_t number, bool *same) {
    const uint32_t n = cdp_size(g), me = cdp_rank(g);
    uint64_t range[2] = {number, number}, got[2];
    uint64_t sums[3] = {0, 0, 0};
    cdp_work meeting;
    cdp_status st = cdp_allreduce_async(g, sums, sums, 3, CDP_DTYPE_U64, CDP_REDUCE_BXOR, &meeting);
    if (st != CDP_OK) return st;
    for (uint64_t step = 1; st == CDP_OK && step < n; step *= 2) {
        st = cdp_sendrecv(g, range, 2, (uint32_t)((me + step) % n), got, 2,
            (uint32_t)((me + n - step) % n), CDP_DTYPE_U64, CDP__DT_TAG);
        range[0] = cdp__min(range[0], got[0]);
        range[1] = cdp__max(range[1], got[1]);
    }
    *same = range[0] == range[1];
    const cdp_status met = cdp_work_wait(meeting); /* `sums` ends here, also after a failure */
    return st == CDP_OK ? met : st;
}

/* Checks that all ranks run the same plan. */
CDP__DT cdp_status cdp__dt_plan_compare(cdp_plan *p) {
    uint64_t words[CDP__DT_KEY_WORDS], values[2];
    char name[80];
    uint32_t rank, word;
    bool same;
    cdp__dt_plan_words(&p->desc, p->stage_count, words);
    cdp_status st =
        cdp__dt_same_everywhere(p->group, cdp__dt_hash(words, CDP__DT_KEY_WORDS), &same);
    if (st == CDP_OK) p->compared = same;
    if (st != CDP_OK || same) return st;
    st = cdp__dt_agree(p->group, p->os, words, CDP__DT_KEY_WORDS, &rank, &word, values);
    if (st != CDP_OK || rank == CDP__DT_NONE) return st;
    cdp__text t = cdp__text_of(name, sizeof name);
    const bool plain = cdp__dt_plan_word_name(word, &t);
    (void)cdp__text_end(&t);
    return cdp__dt_words_differ("plan: ranks run different plans", plain ? values : NULL, name,
        p->link->ranks[0], p->link->ranks[rank]);
}

#endif /* CDP_SRC_DTENSOR_PLAN_WORDS_H */
