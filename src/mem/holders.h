/* mem/holders.h - who holds memory

   Knows: the rows of reports: labels, places or stacks, and which frames are skipped. Promises:
   equal holders of one shot or of two have one row; the largest row comes first. */
#ifndef CDP_SRC_MEM_HOLDERS_H
#define CDP_SRC_MEM_HOLDERS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "allocator_api.h"
#include "shots_api.h"
#include "shot.h"
#include "timeline.h"

typedef struct cdp__mem_sum { /* a row: a label, or frames */
    const char *label;        /* NULL: the frames; without any, nobody knows */
    const cdp_mem_frame *frames;
    uint32_t frame_count;
    double bytes; /* negative: less than before */
    int64_t blocks;
} cdp__mem_sum;

/* True if a list of names, separated by commas, has this one; see cdp_mem_shot_rows. */
CDP__PRIVATE bool cdp__mem_skips(const char *list, const char *name) {
    while (list && *list) {
        const uint64_t n = strcspn(list, ",");
        const bool rest = n && list[n - 1] == '*';
        if (rest && strncmp(list, name, (size_t)(n - 1)) == 0) return true;
        if (!rest && strlen(name) == n && memcmp(list, name, (size_t)n) == 0) return true;
        list += n;
        list += *list == ',';
    }
    return false;
}

/* Sets the holder of a block of `s`, as `how` wants rows. */
CDP__PRIVATE void cdp__mem_sum_holder(const cdp_mem_shot *s, const cdp_mem_shot *how,
    const char *label, uint32_t stack, cdp__mem_sum *out) {
    const cdp__mem_stack *const k = &s->stacks[stack];
    const cdp_mem_frame *const f = k->count ? s->frames + k->first : NULL;
    uint32_t from = 0;
    out->label = label && (!f || how->rows == CDP_MEM_ROWS_LABEL) ? label : NULL;
    out->frames = NULL;
    out->frame_count = 0;
    if (out->label || !f) return;
    while (from + 1 < k->count && cdp__mem_skips(how->skip, f[from].name))
        ++from;
    out->frames = f + from;
    out->frame_count = how->rows == CDP_MEM_ROWS_STACK ? k->count - from : 1;
}

CDP__PRIVATE int cdp__mem_frame_order(const cdp_mem_frame *x, const cdp_mem_frame *y) {
    int order = strcmp(x->name, y->name);
    if (!order) order = strcmp(x->filename, y->filename);
    if (!order && x->line != y->line) order = x->line < y->line ? -1 : 1;
    return order;
}

/* Labels come first, and shorter stacks before longer ones that begin with them. */
CDP__PRIVATE int cdp__mem_sum_by_holder(const void *a, const void *b) {
    const cdp__mem_sum *const x = (const cdp__mem_sum *)a, *const y = (const cdp__mem_sum *)b;
    uint32_t i;
    if (x->label && y->label) return strcmp(x->label, y->label);
    if (x->label || y->label) return x->label ? -1 : 1;
    for (i = 0; i < x->frame_count && i < y->frame_count; ++i) {
        const int order = cdp__mem_frame_order(&x->frames[i], &y->frames[i]);
        if (order) return order;
    }
    if (x->frame_count == y->frame_count) return 0;
    return x->frame_count < y->frame_count ? -1 : 1;
}

CDP__PRIVATE int cdp__mem_sum_by_bytes(const void *a, const void *b) {
    const double x = ((const cdp__mem_sum *)a)->bytes, y = ((const cdp__mem_sum *)b)->bytes;
    const double p = x < 0 ? -x : x, q = y < 0 ? -y : y;
    if (p > q || p < q) return p > q ? -1 : 1;
    return cdp__mem_sum_by_holder(a, b);
}

/* Merges sums of equal holders and sorts them, largest first. Returns their number. */
CDP__PRIVATE uint64_t cdp__mem_sums(cdp__mem_sum *at, uint64_t count) {
    uint64_t i, n = 0;
    if (!count) return 0;
    qsort(at, (size_t)count, sizeof *at, cdp__mem_sum_by_holder);
    for (i = 0; i < count; ++i) {
        if (n && cdp__mem_sum_by_holder(&at[n - 1], &at[i]) == 0) {
            at[n - 1].bytes += at[i].bytes;
            at[n - 1].blocks += at[i].blocks;
        } else
            at[n++] = at[i];
    }
    qsort(at, (size_t)n, sizeof *at, cdp__mem_sum_by_bytes);
    return n;
}

/* Sums by holder right after an event; ALWAYS: at the end. */
CDP__PRIVATE uint64_t cdp__mem_line_holders(
    const cdp__mem_line *l, uint64_t at, cdp__mem_sum *out) {
    uint64_t i, n = 0;
    for (i = 0; i < l->count; ++i) {
        const cdp__mem_element *const e = &l->elements[i];
        if ((!e->before && e->from > at) || (e->to != CDP__MEM_ALWAYS && e->to <= at)) continue;
        cdp__mem_sum_holder(l->shot, l->shot, e->label, e->stack, &out[n]);
        out[n].bytes = (double)e->size;
        out[n++].blocks = 1;
    }
    return cdp__mem_sums(out, n);
}

/* Active blocks of a shot as sums, multiplied by `sign`, in the rows of `how`. */
CDP__PRIVATE uint64_t cdp__mem_sums_of(
    const cdp_mem_shot *s, const cdp_mem_shot *how, double sign, cdp__mem_sum *out) {
    uint64_t i, n = 0;
    for (i = 0; i < s->block_count; ++i) {
        const cdp_mem_block *const b = &s->blocks[i];
        if (b->state == CDP_MEM_INACTIVE) continue;
        cdp__mem_sum_holder(s, how, b->label, b->stack, &out[n]);
        out[n].bytes = sign * (double)b->size;
        out[n++].blocks = sign > 0 ? 1 : -1;
    }
    return n;
}

/* "function (file.c:12)", or the name alone where no line is known. */
CDP__PRIVATE void cdp__mem_frame_text(cdp__text *t, const cdp_mem_frame *f) {
    const char *const slash = strrchr(f->filename, '/');
    cdp__text_add(t, "%s", f->name);
    if (f->line)
        cdp__text_add(
            t, "%s(%s:%u)", f->name[0] ? " " : "", slash ? slash + 1 : f->filename, f->line);
}

/* The name of a holder; the frames of a stack, the innermost first, with " < " between them. */
CDP__PRIVATE void cdp__mem_holder_name(cdp__text *t, const cdp__mem_sum *h) {
    uint32_t i;
    if (h->label) cdp__text_add(t, "%s", h->label);
    for (i = 0; i < h->frame_count; ++i) {
        if (i) cdp__text_add(t, " < ");
        cdp__mem_frame_text(t, &h->frames[i]);
    }
    if (!h->label && !h->frame_count) cdp__text_add(t, "(unknown)");
}

CDP_API cdp_status cdp_mem_shot_rows(cdp_mem_shot *shot, cdp_mem_rows rows, const char *skip) {
    const char *copy = NULL;
    if (cdp__mem_shot_here(shot, "cdp_mem_shot_rows") != CDP_OK) return cdp_last_error()->status;
    if ((uint32_t)rows > CDP_MEM_ROWS_STACK)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_mem_shot_rows: there are no rows %u", (unsigned)rows);
    if (skip) copy = cdp__mem_text_of(&shot->texts, skip, strlen(skip));
    if (skip && !copy) return cdp__fail_nomem("cdp_mem_shot_rows", strlen(skip));
    shot->rows = rows;
    shot->skip = copy;
    return CDP_OK;
}

#endif /* CDP_SRC_MEM_HOLDERS_H */
