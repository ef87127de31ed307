/* checkpoint/load.h - a checkpoint into tensors of any layout

   Knows: a reader on each rank. Promises: nothing is changed before all items fit; each byte that
   was loaded is compared with its sum; an error is the same on all ranks. */
#ifndef CDP_SRC_CHECKPOINT_LOAD_H
#define CDP_SRC_CHECKPOINT_LOAD_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../text/format.h"
#include "../dtype/dtype.h"
#include "../dtype/convert.h"
#include "checkpoint_api.h"
#include "reader_api.h"
#include "sums.h"
#include "pieces.h"
#include "table.h"
#include "plan.h"
#include "disk.h"
#include "steps.h"
#include "verdict.h"
#include "create.h"
#include "agree.h"
#include "reader.h"
#include "background.h"

typedef struct cdp__ck_load {
    cdp_ckpt *c;
    cdp_ckpt_reader *r;
    uint64_t *shares,
        *held;             /* for each slab of the table: sums of the share, of all that is held */
    uint64_t *counts;      /* elements of that */
    const uint8_t *memory; /* of element `first` of the item that is read now, as in the files */
    uint64_t first;
    uint8_t *window; /* CDP__CK_CALL bytes, from the first item on that is converted */
} cdp__ck_load;

/* ---- before reading ---- */

#define CDP__CK_SHOWN 100u /* bytes of a name in a list of mistakes */

/* Adds a line to a list of mistakes, as long as there is room; the first one in any case. */
CDP__PRIVATE void cdp__ck_mistake(
    cdp__text *t, uint32_t *count, const char *name, const char *what) {
    const uint64_t length = strlen(name), shown = cdp__min(length, CDP__CK_SHOWN);
    if (!*count || t->used + shown + strlen(what) + 40 < t->room) {
        cdp__text_add(t, *count ? "; '" : "'");
        cdp__text_bytes(t, name, shown);
        cdp__text_add(t, "%s' %s", shown < length ? "..." : "", what);
    } else if (t->used + 12 < t->room && t->at[t->used - 1] != '.')
        cdp__text_add(t, "; and more...");
    ++*count;
}

CDP__PRIVATE void cdp__ck_shape_text(cdp__text *t, uint32_t ndim, const uint64_t *shape) {
    uint32_t d;
    cdp__text_char(t, '[');
    for (d = 0; d < ndim; ++d)
        cdp__text_add(t, d ? ",%llu" : "%llu", (unsigned long long)shape[d]);
    cdp__text_char(t, ']');
}

/* Whether elements of one dtype can become those of another. */
CDP__PRIVATE bool cdp__ck_converts(cdp_dtype from, cdp_dtype to) {
    return cdp__dtype_row_of(from)->kind != CDP__COMPLEX && !cdp__dtype_left_out(from)
        && !cdp__dtype_left_out(to);
}

/* Compares an item with what the files have of it. `cast`: another dtype will be converted. */
CDP__PRIVATE void cdp__ck_item_fits(
    const cdp_item *i, const cdp__ck_entry *e, bool cast, cdp__text *list, uint32_t *count) {
    const uint64_t *shape;
    const uint32_t ndim = cdp__ck_item_shape(i, &shape);
    const cdp_dtype dtype = cdp__ck_item_dtype(i);
    char what[400];
    cdp__text t = cdp__text_of(what, sizeof what);
    const bool same =
        ndim == e->ndim && memcmp(shape, e->shape, ndim * sizeof *shape) == 0 && !e->blob;
    if (same && (dtype == e->dtype || (cast && cdp__ck_converts(e->dtype, dtype)))) return;
    cdp__text_add(&t, "is %s", e->blob ? "a blob, not " : "");
    cdp__text_add(&t, "%s", cdp__dtype_row_of(e->dtype)->name);
    cdp__ck_shape_text(&t, e->ndim, e->shape);
    cdp__text_add(&t, " in the files and %s", cdp__dtype_row_of(dtype)->name);
    cdp__ck_shape_text(&t, ndim, shape);
    cdp__text_add(&t, " here");
    (void)cdp__text_end(&t);
    cdp__ck_mistake(list, count, i->name, what);
}

/* Compares all items with the files; notes in the table which entry is whose. */
CDP__PRIVATE cdp_status cdp__ck_fits(cdp__ck_load *l) {
    const cdp_ckpt_desc *const d = &l->c->desc;
    char text[CDP_ERROR_TEXT - 80];
    cdp__text t = cdp__text_of(text, sizeof text);
    uint32_t mistakes = 0, i;
    uint64_t k;
    for (k = 0; k < l->r->t.count; ++k)
        l->r->t.entries[k].item = UINT32_MAX;
    for (i = 0; i < d->item_count; ++i) {
        cdp__ck_entry *const e = cdp__ck_look(&l->r->t, d->items[i].name);
        if (!e) {
            ++l->c->info.missing;
            if (!d->partial)
                cdp__ck_mistake(&t, &mistakes, d->items[i].name, "is not in the files");
            continue;
        }
        cdp__ck_item_fits(&d->items[i], e, d->cast, &t, &mistakes);
        e->item = i;
        l->c->info.cast += cdp__ck_item_dtype(&d->items[i]) != e->dtype;
    }
    for (k = 0; k < l->r->t.count; ++k)
        l->c->info.surplus += l->r->t.entries[k].item == UINT32_MAX && !l->r->t.entries[k].blob;
    if (!mistakes) return CDP_OK;
    (void)cdp__text_end(&t);
    return cdp_error_set(CDP_ERR_MISMATCH, -1, 0,
        "cdp_ckpt_load: %u of %u items do not fit (%u surplus in %s): %s", (unsigned)mistakes,
        (unsigned)d->item_count, (unsigned)l->c->info.surplus,
        strrchr(l->r->folder, '/') ? strrchr(l->r->folder, '/') + 1 : l->r->folder, text);
}

/* The entry of a blob for this rank; NULL: there is none. */
CDP__PRIVATE const cdp__ck_entry *cdp__ck_blob_find(
    const cdp_ckpt_reader *r, const cdp_ckpt_blob *b, uint32_t rank) {
    char name[CDP__CK_NAME + 1];
    cdp__text t = cdp__text_of(name, sizeof name);
    const cdp__ck_entry *e;
    cdp__text_add(&t, "%s", b->name);
    if (b->per_rank) {
        cdp__text_add(&t, ".rank");
        cdp__ck_digits(&t, rank, 5);
    }
    (void)cdp__text_end(&t);
    e = cdp__ck_look(&r->t, name);
    return e && e->blob ? e : NULL;
}

CDP__PRIVATE cdp_status cdp__ck_blobs_fit(const cdp__ck_load *l) {
    const cdp_ckpt_desc *const d = &l->c->desc;
    uint32_t i;
    for (i = 0; i < d->blob_count; ++i) {
        const cdp_ckpt_blob *const b = &d->blobs[i];
        const cdp__ck_entry *const e = cdp__ck_blob_find(l->r, b, cdp_rank(d->group));
        if (e && e->bytes > b->room)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_ckpt_load: blob '%s' has %llu bytes, its room is %llu", b->name,
                (unsigned long long)e->bytes, (unsigned long long)b->room);
        if (!e && !d->partial && !(b->per_rank && cdp__ck_blob_find(l->r, b, 0)))
            return cdp_error_set(
                CDP_ERR_MISMATCH, -1, 0, "cdp_ckpt_load: blob '%s' is not in the files", b->name);
    }
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__ck_load_room(cdp__ck_load *l) {
    const uint64_t n = l->r->t.sum_count;
    l->shares = (uint64_t *)cdp__alloc_zero(l->r->t.os, 3 * n * sizeof *l->shares);
    if (!l->shares) return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt_load: out of memory");
    l->held = l->shares + n;
    l->counts = l->held + n;
    return CDP_OK;
}

/* ---- reading ---- */

/* Sums what was read: its part in the share of this rank, and the rest. */
CDP__PRIVATE void cdp__ck_load_got(
    void *user, const cdp__ck_entry *e, const cdp__ck_piece *p, uint64_t place, uint64_t last) {
    cdp__ck_load *const l = (cdp__ck_load *)user;
    const uint64_t elem = cdp__dtype_row_of(e->dtype)->bytes;
    const uint64_t slab = cdp__ck_slab_elements(&l->r->t, e);
    cdp__ck_progressed(&l->c->desc, &l->c->progress, (last - place) * elem);
    if (!e->sums || l->c->desc.no_verify) return;
    while (place < last) {
        const uint64_t behind = place < p->last ? p->last : last;
        const uint64_t edge = place < p->first ? p->first : behind;
        cdp__ck_run r = cdp__ck_run_at(p, place, cdp__min(edge, last));
        const uint64_t within = r.at % slab;
        uint64_t sum;
        r.count = cdp__min(r.count, slab - within);
        sum =
            cdp__ck_sum(&l->c->weights, l->memory + (place - l->first) * elem, elem, r.at, r.count);
        l->held[e->first_sum + r.at / slab] += sum;
        l->counts[e->first_sum + r.at / slab] += r.count;
        if (place >= p->first && place < p->last) l->shares[e->first_sum + r.at / slab] += sum;
        place += r.count;
    }
}

/* Reads a piece whose elements become those of another dtype, a window at a time. */
CDP__PRIVATE int32_t cdp__ck_load_cast(
    cdp__ck_load *l, const cdp__ck_entry *e, const cdp__ck_piece *p, cdp_dtype to, uint8_t *data) {
    const uint64_t elem = cdp__dtype_row_of(e->dtype)->bytes;
    const uint64_t size = cdp__dtype_row_of(to)->bytes, most = CDP__CK_CALL / elem;
    int32_t err = 0;
    if (!l->window) l->window = (uint8_t *)cdp__alloc(l->r->t.os, CDP__CK_CALL);
    if (!l->window) return ENOMEM;
    l->memory = l->window;
    for (l->first = 0; !err && l->first < p->count; l->first += most) {
        const uint64_t n = cdp__min(p->count - l->first, most);
        err =
            cdp__ck_read_piece(l->r, e, p, l->first, l->first + n, l->window, cdp__ck_load_got, l);
        if (!err) cdp__convert(e->dtype, l->window, to, data + l->first * size, n);
    }
    return err;
}

CDP__PRIVATE cdp_status cdp__ck_load_item(cdp__ck_load *l, const cdp__ck_entry *e) {
    const cdp_ckpt_desc *const d = &l->c->desc;
    const cdp_item *const item = &d->items[e->item];
    const cdp__ck_piece p = cdp__ck_item_piece(item, cdp_rank(d->group), cdp_size(d->group));
    uint8_t *const data = (uint8_t *)item->tensor.data;
    int32_t err;
    l->memory = data;
    l->first = 0;
    if (e->dtype != cdp__ck_item_dtype(item))
        err = cdp__ck_load_cast(l, e, &p, cdp__ck_item_dtype(item), data);
    else
        err = cdp__ck_read_piece(l->r, e, &p, 0, p.count, data, cdp__ck_load_got, l);
    return err ? cdp__ck_read_failed(l->r, e, err) : CDP_OK;
}

/* Every rank reads blobs, and compares their sums, alone. */
CDP__PRIVATE cdp_status cdp__ck_load_blob(cdp__ck_load *l, cdp_ckpt_blob *b) {
    const cdp__ck_entry *const e = cdp__ck_blob_find(l->r, b, cdp_rank(l->c->desc.group));
    uint64_t i;
    cdp_status st;
    if (!e) {
        if (b->per_rank) b->bytes = 0;
        return CDP_OK;
    }
    b->bytes = e->bytes;
    st = cdp_ckpt_read(l->r, (uint32_t)(e - l->r->t.entries), NULL, b->data);
    for (i = 0; st == CDP_OK && i < e->sums && !l->c->desc.no_verify; ++i) {
        const uint64_t slab = l->r->t.slab, n = cdp__min(slab, e->bytes - i * slab);
        if (cdp__ck_sum(&l->c->weights, (uint8_t *)b->data + i * slab, 1, i * slab, n)
            != l->r->t.sums[e->first_sum + i])
            st = cdp__ck_damaged(l->r, e, i);
    }
    return st;
}

CDP__PRIVATE cdp_status cdp__ck_load_all(cdp__ck_load *l) {
    const cdp_ckpt_desc *const d = &l->c->desc;
    cdp_status st = CDP_OK;
    uint64_t k;
    uint32_t i;
    for (k = 0; st == CDP_OK && k < l->r->t.count; ++k)
        if (l->r->t.entries[k].item != UINT32_MAX) st = cdp__ck_load_item(l, &l->r->t.entries[k]);
    for (i = 0; st == CDP_OK && i < d->blob_count; ++i)
        st = cdp__ck_load_blob(l, &d->blobs[i]);
    return st;
}

/* ---- sums ---- */

/* Slabs that this rank holds whole: also of copies that are in the share of another rank. */
CDP__PRIVATE cdp_status cdp__ck_check_held(const cdp__ck_load *l) {
    const cdp__ck_table *const t = &l->r->t;
    uint64_t k, i;
    for (k = 0; k < t->count; ++k) {
        const cdp__ck_entry *const e = &t->entries[k];
        const uint64_t each = cdp__ck_slab_elements(t, e);
        const uint64_t all = e->bytes / cdp__dtype_row_of(e->dtype)->bytes;
        for (i = 0; e->item != UINT32_MAX && i < e->sums; ++i)
            if (l->counts[e->first_sum + i] == cdp__min(each, all - i * each)
                && l->held[e->first_sum + i] != t->sums[e->first_sum + i])
                return cdp__ck_damaged(l->r, e, i);
    }
    return CDP_OK;
}

/* Shares of all ranks: each element once. */
CDP__PRIVATE cdp_status cdp__ck_check_shares(cdp__ck_load *l) {
    const cdp__ck_table *const t = &l->r->t;
    cdp_group *const g = l->c->desc.group;
    cdp_status st = cdp_allreduce(g, NULL, l->shares, t->sum_count, CDP_DTYPE_U64, CDP_REDUCE_SUM);
    uint64_t k, i;
    if (st != CDP_OK) return st;
    for (k = 0; st == CDP_OK && k < t->count; ++k) {
        const cdp__ck_entry *const e = &t->entries[k];
        for (i = 0; st == CDP_OK && e->item != UINT32_MAX && i < e->sums; ++i)
            if (l->shares[e->first_sum + i] != t->sums[e->first_sum + i])
                st = cdp__ck_damaged(l->r, e, i);
    }
    return cdp__ck_verdict(g, st);
}

/* Whether sums are compared; the same on all ranks. */
CDP__PRIVATE bool cdp__ck_compares(const cdp__ck_load *l) {
    return l->r->step && !l->c->desc.no_verify;
}

CDP__PRIVATE cdp_status cdp__ck_check(cdp__ck_load *l) {
    cdp_status st;
    if (!cdp__ck_compares(l)) return CDP_OK;
    st = cdp__ck_verdict(l->c->desc.group, cdp__ck_check_held(l));
    return st == CDP_OK && l->r->t.sum_count ? cdp__ck_check_shares(l) : st;
}

/* ---- the call ---- */

/* Rank 0 chooses the step, so that all ranks load the same one; and all check their items. */
CDP__PRIVATE cdp_status cdp__ck_choose(cdp__ck_load *l, const char *path, uint64_t *step) {
    cdp_ckpt *const c = l->c;
    cdp_group *const g = c->desc.group;
    const bool root = cdp_rank(g) == 0;
    const cdp_os *const os = cdp_group_desc_of(g)->os;
    cdp__ck_table t;
    cdp_status st;
    cdp__ck_table_open(&t, os);
    st = cdp__ck_plan(&t, &c->desc);
    cdp__ck_table_close(&t);
    if (st == CDP_OK) st = cdp__ck_memory_check(c);
    st = cdp__ck_verdict(g, st);
    if (st == CDP_OK) st = cdp__ck_agree(c, *step, path);
    if (st != CDP_OK) return st;
    if (root) st = cdp__ck_reader_open(path, c->disk.os, os, *step, &l->r);
    st = cdp__ck_verdict(g, st);
    if (st == CDP_OK && root && l->r->step) *step = l->r->t.step;
    if (st == CDP_OK) st = cdp_broadcast(g, step, 1, CDP_DTYPE_U64, 0);
    if (st != CDP_OK) return st;
    if (!root) st = cdp__ck_reader_open(path, c->disk.os, os, *step, &l->r);
    return cdp__ck_verdict(g, st);
}

CDP__PRIVATE cdp_status cdp__ck_load_run(
    cdp__ck_load *l, const char *path, uint64_t step, uint64_t *found) {
    cdp_ckpt *const c = l->c;
    cdp_group *const g = c->desc.group;
    cdp_status st = cdp__ck_choose(l, path, &step);
    uint64_t began, k;
    if (st == CDP_OK) {
        st = cdp__ck_fits(l);
        if (st == CDP_OK) st = cdp__ck_blobs_fit(l);
        if (st == CDP_OK) st = cdp__ck_load_room(l);
        st = cdp__ck_verdict(g, st);
    }
    if (st == CDP_OK && cdp__ck_compares(l)) st = cdp__ck_covered(c, &l->r->t);
    if (st != CDP_OK) return st;
    c->info.step = l->r->t.step;
    c->info.files = l->r->t.file_count;
    for (k = 0; k < l->r->t.count; ++k) {
        const cdp__ck_entry *const e = &l->r->t.entries[k];
        if (e->item == UINT32_MAX) continue;
        c->info.total_bytes += e->bytes;
        c->progress.total +=
            cdp__ck_item_piece(&c->desc.items[e->item], cdp_rank(g), cdp_size(g)).count
            * cdp__dtype_row_of(e->dtype)->bytes;
    }
    began = c->disk.os->now_ns(c->disk.os->user);
    st = cdp__ck_verdict(g, cdp__ck_load_all(l));
    if (st == CDP_OK) st = cdp__ck_check(l);
    c->info.read_ns = c->disk.os->now_ns(c->disk.os->user) - began;
    c->info.bytes_read = l->r->disk.read_bytes;
    c->info.reads = l->r->disk.reads;
    if (st == CDP_OK && found) *found = l->r->t.step;
    return st;
}

CDP_API cdp_status cdp_ckpt_load(cdp_ckpt *c, const char *path, uint64_t step, uint64_t *found) {
    cdp__ck_load l;
    cdp_status st = cdp__ck_alive(c, "cdp_ckpt_load");
    cdp_error why;
    if (found) *found = 0;
    if (st != CDP_OK) return st;
    memset(&l, 0, sizeof l);
    l.c = c;
    st = cdp__ck_enter(c, "cdp_ckpt_load"); /* leaves the info of a save that has ended */
    memset(&c->info, 0, sizeof c->info);
    c->progress.done = c->progress.total = 0;
    if (st == CDP_OK) st = cdp__ck_load_run(&l, path ? path : c->path, step, found);
    why = *cdp_last_error();
    cdp__free(cdp_group_desc_of(c->desc.group)->os, l.shares);
    cdp__free(cdp_group_desc_of(c->desc.group)->os, l.window);
    cdp_ckpt_close(l.r);
    if (st != CDP_OK) *cdp__error_slot() = why;
    return st;
}

#endif /* CDP_SRC_CHECKPOINT_LOAD_H */
