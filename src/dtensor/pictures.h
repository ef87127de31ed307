/* dtensor/pictures.h - how a tensor lies on a mesh

   Knows: the boxes of a layout. Promises: text, SVG and JSON of it. */
#ifndef CDP_SRC_DTENSOR_PICTURES_H
#define CDP_SRC_DTENSOR_PICTURES_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/helpers.h"
#include "../text/format.h"
#include "../text/svg.h"
#include "mesh_api.h"
#include "layout_api.h"
#include "kit.h"
#include "kernels.h"
#include "grid.h"
#include "spelling.h"

typedef struct cdp__dt_grid {
    const cdp_layout *layout;
    cdp__dt_side side;
    uint32_t dims, rows, columns; /* which dimensions of the tensor; CDP__DT_NONE: none */
    uint32_t count[CDP_TENSOR_DIMS];
    uint64_t *start[CDP_TENSOR_DIMS], *size[CDP_TENSOR_DIMS];
} cdp__dt_grid;

/* Inserts an interval into the sorted list, if it is not there yet. */
CDP__DT void cdp__dt_grid_add(cdp__dt_grid *g, uint32_t d, uint64_t start, uint64_t size) {
    uint32_t k = g->count[d], low = 0, high = k;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (g->start[d][middle] == start) return;
        if (g->start[d][middle] < start)
            low = middle + 1;
        else
            high = middle;
    }
    for (; k > low; --k) {
        g->start[d][k] = g->start[d][k - 1];
        g->size[d][k] = g->size[d][k - 1];
    }
    g->start[d][k] = start;
    g->size[d][k] = size;
    ++g->count[d];
}

/* `memory`: 2 * CDP_TENSOR_DIMS numbers for each cell. */
CDP__DT void cdp__dt_grid_make(cdp__dt_grid *g, const cdp_layout *l, uint64_t *memory) {
    const cdp__dt_side s = cdp__dt_side_of(l, 0);
    memset(g, 0, sizeof *g);
    g->layout = l;
    g->side = s;
    g->dims = l->ndim;
    g->columns = l->ndim ? l->ndim - 1 : CDP__DT_NONE;
    g->rows = l->ndim > 1 ? l->ndim - 2 : CDP__DT_NONE;
    for (uint32_t d = 0; d < l->ndim; ++d) {
        g->start[d] = memory + 2ull * d * s.cells;
        g->size[d] = g->start[d] + s.cells;
    }
    for (uint32_t c = 0; c < s.cells; ++c) {
        const cdp__dt_region r = cdp__dt_cell_region(&s, c);
        for (uint32_t d = 0; d < l->ndim; ++d)
            if (r.size[d]) cdp__dt_grid_add(g, d, r.start[d], r.size[d]);
    }
}

CDP__DT uint32_t cdp__dt_grid_count(const cdp__dt_grid *g, uint32_t d) {
    return d == CDP__DT_NONE ? 1 : g->count[d];
}

/* The region at interval index[d] of each dimension. */
CDP__DT cdp__dt_region cdp__dt_grid_box(const cdp__dt_grid *g, const uint32_t *index) {
    cdp__dt_region r;
    memset(&r, 0, sizeof r);
    for (uint32_t d = 0; d < g->dims; ++d) {
        r.start[d] = g->start[d][index[d]];
        r.size[d] = g->size[d][index[d]];
    }
    return r;
}

CDP__DT bool cdp__dt_region_same(const cdp__dt_region *a, const cdp__dt_region *b, uint32_t ndim) {
    for (uint32_t d = 0; d < ndim; ++d)
        if (a->start[d] != b->start[d] || a->size[d] != b->size[d]) return false;
    return true;
}

/* Writes the ranks that hold a region, like "0 4"; at most `most` of them. */
CDP__DT void cdp__dt_add_holders(
    cdp__text *t, const cdp__dt_grid *g, const cdp__dt_region *box, uint32_t most) {
    const uint32_t first = cdp__dt_position_of(&g->side, box->start);
    const cdp__dt_region r = cdp__dt_region_of(&g->side, first);
    if (!cdp__dt_region_same(&r, box, g->dims)) return;
    for (uint32_t k = 0; k < g->side.members && k < most; ++k)
        cdp__text_add(t, k ? " %u" : "%u",
            g->layout->mesh->ranks[first + cdp__dt_spread(&g->side, k, CDP__DT_CUTS, false)]);
    if (g->side.members > most) cdp__text_add(t, " +%u", g->side.members - most);
}

/* Writes "0-3", or "5" for one element. */
CDP__DT void cdp__dt_add_interval(cdp__text *t, uint64_t start, uint64_t size) {
    cdp__text_add(t, "%llu", (unsigned long long)start);
    if (size > 1) cdp__text_add(t, "-%llu", (unsigned long long)(start + size - 1));
}

CDP__DT void cdp__dt_add_shape(cdp__text *t, const cdp_layout *l) {
    cdp__text_add(t, "%s[", cdp_dtype_name(l->dtype));
    for (uint32_t d = 0; d < l->ndim; ++d)
        cdp__text_add(t, d ? ",%llu" : "%llu", (unsigned long long)l->shape[d]);
    cdp__text_add(t, "]");
}

/* Writes a mesh like "2x4 (dp,tp)". */
CDP__DT void cdp__dt_add_mesh(cdp__text *t, const cdp_mesh *m) {
    for (uint32_t d = 0; d < m->desc.ndim; ++d)
        cdp__text_add(t, d ? "x%u" : "%u", m->desc.shape[d]);
    for (uint32_t d = 0; d < m->desc.ndim; ++d)
        cdp__text_add(t, d ? ",%s" : " (%s", m->names[d]);
    cdp__text_add(t, ")");
}

CDP__DT void cdp__dt_add_layout(cdp__text *t, const cdp_layout *l) {
    cdp__dt_add_shape(t, l);
    cdp__text_add(t, " as ");
    cdp__dt_add_places(t, l);
    cdp__text_add(t, " on mesh ");
    cdp__dt_add_mesh(t, l->mesh);
}

/* Writes the ranks without elements, if there are any. */
CDP__DT void cdp__dt_add_empty(cdp__text *t, const cdp__dt_grid *g) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < g->side.count; ++k) {
        const cdp__dt_region r = cdp__dt_region_of(&g->side, k);
        if (cdp__dt_volume(&r, g->dims)) continue;
        cdp__text_add(t, n++ ? " %u" : "empty on ranks %u", g->layout->mesh->ranks[k]);
    }
    if (n) cdp__text_add(t, "\n");
}

/* Advances to the next combination of intervals of the leading dimensions; false after the last
   one. */
CDP__DT bool cdp__dt_grid_next(const cdp__dt_grid *g, uint32_t *index) {
    for (uint32_t d = g->dims > 2 ? g->dims - 2 : 0; d-- > 0; index[d] = 0)
        if (++index[d] < g->count[d]) return true;
    return false;
}

CDP__DT bool cdp__dt_grid_empty(const cdp__dt_grid *g) {
    for (uint32_t d = 0; d < g->dims; ++d)
        if (!g->count[d]) return true;
    return false;
}

CDP__DT void cdp__dt_plane_name(cdp__text *t, const cdp__dt_grid *g, const uint32_t *index) {
    cdp__text_add(t, "plane [");
    for (uint32_t d = 0; d + 2 < g->dims; ++d) {
        if (d) cdp__text_add(t, ", ");
        cdp__dt_add_interval(t, g->start[d][index[d]], g->size[d][index[d]]);
    }
    cdp__text_add(t, "]");
}

/* Writes a table: columns of elements across, rows down, and in each cell the ranks that hold
   it. */
CDP__DT void cdp__dt_plane_text(
    cdp__text *t, const cdp__dt_grid *g, uint32_t *index, uint32_t width, bool color) {
    const uint32_t columns = cdp__dt_grid_count(g, g->columns),
                   rows = cdp__dt_grid_count(g, g->rows);
    uint64_t line = t->used;
    for (uint32_t c = 0; c < columns && g->columns != CDP__DT_NONE; ++c) {
        cdp__text_pad(t, line, 10 + c * width);
        cdp__dt_add_interval(t, g->start[g->columns][c], g->size[g->columns][c]);
    }
    if (g->columns != CDP__DT_NONE) cdp__text_add(t, "\n");
    for (uint32_t r = 0; r < rows; ++r) {
        line = t->used;
        if (g->rows != CDP__DT_NONE) {
            cdp__text_add(t, "  ");
            cdp__dt_add_interval(t, g->start[g->rows][r], g->size[g->rows][r]);
            index[g->rows] = r;
        }
        for (uint32_t c = 0; c < columns; ++c) {
            if (g->columns != CDP__DT_NONE) index[g->columns] = c;
            const cdp__dt_region box = cdp__dt_grid_box(g, index);
            cdp__text_pad(t, line, 10 + c * width);
            if (color) {
                const uint64_t before = t->used;
                cdp__text_add(t, "\033[3%um", 1 + (r * columns + c) % 6);
                line += t->used - before + 5;
            }
            cdp__dt_add_holders(t, g, &box, 8);
            if (color) cdp__text_add(t, "\033[39m");
        }
        cdp__text_add(t, "\n");
    }
}

CDP__DT void cdp__dt_layout_as_text(cdp__text *t, const cdp__dt_grid *g, bool color) {
    uint32_t index[CDP_TENSOR_DIMS] = {0};
    const uint32_t copies = g->side.members;
    const uint32_t width = 4 + 4 * (uint32_t)cdp__min(copies, 8) + (copies > 8 ? 6 : 0);
    cdp__dt_add_layout(t, g->layout);
    cdp__text_add(t, g->dims > 1 ? "; rows down, columns across, ranks inside\n" : "\n");
    if (!cdp__dt_grid_empty(g)) {
        do {
            if (g->dims > 2) {
                cdp__dt_plane_name(t, g, index);
                cdp__text_add(t, "\n");
            }
            cdp__dt_plane_text(t, g, index, width < 12 ? 12 : width, color);
        } while (cdp__dt_grid_next(g, index));
    }
    cdp__dt_add_empty(t, g);
}

CDP__DT void cdp__dt_add_box(cdp__text *t, const cdp__dt_region *r, uint32_t ndim) {
    cdp__text_add(t, "[");
    for (uint32_t d = 0; d < ndim; ++d) {
        if (d) cdp__text_add(t, ", ");
        cdp__text_add(t, "%llu:%llu", (unsigned long long)r->start[d],
            (unsigned long long)(r->start[d] + r->size[d]));
    }
    cdp__text_add(t, "]");
}

CDP__DT void cdp__dt_json_list(cdp__text *t, const uint64_t *v, uint32_t n) {
    cdp__text_add(t, "[");
    for (uint32_t i = 0; i < n; ++i)
        cdp__text_add(t, i ? ",%llu" : "%llu", (unsigned long long)v[i]);
    cdp__text_add(t, "]");
}

CDP__DT void cdp__dt_layout_as_json(cdp__text *t, const cdp__dt_grid *g) {
    cdp__text_add(t, "{\"layout\": \"");
    cdp__dt_add_places(t, g->layout);
    cdp__text_add(t, "\", \"dtype\": \"%s\", \"shape\": ", cdp_dtype_name(g->layout->dtype));
    cdp__dt_json_list(t, g->layout->shape, g->dims);
    cdp__text_add(t, ", \"ranks\": [");
    for (uint32_t k = 0; k < g->side.count; ++k) {
        const cdp__dt_region r = cdp__dt_region_of(&g->side, k);
        cdp__text_add(t, k ? ",\n  {\"rank\": %u, \"start\": " : "\n  {\"rank\": %u, \"start\": ",
            g->layout->mesh->ranks[k]);
        cdp__dt_json_list(t, r.start, g->dims);
        cdp__text_add(t, ", \"size\": ");
        cdp__dt_json_list(t, r.size, g->dims);
        cdp__text_add(t, "}");
    }
    cdp__text_add(t, "]}\n");
}

/* Draws one plane as rectangles in proportion; returns its height. */
CDP__DT uint32_t cdp__dt_plane_svg(
    cdp__text *t, const cdp__dt_grid *g, uint32_t *index, uint32_t left, uint32_t top) {
    const uint32_t columns = cdp__dt_grid_count(g, g->columns),
                   rows = cdp__dt_grid_count(g, g->rows);
    const uint64_t across = g->columns == CDP__DT_NONE ? 1 : g->layout->shape[g->columns];
    const uint64_t down = g->rows == CDP__DT_NONE ? 1 : g->layout->shape[g->rows];
    const uint32_t width = 400, height = g->rows == CDP__DT_NONE ? 40 : 60 + 40 * rows;
    if (g->dims > 2) {
        cdp__text_add(t, "<text x=\"%u\" y=\"%u\">", left, top - 20);
        cdp__dt_plane_name(t, g, index);
        cdp__text_add(t, "</text>\n");
    }
    for (uint32_t k = 0; k < rows * columns; ++k) {
        const uint32_t r = k / columns, c = k % columns;
        if (g->rows != CDP__DT_NONE) index[g->rows] = r;
        if (g->columns != CDP__DT_NONE) index[g->columns] = c;
        const cdp__dt_region box = cdp__dt_grid_box(g, index);
        const uint64_t x0 = g->columns == CDP__DT_NONE ? 0 : box.start[g->columns];
        const uint64_t w = g->columns == CDP__DT_NONE ? 1 : box.size[g->columns];
        const uint64_t y0 = g->rows == CDP__DT_NONE ? 0 : box.start[g->rows];
        const uint64_t h = g->rows == CDP__DT_NONE ? 1 : box.size[g->rows];
        const uint32_t x = left + (uint32_t)(width * x0 / across),
                       y = top + (uint32_t)(height * y0 / down);
        const uint32_t wide = (uint32_t)(width * w / across), high = (uint32_t)(height * h / down);
        cdp__text_add(t,
            "<rect class=\"box\" x=\"%u\" y=\"%u\" width=\"%u\" height=\"%u\" fill=\"%s\"/>", x, y,
            wide, high, cdp__svg_tint(k));
        cdp__text_add(t, "<text class=\"in\" text-anchor=\"middle\" x=\"%u\" y=\"%u\">",
            x + wide / 2, y + high / 2 + 4);
        cdp__dt_add_holders(t, g, &box, 8);
        cdp__text_add(t, "</text>\n");
        if (r == 0 && g->columns != CDP__DT_NONE) {
            cdp__text_add(t, "<text class=\"thin\" text-anchor=\"middle\" x=\"%u\" y=\"%u\">",
                x + wide / 2, top - 5);
            cdp__dt_add_interval(t, x0, w);
            cdp__text_add(t, "</text>\n");
        }
        if (c == 0 && g->rows != CDP__DT_NONE) {
            cdp__text_add(t, "<text class=\"thin\" text-anchor=\"end\" x=\"%u\" y=\"%u\">",
                left - 6, y + high / 2 + 4);
            cdp__dt_add_interval(t, y0, h);
            cdp__text_add(t, "</text>\n");
        }
    }
    return height;
}

CDP__DT void cdp__dt_layout_as_svg(cdp__text *t, const cdp__dt_grid *g) {
    uint32_t index[CDP_TENSOR_DIMS] = {0}, planes = 0, top = 56;
    const uint32_t rows = cdp__dt_grid_count(g, g->rows);
    const uint32_t high = (g->rows == CDP__DT_NONE ? 40 : 60 + 40 * rows) + 50;
    const bool empty = cdp__dt_grid_empty(g);
    do
        ++planes;
    while (!empty && cdp__dt_grid_next(g, index));
    cdp__svg_begin(t, 520, 60 + planes * high);
    cdp__text_add(t, "<text x=\"10\" y=\"20\">");
    cdp__dt_add_layout(t, g->layout);
    cdp__text_add(t, "</text>\n");
    memset(index, 0, sizeof index);
    while (!empty) {
        (void)cdp__dt_plane_svg(t, g, index, 90, top);
        top += high;
        if (!cdp__dt_grid_next(g, index)) break;
    }
    cdp__text_add(t, "<text class=\"thin\" x=\"10\" y=\"%u\">", 50 + planes * high);
    cdp__dt_add_empty(t, g);
    cdp__text_add(t, "</text>\n</svg>\n");
}

CDP_API uint64_t cdp_layout_draw(
    const cdp_layout *l, cdp_draw_format format, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    cdp__dt_grid g;
    (void)cdp__text_end(&t);
    if (cdp_layout_check(l) != CDP_OK) return 0;
    const cdp__dt_side s = cdp__dt_side_of(l, 0);
    const uint64_t bytes = 2ull * CDP_TENSOR_DIMS * s.cells * sizeof(uint64_t);
    uint64_t *memory = (uint64_t *)cdp__dt_alloc(l->mesh->root->os, bytes);
    if (!memory) return 0;
    cdp__dt_grid_make(&g, l, memory);
    if (format == CDP_DRAW_SVG)
        cdp__dt_layout_as_svg(&t, &g);
    else if (format == CDP_DRAW_JSON)
        cdp__dt_layout_as_json(&t, &g);
    else
        cdp__dt_layout_as_text(&t, &g, format == CDP_DRAW_COLOR);
    cdp__dt_free(l->mesh->root->os, memory);
    return cdp__text_end(&t);
}

#endif /* CDP_SRC_DTENSOR_PICTURES_H */
