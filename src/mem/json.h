/* mem/json.h - the same values as text (pure)

   Knows: the values of a snapshot, as a pickle or as JSON behind one set of functions. Promises:
   both forms have the same keys, and no number is above 2^53. */
#ifndef CDP_SRC_MEM_JSON_H
#define CDP_SRC_MEM_JSON_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../text/json_write.h"
#include "../text/json_real.h"
#include "desc_api.h"
#include "allocator_api.h"
#include "shots_api.h"
#include "shot.h"
#include "writer.h"
#include "pickle.h"

CDP__PRIVATE void cdp__mem_w_text(cdp__mem_output *w, const char *text) {
    if (w->json)
        cdp__json_string(&w->text, text);
    else
        cdp__mem_pickle_text(w, text);
}

CDP__PRIVATE void cdp__mem_w_number(cdp__mem_output *w, uint64_t v) {
    if (v > CDP__MEM_NUMBER_MAX) v = CDP__MEM_NUMBER_MAX;
    if (!w->json) {
        cdp__mem_pickle_number(w, (int64_t)v);
        return;
    }
    cdp__text_number(&w->text, v, false, 10);
}

CDP__PRIVATE void cdp__mem_w_bool(cdp__mem_output *w, bool v) {
    if (w->json)
        cdp__mem_put_text(w, v ? "true" : "false");
    else
        cdp__mem_put(w, v ? 0x88 : 0x89);
}

CDP__PRIVATE void cdp__mem_w_whole(cdp__mem_output *w, int64_t v) {
    if (w->json)
        cdp__text_add(&w->text, "%lld", (long long)v);
    else
        cdp__mem_pickle_number(w, v);
}

CDP__PRIVATE void cdp__mem_w_real(cdp__mem_output *w, double v) {
    if (w->json)
        cdp__json_real(&w->text, v, false);
    else
        cdp__mem_pickle_real(w, v);
}

/* Writes a setting: a whole number without a point. */
CDP__PRIVATE void cdp__mem_w_setting(cdp__mem_output *w, double v) {
    const int64_t whole = v > -9e15 && v < 9e15 ? (int64_t)v : INT64_MAX;
    if ((double)whole >= v && (double)whole <= v)
        cdp__mem_w_whole(w, whole);
    else
        cdp__mem_w_real(w, v);
}

CDP__PRIVATE void cdp__mem_w_dict(cdp__mem_output *w) {
    cdp__mem_put_text(w, w->json ? "{" : "}(");
    w->fresh = true;
}

CDP__PRIVATE void cdp__mem_w_dict_end(cdp__mem_output *w) {
    cdp__mem_put(w, w->json ? '}' : 'u');
    w->fresh = false;
}

/* `text` is a text of the shot. */
CDP__PRIVATE void cdp__mem_w_key(cdp__mem_output *w, const char *text) {
    if (w->json && !w->fresh) cdp__mem_put(w, ',');
    w->fresh = false;
    cdp__mem_w_text(w, text);
    if (w->json) cdp__mem_put(w, ':');
}

CDP__PRIVATE void cdp__mem_w_list(cdp__mem_output *w) {
    cdp__mem_put(w, w->json ? '[' : ']');
}

/* Call before the i-th item of a list. */
CDP__PRIVATE void cdp__mem_w_item(cdp__mem_output *w, uint64_t i) {
    if (w->json && i) cdp__mem_put(w, ',');
    if (w->json || i % 1000) return;
    if (i) cdp__mem_put(w, 'e');
    cdp__mem_put(w, '(');
}

CDP__PRIVATE void cdp__mem_w_list_end(cdp__mem_output *w, uint64_t count) {
    if (w->json)
        cdp__mem_put(w, ']');
    else if (count)
        cdp__mem_put(w, 'e');
    w->fresh = false;
}

CDP__PRIVATE void cdp__mem_w_pair(cdp__mem_output *w, const uint64_t pair[2]) {
    if (w->json) cdp__mem_put(w, '[');
    cdp__mem_w_number(w, pair[0]);
    if (w->json) cdp__mem_put(w, ',');
    cdp__mem_w_number(w, pair[1]);
    cdp__mem_put(w, w->json ? ']' : 0x86);
}

/* Writes a token that is no container. */
CDP__PRIVATE void cdp__mem_w_plain(cdp__mem_output *w, const cdp__mem_token *t) {
    switch (t->kind) {
    case CDP__TREE_BOOL: cdp__mem_w_bool(w, t->as.whole != 0); break;
    case CDP__TREE_TEXT: cdp__mem_w_text(w, t->as.text); break;
    case CDP__TREE_INT: cdp__mem_w_whole(w, t->as.whole); break;
    case CDP__TREE_REAL: cdp__mem_w_real(w, t->as.real); break;
    default: cdp__mem_put_text(w, w->json ? "null" : "N"); break;
    }
}

/* Writes the value that begins at a token; returns the token behind it. */
CDP__PRIVATE const cdp__mem_token *cdp__mem_w_tree(cdp__mem_output *w, const cdp__mem_token *t) {
    struct {
        const cdp__mem_token *box;
        uint32_t at;
    } open[CDP__MEM_DEEP];
    uint32_t depth = 0;
    for (;;) {
        const bool list = t->kind == CDP__TREE_LIST;
        if (list || t->kind == CDP__TREE_DICT) {
            if (list)
                cdp__mem_w_list(w);
            else
                cdp__mem_w_dict(w);
            open[depth].box = t;
            open[depth++].at = 0;
        } else
            cdp__mem_w_plain(w, t);
        ++t;
        for (; depth && open[depth - 1].at == open[depth - 1].box->count; --depth)
            if (open[depth - 1].box->kind == CDP__TREE_LIST)
                cdp__mem_w_list_end(w, open[depth - 1].box->count);
            else
                cdp__mem_w_dict_end(w);
        if (!depth) return t;
        if (open[depth - 1].box->kind == CDP__TREE_LIST)
            cdp__mem_w_item(w, open[depth - 1].at);
        else
            cdp__mem_w_key(w, t++->as.text);
        ++open[depth - 1].at;
    }
}

/* Writes the pairs of a dict that is a token, into the dict that is open. */
CDP__PRIVATE void cdp__mem_w_others(cdp__mem_output *w, const cdp_mem_shot *s, uint32_t others) {
    const cdp__mem_token *t = others ? &s->tokens[others + 1] : NULL;
    uint32_t i;
    for (i = 0; others && i < s->tokens[others].count; ++i) {
        cdp__mem_w_key(w, t->as.text);
        t = cdp__mem_w_tree(w, t + 1);
    }
}

CDP__PRIVATE void cdp__mem_w_frames(
    cdp__mem_output *w, const cdp_mem_shot *s, const cdp__mem_keys *k, uint32_t stack) {
    const cdp__mem_stack *const t = &s->stacks[stack];
    uint32_t i;
    if (!w->json && w->stack_memo[stack]) {
        cdp__mem_pickle_again(w, w->stack_memo[stack]);
        return;
    }
    cdp__mem_w_list(w);
    if (!w->json) w->stack_memo[stack] = cdp__mem_pickle_keep(w);
    for (i = 0; i < t->count; ++i) {
        const cdp_mem_frame *const f = &s->frames[t->first + i];
        cdp__mem_w_item(w, i);
        cdp__mem_w_dict(w);
        cdp__mem_w_key(w, k->w_filename);
        cdp__mem_w_text(w, f->filename);
        cdp__mem_w_key(w, k->w_line);
        cdp__mem_w_number(w, f->line);
        cdp__mem_w_key(w, k->w_name);
        cdp__mem_w_text(w, f->name);
        cdp__mem_w_others(w, s, f->others);
        cdp__mem_w_dict_end(w);
    }
    cdp__mem_w_list_end(w, t->count);
}

CDP__PRIVATE void cdp__mem_w_entry(cdp__mem_output *w, const char *key, uint64_t v) {
    cdp__mem_w_key(w, key);
    cdp__mem_w_number(w, v);
}

CDP__PRIVATE void cdp__mem_w_string(cdp__mem_output *w, const char *key, const char *text) {
    cdp__mem_w_key(w, key);
    cdp__mem_w_text(w, text);
}

CDP__PRIVATE const char *cdp__mem_state_word(const cdp__mem_keys *k, cdp_mem_state state) {
    if (state == CDP_MEM_ACTIVE) return k->w_active_allocated;
    return state == CDP_MEM_PENDING ? k->w_active_pending_free : k->w_inactive;
}

CDP__PRIVATE void cdp__mem_w_block(
    cdp__mem_output *w, const cdp_mem_shot *s, const cdp__mem_keys *k, const cdp_mem_block *b) {
    cdp__mem_w_dict(w);
    cdp__mem_w_entry(w, k->w_address, b->address);
    cdp__mem_w_entry(w, k->w_size, b->size);
    cdp__mem_w_entry(w, k->w_requested_size, b->requested);
    cdp__mem_w_string(w, k->w_state, cdp__mem_state_word(k, b->state));
    if (b->label) cdp__mem_w_string(w, k->w_user_metadata, b->label);
    cdp__mem_w_key(w, k->w_frames);
    cdp__mem_w_frames(w, s, k, b->stack);
    cdp__mem_w_others(w, s, b->others);
    cdp__mem_w_dict_end(w);
}

CDP__PRIVATE void cdp__mem_w_segment(
    cdp__mem_output *w, const cdp_mem_shot *s, const cdp__mem_keys *k, const cdp_mem_segment *g) {
    uint32_t i;
    cdp__mem_w_dict(w);
    cdp__mem_w_entry(w, k->w_device, g->device);
    cdp__mem_w_entry(w, k->w_address, g->address);
    cdp__mem_w_entry(w, k->w_total_size, g->size);
    cdp__mem_w_entry(w, k->w_allocated_size, g->allocated);
    cdp__mem_w_entry(w, k->w_active_size, g->active);
    cdp__mem_w_entry(w, k->w_requested_size, g->requested);
    cdp__mem_w_entry(w, k->w_stream, g->stream);
    cdp__mem_w_string(w, k->w_segment_type, g->large ? k->w_large : k->w_small);
    cdp__mem_w_key(w, k->w_segment_pool_id);
    cdp__mem_w_pair(w, g->pool);
    cdp__mem_w_key(w, k->w_is_expandable);
    cdp__mem_w_bool(w, g->grows);
    if (g->external) cdp__mem_w_key(w, k->w_is_external);
    if (g->external) cdp__mem_w_bool(w, true);
    if (g->label) cdp__mem_w_string(w, k->w_user_metadata, g->label);
    cdp__mem_w_key(w, k->w_frames);
    cdp__mem_w_frames(w, s, k, g->stack);
    cdp__mem_w_key(w, k->w_blocks);
    cdp__mem_w_list(w);
    for (i = 0; i < g->block_count; ++i) {
        cdp__mem_w_item(w, i);
        cdp__mem_w_block(w, s, k, &g->blocks[i]);
    }
    cdp__mem_w_list_end(w, g->block_count);
    cdp__mem_w_others(w, s, g->others);
    cdp__mem_w_dict_end(w);
}

CDP__PRIVATE void cdp__mem_w_event(
    cdp__mem_output *w, const cdp_mem_shot *s, const cdp__mem_keys *k, const cdp_mem_event *e) {
    const bool oom = e->action == CDP_MEM_OOM;
    cdp__mem_w_dict(w);
    cdp__mem_w_string(w, k->w_action, k->actions[e->action]);
    cdp__mem_w_entry(w, oom ? k->w_device_free : k->w_addr, oom ? e->device_free : e->address);
    cdp__mem_w_entry(w, k->w_size, e->size);
    cdp__mem_w_entry(w, k->w_stream, e->stream);
    cdp__mem_w_entry(w, k->w_time_us, e->time_us);
    if (e->label) cdp__mem_w_string(w, k->w_user_metadata, e->label);
    if (e->pool[0] || e->pool[1]) {
        cdp__mem_w_key(w, k->w_segment_pool_id);
        cdp__mem_w_pair(w, e->pool);
    }
    if (e->stack) {
        cdp__mem_w_key(w, k->w_frames);
        cdp__mem_w_frames(w, s, k, e->stack);
    }
    cdp__mem_w_others(w, s, e->others);
    cdp__mem_w_dict_end(w);
}

CDP__PRIVATE void cdp__mem_w_traces(
    cdp__mem_output *w, const cdp_mem_shot *s, const cdp__mem_keys *k) {
    uint64_t i, j;
    cdp__mem_w_key(w, k->w_device_traces);
    cdp__mem_w_list(w);
    for (i = 0; i < s->device_count; ++i) {
        const cdp__mem_device *const d = &s->devices[i];
        cdp__mem_w_item(w, i);
        cdp__mem_w_list(w);
        for (j = 0; j < d->count; ++j) {
            cdp__mem_w_item(w, j);
            cdp__mem_w_event(w, s, k, &d->events[j]);
        }
        cdp__mem_w_list_end(w, d->count);
    }
    cdp__mem_w_list_end(w, s->device_count);
}

CDP__PRIVATE void cdp__mem_w_settings(
    cdp__mem_output *w, const cdp_mem_shot *s, const cdp__mem_keys *k) {
    uint64_t i;
    cdp__mem_w_key(w, k->w_allocator_settings);
    cdp__mem_w_dict(w);
    for (i = 0; i < s->setting_count; ++i) {
        const cdp__mem_setting *const t = &s->settings[i];
        cdp__mem_w_key(w, t->key);
        if (t->text)
            cdp__mem_w_text(w, t->text);
        else
            cdp__mem_w_setting(w, t->number);
    }
    cdp__mem_w_others(w, s, s->file_settings);
    cdp__mem_w_dict_end(w);
    cdp__mem_w_key(w, k->w_external_annotations);
    if (s->annotations) {
        (void)cdp__mem_w_tree(w, &s->tokens[s->annotations]);
    } else {
        cdp__mem_w_list(w);
        cdp__mem_w_list_end(w, 0);
    }
    cdp__mem_w_entry(w, k->w_events_lost, s->events_lost);
    if (s->stacks_lost) cdp__mem_w_entry(w, k->w_stacks_lost, s->stacks_lost);
    if (s->labels_lost) cdp__mem_w_entry(w, k->w_labels_lost, s->labels_lost);
    cdp__mem_w_key(w, k->w_modules);
    cdp__mem_w_list(w);
    for (i = 0; i < s->module_count; ++i) {
        cdp__mem_w_item(w, i);
        cdp__mem_w_dict(w);
        cdp__mem_w_string(w, k->w_path, s->module_paths[s->modules[i].path]);
        cdp__mem_w_entry(w, k->w_base, s->modules[i].base);
        cdp__mem_w_dict_end(w);
    }
    cdp__mem_w_list_end(w, s->module_count);
}

/* Writes the whole file. */
CDP__PRIVATE void cdp__mem_w_shot(
    cdp__mem_output *w, const cdp_mem_shot *s, const cdp__mem_keys *k) {
    uint64_t i;
    if (!w->json) cdp__text_bytes(&w->text, "\x80\x02", 2);
    cdp__mem_w_dict(w);
    cdp__mem_w_key(w, k->w_segments);
    cdp__mem_w_list(w);
    for (i = 0; i < s->segment_count; ++i) {
        cdp__mem_w_item(w, i);
        cdp__mem_w_segment(w, s, k, &s->segments[i]);
    }
    cdp__mem_w_list_end(w, s->segment_count);
    cdp__mem_w_traces(w, s, k);
    cdp__mem_w_settings(w, s, k);
    cdp__mem_w_others(w, s, s->others);
    cdp__mem_w_dict_end(w);
    cdp__mem_put(w, w->json ? '\n' : '.');
    cdp__mem_output_flush(&w->text);
}

#endif /* CDP_SRC_MEM_JSON_H */
