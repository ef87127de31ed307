/* mem/recording.h - what the caller records

   Knows: how a history is replaced, and the events that only callers create. Promises: numbers of
   an old history are never looked up in a new one. */
#ifndef CDP_SRC_MEM_RECORDING_H
#define CDP_SRC_MEM_RECORDING_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../os/child.h"
#include "desc_api.h"
#include "allocator_api.h"
#include "record_api.h"
#include "bins.h"
#include "table.h"
#include "ring.h"
#include "depot.h"
#include "os_stacks.h"
#include "blocks.h"
#include "history.h"
#include "calls.h"

/* Clears numbers of an old history, which are invalid in the new one. */
CDP__PRIVATE void cdp__mem_forget_numbers(cdp_mem *m) {
    cdp__mem_outside *o;
    cdp_mem_pool *pool;
    cdp__mem_span *s;
    cdp__mem_part *p;
    for (s = m->spans; s; s = s->next) {
        s->stack = s->label = 0;
        for (p = s->first; p; p = p->next) {
            if (p->state != CDP_MEM_INACTIVE) p->began = 0;
            p->stack = p->label = 0;
        }
    }
    for (o = m->outside; o; o = o->next) {
        o->label = 0;
        cdp__mem_label_of(&m->log, &o->label, o->text);
    }
    for (pool = &m->base; pool; pool = pool->next) {
        pool->label = 0;
        cdp__mem_label_of(&m->log, &pool->label, pool->text);
    }
}

/* True if the tables of the old history can be used for the new one. */
CDP__PRIVATE bool cdp__mem_log_fits(const cdp__mem_log *l, const cdp_mem_record_desc *d) {
    return l->memory && d->keep && l->desc.max_frames == d->max_frames
        && l->desc.max_stacks == d->max_stacks && l->desc.max_entries == d->max_entries
        && l->desc.min_bytes == d->min_bytes && l->desc.history == d->history;
}

/* `what` is read without the lock, so it is stored separately. */
CDP__PRIVATE void cdp__mem_log_replace(cdp_mem *m, cdp__mem_log *fresh) {
    const uint32_t what = fresh->what;
    const size_t before = offsetof(cdp__mem_log, what), after = before + sizeof what;
    memcpy(&m->log, fresh, before);
    memcpy((char *)&m->log + after, (const char *)fresh + after, sizeof *fresh - after);
    cdp__atomic_store_u32(&m->log.what, what, CDP__RELEASE);
    ++m->histories;
    cdp__mem_forget_numbers(m);
}

CDP_API cdp_status cdp_mem_record(cdp_mem *mem, const cdp_mem_record_desc *desc) {
    cdp__mem_log fresh, old;
    cdp_status st;
    if (cdp__mem_here(mem, "cdp_mem_record") != CDP_OK) return cdp_last_error()->status;
    memset(&fresh, 0, sizeof fresh);
    if (desc) fresh.desc = *desc;
    cdp__mem_record_defaults(&fresh.desc);
    st = cdp__mem_record_check(&fresh.desc);
    if (st != CDP_OK) return st;
    if (fresh.desc.history && !cdp__mem_log_open(mem->os, &fresh)) {
        cdp__mem_log_close(mem->os, &fresh);
        return cdp__fail_nomem("cdp_mem_record", fresh.ring.room * sizeof(cdp__mem_record));
    }
    fresh.what = cdp__mem_wants(&fresh.desc);
    if (fresh.what && cdp_os_default() && mem->os->now_ns == cdp_os_default()->now_ns)
        fresh.what |= CDP__MEM_WANTS_TICKS;
    fresh.start_ns = mem->os->now_ns(mem->os->user);
    fresh.start_us = mem->desc.wall_us(mem->desc.wall_user);
    if (fresh.what & CDP__MEM_WANTS_STACK && fresh.desc.stacks == CDP_MEM_STACKS_BACKTRACE) {
        cdp__mem_trace t;
        t.count = 0;
        cdp__mem_unwind(NULL, 1, &t); /* the first call loads a library, and allocates */
    }
    cdp__mem_lock(mem);
    fresh.what |= mem->log.what & CDP__MEM_WANTS_LEVEL;
    fresh.labels.bare_peak = cdp__mem_active_bytes(mem);
    if (cdp__mem_log_fits(&mem->log, &fresh.desc)) {
        old = fresh;
        mem->log.desc = fresh.desc;
        cdp__atomic_store_u32(&mem->log.what, fresh.what, CDP__RELEASE);
    } else {
        old = mem->log;
        cdp__mem_log_replace(mem, &fresh);
    }
    cdp__mem_unlock(mem);
    cdp__mem_log_close(mem->os, &old);
    return CDP_OK;
}

CDP_API void cdp_mem_label(const char *text) {
    cdp__mem_thread *const t = cdp__mem_thread_own();
    if (text)
        cdp__mem_label_push(t, text);
    else
        cdp__mem_label_pop(t);
}

CDP_API void cdp_mem_note(cdp_mem *mem, const void *data, const char *text) {
    cdp__mem_call c;
    cdp__mem_part *p;
    uint32_t label;
    if (!text || !cdp__mem_lives(mem)) return;
    CDP__MEM_CALLER(&c);
    cdp__mem_call_begin(mem, &c, CDP__MEM_WANTS_STACK, NULL);
    cdp__mem_lock(mem);
    cdp__mem_call_enter(mem, &c);
    p = data ? cdp__mem_table_find(&mem->table, (uint64_t)(uintptr_t)data) : NULL;
    if (c.wants & CDP__MEM_WANTS_STATE && (p || !data)) {
        cdp__mem_record *e;
        label = cdp__mem_labels_number(&mem->log.labels, cdp__mem_text_hash(text), text);
        c.label = label;
        if (p && p->label) cdp__mem_label_leave(&mem->log.labels, &p->label, p->size);
        if (p)
            cdp__mem_label_enter(
                &mem->log.labels, &p->label, label, p->size, cdp__mem_active_bytes(mem));
        e = cdp__mem_event_add(mem, &c, p ? CDP_MEM_ANNOTATE : CDP_MEM_USER_DEFINED, p ? p->at : 0,
            p ? p->requested : 0);
        if (p) cdp__mem_event_place(e, p->span->arena);
    }
    cdp__mem_unlock(mem);
}

#define CDP__MEM_OUTSIDE_FROM (1ull << 52) /* no address of a program; each has 2^40 bytes */

CDP_API cdp_status cdp_mem_external(cdp_mem *mem, const char *label, uint64_t bytes) {
    cdp__mem_outside **at, *o;
    cdp_status st = CDP_OK;
    if (cdp__mem_here(mem, "cdp_mem_external") != CDP_OK) return cdp_last_error()->status;
    if (!label) return cdp__missing("cdp_mem_external", "label");
    cdp__mem_lock(mem);
    for (at = &mem->outside; *at && strncmp((*at)->text, label, sizeof o->text - 1) != 0;)
        at = &(*at)->next;
    o = *at;
    if (o && !bytes) {
        *at = o->next;
        cdp__mem_label_set(&mem->log.labels, &o->label, 0);
        --mem->externals;
        cdp__free(mem->os, o);
    } else if (!o && bytes) {
        o = (cdp__mem_outside *)cdp__alloc_zero(mem->os, sizeof *o);
        if (!o)
            st = cdp__fail_nomem("cdp_mem_external", sizeof *o);
        else {
            ++mem->externals;
            o->at = CDP__MEM_OUTSIDE_FROM + (mem->external_places++ % 4096 << 40);
            cdp__mem_text_copy(o->text, label, sizeof o->text);
            cdp__mem_label_of(&mem->log, &o->label, o->text);
            *at = o;
        }
    }
    if (o && bytes && st == CDP_OK) o->bytes = bytes;
    cdp__mem_unlock(mem);
    return st;
}

#endif /* CDP_SRC_MEM_RECORDING_H */
