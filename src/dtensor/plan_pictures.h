/* dtensor/plan_pictures.h - which rank sends what to which

   Knows: the moves of every rank, so it works without a group and on any rank. Promises: text, SVG
   and JSON of a plan. */
#ifndef CDP_SRC_DTENSOR_PLAN_PICTURES_H
#define CDP_SRC_DTENSOR_PLAN_PICTURES_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/helpers.h"
#include "../text/format.h"
#include "../text/svg.h"
#include "layout_api.h"
#include "plan_api.h"
#include "kit.h"
#include "kernels.h"
#include "moves.h"
#include "sums.h"
#include "spelling.h"
#include "stages.h"
#include "phases.h"
#include "pictures.h"

typedef struct cdp__dt_flow {
    cdp__text *text;
    const cdp_plan *plan;
    const cdp__dt_stage *stage;
    uint32_t node, shown, most; /* the sender; lines so far, and at most */
    bool terms;                 /* phase A, else B */
    uint64_t *bytes;            /* nodes x nodes: from, to */
} cdp__dt_flow;

CDP__DT uint32_t cdp__dt_rank_of_node(const cdp__dt_stage *s, uint32_t node) {
    return s->maps ? node : s->from.mesh->ranks[node];
}

CDP__DT bool cdp__dt_flow_sends(const cdp__dt_flow *f, const cdp__dt_move *m) {
    if (f->terms) return m->kind == CDP__DT_TERM_SEND;
    return m->kind == CDP__DT_SEND || m->kind == CDP__DT_OWN_SEND;
}

CDP__DT void cdp__dt_flow_sum(void *user, const cdp__dt_move *m) {
    cdp__dt_flow *f = (cdp__dt_flow *)user;
    if (cdp__dt_flow_sends(f, m))
        f->bytes[(uint64_t)f->node * f->stage->pair.nodes + m->peer] +=
            cdp__dt_volume(&m->region, f->stage->pair.to.ndim) * f->plan->elem;
}

CDP__DT void cdp__dt_flow_line(void *user, const cdp__dt_move *m) {
    cdp__dt_flow *f = (cdp__dt_flow *)user;
    if (!cdp__dt_flow_sends(f, m) || f->shown++ >= f->most) return;
    cdp__text_add(f->text, "    %u -> %u  ", cdp__dt_rank_of_node(f->stage, f->node),
        cdp__dt_rank_of_node(f->stage, m->peer));
    cdp__dt_add_box(f->text, &m->region, f->stage->from.ndim);
    cdp__text_add(f->text, "  %llu bytes\n",
        (unsigned long long)(cdp__dt_volume(&m->region, f->stage->pair.to.ndim) * f->plan->elem));
}

CDP__DT void cdp__dt_flow_json(void *user, const cdp__dt_move *m) {
    cdp__dt_flow *f = (cdp__dt_flow *)user;
    if (!cdp__dt_flow_sends(f, m)) return;
    cdp__text_add(f->text,
        f->shown++ ? ",\n    {\"from\": %u, \"to\": %u, \"start\": "
                   : "\n    {\"from\": %u, \"to\": %u, \"start\": ",
        cdp__dt_rank_of_node(f->stage, f->node), cdp__dt_rank_of_node(f->stage, m->peer));
    cdp__dt_json_list(f->text, m->region.start, f->stage->from.ndim);
    cdp__text_add(f->text, ", \"size\": ");
    cdp__dt_json_list(f->text, m->region.size, f->stage->from.ndim);
    cdp__text_add(f->text, "}");
}

CDP__DT void cdp__dt_flow_all(cdp__dt_flow *f, cdp__dt_emit *emit) {
    for (f->node = 0; f->node < f->stage->pair.nodes; ++f->node)
        cdp__dt_moves(&f->stage->pair, f->node, emit, f);
}

CDP__DT const char *cdp__dt_plan_name(const cdp_plan *p) {
    if (p->single.kind) return cdp_coll_name(p->single.kind);
    if (p->desc.kind == CDP_PLAN_TORCH) return "PyTorch's steps";
    if (p->calls) return "collectives";
    return p->stage_count > 1 || p->desc.kind == CDP_PLAN_BY_DIM ? "by dimension" : "direct";
}

CDP__DT void cdp__dt_plan_head(cdp__text *t, const cdp_plan *p) {
    cdp__dt_add_shape(t, &p->desc.from);
    cdp__text_add(t, " from ");
    cdp__dt_add_places(t, &p->desc.from);
    cdp__text_add(t, " to ");
    cdp__dt_add_places(t, &p->desc.to);
    cdp__text_add(t, " on mesh ");
    cdp__dt_add_mesh(t, p->desc.from.mesh);
}

CDP__DT void cdp__dt_plan_numbers(cdp__text *t, const cdp_plan *p) {
    cdp__text_add(t, "%s: phases: %u; bytes: %llu, the least possible %llu, PyTorch's steps %llu; ",
        cdp__dt_plan_name(p), p->info.steps, (unsigned long long)p->info.total_bytes,
        (unsigned long long)p->info.bound_bytes, (unsigned long long)p->info.torch_bytes);
    cdp__text_add(t, "about ");
    cdp__text_tenths(t, p->info.predicted_us);
    cdp__text_add(t, " us");
}

/* Writes a table of bytes: rows send, columns receive. */
CDP__DT void cdp__dt_flow_matrix(cdp__text *t, const cdp__dt_flow *f) {
    const uint32_t n = f->stage->pair.nodes;
    uint64_t line = t->used;
    cdp__text_add(t, "  from\\to");
    for (uint32_t to = 0; to < n; ++to) {
        cdp__text_pad(t, line, 12 + 8 * to);
        cdp__text_add(t, "%u", cdp__dt_rank_of_node(f->stage, to));
    }
    cdp__text_add(t, "\n");
    for (uint32_t from = 0; from < n; ++from) {
        line = t->used;
        cdp__text_add(t, "  %u", cdp__dt_rank_of_node(f->stage, from));
        for (uint32_t to = 0; to < n; ++to) {
            cdp__text_pad(t, line, 12 + 8 * to);
            const uint64_t bytes = f->bytes[(uint64_t)from * n + to];
            if (bytes)
                cdp__text_add(t, "%llu", (unsigned long long)bytes);
            else
                cdp__text_add(t, ".");
        }
        cdp__text_add(t, "\n");
    }
}

/* Draws two columns of ranks, and a line for each pair that communicates, as thick as its bytes. */
CDP__DT void cdp__dt_flow_svg(cdp__text *t, const cdp__dt_flow *f, uint32_t top) {
    const uint32_t n = f->stage->pair.nodes;
    uint64_t most = 1;
    for (uint64_t i = 0; i < (uint64_t)n * n; ++i)
        most = cdp__max(most, f->bytes[i]);
    for (uint64_t i = 0; i < (uint64_t)n * n; ++i) {
        const uint32_t y = top + 24 * (uint32_t)(i / n), z = top + 24 * (uint32_t)(i % n);
        if (!f->bytes[i]) continue;
        cdp__text_add(t, "<path class=\"line\" stroke-width=\"%u\" stroke-opacity=\"0.6\" ",
            1 + (uint32_t)(5 * f->bytes[i] / most));
        cdp__text_add(t, "d=\"M110 %u C230 %u 290 %u 410 %u\"><title>", y, y, z, z);
        cdp__text_add(t, "%u to %u: %llu bytes</title></path>\n",
            cdp__dt_rank_of_node(f->stage, (uint32_t)(i / n)),
            cdp__dt_rank_of_node(f->stage, (uint32_t)(i % n)), (unsigned long long)f->bytes[i]);
    }
    for (uint32_t k = 0; k < n; ++k) {
        const uint32_t rank = cdp__dt_rank_of_node(f->stage, k), y = top + 24 * k + 4;
        cdp__text_add(t, "<text text-anchor=\"end\" x=\"104\" y=\"%u\">rank %u</text>", y, rank);
        cdp__text_add(t, "<text x=\"416\" y=\"%u\">rank %u</text>\n", y, rank);
    }
}

CDP__DT void cdp__dt_flow_title(cdp__text *t, const cdp__dt_flow *f) {
    cdp__dt_add_places(t, &f->stage->from);
    cdp__text_add(t, " to ");
    cdp__dt_add_places(t, &f->stage->to);
    if (f->stage->pair.from.terms > 1)
        cdp__text_add(t, f->terms ? ", contributions to owners" : ", results from owners");
}

/* Draws one phase of all ranks; `top`: where it begins. Returns whether it has messages. */
CDP__DT bool cdp__dt_flow_draw(
    cdp__dt_flow *f, cdp_draw_format format, uint32_t phase, uint32_t top) {
    const uint32_t n = f->stage->pair.nodes;
    uint64_t total = 0;
    memset(f->bytes, 0, (size_t)n * n * sizeof *f->bytes);
    cdp__dt_flow_all(f, cdp__dt_flow_sum);
    for (uint64_t i = 0; i < (uint64_t)n * n; ++i)
        total += f->bytes[i];
    if (!total) return false;
    if (format == CDP_DRAW_SVG) {
        cdp__text_add(f->text, "<text x=\"10\" y=\"%u\">%u. ", top, phase);
        cdp__dt_flow_title(f->text, f);
        cdp__text_add(f->text, ": %llu bytes</text>\n", (unsigned long long)total);
        cdp__dt_flow_svg(f->text, f, top + 22);
        return true;
    }
    cdp__text_add(f->text, "  %u. ", phase);
    cdp__dt_flow_title(f->text, f);
    cdp__text_add(f->text, ": %llu bytes\n", (unsigned long long)total);
    if (n <= 16) cdp__dt_flow_matrix(f->text, f);
    f->shown = 0;
    f->most = 64;
    cdp__dt_flow_all(f, cdp__dt_flow_line);
    if (f->shown > f->most) cdp__text_add(f->text, "    and %u more\n", f->shown - f->most);
    return true;
}

/* ---- stages that run as collectives: who sends to whom is the group's choice ---- */

CDP__DT bool cdp__dt_called(const cdp__dt_stage *s) {
    return s->single.kind || s->sum.terms;
}

CDP__DT uint64_t cdp__dt_called_bytes(const cdp__dt_flow *f, uint32_t node) {
    const cdp__dt_single *s = &f->stage->single;
    uint64_t count = 0;
    cdp__dt_region box;
    if (s->kind) {
        (void)cdp__dt_row_count(&f->stage->pair, s, cdp__dt_single_first(s, node), &count);
        return cdp__dt_single_recv(s, node, count) * f->plan->elem;
    }
    const uint64_t n = cdp__dt_held(&f->stage->pair.from, node, &box);
    const cdp__dt_calls calls = cdp__dt_sum_calls(&f->stage->pair.from, &f->stage->sum, node, n);
    for (uint32_t k = 0; k < calls.count; ++k)
        count += cdp__dt_call_recv(&calls.call[k]);
    return count * f->plan->elem;
}

/* The names of the collectives of a stage; `between` them. */
CDP__DT void cdp__dt_called_names(const cdp__dt_flow *f, const char *between) {
    const cdp__dt_stage *s = f->stage;
    if (s->single.kind) cdp__text_add(f->text, "%s", cdp_coll_name(s->single.kind));
    if (s->single.kind) return;
    const cdp__dt_calls calls = cdp__dt_sum_calls(&s->pair.from, &s->sum, 0, s->sum_most);
    for (uint32_t k = 0; k < calls.count; ++k)
        cdp__text_add(f->text, "%s%s", k ? between : "", cdp_coll_name(calls.call[k].kind));
}

/* Draws two columns of ranks, and between them a bar that stands for the collectives. */
CDP__DT void cdp__dt_called_svg(const cdp__dt_flow *f, uint32_t top) {
    const uint32_t n = f->plan->nodes, middle = top + 12 * (n - 1);
    cdp__text_add(f->text,
        "<path class=\"box\" stroke-width=\"3\" d=\"M260 %u V%u\"/>"
        "<text x=\"268\" y=\"%u\">",
        top - 6, top + 24 * (n - 1) + 6, middle + 4);
    cdp__dt_called_names(f, ", ");
    cdp__text_add(f->text, "</text>\n");
    for (uint32_t k = 0; k < n; ++k) {
        const uint32_t rank = cdp__dt_rank_of_node(f->stage, k), y = top + 24 * k;
        cdp__text_add(
            f->text, "<path class=\"line\" d=\"M110 %u H260 M260 %u H410\"><title>", y, y);
        cdp__text_add(f->text, "rank %u receives %llu bytes</title></path>\n", rank,
            (unsigned long long)cdp__dt_called_bytes(f, k));
        cdp__text_add(f->text, "<text text-anchor=\"end\" x=\"104\" y=\"%u\">", y + 4);
        cdp__text_add(
            f->text, "rank %u</text><text x=\"416\" y=\"%u\">rank %u</text>\n", rank, y + 4, rank);
    }
}

/* Draws a stage as number `phase`; `top`: where it begins. */
CDP__DT void cdp__dt_called_draw(
    const cdp__dt_flow *f, cdp_draw_format format, uint32_t phase, uint32_t top) {
    const bool svg = format == CDP_DRAW_SVG;
    const cdp__dt_single *one = &f->stage->single;
    if (svg)
        cdp__text_add(f->text, "<text x=\"10\" y=\"%u\">%u. ", top, phase);
    else
        cdp__text_add(f->text, "  %u. ", phase);
    cdp__dt_add_places(f->text, &f->stage->from);
    cdp__text_add(f->text, " to ");
    cdp__dt_add_places(f->text, &f->stage->to);
    cdp__text_add(f->text, one->kind ? ", one " : ", ");
    cdp__dt_called_names(f, ", ");
    if (one->kind)
        cdp__text_add(f->text, " of %s", one->by == CDP__DT_NONE ? "the group" : "each row");
    cdp__text_add(f->text, ": %llu bytes%s\n",
        (unsigned long long)cdp__dt_times_most(f->stage->cost.total, f->plan->elem),
        svg ? "</text>" : "");
    if (svg) {
        cdp__dt_called_svg(f, top + 22);
        return;
    }
    for (uint32_t k = 0; k < f->plan->nodes && k < 64; ++k)
        cdp__text_add(f->text, "    %u receives %llu bytes\n", cdp__dt_rank_of_node(f->stage, k),
            (unsigned long long)cdp__dt_called_bytes(f, k));
    if (f->plan->nodes > 64) cdp__text_add(f->text, "    and %u more\n", f->plan->nodes - 64);
}

CDP__DT void cdp__dt_called_json(const cdp__dt_flow *f, bool first) {
    cdp__text_add(f->text, "%s\n  {\"reduces\": %s, \"collective\": \"", first ? "" : ",",
        f->stage->single.kind == CDP_COLL_ALLGATHER ? "false" : "true");
    cdp__dt_called_names(f, ", ");
    cdp__text_add(f->text, "\", \"recv_bytes\": [");
    for (uint32_t k = 0; k < f->plan->nodes; ++k)
        cdp__text_add(
            f->text, k ? ", %llu" : "%llu", (unsigned long long)cdp__dt_called_bytes(f, k));
    cdp__text_add(f->text, "], \"messages\": []}");
}

/* Draws a stage from phase number `phase` on; returns the number of the next one. */
CDP__DT uint32_t cdp__dt_stage_draw(cdp__dt_flow *f, cdp_draw_format format, uint32_t phase) {
    const uint32_t high = 24 * f->plan->nodes + 40;
    if (cdp__dt_called(f->stage)) {
        cdp__dt_called_draw(f, format, phase, 60 + (phase - 1) * high);
        return phase + 1;
    }
    for (uint32_t b = 0; b < 2; ++b) {
        f->terms = b == 0;
        if (cdp__dt_flow_draw(f, format, phase, 60 + (phase - 1) * high)) ++phase;
    }
    return phase;
}

CDP__DT void cdp__dt_plan_phases(cdp__dt_flow *f, cdp_draw_format format) {
    uint32_t phase = 1;
    for (uint32_t k = 0; k < f->plan->stage_count; ++k) {
        f->stage = &f->plan->stages[k];
        phase = cdp__dt_stage_draw(f, format, phase);
    }
}

CDP__DT void cdp__dt_plan_json(cdp__dt_flow *f) {
    const cdp_plan_info *i = &f->plan->info;
    cdp__text_add(f->text, "{\"plan\": \"");
    cdp__dt_plan_head(f->text, f->plan);
    cdp__text_add(f->text,
        "\", \"total_bytes\": %llu, \"bound_bytes\": %llu, \"torch_bytes\": %llu, ",
        (unsigned long long)i->total_bytes, (unsigned long long)i->bound_bytes,
        (unsigned long long)i->torch_bytes);
    cdp__text_add(f->text, "\"phases\": [");
    for (uint32_t k = 0; k < f->plan->stage_count; ++k)
        for (uint32_t b = 0; b < 2; ++b) {
            f->stage = &f->plan->stages[k];
            if (b == 0 && cdp__dt_called(f->stage)) cdp__dt_called_json(f, k == 0);
            if (cdp__dt_called(f->stage)) continue;
            f->terms = b == 0;
            f->shown = 0;
            if (f->terms && f->stage->pair.from.terms == 1) continue;
            cdp__text_add(f->text,
                k + b && (k || f->stage->pair.from.terms > 1)
                    ? ",\n  {\"reduces\": %s, \"messages\": ["
                    : "\n  {\"reduces\": %s, \"messages\": [",
                f->terms ? "true" : "false");
            cdp__dt_flow_all(f, cdp__dt_flow_json);
            cdp__text_add(f->text, "]}");
        }
    cdp__text_add(f->text, "]}\n");
}

CDP_API uint64_t cdp_plan_draw(
    const cdp_plan *p, cdp_draw_format format, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    cdp__dt_flow f;
    (void)cdp__text_end(&t);
    if (!p || cdp__ended(p)) return 0;
    memset(&f, 0, sizeof f);
    f.text = &t;
    f.plan = p;
    f.bytes = (uint64_t *)cdp__dt_alloc(p->os, (uint64_t)p->nodes * p->nodes * sizeof *f.bytes);
    if (!f.bytes) return 0;
    if (format == CDP_DRAW_JSON) {
        cdp__dt_plan_json(&f);
    } else if (format == CDP_DRAW_SVG) {
        cdp__svg_begin(&t, 640, 70 + p->info.steps * (24 * p->nodes + 40));
        cdp__text_add(&t, "<text x=\"10\" y=\"18\">");
        cdp__dt_plan_head(&t, p);
        cdp__text_add(&t, "</text>\n<text class=\"thin\" x=\"10\" y=\"36\">");
        cdp__dt_plan_numbers(&t, p);
        cdp__text_add(&t, "</text>\n");
        cdp__dt_plan_phases(&f, format);
        cdp__text_add(&t, "</svg>\n");
    } else {
        cdp__dt_plan_head(&t, p);
        cdp__text_add(&t, "\n  ");
        cdp__dt_plan_numbers(&t, p);
        cdp__text_add(&t, "\n");
        cdp__dt_plan_phases(&f, format);
    }
    cdp__dt_free(p->os, f.bytes);
    return cdp__text_end(&t);
}

#endif /* CDP_SRC_DTENSOR_PLAN_PICTURES_H */
