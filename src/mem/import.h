/* mem/import.h - a tree as a shot

   Knows: the keys of a snapshot, and what unknown or missing ones mean. Promises: lists that a file
   repeats are shared or counted, so that the snapshot stays in proportion to the file. */
#ifndef CDP_SRC_MEM_IMPORT_H
#define CDP_SRC_MEM_IMPORT_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "desc_api.h"
#include "allocator_api.h"
#include "shots_api.h"
#include "os_stacks.h"
#include "../text/tree.h"
#include "texts.h"
#include "shot.h"
#include "value.h"
#include "others.h"

CDP__PRIVATE const char *cdp__mem_import_text(
    cdp_mem_shot *s, const cdp__tree *v, const char *other) {
    const char *t;
    if (!v || v->kind != CDP__TREE_TEXT) return other;
    t = cdp__mem_text_of(&s->texts, v->as.text, cdp__min(v->length, CDP__MEM_TEXT_MAX));
    if (!t) s->failed = true;
    return t ? t : s->empty;
}

/* The number of a list of frames. Equal lists of the file are converted once. */
CDP__PRIVATE uint32_t cdp__mem_import_stack(
    cdp__tree_reader *r, cdp_mem_shot *s, const cdp__tree *v) {
    static const char *const words[] = {"filename", "name", "line", NULL};
    cdp__tree_box *const b = v && v->kind == CDP__TREE_LIST ? v->as.box : NULL;
    uint64_t i;
    uint32_t n;
    if (!b || !b->count) return 0;
    if (b->mark) return b->mark - 1; /* the number of the stack + 1 */
    n = cdp__mem_shot_stack(s, b->count);
    b->mark = n + 1;
    for (i = 0; n && i < b->count; ++i) {
        cdp_mem_frame *const f = &s->frames[s->stacks[n].first + i];
        const cdp__tree *const d = &b->items[i];
        f->filename = cdp__mem_import_text(s, cdp__tree_get(d, "filename"), s->empty);
        f->name = cdp__mem_import_text(s, cdp__tree_get(d, "name"), s->empty);
        f->line = (uint32_t)(cdp__mem_number_of(cdp__tree_get(d, "line"), 0) & 0xffffffffu);
        if (!cdp__mem_import_others(r, s, d, words, &f->others)) return 0;
    }
    return n;
}

CDP__PRIVATE void cdp__mem_import_pool(const cdp__tree *dict, uint64_t pool[2]) {
    const cdp__tree *v = cdp__tree_get(dict, "segment_pool_id");
    const cdp__tree_box *b = cdp__tree_list(v ? v : cdp__tree_get(dict, "pool_id"));
    pool[0] = b && b->count == 2 ? cdp__mem_number_of(&b->items[0], 0) : 0;
    pool[1] = b && b->count == 2 ? cdp__mem_number_of(&b->items[1], 0) : 0;
}

CDP__PRIVATE uint64_t cdp__mem_import_count(const cdp__tree *dict, const char *key) {
    return cdp__mem_number_of(cdp__tree_get(dict, key), 0);
}

CDP__PRIVATE cdp_mem_state cdp__mem_import_state(const cdp__tree *v) {
    if (!v || cdp__tree_is(v, "inactive")) return CDP_MEM_INACTIVE;
    return cdp__tree_is(v, "active_allocated") ? CDP_MEM_ACTIVE : CDP_MEM_PENDING;
}

/* A block without an address follows the previous one. */
CDP__PRIVATE bool cdp__mem_import_blocks(
    cdp__tree_reader *r, cdp_mem_shot *s, cdp_mem_segment *g, const cdp__tree_box *list) {
    static const char *const words[] = {
        "address", "size", "requested_size", "state", "frames", "user_metadata", NULL};
    uint64_t i, at = g->address;
    if (!list) return true;
    if (!cdp__mem_add(s, block, list->count)) return cdp__tree_nomem(r);
    for (i = 0; i < list->count; ++i) {
        const cdp__tree *const d = &list->items[i];
        cdp_mem_block *const b = &s->blocks[s->block_count++];
        b->address = cdp__mem_number_of(cdp__tree_get(d, "address"), at);
        b->size = cdp__mem_import_count(d, "size");
        b->requested = cdp__mem_number_of(cdp__tree_get(d, "requested_size"), b->size);
        b->state = cdp__mem_import_state(cdp__tree_get(d, "state"));
        b->stack = cdp__mem_import_stack(r, s, cdp__tree_get(d, "frames"));
        b->label = cdp__mem_import_text(s, cdp__tree_get(d, "user_metadata"), NULL);
        if (!cdp__mem_import_others(r, s, d, words, &b->others)) return false;
        at = b->address + b->size;
        cdp__mem_segment_sum(g, b);
    }
    g->block_count = (uint32_t)list->count;
    return true;
}

CDP__PRIVATE bool cdp__mem_import_segment(
    cdp__tree_reader *r, cdp_mem_shot *s, const cdp__tree *d) {
    static const char *const words[] = {"device", "address", "total_size", "allocated_size",
        "active_size", "requested_size", "stream", "segment_type", "segment_pool_id", "pool_id",
        "is_expandable", "is_external", "user_metadata", "frames", "blocks", NULL};
    const cdp__tree *const type = cdp__tree_get(d, "segment_type");
    const cdp__tree_box *const blocks = cdp__tree_list(cdp__tree_get(d, "blocks"));
    const uint64_t device = cdp__mem_import_count(d, "device");
    cdp_mem_segment *g;
    if (d->kind != CDP__TREE_DICT) return cdp__tree_bad(r, "a segment is no dict");
    if (device >= CDP__MEM_DEVICES) return cdp__tree_bad(r, "a device has a number above 1023");
    if (s->block_count + (blocks ? blocks->count : 0) > r->bytes)
        return cdp__tree_bad(r, "a list of blocks is repeated too often");
    if (!cdp__mem_add(s, segment, 1)) return cdp__tree_nomem(r);
    g = &s->segments[s->segment_count++];
    memset(g, 0, sizeof *g);
    g->device = (uint32_t)device;
    g->address = cdp__mem_import_count(d, "address");
    g->size = cdp__mem_import_count(d, "total_size");
    g->stream = cdp__mem_import_count(d, "stream");
    g->large = type && cdp__tree_is(type, "large");
    g->grows = cdp__mem_import_count(d, "is_expandable") != 0;
    g->external = cdp__mem_import_count(d, "is_external") != 0;
    g->stack = cdp__mem_import_stack(r, s, cdp__tree_get(d, "frames"));
    g->label = cdp__mem_import_text(s, cdp__tree_get(d, "user_metadata"), NULL);
    cdp__mem_import_pool(d, g->pool);
    if (!cdp__mem_import_others(r, s, d, words, &g->others)) return false;
    if (!cdp__mem_shot_devices(s, device + 1)) return cdp__tree_nomem(r);
    return cdp__mem_import_blocks(r, s, g, blocks);
}

CDP__PRIVATE cdp_mem_action cdp__mem_import_action(const cdp__tree *v) {
    uint32_t i;
    for (i = 0; v && i < CDP_MEM_ACTION_COUNT; ++i)
        if (cdp__tree_is(v, cdp_mem_action_name((cdp_mem_action)i))) return (cdp_mem_action)i;
    return CDP_MEM_ACTION_COUNT;
}

/* Reads events of one device. Skips actions that only newer writers use. */
CDP__PRIVATE bool cdp__mem_import_events(
    cdp__tree_reader *r, cdp_mem_shot *s, uint32_t device, const cdp__tree_box *list) {
    static const char *const words[] = {"action", "addr", "device_free", "size", "stream",
        "time_us", "frames", "user_metadata", "segment_pool_id", "pool_id", NULL};
    cdp_mem_event *e;
    uint64_t i, count = 0;
    for (i = 0; i < s->device_count; ++i)
        count += s->devices[i].count;
    if (count + list->count > r->bytes)
        return cdp__tree_bad(r, "a list of events is repeated too often");
    e = cdp__mem_shot_events(s, device, list->count);
    if (!e && list->count) return cdp__tree_nomem(r);
    for (i = 0; i < list->count; ++i) {
        const cdp__tree *const d = &list->items[i];
        const cdp_mem_action action = cdp__mem_import_action(cdp__tree_get(d, "action"));
        if (action == CDP_MEM_ACTION_COUNT) continue;
        e->action = action;
        e->address = cdp__mem_import_count(d, "addr");
        e->device_free = cdp__mem_import_count(d, "device_free");
        e->size = cdp__mem_import_count(d, "size");
        e->stream = cdp__mem_import_count(d, "stream");
        e->time_us = cdp__mem_import_count(d, "time_us");
        e->stack = cdp__mem_import_stack(r, s, cdp__tree_get(d, "frames"));
        e->label = cdp__mem_import_text(s, cdp__tree_get(d, "user_metadata"), NULL);
        cdp__mem_import_pool(d, e->pool);
        if (!cdp__mem_import_others(r, s, d, words, &e->others)) return false;
        ++s->devices[device].count;
        ++e;
    }
    return true;
}

CDP__PRIVATE bool cdp__mem_import_traces(cdp__tree_reader *r, cdp_mem_shot *s, const cdp__tree *v) {
    const cdp__tree_box *const b = cdp__tree_list(v);
    uint64_t i;
    if (!b) return cdp__tree_bad(r, "device_traces is no list");
    if (b->count > CDP__MEM_DEVICES) return cdp__tree_bad(r, "there are more than 1024 devices");
    if (!cdp__mem_shot_devices(s, b->count)) return cdp__tree_nomem(r);
    for (i = 0; i < b->count; ++i) {
        const cdp__tree_box *const list = cdp__tree_list(&b->items[i]);
        if (!list) return cdp__tree_bad(r, "the trace of a device is no list");
        if (!cdp__mem_import_events(r, s, (uint32_t)i, list)) return false;
    }
    return true;
}

CDP__PRIVATE bool cdp__mem_import_modules(cdp_mem_shot *s, const cdp__tree_box *b) {
    uint64_t i;
    for (i = 0; b && i < b->count; ++i) {
        cdp__mem_module *k;
        if (!cdp__mem_add(s, module, 1) || !cdp__mem_add(s, module_path, 1)) return false;
        k = &s->modules[s->module_count++];
        memset(k, 0, sizeof *k);
        k->base = cdp__mem_import_count(&b->items[i], "base");
        k->path = (uint32_t)s->module_path_count;
        s->module_paths[s->module_path_count++] =
            cdp__mem_import_text(s, cdp__tree_get(&b->items[i], "path"), s->empty);
    }
    return true;
}

CDP__PRIVATE bool cdp__mem_import(cdp__tree_reader *r, cdp_mem_shot *s, const cdp__tree *v) {
    static const char *const words[] = {"segments", "device_traces", "allocator_settings",
        "external_annotations", "events_lost", "stacks_lost", "labels_lost", "modules", NULL};
    const cdp__tree_box *const segments = cdp__tree_list(cdp__tree_get(v, "segments"));
    uint64_t i;
    if (!segments) return cdp__tree_bad(r, "it is no snapshot: there is no list of segments");
    for (i = 0; i < segments->count; ++i)
        if (!cdp__mem_import_segment(r, s, &segments->items[i])) return false;
    cdp__mem_shot_link(s);
    if (!cdp__mem_import_traces(r, s, cdp__tree_get(v, "device_traces"))) return false;
    if (!cdp__mem_import_whole(
            r, s, cdp__tree_get(v, "allocator_settings"), CDP__TREE_DICT, &s->file_settings)
        || !cdp__mem_import_whole(
            r, s, cdp__tree_get(v, "external_annotations"), CDP__TREE_LIST, &s->annotations)
        || !cdp__mem_import_others(r, s, v, words, &s->others))
        return false;
    s->events_lost = cdp__mem_import_count(v, "events_lost");
    s->stacks_lost = cdp__mem_import_count(v, "stacks_lost");
    s->labels_lost = cdp__mem_import_count(v, "labels_lost");
    if (!cdp__mem_import_modules(s, cdp__tree_list(cdp__tree_get(v, "modules"))))
        return cdp__tree_nomem(r);
    return s->failed ? cdp__tree_nomem(r) : true;
}

#endif /* CDP_SRC_MEM_IMPORT_H */
