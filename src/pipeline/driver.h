/* pipeline/driver.h - a step: rows of this rank, one after the other

   Knows: callbacks, memory of tensors, sends and receives. Promises: a send never stops a row;
   every operation has the deadline of the step; later steps allocate nothing here. */
#ifndef CDP_SRC_PIPELINE_DRIVER_H
#define CDP_SRC_PIPELINE_DRIVER_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../group/messages_api.h"
#include "../base/compiler.h"
#include "../base/ended.h"
#include "../base/helpers.h"
#include "../text/format.h"
#include "schedule_api.h"
#include "driver_api.h"
#include "table.h"
#include "rules.h"
#include "schedule.h"
#include "places.h"
#include "state.h"
#include "reduce.h"
#include "shards.h"
#include "meet.h"

#define CDP__PIPE_STEP_MS 600000u /* as cdp_group_desc.timeout_ms */

/* ---- memory ---- */

/* The pointers of a role of a micro-batch of a stage of this rank. */
CDP__PRIVATE void **cdp__pipe_list(
    const cdp_pipeline *p, uint32_t stage, uint32_t micro, cdp_pipe_role role) {
    const uint64_t cell = (uint64_t)p->nth[stage] * p->table->micros + micro;
    return p->pointers + (cell * 4 + (uint64_t)role) * p->widest;
}

CDP__PRIVATE const cdp_pipe_edge *cdp__pipe_edges(
    const cdp_pipe_stage *s, cdp_pipe_role role, uint32_t *count) {
    const bool in = role == CDP_PIPE_IN || role == CDP_PIPE_GRAD_IN;
    *count = in ? s->in_count : s->out_count;
    return in ? s->in : s->out;
}

/* Is the memory that of a neighbour stage on the same rank? */
CDP__PRIVATE bool cdp__pipe_is_shared(
    const cdp_pipeline *p, uint32_t stage, cdp_pipe_role role, uint32_t *from) {
    *from = role == CDP_PIPE_IN ? stage - 1 : stage + 1;
    if (role == CDP_PIPE_IN) return stage && p->table->place[stage - 1] == p->rank;
    return role == CDP_PIPE_GRAD_OUT && stage + 1 < p->table->stages
        && p->table->place[stage + 1] == p->rank;
}

CDP__PRIVATE bool cdp__pipe_has_role(const cdp_pipeline *p, cdp_pipe_role role) {
    return !p->table->forward_only || role == CDP_PIPE_IN || role == CDP_PIPE_OUT;
}

/* Places the tensors of a role of a stage from `*used` bytes of the pipeline's memory on; without
   memory it counts only. */
CDP__PRIVATE cdp_status cdp__pipe_place_role(
    cdp_pipeline *p, uint32_t stage, cdp_pipe_role role, uint64_t *used) {
    const cdp_pipe_stage *s = &p->stages[p->nth[stage]];
    uint32_t count, from;
    const cdp_pipe_edge *edges = cdp__pipe_edges(s, role, &count);
    if (!cdp__pipe_has_role(p, role) || cdp__pipe_is_shared(p, stage, role, &from)) return CDP_OK;
    for (uint32_t i = 0; i < p->table->micros; ++i) {
        for (uint32_t k = 0; k < count; ++k) {
            void **at = &cdp__pipe_list(p, stage, i, role)[k];
            if (!s->memory) {
                *at = p->memory ? p->memory + *used : NULL;
                *used += (edges[k].count * cdp_dtype_size(edges[k].dtype) + 63) & ~63ull;
                continue;
            }
            if (!p->memory) continue; /* asked for once */
            *at = s->memory(s->user, role, i, k);
            if (!*at)
                return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                    "cdp_pipeline_create: memory() of stage %u gives NULL for micro-batch %u",
                    stage, i);
        }
    }
    return CDP_OK;
}

CDP__PRIVATE void cdp__pipe_share_role(cdp_pipeline *p, uint32_t stage, cdp_pipe_role role) {
    const cdp_pipe_role other = role == CDP_PIPE_IN ? CDP_PIPE_OUT : CDP_PIPE_GRAD_IN;
    uint32_t from;
    if (!cdp__pipe_is_shared(p, stage, role, &from)) return;
    for (uint32_t i = 0; i < p->table->micros; ++i)
        memcpy(cdp__pipe_list(p, stage, i, role), cdp__pipe_list(p, from, i, other),
            p->widest * sizeof(void *));
}

CDP__PRIVATE cdp_status cdp__pipe_place_all(cdp_pipeline *p, uint64_t *used) {
    *used = 0;
    for (uint32_t s = 0; s < p->table->stages; ++s) {
        if (p->table->place[s] != p->rank) continue;
        for (uint32_t role = 0; role < 4; ++role) {
            const cdp_status st = cdp__pipe_place_role(p, s, (cdp_pipe_role)role, used);
            if (st != CDP_OK) return st;
        }
    }
    for (uint32_t s = 0; s < p->table->stages && p->memory; ++s) {
        if (p->table->place[s] != p->rank) continue;
        cdp__pipe_share_role(p, s, CDP_PIPE_IN);
        cdp__pipe_share_role(p, s, CDP_PIPE_GRAD_OUT);
    }
    return CDP_OK;
}

/* ---- creation ---- */

CDP__PRIVATE cdp_status cdp__pipe_check_stage(
    const cdp__pipe_table *t, const cdp_pipe_stage *s, uint32_t stage) {
    const char *lacks = NULL;
    if (!s->forward) lacks = "forward";
    if (!t->forward_only && t->split && (!s->backward_input || !s->backward_weights))
        lacks = s->backward_input ? "backward_weights" : "backward_input";
    for (uint64_t i = t->first[t->place[stage]]; i < t->first[t->place[stage] + 1]; ++i)
        if (t->acts[i].stage == stage && t->acts[i].kind == CDP_ACT_B && !s->backward)
            lacks = "backward";
    if (stage && !s->in_count) lacks = "in";
    if (stage + 1 < t->stages && !s->out_count) lacks = "out";
    if ((s->in_count && !s->in) || (s->out_count && !s->out)) lacks = s->in ? "out" : "in";
    if (lacks)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_pipeline_create: stage %u lacks .%s, which the schedule needs", stage, lacks);
    if ((!stage && s->in_count) || (stage + 1 == t->stages && s->out_count))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_pipeline_create: the first stage has no in, and the last one no out; set %s of "
            "stage %u to 0",
            stage ? "out_count" : "in_count", stage);
    for (uint32_t k = 0; k < s->in_count + s->out_count; ++k) {
        const cdp_pipe_edge *e = k < s->in_count ? &s->in[k] : &s->out[k - s->in_count];
        if (!cdp_dtype_size(e->dtype) || e->count > UINT64_MAX >> 8)
            return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
                "cdp_pipeline_create: a tensor of stage %u has dtype %d and %llu elements", stage,
                (int)e->dtype, (unsigned long long)e->count);
    }
    for (uint32_t i = 0; i < s->group_count; ++i)
        if (!s->groups || !s->groups[i])
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_pipeline_create: stage %u has .group_count %u and lacks .groups[%u]", stage,
                s->group_count, i);
    return cdp__pipe_check_shards(s, stage);
}

CDP__PRIVATE cdp_status cdp__pipe_check_desc(const cdp_pipeline_desc *d) {
    const cdp__pipe_table *t = &d->schedule->table;
    const uint32_t rank = cdp_rank(d->group);
    uint32_t own = 0;
    if (d->stage_count && !d->stages)
        return cdp__pipe_missing("cdp_pipeline_create", "desc.stages");
    if (cdp_size(d->group) != t->ranks)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_pipeline_create: the group has %u ranks, the schedule %u", cdp_size(d->group),
            t->ranks);
    for (uint32_t s = 0; s < t->stages; ++s) {
        if (t->place[s] != rank) continue;
        if (own < d->stage_count) {
            const cdp_status st = cdp__pipe_check_stage(t, &d->stages[own], s);
            if (st != CDP_OK) return st;
        }
        ++own;
    }
    if (own != d->stage_count)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_pipeline_create: this rank has %u stages, desc.stage_count is %u", own,
            d->stage_count);
    const cdp_status st = cdp__pipe_check_tied(t, d->stages, own, rank);
    if (st != CDP_OK) return st;
    if (cdp__pipe_cells(t) * 2 + d->tag > INT32_MAX)
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_pipeline_create: tags beyond 31 bits: %u stages x %u micro-batches from tag %u on",
            t->stages, t->micros, d->tag);
    return CDP_OK;
}

/* The first row of each stage of this rank, and the last one. */
CDP__PRIVATE void cdp__pipe_find_turns(cdp_pipeline *p) {
    for (uint64_t row = p->rows; row-- > 0;)
        p->turns[2 * p->nth[cdp__pipe_row(p, row)->stage]] = row;
    for (uint64_t row = 0; row < p->rows; ++row)
        p->turns[2 * p->nth[cdp__pipe_row(p, row)->stage] + 1] = row;
}

/* Copies `bytes` of a list behind *used bytes, and *used grows; without `kept` it is counted alone.
   Returns where the copy is. */
CDP__PRIVATE const void *cdp__pipe_keep(
    uint8_t *kept, uint64_t *used, const void *list, uint64_t bytes) {
    const uint64_t at = *used;
    *used += (bytes + 7) / 8 * 8;
    if (!kept || !bytes) return list;
    memcpy(kept + at, list, (size_t)bytes);
    return kept + at;
}

/* The lists of this rank's stages, in memory of the pipeline. Returns how many bytes they have. */
CDP__PRIVATE uint64_t cdp__pipe_keep_lists(cdp_pipe_stage *stages, uint32_t count, uint8_t *kept) {
    uint64_t used = 0;
    for (uint32_t k = 0; k < count; ++k) {
        cdp_pipe_stage *s = &stages[k];
        s->in =
            (const cdp_pipe_edge *)cdp__pipe_keep(kept, &used, s->in, s->in_count * sizeof *s->in);
        s->out = (const cdp_pipe_edge *)cdp__pipe_keep(
            kept, &used, s->out, s->out_count * sizeof *s->out);
        s->tied = (const cdp_pipe_tied *)cdp__pipe_keep(
            kept, &used, s->tied, s->tied_count * sizeof *s->tied);
        s->groups = (cdp_group *const *)cdp__pipe_keep(
            kept, &used, s->groups, s->group_count * sizeof *s->groups);
    }
    return used;
}

CDP__PRIVATE cdp_status cdp__pipe_take_stages(cdp_pipeline *p, const cdp_pipeline_desc *d) {
    const uint64_t bytes = d->stage_count * sizeof *p->stages;
    p->stages = (cdp_pipe_stage *)cdp__pipe_alloc(p->os, bytes);
    if (!p->stages) return cdp__pipe_nomem("cdp_pipeline_create", bytes);
    if (bytes) memcpy(p->stages, d->stages, (size_t)bytes);
    const uint64_t lists = cdp__pipe_keep_lists(p->stages, d->stage_count, NULL);
    p->kept = (uint8_t *)cdp__pipe_alloc(p->os, lists);
    if (!p->kept) return cdp__pipe_nomem("cdp_pipeline_create", lists);
    (void)cdp__pipe_keep_lists(p->stages, d->stage_count, p->kept);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__pipe_take_desc(cdp_pipeline *p, const cdp_pipeline_desc *d) {
    const cdp__pipe_table *t = p->table;
    uint64_t used;
    uint32_t own = 0;
    bool *live;
    for (uint32_t k = 0; k < d->stage_count; ++k) {
        p->widest = (uint32_t)cdp__max(p->widest, d->stages[k].in_count);
        p->widest = (uint32_t)cdp__max(p->widest, d->stages[k].out_count);
    }
    const uint64_t lists = (uint64_t)d->stage_count * t->micros * 4;
    const cdp_status st = cdp__pipe_take_stages(p, d);
    if (st != CDP_OK) return st;
    p->nth = (uint32_t *)cdp__pipe_alloc(p->os, t->stages * sizeof *p->nth);
    p->slots = (uint32_t *)cdp__pipe_alloc(p->os, cdp__pipe_cells(t) * sizeof *p->slots);
    p->turns = (uint64_t *)cdp__pipe_alloc(p->os, 2ull * d->stage_count * sizeof *p->turns);
    p->pointers = (void **)cdp__pipe_alloc(p->os, lists * p->widest * sizeof *p->pointers);
    p->receives = (cdp_work *)cdp__pipe_alloc(p->os, p->rows * p->widest * sizeof *p->receives);
    p->sends = (cdp_work *)cdp__pipe_alloc(p->os, p->rows * p->widest * sizeof *p->sends);
    p->losses = (double *)cdp__pipe_alloc(p->os, t->micros * sizeof *p->losses);
    p->times = (uint64_t *)cdp__pipe_alloc(p->os, 2 * p->rows * sizeof *p->times);
    live = (bool *)cdp__pipe_alloc(p->os, p->rows + 1);
    if (live && p->slots) cdp__pipe_deal_slots(t, p->rank, p->slots, live);
    const bool dealt = live != NULL;
    cdp__pipe_free(p->os, live);
    if (!dealt || !p->nth || !p->slots || !p->turns || !p->pointers || !p->receives || !p->sends
        || !p->times || !p->losses)
        return cdp__pipe_nomem("cdp_pipeline_create", lists * p->widest * sizeof *p->pointers);
    for (uint32_t s = 0; s < t->stages; ++s)
        if (t->place[s] == p->rank) p->nth[s] = own++;
    cdp__pipe_find_turns(p);
    (void)cdp__pipe_place_all(p, &used);
    p->memory = (uint8_t *)cdp__pipe_alloc(p->os, used + 64);
    if (!p->memory) return cdp__pipe_nomem("cdp_pipeline_create", used);
    return cdp__pipe_place_all(p, &used);
}

CDP_API void cdp_pipeline_destroy(cdp_pipeline *pipeline) {
    cdp_pipeline *p = pipeline;
    if (!p || cdp__ended(p)) return;
    cdp__ended_add(p);
    const cdp_os *os = p->os;
    cdp__pipe_free(os, p->stages);
    cdp__pipe_free(os, p->kept);
    cdp__pipe_free(os, p->nth);
    cdp__pipe_free(os, p->slots);
    cdp_group_destroy(p->tie);
    cdp__pipe_free(os, p->tied);
    cdp__pipe_free(os, p->losses);
    cdp__pipe_free(os, p->turns);
    cdp__pipe_free(os, p->times);
    cdp__pipe_free(os, p->pointers);
    cdp__pipe_free(os, p->memory);
    cdp__pipe_free(os, p->receives);
    cdp__pipe_free(os, p->sends);
    cdp__pipe_free(os, p);
}

/* What this rank says of the edges of its stages: two words for each stage of all, and two
   for tied gradients. */
CDP__PRIVATE void cdp__pipe_hash_edges(const cdp_pipeline *p, uint64_t *hashes) {
    for (uint32_t s = 0; s < p->table->stages; ++s) {
        if (p->table->place[s] != p->rank) continue;
        const cdp_pipe_stage *k = &p->stages[p->nth[s]];
        hashes[2 * s] = cdp__pipe_edge_hash(k->in, k->in_count);
        hashes[2 * s + 1] = cdp__pipe_edge_hash(k->out, k->out_count);
        if (!s) hashes[2 * p->table->stages] = cdp__pipe_tied_hash(k);
        if (s + 1 == p->table->stages) hashes[2 * s + 3] = cdp__pipe_tied_hash(k);
    }
}

CDP_API cdp_status cdp_pipeline_create(const cdp_pipeline_desc *desc, cdp_pipeline **out) {
    if (out) *out = NULL;
    if (!desc || !out) return cdp__pipe_missing("cdp_pipeline_create", desc ? "out" : "desc");
    if (!desc->group) return cdp__pipe_missing("cdp_pipeline_create", "desc.group");
    cdp_status st =
        cdp__pipe_schedule_lives(desc->schedule, "cdp_pipeline_create", "desc.schedule");
    if (st != CDP_OK) return cdp__pipe_agree(desc, st, NULL); /* the others hear of it */
    const cdp_os *os = desc->schedule->os;
    const cdp__pipe_table *t = &desc->schedule->table;
    uint64_t *hashes = (uint64_t *)cdp__pipe_alloc(os, (2ull * t->stages + 2) * sizeof *hashes);
    cdp_pipeline *p = (cdp_pipeline *)cdp__pipe_alloc(os, sizeof *p);
    if (p) cdp__ended_remove(p);
    st = cdp__pipe_check_desc(desc);
    if (!hashes || !p) st = cdp__pipe_nomem("cdp_pipeline_create", sizeof *p);
    if (st == CDP_OK) {
        p->desc = *desc;
        p->os = os;
        p->table = t;
        p->rank = cdp_rank(desc->group);
        p->stage_count = desc->stage_count;
        p->rows = t->first[p->rank + 1] - t->first[p->rank];
        st = cdp__pipe_take_desc(p, desc);
        if (st == CDP_OK) cdp__pipe_hash_edges(p, hashes);
    }
    st = cdp__pipe_agree(desc, st, hashes);
    cdp__pipe_free(os, hashes);
    if (st == CDP_OK) st = cdp__pipe_open_tie(p);
    if (st == CDP_OK) {
        *out = p;
    } else if (p) {
        p->os = os;
        cdp_pipeline_destroy(p);
    }
    return st;
}

/* ---- a step ---- */

CDP__PRIVATE cdp_work *cdp__pipe_works(const cdp_pipeline *p, cdp_work *list, uint64_t row) {
    return list + row * p->widest;
}

/* The tag of a message is that of its receiver's cell and direction. */
CDP__PRIVATE uint32_t cdp__pipe_tag(const cdp_pipeline *p, uint64_t message) {
    const uint64_t cells = cdp__pipe_cells(p->table);
    return p->desc.tag + (uint32_t)(message % cells * 2 + message / cells);
}

/* Starts the receives or the sends of a row. */
CDP__PRIVATE cdp_status cdp__pipe_start(cdp_pipeline *p, uint64_t row, bool receive) {
    const cdp_act *a = cdp__pipe_row(p, row);
    const uint64_t message = receive ? cdp__pipe_needs(p->table, a) : cdp__pipe_gives(p->table, a);
    const bool forward = a->kind == CDP_ACT_F;
    cdp_work *works = cdp__pipe_works(p, receive ? p->receives : p->sends, row);
    cdp_pipe_role role = forward ? CDP_PIPE_OUT : CDP_PIPE_GRAD_IN;
    uint32_t count, other = a->stage + 1u;
    if (receive) role = forward ? CDP_PIPE_IN : CDP_PIPE_GRAD_OUT;
    if (forward == receive) other = a->stage - 1u;
    if (message == CDP__PIPE_NONE) return CDP_OK;
    const cdp_pipe_edge *e = cdp__pipe_edges(&p->stages[p->nth[a->stage]], role, &count);
    void **at = cdp__pipe_list(p, a->stage, a->micro, role);
    cdp_transfer t;
    memset(&t, 0, sizeof t);
    t.receive = receive;
    t.peer = p->table->place[other];
    t.tag = cdp__pipe_tag(p, message);
    t.timeout_ms = cdp__pipe_left_ms(p);
    for (uint32_t k = 0; k < count; ++k) {
        t.data = at[k];
        t.count = e[k].count;
        t.dtype = e[k].dtype;
        const cdp_status st = cdp_batch(p->desc.group, &t, 1, &works[k]);
        if (st != CDP_OK) return st;
    }
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__pipe_wait_row(
    cdp_pipeline *p, cdp_work *list, uint64_t row, bool wait) {
    cdp_work *works = cdp__pipe_works(p, list, row);
    for (uint32_t k = 0; k < p->widest; ++k) {
        const cdp_status st = cdp__pipe_wait(p, works[k], wait);
        if (st != CDP_OK) return st;
    }
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__pipe_compute(cdp_pipeline *p, uint64_t row) {
    const cdp_act *a = cdp__pipe_row(p, row);
    const cdp_pipe_stage *s = &p->stages[p->nth[a->stage]];
    const uint64_t *turns = &p->turns[2 * p->nth[a->stage]];
    cdp_pipe_fn *call = s->forward;
    cdp_pipe_micro m;
    m.kind = (cdp_act_kind)a->kind;
    m.stage = a->stage;
    m.micro = a->micro;
    m.slot = p->slots[cdp__pipe_cell(p->table, a->stage, a->micro)];
    m.first = turns[0] == row;
    m.last = turns[1] == row;
    m.in = cdp__pipe_list(p, a->stage, a->micro, CDP_PIPE_IN);
    m.out = cdp__pipe_list(p, a->stage, a->micro, CDP_PIPE_OUT);
    m.grad_out = cdp__pipe_list(p, a->stage, a->micro, CDP_PIPE_GRAD_OUT);
    m.grad_in = cdp__pipe_list(p, a->stage, a->micro, CDP_PIPE_GRAD_IN);
    if (a->kind == CDP_ACT_B) call = s->backward;
    if (a->kind == CDP_ACT_I) call = s->backward_input;
    if (a->kind == CDP_ACT_W) call = s->backward_weights;
    m.loss = a->stage + 1u == p->table->stages ? &p->losses[a->micro] : NULL;
    const bool closes = m.last && !p->table->forward_only;
    cdp_status st = closes ? cdp__pipe_reduce_begin(s) : CDP_OK;
    p->times[2 * row] = p->os->now_ns(p->os->user);
    if (st == CDP_OK) st = call(s->user, &m);
    p->times[2 * row + 1] = p->os->now_ns(p->os->user);
    if (st == CDP_OK && closes) st = cdp__pipe_reduce_ready(p, s);
    return st == CDP_OK ? CDP_OK : cdp__pipe_threw(p, a, st);
}

/* Starts receives of the next row, or pair, and of those a little ahead. */
CDP__PRIVATE cdp_status cdp__pipe_post_rows(cdp_pipeline *p, uint32_t width) {
    const uint64_t to = cdp__min(p->at + width + cdp__def(p->desc.ahead, 2u), p->rows);
    for (; p->posted < to; ++p->posted) {
        const cdp_status st = cdp__pipe_start(p, p->posted, true);
        if (st != CDP_OK) return cdp__pipe_failed(p, st);
    }
    return CDP_OK;
}

/* The next row, or pair: waits, computes, sends. */
CDP__PRIVATE cdp_status cdp__pipe_advance(cdp_pipeline *p, bool wait) {
    const uint32_t width = cdp__pipe_width(cdp__pipe_row(p, p->at));
    cdp_status st = cdp__pipe_post_rows(p, width);
    for (uint32_t i = 0; i < width && st == CDP_OK; ++i)
        st = cdp__pipe_unshard(p, p->at + i);
    for (uint32_t i = 0; i < width && st == CDP_OK; ++i)
        st = cdp__pipe_wait_row(p, p->receives, p->at + i, wait);
    for (uint32_t i = 0; i < width && st == CDP_OK; ++i) {
        st = cdp__pipe_compute(p, p->at + i);
        if (st != CDP_OK) return st;
        st = cdp__pipe_start(p, p->at + i, false);
        if (st != CDP_OK) return cdp__pipe_failed(p, st);
        st = cdp__pipe_reshard(p, p->at + i);
    }
    if (st == CDP_OK) p->at += width;
    return st;
}

CDP__PRIVATE cdp_status cdp__pipe_go_on(cdp_pipeline *p, bool wait) {
    cdp_status st = CDP_OK;
    while (p->at < p->rows && st == CDP_OK)
        st = cdp__pipe_advance(p, wait);
    while (p->ended < p->rows && st == CDP_OK) {
        st = cdp__pipe_wait_row(p, p->sends, p->ended, wait);
        if (st == CDP_OK) ++p->ended;
    }
    if (st == CDP_OK) st = cdp__pipe_reduce_end(p, wait);
    if (st == CDP_OK) {
        p->running = false;
        p->timed = true;
    }
    return st;
}

CDP__PRIVATE cdp_status cdp__pipe_begin(cdp_pipeline *p, const char *call) {
    const cdp_status st = cdp__pipe_alive(p, call);
    if (st != CDP_OK) return st;
    if (p->running)
        return cdp_error_set(CDP_ERR_STATE, -1, 0, "%s: a step is running: poll it", call);
    const uint32_t ms = cdp__def(p->desc.timeout_ms, CDP__PIPE_STEP_MS);
    p->begin_ns = p->os->now_ns(p->os->user);
    p->deadline_ns = UINT64_MAX;
    if (ms != CDP_NO_TIMEOUT) p->deadline_ns = p->begin_ns + ms * 1000000ull;
    p->at = p->posted = p->ended = 0;
    p->reduced = 0;
    p->ending = p->summing = false;
    memset(p->losses, 0, (size_t)(p->table->micros * sizeof *p->losses));
    memset(p->receives, 0, (size_t)(p->rows * p->widest * sizeof *p->receives));
    memset(p->sends, 0, (size_t)(p->rows * p->widest * sizeof *p->sends));
    p->running = true;
    p->timed = false;
    return CDP_OK;
}

CDP_API cdp_status cdp_pipeline_step(cdp_pipeline *pipeline) {
    const cdp_status st = cdp__pipe_begin(pipeline, "cdp_pipeline_step");
    return st == CDP_OK ? cdp__pipe_go_on(pipeline, true) : st;
}

#ifndef CDP_NO_FRAMES
CDP_API cdp_status cdp_pipeline_start(cdp_pipeline *pipeline) {
    const cdp_status st = cdp__pipe_alive(pipeline, "cdp_pipeline_start");
    if (st != CDP_OK) return st;
    if (cdp__pipe_has_shards(pipeline))
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_pipeline_start: a stage has .shards, whose gathers wait for other ranks; call "
            "cdp_pipeline_step");
    return cdp__pipe_begin(pipeline, "cdp_pipeline_start");
}

CDP_API cdp_status cdp_pipeline_poll(cdp_pipeline *pipeline, uint32_t budget_us) {
    const cdp_status st = cdp__pipe_alive(pipeline, "cdp_pipeline_poll");
    if (st != CDP_OK) return st;
    if (!pipeline->running)
        return cdp_error_set(
            CDP_ERR_STATE, -1, 0, "cdp_pipeline_poll: no step is running: call cdp_pipeline_start");
    (void)cdp_poll(pipeline->desc.group, budget_us); /* a failure is seen by what waits */
    return cdp__pipe_go_on(pipeline, false);
}
#endif

#endif /* CDP_SRC_PIPELINE_DRIVER_H */
