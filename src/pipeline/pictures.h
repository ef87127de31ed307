/* pipeline/pictures.h - a step as a picture, on paper and as it ran

   Knows: a table and times of its rows. Promises: each time in which a rank waits is explained by
   the row that it waits for. */
#ifndef CDP_SRC_PIPELINE_PICTURES_H
#define CDP_SRC_PIPELINE_PICTURES_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "../text/format.h"
#include "../text/svg.h"
#include "schedule_api.h"
#include "table.h"
#include "schedule.h"

#define CDP__PIPE_COLUMNS 88u /* of a line of text */
#define CDP__PIPE_LISTED 12u  /* most waits in a list */
#define CDP__PIPE_LEFT 130u
#define CDP__PIPE_WIDE 1050.0

typedef struct cdp__pipe_drawing {
    const cdp__pipe_table *table;
    const cdp_pipe_times *times[2]; /* on paper, and as it ran; NULL: not drawn */
    const uint64_t *givers;         /* of each message: the row that sends it */
    double ends[2], total;          /* of each step, and of the longer one */
    cdp__text *text;
} cdp__pipe_drawing;

CDP__PRIVATE const char *cdp__pipe_side(uint32_t side) {
    return side ? "as it ran" : "on paper";
}

/* ---- why a rank waits ---- */

typedef struct cdp__pipe_gap {
    uint32_t side, rank;
    uint64_t row, source; /* of all rows: the next one, and the one that it waits for; NONE */
    double from, to;
} cdp__pipe_gap;

/* The row that gives what a row needs and ends last; a pair waits for both of its rows. */
CDP__PRIVATE uint64_t cdp__pipe_last_giver(
    const cdp__pipe_drawing *d, const double *end, uint64_t row) {
    uint64_t source = CDP__PIPE_NONE;
    for (uint64_t i = row; i < row + cdp__pipe_width(&d->table->acts[row]); ++i) {
        const uint64_t m = cdp__pipe_needs(d->table, &d->table->acts[i]);
        if (m == CDP__PIPE_NONE) continue;
        if (source == CDP__PIPE_NONE || end[d->givers[m]] > end[source]) source = d->givers[m];
    }
    return source;
}

/* The time before a row, or after the last one (row: first[rank + 1]), in which a rank computes
   nothing; false: there is none. Less than a thousandth of the picture is none. */
CDP__PRIVATE bool cdp__pipe_gap_before(
    const cdp__pipe_drawing *d, uint32_t side, uint32_t rank, uint64_t row, cdp__pipe_gap *g) {
    const cdp__pipe_table *t = d->table;
    const double *start = d->times[side]->start_us, *end = d->times[side]->end_us;
    const bool more = row < t->first[rank + 1];
    g->side = side;
    g->rank = rank;
    g->row = row;
    g->source = more ? cdp__pipe_last_giver(d, end, row) : CDP__PIPE_NONE;
    g->from = row > t->first[rank] ? end[row - 1] : 0;
    g->to = more ? start[row] : d->ends[side];
    return g->to - g->from > d->total / 1000;
}

CDP__PRIVATE void cdp__pipe_add_us(cdp__text *t, double us) {
    cdp__text_tenths(t, us);
    cdp__text_add(t, " us");
}

/* "rank 1 waits 20.0 us before 1B0, for 2B0 of rank 2 (5.0 us of it for the message)" */
CDP__PRIVATE void cdp__pipe_add_gap(const cdp__pipe_drawing *d, const cdp__pipe_gap *g) {
    const cdp__pipe_table *t = d->table;
    cdp__text *text = d->text;
    cdp__text_add(text, "rank %u waits ", g->rank);
    cdp__pipe_add_us(text, g->to - g->from);
    if (g->row == t->first[g->rank + 1]) {
        cdp__text_add(text, " at the end: it has no more rows");
        return;
    }
    cdp__text_add(text, " before ");
    cdp__pipe_add_act(text, &t->acts[g->row]);
    if (g->source == CDP__PIPE_NONE) {
        cdp__text_add(text, ", not for another rank: its own thread came late");
        return;
    }
    const double done = d->times[g->side]->end_us[g->source];
    cdp__text_add(text, done > g->from ? ", for " : ", for the message of ");
    cdp__pipe_add_act(text, &t->acts[g->source]);
    cdp__text_add(text, " of rank %u", t->place[t->acts[g->source].stage]);
    if (done <= g->from || g->to - done <= d->total / 1000) return;
    cdp__text_add(text, " (");
    cdp__pipe_add_us(text, g->to - done);
    cdp__text_add(text, " of it for the message)");
}

/* The longest waits of a side that are shorter than those before. */
CDP__PRIVATE bool cdp__pipe_next_gap(
    const cdp__pipe_drawing *d, uint32_t side, const cdp__pipe_gap *before, cdp__pipe_gap *next) {
    const cdp__pipe_table *t = d->table;
    bool found = false;
    for (uint32_t r = 0; r < t->ranks; ++r) {
        for (uint64_t row = t->first[r]; row <= t->first[r + 1]; ++row) {
            cdp__pipe_gap g;
            if (!cdp__pipe_gap_before(d, side, r, row, &g)) continue;
            const double took = g.to - g.from, least = found ? next->to - next->from : 0;
            const double most = before ? before->to - before->from : took + 1;
            const bool later =
                before && (r > before->rank || (r == before->rank && row > before->row));
            if (took > most || (took >= most && !later) || took <= least) continue;
            *next = g;
            found = true;
        }
    }
    return found;
}

/* ---- as text ---- */

CDP__PRIVATE uint32_t cdp__pipe_column(const cdp__pipe_drawing *d, double us) {
    const double at = us / d->total * CDP__PIPE_COLUMNS + 1e-6; /* a whole number stays one */
    return at < CDP__PIPE_COLUMNS ? (uint32_t)at : CDP__PIPE_COLUMNS - 1;
}

/* Fills the columns of a row: "2F0=====", or as much of it as fits. */
CDP__PRIVATE void cdp__pipe_paint(
    const cdp__pipe_drawing *d, uint32_t side, uint64_t row, char *line) {
    char name[32];
    cdp__text n = cdp__text_of(name, sizeof name);
    const cdp_act *a = &d->table->acts[row];
    const uint32_t from = cdp__pipe_column(d, d->times[side]->start_us[row]);
    uint32_t to = cdp__pipe_column(d, d->times[side]->end_us[row]);
    if (d->times[side]->end_us[row] >= d->total) to = CDP__PIPE_COLUMNS;
    if (to == from) ++to;
    cdp__pipe_add_act(&n, a);
    const bool fits = cdp__text_end(&n) < to - from;
    for (uint32_t i = from; i < to; ++i)
        line[i] = '=';
    line[from] = cdp__pipe_letter(a->kind);
    if (fits) memcpy(line + from, name, (size_t)n.used);
}

CDP__PRIVATE void cdp__pipe_draw_line(const cdp__pipe_drawing *d, uint32_t side, uint32_t rank) {
    char line[CDP__PIPE_COLUMNS + 1];
    memset(line, '.', sizeof line);
    line[CDP__PIPE_COLUMNS] = 0;
    for (uint64_t row = d->table->first[rank]; row < d->table->first[rank + 1]; ++row)
        cdp__pipe_paint(d, side, row, line);
    const uint64_t from = d->text->used;
    if (!side || !d->times[0]) cdp__text_add(d->text, "rank %u", rank);
    cdp__text_pad(d->text, from, 10);
    cdp__text_add(d->text, side ? "ran   " : "paper ");
    cdp__text_add(d->text, "%s\n", line);
}

CDP__PRIVATE void cdp__pipe_add_side(const cdp__pipe_drawing *d, uint32_t side) {
    cdp__text_add(d->text, "%s: a step takes ", cdp__pipe_side(side));
    cdp__pipe_add_us(d->text, d->ends[side]);
}

CDP__PRIVATE void cdp__pipe_draw_text(const cdp__pipe_drawing *d) {
    for (uint32_t r = 0; r < d->table->ranks; ++r)
        for (uint32_t side = 0; side < 2; ++side)
            if (d->times[side]) cdp__pipe_draw_line(d, side, r);
    for (uint32_t side = 0; side < 2; ++side) {
        cdp__pipe_gap gaps[2];
        const cdp__pipe_gap *before = NULL;
        if (!d->times[side]) continue;
        cdp__pipe_add_side(d, side);
        cdp__text_add(d->text, "; the longest waits:\n");
        for (uint32_t i = 0; i < CDP__PIPE_LISTED; ++i) {
            if (!cdp__pipe_next_gap(d, side, before, &gaps[i % 2])) break;
            before = &gaps[i % 2];
            cdp__text_add(d->text, "    ");
            cdp__pipe_add_gap(d, before);
            cdp__text_add(d->text, "\n");
        }
    }
}

/* ---- as SVG ---- */

/* A box from one time to another, dashed if the rank waits (tint: NULL); it stays open for its
   title. */
CDP__PRIVATE void cdp__pipe_open_box(
    const cdp__pipe_drawing *d, double from, double to, uint32_t y, const char *tint) {
    cdp__text_add(d->text, "<rect class=\"box\" y=\"%u\" height=\"18\" x=\"", y);
    cdp__text_tenths(d->text, CDP__PIPE_LEFT + from / d->total * CDP__PIPE_WIDE);
    cdp__text_add(d->text, "\" width=\"");
    cdp__text_tenths(d->text, (to - from) / d->total * CDP__PIPE_WIDE);
    if (tint)
        cdp__text_add(d->text, "\" fill=\"%s\"><title>", tint);
    else
        cdp__text_add(
            d->text, "\" fill=\"none\" pointer-events=\"all\" stroke-dasharray=\"2 3\"><title>");
}

CDP__PRIVATE void cdp__pipe_draw_row(
    const cdp__pipe_drawing *d, uint32_t side, uint32_t rank, uint64_t row, uint32_t y) {
    const cdp_act *a = &d->table->acts[row];
    const double from = d->times[side]->start_us[row], to = d->times[side]->end_us[row];
    cdp__pipe_open_box(d, from, to, y, cdp__svg_tint(a->kind - 1u));
    cdp__pipe_add_act(d->text, a);
    cdp__text_add(d->text, " on rank %u: ", rank);
    cdp__pipe_add_us(d->text, from);
    cdp__text_add(d->text, " to ");
    cdp__pipe_add_us(d->text, to);
    cdp__text_add(d->text, "</title></rect>");
    if ((to - from) / d->total * CDP__PIPE_WIDE >= 26) {
        cdp__text_add(d->text, "<text class=\"in\" text-anchor=\"middle\" y=\"%u\" x=\"", y + 13);
        cdp__text_tenths(d->text, CDP__PIPE_LEFT + (from + to) / 2 / d->total * CDP__PIPE_WIDE);
        cdp__text_add(d->text, "\">");
        cdp__pipe_add_act(d->text, a);
        cdp__text_add(d->text, "</text>");
    }
    cdp__text_add(d->text, "\n");
}

CDP__PRIVATE void cdp__pipe_draw_lane(
    const cdp__pipe_drawing *d, uint32_t side, uint32_t rank, uint32_t y) {
    const cdp__pipe_table *t = d->table;
    cdp__text_add(d->text, "<text x=\"10\" y=\"%u\">rank %u, %s</text>\n", y + 13, rank,
        cdp__pipe_side(side));
    for (uint64_t row = t->first[rank]; row <= t->first[rank + 1]; ++row) {
        cdp__pipe_gap g;
        if (cdp__pipe_gap_before(d, side, rank, row, &g)) {
            cdp__pipe_open_box(d, g.from, g.to, y, NULL);
            cdp__pipe_add_gap(d, &g);
            cdp__text_add(d->text, "</title></rect>\n");
        }
        if (row < t->first[rank + 1]) cdp__pipe_draw_row(d, side, rank, row, y);
    }
}

CDP__PRIVATE void cdp__pipe_draw_legend(const cdp__pipe_drawing *d, uint32_t y) {
    static const char *const words[] = {
        "F: forward", "B: backward", "I: of the input", "W: of the weights"};
    for (uint32_t i = 0; i < 4; ++i)
        cdp__text_add(d->text,
            "<rect class=\"box\" x=\"%u\" y=\"%u\" width=\"18\" height=\"14\" fill=\"%s\"/>"
            "<text x=\"%u\" y=\"%u\">%s</text>\n",
            CDP__PIPE_LEFT + 140 * i, y, cdp__svg_tint(i), CDP__PIPE_LEFT + 24 + 140 * i, y + 12,
            words[i]);
    cdp__text_add(d->text, "<text class=\"thin\" x=\"%u\" y=\"%u\">dashed: the rank waits</text>\n",
        CDP__PIPE_LEFT + 560, y + 12);
}

CDP__PRIVATE void cdp__pipe_draw_svg(const cdp__pipe_drawing *d) {
    const uint32_t lanes = d->times[0] && d->times[1] ? 2 : 1, high = 20 * lanes + 10;
    uint32_t y = 40;
    cdp__svg_begin(d->text, CDP__PIPE_LEFT + 1070, 80 + d->table->ranks * high);
    cdp__text_add(d->text, "<text x=\"10\" y=\"20\">");
    for (uint32_t side = 0; side < 2; ++side) {
        if (!d->times[side]) continue;
        if (side && d->times[0]) cdp__text_add(d->text, "; ");
        cdp__pipe_add_side(d, side);
    }
    cdp__text_add(d->text, "</text>\n");
    for (uint32_t r = 0; r < d->table->ranks; ++r, y += 10)
        for (uint32_t side = 0; side < 2; ++side)
            if (d->times[side]) {
                cdp__pipe_draw_lane(d, side, r, y);
                y += 20;
            }
    cdp__pipe_draw_legend(d, y + 5);
    cdp__text_add(d->text, "</svg>\n");
}

/* Are all of them times? Finds the end of the longer step. */
CDP__PRIVATE bool cdp__pipe_can_draw(cdp__pipe_drawing *d) {
    for (uint32_t side = 0; side < 2; ++side) {
        const cdp_pipe_times *k = d->times[side];
        if (!k) continue;
        if (!k->start_us || !k->end_us) return false;
        for (uint64_t i = 0; i < d->table->first[d->table->ranks]; ++i) {
            if (!cdp__pipe_is_time(k->start_us[i]) || !cdp__pipe_is_time(k->end_us[i])
                || k->end_us[i] < k->start_us[i])
                return false;
            if (k->end_us[i] > d->ends[side]) d->ends[side] = k->end_us[i];
        }
        if (d->ends[side] > d->total) d->total = d->ends[side];
    }
    return d->total > 0;
}

CDP_API uint64_t cdp_schedule_draw(const cdp_schedule *schedule, const cdp_pipe_times *paper,
    const cdp_pipe_times *ran, cdp_pipe_picture format, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    cdp__pipe_drawing d;
    (void)cdp__text_end(&t);
    if (!cdp__pipe_has_schedule(schedule)) return 0;
    memset(&d, 0, sizeof d);
    d.table = &schedule->table;
    d.times[0] = paper;
    d.times[1] = ran;
    d.text = &t;
    if (!cdp__pipe_can_draw(&d)) return 0;
    uint64_t *givers =
        (uint64_t *)cdp__pipe_alloc(schedule->os, 2 * cdp__pipe_cells(d.table) * sizeof *givers);
    if (!givers) return 0;
    for (uint64_t i = 0; i < d.table->first[d.table->ranks]; ++i) {
        const uint64_t m = cdp__pipe_gives(d.table, &d.table->acts[i]);
        if (m != CDP__PIPE_NONE) givers[m] = i;
    }
    d.givers = givers;
    if (format == CDP_PIPE_PICTURE_SVG)
        cdp__pipe_draw_svg(&d);
    else
        cdp__pipe_draw_text(&d);
    cdp__pipe_free(schedule->os, givers);
    return cdp__text_end(&t);
}

#endif /* CDP_SRC_PIPELINE_PICTURES_H */
