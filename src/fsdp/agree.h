/* fsdp/agree.h - ranks compare their descs

   Knows: a desc on every rank. Promises: a difference is named, with both ranks, before anything
   else is sent. */
#ifndef CDP_SRC_FSDP_AGREE_H
#define CDP_SRC_FSDP_AGREE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../group/vote.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "../text/format.h"
#include "fsdp_api.h"
#include "checks.h"
#include "state.h"

#define CDP__FSDP_LINE 320u /* bytes of a text about a parameter or a unit */
#define CDP__FSDP_SHOWN 48u /* of a name in it */

enum {
    CDP__FSDP_GROUPS = 12, /* the first of the words about groups */
    CDP__FSDP_PLACE = 20,  /* the word that only ranks of desc.replicate compare */
    CDP__FSDP_WORDS = 22
};

#define CDP__FSDP_HASH 0xcbf29ce484222325u

CDP__PRIVATE uint64_t cdp__fsdp_hash(uint64_t h, const void *data, uint64_t bytes) {
    const uint8_t *at = (const uint8_t *)data;
    for (; bytes; --bytes)
        h = (h ^ *at++) * 0x100000001b3u;
    return h;
}

/* All settings of an optimizer: shards with different ones would be updated differently. `later`: a
   newcomer gets its step, and a schedule may have gone on on some ranks. */
CDP__PRIVATE uint64_t cdp__fsdp_optim_hash(const cdp_optim *o, bool later) {
    const double numbers[] = {later ? 0 : o->lr, o->momentum, o->dampening, o->beta1, o->beta2,
        o->alpha, o->eps, o->weight_decay, o->lr_decay, o->initial};
    const uint64_t others[] = {(uint64_t)o->kind, later ? 0 : o->step, o->nesterov, o->amsgrad,
        o->centered, o->maximize, o->fma};
    return cdp__fsdp_hash(
        cdp__fsdp_hash(CDP__FSDP_HASH, numbers, sizeof numbers), others, sizeof others);
}

/* All ranks of a group learn whether one of them cannot go on, which, and why. */
CDP__PRIVATE cdp_status cdp__fsdp_vote(cdp_group *g, cdp_status own) {
    return cdp__vote(g, own, "cdp_fsdp_create");
}

/* The settings that have to be equal, and a sum of all parameters and units. */
CDP__PRIVATE void cdp__fsdp_words(
    const cdp_fsdp *f, cdp_group *g, uint64_t hash, uint64_t *word, const char **name) {
    static const char *const names[CDP__FSDP_WORDS] = {"param_count", "unit_count", "stage",
        "compute", "reduce", "states", "optim", "update", "prefetch", "no_prefetch",
        "skip_nonfinite", "own_init", "replicate", "norm_group", "max_norm", "divisor", "fill",
        "copies", "copy_distance", "receive", "", ""};
    const cdp_fsdp_desc *d = &f->desc;
    uint32_t i;
    word[0] = d->param_count;
    word[1] = f->unit_count;
    word[2] = (uint64_t)d->stage;
    word[3] = (uint64_t)d->compute;
    word[4] = (uint64_t)d->reduce;
    word[5] = cdp__fsdp_states(d);
    word[6] = d->optim ? cdp__fsdp_optim_hash(d->optim, d->receive) : 0;
    word[7] = d->update != NULL;
    word[8] = d->prefetch;
    word[9] = d->no_prefetch;
    word[10] = d->skip_nonfinite;
    word[11] = d->own_init;
    word[CDP__FSDP_GROUPS] = d->replicate ? cdp_size(d->replicate) : 0;
    word[CDP__FSDP_GROUPS + 1] = d->norm_group ? cdp_size(d->norm_group) : 0;
    memcpy(&word[14], &d->max_norm, sizeof d->max_norm);
    memcpy(&word[15], &d->divisor, sizeof d->divisor);
    word[16] = d->fill != NULL;
    word[17] = d->copies;
    word[18] = f->distance;
    word[19] = d->receive;
    word[CDP__FSDP_PLACE] = g == d->replicate ? (uint64_t)f->ranks << 32 | f->rank : 0;
    word[CDP__FSDP_PLACE + 1] = hash;
    for (i = 0; i < CDP__FSDP_WORDS; ++i)
        name[i] = names[i];
}

/* The name of what a line is about. */
CDP__PRIVATE const char *cdp__fsdp_line_name(const cdp_fsdp *f, uint32_t i) {
    return i < f->desc.param_count ? f->params[i].name : f->units[i - f->desc.param_count].name;
}

/* A line about parameter `i`, or, after the last one, about unit `i - param_count`. */
CDP__PRIVATE void cdp__fsdp_line(const cdp_fsdp *f, uint32_t i, char *out) {
    cdp__text t = cdp__text_of(out, CDP__FSDP_LINE);
    const char *const name = cdp__fsdp_line_name(f, i);
    const uint64_t length = strlen(name);
    uint32_t d;
    memset(out, 0, CDP__FSDP_LINE);
    cdp__text_add(&t, i < f->desc.param_count ? "'" : "unit '");
    cdp__text_bytes(&t, name, cdp__min(length, CDP__FSDP_SHOWN));
    cdp__text_add(&t, length > CDP__FSDP_SHOWN ? "...'" : "'");
    if (i >= f->desc.param_count) {
        const cdp__fsdp_unit *u = &f->units[i - f->desc.param_count];
        cdp__text_add(&t, " with uses %u%s", u->uses, u->keep ? ", kept" : "");
        return;
    }
    cdp__text_add(&t, " [");
    for (d = 0; d < f->params[i].ndim; ++d)
        cdp__text_add(&t, "%s%llu", d ? "x" : "", (unsigned long long)f->params[i].shape[d]);
    cdp__text_add(&t, "] in unit %u, grain %llu%s%s", f->params[i].unit,
        (unsigned long long)cdp__fsdp_grain(&f->params[i]), f->params[i].frozen ? ", frozen" : "",
        f->params[i].copy ? ", a copy" : "");
}

/* Finds the first parameter or unit that rank `other` has otherwise than rank 0, and names it. */
CDP__PRIVATE cdp_status cdp__fsdp_name_difference(
    cdp_fsdp *f, cdp_group *g, uint32_t other, uint64_t *own) {
    const uint64_t n = f->desc.param_count + (uint64_t)f->unit_count, ranks = cdp_size(g);
    uint64_t *all = (uint64_t *)cdp__fsdp_alloc(f, ranks * n * sizeof *all);
    char *lines = (char *)cdp__fsdp_alloc(f, ranks * CDP__FSDP_LINE), mine[CDP__FSDP_LINE];
    cdp_status st = all && lines ? CDP_OK : cdp__fsdp_nomem("comparing", ranks * n * sizeof *all);
    uint32_t i = 0;
    st = cdp__fsdp_vote(g, st);
    if (st == CDP_OK) st = cdp_allgather(g, own, all, n, CDP_DTYPE_U64);
    while (st == CDP_OK && i + 1 < n && all[i] == all[other * n + i])
        ++i;
    if (st == CDP_OK) {
        cdp__fsdp_line(f, i, mine);
        st = cdp_allgather(g, mine, lines, CDP__FSDP_LINE, CDP_DTYPE_U8);
    }
    if (st == CDP_OK)
        st = cdp_error_set(CDP_ERR_MISMATCH, (int32_t)cdp_world_rank_of(g, other), 0,
            "cdp_fsdp_create: ranks have different models: parameter or unit %u is %s on rank %u, "
            "but %s on rank %u; give every rank the same in the same order",
            i, lines, cdp_world_rank_of(g, 0), lines + other * CDP__FSDP_LINE,
            cdp_world_rank_of(g, other));
    cdp__fsdp_free(f, all);
    cdp__fsdp_free(f, lines);
    return st;
}

/* Whether this rank alone is in both groups, as far as ranks of their worlds tell. */
CDP__PRIVATE bool cdp__fsdp_meet_once(cdp_group *a, cdp_group *b) {
    uint32_t i, common = 0;
    for (i = 0; i < cdp_size(a); ++i)
        common += cdp_rank_of_world(b, cdp_world_rank_of(a, i)) != UINT32_MAX;
    return common == 1;
}

/* Groups that not all ranks of `g` name: nobody may wait where others do not come. A group of
   copies that has no other rank of `g` is told nevertheless: its ranks cannot learn otherwise. */
CDP__PRIVATE void cdp__fsdp_leave_groups(cdp_fsdp *f, cdp_group *g, const uint64_t *all) {
    cdp_fsdp_desc *d = &f->desc;
    uint32_t r;
    for (r = 1; r < cdp_size(g); ++r) {
        const uint64_t *other = all + (uint64_t)r * CDP__FSDP_WORDS + CDP__FSDP_GROUPS;
        if (other[0] != all[CDP__FSDP_GROUPS] && d->replicate
            && !cdp__fsdp_meet_once(g, d->replicate))
            d->replicate = NULL;
        if (other[1] != all[CDP__FSDP_GROUPS + 1]) d->norm_group = NULL;
    }
}

CDP__PRIVATE cdp_status cdp__fsdp_compare(
    cdp_fsdp *f, cdp_group *g, uint64_t *own, uint64_t *all, uint64_t hash) {
    uint64_t word[CDP__FSDP_WORDS];
    const char *name[CDP__FSDP_WORDS];
    uint32_t r, k;
    cdp_status st;
    cdp__fsdp_words(f, g, hash, word, name);
    st = cdp_allgather(g, word, all, CDP__FSDP_WORDS, CDP_DTYPE_U64);
    if (st == CDP_OK) cdp__fsdp_leave_groups(f, g, all);
    for (r = 1; st == CDP_OK && r < cdp_size(g); ++r) {
        const uint64_t *other = all + (uint64_t)r * CDP__FSDP_WORDS;
        for (k = 0; k + 1 < CDP__FSDP_WORDS && other[k] == all[k]; ++k) {
        }
        if (k == CDP__FSDP_PLACE)
            return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)cdp_world_rank_of(g, r), 0,
                "cdp_fsdp_create: rank %u of desc.replicate is rank %u of %u in its "
                "desc.group, but rank 0 is rank %u of %u; copies of a shard have the same place "
                "in groups of one size",
                r, (uint32_t)other[k], (uint32_t)(other[k] >> 32), (uint32_t)all[k],
                (uint32_t)(all[k] >> 32));
        if (k + 1 < CDP__FSDP_WORDS)
            return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)cdp_world_rank_of(g, r), 0,
                "cdp_fsdp_create: desc.%s is another one on rank %u than on rank %u%s; give every "
                "rank the same",
                name[k], cdp_world_rank_of(g, r), cdp_world_rank_of(g, 0),
                k < 2 ? ", so are their models" : "");
        if (other[k] != all[k]) return cdp__fsdp_name_difference(f, g, r, own);
    }
    return st;
}

CDP__PRIVATE cdp_status cdp__fsdp_agree(cdp_fsdp *f, cdp_group *g) {
    const uint32_t n = f->desc.param_count + f->unit_count;
    uint64_t *own = (uint64_t *)cdp__fsdp_alloc(f, n * sizeof *own);
    uint64_t *all =
        (uint64_t *)cdp__fsdp_alloc(f, (uint64_t)cdp_size(g) * CDP__FSDP_WORDS * sizeof *all);
    uint64_t hash = CDP__FSDP_HASH;
    char line[CDP__FSDP_LINE];
    uint32_t i;
    cdp_status st = CDP_OK;
    if (!own || !all) st = cdp__fsdp_nomem("comparing", n * sizeof *own);
    st = cdp__fsdp_vote(g, st);
    for (i = 0; i < n && st == CDP_OK; ++i) {
        const char *const whole = cdp__fsdp_line_name(f, i); /* which a line may shorten */
        cdp__fsdp_line(f, i, line);
        own[i] = cdp__fsdp_hash(CDP__FSDP_HASH, line, strlen(line));
        own[i] = cdp__fsdp_hash(own[i], whole, strlen(whole));
        hash = cdp__fsdp_hash(hash, &own[i], sizeof own[i]);
    }
    if (st == CDP_OK) st = cdp__fsdp_compare(f, g, own, all, hash);
    cdp__fsdp_free(f, own);
    cdp__fsdp_free(f, all);
    return st;
}

#endif /* CDP_SRC_FSDP_AGREE_H */
