/* mem/summary.h - statistics as a table, as a line of JSON, and by label

   Knows: the rows of labels, and the names of statistics. Promises: rows are copied at one moment,
   the largest first; texts are made without the lock. */
#ifndef CDP_SRC_MEM_SUMMARY_H
#define CDP_SRC_MEM_SUMMARY_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../os/os_api.h"
#include "../text/format.h"
#include "../text/json_write.h"
#include "allocator_api.h"
#include "statistics_api.h"
#include "live_api.h"
#include "sizes.h"
#include "labels.h"
#include "blocks.h"
#include "out_of_memory.h"
#include "figures.h"

#define CDP__MEM_SUMMARY_LABELS 20u

CDP__PRIVATE int cdp__mem_held_order(const void *a, const void *b) {
    const cdp_mem_held *const x = (const cdp_mem_held *)a, *const y = (const cdp_mem_held *)b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    if (x->peak != y->peak) return x->peak > y->peak ? -1 : 1;
    return strcmp(x->label, y->label);
}

CDP__PRIVATE void cdp__mem_held_add(
    cdp_mem_held *rows, uint32_t *n, const char *label, const uint64_t sums[3]) {
    cdp_mem_held *const r = &rows[*n];
    if (!sums[0] && !sums[1]) return;
    memset(r, 0, sizeof *r);
    cdp__mem_text_copy(r->label, label, sizeof r->label);
    r->bytes = sums[0];
    r->peak = sums[1];
    r->blocks = sums[2];
    ++*n;
}

/* Copies all rows; the caller holds the lock. Returns their number. */
CDP__PRIVATE uint32_t cdp__mem_held_copy(const cdp_mem *m, cdp_mem_held *rows) {
    const cdp__mem_labels *const l = &m->log.labels;
    uint64_t bare[3];
    uint32_t i, n = 0;
    bare[0] = cdp__mem_active_bytes(m) - l->bytes;
    bare[1] = l->bare_peak;
    bare[2] = cdp__mem_now(&m->tally.active) + cdp__mem_now(&m->tally.allocation) - l->blocks;
    cdp__mem_held_add(rows, &n, "", bare);
    for (i = 0; i < l->used; ++i) {
        uint64_t sums[3];
        sums[0] = l->at[i].bytes;
        sums[1] = l->at[i].peak;
        sums[2] = l->at[i].blocks;
        cdp__mem_held_add(rows, &n, l->at[i].text, sums);
    }
    return n;
}

/* All rows, the largest first, in memory that the caller frees; NULL: nothing is recorded, or there
   is no memory for them (*recorded). */
CDP__PRIVATE cdp_mem_held *cdp__mem_held_rows(const cdp_mem *m, uint32_t *count, bool *recorded) {
    cdp_mem_held *rows = NULL;
    uint32_t room = 0;
    for (*count = 0;;) {
        uint32_t needed;
        cdp__mem_lock(m);
        needed = m->log.labels.used + 1;
        *recorded = m->log.labels.os != NULL;
        if (*recorded && needed <= room) *count = cdp__mem_held_copy(m, rows);
        cdp__mem_unlock(m);
        if (*recorded && needed <= room) break;
        cdp__free(m->os, rows);
        rows = NULL;
        if (!*recorded) return NULL;
        room = needed + 8;
        rows = (cdp_mem_held *)cdp__alloc(m->os, room * sizeof *rows);
        if (!rows) return NULL;
    }
    qsort(rows, *count, sizeof *rows, cdp__mem_held_order);
    return rows;
}

CDP_API uint32_t cdp_mem_held_by(const cdp_mem *mem, cdp_mem_held *out, uint32_t room) {
    cdp_mem_held *rows;
    uint32_t count;
    bool recorded;
    if (!cdp__mem_lives(mem)) return 0;
    rows = cdp__mem_held_rows(mem, &count, &recorded);
    if (rows && out) memcpy(out, rows, (size_t)cdp__min(count, room) * sizeof *rows);
    cdp__free(mem->os, rows);
    return count;
}

#define CDP__MEM_COLUMN 14u /* of a number */
#define CDP__MEM_FIRST 24u  /* of a name   */

/* Writes numbers right-aligned after a name. `sizes`: they are bytes. */
CDP__PRIVATE void cdp__mem_summary_row(
    cdp__text *t, const char *name, const uint64_t *v, uint32_t count, uint32_t sizes) {
    const uint64_t line = t->used, length = cdp__max((uint64_t)strlen(name), CDP__MEM_FIRST);
    uint32_t i;
    cdp__text_add(t, "%s", name);
    for (i = 0; i < count; ++i) {
        char text[32];
        if (i < sizes)
            (void)cdp__mem_size_text(text, v[i]);
        else
            cdp__format(text, sizeof text, "%llu", (unsigned long long)v[i]);
        cdp__text_pad(t, line, length + (i + 1) * CDP__MEM_COLUMN - strlen(text));
        cdp__text_add(t, "%s", text);
    }
    cdp__text_add(t, "\n");
}

CDP__PRIVATE void cdp__mem_summary_stat(
    cdp__text *t, const char *name, const cdp_mem_stat *s, bool bytes) {
    uint64_t v[4];
    v[0] = s->current;
    v[1] = s->peak;
    v[2] = s->allocated;
    v[3] = s->freed;
    cdp__mem_summary_row(t, name, v, 4, bytes ? 4 : 0);
}

CDP__PRIVATE void cdp__mem_summary_head(
    cdp__text *t, const char *name, const char *const *columns, uint32_t count) {
    const uint64_t line = t->used;
    uint32_t i;
    cdp__text_add(t, "%s", name);
    for (i = 0; i < count; ++i) {
        cdp__text_pad(t, line, CDP__MEM_FIRST + (i + 1) * CDP__MEM_COLUMN - strlen(columns[i]));
        cdp__text_add(t, "%s", columns[i]);
    }
    cdp__text_add(t, "\n");
}

CDP__PRIVATE void cdp__mem_summary_stats(cdp__text *t, const cdp_mem_stats *s) {
    static const char *const names[] = {"blocks in use", "segments", "and waiting", "free pieces",
        "in use", "reserved", "and waiting", "in free pieces", "requested"};
    static const uint32_t order[] = {4, 6, 8, 5, 7, 0, 2, 3, 1};
    static const char *const columns[] = {"now", "peak", "allocated", "freed"};
    const cdp_mem_stat *const all = (const cdp_mem_stat *)(const void *)s;
    uint32_t i;
    cdp__mem_summary_head(t, "", columns, 4);
    for (i = 0; i < CDP__MEM_TRIPLES; ++i) {
        const cdp_mem_stat *const at = &all[3 * order[i]];
        cdp__mem_summary_stat(t, names[order[i]], &at[0], order[i] >= 4);
        cdp__mem_summary_stat(t, "  small", &at[1], order[i] >= 4);
        cdp__mem_summary_stat(t, "  large", &at[2], order[i] >= 4);
    }
    cdp__mem_summary_stat(t, "oversize blocks", &s->oversize_allocations, false);
    cdp__mem_summary_stat(t, "oversize segments", &s->oversize_segments, false);
}

CDP__PRIVATE void cdp__mem_summary_labels(cdp__text *t, const cdp_mem_held *rows, uint32_t count) {
    static const char *const columns[] = {"now", "peak", "blocks"};
    uint32_t i;
    cdp__mem_summary_head(t, "label", columns, 3);
    for (i = 0; i < count && i < CDP__MEM_SUMMARY_LABELS; ++i) {
        uint64_t v[3];
        v[0] = rows[i].bytes;
        v[1] = rows[i].peak;
        v[2] = rows[i].blocks;
        cdp__mem_summary_row(t, rows[i].label[0] ? rows[i].label : "(no label)", v, 3, 2);
    }
    if (i < count) cdp__text_add(t, "and %u others\n", count - i);
}

CDP_API uint64_t cdp_mem_summary(const cdp_mem *mem, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    cdp_mem_stats stats;
    cdp_mem_held *rows;
    uint32_t count;
    bool recorded;
    (void)cdp__text_end(&t);
    if (!cdp__mem_lives(mem)) return 0;
    stats = cdp_mem_stats_of(mem);
    rows = cdp__mem_held_rows(mem, &count, &recorded);
    cdp__text_add(&t, "memory of %s: %llu requests failed, %llu retries\n", mem->base.source.name,
        (unsigned long long)stats.ooms, (unsigned long long)stats.alloc_retries);
    cdp__mem_summary_stats(&t, &stats);
    if (rows)
        cdp__mem_summary_labels(&t, rows, count);
    else if (recorded)
        cdp__text_add(&t, "labels: out of memory: the os has none for a list of them\n");
    else
        cdp__text_add(&t, "labels: nothing is recorded (see desc.record)\n");
    cdp__free(mem->os, rows);
    return t.used;
}

CDP__PRIVATE void cdp__mem_line_number(cdp__text *t, const char *name, uint64_t v) {
    cdp__text_add(t, ",\"%s\":%llu", name, (unsigned long long)v);
}

CDP__PRIVATE void cdp__mem_line_stat(cdp__text *t, const char *name, const cdp_mem_stat *s) {
    cdp__text_add(t, ",\"%s.all.current\":%llu,\"%s.all.peak\":%llu", name,
        (unsigned long long)s->current, name, (unsigned long long)s->peak);
}

CDP__PRIVATE void cdp__mem_line_labels(cdp__text *t, const cdp_mem_held *rows, uint32_t count) {
    uint32_t i;
    cdp__text_add(t, ",\"labels\":{");
    for (i = 0; i < count; ++i) {
        if (i) cdp__text_char(t, ',');
        cdp__json_string(t, rows[i].label);
        cdp__text_add(t, ":{\"bytes\":%llu,\"peak\":%llu,\"blocks\":%llu}",
            (unsigned long long)rows[i].bytes, (unsigned long long)rows[i].peak,
            (unsigned long long)rows[i].blocks);
    }
    cdp__text_add(t, "}");
}

CDP_API uint64_t cdp_mem_json_line(const cdp_mem *mem, uint64_t step, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    cdp_mem_stats s;
    cdp_mem_held *rows;
    uint32_t count;
    bool recorded;
    (void)cdp__text_end(&t);
    if (!cdp__mem_lives(mem)) return 0;
    s = cdp_mem_stats_of(mem);
    rows = cdp__mem_held_rows(mem, &count, &recorded);
    cdp__text_add(&t, "{\"step\":%llu,\"device\":%u", (unsigned long long)step, mem->desc.device);
    cdp__mem_line_number(&t, "time_us", mem->desc.wall_us(mem->desc.wall_user));
    cdp__mem_line_stat(&t, "allocated_bytes", &s.allocated_bytes[0]);
    cdp__mem_line_stat(&t, "active_bytes", &s.active_bytes[0]);
    cdp__mem_line_stat(&t, "requested_bytes", &s.requested_bytes[0]);
    cdp__mem_line_stat(&t, "reserved_bytes", &s.reserved_bytes[0]);
    cdp__mem_line_stat(&t, "inactive_split_bytes", &s.inactive_split_bytes[0]);
    cdp__mem_line_stat(&t, "allocation", &s.allocation[0]);
    cdp__mem_line_stat(&t, "segment", &s.segment[0]);
    cdp__mem_line_number(&t, "num_alloc_retries", s.alloc_retries);
    cdp__mem_line_number(&t, "num_ooms", s.ooms);
    cdp__mem_line_number(&t, "num_device_alloc", s.device_allocs);
    cdp__mem_line_number(&t, "num_device_free", s.device_frees);
    if (rows) cdp__mem_line_labels(&t, rows, count);
    cdp__text_add(&t, "}\n");
    cdp__free(mem->os, rows);
    return t.used;
}

#endif /* CDP_SRC_MEM_SUMMARY_H */
