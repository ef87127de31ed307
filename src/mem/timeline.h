/* mem/timeline.h - lifetimes of memory

   Knows: the elements of a picture. An element was allocated by one event and freed by another; or
   existed at the beginning, or exists at the end. Promises: sums at the peak and at the end are
   those of the elements. */
#ifndef CDP_SRC_MEM_TIMELINE_H
#define CDP_SRC_MEM_TIMELINE_H

#include "../base/config.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "desc_api.h"
#include "allocator_api.h"
#include "shots_api.h"
#include "sizes.h"
#include "texts.h"
#include "shot.h"

#define CDP__MEM_ALWAYS UINT64_MAX

typedef struct cdp__mem_element {
    uint64_t address, size;
    uint64_t from, to; /* numbers of events; from 0 with `before`: was there; to ALWAYS: is there */
    uint32_t stack;
    bool before, drawn;
    const char *label;
} cdp__mem_element;

typedef struct cdp__mem_line { /* of one device */
    const cdp_mem_shot *shot;
    const cdp_mem_event *events;
    uint64_t event_count;
    cdp__mem_element *elements;
    uint64_t count, room;
    /* for each event, number + 1 of the element that it begins or ends; 0: none */
    uint32_t *of_event;
    uint64_t *live_at; /* open addressing: address ... */
    uint32_t *live;    /* ... to element + 1; 0: freed */
    uint64_t mask;
    double peak, end;
    uint64_t peak_event;
} cdp__mem_line;

CDP__PRIVATE void cdp__mem_line_close(cdp__mem_line *l) {
    const cdp_os *const os = l->shot->os;
    cdp__free(os, l->elements);
    cdp__free(os, l->of_event);
    cdp__free(os, l->live_at);
    cdp__free(os, l->live);
}

CDP__PRIVATE uint64_t cdp__mem_line_slot(const cdp__mem_line *l, uint64_t address) {
    uint64_t i = cdp__mem_mix(1, address) & l->mask;
    while (l->live_at[i] && l->live_at[i] != address)
        i = (i + 1) & l->mask;
    l->live_at[i] = address;
    return i;
}

CDP__PRIVATE cdp__mem_element *cdp__mem_line_add(
    cdp__mem_line *l, uint64_t address, uint64_t size, uint32_t stack, const char *label) {
    cdp__mem_element *e;
    if (!cdp__more_room(l->shot->os, (void **)&l->elements, &l->room, l->count + 1, sizeof *e))
        return NULL;
    e = &l->elements[l->count++];
    memset(e, 0, sizeof *e);
    e->address = address;
    e->size = size;
    e->stack = stack;
    e->label = label;
    e->to = CDP__MEM_ALWAYS;
    return e;
}

CDP__PRIVATE bool cdp__mem_line_begin(cdp__mem_line *l, uint64_t i) {
    const cdp_mem_event *const ev = &l->events[i];
    const uint64_t slot = cdp__mem_line_slot(l, ev->address);
    cdp__mem_element *const e = cdp__mem_line_add(l, ev->address, ev->size, ev->stack, ev->label);
    if (!e) return false;
    e->from = i;
    l->live[slot] = l->of_event[i] = (uint32_t)l->count;
    return true;
}

/* Ends an element. Without a recorded beginning, it existed before. */
CDP__PRIVATE bool cdp__mem_line_finish(cdp__mem_line *l, uint64_t i) {
    const cdp_mem_event *const ev = &l->events[i];
    const uint64_t slot = cdp__mem_line_slot(l, ev->address);
    if (!l->live[slot]) {
        cdp__mem_element *const e =
            cdp__mem_line_add(l, ev->address, ev->size, ev->stack, ev->label);
        if (!e) return false;
        e->before = true;
        l->live[slot] = (uint32_t)l->count;
    }
    l->elements[l->live[slot] - 1].to = i;
    l->of_event[i] = l->live[slot];
    l->live[slot] = 0;
    return true;
}

/* Adds elements of the final state that no event began. */
CDP__PRIVATE bool cdp__mem_line_rest(cdp__mem_line *l, uint32_t device, bool segments) {
    const cdp_mem_shot *const s = l->shot;
    uint64_t i, j;
    for (i = 0; i < s->segment_count; ++i) {
        const cdp_mem_segment *const g = &s->segments[i];
        const uint64_t parts = segments ? 1 : g->block_count;
        if (g->device != device) continue;
        for (j = 0; j < parts; ++j) {
            const cdp_mem_block *const b = segments ? NULL : &g->blocks[j];
            const uint64_t at = b ? b->address : g->address;
            cdp__mem_element *e;
            if ((b && b->state != CDP_MEM_ACTIVE) || l->live[cdp__mem_line_slot(l, at)]) continue;
            e = cdp__mem_line_add(l, at, b ? b->requested : g->size, b ? b->stack : g->stack,
                b ? b->label : g->label);
            if (!e) return false;
            e->before = true;
        }
    }
    return true;
}

/* Computes the sums over time. */
CDP__PRIVATE void cdp__mem_line_sums(cdp__mem_line *l) {
    double now = 0;
    uint64_t i;
    for (i = 0; i < l->count; ++i)
        if (l->elements[i].before) now += (double)l->elements[i].size;
    l->peak = now;
    for (i = 0; i < l->event_count; ++i) {
        const cdp__mem_element *e;
        if (!l->of_event[i]) continue;
        e = &l->elements[l->of_event[i] - 1];
        if (e->to == i)
            now -= (double)e->size;
        else
            now += (double)e->size;
        if (now <= l->peak) continue;
        l->peak = now;
        l->peak_event = i;
    }
    l->end = now;
}

CDP__PRIVATE bool cdp__mem_line_walk(cdp__mem_line *l, uint32_t device, bool segments) {
    const cdp_mem_action begin = segments ? CDP_MEM_SEGMENT_ALLOC : CDP_MEM_ALLOC;
    const cdp_mem_action end = segments ? CDP_MEM_SEGMENT_FREE : CDP_MEM_FREE_COMPLETED;
    uint64_t i;
    for (i = 0; i < l->event_count; ++i) {
        const cdp_mem_action a = l->events[i].action;
        if (a == begin && !cdp__mem_line_begin(l, i)) return false;
        if (a == end && !cdp__mem_line_finish(l, i)) return false;
    }
    if (!cdp__mem_line_rest(l, device, segments)) return false;
    cdp__mem_line_sums(l);
    return true;
}

/* Makes the elements of a device: blocks, or segments. False: out of memory. */
CDP__PRIVATE bool cdp__mem_line_open(
    cdp__mem_line *l, const cdp_mem_shot *s, uint32_t device, bool segments) {
    const uint64_t n = device < s->device_count ? s->devices[device].count : 0;
    memset(l, 0, sizeof *l);
    l->shot = s;
    l->event_count = n;
    l->events = n ? s->devices[device].events : NULL;
    l->mask = 64;
    while (l->mask < 2 * (n + s->block_count + s->segment_count))
        l->mask *= 2;
    l->live_at = (uint64_t *)cdp__alloc_zero(s->os, l->mask * sizeof *l->live_at);
    l->live = (uint32_t *)cdp__alloc_zero(s->os, l->mask * sizeof *l->live);
    l->of_event = (uint32_t *)cdp__alloc_zero(s->os, (n + 1) * sizeof *l->of_event);
    --l->mask;
    if (l->live_at && l->live && l->of_event && cdp__mem_line_walk(l, device, segments))
        return true;
    cdp__mem_line_close(l);
    return false;
}

#endif /* CDP_SRC_MEM_TIMELINE_H */
