/* mem/history.h - events into the ring

   Knows: what is recorded, and how stacks are collected. Promises: a history has all events since
   it began; recording an event allocates nothing but room for labels, when more are carried than
   ever before. */
#ifndef CDP_SRC_MEM_HISTORY_H
#define CDP_SRC_MEM_HISTORY_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "desc_api.h"
#include "allocator_api.h"
#include "sizes.h"
#include "bins.h"
#include "ring.h"
#include "depot.h"
#include "labels.h"
#include "os_stacks.h"
#include "blocks.h"

#define CDP__MEM_WANTS_STATE 1u /* stacks and labels of blocks */
#define CDP__MEM_WANTS_EVENTS 2u
#define CDP__MEM_WANTS_STACK 4u  /* collect a stack for allocations */
#define CDP__MEM_WANTS_FREE 8u   /* collect a stack for frees */
#define CDP__MEM_WANTS_ALLOC 16u /* events carry stacks           */
#define CDP__MEM_WANTS_TICKS 32u /* the clock is the system's, so ticks may stand for it */
#define CDP__MEM_WANTS_LEVEL 64u /* a function waits for a level; nothing to do with recording */

#define CDP__MEM_NESTED 16u

typedef struct cdp__mem_thread { /* labels of one thread */
    char text[CDP__MEM_LABEL_BYTES];
    uint64_t hash;
    uint32_t length[CDP__MEM_NESTED]; /* length of the text before each label */
    uint32_t depth;                   /* includes labels that found no room */
} cdp__mem_thread;

CDP__PRIVATE cdp__mem_thread *cdp__mem_thread_own(void) {
    static CDP__THREAD_LOCAL cdp__mem_thread t;
    return &t;
}

CDP__PRIVATE void cdp__mem_label_push(cdp__mem_thread *t, const char *text) {
    const uint32_t have = (uint32_t)strlen(t->text);
    if (t->depth++ >= CDP__MEM_NESTED) return;
    t->length[t->depth - 1] = have;
    if (have + 2 < sizeof t->text) {
        if (have) t->text[have] = '/';
        cdp__mem_text_copy(t->text + have + (have ? 1 : 0), text, sizeof t->text - have - 1);
    }
    t->hash = cdp__mem_text_hash(t->text);
}

CDP__PRIVATE void cdp__mem_label_pop(cdp__mem_thread *t) {
    if (!t->depth || --t->depth >= CDP__MEM_NESTED) return;
    t->text[t->length[t->depth]] = 0;
    t->hash = cdp__mem_text_hash(t->text);
}

/* A request, free or other call that may be recorded. */
typedef struct cdp__mem_call {
    const void *caller, *frame; /* where it returns to; the frame pointer of the public function */
    const cdp_mem_site *site;
    uint32_t wants, stack_if;
    uint32_t stack, label; /* numbers, known under the lock */
    uint64_t history;      /* the history of these numbers */
    uint64_t now_ns;
    cdp__mem_trace trace;
} cdp__mem_call;

/* The time of an event. Reading the clock twice costs as much as allocating and freeing. So for
   2000 ticks of the processor after a reading, its time goes on by a nanosecond for 8 ticks: never
   ahead of the clock, later for each call of a thread, and a microsecond behind at 2 GHz, which is
   the unit of files. */
#define CDP__MEM_TICKS 2000u
CDP__MEM_HOT uint64_t cdp__mem_time(const cdp_mem *m, uint32_t wants) {
    static CDP__THREAD_LOCAL uint64_t read_at, read_ns;
    const uint64_t ticks = wants & CDP__MEM_WANTS_TICKS ? cdp__ticks() : 0;
    if (!ticks) return m->os->now_ns(m->os->user);
    if (ticks - read_at >= CDP__MEM_TICKS) {
        read_ns = m->os->now_ns(m->os->user);
        read_at = cdp__ticks(); /* after the clock: what lies between must not count */
        if (read_at - ticks >= CDP__MEM_TICKS)
            read_at = 0; /* stopped in between: nobody goes on from here */
        return read_ns;
    }
    return read_ns + (ticks - read_at) / 8;
}

/* Call without the lock: decides what is probably recorded, and takes time and stack, which is
   slow. `stack_if`: CDP__MEM_WANTS_STACK, _FREE, or 0 for a call without a stack. */
CDP__MEM_HOT void cdp__mem_call_begin(
    const cdp_mem *m, cdp__mem_call *c, uint32_t stack_if, const cdp_mem_site *site) {
    uint32_t most;
    c->wants = cdp__atomic_load_u32(&m->log.what, CDP__ACQUIRE);
    c->stack_if = stack_if;
    c->stack = c->label = 0;
    c->history = 0;
    c->trace.count = 0;
    c->site = site;
    if (!c->wants) return;
    if (c->wants & CDP__MEM_WANTS_EVENTS) c->now_ns = cdp__mem_time(m, c->wants);
    most = c->wants >> 16 & 0xff; /* 0: only the site that was passed */
    if (!(c->wants & stack_if) || !most) return;
    if (c->wants >> 24 == CDP_MEM_STACKS_FRAME_POINTER)
        cdp__mem_walk(c->frame, most, &c->trace);
    else
        cdp__mem_unwind(c->caller, most, &c->trace);
}

/* The number of a site. Known ones are found by the addresses of their texts, so that nothing is
   formatted. */
CDP__PRIVATE uint32_t cdp__mem_site_number(cdp__mem_log *l, const cdp_mem_site *s) {
    const char *file = s->file ? s->file : "";
    const char *const function = s->function ? s->function : "";
    uint64_t length;
    uint64_t hash = cdp__mem_mix(s->line, (uint64_t)(uintptr_t)file);
    char text[CDP__MEM_LABEL_BYTES];
    uint32_t slot;
    hash = cdp__mem_mix(hash, (uint64_t)(uintptr_t)function);
    slot = cdp__mem_sites_slot(&l->sites, hash);
    if (l->sites.slots[slot]) return l->sites.slots[slot];
    length = strlen(file);
    if (length > 70) file += length - 70;
    cdp__format(text, sizeof text, "%s\n%u\n%s", file, s->line, function);
    return cdp__mem_sites_add(&l->sites, hash, text, slot);
}

/* The number of the stack of this call: the site, the frames. */
CDP__PRIVATE uint32_t cdp__mem_call_stack(cdp_mem *m, cdp__mem_call *c) {
    uint64_t *words = c->trace.words + 1;
    uint32_t count = c->trace.count, site, *alone;
    if (!c->site) return cdp__mem_depot_number(&m->log.depot, words, count);
    site = cdp__mem_site_number(&m->log, c->site);
    *--words = CDP__MEM_TAG_SITE | site;
    if (count) return cdp__mem_depot_number(&m->log.depot, words, count + 1);
    alone = &m->log.sites.stack[site - 1]; /* with STACKS_SITE, each call has such a stack */
    if (*alone) return *alone;
    count = cdp__mem_depot_number(&m->log.depot, words, 1);
    if (count > 1) *alone = count; /* 1: the table is full, which is counted for each call */
    return count;
}

/* The number of this thread's label. */
CDP__PRIVATE void cdp__mem_call_label(cdp_mem *m, cdp__mem_call *c) {
    const cdp__mem_thread *const t = cdp__mem_thread_own();
    c->label = t->depth ? cdp__mem_labels_number(&m->log.labels, t->hash, t->text) : 0;
}

/* Call with the lock held: decides what is recorded, so that a history has all events since it
   began. Recording may have begun, ended or restarted since cdp__mem_call_begin; a stack that
   was not collected then is missing. */
CDP__PRIVATE void cdp__mem_call_recorded(cdp_mem *m, cdp__mem_call *c) {
    const uint32_t before = c->wants;
    c->wants = m->log.what;
    c->history = m->histories;
    c->stack = c->label = 0;
    if (!c->wants) return;
    if (c->wants & CDP__MEM_WANTS_EVENTS) {
        if (!(before & CDP__MEM_WANTS_EVENTS)) c->now_ns = cdp__mem_time(m, c->wants);
        c->now_ns = cdp__max(c->now_ns, m->log.start_ns);
    }
    cdp__mem_call_label(m, c);
    if (c->wants & c->stack_if) c->stack = cdp__mem_call_stack(m, c);
}

CDP__MEM_HOT void cdp__mem_call_enter(cdp_mem *m, cdp__mem_call *c) {
    if (c->wants | m->log.what) cdp__mem_call_recorded(m, c);
}

/* Call after the lock was released for a while: if a new history has begun since, records the call
   again, because numbers of the old history are invalid in it. A label that nothing carries yet
   may have lost its number in any case. */
CDP__PRIVATE void cdp__mem_call_again(cdp_mem *m, cdp__mem_call *c) {
    if (c->history != m->histories)
        cdp__mem_call_recorded(m, c);
    else if (c->wants)
        cdp__mem_call_label(m, c);
}

/* Record an event of this call. */
CDP__PRIVATE cdp__mem_record *cdp__mem_event_add(
    cdp_mem *m, const cdp__mem_call *c, cdp_mem_action action, uint64_t at, uint64_t size) {
    cdp__mem_log *const l = &m->log;
    cdp__mem_record *e;
    if (!(c->wants & CDP__MEM_WANTS_EVENTS)) return NULL;
    if (l->desc.skip >> action & 1) return NULL;
    e = cdp__mem_ring_push(&l->ring);
    if (l->ring.total > l->ring.room) cdp__mem_label_set(&l->labels, &e->label, 0);
    memset(e, 0, sizeof *e);
    e->address = at;
    e->size = size;
    /* times were taken before the lock, so they may be out of order */
    if (c->now_ns > l->last_ns) l->last_ns = c->now_ns;
    e->time_ns = l->last_ns;
    e->action = (uint8_t)action;
    cdp__mem_label_set(&l->labels, &e->label, c->label);
    if (c->wants & CDP__MEM_WANTS_ALLOC) e->stack = c->stack;
    return e;
}

CDP__PRIVATE void cdp__mem_event_place(cdp__mem_record *e, const cdp__mem_arena *a) {
    if (!e) return;
    e->stream = (uint64_t)(uintptr_t)a->stream;
    e->pool[1] = a->pool->number;
}

/* Record an event of a block. Frees without a stack of their own show that of the allocation. */
CDP__MEM_HOT void cdp__mem_event_part(
    cdp_mem *m, const cdp__mem_call *c, cdp_mem_action action, const cdp__mem_part *p) {
    cdp__mem_record *e;
    if (!(c->wants & CDP__MEM_WANTS_EVENTS) || p->requested < m->log.desc.min_bytes) return;
    e = cdp__mem_event_add(m, c, action, p->at, p->requested);
    cdp__mem_event_place(e, p->span->arena);
    if (!e || action == CDP_MEM_ALLOC) return;
    cdp__mem_label_set(&m->log.labels, &e->label, p->label);
    if (!e->stack && (c->wants & CDP__MEM_WANTS_ALLOC)) e->stack = p->stack;
}

/* Record the alloc of a block; of one that is left out, only where its event would be. */
CDP__MEM_HOT void cdp__mem_event_alloc(cdp_mem *m, const cdp__mem_call *c, cdp__mem_part *p) {
    if (!(c->wants & CDP__MEM_WANTS_EVENTS)) return;
    if (p->requested < m->log.desc.min_bytes) p->began = m->log.ring.total;
    cdp__mem_event_part(m, c, CDP_MEM_ALLOC, p);
}

/* Looks whether memory in use has risen above a level by a block of `size` bytes. */
CDP__PRIVATE void cdp__mem_levels_look(cdp_mem *m, uint64_t size) {
    const uint64_t now = cdp__mem_now(&m->tally.allocated_bytes);
    uint32_t i;
    for (i = 0; i < CDP__MEM_WATCHERS; ++i) {
        cdp__mem_level *const l = &m->levels[i];
        if (now - size <= l->again) l->armed = true;
        if (!l->func || !l->armed || now <= l->bytes) continue;
        l->armed = false;
        l->due = m->levels_due = true;
        l->now = now;
    }
}

/* A block, counted already, is given out by a call that is recorded or watched. */
CDP__PRIVATE void cdp__mem_part_given(cdp_mem *m, const cdp__mem_call *c, cdp__mem_part *p) {
    if (c->wants & CDP__MEM_WANTS_STATE)
        cdp__mem_label_enter(
            &m->log.labels, &p->label, c->label, p->size, cdp__mem_active_bytes(m));
    if (c->wants & CDP__MEM_WANTS_LEVEL) cdp__mem_levels_look(m, p->size);
}

CDP__PRIVATE void cdp__mem_event_span(
    cdp_mem *m, const cdp__mem_call *c, cdp_mem_action action, const cdp__mem_span *s) {
    cdp__mem_record *const e = cdp__mem_event_add(m, c, action, s->at, s->size);
    cdp__mem_event_place(e, s->arena);
    if (e && !e->stack && (c->wants & CDP__MEM_WANTS_ALLOC)) e->stack = s->stack;
}

/* Record an event of pages of a segment that grows. */
CDP__PRIVATE void cdp__mem_event_pages(cdp_mem *m, const cdp__mem_call *c, cdp_mem_action action,
    uint64_t at, uint64_t bytes, cdp__mem_arena *arena, uint32_t stack) {
    cdp__mem_span pages;
    memset(&pages, 0, sizeof pages);
    pages.at = at;
    pages.size = bytes;
    pages.arena = arena;
    pages.stack = stack;
    cdp__mem_event_span(m, c, action, &pages);
}

/* A call of the library itself, without a stack. */
CDP__PRIVATE void cdp__mem_call_plain(cdp_mem *m, cdp__mem_call *c) {
    c->caller = c->frame = NULL;
    cdp__mem_call_begin(m, c, 0, NULL);
}

CDP__PRIVATE uint32_t cdp__mem_wants(const cdp_mem_record_desc *d) {
    uint32_t w = CDP__MEM_WANTS_STATE;
    if (d->history == CDP_MEM_HISTORY_OFF) return 0;
    if (d->history == CDP_MEM_HISTORY_ALL) w |= CDP__MEM_WANTS_EVENTS;
    if (d->context == CDP_MEM_CONTEXT_NONE) return w;
    w |= CDP__MEM_WANTS_STACK;
    if (d->context <= CDP_MEM_CONTEXT_ALLOC) w |= CDP__MEM_WANTS_ALLOC;
    if (d->context == CDP_MEM_CONTEXT_ALL) w |= CDP__MEM_WANTS_FREE;
    if (d->stacks != CDP_MEM_STACKS_SITE) w |= d->max_frames << 16;
    return w | (uint32_t)d->stacks << 24;
}

CDP__PRIVATE void cdp__mem_record_defaults(cdp_mem_record_desc *d) {
    d->max_entries = cdp__def(d->max_entries, 100000u);
    d->max_frames = cdp__def(d->max_frames, 32u);
    d->max_stacks = cdp__def(d->max_stacks, 16384u);
}

CDP__PRIVATE cdp_status cdp__mem_record_check(const cdp_mem_record_desc *d) {
    const uint32_t may = 1u << CDP_MEM_OOM | 1u << CDP_MEM_SNAPSHOT | 1u << CDP_MEM_USER_DEFINED
        | 1u << CDP_MEM_ANNOTATE;
    if (d->history > CDP_MEM_HISTORY_ALL || d->context > CDP_MEM_CONTEXT_NONE
        || d->stacks > CDP_MEM_STACKS_SITE)
        return cdp__fail(CDP_ERR_INVALID,
            "record: history %u, context %u or stacks %u is no value of its enum",
            (unsigned)d->history, (unsigned)d->context, (unsigned)d->stacks);
    if (d->max_frames > CDP__MEM_FRAMES)
        return cdp__fail(CDP_ERR_INVALID, "record: max_frames %u; %u is the most", d->max_frames,
            CDP__MEM_FRAMES);
    if (d->max_entries > 1u << 28 || d->max_stacks > 1u << 24)
        return cdp__fail(CDP_ERR_INVALID,
            "record: max_entries %u or max_stacks %u is above 2^28 or 2^24", d->max_entries,
            d->max_stacks);
    if (d->skip & ~may)
        return cdp__fail(CDP_ERR_INVALID,
            "record: skip 0x%x leaves out events of blocks or segments; without them the file "
            "cannot be replayed; use min_bytes",
            d->skip);
    if (!CDP__MEM_BACKTRACE && d->history && d->context != CDP_MEM_CONTEXT_NONE
        && d->stacks == CDP_MEM_STACKS_BACKTRACE)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "record: this C library has no backtrace(); set stacks to FRAME_POINTER or SITE");
    return CDP_OK;
}

/* Allocates ring, depot and sites of `l` in one piece. */
CDP__PRIVATE bool cdp__mem_log_open(const cdp_os *os, cdp__mem_log *l) {
    const cdp_mem_record_desc *const d = &l->desc;
    const uint64_t words = (uint64_t)d->max_stacks * (d->max_frames < 16 ? d->max_frames + 2 : 16);
    const bool all = d->history == CDP_MEM_HISTORY_ALL;
    uint64_t slots = 64;
    char *at;
    while (slots < 2ull * (d->max_stacks + 2))
        slots *= 2;
    l->ring.room = all ? d->max_entries : 0;
    l->depot.rows_room = d->max_stacks + 1;
    l->depot.words_room = (uint32_t)words + CDP__MEM_WORDS;
    l->depot.slot_mask = (uint32_t)slots - 1;
    at = (char *)cdp__alloc(os,
        l->ring.room * sizeof(cdp__mem_record) + l->depot.rows_room * sizeof(cdp__mem_row)
            + l->depot.words_room * sizeof(uint64_t) + CDP__MEM_SITES_ALL
            + slots * sizeof(uint32_t));
    l->memory = at;
    if (!at) return false;
    l->labels.os = os;
    l->ring.at = (cdp__mem_record *)(void *)at;
    at += l->ring.room * sizeof(cdp__mem_record);
    l->depot.rows = (cdp__mem_row *)(void *)at;
    at += l->depot.rows_room * sizeof(cdp__mem_row);
    l->depot.words = (uint64_t *)(void *)at;
    at += l->depot.words_room * sizeof(uint64_t);
    memset(at, 0, CDP__MEM_SITES_ALL);
    cdp__mem_sites_at(&l->sites, at);
    at += CDP__MEM_SITES_ALL;
    l->depot.slots = (uint32_t *)(void *)at;
    cdp__mem_depot_clear(&l->depot);
    return true;
}

CDP__PRIVATE void cdp__mem_log_close(const cdp_os *os, cdp__mem_log *l) {
    cdp__free(os, l->memory);
    cdp__mem_labels_close(&l->labels);
    memset(l, 0, sizeof *l);
}

#endif /* CDP_SRC_MEM_HISTORY_H */
