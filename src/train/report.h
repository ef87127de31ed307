/* train/report.h - watching a job

   Knows: figures of a ddp, one allgather for several steps. Promises: a step waits for nobody, but
   where the line before has not come yet. */
#ifndef CDP_SRC_TRAIN_REPORT_H
#define CDP_SRC_TRAIN_REPORT_H

#include "report_api.h"
#include "../os/os_api.h"
#include "../group/collectives_api.h"
#include "../group/vote.h"
#include "../group/clocks.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/ended.h"
#include "../base/text.h"
#include "../text/format.h"
#include "../text/json_real.h"
#include "../text/svg.h"
#include "../text/timeline.h"
#include "../ddp/group_access.h"
#include "../ddp/state.h"
#include "../ddp/trace.h"
#include "stragglers.h"

#ifndef CDP_NO_DDP
#ifndef CDP_NO_TRACE
#ifndef CDP_NO_TRAINING

/* A row of numbers of each rank: sums over the steps of a line, then how long each step took. */
enum {
    CDP__REPORT_LOSS, /* bits of a double, as the next one */
    CDP__REPORT_NORM,
    CDP__REPORT_SAMPLES,
    CDP__REPORT_NS,
    CDP__REPORT_EXPOSED,
    CDP__REPORT_COMM,
    CDP__REPORT_OVERFLOWS,
    CDP__REPORT_MEMORY,
    CDP__REPORT_BUSY
};

#define CDP__REPORT_LINE 768u

struct cdp_report {
    cdp_report_desc desc;
    cdp_group *group;
    const cdp_os *os;
    uint64_t *mine, *all; /* rows */
    uint64_t row;         /* numbers in one */
    uint64_t steps, last_ns;
    uint32_t filled;     /* steps in `mine` */
    uint64_t sent_steps; /* steps when `all` was started */
    cdp_work work;       /* seq 0: none */
    cdp__late late;
};

CDP__PRIVATE double cdp__report_double(uint64_t bits) {
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

CDP__PRIVATE uint64_t cdp__report_bits(double v) {
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

CDP__PRIVATE void cdp__report_real(cdp__text *t, const char *name, double v) {
    cdp__text_add(t, ",\"%s\":", name);
    cdp__json_real(t, v, true);
}

CDP__PRIVATE void cdp__report_number(cdp__text *t, const char *name, uint64_t v) {
    cdp__text_add(t, ",\"%s\":%llu", name, (unsigned long long)v);
}

CDP__PRIVATE void cdp__report_values(const cdp_report *r, bool job, cdp__text *t) {
    const uint64_t bytes = cdp__text_end(t);
    r->desc.line(r->desc.user, job, t->at, cdp__min(bytes, CDP__REPORT_LINE - 1));
}

/* What lines of ranks and of the job have in common. `steps`: how many `row` sums up. */
CDP__PRIVATE void cdp__report_sums(cdp__text *t, const uint64_t *row, double loss, double steps) {
    const double ns = (double)cdp__max(row[CDP__REPORT_NS], 1),
                 comm = (double)row[CDP__REPORT_COMM];
    cdp__report_real(t, "loss", loss);
    cdp__report_real(t, "norm", cdp__report_double(row[CDP__REPORT_NORM]));
    cdp__report_real(t, "samples_per_s", (double)row[CDP__REPORT_SAMPLES] * 1e9 / ns);
    cdp__report_real(t, "step_ms", ns / 1e6 / steps);
    cdp__report_real(t, "hidden", comm > 0 ? 1 - (double)row[CDP__REPORT_EXPOSED] / comm : 0);
    cdp__report_number(t, "overflows", row[CDP__REPORT_OVERFLOWS]);
    cdp__report_number(t, "memory", row[CDP__REPORT_MEMORY]);
}

/* Sums, means and maxima over ranks; times are those of rank 0. */
CDP__PRIVATE void cdp__report_job_line(const cdp_report *r, uint32_t n) {
    const cdp_straggler s = cdp__late_find(&r->late, n);
    uint64_t sums[CDP__REPORT_BUSY];
    char line[CDP__REPORT_LINE];
    cdp__text t = cdp__text_of(line, sizeof line);
    double loss = 0;
    uint32_t k;
    memcpy(sums, r->all, sizeof sums);
    for (k = 0; k < n; ++k) {
        const uint64_t *of = r->all + k * r->row;
        loss += cdp__report_double(of[CDP__REPORT_LOSS]) / n / r->desc.every;
        if (k) sums[CDP__REPORT_SAMPLES] += of[CDP__REPORT_SAMPLES];
        if (k) sums[CDP__REPORT_EXPOSED] += of[CDP__REPORT_EXPOSED];
        if (k) sums[CDP__REPORT_COMM] += of[CDP__REPORT_COMM];
        sums[CDP__REPORT_OVERFLOWS] =
            cdp__max(sums[CDP__REPORT_OVERFLOWS], of[CDP__REPORT_OVERFLOWS]);
        sums[CDP__REPORT_MEMORY] = cdp__max(sums[CDP__REPORT_MEMORY], of[CDP__REPORT_MEMORY]);
    }
    cdp__text_add(&t, "{\"step\":%llu,\"ranks\":%u", (unsigned long long)r->sent_steps, n);
    cdp__report_sums(&t, sums, loss, r->desc.every);
    if (s.found) {
        cdp__text_add(&t, ",\"slowest\":{\"rank\":%u", s.rank);
        cdp__report_real(&t, "late_ms", s.late_ms);
        cdp__text_add(&t, ",\"often\":%u,\"of\":%u,\"since\":%llu}}", s.often, s.of,
            (unsigned long long)s.since_step);
    } else {
        cdp__text_add(&t, ",\"slowest\":null}");
    }
    cdp__report_values(r, true, &t);
}

CDP__PRIVATE void cdp__report_rank_line(
    const cdp_report *r, const cdp_report_figures *f, const uint64_t *row, uint64_t backward_ns) {
    char line[CDP__REPORT_LINE];
    cdp__text t = cdp__text_of(line, sizeof line);
    cdp__text_add(
        &t, "{\"step\":%llu,\"rank\":%u", (unsigned long long)r->steps, cdp_rank(r->group));
    cdp__report_sums(&t, row, f->loss, 1);
    cdp__report_real(&t, "backward_ms", (double)backward_ns / 1e6);
    cdp__text_char(&t, '}');
    cdp__report_values(r, false, &t);
}

/* The rows of all ranks have come. */
CDP__PRIVATE void cdp__report_digest(cdp_report *r) {
    const uint32_t n = cdp_size(r->group);
    uint32_t k;
    r->work.seq = 0;
    for (k = 0; k < r->desc.every; ++k)
        cdp__late_add(&r->late, r->all + CDP__REPORT_BUSY + k, n, r->row);
    if (r->desc.line && cdp_rank(r->group) == 0) cdp__report_job_line(r, n);
}

/* The numbers of one step. */
CDP__PRIVATE void cdp__report_fill(
    cdp_report *r, const cdp_report_figures *f, const cdp_ddp_stats *s, uint64_t *row) {
    const uint64_t now = r->os->now_ns(r->os->user),
                   ns = r->last_ns ? now - r->last_ns : s->backward_ns + s->exposed_ns;
    r->last_ns = now;
    row[CDP__REPORT_LOSS] = cdp__report_bits(f->loss);
    row[CDP__REPORT_NORM] = cdp__report_bits(f->norm);
    row[CDP__REPORT_SAMPLES] = f->samples;
    row[CDP__REPORT_NS] = ns;
    row[CDP__REPORT_EXPOSED] = s->exposed_ns;
    row[CDP__REPORT_COMM] = s->comm_ns;
    row[CDP__REPORT_OVERFLOWS] = f->overflow;
    row[CDP__REPORT_MEMORY] = f->memory;
    row[CDP__REPORT_BUSY] = ns - cdp__min(ns, s->exposed_ns);
}

/* Adds it to those of the line. */
CDP__PRIVATE void cdp__report_gather(cdp_report *r, const uint64_t *row) {
    uint64_t *m = r->mine;
    uint32_t k;
    if (!r->filled) memset(m, 0, CDP__REPORT_BUSY * sizeof *m);
    m[CDP__REPORT_LOSS] = cdp__report_bits(
        cdp__report_double(m[CDP__REPORT_LOSS]) + cdp__report_double(row[CDP__REPORT_LOSS]));
    m[CDP__REPORT_NORM] = row[CDP__REPORT_NORM];
    for (k = CDP__REPORT_SAMPLES; k < CDP__REPORT_MEMORY; ++k)
        m[k] += row[k];
    m[CDP__REPORT_MEMORY] = cdp__max(m[CDP__REPORT_MEMORY], row[CDP__REPORT_MEMORY]);
    m[CDP__REPORT_BUSY + r->filled++] = row[CDP__REPORT_BUSY];
}

CDP__PRIVATE cdp_status cdp__report_usable(const cdp_report *r, const char *call) {
    if (!r) return cdp__missing(call, "report");
    if (cdp__ended(r)) return cdp__fail(CDP_ERR_STATE, "%s: this report was destroyed", call);
    if (!cdp__ddp_lives(r->desc.ddp))
        return cdp__fail(CDP_ERR_STATE, "%s: its ddp was destroyed", call);
    return cdp__alive(r->group, call);
}

CDP_API cdp_status cdp_report_step(cdp_report *r, const cdp_report_figures *figures) {
    cdp_status st = cdp__report_usable(r, "cdp_report_step");
    uint64_t row[CDP__REPORT_BUSY + 1];
    cdp_ddp_stats s;
    if (st != CDP_OK) return st;
    if (!figures) return cdp__missing("cdp_report_step", "figures");
    s = cdp_ddp_stats_of(r->desc.ddp);
    ++r->steps;
    cdp__report_fill(r, figures, &s, row);
    if (r->desc.line && r->desc.each_step) cdp__report_rank_line(r, figures, row, s.backward_ns);
    cdp__report_gather(r, row);
    if (r->work.seq) {
        st = r->filled == r->desc.every ? cdp_work_wait(r->work) : cdp_work_test(r->work);
        if (st == CDP_OK) cdp__report_digest(r);
    }
    if (st == CDP_PENDING) return CDP_OK;
    if (st != CDP_OK) r->filled = 0; /* of a line that nobody gets */
    if (st != CDP_OK || r->filled < r->desc.every) return st;
    memcpy(r->all + cdp_rank(r->group) * r->row, r->mine, (size_t)r->row * sizeof *r->mine);
    r->filled = 0;
    r->sent_steps = r->steps;
    return cdp_allgather_async(r->group, NULL, r->all, r->row, CDP_DTYPE_U64, &r->work);
}

CDP_API cdp_straggler cdp_report_straggler(const cdp_report *r) {
    cdp_straggler none;
    if (r && !cdp__ended(r)) return cdp__late_find(&r->late, cdp_size(r->group));
    memset(&none, 0, sizeof none);
    return none;
}

/* ---- all ranks of a step on one clock ---- */

enum {
    CDP__REPORT_BUCKETS = 32, /* that are drawn */
    CDP__REPORT_EVENTS = 4 + 2 * CDP__REPORT_BUCKETS
};

/* begin, call of backward_end, end, number of buckets; begin and end of each. */
CDP__PRIVATE void cdp__report_events(const cdp_ddp *d, uint64_t *e) {
    uint32_t i;
    e[0] = d->begin_ns;
    e[1] = d->called_ns;
    e[2] = d->end_ns;
    e[3] = cdp__min(d->bucket_count, CDP__REPORT_BUCKETS);
    for (i = 0; i < e[3]; ++i) {
        e[4 + 2 * i] = d->buckets[i].start_ns;
        e[5 + 2 * i] = d->buckets[i].end_ns;
    }
}

CDP__PRIVATE void cdp__report_draw_rank(
    cdp__text *t, const uint64_t *e, uint32_t rank, uint64_t shift, uint64_t whole) {
    const uint32_t y = 20 + rank * 60;
    char name[64];
    uint64_t i;
    cdp__text_add(t, "<text x=\"5\" y=\"%u\">rank %u</text>\n", y + 17, rank);
    cdp__trace_bar(t, e[0] + shift, e[1] + shift, whole, y, "#7aa6c2", "backward");
    cdp__trace_bar(t, e[1] + shift, e[2] + shift, whole, y, "#d9d9d9", "wait");
    for (i = 0; i < e[3]; ++i) {
        if (e[4 + 2 * i] < e[0]) continue;
        cdp__format(name, sizeof name, "bucket %u", (unsigned)i);
        cdp__trace_bar(t, e[4 + 2 * i] + shift, e[5 + 2 * i] + shift, whole, y + 25,
            i % 2 ? "#c98f5a" : "#e0b07f", name);
    }
}

/* `events` of rank k plus offsets[k] are on one clock. */
CDP__PRIVATE void cdp__report_draw(
    cdp__text *t, const uint64_t *events, const int64_t *offsets, uint32_t n, uint64_t steps) {
    const uint32_t height = 60 * n + 50;
    uint64_t first = UINT64_MAX, last = 0;
    uint32_t k;
    for (k = 0; k < n; ++k) {
        const uint64_t *e = events + k * CDP__REPORT_EVENTS, shift = (uint64_t)offsets[k];
        first = cdp__min(first, e[0] + shift);
        last = cdp__max(last, e[2] + shift);
    }
    cdp__svg_begin(t, 1000, height);
    for (k = 0; k < n; ++k)
        cdp__report_draw_rank(t, events + k * CDP__REPORT_EVENTS, k, (uint64_t)offsets[k] - first,
            cdp__max(last - first, 1));
    cdp__text_add(t, "<text x=\"80\" y=\"%u\">step %llu of %u ranks: %llu us</text>\n</svg>\n",
        height - 15, (unsigned long long)steps, n, (unsigned long long)((last - first) / 1000));
}

CDP_API cdp_status cdp_report_svg(cdp_report *r, char *text, uint64_t room, uint64_t *bytes) {
    cdp_status st = cdp__report_usable(r, "cdp_report_svg");
    cdp__text t = cdp__text_of(text, room);
    uint64_t *events;
    int64_t *offsets; /* of rank k: is added to its times */
    uint32_t n;
    if (bytes) *bytes = 0;
    if (st != CDP_OK) return st;
    if (!r->desc.ddp->end_ns || r->desc.ddp->end_ns < r->desc.ddp->begin_ns)
        return cdp__fail(CDP_ERR_STATE,
            "cdp_report_svg: the last pass is open, or was not synchronized (cdp_ddp_no_sync), or "
            "there was none; call it after a synchronized one");
    n = cdp_size(r->group);
    events = (uint64_t *)cdp__alloc_zero(r->os, n * (CDP__REPORT_EVENTS + 1ull) * 8);
    if (!events) return cdp__fail_nomem("a picture", n * (CDP__REPORT_EVENTS + 1ull) * 8);
    offsets = (int64_t *)(events + n * CDP__REPORT_EVENTS);
    cdp__report_events(r->desc.ddp, events + cdp_rank(r->group) * CDP__REPORT_EVENTS);
    st = cdp_allgather(r->group, NULL, events, CDP__REPORT_EVENTS, CDP_DTYPE_U64);
    if (st == CDP_OK) st = cdp__clock_compare(r->group, r->os, &offsets[cdp_rank(r->group)]);
    if (st == CDP_OK) st = cdp_allgather(r->group, NULL, offsets, 1, CDP_DTYPE_I64);
    if (st == CDP_OK) cdp__report_draw(&t, events, offsets, n, r->desc.ddp->stats.steps);
    if (st == CDP_OK && bytes) *bytes = cdp__text_end(&t);
    cdp__free(r->os, events);
    return st;
}

/* ---- creation ---- */

CDP__PRIVATE void cdp__report_free(cdp_report *r) {
    const cdp_status st = r->work.seq ? cdp_work_wait(r->work) : CDP_OK;
    (void)st;
#ifndef CDP_NO_GROUPS
    if (r->group) cdp_group_destroy(r->group);
#endif
    cdp__free(r->os, r->mine);
    cdp__free(r->os, r->all);
    cdp__free(r->os, r);
}

CDP__PRIVATE cdp_status cdp__report_memory(cdp_report *r, uint32_t n) {
    r->mine = (uint64_t *)cdp__alloc_zero(r->os, r->row * sizeof *r->mine);
    r->all = (uint64_t *)cdp__alloc_zero(r->os, n * r->row * sizeof *r->all);
    return r->mine && r->all ? CDP_OK : cdp__fail_nomem("a report", n * r->row * sizeof *r->all);
}

CDP_API cdp_status cdp_report_create(const cdp_report_desc *desc, cdp_report **out) {
    cdp_report *r;
    cdp_status st;
    if (!out) return cdp__missing("cdp_report_create", "out");
    *out = NULL;
    if (!desc) return cdp__missing("cdp_report_create", "desc");
    st = cdp__ddp_between(desc->ddp, "cdp_report_create");
    if (st != CDP_OK) return st;
    r = (cdp_report *)cdp__alloc_zero(desc->ddp->os, sizeof *r);
    if (!r) st = cdp__fail_nomem("a report", sizeof *r);
    if (!r) return cdp__vote(desc->ddp->group, st, "cdp_report_create");
    r->desc = *desc;
    r->desc.every = cdp__def(desc->every, 10);
    r->os = desc->ddp->os;
    r->row = (uint64_t)CDP__REPORT_BUSY + r->desc.every;
    st = cdp__report_memory(r, cdp_size(desc->ddp->group));
    st = cdp__vote(desc->ddp->group, st, "cdp_report_create");
    if (st == CDP_OK) {
        st = cdp__group_alike(desc->ddp->group, (uint32_t *)r->all, &r->group);
        st = cdp__vote(desc->ddp->group, st, "cdp_report_create");
    }
    if (st != CDP_OK) {
        cdp__report_free(r);
        return st;
    }
    cdp__ended_remove(r);
    *out = r;
    return CDP_OK;
}

CDP_API void cdp_report_destroy(cdp_report *r) {
    if (!r || cdp__ended(r)) return;
    cdp__ended_add(r);
    cdp__report_free(r);
}

#endif /* CDP_NO_TRAINING */
#endif /* CDP_NO_TRACE */
#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_TRAIN_REPORT_H */
