/* mem/shot.h - a snapshot, from here or from a file

   Knows: the parts of a snapshot, and how they are added one by one. Promises: when memory runs
   out, `failed` is set, and the parts added so far stay valid. */
#ifndef CDP_SRC_MEM_SHOT_H
#define CDP_SRC_MEM_SHOT_H

#include "../base/config.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/ended.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "desc_api.h"
#include "allocator_api.h"
#include "shots_api.h"
#include "os_stacks.h"
#include "../text/tree.h"
#include "texts.h"

/* The keys and values of files, as texts of the shot. */
/* clang-format off */
#define CDP__MEM_WORDS_OF_FILE(X) \
    X(segments) \
    X(device_traces) \
    X(allocator_settings) \
    X(external_annotations) \
    X(modules) \
    X(events_lost) \
    X(stacks_lost) \
    X(labels_lost) \
    X(device) \
    X(address) \
    X(total_size) \
    X(stream) \
    X(segment_type) \
    X(large) \
    X(small) \
    X(segment_pool_id) \
    X(is_expandable) \
    X(is_external) \
    X(allocated_size) \
    X(active_size) \
    X(requested_size) \
    X(frames) \
    X(blocks) \
    X(size) \
    X(state) \
    X(active_allocated) \
    X(active_pending_free) \
    X(inactive) \
    X(filename) \
    X(line) \
    X(name) \
    X(action) \
    X(addr) \
    X(time_us) \
    X(device_free) \
    X(user_metadata) \
    X(path) \
    X(base)
/* clang-format on */
#define CDP__MEM_MEMBER(name) const char *w_##name;
typedef struct cdp__mem_keys {
    CDP__MEM_WORDS_OF_FILE(CDP__MEM_MEMBER)
    const char *actions[CDP_MEM_ACTION_COUNT];
} cdp__mem_keys;
#undef CDP__MEM_MEMBER

/* A value that a file has under a key that is not known here, kept for writing. What a container
   holds follows it; in a dict each key, a text, before its value. */
typedef struct cdp__mem_token {
    cdp__tree_kind kind;
    uint32_t count; /* of a container: its items, or pairs */
    union {
        int64_t whole;
        double real;
        const char *text;
    } as;
} cdp__mem_token;

#define CDP__MEM_DEEP 32u /* containers inside each other */

typedef struct cdp__mem_stack { /* its frames */
    uint64_t first;
    uint32_t count;
} cdp__mem_stack;

typedef struct cdp__mem_device {
    cdp_mem_event *events;
    uint64_t count, room;
} cdp__mem_device;

typedef struct cdp__mem_setting { /* a setting, as text or as a number */
    const char *key, *text;       /* text NULL: a number */
    double number;
} cdp__mem_setting;

#define CDP__MEM_DEVICES 1024u
#define CDP__MEM_SETTINGS 64u

struct cdp_mem_shot {
    const cdp_os *os;
    cdp__mem_texts texts;
    const char *empty;
    cdp__mem_keys keys;
    cdp_mem_segment *segments;
    cdp_mem_block *blocks;
    cdp__mem_stack *stacks; /* stacks[0]: none */
    cdp_mem_frame *frames;
    uint64_t *addresses; /* of frames; 0: has a name already */
    uint64_t segment_count, segment_room, block_count, block_room;
    uint64_t stack_count, stack_room, frame_count, frame_room, address_room;
    cdp__mem_device *devices;
    uint64_t device_count, device_room;
    cdp__mem_setting settings[CDP__MEM_SETTINGS];
    uint32_t setting_count;
    cdp__mem_module *modules;
    uint64_t module_count, module_room;
    const char **module_paths;
    uint64_t module_path_count, module_path_room;
    uint64_t events_lost, stacks_lost, labels_lost; /* calls without them */
    const cdp_os *clock; /* of the first allocator with a history, while a shot is built */
    uint64_t clock_ns, clock_us;
    /* tokens[0] is none. others: of the file as a whole; file_settings: in place of settings */
    cdp__mem_token *tokens;
    uint64_t token_count, token_room;
    uint32_t others, file_settings, annotations;
    cdp_mem_rows rows; /* of reports */
    const char *skip;  /* functions that they skip; NULL: none */
    bool failed;       /* out of memory */
};

#define cdp__mem_add(shot, name, count)                                         \
    cdp__more_room((shot)->os, (void **)&(shot)->name##s, &(shot)->name##_room, \
        (shot)->name##_count + (count), sizeof *(shot)->name##s)

CDP__PRIVATE const char *cdp__mem_shot_text(cdp_mem_shot *s, const char *text) {
    const char *const t = text ? cdp__mem_text_of(&s->texts, text, strlen(text)) : s->empty;
    if (!t) s->failed = true;
    return t ? t : s->empty;
}

/* False: none, or one that was freed. */
CDP__PRIVATE bool cdp__mem_shot_known(const cdp_mem_shot *s) {
    return s && !cdp__ended(s);
}

CDP__PRIVATE cdp_status cdp__mem_shot_here(const cdp_mem_shot *s, const char *call) {
    if (!s) return cdp__missing(call, "shot");
    return cdp__ended(s) ? cdp__fail(CDP_ERR_STATE, "%s: this shot was freed", call) : CDP_OK;
}

CDP__PRIVATE void cdp__mem_shot_close(cdp_mem_shot *s) {
    const cdp_os *const os = s->os;
    uint64_t i;
    for (i = 0; i < s->device_count; ++i)
        cdp__free(os, s->devices[i].events);
    cdp__free(os, s->devices);
    cdp__free(os, s->segments);
    cdp__free(os, s->blocks);
    cdp__free(os, s->stacks);
    cdp__free(os, s->frames);
    cdp__free(os, s->addresses);
    cdp__free(os, s->modules);
    cdp__free(os, s->tokens);
    cdp__free(os, (void *)s->module_paths);
    cdp__mem_texts_close(&s->texts);
    cdp__ended_add(s);
    cdp__free(os, s);
}

/* These words are the first texts, so their numbers are small. */
#define CDP__MEM_WORD(name) s->keys.w_##name = cdp__mem_shot_text(s, #name);
CDP__PRIVATE void cdp__mem_shot_keys(cdp_mem_shot *s) {
    uint32_t i;
    CDP__MEM_WORDS_OF_FILE(CDP__MEM_WORD)
    for (i = 0; i < CDP_MEM_ACTION_COUNT; ++i)
        s->keys.actions[i] = cdp__mem_shot_text(s, cdp_mem_action_name((cdp_mem_action)i));
}
#undef CDP__MEM_WORD

CDP__PRIVATE cdp_mem_shot *cdp__mem_shot_new(const cdp_os *os) {
    cdp_mem_shot *const s = (cdp_mem_shot *)cdp__alloc_zero(os, sizeof *s);
    if (!s) return NULL;
    cdp__ended_remove(s);
    s->os = s->texts.memory.os = os;
    s->empty = cdp__mem_text_of(&s->texts, "", 0);
    if (s->empty && cdp__mem_add(s, stack, 1)) {
        memset(&s->stacks[s->stack_count++], 0, sizeof *s->stacks);
        cdp__mem_shot_keys(s);
        if (!s->failed) return s;
    }
    cdp__mem_shot_close(s);
    return NULL;
}

/* Makes sure that there are at least `count` devices. */
CDP__PRIVATE bool cdp__mem_shot_devices(cdp_mem_shot *s, uint64_t count) {
    if (count <= s->device_count) return true;
    if (!cdp__mem_add(s, device, count - s->device_count)) return false;
    memset(
        s->devices + s->device_count, 0, (size_t)((count - s->device_count) * sizeof *s->devices));
    s->device_count = count;
    return true;
}

/* Makes room for `count` more events of a device; NULL: out of memory. */
CDP__PRIVATE cdp_mem_event *cdp__mem_shot_events(cdp_mem_shot *s, uint32_t device, uint64_t count) {
    cdp__mem_device *d;
    if (!cdp__mem_shot_devices(s, device + 1ull)) return NULL;
    d = &s->devices[device];
    if (!cdp__more_room(
            s->os, (void **)&d->events, &d->room, d->count + count + 1, sizeof *d->events))
        return NULL;
    return d->events + d->count;
}

/* Adds a stack of `count` zeroed frames; returns its number, 0: out of memory. */
CDP__PRIVATE uint32_t cdp__mem_shot_stack(cdp_mem_shot *s, uint64_t count) {
    cdp__mem_stack *k;
    if (!cdp__mem_add(s, stack, 1) || !cdp__mem_add(s, frame, count)
        || !cdp__more_room(s->os, (void **)&s->addresses, &s->address_room, s->frame_count + count,
            sizeof *s->addresses)) {
        s->failed = true;
        return 0;
    }
    k = &s->stacks[s->stack_count++];
    k->first = s->frame_count;
    k->count = (uint32_t)count;
    memset(s->frames + k->first, 0, (size_t)(count * sizeof *s->frames));
    memset(s->addresses + k->first, 0, (size_t)(count * sizeof *s->addresses));
    s->frame_count += count;
    return (uint32_t)s->stack_count - 1;
}

CDP__PRIVATE void cdp__mem_shot_setting(
    cdp_mem_shot *s, const char *key, const char *text, double number) {
    cdp__mem_setting *const t = &s->settings[s->setting_count];
    if (s->setting_count == CDP__MEM_SETTINGS) return;
    t->key = cdp__mem_shot_text(s, key);
    t->text = text ? cdp__mem_shot_text(s, text) : NULL;
    t->number = number;
    ++s->setting_count;
}

/* Blocks may have moved while more were added: sets each segment's pointer again. */
CDP__PRIVATE void cdp__mem_shot_link(cdp_mem_shot *s) {
    uint64_t i, at = 0;
    for (i = 0; i < s->segment_count; ++i) {
        s->segments[i].blocks = s->blocks ? s->blocks + at : NULL;
        at += s->segments[i].block_count;
    }
}

/* Adds a block to the sums of its segment. */
CDP__PRIVATE void cdp__mem_segment_sum(cdp_mem_segment *g, const cdp_mem_block *b) {
    if (b->state == CDP_MEM_INACTIVE) return;
    g->active += b->size;
    g->requested += b->requested;
    if (b->state == CDP_MEM_ACTIVE) g->allocated += b->size;
}

#endif /* CDP_SRC_MEM_SHOT_H */
