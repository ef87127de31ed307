/*  viewer.h - a model of PyTorch's memory viewer: its unpickler, which is stricter than Python's,
    and its replay of events backwards from the final segments. Written from a description of both;
    shares no code with cdp_mem.h.

        viewer_file f;
        const char *wrong = viewer_open(&f, bytes, count);      NULL: the viewer would show it
        viewer_get(&f, viewer_get(&f, f.root, "segments"), ...)
        wrong = viewer_replay(&f, device, whole);               NULL: each block is in a segment
        viewer_close(&f); */
#ifndef VIEWER_INCLUDED
#define VIEWER_INCLUDED

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VIEWER_API __attribute__((unused)) static

typedef struct viewer_node {
    char kind; /* N none, B bool, I whole, F real, S text, L list, T tuple, D dict */
    bool used; /* a dict: it is in some container already */
    int64_t number;
    double real;
    const char *text;
    uint32_t length, count, room;
    uint32_t *items; /* numbers of nodes */
} viewer_node;

typedef struct viewer_file {
    const uint8_t *at, *end;
    viewer_node *nodes;
    uint32_t node_count, node_room;
    uint32_t *stack, *marks, *memo;
    uint32_t depth, mark_count, memo_count, room;
    uint32_t root;
    char wrong[200];
} viewer_file;

VIEWER_API bool viewer_says(viewer_file *f, const char *what) {
    if (!f->wrong[0]) snprintf(f->wrong, sizeof f->wrong, "%s", what);
    return false;
}

VIEWER_API uint32_t viewer_node_new(viewer_file *f, char kind) {
    if (f->node_count == f->node_room) {
        f->node_room = f->node_room ? 2 * f->node_room : 1024;
        f->nodes = (viewer_node *)realloc(f->nodes, f->node_room * sizeof *f->nodes);
        if (!f->nodes) abort();
    }
    memset(&f->nodes[f->node_count], 0, sizeof *f->nodes);
    f->nodes[f->node_count].kind = kind;
    return f->node_count++;
}

VIEWER_API uint64_t viewer_bytes(viewer_file *f, uint32_t n) {
    uint64_t v = 0;
    if (f->end - f->at < (ptrdiff_t)n) return viewer_says(f, "it stops early");
    for (uint32_t i = 0; i < n; ++i)
        v |= (uint64_t)f->at[i] << 8 * i;
    f->at += n;
    return v;
}

VIEWER_API void viewer_push(viewer_file *f, uint32_t node) {
    if (f->depth == f->room) abort(); /* deeper than a snapshot ever is */
    f->stack[f->depth++] = node;
}

VIEWER_API void viewer_whole(viewer_file *f, int64_t v) {
    if (v > 1ll << 53 || v < -(1ll << 53)) viewer_says(f, "a number is above 2^53");
    const uint32_t n = viewer_node_new(f, 'I');
    f->nodes[n].number = v;
    viewer_push(f, n);
}

VIEWER_API void viewer_long(viewer_file *f) {
    const uint32_t n = (uint32_t)viewer_bytes(f, 1);
    if (n > 8) {
        viewer_says(f, "LONG1 has more than 8 bytes");
        return;
    }
    uint64_t v = viewer_bytes(f, n);
    if (n && n < 8 && v >> (8 * n - 1)) v |= ~0ull << 8 * n;
    if (n > 1) { /* the shortest form that keeps the sign */
        const uint64_t top = v >> (8 * n - 9) & 0x1ff;
        if (top == 0 || top == 0x1ff) viewer_says(f, "LONG1 is longer than it must be");
    }
    viewer_whole(f, (int64_t)v);
}

VIEWER_API void viewer_real(viewer_file *f) {
    uint64_t bits = 0;
    for (int i = 0; i < 8; ++i)
        bits = bits << 8 | viewer_bytes(f, 1);
    const uint32_t n = viewer_node_new(f, 'F');
    memcpy(&f->nodes[n].real, &bits, 8);
    viewer_push(f, n);
}

VIEWER_API void viewer_text(viewer_file *f) {
    const uint32_t length = (uint32_t)viewer_bytes(f, 4);
    if (f->end - f->at < (ptrdiff_t)length) {
        viewer_says(f, "a text stops early");
        return;
    }
    const uint32_t n = viewer_node_new(f, 'S');
    f->nodes[n].text = (const char *)f->at;
    f->nodes[n].length = length;
    f->at += length;
    viewer_push(f, n);
}

VIEWER_API void viewer_add(viewer_file *f, uint32_t box, uint32_t from, uint32_t count) {
    viewer_node *b = &f->nodes[box];
    if (count > 1000) viewer_says(f, "more than 1,000 items at once");
    if (b->count + count > b->room) {
        b->room = 2 * (b->count + count);
        b->items = (uint32_t *)realloc(b->items, b->room * sizeof *b->items);
        if (!b->items) abort();
    }
    for (uint32_t i = 0; i < count; ++i) {
        viewer_node *const item = &f->nodes[f->stack[from + i]];
        if (item->kind == 'D' && item->used) viewer_says(f, "a dict is shared");
        item->used = true;
        b->items[b->count++] = f->stack[from + i];
    }
}

VIEWER_API void viewer_fill(viewer_file *f, char kind) {
    if (!f->mark_count) {
        viewer_says(f, "no mark");
        return;
    }
    const uint32_t from = f->marks[--f->mark_count];
    if (!from || f->nodes[f->stack[from - 1]].kind != kind) {
        viewer_says(f, "items for nothing");
        return;
    }
    if (kind == 'D' && (f->depth - from) % 2) viewer_says(f, "a key without a value");
    viewer_add(f, f->stack[from - 1], from, f->depth - from);
    f->depth = from;
}

VIEWER_API void viewer_tuple(viewer_file *f, uint32_t count) {
    const uint32_t n = viewer_node_new(f, 'T');
    if (f->depth < count) {
        viewer_says(f, "a tuple of nothing");
        return;
    }
    viewer_add(f, n, f->depth - count, count);
    f->depth -= count;
    viewer_push(f, n);
}

VIEWER_API void viewer_put(viewer_file *f, uint32_t n) {
    if (n > 50000000 || !f->depth) {
        viewer_says(f, "a bad PUT");
        return;
    }
    while (f->memo_count <= n) {
        if (f->memo_count % 1024 == 0)
            f->memo = (uint32_t *)realloc(f->memo, (f->memo_count + 1024) * sizeof *f->memo);
        f->memo[f->memo_count++] = UINT32_MAX;
    }
    f->memo[n] = f->stack[f->depth - 1];
}

VIEWER_API void viewer_take(viewer_file *f, uint32_t n) {
    if (n >= f->memo_count || f->memo[n] == UINT32_MAX)
        viewer_says(f, "a GET of what was never put");
    else
        viewer_push(f, f->memo[n]);
}

VIEWER_API void viewer_opcode(viewer_file *f, uint8_t code) {
    switch (code) {
    case 'N': viewer_push(f, viewer_node_new(f, 'N')); break;
    case 0x88:
    case 0x89:
        viewer_push(f, viewer_node_new(f, 'B'));
        f->nodes[f->stack[f->depth - 1]].number = code == 0x88;
        break;
    case 'K': viewer_whole(f, (int64_t)viewer_bytes(f, 1)); break;
    case 'M': viewer_whole(f, (int64_t)viewer_bytes(f, 2)); break;
    case 'J': viewer_whole(f, (int32_t)viewer_bytes(f, 4)); break;
    case 0x8a: viewer_long(f); break;
    case 'G': viewer_real(f); break;
    case 'X': viewer_text(f); break;
    case ']': viewer_push(f, viewer_node_new(f, 'L')); break;
    case '}': viewer_push(f, viewer_node_new(f, 'D')); break;
    case '(': f->marks[f->mark_count++ % f->room] = f->depth; break;
    case 'e': viewer_fill(f, 'L'); break;
    case 'u': viewer_fill(f, 'D'); break;
    case 0x85:
    case 0x86:
    case 0x87: viewer_tuple(f, code - 0x84u); break;
    case 'q': viewer_put(f, (uint32_t)viewer_bytes(f, 1)); break;
    case 'r': viewer_put(f, (uint32_t)viewer_bytes(f, 4)); break;
    case 'h': viewer_take(f, (uint32_t)viewer_bytes(f, 1)); break;
    case 'j': viewer_take(f, (uint32_t)viewer_bytes(f, 4)); break;
    default: snprintf(f->wrong, sizeof f->wrong, "UNKNOWN OPCODE 0x%02x", code);
    }
}

VIEWER_API void viewer_close(viewer_file *f) {
    for (uint32_t i = 0; i < f->node_count; ++i)
        free(f->nodes[i].items);
    free(f->nodes);
    free(f->stack);
    free(f->marks);
    free(f->memo);
    memset(f, 0, sizeof *f);
}

VIEWER_API const char *viewer_open(viewer_file *f, const void *data, size_t bytes) {
    memset(f, 0, sizeof *f);
    f->room = 8192;
    f->stack = (uint32_t *)malloc(f->room * sizeof *f->stack);
    f->marks = (uint32_t *)malloc(f->room * sizeof *f->marks);
    f->at = (const uint8_t *)data;
    f->end = f->at + bytes;
    if (viewer_bytes(f, 2) != 0x0280) viewer_says(f, "it is no pickle of protocol 2");
    while (!f->wrong[0]) {
        const uint8_t code = (uint8_t)viewer_bytes(f, 1);
        if (code == '.') break;
        viewer_opcode(f, code);
    }
    if (!f->wrong[0] && (f->depth != 1 || f->mark_count))
        viewer_says(f, "it does not end with one value");
    if (!f->wrong[0] && f->at != f->end) viewer_says(f, "bytes after the end");
    if (!f->wrong[0]) f->root = f->stack[0];
    return f->wrong[0] ? f->wrong : NULL;
}

/* The value of a key; UINT32_MAX: there is none. */
VIEWER_API uint32_t viewer_get(const viewer_file *f, uint32_t dict, const char *key) {
    if (dict == UINT32_MAX || f->nodes[dict].kind != 'D') return UINT32_MAX;
    for (uint32_t i = 0; i < f->nodes[dict].count; i += 2) {
        const viewer_node *const k = &f->nodes[f->nodes[dict].items[i]];
        if (k->kind == 'S' && k->length == strlen(key) && memcmp(k->text, key, k->length) == 0)
            return f->nodes[dict].items[i + 1];
    }
    return UINT32_MAX;
}

VIEWER_API bool viewer_is(const viewer_file *f, uint32_t node, const char *text) {
    return node != UINT32_MAX && f->nodes[node].kind == 'S' && f->nodes[node].length == strlen(text)
        && memcmp(f->nodes[node].text, text, strlen(text)) == 0;
}

VIEWER_API uint64_t viewer_number(const viewer_file *f, uint32_t dict, const char *key) {
    const uint32_t n = viewer_get(f, dict, key);
    return n == UINT32_MAX || f->nodes[n].kind != 'I' ? UINT64_MAX : (uint64_t)f->nodes[n].number;
}

/* ---- replay ---- */

typedef struct viewer_range {
    uint64_t at, size;
    bool waits; /* a block: free_requested, not completed */
} viewer_range;

typedef struct viewer_ranges {
    viewer_range *at;
    uint32_t count, room;
} viewer_ranges;

VIEWER_API void viewer_range_add(viewer_ranges *r, uint64_t at, uint64_t size, bool waits) {
    if (r->count == r->room) {
        r->room = r->room ? 2 * r->room : 64;
        r->at = (viewer_range *)realloc(r->at, r->room * sizeof *r->at);
        if (!r->at) abort();
    }
    r->at[r->count].at = at;
    r->at[r->count].size = size;
    r->at[r->count++].waits = waits;
}

VIEWER_API viewer_range *viewer_range_of(viewer_ranges *r, uint64_t at) {
    for (uint32_t i = r->count; i > 0; --i)
        if (r->at[i - 1].at == at) return &r->at[i - 1];
    return NULL;
}

VIEWER_API void viewer_range_drop(viewer_ranges *r, viewer_range *k) {
    *k = r->at[--r->count];
}

VIEWER_API bool viewer_inside(const viewer_ranges *segments, uint64_t at, uint64_t size) {
    for (uint32_t i = segments->count; i > 0; --i) {
        const viewer_range *const s = &segments->at[i - 1];
        if (at >= s->at && at + size <= s->at + s->size) return true;
    }
    return false;
}

/* Pages come to segments: one with those that they touch. */
VIEWER_API void viewer_map(viewer_ranges *segments, uint64_t at, uint64_t size) {
    for (uint32_t i = segments->count; i > 0; --i) {
        const viewer_range s = segments->at[i - 1];
        if (s.at + s.size != at && at + size != s.at) continue;
        if (s.at < at) at = s.at;
        size += s.size;
        viewer_range_drop(segments, &segments->at[i - 1]);
        i = segments->count + 1;
    }
    viewer_range_add(segments, at, size, false);
}

/* Pages leave the segment that they are in. */
VIEWER_API const char *viewer_unmap(viewer_ranges *segments, uint64_t at, uint64_t size) {
    for (uint32_t i = segments->count; i > 0; --i) {
        const viewer_range s = segments->at[i - 1];
        if (at < s.at || at + size > s.at + s.size) continue;
        viewer_range_drop(segments, &segments->at[i - 1]);
        if (at > s.at) viewer_range_add(segments, s.at, at - s.at, false);
        if (at + size < s.at + s.size)
            viewer_range_add(segments, at + size, s.at + s.size - at - size, false);
        return NULL;
    }
    return "a segment_map of pages that are not there afterwards";
}

/* The final state, as the viewer computes it: blocks lie one after the other. */
VIEWER_API const char *viewer_final(
    const viewer_file *f, uint32_t device, viewer_ranges *segments, viewer_ranges *blocks) {
    const uint32_t list = viewer_get(f, f->root, "segments");
    if (list == UINT32_MAX || f->nodes[list].kind != 'L') return "there is no list of segments";
    for (uint32_t i = 0; i < f->nodes[list].count; ++i) {
        const uint32_t s = f->nodes[list].items[i], parts = viewer_get(f, s, "blocks");
        uint64_t at = viewer_number(f, s, "address"), sum = 0;
        if (viewer_number(f, s, "device") != device) continue;
        viewer_range_add(segments, at, viewer_number(f, s, "total_size"), false);
        for (uint32_t j = 0; j < f->nodes[parts].count; ++j) {
            const uint32_t b = f->nodes[parts].items[j], state = viewer_get(f, b, "state");
            const uint64_t size = viewer_number(f, b, "size");
            if (viewer_number(f, b, "address") != at + sum)
                return "blocks do not tile their segment";
            if (viewer_is(f, state, "active_allocated"))
                viewer_range_add(blocks, at + sum, size, false);
            else if (viewer_is(f, state, "active_pending_free"))
                viewer_range_add(blocks, at + sum, size, true);
            else if (!viewer_is(f, state, "inactive"))
                return "a block has an unknown state";
            sum += size;
        }
        if (sum != viewer_number(f, s, "total_size")) return "blocks do not fill their segment";
    }
    return NULL;
}

VIEWER_API const char *viewer_undo(
    const viewer_file *f, uint32_t event, viewer_ranges *segments, viewer_ranges *blocks) {
    const uint32_t a = viewer_get(f, event, "action");
    const uint64_t at = viewer_number(f, event, "addr"), size = viewer_number(f, event, "size");
    viewer_range *b = viewer_range_of(blocks, at), *s = viewer_range_of(segments, at);
    if (size == UINT64_MAX) return "an event has no size";
    if (viewer_is(f, a, "oom"))
        return viewer_number(f, event, "device_free") == UINT64_MAX ? "an oom has no device_free"
                                                                    : NULL;
    if (at == UINT64_MAX) return "an event has no addr";
    if (viewer_is(f, a, "alloc")) {
        if (!b || b->waits) return "an alloc of a block that is not there afterwards";
        viewer_range_drop(blocks, b);
    } else if (viewer_is(f, a, "free_requested")) {
        if (!b || !b->waits) return "a free_requested whose block does not wait";
        b->waits = false;
    } else if (viewer_is(f, a, "free_completed")) {
        if (b) return "a free_completed of a block that is still there";
        if (!viewer_inside(segments, at, size)) return "a block lies in no segment";
        viewer_range_add(blocks, at, size, true);
    } else if (viewer_is(f, a, "segment_free")) {
        if (viewer_inside(segments, at, size))
            return "a segment_free of a segment that is still there";
        viewer_range_add(segments, at, size, false);
    } else if (viewer_is(f, a, "segment_alloc")) {
        if (!s || s->size != size)
            return "a segment_alloc of a segment that is not there afterwards";
        for (uint32_t i = 0; i < blocks->count; ++i)
            if (blocks->at[i].at >= at && blocks->at[i].at < at + size)
                return "a segment appears under a block";
        viewer_range_drop(segments, s);
    } else if (viewer_is(f, a, "segment_unmap")) {
        if (viewer_inside(segments, at, size))
            return "a segment_unmap of pages that are still there";
        viewer_map(segments, at, size);
    } else if (viewer_is(f, a, "segment_map")) {
        for (uint32_t i = 0; i < blocks->count; ++i)
            if (blocks->at[i].at < at + size && at < blocks->at[i].at + blocks->at[i].size)
                return "pages appear under a block";
        return viewer_unmap(segments, at, size);
    } else if (!viewer_is(f, a, "snapshot") && !viewer_is(f, a, "user_defined")
        && !viewer_is(f, a, "annotate"))
        return "an unknown action";
    return NULL;
}

/* With `whole`, the history is complete: undoing it ends with nothing. */
VIEWER_API const char *viewer_replay(const viewer_file *f, uint32_t device, bool whole) {
    viewer_ranges segments = {NULL, 0, 0}, blocks = {NULL, 0, 0};
    const uint32_t traces = viewer_get(f, f->root, "device_traces");
    const char *wrong = viewer_final(f, device, &segments, &blocks);
    if (traces == UINT32_MAX || f->nodes[traces].count <= device)
        wrong = "there is no trace of the device";
    if (!wrong) {
        const viewer_node *const list = &f->nodes[f->nodes[traces].items[device]];
        for (uint32_t i = list->count; i > 0 && !wrong; --i)
            wrong = viewer_undo(f, list->items[i - 1], &segments, &blocks);
        for (uint32_t i = 0; i < blocks.count && !wrong; ++i)
            if (!viewer_inside(&segments, blocks.at[i].at, blocks.at[i].size))
                wrong = "a block of the beginning lies in no segment";
        if (!wrong && whole && (segments.count || blocks.count))
            wrong = "something is left at the beginning";
    }
    free(segments.at);
    free(blocks.at);
    return wrong;
}

/* Is it XML? As far as it matters: tags close, attributes are quoted, text is escaped. */
static inline const char *xml_wrong(const char *at) {
    int depth = 0;
    while (*at) {
        if (*at == '&') {
            if (strncmp(at, "&lt;", 4) && strncmp(at, "&amp;", 5) && strncmp(at, "&quot;", 6)
                && strncmp(at, "&gt;", 4))
                return "a bare &";
        } else if (*at == '<') {
            const char *end = at + 1;
            for (bool quoted = false; *end && (quoted || *end != '>'); ++end) {
                if (*end == '"') quoted = !quoted;
                if (*end == '<') return "a < inside a tag";
            }
            if (!*end) return "a tag does not end";
            if (at[1] == '/')
                --depth;
            else if (end[-1] != '/')
                ++depth;
            if (depth < 0) return "a tag too many is closed";
            at = end;
        } else if (*at == '>')
            return "a bare >";
        ++at;
    }
    return depth ? "a tag is not closed" : NULL;
}

#endif
