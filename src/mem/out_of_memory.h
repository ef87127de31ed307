/* mem/out_of_memory.h - the error of a request

   Knows: how to explain a failed request. Promises: the text needs no memory; only the name of the
   largest holder does. */
#ifndef CDP_SRC_MEM_OUT_OF_MEMORY_H
#define CDP_SRC_MEM_OUT_OF_MEMORY_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "source_api.h"
#include "desc_api.h"
#include "allocator_api.h"
#include "shots_api.h"
#include "bins.h"
#include "ring.h"
#include "depot.h"
#include "os_stacks.h"
#include "build_id.h"
#include "blocks.h"
#include "history.h"
#include "request.h"

CDP__PRIVATE const char *cdp__mem_size_text(char text[32], uint64_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    uint32_t unit = 0;
    uint64_t rest = 0;
    for (; bytes >= 1024; bytes /= 1024, ++unit)
        rest = bytes % 1024;
    if (unit)
        cdp__format(
            text, 32, "%u.%u %s", (unsigned)bytes, (unsigned)(rest * 10 / 1024), units[unit]);
    else
        cdp__format(text, 32, "%u B", (unsigned)bytes);
    return text;
}

typedef struct cdp__mem_holder {   /* a label, or a stack */
    uint64_t bytes, blocks, first; /* first: the address of the first one */
    uint32_t label, stack;
} cdp__mem_holder;

typedef struct cdp__mem_figures {
    uint64_t device_free, device_total, largest_free, pending;
    cdp__mem_holder most;
} cdp__mem_figures;

/* Sums up live blocks by label or, without one, by stack; those without either are the first one.
   Empty sums are among the *count. NULL: no host memory. */
CDP__PRIVATE cdp__mem_holder *cdp__mem_live_holders(const cdp_mem *m, uint64_t *count) {
    const uint64_t labels = m->log.labels.used;
    cdp__mem_holder *sums;
    const cdp__mem_span *s;
    *count = labels + 1 + m->log.depot.rows_used;
    sums = (cdp__mem_holder *)cdp__alloc_zero(m->os, *count * sizeof(cdp__mem_holder));
    for (s = sums ? m->spans : NULL; s; s = s->next) {
        const cdp__mem_part *p;
        for (p = s->first; p; p = p->next) {
            uint64_t of = 0;
            if (p->state != CDP_MEM_ACTIVE) continue;
            if (p->label)
                of = p->label;
            else if (p->stack)
                of = labels + p->stack;
            if (!sums[of].blocks) sums[of].first = p->at;
            sums[of].bytes += p->size;
            ++sums[of].blocks;
            sums[of].label = p->label;
            sums[of].stack = p->stack;
        }
    }
    return sums;
}

/* The largest holder that has a name. Without host memory, it stays unknown. */
CDP__PRIVATE void cdp__mem_find_holder(const cdp_mem *m, cdp__mem_holder *most) {
    uint64_t i, count;
    cdp__mem_holder *const sums = cdp__mem_live_holders(m, &count);
    memset(most, 0, sizeof *most);
    for (i = 1; sums && i < count; ++i)
        if (sums[i].bytes > most->bytes) *most = sums[i];
    cdp__free(m->os, sums);
}

CDP__PRIVATE void cdp__mem_figure(
    const cdp_mem *m, const cdp__mem_request *a, cdp__mem_figures *f) {
    const cdp_mem_source *const s = &a->pool->source;
    const cdp__mem_span *span;
    memset(f, 0, sizeof *f);
    if (s->info && s->info(s->user, &f->device_free, &f->device_total) != CDP_OK)
        f->device_free = f->device_total = 0;
    for (span = m->spans; span; span = span->next) {
        const cdp__mem_part *p;
        for (p = span->first; p; p = p->next) {
            if (p->state == CDP_MEM_PENDING) f->pending += p->size;
            if (p->state == CDP_MEM_INACTIVE) f->largest_free = cdp__max(f->largest_free, p->size);
        }
    }
    cdp__mem_find_holder(m, &f->most);
}

typedef struct cdp__mem_module_lookup { /* an address, and the module that it is in */
    uint64_t address, base;
    uint64_t low, high; /* the beginning of its file, as far as it can be read */
    char path[512];
    bool found;
} cdp__mem_module_lookup;

CDP__PRIVATE bool cdp__mem_module_lookup_line(void *user, const cdp__mem_map_line *line) {
    cdp__mem_module_lookup *const spot = (cdp__mem_module_lookup *)user;
    if (strcmp(spot->path, line->path) != 0) { /* the first line of a module */
        cdp__mem_text_copy(spot->path, line->path, sizeof spot->path);
        spot->base = line->low - line->offset;
        spot->low = line->low;
        spot->high = line->readable && !line->offset ? line->high : line->low;
    }
    spot->found = spot->address >= line->low && spot->address < line->high;
    return !spot->found;
}

/* Adds "module+0x4f1a": an address alone means nothing in the next run of the program. */
CDP__PRIVATE void cdp__mem_module_offset_text(
    cdp__text *t, cdp__mem_module_lookup *spot, uint64_t address) {
    const char *slash;
    memset(spot, 0, sizeof *spot);
    spot->address = address;
    cdp__mem_maps(cdp__mem_module_lookup_line, spot);
    slash = strrchr(spot->path, '/');
    spot->found = spot->found && slash && strlen(slash) < 60;
    if (spot->found)
        cdp__text_add(t, "%s+0x%llx", slash + 1, (unsigned long long)(address - spot->base));
    else
        cdp__text_add(t, "0x%llx", (unsigned long long)address);
}

#define CDP__MEM_NAME 240u      /* bytes of the name of a holder */
#define CDP__MEM_NAME_FRAMES 3u /* a wrapper alone would say nothing */

/* Adds the innermost frames of a stack, and the build id of the module of the first one. */
CDP__PRIVATE void cdp__mem_stack_text(const cdp_mem *m, uint32_t stack, cdp__text *t) {
    const cdp__mem_row *const row = &m->log.depot.rows[stack - 1];
    const uint64_t *const words = m->log.depot.words + row->first;
    char id[CDP__MEM_BUILD_ID] = "";
    cdp__mem_module_lookup spot;
    uint32_t i;
    for (i = 0; i < row->count && i < CDP__MEM_NAME_FRAMES; ++i) {
        if (i) cdp__text_add(t, " < ");
        if ((words[i] & CDP__MEM_TAG) == CDP__MEM_TAG_FULL)
            cdp__text_add(t, "code without a stack (see max_stacks)");
        else if ((words[i] & CDP__MEM_TAG) == CDP__MEM_TAG_SITE) {
            const char *at = m->log.sites.text[(words[i] & 0xffff) - 1];
            for (; *at; ++at)
                cdp__text_char(t, *at == '\n' ? ':' : *at);
        } else {
            if (!i) cdp__text_add(t, "code at ");
            cdp__mem_module_offset_text(t, &spot, words[i]);
            if (!i && spot.found)
                (void)cdp__mem_build_id(
                    (const uint8_t *)(uintptr_t)spot.low, spot.high - spot.low, id);
        }
    }
    if (id[0]) cdp__text_add(t, " (build id %s)", id);
}

/* The name of a holder: its label in quotes, the site, or the innermost frames. */
CDP__PRIVATE void cdp__mem_holder_text(
    const cdp_mem *m, const cdp__mem_holder *h, char text[CDP__MEM_NAME]) {
    cdp__text t = cdp__text_of(text, CDP__MEM_NAME);
    if (h->label)
        cdp__text_add(&t, "\"%s\"", m->log.labels.at[h->label - 1].text);
    else
        cdp__mem_stack_text(m, h->stack, &t);
    (void)cdp__text_end(&t);
}

CDP__PRIVATE void cdp__mem_oom_holder(const cdp_mem *m, const cdp__mem_holder *h, cdp__text *t) {
    char name[CDP__MEM_NAME], size[32];
    if (!h->bytes) {
        cdp__text_add(t, "; set desc.record to know who holds it");
        return;
    }
    cdp__mem_holder_text(m, h, name);
    cdp__text_add(t, "; most is held by %s: %s in %llu blocks", name,
        cdp__mem_size_text(size, h->bytes), (unsigned long long)h->blocks);
}

/* The error of a failed request, with its numbers. */
CDP__PRIVATE cdp_status cdp__mem_oom_error(
    const cdp_mem *m, const cdp__mem_request *a, const cdp__mem_figures *f) {
    const cdp__mem_tallies *const s = &m->tally;
    const uint64_t cached =
        m->held - cdp__mem_now(&s->active_bytes) - cdp__mem_now(&s->allocated_bytes);
    char text[480], x[32], y[32];
    cdp__text t = cdp__text_of(text, sizeof text);
    text[0] = 0;
    cdp__text_add(&t, "cdp_mem_alloc: no %s for stream 0x%llx on %s",
        cdp__mem_size_text(x, a->bytes), (unsigned long long)(uintptr_t)a->stream,
        a->pool->source.name);
    if (f->device_total)
        cdp__text_add(&t, ": the device has %s free of %s", cdp__mem_size_text(x, f->device_free),
            cdp__mem_size_text(y, f->device_total));
    if (a->pool->fixed_bytes)
        cdp__text_add(&t, "; the pool is fixed at %s", cdp__mem_size_text(x, a->pool->fixed_bytes));
    cdp__text_add(&t, "; held here %s", cdp__mem_size_text(x, m->held));
    if (m->limit) cdp__text_add(&t, " (limit %s)", cdp__mem_size_text(x, m->limit));
    cdp__text_add(&t, ": %s allocated", cdp__mem_size_text(x, cdp__mem_now(&s->allocated_bytes)));
    if (f->pending) cdp__text_add(&t, ", %s wait for streams", cdp__mem_size_text(x, f->pending));
    cdp__text_add(&t, ", %s cached in pieces of at most %s", cdp__mem_size_text(x, cached),
        cdp__mem_size_text(y, f->largest_free));
    cdp__text_add(&t, ", %s of it fragmented between blocks in use",
        cdp__mem_size_text(x, cdp__mem_now(&s->inactive_split_bytes)));
    cdp__mem_oom_holder(m, &f->most, &t);
    return cdp__fail(CDP_ERR_NOMEM, "%s", text);
}

/* Counts, records and logs the failure. The caller holds the lock. */
CDP__PRIVATE cdp_status cdp__mem_oom_report(
    cdp_mem *m, const cdp__mem_call *c, const cdp__mem_request *a, cdp_mem_oom *out) {
    cdp__mem_figures f;
    cdp__mem_record *e;
    cdp__mem_figure(m, a, &f);
    ++m->stats.ooms;
    out->device = m->desc.device;
    out->bytes = a->bytes;
    out->held_bytes = m->held;
    out->limit_bytes = m->limit;
    out->free_bytes = f.device_free;
    e = cdp__mem_event_add(m, c, CDP_MEM_OOM, 0, a->bytes);
    cdp__mem_event_place(e, a->arena);
    if (e) e->extra = f.device_free;
    return cdp__mem_oom_error(m, a, &f);
}

#endif /* CDP_SRC_MEM_OUT_OF_MEMORY_H */
