/* mem/build.h - a shot of allocators of this process

   Knows: how to copy the state of an allocator, and how to make a snapshot of the copy. Promises:
   nothing is allocated while the lock is held: the copy uses memory allocated before. */
#ifndef CDP_SRC_MEM_BUILD_H
#define CDP_SRC_MEM_BUILD_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "desc_api.h"
#include "allocator_api.h"
#include "shots_api.h"
#include "sizes.h"
#include "bins.h"
#include "ring.h"
#include "depot.h"
#include "labels.h"
#include "os_stacks.h"
#include "blocks.h"
#include "history.h"
#include "shot.h"

typedef struct cdp__mem_raw_part {
    uint64_t at, size, requested, began;
    uint32_t stack, label;
    cdp_mem_state state;
} cdp__mem_raw_part;

typedef struct cdp__mem_raw_span {
    uint64_t at, size, stream;
    uint32_t stack, label, pool, parts;
    bool large, external, grows, unrecorded;
} cdp__mem_raw_span;

typedef struct cdp__mem_raw {
    char *memory;
    uint64_t room; /* bytes */
    cdp__mem_record *records;
    cdp__mem_raw_span *spans;
    cdp__mem_raw_part *parts;
    cdp__mem_row *rows;
    uint64_t *words;
    char (*sites)[CDP__MEM_LABEL_BYTES];
    cdp__mem_label *labels;
    uint64_t record_count, span_count, part_count, row_count, word_count;
    uint64_t site_count, label_count;
    uint64_t start_ns, start_us, lost, stacks_lost, labels_lost, limit;
    uint32_t *stacks; /* number here to number in the shot */
} cdp__mem_raw;

/* Counts all parts. The caller holds the lock. */
CDP__PRIVATE void cdp__mem_raw_counts(const cdp_mem *m, bool no_events, cdp__mem_raw *r) {
    const cdp__mem_log *const l = &m->log;
    r->record_count = no_events || !l->ring.room ? 0 : cdp__mem_ring_count(&l->ring);
    r->span_count = cdp__mem_now(&m->tally.segment) + m->externals;
    r->part_count = m->part_count + m->externals;
    r->row_count = l->memory ? l->depot.rows_used : 0;
    r->word_count = l->memory ? l->depot.words_used : 0;
    r->site_count = l->memory ? cdp__min(l->sites.used + 1ull, CDP__MEM_SITES) : 0;
    r->label_count = l->labels.used;
}

CDP__PRIVATE uint64_t cdp__mem_raw_bytes(const cdp__mem_raw *r) {
    return r->record_count * sizeof *r->records + r->span_count * sizeof *r->spans
        + r->part_count * sizeof *r->parts + r->row_count * sizeof *r->rows
        + r->word_count * sizeof *r->words + r->site_count * sizeof *r->sites
        + r->label_count * sizeof *r->labels + (r->row_count + 2) * sizeof *r->stacks + 64;
}

/* Places the arrays in the memory. */
CDP__PRIVATE void cdp__mem_raw_at(cdp__mem_raw *r) {
    char *at = r->memory;
    r->records = (cdp__mem_record *)(void *)at;
    at += r->record_count * sizeof *r->records;
    r->spans = (cdp__mem_raw_span *)(void *)at;
    at += r->span_count * sizeof *r->spans;
    r->parts = (cdp__mem_raw_part *)(void *)at;
    at += r->part_count * sizeof *r->parts;
    r->rows = (cdp__mem_row *)(void *)at;
    at += r->row_count * sizeof *r->rows;
    r->words = (uint64_t *)(void *)at;
    at += r->word_count * sizeof *r->words;
    r->labels = (cdp__mem_label *)(void *)at;
    at += r->label_count * sizeof *r->labels;
    r->sites = (char(*)[CDP__MEM_LABEL_BYTES])(void *)at;
    at += r->site_count * sizeof *r->sites;
    r->stacks = (uint32_t *)(void *)at;
}

CDP__PRIVATE void cdp__mem_raw_span_of(const cdp__mem_span *s, cdp__mem_raw_span *out) {
    out->at = s->at;
    out->size = s->size;
    out->stream = (uint64_t)(uintptr_t)s->arena->stream;
    out->stack = s->stack;
    out->label = s->label;
    out->pool = s->arena->pool->number;
    out->parts = 0;
    out->large = s->large;
    out->grows = s->grows;
    out->unrecorded = s->unrecorded;
    out->external = false;
}

CDP__PRIVATE void cdp__mem_raw_part_of(const cdp__mem_part *p, cdp__mem_raw_part *out) {
    out->at = p->at;
    out->size = p->size;
    out->requested = p->requested;
    out->stack = p->stack;
    out->label = p->label;
    out->began = p->began;
    out->state = p->state;
}

CDP__PRIVATE void cdp__mem_raw_outside(const cdp_mem *m, cdp__mem_raw *r, uint64_t s, uint64_t p) {
    const cdp__mem_outside *o;
    for (o = m->outside; o; o = o->next, ++s, ++p) {
        cdp__mem_raw_span *const span = &r->spans[s];
        cdp__mem_raw_part *const part = &r->parts[p];
        memset(span, 0, sizeof *span);
        memset(part, 0, sizeof *part);
        span->at = part->at = o->at;
        span->size = part->size = part->requested = o->bytes;
        span->label = part->label = o->label;
        span->large = span->external = true;
        span->parts = 1;
        part->state = CDP_MEM_ACTIVE;
    }
}

/* Copies everything. The caller holds the lock. */
CDP__PRIVATE void cdp__mem_raw_copy(const cdp_mem *m, cdp__mem_raw *r) {
    const cdp__mem_log *const l = &m->log;
    const cdp__mem_span *span;
    uint64_t s = 0, p = 0;
    if (r->record_count) cdp__mem_ring_copy(&l->ring, r->records);
    for (span = m->spans; span; span = span->next, ++s) {
        const cdp__mem_part *part;
        cdp__mem_raw_span_of(span, &r->spans[s]);
        for (part = span->first; part; part = part->next, ++p) {
            cdp__mem_raw_part_of(part, &r->parts[p]);
            ++r->spans[s].parts;
        }
    }
    cdp__mem_raw_outside(m, r, s, p);
    if (r->row_count) memcpy(r->rows, l->depot.rows, (size_t)(r->row_count * sizeof *r->rows));
    if (r->word_count) memcpy(r->words, l->depot.words, (size_t)(r->word_count * sizeof *r->words));
    if (r->label_count)
        memcpy(r->labels, l->labels.at, (size_t)(r->label_count * sizeof *r->labels));
    if (r->site_count) memcpy(r->sites, l->sites.text, (size_t)(r->site_count * sizeof *r->sites));
    r->limit = m->limit;
    r->start_ns = l->start_ns;
    r->start_us = l->start_us;
    r->stacks_lost = l->depot.lost + l->sites.lost;
    r->labels_lost = l->labels.lost;
    r->lost = l->ring.room ? cdp__mem_ring_lost(&l->ring) : 0;
}

/* Copies the state of `m`. Memory is allocated without the lock; if it is too small by then,
   tries again. */
CDP__PRIVATE cdp_status cdp__mem_raw_take(cdp_mem *m, bool no_events, cdp__mem_raw *r) {
    cdp__mem_call c;
    memset(r, 0, sizeof *r);
    for (;;) {
        cdp__mem_call_plain(m, &c);
        cdp__mem_lock(m);
        cdp__mem_raw_counts(m, no_events, r);
        if (r->memory && cdp__mem_raw_bytes(r) <= r->room) break;
        cdp__mem_unlock(m);
        cdp__free(m->os, r->memory);
        r->room = cdp__mem_raw_bytes(r) + cdp__mem_raw_bytes(r) / 8 + 4096;
        r->memory = (char *)cdp__alloc(m->os, r->room);
        if (!r->memory) return cdp__fail_nomem("a snapshot", r->room);
        /* maps the pages now instead of while holding the lock */
        memset(r->memory, 0, (size_t)r->room);
    }
    cdp__mem_raw_at(r);
    cdp__mem_raw_copy(m, r);
    cdp__mem_call_enter(m, &c);
    (void)cdp__mem_event_add(m, &c, CDP_MEM_SNAPSHOT, 0,
        cdp__mem_now(&m->tally.active_bytes) + cdp__mem_now(&m->tally.allocated_bytes));
    cdp__mem_unlock(m);
    return CDP_OK;
}

CDP__PRIVATE bool cdp__mem_module_line(void *user, const cdp__mem_map_line *line) {
    cdp_mem_shot *const s = (cdp_mem_shot *)user;
    const char *path;
    cdp__mem_module *k;
    if (line->path[0] != '/' && line->path[0] != '[') return true;
    path = cdp__mem_shot_text(s, line->path);
    if (!s->module_path_count || s->module_paths[s->module_path_count - 1] != path) {
        if (!cdp__mem_add(s, module_path, 1) || !cdp__mem_add(s, module, 1)) return false;
        s->module_paths[s->module_path_count++] = path;
        k = &s->modules[s->module_count++];
        k->base = line->low - line->offset;
        k->path = (uint32_t)s->module_path_count - 1;
        k->low = k->high = 0;
    }
    k = &s->modules[s->module_count - 1];
    if (line->code && !k->high) k->low = line->low;
    if (line->code) k->high = line->high;
    return true;
}

CDP__PRIVATE const cdp__mem_module *cdp__mem_module_of(const cdp_mem_shot *s, uint64_t address) {
    uint64_t i;
    for (i = 0; i < s->module_count; ++i)
        if (address >= s->modules[i].low && address < s->modules[i].high) return &s->modules[i];
    return NULL;
}

/* A name like "module+0x4f1a": the offset in the file of the module. */
CDP__PRIVATE void cdp__mem_frame_address(cdp_mem_shot *s, uint64_t address, cdp_mem_frame *f) {
    const cdp__mem_module *const k = cdp__mem_module_of(s, address);
    const char *const path = k ? s->module_paths[k->path] : s->empty;
    const char *const slash = strrchr(path, '/');
    char text[300];
    if (k)
        cdp__format(text, sizeof text, "%s+0x%llx", slash ? slash + 1 : path,
            (unsigned long long)(address - k->base));
    else
        cdp__format(text, sizeof text, "0x%llx", (unsigned long long)address);
    f->name = cdp__mem_shot_text(s, text);
    f->filename = path;
}

/* "file\nline\nfunction". */
CDP__PRIVATE void cdp__mem_frame_site(cdp_mem_shot *s, const char *site, cdp_mem_frame *f) {
    char text[CDP__MEM_LABEL_BYTES];
    char *line, *function;
    cdp__mem_text_copy(text, site, sizeof text);
    f->name = f->filename = s->empty;
    line = strchr(text, '\n');
    if (!line) return;
    *line++ = 0;
    function = strchr(line, '\n');
    if (!function) return;
    *function++ = 0;
    for (; *line >= '0' && *line <= '9'; ++line)
        f->line = f->line * 10 + (uint32_t)(*line - '0');
    f->filename = cdp__mem_shot_text(s, text);
    f->name = cdp__mem_shot_text(s, function);
}

CDP__PRIVATE const char *cdp__mem_raw_label(cdp_mem_shot *s, const cdp__mem_raw *r, uint64_t n) {
    if (!n || n > r->label_count) return NULL;
    return cdp__mem_shot_text(s, r->labels[n - 1].text);
}

/* Addresses that have names already, so that each is looked up once. */
typedef struct cdp__mem_known {
    uint64_t *address;
    cdp_mem_frame *frame;
    uint64_t mask;
} cdp__mem_known;

CDP__PRIVATE void cdp__mem_frame_known(
    cdp_mem_shot *s, cdp__mem_known *k, uint64_t address, cdp_mem_frame *f) {
    uint64_t i = cdp__mem_mix(0, address) & k->mask;
    while (k->address[i] && k->address[i] != address)
        i = (i + 1) & k->mask;
    if (!k->address[i]) {
        k->address[i] = address;
        memset(&k->frame[i], 0, sizeof *k->frame);
        cdp__mem_frame_address(s, address, &k->frame[i]);
    }
    *f = k->frame[i];
}

CDP__PRIVATE void cdp__mem_build_frame(
    cdp_mem_shot *s, const cdp__mem_raw *r, cdp__mem_known *k, uint64_t word, uint64_t at) {
    cdp_mem_frame *const f = &s->frames[at];
    switch (word & CDP__MEM_TAG) {
    case CDP__MEM_TAG_SITE: cdp__mem_frame_site(s, r->sites[(word & 0xffff) - 1], f); return;
    case CDP__MEM_TAG_FULL:
        f->name = cdp__mem_shot_text(s, "(stack table full: see max_stacks)");
        f->filename = s->empty;
        return;
    default: cdp__mem_frame_known(s, k, word, f); s->addresses[at] = word;
    }
}

/* The stacks of an allocator, with a name for each frame. */
CDP__PRIVATE bool cdp__mem_build_stacks(cdp_mem_shot *s, cdp__mem_raw *r) {
    cdp__mem_known k;
    uint64_t i, j;
    k.mask = 64;
    while (k.mask < 2 * r->word_count)
        k.mask *= 2;
    k.address = (uint64_t *)cdp__alloc_zero(s->os, k.mask * sizeof *k.address);
    k.frame = (cdp_mem_frame *)cdp__alloc(s->os, k.mask * sizeof *k.frame);
    --k.mask;
    r->stacks[0] = 0;
    for (i = 0; k.address && k.frame && i < r->row_count; ++i) {
        const cdp__mem_row *const row = &r->rows[i];
        const uint32_t n = r->stacks[i + 1] = cdp__mem_shot_stack(s, row->count);
        for (j = 0; n && j < row->count; ++j)
            cdp__mem_build_frame(s, r, &k, r->words[row->first + j], s->stacks[n].first + j);
    }
    i = k.address && k.frame;
    cdp__free(s->os, k.address);
    cdp__free(s->os, k.frame);
    return i && !s->failed;
}

/* A made-up address from `at` on that no other segment of the device in the shot has. */
CDP__PRIVATE uint64_t cdp__mem_build_place(const cdp_mem_shot *s, uint32_t device, uint64_t at) {
    uint64_t i;
    for (i = 0; i + 1 < s->segment_count; ++i) { /* the last one is the one being added */
        const cdp_mem_segment *const g = &s->segments[i];
        if (g->device != device || g->address != at) continue;
        at += 1ull << 40;
        i = UINT64_MAX; /* from the first one again */
    }
    return at;
}

CDP__PRIVATE bool cdp__mem_build_segments(cdp_mem_shot *s, const cdp__mem_raw *r, uint32_t device) {
    uint64_t i, j, at = 0;
    if (!cdp__mem_add(s, segment, r->span_count) || !cdp__mem_add(s, block, r->part_count))
        return false;
    for (i = 0; i < r->span_count; ++i) {
        const cdp__mem_raw_span *const span = &r->spans[i];
        cdp_mem_segment *const g = &s->segments[s->segment_count++];
        memset(g, 0, sizeof *g);
        g->device = device;
        g->stack = r->stacks[span->stack];
        g->pool[1] = span->pool;
        g->address = span->external ? cdp__mem_build_place(s, device, span->at) : span->at;
        g->size = span->size;
        g->stream = span->stream;
        g->large = span->large;
        g->external = span->external;
        g->grows = span->grows;
        g->label = cdp__mem_raw_label(s, r, span->label);
        g->block_count = span->parts;
        for (j = 0; j < span->parts; ++j, ++at) {
            const cdp__mem_raw_part *const part = &r->parts[at];
            cdp_mem_block *const b = &s->blocks[s->block_count++];
            b->address = span->external ? g->address : part->at;
            b->size = part->size;
            b->requested = part->requested;
            b->state = part->state;
            b->stack = r->stacks[part->stack];
            b->others = 0;
            b->label = cdp__mem_raw_label(s, r, part->label);
            cdp__mem_segment_sum(g, b);
        }
    }
    return true;
}

/* A live block whose alloc was left out. The viewer goes back from the final state and needs one,
   or it would show the block before its segment. */
typedef struct cdp__mem_omitted {
    uint64_t before; /* so many of the kept events came before it */
    uint64_t span, part;
} cdp__mem_omitted;

CDP__PRIVATE int cdp__mem_omitted_order(const void *a, const void *b) {
    const cdp__mem_omitted *const x = (const cdp__mem_omitted *)a,
                                  *const y = (const cdp__mem_omitted *)b;
    if (x->before != y->before) return x->before < y->before ? -1 : 1;
    if (x->part == y->part) return 0;
    return x->part < y->part ? -1 : 1;
}

/* Lists the blocks whose alloc was left out, in the order of time; those from before the first
   kept event were there from the beginning. `out` may be NULL. Returns their number. */
CDP__PRIVATE uint64_t cdp__mem_omitted_list(const cdp__mem_raw *r, cdp__mem_omitted *out) {
    uint64_t i, j, at = 0, n = 0;
    if (!r->record_count) return 0;
    for (i = 0; i < r->span_count; ++i)
        for (j = 0; j < r->spans[i].parts; ++j, ++at) {
            const cdp__mem_raw_part *const p = &r->parts[at];
            if (p->state == CDP_MEM_INACTIVE || p->began <= r->lost) continue;
            if (out) {
                out[n].before = p->began - r->lost;
                out[n].span = i;
                out[n].part = at;
            }
            ++n;
        }
    if (out && n) qsort(out, (size_t)n, sizeof *out, cdp__mem_omitted_order);
    return n;
}

/* Makes the events of such a block; they get the time of the event before. `ended`: at the end of
   the log, that it was freed and waits. */
CDP__PRIVATE cdp_mem_event *cdp__mem_omitted_events(cdp_mem_shot *s, const cdp__mem_raw *r,
    const cdp__mem_omitted *u, bool ended, cdp_mem_event *e) {
    const cdp__mem_raw_span *const span = &r->spans[u->span];
    const cdp__mem_raw_part *const part = &r->parts[u->part];
    static const cdp_mem_action actions[] = {
        CDP_MEM_SEGMENT_ALLOC, CDP_MEM_ALLOC, CDP_MEM_FREE_REQUESTED};
    uint32_t i = span->unrecorded ? 0 : 1, last = 1;
    if (ended) i = last = 2;
    if (ended && part->state != CDP_MEM_PENDING) return e;
    for (; i <= last; ++i, ++e) {
        memset(e, 0, sizeof *e);
        e->address = i ? part->at : span->at;
        e->size = i ? part->requested : span->size;
        e->stream = span->stream;
        e->time_us = e[-1].time_us;
        e->pool[1] = span->pool;
        e->action = actions[i];
        e->stack = r->stacks[part->stack];
        e->label = cdp__mem_raw_label(s, r, part->label);
    }
    return e;
}

/* Merges the events from `from` on into those before, by time: two allocators of one device. */
CDP__PRIVATE bool cdp__mem_events_merge(const cdp_os *os, cdp__mem_device *d, uint64_t from) {
    cdp_mem_event *first, *out = d->events;
    uint64_t i = 0, j = from;
    if (!from || from == d->count) return true;
    first = (cdp_mem_event *)cdp__alloc(os, from * sizeof *first);
    if (!first) return false;
    memcpy(first, d->events, (size_t)from * sizeof *first);
    while (i < from)
        *out++ =
            j < d->count && d->events[j].time_us < first[i].time_us ? d->events[j++] : first[i++];
    cdp__free(os, first);
    return true;
}

/* Adds the events of an allocator. Their times are nanoseconds until all are merged. */
CDP__PRIVATE bool cdp__mem_build_events(cdp_mem_shot *s, const cdp__mem_raw *r, uint32_t device) {
    const uint64_t more = cdp__mem_omitted_list(r, NULL);
    cdp__mem_omitted *const unsaid =
        (cdp__mem_omitted *)cdp__alloc(s->os, (more + 1) * sizeof(cdp__mem_omitted));
    cdp_mem_event *e = cdp__mem_shot_events(s, device, r->record_count + 3 * more);
    const uint64_t from = s->devices[device].count;
    uint64_t i, k = 0;
    bool ok = unsaid && (e || !(r->record_count + more));
    if (ok) (void)cdp__mem_omitted_list(r, unsaid);
    for (i = 0; ok && i < r->record_count; ++i, ++e) {
        const cdp__mem_record *const record = &r->records[i];
        for (; k < more && unsaid[k].before == i; ++k)
            e = cdp__mem_omitted_events(s, r, &unsaid[k], false, e);
        e->address = record->address;
        e->size = record->size;
        e->stream = record->stream;
        e->time_us = r->start_us * 1000 + record->time_ns - r->start_ns;
        e->device_free = record->extra;
        e->pool[0] = record->pool[0];
        e->pool[1] = record->pool[1];
        e->action = (cdp_mem_action)record->action;
        e->stack = r->stacks[record->stack];
        e->others = 0;
        e->label = cdp__mem_raw_label(s, r, record->label);
    }
    for (; ok && k < more; ++k)
        e = cdp__mem_omitted_events(s, r, &unsaid[k], false, e);
    for (k = 0; ok && k < more; ++k)
        e = cdp__mem_omitted_events(s, r, &unsaid[k], true, e);
    cdp__free(s->os, unsaid);
    if (!ok) return false;
    if (e) s->devices[device].count = (uint64_t)(e - s->devices[device].events);
    s->events_lost += r->lost;
    s->stacks_lost += r->stacks_lost;
    s->labels_lost += r->labels_lost;
    return cdp__mem_events_merge(s->os, &s->devices[device], from);
}

/* Call when all allocators are added: times become microseconds. */
CDP__PRIVATE void cdp__mem_build_times(cdp_mem_shot *s) {
    uint64_t i, j;
    for (i = 0; i < s->device_count; ++i)
        for (j = 0; j < s->devices[i].count; ++j)
            s->devices[i].events[j].time_us /= 1000;
}

/* The divisions in PyTorch's form: "1:4,2:4,...", one for each interval in MiB. */
CDP__PRIVATE void cdp__mem_build_divisions(cdp_mem_shot *s, const cdp__mem_sizes *z) {
    char text[400];
    uint32_t i;
    cdp__text t = cdp__text_of(text, sizeof text);
    text[0] = 0;
    for (i = 0; i < 16; ++i)
        cdp__text_add(&t, "%s%u:%u", i ? "," : "", 1u << i, (unsigned)z->divisions[i]);
    cdp__mem_shot_setting(s, "roundup_power2_divisions", text, 0);
}

CDP__PRIVATE void cdp__mem_build_settings(cdp_mem_shot *s, const cdp_mem *m, uint64_t limit) {
    const cdp_mem_desc *const d = &m->desc;
    if (s->setting_count) return;
    cdp__mem_shot_setting(s, "PYTORCH_CUDA_ALLOC_CONF", "", 0);
    cdp__mem_shot_setting(
        s, "max_split_size", NULL, d->max_split_bytes ? (double)d->max_split_bytes : -1.0);
    cdp__mem_shot_setting(s, "garbage_collection_threshold", NULL, d->gc_threshold);
    cdp__mem_shot_setting(s, "large_segment_size", NULL, (double)m->sizes.large_segment);
    cdp__mem_shot_setting(
        s, "max_non_split_rounding", NULL, (double)m->sizes.max_non_split_rounding);
    cdp__mem_build_divisions(s, &m->sizes);
    cdp__mem_shot_setting(s, "expandable_segments", NULL, d->expandable);
    cdp__mem_shot_setting(s, "coarse_bins", NULL, d->coarse_bins);
    cdp__mem_shot_setting(s, "no_cache", NULL, d->no_cache);
    cdp__mem_shot_setting(s, "timeout_ms", NULL, d->timeout_ms);
    cdp__mem_shot_setting(s, "limit", NULL, (double)limit);
    cdp__mem_shot_setting(s, "source", m->base.source.name, 0);
}

CDP__PRIVATE bool cdp__mem_build(cdp_mem_shot *s, const cdp_mem *m, cdp__mem_raw *r) {
    const uint32_t device = m->desc.device;
    if (!cdp__mem_shot_devices(s, device + 1ull)) return false;
    if (r->word_count && !s->module_count) cdp__mem_maps(cdp__mem_module_line, s);
    cdp__mem_build_settings(s, m, r->limit);
    if (!s->clock && r->start_us) { /* allocators with one clock share the date of the first */
        s->clock = m->os;
        s->clock_ns = r->start_ns;
        s->clock_us = r->start_us;
    } else if (s->clock && s->clock->now_ns == m->os->now_ns && s->clock->user == m->os->user) {
        r->start_ns = s->clock_ns;
        r->start_us = s->clock_us;
    }
    return cdp__mem_build_stacks(s, r) && cdp__mem_build_segments(s, r, device)
        && cdp__mem_build_events(s, r, device) && !s->failed;
}

#endif /* CDP_SRC_MEM_BUILD_H */
