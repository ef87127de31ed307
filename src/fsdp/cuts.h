/* fsdp/cuts.h - where the range of a unit is cut (pure)

   Knows: shapes, grains, a number of ranks. Promises: every rank computes all cuts alone; pieces
   are disjoint, cover the range in the order of ranks, and have at most total / ranks + grain
   elements. */
#ifndef CDP_SRC_FSDP_CUTS_H
#define CDP_SRC_FSDP_CUTS_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "fsdp_api.h"

/* The product of the dimensions from `first` on; false if it has more than 62 bits. */
CDP__PRIVATE bool cdp__fsdp_product(const cdp_fsdp_param *p, uint32_t first, uint64_t *out) {
    uint64_t n = 1;
    uint32_t d;
    for (d = first; d < p->ndim; ++d) {
        if (p->shape[d] && n > (UINT64_MAX >> 2) / p->shape[d]) return false;
        n *= p->shape[d];
    }
    *out = n;
    return true;
}

CDP__PRIVATE uint64_t cdp__fsdp_count(const cdp_fsdp_param *p) {
    uint64_t n = 0;
    (void)cdp__fsdp_product(p, 0, &n);
    return n;
}

CDP__PRIVATE uint64_t cdp__fsdp_grain(const cdp_fsdp_param *p) {
    uint64_t row = 1;
    if (p->grain != CDP_GRAIN_ROW) return p->grain;
    (void)cdp__fsdp_product(p, 1, &row);
    return row ? row : 1;
}

/* All parameters. Where they are in the order of their units, those of one unit are found at once;
   else each search looks at all of them. */
typedef struct cdp__fsdp_list {
    const cdp_fsdp_param *params;
    uint32_t count;
    bool sorted;
} cdp__fsdp_list;

CDP__PRIVATE cdp__fsdp_list cdp__fsdp_list_of(const cdp_fsdp_desc *d) {
    cdp__fsdp_list l;
    uint32_t i;
    l.params = d->params;
    l.count = d->param_count;
    for (i = 1; i < l.count && l.params[i - 1].unit <= l.params[i].unit; ++i) {
    }
    l.sorted = i >= l.count;
    return l;
}

/* The first parameter of `unit` or a later one, if they are in order; 0 if not. */
CDP__PRIVATE uint32_t cdp__fsdp_first(const cdp__fsdp_list *l, uint32_t unit) {
    uint32_t low = 0, high = l->sorted ? l->count : 0;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (l->params[middle].unit < unit)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* All parameters of `unit` are before this one. */
CDP__PRIVATE uint32_t cdp__fsdp_end(const cdp__fsdp_list *l, uint32_t unit) {
    return l->sorted ? cdp__fsdp_first(l, unit + 1) : l->count;
}

/* A walk over the cuts of one range, in the order of ranks. */
typedef struct cdp__fsdp_walk {
    const cdp_fsdp_param *params;
    uint32_t unit;
    bool frozen;
    uint64_t total; /* elements of the range */
    uint32_t at;    /* the parameter that the walk has reached */
    uint64_t base;  /* where it begins in the range */
} cdp__fsdp_walk;

CDP__PRIVATE bool cdp__fsdp_in_range(const cdp__fsdp_walk *w, uint32_t i) {
    return w->params[i].unit == w->unit && w->params[i].frozen == w->frozen;
}

CDP__PRIVATE cdp__fsdp_walk cdp__fsdp_walk_of(const cdp__fsdp_list *l, uint32_t unit, bool frozen) {
    const uint32_t end = cdp__fsdp_end(l, unit);
    cdp__fsdp_walk w;
    uint32_t i;
    memset(&w, 0, sizeof w);
    w.params = l->params;
    w.unit = unit;
    w.frozen = frozen;
    w.at = cdp__fsdp_first(l, unit);
    for (i = w.at; i < end; ++i)
        if (cdp__fsdp_in_range(&w, i)) w.total += cdp__fsdp_count(&w.params[i]);
    return w;
}

/* Moves to the parameter that holds element x; x < total, and not less than in the call before. */
CDP__PRIVATE void cdp__fsdp_walk_to(cdp__fsdp_walk *w, uint64_t x) {
    for (;; ++w->at) {
        uint64_t n;
        if (!cdp__fsdp_in_range(w, w->at)) continue;
        n = cdp__fsdp_count(&w->params[w->at]);
        if (x - w->base < n) return;
        w->base += n;
    }
}

/* The first element of piece `rank`, which is not less than in the call before. The ideal place is
   x + rest / ranks. */
CDP__PRIVATE uint64_t cdp__fsdp_cut(cdp__fsdp_walk *w, uint32_t ranks, uint32_t rank) {
    const uint64_t part = (uint64_t)rank * (w->total % ranks), rest = part % ranks;
    const uint64_t x = w->total / ranks * rank + part / ranks;
    uint64_t n, grain, low, below, above;
    if (rank >= ranks || x >= w->total) return w->total;
    cdp__fsdp_walk_to(w, x);
    n = cdp__fsdp_count(&w->params[w->at]);
    grain = cdp__min(cdp__fsdp_grain(&w->params[w->at]), n);
    low = (x - w->base) / grain * grain;
    below = x - w->base - low;                /* and rest / ranks: the way to the place below */
    above = cdp__min(grain, n - low) - below; /* less rest / ranks: to the one above */
    if (above > below + 1 || (above == below + 1 && 2 * rest <= ranks)
        || (above == below && rest == 0))
        return w->base + low;
    return w->base + low + below + above;
}

/* One rank's range. */
CDP__PRIVATE void cdp__fsdp_cut_of(
    const cdp__fsdp_walk *whole, uint32_t ranks, uint32_t rank, uint64_t *start, uint64_t *end) {
    cdp__fsdp_walk w = *whole;
    *start = cdp__fsdp_cut(&w, ranks, rank);
    *end = cdp__fsdp_cut(&w, ranks, rank + 1);
}

#endif /* CDP_SRC_FSDP_CUTS_H */
