/* mem/svg.h - pictures

   Knows: how to draw memory over time, and segments with their blocks. Promises: pictures are
   readable on dark and light pages, need no script and no font, and have a bounded number of
   elements. */
#ifndef CDP_SRC_MEM_SVG_H
#define CDP_SRC_MEM_SVG_H

#include "../base/config.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/utf8.h"
#include "../text/format.h"
#include "desc_api.h"
#include "allocator_api.h"
#include "shots_api.h"
#include "sizes.h"
#include "out_of_memory.h"
#include "texts.h"
#include "shot.h"
#include "writer.h"
#include "timeline.h"
#include "holders.h"

#define CDP__MEM_DRAWN 1000u  /* elements; smaller ones become one area */
#define CDP__MEM_COLUMNS 800u /* steps in x */
#define CDP__MEM_SHOWN 130u   /* bytes of a name */
#define CDP__MEM_LEFT 80.0
#define CDP__MEM_TOP 50.0
#define CDP__MEM_WIDTH 1100.0
#define CDP__MEM_HEIGHT 400.0

/* Writes a text, truncated to about `most` bytes. */
CDP__PRIVATE void cdp__mem_put_xml(cdp__mem_output *w, const char *text, uint64_t most) {
    const uint8_t *at = (const uint8_t *)text, *const end = at + strlen(text);
    const uint8_t *const limit = at + cdp__min(most, (uint64_t)(end - at));
    while (at < limit) {
        const uint8_t *const from = at;
        const uint32_t c = cdp__utf8_next(&at, end);
        if (c == '<')
            cdp__mem_put_text(w, "&lt;");
        else if (c == '>')
            cdp__mem_put_text(w, "&gt;");
        else if (c == '&')
            cdp__mem_put_text(w, "&amp;");
        else if (c == '"')
            cdp__mem_put_text(w, "&quot;");
        else if (c < 32 || c == '?')
            cdp__mem_put(w, '?');
        else
            cdp__text_bytes(&w->text, from, (uint64_t)(at - from));
    }
    if (at < end) cdp__mem_put_text(w, "...");
}

CDP__PRIVATE void cdp__mem_put_size(cdp__mem_output *w, double bytes) {
    char text[32];
    uint64_t n = 0;
    if (bytes > 0) n = bytes < 9e18 ? (uint64_t)bytes : UINT64_MAX / 2;
    cdp__mem_put_text(w, cdp__mem_size_text(text, n));
}

/* Says what a recording could not keep, each after `before`. */
CDP__PRIVATE void cdp__mem_put_lost(cdp__mem_output *w, const cdp_mem_shot *s, const char *before) {
    if (s->events_lost)
        cdp__text_add(&w->text, "%s%llu older ones were overwritten", before,
            (unsigned long long)s->events_lost);
    if (s->stacks_lost)
        cdp__text_add(&w->text, "%s%llu calls have no stack, because max_stacks is too small",
            before, (unsigned long long)s->stacks_lost);
    if (s->labels_lost)
        cdp__text_add(&w->text, "%s%llu calls have no label, because memory ran out", before,
            (unsigned long long)s->labels_lost);
}

CDP__PRIVATE void cdp__mem_svg_begin(cdp__mem_output *w, double height, const char *title) {
    cdp__mem_put_text(w, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1200 ");
    cdp__text_tenths(&w->text, height);
    cdp__mem_put_text(w,
        "\" font-family=\"sans-serif\" font-size=\"13\">\n<style>\n"
        ".page { fill: #fff } text { fill: #222 } .axis { stroke: #888 } .rest { fill: #ccc }\n"
        ".sum { stroke: #222; fill: none } .oom { stroke: #d00; stroke-width: 2 }\n"
        ".block { stroke: #fff; stroke-width: 0.6 } .segment { fill: none; stroke: #888 }\n"
        ".lost { fill: #d00 }\n"
        "@media (prefers-color-scheme: dark) { .page { fill: #181818 } text { fill: #ddd }\n"
        ".rest { fill: #555 } .sum { stroke: #ddd } .block { stroke: #181818 }\n"
        ".oom { stroke: #f55 } .lost { fill: #f55 } }\n</style>\n");
    /* an explicit background, because not all SVG viewers support CSS or dark pages */
    cdp__mem_put_text(w, "<rect class=\"page\" width=\"1200\" height=\"");
    cdp__text_tenths(&w->text, height);
    cdp__mem_put_text(w, "\"/>\n");
    cdp__text_add(&w->text, "<text x=\"80\" y=\"22\" font-size=\"16\">%s</text>\n", title);
}

#define CDP__MEM_RED 2u /* too similar to the colour of lost bytes */

CDP__PRIVATE uint32_t cdp__mem_colour(uint64_t i) {
    static const uint32_t colours[10] = {0x4e79a7, 0xf28e2c, 0xe15759, 0x76b7b2, 0x59a14f, 0xedc949,
        0xaf7aa1, 0xff9da7, 0x9c755f, 0xbab0ab};
    return colours[i % 10];
}

typedef struct cdp__mem_point { /* lower edge of an element, from a column on */
    uint64_t element;
    uint32_t column;
    double y; /* bytes below it */
} cdp__mem_point;

typedef struct cdp__mem_plot {
    cdp__mem_line line;
    uint32_t columns;
    double top; /* bytes at the upper end */
    cdp__mem_point *points;
    uint64_t point_count, point_room;
    uint64_t *live; /* drawn elements, the lowest first */
    double *y;      /* bytes below each drawn element, by element */
    uint64_t live_count;
    double sum[CDP__MEM_COLUMNS], drawn[CDP__MEM_COLUMNS], most[CDP__MEM_COLUMNS];
} cdp__mem_plot;

CDP__PRIVATE int cdp__mem_sizes_down(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    if (x == y) return 0;
    return x > y ? -1 : 1;
}

/* Chooses the largest elements for drawing. */
CDP__PRIVATE void cdp__mem_plot_choose(cdp__mem_plot *p) {
    cdp__mem_line *const l = &p->line;
    uint64_t i, least = 0, n = 0;
    if (l->count > CDP__MEM_DRAWN) {
        for (i = 0; i < l->count; ++i)
            p->live[i] = l->elements[i].size;
        qsort(p->live, (size_t)l->count, sizeof *p->live, cdp__mem_sizes_down);
        least = p->live[CDP__MEM_DRAWN - 1];
    }
    for (i = 0; i < l->count && n < CDP__MEM_DRAWN; ++i) {
        l->elements[i].drawn = l->elements[i].size >= least && l->elements[i].size;
        n += l->elements[i].drawn;
    }
}

/* Computes the positions of drawn elements at the end of a column; adds a point for each that
   has moved. */
CDP__PRIVATE bool cdp__mem_plot_column(cdp__mem_plot *p, uint32_t column, uint64_t last) {
    double y = 0;
    uint64_t i, n = 0;
    for (i = 0; i < p->live_count; ++i) {
        const uint64_t at = p->live[i];
        const cdp__mem_element *const e = &p->line.elements[at];
        if (e->to <= last && e->to != CDP__MEM_ALWAYS) continue;
        p->live[n++] = at;
        if (p->y[at] < y || p->y[at] > y) {
            cdp__mem_point *k;
            if (!cdp__more_room(p->line.shot->os, (void **)&p->points, &p->point_room,
                    p->point_count + 1, sizeof *p->points))
                return false;
            k = &p->points[p->point_count++];
            k->element = at;
            k->column = column;
            k->y = p->y[at] = y;
        }
        y += (double)e->size;
    }
    p->live_count = n;
    p->drawn[column] = y;
    return true;
}

CDP__PRIVATE uint64_t cdp__mem_plot_until(const cdp__mem_plot *p, uint32_t column) {
    return (column + 1ull) * p->line.event_count / p->columns;
}

/* Walks through all events, column by column. */
CDP__PRIVATE bool cdp__mem_plot_walk(cdp__mem_plot *p) {
    const cdp__mem_line *const l = &p->line;
    double now = 0;
    uint64_t i = 0, j;
    uint32_t c;
    for (j = 0; j < l->count; ++j) {
        p->y[j] = -1;
        if (!l->elements[j].before) continue;
        now += (double)l->elements[j].size;
        if (l->elements[j].drawn) p->live[p->live_count++] = j;
    }
    for (c = 0; c < p->columns; ++c) {
        const uint64_t until = cdp__mem_plot_until(p, c);
        p->most[c] = now;
        for (; i < until; ++i) {
            const uint32_t n = l->of_event[i];
            const cdp__mem_element *const e = n ? &l->elements[n - 1] : NULL;
            if (!e) continue;
            if (e->to == i)
                now -= (double)e->size;
            else
                now += (double)e->size;
            if (e->to != i && e->drawn) p->live[p->live_count++] = n - 1;
            if (now > p->most[c]) p->most[c] = now;
        }
        p->sum[c] = now;
        if (!cdp__mem_plot_column(p, c, until ? until - 1 : 0)) return false;
    }
    return true;
}

CDP__PRIVATE double cdp__mem_plot_x(const cdp__mem_plot *p, double column) {
    return CDP__MEM_LEFT + CDP__MEM_WIDTH * column / p->columns;
}

CDP__PRIVATE double cdp__mem_plot_y(const cdp__mem_plot *p, double bytes) {
    return CDP__MEM_TOP + CDP__MEM_HEIGHT * (1 - bytes / p->top);
}

CDP__PRIVATE void cdp__mem_svg_point(
    cdp__mem_output *w, const cdp__mem_plot *p, double x, double y) {
    cdp__text_tenths(&w->text, cdp__mem_plot_x(p, x));
    cdp__mem_put(w, ',');
    cdp__text_tenths(&w->text, cdp__mem_plot_y(p, y));
    cdp__mem_put(w, ' ');
}

/* Draws an edge of an element, `up` bytes above its lower one, to the right or back. */
CDP__PRIVATE void cdp__mem_svg_edge(cdp__mem_output *w, const cdp__mem_plot *p,
    const cdp__mem_point *k, uint64_t count, uint32_t end, double up, bool back) {
    uint64_t i;
    if (back) cdp__mem_svg_point(w, p, end, k[count - 1].y + up);
    for (i = 0; i < count; ++i) {
        const uint64_t n = back ? count - 1 - i : i;
        const bool slides = n > 0 && k[n].column > 0;
        if (slides && !back) cdp__mem_svg_point(w, p, k[n].column - 1.0, k[n - 1].y + up);
        cdp__mem_svg_point(w, p, k[n].column, k[n].y + up);
        if (slides && back) cdp__mem_svg_point(w, p, k[n].column - 1.0, k[n - 1].y + up);
    }
    if (!back) cdp__mem_svg_point(w, p, end, k[count - 1].y + up);
}

CDP__PRIVATE void cdp__mem_svg_title(
    cdp__mem_output *w, const cdp_mem_shot *s, const cdp__mem_element *e) {
    const cdp__mem_stack *const k = &s->stacks[e->stack];
    uint32_t i;
    cdp__mem_put_text(w, "<title>");
    cdp__mem_put_size(w, (double)e->size);
    cdp__text_add(&w->text, " at 0x%llx", (unsigned long long)e->address);
    if (e->label) cdp__mem_put_text(w, ", ");
    if (e->label) cdp__mem_put_xml(w, e->label, CDP__MEM_SHOWN);
    for (i = 0; i < k->count && i < 6; ++i) {
        cdp__mem_put(w, '\n');
        cdp__mem_put_xml(w, s->frames[k->first + i].name, CDP__MEM_SHOWN);
    }
    cdp__mem_put_text(w, "</title>");
}

CDP__PRIVATE void cdp__mem_svg_element(
    cdp__mem_output *w, const cdp__mem_plot *p, const cdp__mem_point *k, uint64_t count) {
    const uint64_t at = k[0].element, n = cdp__max(p->line.event_count, (uint64_t)1);
    const cdp__mem_element *const e = &p->line.elements[at];
    const uint32_t end = e->to == CDP__MEM_ALWAYS ? p->columns : (uint32_t)(e->to * p->columns / n);
    cdp__text_add(&w->text, "<polygon fill=\"#%x\" points=\"", cdp__mem_colour(at));
    cdp__mem_svg_edge(w, p, k, count, end, 0, false);
    cdp__mem_svg_edge(w, p, k, count, end, (double)e->size, true);
    cdp__mem_put_text(w, "\">");
    cdp__mem_svg_title(w, p->line.shot, e);
    cdp__mem_put_text(w, "</polygon>\n");
}

CDP__PRIVATE int cdp__mem_points_order(const void *a, const void *b) {
    const cdp__mem_point *const x = (const cdp__mem_point *)a, *const y = (const cdp__mem_point *)b;
    if (x->element != y->element) return x->element < y->element ? -1 : 1;
    if (x->column == y->column) return 0;
    return x->column < y->column ? -1 : 1;
}

CDP__PRIVATE void cdp__mem_svg_elements(cdp__mem_output *w, cdp__mem_plot *p) {
    uint64_t i, from = 0;
    if (p->point_count)
        qsort(p->points, (size_t)p->point_count, sizeof *p->points, cdp__mem_points_order);
    for (i = 1; i <= p->point_count; ++i) {
        if (i < p->point_count && p->points[i].element == p->points[from].element) continue;
        cdp__mem_svg_element(w, p, p->points + from, i - from);
        from = i;
    }
}

/* Draws the remaining elements as one area, and the sum as a line. */
CDP__PRIVATE void cdp__mem_svg_sum(cdp__mem_output *w, const cdp__mem_plot *p) {
    uint32_t i;
    cdp__mem_put_text(w, "<polygon class=\"rest\" points=\"");
    for (i = 0; i < p->columns; ++i)
        cdp__mem_svg_point(w, p, i, p->drawn[i]);
    for (i = p->columns; i > 0; --i)
        cdp__mem_svg_point(
            w, p, i - 1, p->sum[i - 1] > p->drawn[i - 1] ? p->sum[i - 1] : p->drawn[i - 1]);
    cdp__mem_put_text(w, "\"><title>smaller ones, summarized</title></polygon>\n");
    cdp__mem_put_text(w, "<polyline class=\"sum\" points=\"");
    for (i = 0; i < p->columns; ++i)
        cdp__mem_svg_point(w, p, i, p->most[i]);
    cdp__mem_put_text(w, "\"/>\n");
}

CDP__PRIVATE void cdp__mem_svg_marks(cdp__mem_output *w, const cdp__mem_plot *p) {
    const cdp__mem_line *const l = &p->line;
    uint64_t i, n = 0;
    for (i = 0; i < l->event_count && n < 100; ++i) {
        const bool oom = l->events[i].action == CDP_MEM_OOM;
        const double x = cdp__mem_plot_x(p, (double)i * p->columns / (double)l->event_count);
        if (!oom && l->events[i].action != CDP_MEM_SNAPSHOT) continue;
        cdp__mem_put_text(w,
            oom ? "<line class=\"oom\" y1=\"50\" y2=\"450\" x1=\""
                : "<line class=\"axis\" y1=\"50\" y2=\"450\" x1=\"");
        cdp__text_tenths(&w->text, x);
        cdp__mem_put_text(w, "\" x2=\"");
        cdp__text_tenths(&w->text, x);
        cdp__mem_put_text(w, oom ? "\"><title>out of memory: no " : "\"><title>snapshot");
        if (oom) cdp__mem_put_size(w, (double)l->events[i].size);
        cdp__mem_put_text(w, "</title></line>\n");
        ++n;
    }
}

CDP__PRIVATE bool cdp__mem_line_has(const cdp__mem_line *l, cdp_mem_action action) {
    uint64_t i = 0;
    while (i < l->event_count && l->events[i].action != action)
        ++i;
    return i < l->event_count;
}

/* Draws lines at round numbers of bytes, at most six. */
CDP__PRIVATE void cdp__mem_svg_levels(cdp__mem_output *w, const cdp__mem_plot *p) {
    double step = 1, bytes;
    while (p->top / step > 5)
        step *= 2;
    for (bytes = 0; bytes <= p->top; bytes += step) {
        const double y = cdp__mem_plot_y(p, bytes);
        cdp__mem_put_text(
            w, "<line class=\"axis\" x1=\"76\" x2=\"1180\" stroke-opacity=\"0.4\" y1=\"");
        cdp__text_tenths(&w->text, y);
        cdp__mem_put_text(w, "\" y2=\"");
        cdp__text_tenths(&w->text, y);
        cdp__mem_put_text(w, "\"/><text x=\"72\" text-anchor=\"end\" y=\"");
        cdp__text_tenths(&w->text, y + 4);
        cdp__mem_put_text(w, "\">");
        cdp__mem_put_size(w, bytes);
        cdp__mem_put_text(w, "</text>\n");
    }
}

CDP__PRIVATE void cdp__mem_svg_axes(cdp__mem_output *w, const cdp__mem_plot *p) {
    const cdp__mem_line *const l = &p->line;
    const uint64_t n = l->event_count;
    cdp__mem_svg_levels(w, p);
    cdp__text_add(&w->text, "<text x=\"80\" y=\"470\">%llu events", (unsigned long long)n);
    if (n && l->events[n - 1].time_us > l->events[0].time_us)
        cdp__text_add(&w->text, " in %llu ms",
            (unsigned long long)((l->events[n - 1].time_us - l->events[0].time_us) / 1000));
    cdp__mem_put_lost(w, l->shot, "; ");
    cdp__mem_put_text(w, "; peak ");
    cdp__mem_put_size(w, l->peak);
    cdp__text_add(&w->text, " at event %llu, end ", (unsigned long long)l->peak_event);
    cdp__mem_put_size(w, l->end);
    if (cdp__mem_line_has(l, CDP_MEM_SNAPSHOT)) cdp__mem_put_text(w, "; grey line: snapshot");
    if (cdp__mem_line_has(l, CDP_MEM_OOM)) cdp__mem_put_text(w, "; red line: out of memory");
    cdp__mem_put_text(w, "</text>\n");
}

/* The five largest holders at the peak. */
CDP__PRIVATE bool cdp__mem_svg_table(cdp__mem_output *w, const cdp__mem_plot *p) {
    const cdp_os *const os = p->line.shot->os;
    cdp__mem_sum *const sums =
        (cdp__mem_sum *)cdp__alloc(os, (p->line.count + 1) * sizeof(cdp__mem_sum));
    char bytes[2 * CDP__MEM_SHOWN]; /* longer than what is shown */
    cdp__text name;
    uint64_t i, n;
    if (!sums) return false;
    n = cdp__mem_line_holders(&p->line, p->line.peak_event, sums);
    cdp__mem_put_text(w, "<text x=\"80\" y=\"494\">Largest at the peak:</text>\n");
    for (i = 0; i < n && i < 5; ++i) {
        cdp__text_add(&w->text, "<text x=\"96\" y=\"%u\">", (unsigned)(512 + 18 * i));
        cdp__mem_put_size(w, sums[i].bytes);
        cdp__text_add(&w->text, " in %lld %s: ", (long long)sums[i].blocks,
            sums[i].blocks == 1 ? "block" : "blocks");
        name = cdp__text_of(bytes, sizeof bytes);
        cdp__mem_holder_name(&name, &sums[i]);
        cdp__mem_put_xml(w, bytes, CDP__MEM_SHOWN);
        cdp__mem_put_text(w, "</text>\n");
    }
    cdp__free(os, sums);
    return true;
}

CDP__PRIVATE bool cdp__mem_plot_draw(cdp__mem_output *w, cdp__mem_plot *p) {
    const uint64_t n = p->line.event_count;
    p->columns = n < CDP__MEM_COLUMNS ? (uint32_t)n : CDP__MEM_COLUMNS;
    if (!p->columns) p->columns = 1;
    p->top = p->line.peak > 0 ? p->line.peak : 1;
    cdp__mem_plot_choose(p);
    if (!cdp__mem_plot_walk(p)) return false;
    cdp__mem_svg_axes(w, p);
    cdp__mem_svg_elements(w, p);
    cdp__mem_svg_sum(w, p);
    cdp__mem_svg_marks(w, p);
    return cdp__mem_svg_table(w, p);
}

#define CDP__MEM_PANELS 16u /* devices in a picture */
#define CDP__MEM_PANEL 600u /* height of the panel of one */

/* True if a device has something to draw. */
CDP__PRIVATE bool cdp__mem_device_used(const cdp_mem_shot *s, uint32_t device) {
    uint64_t i;
    if (device < s->device_count && s->devices[device].count) return true;
    for (i = 0; i < s->segment_count; ++i)
        if (s->segments[i].device == device) return true;
    return false;
}

/* The devices that have something to draw, in their order; the first one, if none has. Returns
   their number, which may be above that of `out`. */
CDP__PRIVATE uint32_t cdp__mem_devices_used(const cdp_mem_shot *s, uint32_t out[CDP__MEM_PANELS]) {
    uint32_t i, n = 0;
    for (i = 0; i < s->device_count; ++i) {
        if (!cdp__mem_device_used(s, i)) continue;
        if (n < CDP__MEM_PANELS) out[n] = i;
        ++n;
    }
    if (!n) out[0] = 0;
    return n ? n : 1;
}

/* Draws the panel of a device, under `above` others. */
CDP__PRIVATE bool cdp__mem_svg_panel(
    cdp__mem_output *w, const cdp_mem_shot *s, uint32_t device, uint32_t above) {
    cdp__mem_plot *const p = (cdp__mem_plot *)cdp__alloc_zero(s->os, sizeof *p);
    bool ok = p && cdp__mem_line_open(&p->line, s, device, false);
    if (ok) {
        cdp__text_add(&w->text,
            "<g transform=\"translate(0,%u)\">\n<text x=\"80\" y=\"42\">Device %u</text>\n",
            above * CDP__MEM_PANEL, device);
        p->live = (uint64_t *)cdp__alloc(s->os, (p->line.count + 1) * sizeof *p->live);
        p->y = (double *)cdp__alloc(s->os, (p->line.count + 1) * sizeof *p->y);
        ok = p->live && p->y && cdp__mem_plot_draw(w, p);
        cdp__mem_put_text(w, "</g>\n");
        cdp__free(s->os, p->live);
        cdp__free(s->os, p->y);
        cdp__free(s->os, p->points);
        cdp__mem_line_close(&p->line);
    }
    cdp__free(s->os, p);
    return ok;
}

CDP__PRIVATE bool cdp__mem_svg_timeline(cdp__mem_output *w, const cdp_mem_shot *s) {
    uint32_t devices[CDP__MEM_PANELS];
    const uint32_t all = cdp__mem_devices_used(s, devices);
    const uint32_t count = all < CDP__MEM_PANELS ? all : CDP__MEM_PANELS;
    uint32_t i;
    bool ok = true;
    cdp__mem_svg_begin(
        w, (double)(count * CDP__MEM_PANEL + (count < all ? 30 : 0)), "Memory in use over time");
    for (i = 0; ok && i < count; ++i)
        ok = cdp__mem_svg_panel(w, s, devices[i], i);
    if (count < all)
        cdp__text_add(&w->text, "<text x=\"80\" y=\"%u\">and %u more devices</text>\n",
            count * CDP__MEM_PANEL + 10, all - count);
    cdp__mem_put_text(w, "</svg>\n");
    cdp__mem_output_flush(&w->text);
    return ok;
}

#define CDP__MEM_ROWS_MOST 4000u /* segments in a picture */

/* A rectangle in the row of a segment, without its last attributes. */
CDP__PRIVATE void cdp__mem_svg_bytes(cdp__mem_output *w, double x, double y, double width) {
    cdp__mem_put_text(w, "<rect height=\"14\" y=\"");
    cdp__text_tenths(&w->text, y + 1);
    cdp__mem_put_text(w, "\" x=\"");
    cdp__text_tenths(&w->text, x);
    cdp__mem_put_text(w, "\" width=\"");
    cdp__text_tenths(&w->text, width);
}

/* Draws a block; red: it waits for streams, or bytes lost by rounding. */
CDP__PRIVATE void cdp__mem_svg_block(cdp__mem_output *w, const cdp_mem_shot *s,
    const cdp_mem_block *b, double x, double y, double scale) {
    const double width = (double)b->size * scale;
    const double lost = b->requested < b->size ? (double)(b->size - b->requested) * scale : 0;
    const uint64_t colour = (cdp__mem_mix(2, b->address) >> 8) % 9;
    cdp__mem_element e;
    memset(&e, 0, sizeof e);
    e.address = b->address;
    e.size = b->requested;
    e.stack = b->stack;
    e.label = b->label;
    cdp__mem_svg_bytes(w, x, y, width);
    if (b->state == CDP_MEM_PENDING)
        cdp__mem_put_text(w, "\" class=\"lost\">");
    else /* an edge would hide a narrow block */
        cdp__text_add(&w->text, "\" %sfill=\"#%x\">", width > 4 ? "class=\"block\" " : "",
            cdp__mem_colour(colour + (colour >= CDP__MEM_RED)));
    cdp__mem_svg_title(w, s, &e);
    cdp__mem_put_text(w, "</rect>\n");
    if (lost < 0.5) return;
    cdp__mem_svg_bytes(w, x + width - lost, y, lost);
    cdp__mem_put_text(w, "\" class=\"lost\"><title>lost by rounding: ");
    cdp__mem_put_size(w, (double)(b->size - b->requested));
    cdp__mem_put_text(w, "</title></rect>\n");
}

CDP__PRIVATE void cdp__mem_svg_segment(cdp__mem_output *w, const cdp_mem_shot *s,
    const cdp_mem_segment *g, double x, double y, double scale) {
    double at = x;
    uint32_t i;
    for (i = 0; i < g->block_count; ++i) {
        const cdp_mem_block *const b = &g->blocks[i];
        if (b->state != CDP_MEM_INACTIVE) cdp__mem_svg_block(w, s, b, at, y, scale);
        at += (double)b->size * scale;
    }
    cdp__mem_put_text(w, "<rect class=\"segment\" height=\"16\" y=\"");
    cdp__text_tenths(&w->text, y);
    cdp__mem_put_text(w, "\" x=\"");
    cdp__text_tenths(&w->text, x);
    cdp__mem_put_text(w, "\" width=\"");
    cdp__text_tenths(&w->text, (double)g->size * scale);
    cdp__text_add(&w->text, "\"><title>segment 0x%llx, device %u, stream 0x%llx, ",
        (unsigned long long)g->address, g->device, (unsigned long long)g->stream);
    cdp__mem_put_size(w, (double)g->size);
    cdp__mem_put_text(w, ", in use ");
    cdp__mem_put_size(w, (double)g->active);
    cdp__mem_put_text(w, "</title></rect>\n");
}

typedef struct cdp__mem_row_order {
    uint64_t size, index;
    uint32_t device;
} cdp__mem_row_order;

CDP__PRIVATE int cdp__mem_rows_by_size(const void *a, const void *b) {
    const cdp__mem_row_order *const x = (const cdp__mem_row_order *)a;
    const cdp__mem_row_order *const y = (const cdp__mem_row_order *)b;
    if (x->size != y->size) return x->size > y->size ? -1 : 1;
    if (x->index == y->index) return 0;
    return x->index < y->index ? -1 : 1;
}

CDP__PRIVATE int cdp__mem_rows_by_device(const void *a, const void *b) {
    const cdp__mem_row_order *const x = (const cdp__mem_row_order *)a;
    const cdp__mem_row_order *const y = (const cdp__mem_row_order *)b;
    if (x->device != y->device) return x->device < y->device ? -1 : 1;
    return cdp__mem_rows_by_size(a, b);
}

/* Draws segments in rows under the name of their device, the largest first; a row is as wide as the
   largest segment of all, of `most` bytes. */
CDP__PRIVATE void cdp__mem_svg_rows(cdp__mem_output *w, const cdp_mem_shot *s,
    const cdp__mem_row_order *order, uint64_t count, double most, bool draw, double *height) {
    const double scale = CDP__MEM_WIDTH / (most > 0 ? most : 1.0);
    double x = 0, y = CDP__MEM_TOP;
    uint64_t i;
    for (i = 0; i < count; ++i) {
        const cdp_mem_segment *const g = &s->segments[order[i].index];
        const double width = (double)g->size * scale;
        const bool first = i == 0 || order[i].device != order[i - 1].device;
        if (!first && x + width > CDP__MEM_WIDTH + 0.5) {
            x = 0;
            y += 20;
        }
        if (first) {
            if (i) y += 20;
            x = 0;
            if (draw)
                cdp__text_add(&w->text, "<text x=\"80\" y=\"%u\">Device %u</text>\n",
                    (uint32_t)y + 14, g->device);
            y += 20;
        }
        if (draw) cdp__mem_svg_segment(w, s, g, CDP__MEM_LEFT + x, y, scale);
        x += width + 2;
    }
    *height = y + 30;
}

CDP__PRIVATE bool cdp__mem_svg_segments(cdp__mem_output *w, const cdp_mem_shot *s) {
    const uint64_t all = s->segment_count;
    const uint64_t count = cdp__min(all, CDP__MEM_ROWS_MOST);
    cdp__mem_row_order *const order =
        (cdp__mem_row_order *)cdp__alloc(s->os, (all + 1) * sizeof(cdp__mem_row_order));
    double height, most, bytes = 0, active = 0;
    uint64_t i;
    if (!order) return false;
    for (i = 0; i < all; ++i) {
        order[i].size = s->segments[i].size;
        order[i].index = i;
        order[i].device = s->segments[i].device;
        bytes += (double)s->segments[i].size;
        active += (double)s->segments[i].active;
    }
    if (all) qsort(order, (size_t)all, sizeof *order, cdp__mem_rows_by_size);
    most = all ? (double)order[0].size : 0;
    if (count) qsort(order, (size_t)count, sizeof *order, cdp__mem_rows_by_device);
    cdp__mem_svg_rows(w, s, order, count, most, false, &height);
    cdp__mem_svg_begin(w, height, "Segments and blocks");
    cdp__text_add(&w->text, "<text x=\"80\" y=\"42\">%llu segments, ", (unsigned long long)all);
    cdp__mem_put_size(w, bytes);
    cdp__mem_put_text(w, ", in use ");
    cdp__mem_put_size(w, active);
    cdp__mem_put_text(w, "; red: waits for streams, or lost by rounding; a full row: ");
    cdp__mem_put_size(w, most);
    if (count < all)
        cdp__text_add(
            &w->text, "; the %llu smallest are not drawn", (unsigned long long)(all - count));
    cdp__mem_put_text(w, "</text>\n");
    cdp__mem_svg_rows(w, s, order, count, most, true, &height);
    cdp__mem_put_text(w, "</svg>\n");
    cdp__free(s->os, order);
    cdp__mem_output_flush(&w->text);
    return true;
}

#endif /* CDP_SRC_MEM_SVG_H */
