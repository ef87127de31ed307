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
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "../text/format.h"
#include "fsdp_api.h"
#include "checks.h"
#include "state.h"

#define CDP__FSDP_LINE 160u /* bytes of a text about a parameter or a unit */

enum {
    CDP__FSDP_WORDS = 13
};

/* The settings that have to be equal, and a sum of all parameters and units. */
CDP__PRIVATE void cdp__fsdp_words(
    const cdp_fsdp *f, uint64_t hash, uint64_t *word, const char **name) {
    static const char *const names[CDP__FSDP_WORDS] = {"param_count", "unit_count", "stage",
        "compute", "reduce", "optim or states", "update", "prefetch", "no_prefetch",
        "skip_nonfinite", "max_norm", "divisor", ""};
    const cdp_fsdp_desc *d = &f->desc;
    uint32_t i;
    word[0] = d->param_count;
    word[1] = f->unit_count;
    word[2] = (uint64_t)d->stage;
    word[3] = (uint64_t)d->compute;
    word[4] = (uint64_t)d->reduce;
    word[5] = cdp__fsdp_states(d);
    word[6] = d->update != NULL;
    word[7] = d->prefetch;
    word[8] = d->no_prefetch;
    word[9] = d->skip_nonfinite;
    memcpy(&word[10], &d->max_norm, sizeof d->max_norm);
    memcpy(&word[11], &d->divisor, sizeof d->divisor);
    word[12] = hash;
    for (i = 0; i < CDP__FSDP_WORDS; ++i)
        name[i] = names[i];
}

/* A line about parameter `i`, or, after the last one, about unit `i - param_count`. */
CDP__PRIVATE void cdp__fsdp_line(const cdp_fsdp *f, uint32_t i, char *out) {
    cdp__text t = cdp__text_of(out, CDP__FSDP_LINE);
    uint32_t d;
    memset(out, 0, CDP__FSDP_LINE);
    if (i >= f->desc.param_count) {
        const cdp__fsdp_unit *u = &f->units[i - f->desc.param_count];
        cdp__text_add(&t, "unit '%s' with uses %u%s", u->name, u->uses, u->keep ? ", kept" : "");
        return;
    }
    cdp__text_add(&t, "'%s' [", f->params[i].name);
    for (d = 0; d < f->params[i].ndim; ++d)
        cdp__text_add(&t, "%s%llu", d ? "x" : "", (unsigned long long)f->params[i].shape[d]);
    cdp__text_add(&t, "] in unit %u, grain %llu%s", f->params[i].unit,
        (unsigned long long)cdp__fsdp_grain(&f->params[i]), f->params[i].frozen ? ", frozen" : "");
}

CDP__PRIVATE uint64_t cdp__fsdp_hash(uint64_t h, const char *line) {
    for (; *line; ++line)
        h = (h ^ (uint8_t)*line) * 0x100000001b3u;
    return h;
}

/* Finds the first parameter or unit that rank `other` has otherwise than rank 0, and names it. */
CDP__PRIVATE cdp_status cdp__fsdp_name_difference(
    cdp_fsdp *f, cdp_group *g, uint32_t other, uint64_t *own) {
    const uint64_t n = f->desc.param_count + (uint64_t)f->unit_count, ranks = cdp_size(g);
    uint64_t *all = (uint64_t *)cdp__fsdp_alloc(f, ranks * n * sizeof *all);
    char *lines = (char *)cdp__fsdp_alloc(f, ranks * CDP__FSDP_LINE), mine[CDP__FSDP_LINE];
    cdp_status st = all && lines ? CDP_OK : cdp__fsdp_nomem("comparing", ranks * n * sizeof *all);
    uint32_t i = 0;
    if (st == CDP_OK) st = cdp_allgather(g, own, all, n, CDP_DTYPE_U64);
    while (st == CDP_OK && i + 1 < n && all[i] == all[other * n + i])
        ++i;
    if (st == CDP_OK) {
        cdp__fsdp_line(f, i, mine);
        st = cdp_allgather(g, mine, lines, CDP__FSDP_LINE, CDP_DTYPE_U8);
    }
    if (st == CDP_OK)
        st = cdp_error_set(CDP_ERR_MISMATCH, (int32_t)other, 0,
            "cdp_fsdp_create: ranks have different models: parameter or unit %u is %s on rank 0, "
            "but %s on rank %u; give every rank the same in the same order",
            i, lines, lines + other * CDP__FSDP_LINE, other);
    cdp__fsdp_free(f, all);
    cdp__fsdp_free(f, lines);
    return st;
}

CDP__PRIVATE cdp_status cdp__fsdp_compare(
    cdp_fsdp *f, cdp_group *g, uint64_t *own, uint64_t *all, uint64_t hash) {
    uint64_t word[CDP__FSDP_WORDS];
    const char *name[CDP__FSDP_WORDS];
    uint32_t r, k;
    cdp_status st;
    cdp__fsdp_words(f, hash, word, name);
    st = cdp_allgather(g, word, all, CDP__FSDP_WORDS, CDP_DTYPE_U64);
    for (r = 1; st == CDP_OK && r < cdp_size(g); ++r) {
        const uint64_t *other = all + (uint64_t)r * CDP__FSDP_WORDS;
        for (k = 0; k + 1 < CDP__FSDP_WORDS && other[k] == all[k]; ++k) {
        }
        if (k + 1 < CDP__FSDP_WORDS)
            return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)r, 0,
                "cdp_fsdp_create: desc.%s is another one on rank %u than on rank 0%s; give every "
                "rank the same",
                name[k], r, k < 2 ? ", so are their models" : "");
        if (other[k] != all[k]) return cdp__fsdp_name_difference(f, g, r, own);
    }
    return st;
}

CDP__PRIVATE cdp_status cdp__fsdp_agree(cdp_fsdp *f, cdp_group *g) {
    const uint32_t n = f->desc.param_count + f->unit_count;
    uint64_t *own = (uint64_t *)cdp__fsdp_alloc(f, n * sizeof *own);
    uint64_t *all =
        (uint64_t *)cdp__fsdp_alloc(f, (uint64_t)cdp_size(g) * CDP__FSDP_WORDS * sizeof *all);
    uint64_t hash = 0xcbf29ce484222325u;
    char line[CDP__FSDP_LINE];
    uint32_t i;
    cdp_status st = CDP_OK;
    if (!own || !all) st = cdp__fsdp_nomem("comparing", n * sizeof *own);
    for (i = 0; i < n && st == CDP_OK; ++i) {
        cdp__fsdp_line(f, i, line);
        own[i] = cdp__fsdp_hash(0xcbf29ce484222325u, line);
        hash = cdp__fsdp_hash(hash, line);
    }
    if (st == CDP_OK) st = cdp__fsdp_compare(f, g, own, all, hash);
    cdp__fsdp_free(f, own);
    cdp__fsdp_free(f, all);
    return st;
}

#endif /* CDP_SRC_FSDP_AGREE_H */
