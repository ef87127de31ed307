/* fsdp/gather.h - parameters are gathered before they are needed, and freed after

   Knows: slots, the order of needs of the last step. Promises: what is gathered, where and when,
   follows from the calls alone, so it is the same on all ranks; a step like the one before
   allocates nothing. */
#ifndef CDP_SRC_FSDP_GATHER_H
#define CDP_SRC_FSDP_GATHER_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../base/compiler.h"
#include "../base/ended.h"
#include "../base/helpers.h"
#include "../base/kept_error.h"
#include "../text/format.h"
#include "fsdp_api.h"
#include "checks.h"
#include "state.h"

CDP__PRIVATE uint64_t cdp__fsdp_slot_bytes(const cdp_fsdp *f, const cdp__fsdp_unit *u) {
    return (u->range[0].total + u->range[1].total) * cdp__fsdp_size_of(f->desc.compute);
}

/* Waits for the unit's parameters, if they are on their way. */
CDP__PRIVATE cdp_status cdp__fsdp_arrive(cdp_fsdp *f, cdp__fsdp_unit *u) {
    cdp_status st;
    if (!u->gathering) return CDP_OK;
    st = cdp__fsdp_wait(f, "cdp_fsdp_need", u, u->gather);
    if (st != CDP_OK) return st;
    u->gathering = false;
    cdp__fsdp_travels(f, false);
    cdp__fsdp_ends(f, u->event);
    return CDP_OK;
}

CDP__PRIVATE void cdp__fsdp_vacate(cdp_fsdp *f, cdp__fsdp_slot *s) {
    if (s->unit != CDP__FSDP_NONE) {
        cdp__fsdp_label(f, &f->units[s->unit], "", 0);
        f->units[s->unit].slot = CDP__FSDP_NONE;
        f->held -= s->bytes;
    }
    s->unit = CDP__FSDP_NONE;
    s->stamp = 0;
}

/* The slot that was not used for longest, of those before `before` that a unit of so many bytes may
   take; CDP__FSDP_NONE: there is none. `arriving`: it may be of a unit that is on its way. */
CDP__PRIVATE uint32_t cdp__fsdp_oldest(
    const cdp_fsdp *f, uint64_t bytes, uint64_t before, bool arriving) {
    uint32_t i, best = CDP__FSDP_NONE;
    for (i = 0; i < f->slot_count; ++i) {
        const cdp__fsdp_slot *s = &f->slots[i];
        const cdp__fsdp_unit *u = s->unit == CDP__FSDP_NONE ? NULL : &f->units[s->unit];
        if (s->bytes != bytes || s->stamp > before) continue;
        if (u && (u->keep || u->opens || (u->gathering && !arriving))) continue;
        if (best == CDP__FSDP_NONE || s->stamp < f->slots[best].stamp) best = i;
    }
    return best;
}

CDP__PRIVATE cdp_status cdp__fsdp_add_slot(cdp_fsdp *f, uint64_t bytes, uint32_t *out) {
    cdp__fsdp_slot *s = &f->slots[f->slot_count];
    s->memory = (uint8_t *)cdp__fsdp_memory(f, bytes, &f->stats.slot_bytes);
    if (!s->memory) return CDP_ERR_NOMEM;
    s->bytes = bytes;
    s->unit = CDP__FSDP_NONE;
    *out = f->slot_count++;
    return CDP_OK;
}

/* One allgather for each range that is not empty. */
CDP__PRIVATE cdp_status cdp__fsdp_start_gather(cdp_fsdp *f, uint32_t unit, uint32_t slot) {
    const uint64_t size = cdp__fsdp_size_of(f->desc.compute);
    cdp__fsdp_unit *u = &f->units[unit];
    cdp__fsdp_slot *s = &f->slots[slot];
    cdp_request rq[2];
    uint64_t received = 0;
    uint32_t k, n = 0;
    cdp_status st;
    memset(rq, 0, sizeof rq);
    for (k = 0; k < 2; ++k) {
        const cdp__fsdp_range *r = &u->range[k];
        if (!r->total) continue;
        rq[n].kind = CDP_COLL_ALLGATHER;
        rq[n].in = r->copy ? (const void *)r->copy : (const void *)r->value;
        rq[n].out = s->memory + (k ? u->range[0].total * size : 0);
        rq[n].dtype = f->desc.compute;
        rq[n].out_counts = r->counts;
        rq[n++].root = CDP__FSDP_TAG | unit;
        received += (r->total - r->own) * size;
    }
    st = cdp_start_all(f->gathers, rq, n, &u->gather);
    if (st != CDP_OK) return cdp__fsdp_named("cdp_fsdp_need", u, st);
    ++f->now.gathers;
    f->now.gather_bytes += received;
    f->held += s->bytes;
    cdp__fsdp_travels(f, true);
    cdp__fsdp_label(f, u, "", s->bytes);
    u->event = cdp__fsdp_begins(f, CDP__FSDP_GATHERS, unit, received, cdp__fsdp_now(f));
    s->unit = unit;
    s->stamp = ++f->clock;
    u->slot = slot;
    u->gathering = true;
    return CDP_OK;
}

/* Gathers a unit that is not here. `now`: it is needed, so it gets a slot in any case. */
CDP__PRIVATE cdp_status cdp__fsdp_fetch(
    cdp_fsdp *f, uint32_t unit, uint64_t before, bool now, bool *started) {
    cdp__fsdp_unit *u = &f->units[unit];
    const uint64_t bytes = cdp__fsdp_slot_bytes(f, u);
    uint32_t slot = cdp__fsdp_oldest(f, bytes, before, false);
    cdp_status st = CDP_OK;
    *started = false;
    if (slot == CDP__FSDP_NONE && now) {
        slot = cdp__fsdp_oldest(f, bytes, before, true);
        if (slot != CDP__FSDP_NONE)
            st = cdp__fsdp_arrive(f, &f->units[f->slots[slot].unit]);
        else
            st = cdp__fsdp_add_slot(f, bytes, &slot);
    }
    if (st != CDP_OK || slot == CDP__FSDP_NONE) return st;
    cdp__fsdp_vacate(f, &f->slots[slot]);
    *started = true;
    return cdp__fsdp_start_gather(f, unit, slot);
}

/* The unit that is expected k needs from now: as recorded in the last step; without a record, the
   neighbours in the order of numbers, backwards after the first `ready`. */
CDP__PRIVATE uint32_t cdp__fsdp_expected(const cdp_fsdp *f, uint32_t k) {
    if (f->record_count)
        return k < f->record_count - f->cursor ? f->record[f->cursor + k] : CDP__FSDP_NONE;
    if (f->last == CDP__FSDP_NONE) return k < f->unit_count ? k : CDP__FSDP_NONE;
    if (f->backward) return k < f->last ? f->last - 1 - k : CDP__FSDP_NONE;
    return k < f->unit_count - 1 - f->last ? f->last + 1 + k : CDP__FSDP_NONE;
}

CDP__PRIVATE cdp_status cdp__fsdp_prefetch(cdp_fsdp *f) {
    const uint64_t before = f->clock;
    uint32_t k, unit, left = f->desc.no_prefetch ? 0 : cdp__def(f->desc.prefetch, 1u);
    cdp_status st = CDP_OK;
    bool started = true;
    for (k = 0; left && st == CDP_OK && started; ++k) {
        cdp__fsdp_unit *u;
        unit = cdp__fsdp_expected(f, k);
        if (unit == CDP__FSDP_NONE) break;
        u = &f->units[unit];
        if (unit == f->last || !cdp__fsdp_slot_bytes(f, u)) continue;
        if (u->slot == CDP__FSDP_NONE) {
            st = cdp__fsdp_fetch(f, unit, before, false, &started);
            --left;
        } else if (f->slots[u->slot].stamp <= before) {
            f->slots[u->slot].stamp = ++f->clock;
            --left;
        }
    }
    return st;
}

/* Finds the place of a need in the record of the last step: the next one, or else the first. */
CDP__PRIVATE void cdp__fsdp_find_place(cdp_fsdp *f, uint32_t unit) {
    uint32_t i;
    for (i = 0; i < f->record_count; ++i) {
        const uint32_t at = (uint32_t)(((uint64_t)f->cursor + i) % f->record_count);
        if (f->record[at] != unit) continue;
        f->cursor = at + 1;
        return;
    }
}

/* Notes a need. Of steps with more needs than `most`, such as long evaluations, whose batches are
   alike, the newer ones stay. */
CDP__PRIVATE cdp_status cdp__fsdp_record_need(cdp_fsdp *f, uint32_t unit) {
    const uint32_t most = (uint32_t)cdp__max(64, 16 * f->unit_count), half = f->next_count / 2;
    if (f->next_count == f->record_room && f->record_room >= most) {
        memmove(
            f->next_record, f->next_record + half, (f->next_count - half) * sizeof *f->next_record);
        f->next_count -= half;
    }
    if (f->next_count == f->record_room) {
        const uint32_t room = f->record_room ? 2 * f->record_room : 64;
        uint32_t *grown[2];
        grown[0] = (uint32_t *)cdp__fsdp_alloc(f, room * sizeof *grown[0]);
        grown[1] = (uint32_t *)cdp__fsdp_alloc(f, room * sizeof *grown[1]);
        if (!grown[0] || !grown[1]) {
            cdp__fsdp_free(f, grown[0]);
            cdp__fsdp_free(f, grown[1]);
            return cdp__fsdp_nomem("the order of units", room * sizeof *grown[0]);
        }
        if (f->record_count) memcpy(grown[0], f->record, f->record_count * sizeof *f->record);
        if (f->next_count) memcpy(grown[1], f->next_record, f->next_count * sizeof *f->record);
        cdp__fsdp_free(f, f->record);
        cdp__fsdp_free(f, f->next_record);
        f->record = grown[0];
        f->next_record = grown[1];
        f->record_room = room;
    }
    f->next_record[f->next_count++] = unit;
    f->last = unit;
    cdp__fsdp_find_place(f, unit);
    return CDP_OK;
}

/* Others may wait for this rank in any group of this fsdp. */
CDP__PRIVATE void cdp__fsdp_abort_groups(cdp_fsdp *f, const char *reason) {
    cdp_group *groups[5];
    uint32_t i;
    groups[0] = f->gathers;
    groups[1] = f->reductions;
    groups[2] = f->replicas;
    groups[3] = f->norms;
    groups[4] = f->buddies;
    for (i = 0; i < 5; ++i)
        if (groups[i]) cdp_group_abort(groups[i], reason);
}

/* This rank alone cannot go on, and others would wait for it: they learn why. */
CDP__PRIVATE void cdp__fsdp_give_up(cdp_fsdp *f, cdp_status st, const char *what) {
    const cdp_error e = *cdp_last_error();
    cdp__fsdp_abort_groups(f, e.text);
    (void)cdp_error_set(st, -1, 0, "%s%s", what, e.text);
}

#define CDP__FSDP_LOST "cdp_fsdp has lost rank " /* and its number: what such aborts begin with */

/* This rank has lost another one, perhaps in a group in which others do not communicate with it:
   they learn of it where they wait for this one. */
CDP__PRIVATE void cdp__fsdp_pass_loss(cdp_fsdp *f) {
    const cdp_error e = *cdp_last_error();
    char reason[512];
    cdp__text t = cdp__text_of(reason, sizeof reason);
    if (e.peer < 0) return;
    cdp__text_add(&t, CDP__FSDP_LOST "%d: %s", (int)e.peer, e.text);
    cdp__fsdp_abort_groups(f, reason);
    (void)cdp__error_again(CDP_ERR_PEER_LOST, &e);
}

/* An abort because of a lost rank is its loss here, too. */
CDP__PRIVATE cdp_status cdp__fsdp_told(void) {
    const cdp_error e = *cdp_last_error();
    const char *at = strstr(e.text, CDP__FSDP_LOST);
    int32_t peer = 0;
    if (!at) return CDP_ERR_ABORTED;
    for (at += sizeof CDP__FSDP_LOST - 1; *at >= '0' && *at <= '9'; ++at)
        peer = peer * 10 + (*at - '0');
    return cdp_error_set(CDP_ERR_PEER_LOST, peer, 0, "%s", e.text);
}

/* A failure that may concern a rank that is lost. */
CDP__PRIVATE cdp_status cdp__fsdp_share_loss(cdp_fsdp *f, cdp_status st) {
    if (st == CDP_ERR_PEER_LOST) cdp__fsdp_pass_loss(f);
    return st == CDP_ERR_ABORTED ? cdp__fsdp_told() : st;
}

/* Memory that runs out in the midst of a step, or a failure of communication, ends this fsdp. */
CDP__PRIVATE cdp_status cdp__fsdp_broken(cdp_fsdp *f, cdp_status st) {
    cdp__text t = cdp__text_of(f->cause, sizeof f->cause);
    if (st == CDP_OK || f->failed != CDP_OK) return st;
    if (st == CDP_ERR_NOMEM) cdp__fsdp_give_up(f, st, "");
    st = cdp__fsdp_share_loss(f, st);
    f->failed = st;
    cdp__text_add(&t, "%s", cdp_last_error()->text);
    return st;
}

CDP_API cdp_status cdp_fsdp_need(cdp_fsdp *f, uint32_t unit) {
    cdp_status st = cdp__fsdp_may(f, "cdp_fsdp_need", unit, false);
    cdp__fsdp_unit *u;
    bool started = false;
    if (st != CDP_OK) return st;
    u = &f->units[unit];
    if (u->opens++) return CDP_OK;
    st = cdp__fsdp_record_need(f, unit);
    if (st == CDP_OK && cdp__fsdp_slot_bytes(f, u)) {
        if (u->slot == CDP__FSDP_NONE) {
            st = cdp__fsdp_fetch(f, unit, f->clock, true, &started);
            ++f->now.misses;
        } else
            f->slots[u->slot].stamp = ++f->clock;
    }
    if (st == CDP_OK) st = cdp__fsdp_prefetch(f);
    if (st == CDP_OK) st = cdp__fsdp_arrive(f, u);
    return cdp__fsdp_broken(f, st);
}

CDP_API cdp_status cdp_fsdp_done(cdp_fsdp *f, uint32_t unit) {
    const cdp_status st = cdp__fsdp_may(f, "cdp_fsdp_done", unit, false);
    if (st != CDP_OK) return st;
    if (!f->units[unit].opens)
        return cdp_error_set(CDP_ERR_STATE, -1, 0,
            "cdp_fsdp_done: unit '%s' is not needed; call cdp_fsdp_need() before",
            f->units[unit].name);
    --f->units[unit].opens;
    return CDP_OK;
}

CDP_API const void *cdp_fsdp_data(cdp_fsdp *f, uint32_t param) {
    const cdp__fsdp_unit *u;
    uint64_t at;
    if (!f || cdp__ended(f) || param >= f->desc.param_count) return NULL;
    u = &f->units[f->params[param].unit];
    if (!u->opens || u->gathering || u->slot == CDP__FSDP_NONE) return NULL;
    at = f->offset[param] + (f->params[param].frozen ? u->range[0].total : 0);
    return f->slots[u->slot].memory + at * cdp__fsdp_size_of(f->desc.compute);
}

/* Parameters change: what was gathered is old. Nothing may be on its way. */
CDP__PRIVATE void cdp__fsdp_forget_slots(cdp_fsdp *f) {
    uint32_t i;
    for (i = 0; i < f->slot_count; ++i)
        cdp__fsdp_vacate(f, &f->slots[i]);
}

CDP__PRIVATE cdp_status cdp__fsdp_arrive_all(cdp_fsdp *f) {
    cdp_status st = CDP_OK;
    uint32_t i;
    for (i = 0; i < f->unit_count && st == CDP_OK; ++i)
        st = cdp__fsdp_arrive(f, &f->units[i]);
    return st;
}

#endif /* CDP_SRC_FSDP_GATHER_H */
