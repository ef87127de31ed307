/* pipeline/schedule.h - schedules: made, proved and shown

   Knows: descs and memory. Promises: a schedule that exists is complete and ends. */
#ifndef CDP_SRC_PIPELINE_SCHEDULE_H
#define CDP_SRC_PIPELINE_SCHEDULE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../os/whole.h"
#include "../message/transport_api.h"
#include "../base/compiler.h"
#include "../base/ended.h"
#include "../base/helpers.h"
#include "../text/format.h"
#include "schedule_api.h"
#include "table.h"
#include "kinds.h"
#include "rules.h"
#include "pace.h"
#include "csv.h"

#include <string.h>

#define CDP__PIPE_ROWS 0x40000000u /* most rows of a schedule */

struct cdp_schedule {
    const cdp_os *os;
    cdp__pipe_table table;
};

/* Zeroed memory. */
CDP__PRIVATE void *cdp__pipe_alloc(const cdp_os *os, uint64_t bytes) {
    void *const p = os->alloc(os->user, bytes ? bytes : 1);
    if (p) memset(p, 0, (size_t)bytes);
    return p;
}
CDP__PRIVATE void cdp__pipe_free(const cdp_os *os, void *p) {
    if (p) os->release(os->user, p);
}

CDP__PRIVATE CDP__COLD cdp_status cdp__pipe_nomem(const char *call, uint64_t bytes) {
    return cdp_error_set(
        CDP_ERR_NOMEM, -1, 0, "%s: out of memory: %llu bytes", call, (unsigned long long)bytes);
}

CDP__PRIVATE CDP__COLD cdp_status cdp__pipe_missing(const char *call, const char *what) {
    return cdp_error_set(CDP_ERR_INVALID, -1, 0, CDP__MISSING, call, what);
}

/* ---- making one ---- */

CDP__PRIVATE CDP__COLD cdp_status cdp__pipe_invalid(const char *why) {
    return cdp_error_set(CDP_ERR_INVALID, -1, 0, "cdp_schedule_create: %s", why);
}

CDP__PRIVATE cdp_status cdp__pipe_room(cdp_schedule *s, uint64_t rows) {
    cdp__pipe_table *t = &s->table;
    const uint64_t bytes = rows * sizeof *t->acts;
    t->first = (uint64_t *)cdp__pipe_alloc(s->os, (t->ranks + 1ull) * sizeof *t->first);
    t->place = (uint32_t *)cdp__pipe_alloc(s->os, (uint64_t)t->stages * sizeof *t->place);
    t->acts = (cdp_act *)cdp__pipe_alloc(s->os, bytes);
    if (t->first && t->place && t->acts) return CDP_OK;
    return cdp__pipe_nomem("cdp_schedule_create", bytes);
}

/* The sizes that a kind asks for. */
CDP__PRIVATE cdp_status cdp__pipe_fits(const cdp_schedule_desc *d, uint32_t v) {
    const uint32_t p = d->ranks, m = d->micros;
    const char *needs = NULL;
    if ((uint32_t)d->kind > (uint32_t)CDP_PIPE_EVAL)
        return cdp__pipe_invalid("desc.kind is none of cdp_pipe_kind");
    if (!p || !m) return cdp__pipe_invalid("desc.ranks and desc.micros must be at least 1");
    if ((uint64_t)p * v > UINT16_MAX || (uint64_t)p * v * m > CDP__PIPE_ROWS / 3)
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_schedule_create: %u ranks x %u stages x %u micro-batches; at most 65535 stages, "
            "and %u micro-batches of stages",
            p, v, m, CDP__PIPE_ROWS / 3);
    if (d->kind <= CDP_PIPE_GPIPE && v != 1)
        needs = "1F1B and GPipe have one stage on each rank: take INTERLEAVED or BFS";
    if (cdp__pipe_is_v(d->kind) && v != 2) needs = "ZBV and DualPipeV have 2 stages on each rank";
    if (d->kind == CDP_PIPE_DUALPIPEV && m < 2 * p)
        needs = "DualPipeV needs at least 2 micro-batches for each rank";
    if ((d->kind == CDP_PIPE_INTERLEAVED || d->kind == CDP_PIPE_ZERO_BUBBLE)
        && !cdp__pipe_turn(p, m))
        needs = "interleaved schedules need a multiple of micro-batches / ranks, rounded down";
    if (!needs) return CDP_OK;
    return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
        "cdp_schedule_create: %s (ranks %u, stages_per_rank %u, micros %u)", needs, p, v, m);
}

CDP__PRIVATE cdp_status cdp__pipe_built_in(cdp_schedule *s, const cdp_schedule_desc *d) {
    const uint32_t v = cdp__def(d->stages_per_rank, cdp__pipe_is_v(d->kind) ? 2u : 1u);
    cdp__pipe_table *t = &s->table;
    cdp__pipe_maker k;
    cdp_status st = cdp__pipe_fits(d, v);
    if (st != CDP_OK) return st;
    t->ranks = d->ranks;
    t->stages = d->ranks * v;
    t->micros = d->micros;
    st = cdp__pipe_room(s, cdp__pipe_cells(t) * cdp__pipe_row_kinds(d->kind));
    if (st != CDP_OK) return st;
    for (uint32_t i = 0; i < t->stages; ++i)
        t->place[i] = cdp__pipe_place(d->kind, d->ranks, i);
    for (uint32_t r = 0; r < t->ranks; ++r) {
        memset(&k, 0, sizeof k);
        k.p = d->ranks;
        k.v = v;
        k.m = d->micros;
        k.ahead = d->ahead;
        k.rank = r;
        k.acts = t->acts + t->first[r];
        cdp__pipe_make(&k, d->kind);
        t->first[r + 1] = t->first[r] + k.count;
    }
    return CDP_OK;
}

/* A stage lies where its first action is, or where the desc says. */
CDP__PRIVATE cdp_status cdp__pipe_find_places(cdp__pipe_table *t, const cdp_schedule_desc *d) {
    for (uint32_t i = 0; i < t->stages; ++i) {
        t->place[i] = d->place && i < d->stages ? d->place[i] : UINT32_MAX;
        if (d->place && (i >= d->stages || t->place[i] >= t->ranks))
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_schedule_create: desc.place has no rank for stage %u", i);
    }
    for (uint32_t r = 0; r < t->ranks; ++r)
        for (uint64_t i = t->first[r]; i < t->first[r + 1] && !d->place; ++i)
            if (t->place[t->acts[i].stage] == UINT32_MAX) t->place[t->acts[i].stage] = r;
    for (uint32_t i = 0; i < t->stages; ++i)
        if (t->place[i] == UINT32_MAX)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_schedule_create: no rank has an action of stage %u of %u", i, t->stages);
    return CDP_OK;
}

/* Takes the sizes of rows of one's own. Nothing as large as the sizes is allocated unless so many
   rows are there. */
CDP__PRIVATE cdp_status cdp__pipe_take_sizes(
    cdp_schedule *s, const cdp_schedule_desc *d, const cdp__pipe_text_size *size) {
    cdp__pipe_table *t = &s->table;
    t->ranks = (uint32_t)cdp__max(size->ranks, d->ranks);
    t->stages = (uint32_t)cdp__max(size->stages, d->place ? d->stages : 0);
    t->micros = (uint32_t)cdp__max(size->micros, d->micros);
    if ((d->ranks && size->ranks > d->ranks) || (d->micros && size->micros > d->micros))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_schedule_create: the rows are of %u ranks and %u micro-batches, desc.ranks is %u "
            "and desc.micros %u",
            size->ranks, size->micros, d->ranks, d->micros);
    if (!size->rows) return cdp__pipe_invalid("there is no action");
    if (size->rows > CDP__PIPE_ROWS || t->ranks > UINT16_MAX)
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_schedule_create: %llu rows of %u ranks; at most %u of 65535",
            (unsigned long long)size->rows, t->ranks, CDP__PIPE_ROWS);
    if (cdp__pipe_cells(t) > size->rows)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_schedule_create: actions are missing: %llu rows for %u stages and %u "
            "micro-batches",
            (unsigned long long)size->rows, t->stages, t->micros);
    return cdp__pipe_room(s, size->rows);
}

CDP__PRIVATE cdp_status cdp__pipe_from_text(
    cdp_schedule *s, const cdp_schedule_desc *d, cdp__text *why) {
    cdp__pipe_text_size size;
    cdp__pipe_table *t = &s->table;
    if (!cdp__pipe_read_text(d->csv, &size, NULL, NULL, 0, why)) return cdp__pipe_invalid(why->at);
    const cdp_status st = cdp__pipe_take_sizes(s, d, &size);
    if (st != CDP_OK) return st;
    (void)cdp__pipe_read_text(d->csv, &size, t->acts, t->first, t->ranks, why);
    for (uint32_t r = size.ranks; r < t->ranks; ++r)
        t->first[r + 1] = size.rows;
    return cdp__pipe_find_places(t, d);
}

CDP__PRIVATE cdp_status cdp__pipe_from_rows(cdp_schedule *s, const cdp_schedule_desc *d) {
    cdp__pipe_table *t = &s->table;
    cdp__pipe_text_size size;
    memset(&size, 0, sizeof size);
    size.ranks = d->ranks;
    if (!d->ranks || !d->row_counts)
        return cdp__pipe_invalid("desc.rows needs desc.ranks and desc.row_counts");
    for (uint32_t r = 0; r < d->ranks; ++r) {
        if (d->row_counts[r] && !d->rows[r])
            return cdp_error_set(
                CDP_ERR_INVALID, -1, 0, "cdp_schedule_create: desc.rows[%u] is NULL", r);
        for (uint32_t i = 0; i < d->row_counts[r]; ++i, ++size.rows) {
            size.stages = (uint32_t)cdp__max(size.stages, d->rows[r][i].stage + 1u);
            size.micros = (uint32_t)cdp__max(size.micros,
                d->rows[r][i].micro == UINT32_MAX ? UINT32_MAX : d->rows[r][i].micro + 1u);
        }
    }
    const cdp_status st = cdp__pipe_take_sizes(s, d, &size);
    if (st != CDP_OK) return st;
    for (uint32_t r = 0; r < d->ranks; ++r) {
        t->first[r + 1] = t->first[r] + d->row_counts[r];
        if (d->row_counts[r])
            memcpy(t->acts + t->first[r], d->rows[r], d->row_counts[r] * sizeof *t->acts);
    }
    return cdp__pipe_find_places(t, d);
}

/* ---- proving it ---- */

/* Memory of a walk over a table, in one piece. */
typedef struct cdp__pipe_walk {
    void *memory;
    double *forward, *backward, *start, *end, *free;
    uint64_t *at, *posted;
    uint8_t *state;
    bool *sent;
} cdp__pipe_walk;

CDP__PRIVATE cdp_status cdp__pipe_walk_open(
    const cdp_schedule *s, const char *call, cdp__pipe_walk *w) {
    const cdp__pipe_table *t = &s->table;
    const uint64_t cells = cdp__pipe_cells(t), rows = t->first[t->ranks], p = t->ranks;
    const uint64_t bytes = (2 * cells + 2 * rows + p) * sizeof(double) + 2 * p * sizeof(uint64_t)
        + 2 * cells + p * sizeof(bool);
    memset(w, 0, sizeof *w);
    w->memory = cdp__pipe_alloc(s->os, bytes);
    if (!w->memory) return cdp__pipe_nomem(call, bytes);
    w->forward = (double *)w->memory;
    w->backward = w->forward + cells;
    w->start = w->backward + cells;
    w->end = w->start + rows;
    w->free = w->end + rows;
    w->at = (uint64_t *)(void *)(w->free + p);
    w->posted = w->at + p;
    w->state = (uint8_t *)(void *)(w->posted + p);
    w->sent = (bool *)(void *)(w->state + 2 * cells);
    return CDP_OK;
}

CDP__PRIVATE cdp__pipe_pace cdp__pipe_pace_of(const cdp_schedule *s, const cdp__pipe_walk *w) {
    cdp__pipe_pace k;
    memset(&k, 0, sizeof k);
    k.table = &s->table;
    k.forward = w->forward;
    k.backward = w->backward;
    k.start = w->start;
    k.end = w->end;
    k.free = w->free;
    k.at = w->at;
    return k;
}

CDP__PRIVATE cdp_status cdp__pipe_prove(cdp_schedule *s, cdp__text *why) {
    cdp__pipe_walk w;
    cdp_status st = cdp__pipe_walk_open(s, "cdp_schedule_create", &w);
    if (st != CDP_OK) return st;
    if (!cdp__pipe_valid(&s->table, w.state, why)) {
        st = cdp__pipe_invalid(why->at);
    } else {
        cdp__pipe_pace k = cdp__pipe_pace_of(s, &w);
        if (!cdp__pipe_run_rows(&k)) {
            cdp__text_add(why, "ranks wait for each other");
            cdp__pipe_add_waits(why, &s->table, k.at);
            st = cdp__pipe_invalid(why->at);
        }
    }
    cdp__pipe_free(s->os, w.memory);
    return st;
}

CDP__PRIVATE bool cdp__pipe_has_schedule(const cdp_schedule *s) {
    return s && !cdp__ended(s);
}

/* Refuses no schedule, and one that was destroyed. */
CDP__PRIVATE cdp_status cdp__pipe_schedule_lives(
    const cdp_schedule *s, const char *call, const char *argument) {
    if (!s) return cdp__pipe_missing(call, argument);
    if (!cdp__ended(s)) return CDP_OK;
    return cdp_error_set(CDP_ERR_STATE, -1, 0, "%s: this schedule was destroyed", call);
}

CDP_API void cdp_schedule_destroy(cdp_schedule *schedule) {
    if (!schedule || cdp__ended(schedule)) return;
    cdp__ended_add(schedule);
    const cdp_os *os = schedule->os;
    cdp__pipe_free(os, schedule->table.first);
    cdp__pipe_free(os, schedule->table.place);
    cdp__pipe_free(os, schedule->table.acts);
    cdp__pipe_free(os, schedule);
}

CDP_API cdp_status cdp_schedule_create(const cdp_schedule_desc *desc, cdp_schedule **out) {
    char room[600];
    cdp__text why = cdp__text_of(room, sizeof room);
    cdp_status st;
    if (out) *out = NULL;
    if (!desc || !out) return cdp__pipe_missing("cdp_schedule_create", desc ? "out" : "desc");
    if (cdp__os_whole(desc->os, "cdp_schedule_create") != CDP_OK) return CDP_ERR_INVALID;
    const cdp_os *os = desc->os ? desc->os : cdp_os_default();
    if (!os) return cdp__pipe_missing("cdp_schedule_create", "desc.os");
    cdp_schedule *s = (cdp_schedule *)cdp__pipe_alloc(os, sizeof *s);
    if (!s) return cdp__pipe_nomem("cdp_schedule_create", sizeof *s);
    cdp__ended_remove(s);
    s->os = os;
    if (desc->csv)
        st = cdp__pipe_from_text(s, desc, &why);
    else
        st = desc->rows ? cdp__pipe_from_rows(s, desc) : cdp__pipe_built_in(s, desc);
    if (st == CDP_OK) st = cdp__pipe_prove(s, &why);
    if (st == CDP_OK)
        *out = s;
    else
        cdp_schedule_destroy(s);
    return st;
}

/* ---- what it says ---- */

CDP_API cdp_schedule_info cdp_schedule_info_of(const cdp_schedule *schedule) {
    cdp_schedule_info i;
    memset(&i, 0, sizeof i);
    if (!cdp__pipe_has_schedule(schedule)) return i;
    i.ranks = schedule->table.ranks;
    i.stages = schedule->table.stages;
    i.micros = schedule->table.micros;
    i.forward_only = schedule->table.forward_only;
    i.split = schedule->table.split;
    i.rows = schedule->table.first[i.ranks];
    return i;
}

CDP_API uint32_t cdp_schedule_rows(
    const cdp_schedule *schedule, uint32_t rank, const cdp_act **acts) {
    if (acts) *acts = NULL;
    if (!cdp__pipe_has_schedule(schedule) || rank >= schedule->table.ranks) return 0;
    const cdp__pipe_table *t = &schedule->table;
    if (acts) *acts = t->acts + t->first[rank];
    return (uint32_t)(t->first[rank + 1] - t->first[rank]);
}

CDP_API uint32_t cdp_schedule_rank_of(const cdp_schedule *schedule, uint32_t stage) {
    if (!cdp__pipe_has_schedule(schedule) || stage >= schedule->table.stages) return UINT32_MAX;
    return schedule->table.place[stage];
}

CDP_API uint32_t cdp_schedule_peak(const cdp_schedule *schedule, uint32_t rank) {
    if (!cdp__pipe_has_schedule(schedule) || rank >= schedule->table.ranks) return 0;
    return cdp__pipe_peak(&schedule->table, rank);
}

CDP_API uint64_t cdp_schedule_text(
    const cdp_schedule *schedule, cdp_pipe_text what, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    if (cdp__pipe_has_schedule(schedule))
        cdp__pipe_write_text(&t, &schedule->table, what == CDP_PIPE_CSV_ALL);
    return cdp__text_end(&t);
}

/* ---- on paper ---- */

CDP__PRIVATE void cdp__pipe_rank_times(const cdp__pipe_pace *k, uint32_t r, cdp_pipe_preview *out) {
    const cdp__pipe_table *t = k->table;
    double work = 0;
    if (t->first[r] == t->first[r + 1]) return;
    for (uint64_t i = t->first[r]; i < t->first[r + 1]; i += cdp__pipe_width(&t->acts[i]))
        work += cdp__pipe_span(k, &t->acts[i]);
    const double last = k->end[t->first[r + 1] - 1];
    const double waits = last - k->start[t->first[r]] - work;
    if (work > out->work_us) out->work_us = work;
    if (last > out->step_us) out->step_us = last;
    if (waits > out->rank_us) out->rank_us = waits;
}

CDP__PRIVATE void cdp__pipe_count_messages(
    const cdp_schedule *s, cdp__pipe_walk *w, cdp_pipe_preview *out) {
    const cdp__pipe_table *t = &s->table;
    for (uint64_t i = 0; i < t->first[t->ranks]; ++i)
        if (cdp__pipe_gives(t, &t->acts[i]) != CDP__PIPE_NONE) ++out->messages;
    for (uint32_t r = 0; r < t->ranks; ++r) {
        const uint32_t peak = cdp__pipe_peak(t, r);
        if (peak > out->peak) {
            out->peak = peak;
            out->peak_rank = r;
        }
        memset(w->state, 0, (size_t)(2 * cdp__pipe_cells(t)));
        const uint32_t slots = cdp__pipe_slots_of(t, r, w->state, w->at);
        if (slots > out->slots) out->slots = slots;
    }
}

/* Is it a time? */
CDP__PRIVATE bool cdp__pipe_is_time(double us) {
    return us >= 0 && us < 1e300;
}

CDP__PRIVATE cdp_status cdp__pipe_check_costs(
    const char *call, const cdp_schedule *schedule, const cdp_pipe_cost *each_stage) {
    for (uint32_t s = 0; s < schedule->table.stages; ++s) {
        const cdp_pipe_cost *c = &each_stage[s];
        if (!cdp__pipe_is_time(c->f_us) || !cdp__pipe_is_time(c->i_us)
            || !cdp__pipe_is_time(c->w_us) || !cdp__pipe_is_time(c->pair_us)
            || !cdp__pipe_is_time(c->message_us))
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "%s: each_stage[%u] has a time that is negative or no number", call, s);
    }
    return CDP_OK;
}

CDP_API cdp_status cdp_schedule_preview(const cdp_schedule *schedule,
    const cdp_pipe_cost *each_stage, bool early, cdp_pipe_preview *out) {
    cdp__pipe_walk w;
    if (out) memset(out, 0, sizeof *out);
    cdp_status st = cdp__pipe_schedule_lives(schedule, "cdp_schedule_preview", "schedule");
    if (st == CDP_OK && (!each_stage || !out))
        st = cdp__pipe_missing("cdp_schedule_preview", out ? "each_stage" : "out");
    if (st == CDP_OK) st = cdp__pipe_check_costs("cdp_schedule_preview", schedule, each_stage);
    if (st == CDP_OK) st = cdp__pipe_walk_open(schedule, "cdp_schedule_preview", &w);
    if (st != CDP_OK) return st;
    cdp__pipe_pace k = cdp__pipe_pace_of(schedule, &w);
    k.cost = each_stage;
    k.early = early;
    (void)cdp__pipe_run_rows(&k);
    for (uint32_t r = 0; r < schedule->table.ranks; ++r)
        cdp__pipe_rank_times(&k, r, out);
    out->bubble_us = out->step_us - out->work_us;
    out->bubble = out->work_us > 0 ? out->bubble_us / out->work_us : 0;
    cdp__pipe_count_messages(schedule, &w, out);
    cdp__pipe_free(schedule->os, w.memory);
    return CDP_OK;
}

CDP_API cdp_status cdp_schedule_times(const cdp_schedule *schedule, const cdp_pipe_cost *each_stage,
    bool early, const cdp_pipe_times *out) {
    cdp__pipe_walk w;
    cdp_status st = cdp__pipe_schedule_lives(schedule, "cdp_schedule_times", "schedule");
    if (st != CDP_OK) return st;
    if (!each_stage || !out)
        return cdp__pipe_missing("cdp_schedule_times", out ? "each_stage" : "out");
    if (!out->start_us || !out->end_us)
        return cdp__pipe_missing(
            "cdp_schedule_times", out->start_us ? "out->end_us" : "out->start_us");
    st = cdp__pipe_check_costs("cdp_schedule_times", schedule, each_stage);
    if (st == CDP_OK) st = cdp__pipe_walk_open(schedule, "cdp_schedule_times", &w);
    if (st != CDP_OK) return st;
    cdp__pipe_pace k = cdp__pipe_pace_of(schedule, &w);
    k.cost = each_stage;
    k.early = early;
    k.start = out->start_us;
    k.end = out->end_us;
    (void)cdp__pipe_run_rows(&k);
    cdp__pipe_free(schedule->os, w.memory);
    return CDP_OK;
}

CDP_API cdp_status cdp_schedule_deadlock(const cdp_schedule *schedule, const cdp_pipe_wire *wire) {
    char room[600];
    cdp__text why = cdp__text_of(room, sizeof room);
    cdp__pipe_walk w;
    cdp__pipe_messages k;
    cdp_status st = cdp__pipe_schedule_lives(schedule, "cdp_schedule_deadlock", "schedule");
    if (st == CDP_OK && !wire) st = cdp__pipe_missing("cdp_schedule_deadlock", "wire");
    if (st == CDP_OK) st = cdp__pipe_walk_open(schedule, "cdp_schedule_deadlock", &w);
    if (st != CDP_OK) return st;
    memset(&k, 0, sizeof k);
    k.table = &schedule->table;
    k.wire = *wire;
    k.state = w.state;
    k.at = w.at;
    k.posted = w.posted;
    k.sent = w.sent;
    if (wire->buffers) {
        const uint64_t bytes = (uint64_t)schedule->table.ranks * schedule->table.ranks * 4;
        k.buffered = (uint32_t *)cdp__pipe_alloc(schedule->os, bytes);
        if (!k.buffered) st = cdp__pipe_nomem("cdp_schedule_deadlock", bytes);
    }
    if (st == CDP_OK && !cdp__pipe_messages_end(&k)) {
        cdp__pipe_add_waits(&why, &schedule->table, k.at);
        st = cdp_error_set(CDP_ERR_STATE, -1, 0,
            "cdp_schedule_deadlock: with sends like these ranks wait for each other%s", room);
    }
    cdp__pipe_free(schedule->os, k.buffered);
    cdp__pipe_free(schedule->os, w.memory);
    return st;
}

#endif /* CDP_SRC_PIPELINE_SCHEDULE_H */
